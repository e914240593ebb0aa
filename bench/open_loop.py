"""Chat requests at a fixed mean rate, sent when they are due whether or not earlier ones were answered.

    python -m bench.open_loop PORT --rate 500 --seconds 5

A request's latency counts from when it was due, so that a stall is felt by all requests that fell into it. Arrivals
are random (exponential gaps, a fixed seed), as independent clients' are. Requests are those of bench/traffic.py. Plain
sockets and select(): an event loop's timers are a millisecond coarse, which is more than what is measured.

Knows: sockets and the clock. Does not know: what answers.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeVar

from bench.payloads import API_KEY, CHAT_PATH
from bench.traffic import requests

__all__ = ["arrivals", "percentile", "request_bytes", "run", "whole_length"]

_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: chunked\r\n", re.IGNORECASE)
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"  # no reply of the bench's upstreams holds it
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_ANSWER_S: Final = 10.0


def arrivals(rate: float, seconds: float, seed: int = 1) -> list[float]:
    """Return when requests are due, in seconds from the start."""
    gaps = random.Random(seed)
    due: list[float] = []
    now = gaps.expovariate(rate)
    while now < seconds:
        due.append(now)
        now += gaps.expovariate(rate)
    return due


T = TypeVar("T")


def percentile(ordered: Sequence[T], share: float) -> T:
    """Return the value below which `share` of the ordered values lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def request_bytes(body: bytes) -> bytes:
    """Return a whole chat request with few fields, where no request's cost is measured."""
    head = (
        f"POST {CHAT_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {API_KEY}\r\nAccept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """One kept connection with at most one request on it."""

    def __init__(self, port: int) -> None:
        self.sock: Final = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due_s = 0.0
        self._received = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def take_answer(self) -> int:
        """Read what is there; return the status once the reply is whole, else 0. Raises ConnectionError."""
        piece = self.sock.recv(65536)
        if not piece:
            raise ConnectionError("the connection was closed before the reply was whole")
        self._received += piece
        length = whole_length(self._received)
        if length is None or len(self._received) < length:
            return 0
        status = int(self._received[9:12])
        self._received = b""
        return status


def whole_length(received: bytes) -> int | None:
    """Return how many bytes a reply has that begins so; None while that is not known. Raises ConnectionError."""
    end = received.find(b"\r\n\r\n") + 4
    if end < 4:
        return None
    length = _LENGTH.search(received, 0, end)
    if length is not None:
        return end + int(length[1])
    if _CHUNKED.search(received, 0, end) is None:
        raise ConnectionError("a reply without Content-Length that is not chunked")
    last = received.find(_LAST_CHUNK, end - 2)
    return last + len(_LAST_CHUNK) if last >= 0 else None


def run(port: int, due: list[float], n_connections: int) -> tuple[list[float], int]:
    """Send the requests; return the latencies in seconds, ordered, and how many were not answered with 200."""
    # Made before the clock starts, and others in each run: no head is sent twice.
    sent = [each.http1() for each in islice(requests(seed=time.time_ns()), len(due))]
    idle = [Connection(port) for _ in range(n_connections)]
    busy: dict[int, Connection] = {}
    waiting = deque(due)
    latencies: list[float] = []
    n_errors = 0
    start_s = time.perf_counter()
    while (waiting or busy) and time.perf_counter() - start_s < due[-1] + _ANSWER_S:
        now_s = time.perf_counter() - start_s
        while waiting and waiting[0] <= now_s and idle:
            connection = idle.pop()
            connection.due_s = waiting.popleft()
            connection.sock.sendall(sent.pop())
            busy[connection.fileno()] = connection
        pause_s = max(0.0, waiting[0] - (time.perf_counter() - start_s)) if waiting and idle else 1.0
        for number in select.select(list(busy), (), (), pause_s)[0]:
            connection = busy[number]
            status = connection.take_answer()
            if status:
                latencies.append(time.perf_counter() - start_s - connection.due_s)
                n_errors += status != 200
                idle.append(busy.pop(number))
    return sorted(latencies), n_errors + len(waiting) + len(busy)


def main() -> None:
    """Read the command line, run, print figures as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.open_loop")
    parser.add_argument("port", type=int)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--samples", action="store_true", help="tell every latency")
    given = parser.parse_args()
    due = arrivals(given.rate, given.seconds)
    latencies, n_errors = run(given.port, due, given.connections)
    if not latencies:
        sys.exit(f"no request of {len(due)} was answered")
    figures: dict[str, object] = {"requests": len(latencies), "errors": n_errors}
    for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p999_ms", 0.999)):
        figures[name] = percentile(latencies, share) * 1e3
    figures["max_ms"] = latencies[-1] * 1e3
    if given.samples:
        figures["latencies_ms"] = [round(latency * 1e3, 4) for latency in latencies]
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
