"""Reads streamed answers on many connections, each asked for anew as soon as it was whole; and when each event came.

    python -m bench.streams PORT --streams 150 --settle 0.5 --seconds 2 --pids 4711,4712

`bench.upstream` writes the time into each event. It runs on this machine, by the same monotonic clock, so that what an
event took on its way is known by itself, and not from gaps alone. Streams begin one after the other over the settling
time. What counts is what comes in the seconds after it; the CPU time of the processes named is taken at both ends of
exactly that time.

Knows: sockets, the clock, the events of bench.payloads. Does not know: what passes them on.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import select
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from bench.cpu import cpu_seconds, n_writes, user_share
from bench.open_loop import percentile
from bench.traffic import Request, requests

__all__ = ["Scanner", "Seen", "figures", "read"]

# A gateway may write the JSON anew, with a space after the colon.
_STAMP: Final = re.compile(rb'"content": ?" (\d+)"')
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_DONE: Final = b"[DONE]\n\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length:", re.IGNORECASE)
_EVENT_BYTES: Final = 1024  # more than an event has, however it is written anew
_READ_BYTES: Final = 262_144
_PATIENCE_S: Final = 10.0


class Scanner:
    """Finds the events of one answer in its pieces, wherever they are cut.

    A gateway that has a whole answer in one read may send it with its length instead of chunked.
    """

    __slots__ = ("_end", "_rest", "ended", "status")

    def __init__(self) -> None:
        self._rest = b""
        self._end = b""
        self.status = 0
        self.ended = False

    def feed(self, piece: bytes) -> list[int]:
        """Return the time stamps of the events that are whole with this piece."""
        held = self._rest + piece
        if not self.status and len(held) >= 12:
            self.status = int(held[9:12])
        if not self._end:
            head, is_whole, _ = held.partition(b"\r\n\r\n")
            if not is_whole:
                self._rest = held
                return []
            self._end = _DONE if _LENGTH.search(head) else _LAST_CHUNK
        found = list(_STAMP.finditer(held))
        self.ended = held.endswith(self._end) and b"[DONE]" in held[-_EVENT_BYTES:]
        begin = found[-1].end() if found else 0
        self._rest = held[max(begin, len(held) - _EVENT_BYTES) :]
        return [int(each[1]) for each in found]


@dataclass
class Seen:
    """What came in the time that counts. Times in ns."""

    n_chunks: int = 0
    n_failed: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    user: int = 0
    system: int = 0
    n_writes: int = 0
    first_ns: list[int] = field(default_factory=list)
    gap_ns: list[int] = field(default_factory=list)
    way_ns: list[int] = field(default_factory=list)


class _Stream:
    """One connection, with one answer on it."""

    def __init__(self, port: int, requests: Iterator[Request]) -> None:
        self._port: Final = port
        self._requests: Final = requests
        self.ask()

    def ask(self, sock: socket.socket | None = None) -> None:
        if sock is None:
            sock = socket.create_connection(("127.0.0.1", self._port), 5.0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.scanner = Scanner()
        request = next(self._requests).http1()
        self.asked_ns = time.monotonic_ns()
        self.event_ns = 0
        sock.sendall(request)


def read(port: int, n_streams: int, settle_s: float, seconds: float, pids: list[int]) -> Seen:
    """Read streams for the given time. Raises ValueError if no event comes at all."""
    # Others in each run: no head is sent twice.
    sent = requests(stream=True, seed=time.time_ns())
    poll = select.epoll()
    streams: dict[int, _Stream] = {}
    seen = Seen()
    begin_s = time.monotonic()
    ends_s = begin_s + settle_s + _PATIENCE_S
    marked: tuple[float, float, tuple[int, int], int] | None = None
    settling = Seen()
    n_begun = 0
    while (now_s := time.monotonic()) < ends_s:
        # A slow gateway has its first events later; a window in which it answers nobody would tell nothing.
        if marked is None and now_s >= begin_s + settle_s and settling.n_chunks:
            marked = _mark(pids)
            ends_s = now_s + seconds
        while n_begun < n_streams and now_s >= begin_s + n_begun * settle_s / n_streams:
            stream = _Stream(port, sent)
            streams[stream.sock.fileno()] = stream
            poll.register(stream.sock, select.EPOLLIN)
            n_begun += 1
        for number, _ in poll.poll(0.002 if n_begun < n_streams or marked is None else ends_s - now_s):
            _take(streams[number], poll, streams, seen if marked is not None else settling)
    if marked is None:
        raise ValueError(f"no event came in {settle_s + _PATIENCE_S:.1f} s; {settling.n_failed} answers failed")
    after = _mark(pids)
    # Streams begin spread over the settling time; how soon they began is as good a figure as later.
    seen.first_ns += settling.first_ns
    seen.n_failed += settling.n_failed
    seen.seconds, seen.cpu_s = after[0] - marked[0], after[1] - marked[1]
    seen.user, seen.system = after[2][0] - marked[2][0], after[2][1] - marked[2][1]
    seen.n_writes = after[3] - marked[3]
    return seen


def _mark(pids: list[int]) -> tuple[float, float, tuple[int, int], int]:
    return time.monotonic(), cpu_seconds(pids), user_share(pids), n_writes(pids)


def _take(stream: _Stream, poll: select.epoll, streams: dict[int, _Stream], seen: Seen) -> None:
    piece = b""
    try:
        piece = stream.sock.recv(_READ_BYTES)
    except ConnectionResetError:
        pass  # as an end without a whole answer
    now_ns = time.monotonic_ns()
    for stamp in stream.scanner.feed(piece):
        if stream.event_ns:
            seen.gap_ns.append(now_ns - stream.event_ns)
        else:
            seen.first_ns.append(now_ns - stream.asked_ns)
        stream.event_ns = now_ns
        seen.way_ns.append(now_ns - stamp)
        seen.n_chunks += 1
    if piece and not stream.scanner.ended:
        return
    if stream.scanner.status != 200 or not stream.scanner.ended:
        seen.n_failed += 1
    if piece:
        stream.ask(stream.sock)
        return
    del streams[stream.sock.fileno()]
    stream.sock.close()
    stream.ask()
    streams[stream.sock.fileno()] = stream
    poll.register(stream.sock, select.EPOLLIN)


def figures(seen: Seen) -> dict[str, float]:
    """Return what is told of a run. Raises ValueError if no event came."""
    if not seen.n_chunks:
        raise ValueError(f"no event came in {seen.seconds:.1f} s; {seen.n_failed} answers failed")
    found = {
        "errors": float(seen.n_failed),
        "chunks": float(seen.n_chunks),
        "chunks_per_s": seen.n_chunks / seen.seconds,
        "seconds": seen.seconds,
        "cpu_s": seen.cpu_s,
        "user": float(seen.user),
        "system": float(seen.system),
        "writes": float(seen.n_writes),
    }
    for name, values in (("ttfe", seen.first_ns), ("gap", seen.gap_ns), ("way", seen.way_ns)):
        ordered = sorted(value / 1e6 for value in values)
        if ordered:
            found |= {f"{name}_p50_ms": percentile(ordered, 0.5), f"{name}_p99_ms": percentile(ordered, 0.99)}
    return found


def main() -> None:
    """Read the command line, read streams, print figures as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.streams")
    parser.add_argument("port", type=int)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--settle", type=float, default=0.5, metavar="SECONDS")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--pids", default="", help="whose CPU time is taken, commas between them")
    given = parser.parse_args()
    # Samples are kept by the hundred thousand, and none of them is in a cycle.
    gc.disable()
    pids = [int(each) for each in given.pids.split(",") if each]
    try:
        print(json.dumps(figures(read(given.port, given.streams, given.settle, given.seconds, pids))))
    except (ValueError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
