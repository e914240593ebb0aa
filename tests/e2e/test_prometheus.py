"""A real Prometheus scrapes running gateways: it takes each query of deploy/, and staged failures alert."""

from __future__ import annotations

import contextlib
import datetime
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

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import nobody, routed
from tests.unit.deploy.test_monitoring_files import queries, rules

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(
        shutil.which("prometheus") is None and os.environ.get("CI") != "true",
        reason="no Prometheus: tests/install-tools.sh",
    ),
]

KEY: Final = "sk-client-0123456789"
_PATIENCE_S: Final = 120.0


class Prometheus:
    """One on a free port, with the alerts of deploy/, which fire at once."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        alerts = {"groups": [{"name": "velox", "rules": [{**rule, "for": "0s"} for rule in rules()]}]}
        (folder / "alerts.yaml").write_text(yaml.safe_dump(alerts))
        often = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
        job = {"job_name": "velox", "static_configs": [{"targets": targets}]}
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
                until(self._answers, "Prometheus answers", _PATIENCE_S)
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


async def answer(call: Call) -> None:
    """Answer as a model, with a usage; the model `bad` fails."""
    if json.loads(call.body)["model"] == "bad":
        await call.reply(500, JSON, b'{"error": {"message": "no"}}')
        return
    usage = {"prompt_tokens": 95, "completion_tokens": 1, "total_tokens": 96}
    message = {"role": "assistant", "content": "Yes."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    await call.reply(200, JSON, json.dumps({"choices": [choice], "usage": usage}).encode())


def ask(velox: VeloxProcess, model: str) -> int:
    body = json.dumps({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    return velox.request("POST", "/v1/chat/completions", body, headers).status


def unwritable(folder: Path) -> Path:
    """Return a ledger whose files of these days can't be written, whoever one is."""
    today = datetime.datetime.now(datetime.UTC).date()
    for n in (0, 1):
        (folder / f"calls-{today + datetime.timedelta(days=n)}.db").mkdir(parents=True)
    return folder


def test_queries_are_taken_and_staged_failures_alert(tmp_path: Path) -> None:
    """Of an upstream that is down, requests that fail, a budget near its end, a ledger that can't be written.

    Nothing else does: alerts that always fire are read by nobody.
    """
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"- {{key: {KEY}, name: app, team: web}}\n")
    given = {"api_keys_file": str(keys), "MODEL_KEY": "sk-model-0123456789", "retries": "0"}
    budget = {"per": "team", "tokens": 200, "window": "total"}
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(RecordingUpstream())
        stack.enter_context(upstream.playing(answer))
        entry = {"name": "one", "provider": "openai", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        gone = {**entry, "name": "gone", "origin": stack.enter_context(nobody())}
        ways = [{"name": "gone", "match": {"models": ["gone"]}, "to": ["gone"]}, {"name": "rest", "to": ["one"]}]
        well = {"upstreams": [entry], "routes": ways[1:], "budgets": [budget]}
        ill = {"upstreams": [entry, gone], "routes": ways}
        good = stack.enter_context(routed(well, ledger=str(tmp_path / "ledger"), **given))
        bad = stack.enter_context(routed(ill, ledger=str(unwritable(tmp_path / "broken")), **given))
        targets = [velox.admin_url.removeprefix("http://") for velox in (good, bad)]
        prometheus = Prometheus(tmp_path, targets)
        stack.enter_context(prometheus.running())
        until(lambda: prometheus.has('count(up{job="velox"} == 1) == 2'), "both are scraped", _PATIENCE_S)
        assert ask(good, "good") == 200

        # Each query is one for Prometheus, also where it has no result now.
        for query in (*(rule["expr"] for rule in rules()), *queries()):
            prometheus.ask("query", query=query.replace("$__rate_interval", "1m"))

        assert "VeloxBudgetNearEnd" not in prometheus.firing()
        assert ask(good, "good") == 200  # 192 tokens of 200
        until(lambda: "VeloxBudgetNearEnd" in prometheus.firing(), "the budget is near its end", _PATIENCE_S)

        def fails(alert: str, model: str) -> bool:
            ask(bad, model)
            return alert in prometheus.firing()

        until(lambda: fails("VeloxRequestsFail", "bad"), "requests fail", _PATIENCE_S)
        until(lambda: fails("VeloxUpstreamOut", "gone"), "an upstream is out", _PATIENCE_S)
        until(lambda: fails("VeloxLedgerNotWritable", "good"), "the ledger can't be written", _PATIENCE_S)
        assert not prometheus.has(
            'velox_ledger_writable == 0 unless on (instance) velox_upstream_state{upstream="gone"}'
        )
        expected = {"VeloxBudgetNearEnd", "VeloxRequestsFail", "VeloxUpstreamOut", "VeloxLedgerNotWritable"}
        assert expected <= prometheus.firing() <= expected | {"VeloxLedgerLags", "VeloxOverloaded"}
        stages = [query for query in queries() if prometheus.has(query.replace("$__rate_interval", "1m"))]
        assert len(stages) > 15, "most of the dashboard shows something"
