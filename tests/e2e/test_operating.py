"""The commands of docs/operating.md: a shared gateway in ten lines, as a shell runs them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.e2e.harness import VeloxProcess
from tests.markdown import ROOT

BIN = ROOT / ".venv/bin"


def test_shared_gateway_in_ten_lines(tmp_path: Path) -> None:
    """Each line as it stands, but for the ports, and the one that serves: a test stops what it starts."""
    text = (ROOT / "docs/operating.md").read_text()
    found = re.search(r"<!-- shared -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()
    assert len(lines) == 10
    (served,) = [line for line in lines if line.startswith("velox serve")]
    env = {
        "VELOX_LEDGER": str(tmp_path / "ledger"),
        "VELOX_MANAGED_KEYS": "on",
        "VELOX_ADMIN_TOKEN": "admin-of-the-test",
        "VELOX_WORKERS": "1",
    }
    with VeloxProcess(env, tuple(served.partition("&")[0].split()[1:])) as velox:
        rest = "\n".join(line for line in lines if line != served)
        script = rest.replace("127.0.0.1:8080", velox.base_url.removeprefix("http://"))
        script = script.replace("$(openssl rand -hex 32)", "admin-of-the-test")
        admin = velox.admin_url.removeprefix("http://")
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "VELOX_ADMIN_LISTEN": admin},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert '"object":"chat.completion"' in done.stdout.replace(" ", "")
    assert re.search(r"^web\b.*\bshop\b.* 1 ", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"web\b.*200", done.stdout), done.stdout
