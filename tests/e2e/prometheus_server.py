"""A real Prometheus with the alerts of deploy/, for tests.

Knows: how it is started and asked. Does not know: what it scrapes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.e2e.watching import until
from tests.unit.deploy.test_monitoring_files import rules

__all__ = ["NEEDS_PROMETHEUS", "PATIENCE_S", "Prometheus"]

NEEDS_PROMETHEUS: Final = pytest.mark.skipif(
    shutil.which("prometheus") is None and os.environ.get("CI") != "true",
    reason="no Prometheus: tests/install-tools.sh",
)
PATIENCE_S: Final = 120.0


class Prometheus:
    """One on a free port, with the alerts of deploy/, which fire at once. tls: it scrapes by HTTPS, whoever answers."""

    def __init__(self, folder: Path, targets: list[str], *, tls: bool = False) -> None:
        alerts = {"groups": [{"name": "velox", "rules": [{**rule, "for": "0s"} for rule in rules()]}]}
        (folder / "alerts.yaml").write_text(yaml.safe_dump(alerts))
        often = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
        job: dict[str, object] = {"job_name": "velox", "static_configs": [{"targets": targets}]}
        if tls:
            job |= {"scheme": "https", "tls_config": {"insecure_skip_verify": True}}
        config = {"global": often, "rule_files": ["alerts.yaml"], "scrape_configs": [job]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self._address: Final = f"127.0.0.1:{sock.getsockname()[1]}"
        self._folder: Final = folder

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        command = [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self._address}",
        ]
        with (self._folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                until(self._answers, "Prometheus answers", PATIENCE_S)
                yield
            finally:
                process.kill()

    def _answers(self) -> bool:
        try:
            return bool(self.ask("query", query="1"))
        except OSError:
            return False

    def ask(self, what: str, **query: str) -> Any:
        """Ask its API; return the data. Raises OSError for a query that it does not take."""
        with urllib.request.urlopen(
            f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(query)}", timeout=30
        ) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success"
        return answer["data"]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {each["labels"]["alertname"] for each in self.ask("alerts")["alerts"] if each["state"] == "firing"}

    def has(self, query: str) -> bool:
        """Say whether a query has a result."""
        return bool(self.ask("query", query=query)["result"])
