"""LiteLLM's own Python client works with a gateway, and LiteLLM's own models read each answer.

`make litellm-tools` installs it beside .venv; without it this test is skipped. tests/unit/admin_api has the same calls
without LiteLLM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess

TOKEN: Final = "an-admin-token-of-the-tests-0123456789"
INSTALLED: Final = REPOSITORY / ".litellm"
_TEST_S: Final = 120


@pytest.mark.skipif(not (INSTALLED / "installed").exists(), reason="no LiteLLM: make litellm-tools")
def test_python_client_of_litellm_works(tmp_path: Path) -> None:
    """M10: keys, teams and users are made, changed and deleted by it."""
    settings = {
        "VELOX_LEDGER": str(tmp_path),
        "VELOX_MANAGED_KEYS": "on",
        "VELOX_ADMIN_TOKEN": TOKEN,
        "VELOX_WORKERS": "1",
    }
    with VeloxProcess(settings, args=("serve", "--sim")) as velox:
        told = subprocess.run(
            [sys.executable, "-m", "tests.slow.litellm_client", velox.admin_url, TOKEN],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(INSTALLED), str(REPOSITORY))),
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_TELEMETRY": "False",
            },
            capture_output=True,
            text=True,
            timeout=_TEST_S,
            check=False,
        )
        assert told.returncode == 0 and "all answers fit" in told.stdout, told.stderr[-4000:]
