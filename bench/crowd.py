"""Chat requests of several kinds, sent when they are due over many kept connections, whatever became of earlier ones.

A request's time counts from when it was due, so that a stall is felt by all that fell into it. Plain sockets and epoll,
as in open_loop.py, but each answer is told by itself: its kind, its status, and what it took beyond the model's time.

Knows: sockets and the clock. Does not know: what answers, or what the kinds are.
"""

from __future__ import annotations

import gc
import json
import random
import re
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from bench.open_loop import arrivals
from bench.payloads import CHAT_PATH

__all__ = ["RATE", "TTFT_S", "Answer", "Request", "offer", "requests", "service_s"]

# Of the simulated model, per answer: the time to the first token, and tokens a second from then on.
TTFT_S: Final = 0.05
RATE: Final = 100.0
_PATIENCE_S: Final = 20.0  # after the last request was due
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_REASON: Final = re.compile(rb"\r\nx-velox-reason: (\w+)", re.IGNORECASE)
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after: ", re.IGNORECASE)


class Request(NamedTuple):
    """due_s: seconds from the start. service_s: what the model takes for it at full speed."""

    due_s: float
    kind: str
    service_s: float
    content: bytes


class Answer(NamedTuple):
    """took_s: from when the request was due to its whole answer. status: 0: there was none."""

    kind: str
    due_s: float
    service_s: float
    took_s: float
    status: int
    is_told_when: bool  # it has Retry-After
    reason: str  # of an answer of Velox's own

    @property
    def wait_s(self) -> float:
        return self.took_s - self.service_s


def service_s(n_tokens: int) -> float:
    """Return what the model takes for an answer of so many tokens, at full speed."""
    return TTFT_S + (n_tokens - 1) / RATE


def requests(
    kind: str,
    rate: float,
    seconds: float,
    lengths: tuple[int, int],
    *,
    from_s: float = 0.0,
    headers: Mapping[str, str] | None = None,
    seed: int = 1,
) -> list[Request]:
    """Return requests of one kind at random times, for answers of a length between two, evenly."""
    chosen = random.Random(seed)
    written = {n: _content(n, headers or {}) for n in range(lengths[0], lengths[1] + 1)}
    made = []
    for due_s in arrivals(rate, seconds, seed):
        n_tokens = chosen.randint(*lengths)
        made.append(Request(from_s + due_s, kind, service_s(n_tokens), written[n_tokens]))
    return made


def _content(n_tokens: int, headers: Mapping[str, str]) -> bytes:
    document = {"model": "m", "max_tokens": n_tokens, "messages": [{"role": "user", "content": "Hello"}]}
    body = json.dumps(document).encode()
    given = {"host": "bench", "content-type": "application/json", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"POST {CHAT_PATH} HTTP/1.1\r\n{lines}\r\n".encode() + body


class _Connection:
    """One kept connection with at most one request on it."""

    def __init__(self, port: int) -> None:
        self.sock: Final = socket.create_connection(("127.0.0.1", port), 5.0)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request: Request | None = None
        self._received = b""

    def take_answer(self, now_s: float) -> Answer | None:
        """Read what is there; return the answer once it is whole. Status 0: the connection was closed before."""
        piece = self.sock.recv(65536)
        request = self.request
        assert request is not None, "only busy connections are read"
        if not piece:
            return _unanswered(request, now_s)
        self._received += piece
        end = self._received.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(self._received, 0, end) if end >= 4 else None
        if length is None or len(self._received) < end + int(length[1]):
            return None
        status = int(self._received[9:12])
        is_told_when = _RETRY_AFTER.search(self._received, 0, end) is not None
        reason = _REASON.search(self._received, 0, end)
        self._received = b""
        self.request = None
        return Answer(
            kind=request.kind,
            due_s=request.due_s,
            service_s=request.service_s,
            took_s=now_s - request.due_s,
            status=status,
            is_told_when=is_told_when,
            reason=reason[1].decode() if reason else "",
        )


def _unanswered(request: Request, now_s: float) -> Answer:
    return Answer(request.kind, request.due_s, request.service_s, now_s - request.due_s, 0, False, "")


def offer(port: int, due: Iterable[Request], n_connections: int = 512) -> list[Answer]:
    """Send the requests; return all answers in the order in which they came.

    n_connections: opened first, and chosen from at random, so that all workers of a gateway get a part. A request that
    finds none idle waits for one, and its time counts.
    """
    waiting = deque(sorted(due))
    gc.collect()
    gc.disable()  # a collection of so many answers takes longer than what is measured
    try:
        return _Crowd(port, n_connections).send(waiting)
    finally:
        gc.enable()


class _Crowd:
    def __init__(self, port: int, n_connections: int) -> None:
        self._port: Final = port
        self._poll: Final = select.epoll()
        self._chosen: Final = random.Random(0)
        self._open: Final[dict[int, _Connection]] = {}
        self._idle: Final[list[_Connection]] = []
        self._answers: Final[list[Answer]] = []
        for _ in range(n_connections):
            self._connect()

    def _connect(self) -> None:
        connection = _Connection(self._port)
        self._open[connection.sock.fileno()] = connection
        self._poll.register(connection.sock, select.EPOLLIN)
        self._idle.append(connection)

    def send(self, waiting: deque[Request]) -> list[Answer]:
        """Send each when it is due, and close all."""
        latest_s = waiting[-1].due_s + _PATIENCE_S if waiting else 0.0
        start_s = time.perf_counter()
        now_s = 0.0
        while (waiting or len(self._idle) < len(self._open)) and now_s < latest_s:
            now_s = time.perf_counter() - start_s
            while waiting and waiting[0].due_s <= now_s and self._idle:
                self._begin(waiting.popleft())
            pause_s = 1.0
            if waiting and self._idle:
                pause_s = max(0.0, waiting[0].due_s - (time.perf_counter() - start_s))
            for number, _ in self._poll.poll(pause_s):
                self._read(self._open[number], time.perf_counter() - start_s)
        left = [connection.request for connection in self._open.values()]
        self._answers.extend(_unanswered(request, now_s) for request in (*left, *waiting) if request is not None)
        for connection in self._open.values():
            connection.sock.close()
        self._poll.close()
        return self._answers

    def _begin(self, request: Request) -> None:
        idle = self._idle
        index = self._chosen.randrange(len(idle))
        idle[index], idle[-1] = idle[-1], idle[index]
        connection = idle.pop()
        connection.request = request
        connection.sock.sendall(request.content)

    def _read(self, connection: _Connection, now_s: float) -> None:
        if connection.request is None:
            self._idle.remove(connection)  # closed for being idle for too long
            self._reopen(connection)
            return
        answer = connection.take_answer(now_s)
        if answer is None:
            return
        self._answers.append(answer)
        if answer.status:
            self._idle.append(connection)
        else:
            self._reopen(connection)

    def _reopen(self, connection: _Connection) -> None:
        del self._open[connection.sock.fileno()]
        connection.sock.close()
        self._connect()
