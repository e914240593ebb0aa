"""Plays a vector against a gateway, as a client with a socket, and says what was not as wanted.

Knows: sending, reading, what the upstream recorded, what the gateway logged. Does not know: which vectors there are.

    with Gateways() as gateways:
        outcome = gateways.play(vector)
        assert not outcome.problems

Asked of each: every answer (status, reason, fields, whose), nothing after it; closed or still open; the upstream's
bytes, exactly; a next connection that works; no control character in the log.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, Self

from tests.e2e.harness import VeloxProcess
from tests.e2e.raw_http import RawReply, read_reply
from tests.vectors.recorder import Recorder
from tests.vectors.vector import HELLO, Answer, Door, Pause, Seen, Vector, hello, passed, request

__all__ = ["COMMON", "Conversation", "Gateway", "Gateways", "Outcome", "behind", "converse", "wrong_answers"]

_TIMEOUT_S: Final = 10.0
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STILL_OPEN: Final = Seen(b"GET", b"/v1/still-open")
_ALIVE: Final = Seen(b"GET", b"/v1/alive")
_SAW_BYTES: Final = 200
_KEY: Final = "vk-" + "k" * 40  # of the keyed door; vectors show it
# RFC 9110 §5.6.7: IMF-fixdate.
_DATE: Final = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")

COMMON: Final = {
    "VELOX_WORKERS": "1",
    "VELOX_ACCESS_LOG": "all",
    "VELOX_RATE_LIMIT_RPM": "0",
    "VELOX_RETRIES": "0",
    "VELOX_HOSTS": "velox.test",
    # One connection to the upstream: what one request leaves on it, the next one meets.
    "VELOX_EGRESS_POOL_CONNECTIONS": "1",
}
_SETTINGS: Final[Mapping[Door, Mapping[str, str]]] = {
    Door.USUAL: {},
    Door.TIGHT: {"VELOX_HEADER_TIMEOUT": "1s", "VELOX_BODY_TIMEOUT": "1s", "VELOX_MAX_BODY": "1000"},
    Door.KEYED: {"VELOX_API_KEYS": _KEY},
}


@dataclass
class Conversation:
    """What a client was told. rest: bytes after the last answer that was wanted; closed: the gateway ended it."""

    replies: list[RawReply] = field(default_factory=list)
    rest: bytes = b""
    closed: bool = False
    trouble: str = ""


@dataclass
class Outcome:
    """What came of a vector."""

    got: str
    problems: list[str]


def behind(vector: Vector) -> Vector:
    """Return a vector whose first bytes stand in one segment with a good request before them."""
    first, *rest = vector.sends
    assert isinstance(first, bytes), "a client speaks first"
    good = hello(b"Content-Length: 5", b"X-Order: first", *_key(vector))
    answer = passed(Seen(b"POST", b"/v1/blobs", ((b"x-order", b"first"),), HELLO))
    # What is waited for after that segment is the good request's answer, then the vector's own.
    sends = [good + first, *([Pause.ANSWER] if rest else []), *rest]
    return replace(vector, sends=tuple(sends), answers=(answer, *vector.answers))


def _key(vector: Vector) -> Sequence[bytes]:
    return (b"Authorization: Bearer " + _KEY.encode(),) if vector.door is Door.KEYED else ()


def converse(sock: socket.socket, vector: Vector) -> Conversation:
    """Send a vector, read what it should be answered by, and see whether the connection ends."""
    told = Conversation()
    answers = vector.answers
    try:
        for part in vector.sends:
            if isinstance(part, bytes):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before it was read
                    sock.sendall(part)
                continue
            if part is Pause.CONTINUE:
                assert _exactly(sock, len(_CONTINUE)) == _CONTINUE, "100 Continue"
            else:
                _read(sock, told, answers)
        while len(told.replies) < len(answers):
            _read(sock, told, answers)
        if vector.closes:
            told.closed = True
            while piece := sock.recv(65_536):
                told.rest += piece
    except (OSError, ValueError, AssertionError) as error:
        told.closed = False
        told.trouble = f"{type(error).__name__} {error}"
    return told


def _read(sock: socket.socket, told: Conversation, answers: Sequence[Answer]) -> None:
    head_only = len(told.replies) < len(answers) and not answers[len(told.replies)].has_body
    told.replies.append(read_reply(sock, head_request=head_only))


def _exactly(sock: socket.socket, n_bytes: int) -> bytes:
    found = b""
    while len(found) < n_bytes and (piece := sock.recv(n_bytes - len(found))):
        found += piece
    return found


def wrong_answers(told: Conversation, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what was told otherwise than it should be."""
    if told.trouble:
        yield told.trouble
    if len(told.replies) != len(answers):
        yield f"{len(told.replies)} replies, not {len(answers)}"
    if told.rest:
        yield f"more bytes after the last answer: {told.rest[:80]!r}"
    for reply, answer in zip(told.replies, answers, strict=False):
        if reply.status not in answer.statuses:
            yield f"status {reply.status}, not {answer.statuses}"
        if (reply.header("x-velox-reason") or "") != answer.reason:
            yield f"reason {reply.header('x-velox-reason')}, not {answer.reason}"
        if not _DATE.fullmatch(reply.header("date") or ""):
            yield f"date: {reply.header('date')}"
        for name, value in answer.fields:
            if reply.header(name) != value:
                yield f"{name}: {reply.header(name)}"
        if answer.seen is not None and not answer.reason:
            saw = answer.seen.method + b" " + answer.seen.target[:_SAW_BYTES]
            if reply.header("x-saw") != saw.decode("latin-1"):
                yield f"another request's answer: {reply.header('x-saw')}"


