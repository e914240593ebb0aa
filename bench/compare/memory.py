"""Memory and starts: each gateway by itself, at rest, with idle connections, with streams that go on.

Knows: what is held open, and when memory is read. Does not know: how memory is counted (bench/cpu.py).

Idle connections are such that had one request answered each, as a client's pool has them. Connections and streams are
held before fresh processes: what the one left behind would hide what the other takes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.compare.progress import Progress
from bench.compare.subjects import Subject, started
from bench.load import LoadError
from bench.machine import Cores
from bench.measures import Target, wait_until_idle
from bench.open_loop import whole_length
from bench.peers import Origin
from bench.servers import Server, Servers
from bench.streams import Scanner
from bench.traffic import Request, requests

__all__ = ["Holder", "measure", "plan_s"]

N_IDLE: Final = 1000
N_STREAMS: Final = (250, 500, 1000)
# A second between chunks: the streams go on for as long as all this takes.
_INTERVAL_S: Final = 1.0
_AT_ONCE: Final = 50
_ANSWER_S: Final = 60.0
_OPENING_S: Final = 60.0
# Whoever starts within this is started once more, for its time only.
_FAST_S: Final = 3.0
_PLAN_S: Final = 6.0


def plan_s(n_subjects: int) -> float:
    """Return how long it takes for so many, about."""
    return n_subjects * _PLAN_S


class Holder:
    """Connections that stay open while it is entered."""

    def __init__(self, port: int) -> None:
        self._port: Final = port
        self._socks: Final[list[socket.socket]] = []

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._socks:
            sock.close()

    def idle(self, n: int) -> None:
        """Have one more request answered on each of n connections. Raises LoadError."""
        self._ask(n, requests(), _is_whole)

    def streaming(self, n: int) -> None:
        """Hold n more streams, each of which has begun. Raises LoadError."""
        self._ask(n, requests(stream=True), _has_begun)

    def n_open(self) -> int:
        """Return how many of the connections the server has not closed."""
        n = 0
        for sock in self._socks:
            sock.setblocking(False)
            try:
                n += bool(sock.recv(1, socket.MSG_PEEK))
            except BlockingIOError:
                n += 1
            except ConnectionError:
                pass  # closed, as an empty read says
        return n

    def _ask(self, n: int, sent: Iterator[Request], is_done: Callable[[bytes], bool]) -> None:
        until_s = time.monotonic() + _OPENING_S
        for first in range(0, n, _AT_ONCE):
            asked = []
            for _ in range(min(_AT_ONCE, n - first)):
                sock = socket.create_connection(("127.0.0.1", self._port), _ANSWER_S)
                self._socks.append(sock)
                sock.sendall(next(sent).http1())
                asked.append(sock)
            for index, sock in enumerate(asked):
                received = b""
                while not is_done(received):
                    piece = sock.recv(65536)
                    received += piece
                    if not piece or not received.startswith(b"HTTP/1.1 200"[: len(received)]):
                        raise LoadError(f"connection {first + index + 1} of {n}: {received[:100]!r}")
            if time.monotonic() > until_s:
                raise LoadError(f"only {first + len(asked)} of {n} were answered in {_OPENING_S:.0f} s")


def measure(
    subject: Subject,
    folder: Path,
    cores: Cores,
    progress: Progress,
    found: dict[str, object],
    *,
    n_starts: int = 3,
) -> None:
    """Fill a subject's part of the document: what is in it was measured, also if something else fails.

    Raises PeerError, LoadError, RuntimeError, OSError.
    """
    starts: list[float] = []
    found["start_s"] = starts
    progress.step(f"memory: {subject.name}", _PLAN_S)
    with _Started(subject, folder / "idle", cores, starts) as server:
        rest = _settled(server)
        found["rest_mb"] = rest / 1e6
        with Holder(server.port) as holder:
            holder.idle(N_IDLE)
            held = _settled(server)
            if holder.n_open() > 0.95 * N_IDLE:
                found["idle_kb_per_connection"] = (held - rest) / N_IDLE / 1e3
    with _Started(subject, folder / "streams", cores, starts) as server:
        points = [(0, _settled(server) / 1e6)]
        with Holder(server.port) as holder:
            for n in N_STREAMS:
                holder.streaming(n - points[-1][0])
                points.append((n, server.memory_bytes() / 1e6))
        found["streams"] = points
    for turn in range(n_starts - len(starts)):
        if max(starts) < _FAST_S:
            with _Started(subject, folder / f"start-{turn}", cores, starts):
                pass


class _Started:
    """A gateway before an upstream of its own, while it is entered. starts: gets how long it took."""

    def __init__(self, subject: Subject, folder: Path, cores: Cores, starts: list[float]) -> None:
        folder.mkdir(parents=True)
        self._servers: Final = Servers(folder, cores)
        self._subject: Final = subject
        self._cores: Final = cores
        self._starts: Final = starts

    def __enter__(self) -> Server:
        servers = self._servers.__enter__()
        try:
            upstream, http2, _, tls = servers.tls_upstream(interval_s=_INTERVAL_S)
            origin = Origin(upstream.port, http2, tls, servers.certificate.authority)
            server, took_s = started(self._subject, servers, self._cores, origin, "http1", streaming=True)
        except BaseException:
            servers.__exit__()
            raise
        self._starts.append(took_s)
        return server

    def __exit__(self, *_: object) -> None:
        self._servers.__exit__()


def _settled(server: Server) -> int:
    """Return the memory once the gateway has come to rest."""
    wait_until_idle(Target(server.port, server, 0))
    return server.memory_bytes()


def _is_whole(received: bytes) -> bool:
    length = whole_length(received)
    return length is not None and len(received) >= length


def _has_begun(received: bytes) -> bool:
    return bool(Scanner().feed(received))
