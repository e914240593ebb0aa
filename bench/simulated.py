"""A gateway in front of a simulated model server that has a capacity: both real processes, as an operator starts them.

Knows: how they are started and stopped, what they use of memory. Does not know: load, figures.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cpu import family
from bench.crowd import RATE, TTFT_S
from bench.servers import answers, free_port

__all__ = ["Gateway", "MemoryWatch", "gateway", "running"]

_ROOT: Final = Path(__file__).parent.parent
_START_S: Final = 20.0
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Gateway:
    """port: where it takes requests. pid: the supervisor's."""

    port: int
    admin: int
    pid: int


@contextlib.contextmanager
def gateway(capacity: int, settings: Mapping[str, str]) -> Iterator[Gateway]:
    """Run both until the end of the block. settings: what is not as it is by default, beside addresses and logs."""
    sim, port, admin = free_port(), free_port(), free_port()
    command = ["sim", "--listen", f"127.0.0.1:{sim}", "--capacity", str(capacity), "--seed", "1", "--grace", "0"]
    command += ["--ttft", f"{TTFT_S * 1e3:.0f}ms", "--token-rate", f"{RATE:g}"]
    given = {
        "VELOX_LISTEN": f"127.0.0.1:{port}",
        "VELOX_ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{sim}",
        "VELOX_RATE_LIMIT_RPM": "0",
        "VELOX_ACCESS_LOG": "off",
        "VELOX_DRAIN_TIMEOUT": "1s",
        "OPENAI_API_KEY": "sk-bench-upstream",
        **settings,
    }
    with running(command, {}, sim, "/v1/models"), running(["serve"], given, admin, "/readyz") as pid:
        yield Gateway(port, admin, pid)


@contextlib.contextmanager
def running(command: list[str], settings: dict[str, str], port: int, path: str) -> Iterator[int]:
    """Run a part of Velox until the end of the block; begin when it answers. Yields its pid."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "velox", *command],
        cwd=_ROOT,
        env=environment | settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_s = time.monotonic() + _START_S
        while not answers(port, path):
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"velox {command[0]} did not start")
            time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class MemoryWatch:
    """Notes what all processes of a gateway have in memory, a few times a second, while its block lasts.

    seen: seconds from the start of the block, and MiB: what each process has resident, summed up.
    """

    def __init__(self, pid: int, every_s: float = 0.25) -> None:
        self.seen: Final[list[tuple[float, float]]] = []
        self._pids: Final = family(pid)
        self._every_s: Final = every_s
        self._ended: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="memory")

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        start_s = time.perf_counter()
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._ended.wait(self._every_s):
            pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids)
            self.seen.append((time.perf_counter() - start_s, pages * page / _MIB))
