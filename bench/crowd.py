"""Chat requests of several kinds, sent when they are due over many kept connections, whatever became of earlier ones.

A request's time counts from when it was due, so that a stall is felt by all that fell into it. Plain sockets and epoll,
as in open_loop.py, but each answer is told by itself: its kind, its status, when it began, whether it came whole, and
who gave it. Answers may be streams.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from bench.open_loop import arrivals
from bench.payloads import CHAT_PATH

__all__ = ["RATE", "TTFT_S", "Answer", "Request", "Tell", "offer", "requests", "service_s", "written"]

# Of the simulated model, per answer: the time to the first token, and tokens a second from then on.
TTFT_S: Final = 0.05
RATE: Final = 100.0
_PATIENCE_S: Final = 20.0  # after the last request was due
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: chunked\r\n", re.IGNORECASE)
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"  # no event of the simulator holds it
_REASON: Final = re.compile(rb"\r\nx-velox-reason: (\w+)", re.IGNORECASE)
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after: ", re.IGNORECASE)
_UPSTREAM: Final = re.compile(rb"\r\nx-velox-upstream: ([\w.-]+)", re.IGNORECASE)
_ATTEMPTS: Final = re.compile(rb"\r\nx-velox-attempts: (\d+)", re.IGNORECASE)
_CODE: Final = re.compile(rb'"code": ?"(\w+)"')  # of an error event inside a stream
_TELL_S: Final = 1.0
_STALE_S: Final = 5.0  # less than what any server waits for a request
_ENDING: Final = 600  # bytes of an answer that are kept: enough for what it says of tokens


class Request(NamedTuple):
    """due_s: seconds from the start. service_s: what the model takes for it at full speed."""

    due_s: float
    kind: str
    service_s: float
    content: bytes


class Answer(NamedTuple):
    """took_s: from when the request was due to its whole answer. status: 0: there was none, or not all of it.

    reason: of an answer of Velox's own. Of one that is not whole: what the stream says of it, else `closed` (nothing
    came), `cut`, or `waited` (the run was over). first_s: from when it was due to the first byte of the body; 0: there
    was none. ending: the last bytes of the body.
    """

    kind: str
    due_s: float
    service_s: float
    took_s: float
    status: int
    is_told_when: bool  # it has Retry-After
    reason: str
    first_s: float = 0.0
    upstream: str = ""
    attempts: int = 0
    ending: bytes = b""

    @property
    def wait_s(self) -> float:
        return self.took_s - self.service_s


# Is called about once a second while requests are sent, with the seconds since the start and all answers until then.
Tell: TypeAlias = Callable[[float, Sequence[Answer]], None]


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
    return written(document, headers)


def written(document: Mapping[str, object], headers: Mapping[str, str]) -> bytes:
    """Return a whole chat request with this body."""
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
        self.idle_from_s = time.perf_counter()
        self.was_idle_s = 0.0  # before the request
        self._received = bytearray()
        self._body = 0  # where it begins; 0: the head is not whole
        self._length: int | None = None  # of the body; None: chunked
        self._first_s = 0.0

    def take_answer(self, now_s: float) -> Answer | None:
        """Read what is there; return the answer once it is whole. Status 0: the connection was closed before."""
        request = self.request
        assert request is not None, "only busy connections are read"
        try:
            piece = self.sock.recv(65536)
        except ConnectionResetError:
            piece = b""
        if not piece:
            return self.broken(now_s, "cut" if self._first_s else "closed")
        received = self._received
        received += piece
        if not self._body and not self._read_head():
            return None
        if not self._first_s and len(received) > self._body:
            self._first_s = now_s - request.due_s
        if not self._is_whole():
            return None
        answer = self._told(request, now_s)
        self.request = None
        received.clear()
        self._body = 0
        self._first_s = 0.0
        return answer

    def broken(self, now_s: float, reason: str) -> Answer:
        """Return what there is of an answer that will not become whole."""
        request = self.request
        assert request is not None, "only busy connections are read"
        code = _CODE.search(self._received, self._body) if self._body and b'"error"' in self._received else None
        answer = self._told(request, now_s)
        return answer._replace(status=0, reason=code[1].decode() if code else reason)

    def _read_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n") + 4
        if end < 4:
            return False
        length = _LENGTH.search(self._received, 0, end)
        if length is None and _CHUNKED.search(self._received, 0, end) is None:
            raise ConnectionError("a reply without Content-Length that is not chunked")
        self._length = int(length[1]) if length else None
        self._body = end
        return True

    def _is_whole(self) -> bool:
        if self._length is None:
            return self._received.endswith(_LAST_CHUNK)
        return len(self._received) >= self._body + self._length

    def _told(self, request: Request, now_s: float) -> Answer:
        received, end = self._received, self._body
        reason = _REASON.search(received, 0, end)
        upstream = _UPSTREAM.search(received, 0, end)
        attempts = _ATTEMPTS.search(received, 0, end)
        return Answer(
            kind=request.kind,
            due_s=request.due_s,
            service_s=request.service_s,
            took_s=now_s - request.due_s,
            status=int(received[9:12]) if end else 0,
            is_told_when=_RETRY_AFTER.search(received, 0, end) is not None,
            reason=reason[1].decode() if reason else "",
            first_s=self._first_s,
            upstream=upstream[1].decode() if upstream else "",
            attempts=int(attempts[1]) if attempts else 0,
            ending=bytes(received[max(end, len(received) - _ENDING) :]),
        )


def _unsent(request: Request, now_s: float) -> Answer:
    return Answer(request.kind, request.due_s, request.service_s, now_s - request.due_s, 0, False, "waited")


def offer(
    port: int,
    due: Iterable[Request],
    n_connections: int = 512,
    *,
    patience_s: float = _PATIENCE_S,
    tell: Tell | None = None,
) -> list[Answer]:
    """Send the requests; return all answers in the order in which they came.

    n_connections: opened first, and chosen from at random, so that all workers of a gateway get a part. A request that
    finds none idle waits for one, and its time counts. One whose connection is closed as it is sent, after it had been
    idle for a while, is sent once more, as clients do. patience_s: after the last one was due, for all that are not
    answered; then their connections are closed.
    """
    waiting = deque(sorted(due))
    gc.collect()
    gc.disable()  # a collection of so many answers takes longer than what is measured
    try:
        return _Crowd(port, n_connections, waiting).send(patience_s, tell)
    finally:
        gc.enable()


class _Crowd:
    def __init__(self, port: int, n_connections: int, waiting: deque[Request]) -> None:
        self._port: Final = port
        self._waiting: Final = waiting
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

    def send(self, patience_s: float, tell: Tell | None) -> list[Answer]:
        """Send each when it is due, and close all."""
        waiting = self._waiting
        latest_s = waiting[-1].due_s + patience_s if waiting else 0.0
        start_s = time.perf_counter()
        told_s = now_s = 0.0
        while (waiting or len(self._idle) < len(self._open)) and now_s < latest_s:
            now_s = time.perf_counter() - start_s
            if tell is not None and now_s - told_s >= _TELL_S:
                told_s = now_s
                tell(now_s, self._answers)
            while waiting and waiting[0].due_s <= now_s and self._idle:
                self._begin(waiting.popleft())
            pause_s = min(_TELL_S, max(0.0, latest_s - now_s))
            if waiting and self._idle:
                pause_s = min(pause_s, max(0.0, waiting[0].due_s - (time.perf_counter() - start_s)))
            for number, _ in self._poll.poll(pause_s):
                self._read(self._open[number], time.perf_counter() - start_s)
        for connection in self._open.values():
            if connection.request is not None:
                self._answers.append(connection.broken(now_s, "waited"))
            connection.sock.close()
        self._answers.extend(_unsent(request, now_s) for request in waiting)
        self._poll.close()
        return self._answers

    def _begin(self, request: Request) -> None:
        idle = self._idle
        index = self._chosen.randrange(len(idle))
        idle[index], idle[-1] = idle[-1], idle[index]
        connection = idle.pop()
        connection.request = request
        connection.was_idle_s = time.perf_counter() - connection.idle_from_s
        connection.sock.sendall(request.content)

    def _read(self, connection: _Connection, now_s: float) -> None:
        if connection.request is None:
            self._idle.remove(connection)  # closed for being idle for too long
            self._reopen(connection)
            return
        answer = connection.take_answer(now_s)
        if answer is None:
            return
        if answer.reason == "closed" and connection.was_idle_s >= _STALE_S and connection.request is not None:
            self._waiting.appendleft(connection.request)
            self._reopen(connection)
            return
        self._answers.append(answer)
        if answer.status:
            connection.idle_from_s = time.perf_counter()
            self._idle.append(connection)
        else:
            self._reopen(connection)

    def _reopen(self, connection: _Connection) -> None:
        del self._open[connection.sock.fileno()]
        connection.sock.close()
        self._connect()
