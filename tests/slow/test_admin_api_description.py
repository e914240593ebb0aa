"""The admin API does what its description says: schemathesis tries each call with what fits it and what does not.

`make schema-tools` installs it beside .venv; without it this test is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess

TOKEN: Final = "an-admin-token-of-the-tests-0123456789"
INSTALLED: Final = REPOSITORY / ".schemathesis"
_MAIN: Final = "from schemathesis.cli import schemathesis; schemathesis()"
_TEST_S: Final = 600


@pytest.mark.skipif(not (INSTALLED / "installed").exists(), reason="no schemathesis: make schema-tools")
@pytest.mark.parametrize("seed", [1, 2])
def test_answers_are_those_of_the_description(tmp_path: Path, seed: int) -> None:
    """All of its checks: statuses, types and shapes of answers; what fits is taken, what does not is refused."""
    settings = {
        "VELOX_LEDGER": str(tmp_path),
        "VELOX_MANAGED_KEYS": "on",
        "VELOX_ADMIN_TOKEN": TOKEN,
        "VELOX_WORKERS": "1",
        "VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:9",
    }
    with VeloxProcess(settings) as velox:
        for kind in ("teams", "users"):
            headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
            body = json.dumps({"id": "there"}).encode()
            request = urllib.request.Request(f"{velox.admin_url}/api/v1/{kind}", body, headers)
            urllib.request.urlopen(request, timeout=20).close()
        path = os.pathsep.join((str(INSTALLED), str(REPOSITORY)))
        told = subprocess.run(
            [
                *(sys.executable, "-c", _MAIN, "run", f"{velox.admin_url}/api/v1/openapi.json"),
                *("-H", f"Authorization: Bearer {TOKEN}", "--seed", str(seed), "--max-examples", "30"),
                *("--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-shrink"),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "SCHEMATHESIS_HOOKS": "tests.slow.schemathesis_hooks"},
            capture_output=True,
            text=True,
            timeout=_TEST_S,
            check=False,
        )
        print(told.stdout[-20_000:])
        assert told.returncode == 0, told.stderr[-2000:]
