"""A gateway before one wall or both, and the check that a fault has left nothing behind in it.

Knows: settings short enough to wait for, what belongs to the baseline. Does not know: faults.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.harness import VeloxProcess
from tests.e2e.tools import open_fds
from tests.e2e.upstreams import CHAT_JSON, CHAT_SSE
from tests.e2e.watching import socket_inodes, start_time, until
from tests.wall.client import PLAIN, Ask
from tests.wall.faults import EARLY, FAULTS
from tests.wall.provider import Provider
from tests.wall.setup import Setup

__all__ = [
    "CONNECT_S",
    "FIRST_BYTE_S",
    "IDLE_S",
    "KEY",
    "WRITE_S",
    "Gate",
    "Wall",
    "inodes_to",
    "open_gate",
    "start_gate",
]

KEY: Final = "sk-wall-0123456789abcdef"
CONNECT_S: Final = 0.5
FIRST_BYTE_S: Final = 1.2
IDLE_S: Final = 0.8
WRITE_S: Final = 0.8
_CLIENT_WRITE_S: Final = 1.0
_CLEAN_S: Final = 10.0
_TELLING: Final = re.compile("velox_(retries|upstream)")
_PASSED_OVER: Final = re.compile(r'velox_upstream_state\{.*state="(out|resting)"')
_AT_ZERO: Final = ("velox_inflight_requests", 'velox_queue_depth{class="normal"}', "velox_upstream_streams")
# What a gateway of the wall is set to, unless a test says otherwise.
_ENV: Final[Mapping[str, str]] = {
    "OPENAI_API_KEY": KEY,
    "VELOX_WORKERS": "1",
    "VELOX_ACCESS_LOG": "all",
    "VELOX_RATE_LIMIT_RPM": "0",
    # Nearly every request here meets a fault: the usual budget is for a few of them.
    "VELOX_RETRY_BUDGET_MIN": "1000",
    "VELOX_EGRESS_POOL_CONNECTIONS": "1",
    "VELOX_UPSTREAM_CONNECT_TIMEOUT": f"{CONNECT_S}s",
    "VELOX_UPSTREAM_TLS_TIMEOUT": f"{CONNECT_S}s",
    "VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT": f"{FIRST_BYTE_S}s",
    "VELOX_UPSTREAM_IDLE_TIMEOUT": f"{IDLE_S}s",
    "VELOX_UPSTREAM_WRITE_TIMEOUT": f"{WRITE_S}s",
    "VELOX_CLIENT_WRITE_TIMEOUT": f"{_CLIENT_WRITE_S}s",
}


@dataclass
class Gate:
    """One gateway of one worker. walls: the upstreams in its order. ports: where its upstream connections lead."""

    velox: VeloxProcess
    walls: Sequence[Provider]
    ports: frozenset[int]
    n_fds: int = 0  # of the worker, without connections to upstreams; 0: not noted yet
    asks: list[Ask] = field(default_factory=list)  # sent since the last check
    _worker: int = 0

    def ask(self, model: str, *, stream: bool = PLAIN, fault: str = "", pad: int = 0, **headers: str) -> Ask:
        """Send a request. headers: with _ for -."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.asks.append(Ask(self.velox, model, stream=stream, fault=fault, pad=pad, headers=given))
        return self.asks[-1]

    def metric(self, sample: str) -> float:
        """Return one sample of the metrics page."""
        return self.velox.metric(sample)

    @contextlib.contextmanager
    def counted(self, sample: str, n: int = 1) -> Iterator[None]:
        """Check that the block counts `n` at least on a counter."""
        before = self.metric(sample)
        yield
        self.velox.wait_metric(sample, lambda value: value >= before + n)

    @property
    def worker(self) -> int:
        """The worker's process id."""
        if not start_time(self._worker):  # none yet, or it is gone
            (self._worker,) = self.velox.worker_pids()
        return self._worker

    def rss_bytes(self) -> int:
        """Return the memory that the worker occupies."""
        return int(Path(f"/proc/{self.worker}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def note_baseline(self) -> None:
        """Note what is open while nothing goes on."""
        self.check_alive()
        until(lambda: not self._left_over(), "nothing goes on")
        self.n_fds = self._sockets()[0]

    def check_baseline(self) -> None:
        """Check that a healthy request passes, and that nothing is left of what was before it.

        Nothing: no exchange, no request in the queue, no stream, no descriptor that was not there before, no
        connection to an upstream that no pool knows, no upstream that is passed over.
        """
        self.close_asks()
        self.check_alive()
        deadline_s = time.monotonic() + _CLEAN_S
        while left := self._left_over() or self._passed_over():
            assert time.monotonic() < deadline_s, f"left after {_CLEAN_S:g} s: {left}"
            time.sleep(0.02)
            if any(map(_PASSED_OVER.match, left)):
                self.check_alive()  # it is used again when somebody asks

    def close_asks(self) -> None:
        """Close what a test has left open."""
        for ask in self.asks:
            ask.sock.close()
        self.asks.clear()

    def check_alive(self) -> None:
        """Check that a healthy request passes, streamed and plain."""
        asks = [self.ask(f"alive#{stream}", stream=stream) for stream in (False, True)]
        for ask, wanted in zip(asks, (CHAT_JSON, CHAT_SSE), strict=True):
            answer = ask.answer()
            assert (answer.status, answer.body, answer.is_whole) == (200, wanted, True), answer

    def story(self) -> str:
        """Return the last lines of both logs, and the counters that tell of retries and connections."""
        told = [*self.velox.stdout.lines[-12:], *self.velox.stderr.lines[-6:]]
        with contextlib.suppress(OSError):  # it may be gone
            found = self.velox.metrics()
            told += [f"{name} {value:g}" for name, value in found.items() if _TELLING.match(name) and value]
        return "\n".join(told)

    def _passed_over(self) -> dict[str, float]:
        """Return the samples of upstreams that are out or rest where there is another one, by name."""
        if len(self.walls) == 1:
            return {}
        return {name: n for name, n in self.velox.metrics().items() if n and _PASSED_OVER.match(name)}

    def _left_over(self) -> dict[str, float]:
        """Return what should not be there while nothing goes on, by name."""
        metrics = self.velox.metrics()
        left = {name: metrics[name] for name in _AT_ZERO if metrics[name]}
        if not left:  # else the rest has not come to its end, either
            n_fds, n_upstream = self._sockets()
            if self.n_fds and n_fds > self.n_fds:
                left["descriptors too many"] = n_fds - self.n_fds
            if n_upstream > metrics["velox_upstream_connections"]:
                left["connections that no pool knows"] = n_upstream - metrics["velox_upstream_connections"]
        return left

    def _sockets(self) -> tuple[int, int]:
        """Return how many descriptors the worker has that lead elsewhere, and how many that lead to the walls."""
        before = None
        while True:
            inodes = socket_inodes(self.worker)
            upstream = inodes & inodes_to(self.ports, Path("/proc/net/tcp").read_text())
            n_fds = open_fds(self.worker)
            look = inodes, upstream, n_fds
            if look == before:  # else one came or went, or the table was not read whole
                return n_fds - len(upstream), len(upstream)
            before = look


def inodes_to(ports: Collection[int], table: str) -> set[str]:
    """Return the inodes of the sockets whose other end is at one of these ports.

    table: /proc/net/tcp (proc(5)): a row has a number, the local and the remote address, the state, ..., the inode. It
    may have thousands, and is read in parts: while connections come and go, a row may be there twice, or not at all.
    """
    wanted = "|".join(f"{port:04X}" for port in ports)
    return set(re.findall(rf"^ *\d+: \S+ \S+:(?:{wanted}) (?:\S+ +){{6}}(\d+)", table, re.MULTILINE))


@contextlib.contextmanager
def open_gate(
    setup: Setup, walls: Sequence[Provider], env: Mapping[str, str] | None = None, origins: Sequence[str] = ()
) -> Iterator[Gate]:
    """Start a gateway before walls that may be dead. origins: theirs, where the walls are not up."""
    urls = list(origins) or [wall.upstream.url for wall in walls]
    given = {**_ENV, **setup.env(), "VELOX_UPSTREAM_ORIGIN": ",".join(urls), **(env or {})}
    ports = frozenset(int(url.rpartition(":")[2]) for url in urls)
    with VeloxProcess(given) as velox:
        gate = Gate(velox, walls, ports)
        try:
            yield gate
        finally:
            gate.close_asks()


@contextlib.contextmanager
def start_gate(setup: Setup, walls: Sequence[Provider], env: Mapping[str, str] | None = None) -> Iterator[Gate]:
    """Start a gateway before walls that work, and note its baseline."""
    with open_gate(setup, walls, env) as gate:
        gate.velox.wait_warm()
        gate.note_baseline()
        yield gate


@dataclass(frozen=True)
class Wall:
    """Two walls, a gateway before the first alone, and one that may go on to the second."""

    setup: Setup
    first: Provider
    second: Provider
    alone: Gate
    pair: Gate
    _tickets: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def gates(self) -> dict[str, Gate]:
        """Both gateways, by name."""
        return {"alone": self.alone, "pair": self.pair}

    @property
    def kind(self) -> str:
        """http1, http1-tls, or the HTTP/2 engine's name."""
        return self.setup.kind

    @property
    def is_http2(self) -> bool:
        """True when the gateways speak HTTP/2 with the walls."""
        return self.setup.is_http2

    def ticket(self, fault: str) -> str:
        """Return a model that nobody has asked for yet."""
        return f"{fault}#{next(self._tickets)}"

    def provider(self, number: int, *, tls: bool | None = None, port: int = 0) -> Provider:
        """Return another wall, not started."""
        return self.setup.provider(number, FAULTS, EARLY, tls=tls, port=port)
