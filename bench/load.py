"""Load: wrk for as much as it can, bench.open_loop for a fixed rate. Both run as processes of their own, on one core.

Knows: how they are called and what they say. Does not know: who answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.payloads import API_KEY, CHAT_PATH

__all__ = ["LoadError", "start_open_loop", "start_wrk", "wait_for"]

_HERE: Final = Path(__file__).parent
_MARGIN_S: Final = 30.0


class LoadError(Exception):
    """The load met errors, so its figures mean nothing."""


def start_wrk(port: int, body: Path, *, seconds: float, connections: int, core: int) -> subprocess.Popen[str]:
    """Start wrk: POSTs of `body` on kept connections, each as soon as the last one was answered."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
    command += ["-s", str(_HERE / "wrk.lua"), f"http://127.0.0.1:{port}{CHAT_PATH}", "--", str(body), API_KEY]
    return _start(command, core)


def start_open_loop(port: int, *, rate: float, seconds: float, connections: int, core: int) -> subprocess.Popen[str]:
    """Start bench.open_loop: chat requests at a mean rate, whether or not they are answered."""
    command = [sys.executable, "-m", "bench.open_loop", str(port), "--rate", str(rate)]
    command += ["--seconds", str(seconds), "--connections", str(connections)]
    return _start(command, core)


def wait_for(process: subprocess.Popen[str], *, seconds: float) -> dict[str, float]:
    """Return the figures that the load printed in its last line. Raises LoadError."""
    try:
        output, _ = process.communicate(timeout=seconds + _MARGIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise LoadError("the load did not end") from None
    lines = output.splitlines()
    if process.returncode or not lines:
        raise LoadError(output)
    figures: dict[str, float] = json.loads(lines[-1])
    if figures.pop("errors"):
        raise LoadError(f"requests failed: {output}")
    return figures


def _start(command: list[str], core: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, cwd=_HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    # Not by preexec_fn: a caller may have threads. And at the usual priority, whatever the caller's is.
    os.sched_setaffinity(process.pid, {core})
    return process