def _in_words(told: Conversation) -> str:
    words = [f"{reply.status} {reply.header('x-velox-reason') or 'passed'}" for reply in told.replies]
    shown = words if len(words) <= 3 else [*words[:2], f"… ({len(words)})"]
    return ", ".join([*(shown or ["no reply"]), *(["close"] if told.closed else [])])


@dataclass
class Gateway:
    """One gateway and what is behind it."""

    velox: VeloxProcess
    upstream: Recorder
    _n_lines: int = 0

    def play(self, vector: Vector) -> Outcome:
        """Play one vector on a connection of its own."""
        wanted = list(vector.seen)
        keyed = _key(vector)
        self.forget()
        with self.velox.connect(_TIMEOUT_S) as sock:
            told = converse(sock, vector)
            problems = list(wrong_answers(told, vector.answers))
            if not vector.closes and not told.trouble:
                problems += _passes(sock, _STILL_OPEN, keyed)
                wanted.append(_STILL_OPEN)
        with self.velox.connect(_TIMEOUT_S) as sock:
            problems += _passes(sock, _ALIVE, keyed)
            wanted.append(_ALIVE)
        problems += self.wrong_upstream(wanted)
        problems += self._wrong_log()
        return Outcome(_in_words(told), problems)

    def forget(self) -> None:
        """Forget what the upstream has seen so far."""
        self.upstream.take()

    def wrong_upstream(self, wanted: Sequence[Seen]) -> Iterator[str]:
        """Yield what the upstream has seen otherwise than it should."""
        got = [request.wire for request in self.upstream.take()]
        wires = [seen.wire(self.upstream.host) for seen in wanted]
        if got != wires:
            yield f"the upstream got {[wire[:300] for wire in got]}, not {[wire[:300] for wire in wires]}"

    def _wrong_log(self) -> Iterator[str]:
        lines = self.velox.stdout.lines + self.velox.stderr.lines
        new, self._n_lines = lines[self._n_lines :], len(lines)
        for line in new:
            if not line.isprintable():
                yield f"a control character in the log: {line!r}"


def _passes(sock: socket.socket, seen: Seen, fields: Sequence[bytes]) -> Iterator[str]:
    """Send a plain GET; yield what is wrong with its answer."""
    try:
        sock.sendall(request(seen.method + b" " + seen.target + b" HTTP/1.1", *fields))
        reply = read_reply(sock)
    except (OSError, ValueError) as error:
        yield f"{seen.target.decode()}: {type(error).__name__} {error}"
        return
    if (reply.status, reply.header("x-saw")) != (200, f"GET {seen.target.decode()}"):
        yield f"{seen.target.decode()}: {reply.status} {reply.header('x-saw')}"


class Gateways:
    """A gateway for each door, started when it is first needed; a context manager."""

    def __init__(self) -> None:
        self._open: Final = contextlib.ExitStack()
        self._started: Final[dict[Door, Gateway]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._open.__exit__(kind, exc, tb)

    def __getitem__(self, door: Door) -> Gateway:
        if door not in self._started:
            upstream = self._open.enter_context(Recorder())
            env = {**COMMON, **_SETTINGS[door], "VELOX_UPSTREAM_ORIGIN": upstream.url}
            velox = self._open.enter_context(VeloxProcess(env))
            upstream.wait_warm()
            self._started[door] = Gateway(velox, upstream)
        return self._started[door]

    def play(self, vector: Vector) -> Outcome:
        """Play a vector at its door."""
        return self[vector.door].play(vector)
