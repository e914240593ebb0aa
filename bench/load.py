"""Load: wrk for as much as it can, bench.open_loop for a fixed rate, bench.streams for streams: processes of their own.

Knows: how they are called and what they say. Does not know: who answers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.payloads import CHAT_PATH

__all__ = ["LoadError", "outcome", "start_open_loop", "start_streams", "start_wrk", "stop", "wait_for"]

_HERE: Final = Path(__file__).parent
_MARGIN_S: Final = 30.0
_SAID_BYTES: Final = 500
_MOST_IDS: Final = 1 << 24


class LoadError(Exception):
    """The load met errors, so its figures mean nothing."""


def start_wrk(
    port: int,
    requests: Path,
    *,
    seconds: float,
    connections: int,
    core: int,
    cores: Sequence[int] = (),
    n_keys: int = 1,
    n_models: int = 1,
) -> subprocess.Popen[str]:
    """Start wrk: the requests of a file (bench/wrk_requests.py) on kept connections, each after the last one's answer.

    cores: where it may run, if that is more than one core. n_keys, n_models: how many there are, if wrk numbers them.
    """
    n_threads = max(1, len(cores) // 2)
    command = ["wrk", f"-t{n_threads}", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
    command += ["-s", str(_HERE / "wrk.lua"), f"http://127.0.0.1:{port}{CHAT_PATH}", "--", str(requests)]
    command += [str(time.monotonic_ns() // 1_000_000 % _MOST_IDS), str(n_keys), str(n_models)]
    return _start(command, cores or (core,))


def start_open_loop(
    port: int, *, rate: float, seconds: float, connections: int, core: int, samples: bool = False
) -> subprocess.Popen[str]:
    """Start bench.open_loop: chat requests at a mean rate, whether or not they are answered.

    samples: all latencies are told, as `latencies_ms`.
    """
    command = [sys.executable, "-m", "bench.open_loop", str(port), "--rate", str(rate)]
    command += ["--seconds", str(seconds), "--connections", str(connections)]
    return _start(command + ["--samples"] * samples, (core,))


def start_streams(
    port: int, *, streams: int, settle_s: float, seconds: float, pids: Sequence[int], core: int
) -> subprocess.Popen[str]:
    """Start bench.streams: streamed answers, each asked for as soon as the last one was whole.

    pids: the processes whose CPU time is taken meanwhile, after `settle_s`.
    """
    command = [sys.executable, "-m", "bench.streams", str(port), "--streams", str(streams)]
    command += ["--settle", str(settle_s), "--seconds", str(seconds), "--pids", ",".join(map(str, pids))]
    return _start(command, (core,))


def stop(wrk: subprocess.Popen[str]) -> None:
    """Have wrk end now, and say what it found."""
    wrk.send_signal(signal.SIGINT)


def wait_for(process: subprocess.Popen[str], *, seconds: float) -> dict[str, float]:
    """Return the figures that the load printed in its last line. Raises LoadError, if any request failed too."""
    figures = outcome(process, seconds=seconds)
    if figures.pop("errors"):
        raise LoadError(f"requests failed: {figures}")
    return figures


def outcome(process: subprocess.Popen[str], *, seconds: float) -> dict[str, float]:
    """Return the figures that the load printed in its last line, `errors` among them. Raises LoadError."""
    try:
        output, _ = process.communicate(timeout=seconds + _MARGIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise LoadError("the load did not end") from None
    lines = output.splitlines()
    if process.returncode or not lines:
        raise LoadError(output[-_SAID_BYTES:])
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def _start(command: list[str], cores: Sequence[int]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, cwd=_HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    # Not by preexec_fn: a caller may have threads. And at the usual priority, whatever the caller's is.
    os.sched_setaffinity(process.pid, set(cores))
    return process
