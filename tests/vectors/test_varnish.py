"""varnishtest, whose server and client are not our own, in C, on both sides of a real gateway."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.tools import free_port
from tests.e2e.upstreams import find_tool
from tests.interop.servers import is_listened
from tests.vectors.play import COMMON

SCRIPTS = sorted((Path(__file__).parent / "varnish").glob("*.vtc"))
_LIMIT_S = 30


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_of_varnishtest_passes(script: Path, tmp_path: Path) -> None:
    """Each .vtc says what a client sends, what the upstream must get, and what the client must get back."""
    tool = find_tool("varnishtest")
    upstream, velox, ready = free_port(), free_port(), tmp_path / "ready"
    names = {"upstream": f"127.0.0.1:{upstream}", "velox": f"127.0.0.1:{velox}", "ready": str(ready)}
    defined = [part for name, value in names.items() for part in ("-D", f"{name}={value}")]
    with subprocess.Popen(
        [tool, "-t", str(_LIMIT_S), *defined, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=tmp_path,
    ) as process:
        try:
            until(lambda: is_listened(upstream) or process.poll() is not None, "varnishtest listens")
            env = {**COMMON, "VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{upstream}"}
            with VeloxProcess({**env, "VELOX_LISTEN": f"127.0.0.1:{velox}"}) as gateway:
                gateway.wait_warm()
                ready.touch()
                output, _ = process.communicate(timeout=_LIMIT_S + 10)
        finally:
            process.kill()

    assert process.returncode == 0, output
