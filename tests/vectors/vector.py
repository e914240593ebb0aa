"""What a vector is: bytes that a client sends, what must come back, and what the upstream must see of it.

Knows: the parts of a vector. Does not know: sockets (play.py), or any vector (vectors.jsonl, which table.py reads).

The ids are public ones: those of Http11Probe where it documents the same case (the bytes are our own), else
B-<row>-<what> after the row of bad inputs that the vector belongs to. `row` names that row for Http11Probe's too.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "GET",
    "HELLO",
    "Answer",
    "Door",
    "Pause",
    "Seen",
    "Vector",
    "hello",
    "json_request",
    "passed",
    "request",
    "shown",
]

HOST: Final = b"Host: velox.test"
POST: Final = b"POST /v1/blobs HTTP/1.1"  # a path whose bodies pass unread
GET: Final = b"GET /v1/models HTTP/1.1"
HELLO: Final = b"hello"

Fields = tuple[tuple[bytes, bytes], ...]


class Door(enum.Enum):
    """The gateway that a vector is for."""

    USUAL = "usual"
    TIGHT = "tight"  # short time-outs, bodies of 1,000 bytes at most
    KEYED = "keyed"  # clients need a key


class Pause(enum.Enum):
    """What the client waits for before it sends more."""

    ANSWER = "answer"
    CONTINUE = "100 Continue"


@dataclass(frozen=True)
class Seen:
    """One request as the upstream must see it, `host` and `content-length` aside: it is built anew, never copied."""

    method: bytes
    target: bytes
    fields: Fields = ()
    body: bytes = b""

    def wire(self, host: bytes) -> bytes:
        """Return the bytes that the gateway sends for it."""
        length = b""
        if self.body or self.method in (b"POST", b"PUT", b"PATCH"):  # RFC 9110 §8.6
            length = b"content-length: %d\r\n" % len(self.body)
        lines = b"".join(b"%b: %b\r\n" % field for field in self.fields)
        return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b\r\n%b" % (self.method, self.target, host, lines, length, self.body)


@dataclass(frozen=True)
class Answer:
    """One reply that must come. seen: the request that went up for it, if one did. reason: of the gateway's own."""

    statuses: tuple[int, ...]
    reason: str = ""
    seen: Seen | None = None
    has_body: bool = True
    fields: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{'/'.join(map(str, self.statuses))} {self.reason or 'passed'}"


@dataclass(frozen=True)
class Vector:
    """closes: the gateway closes the connection after the last answer. why: the rule, with its source."""

    id: str
    row: str
    what: str
    why: str
    sends: tuple[bytes | Pause, ...] = field(repr=False)
    answers: tuple[Answer, ...]
    closes: bool
    door: Door = Door.USUAL

    def __str__(self) -> str:
        return self.id

    @property
    def wire(self) -> bytes:
        """All that the client sends."""
        return b"".join(part for part in self.sends if isinstance(part, bytes))

    @property
    def seen(self) -> tuple[Seen, ...]:
        """What the upstream must see of it, in order."""
        return tuple(answer.seen for answer in self.answers if answer.seen is not None)

    @property
    def is_refused(self) -> bool:
        """True when no byte of it may reach the upstream."""
        return not self.seen

    @property
    def wanted(self) -> str:
        """What must come back, in words."""
        words = ", ".join(map(str, self.answers)) or "no reply"
        return f"{words}, close" if self.closes else words


def request(line: bytes = POST, *fields: bytes, body: bytes = b"", host: bytes = HOST) -> bytes:
    """Return a request's bytes; an empty `host` is none."""
    return b"\r\n".join([line, *([host] if host else []), *fields]) + b"\r\n\r\n" + body


def hello(*fields: bytes) -> bytes:
    """Return a POST of `hello` with these fields more; its length is given, unless they speak of the body."""
    return request(POST, *fields, body=HELLO)


GOOD: Final = Seen(b"POST", b"/v1/blobs", (), HELLO)


def passed(seen: Seen = GOOD, *, has_body: bool = True) -> Answer:
    """Return the upstream's answer to a request."""
    return Answer((200,), "", seen, has_body)


def json_request(body: bytes, *fields: bytes, media: bytes = b"Content-Type: application/json") -> bytes:
    """Return a chat completion with this body."""
    lines = [line for line in (media, *fields, b"Content-Length: %d" % len(body)) if line]
    return request(b"POST /v1/chat/completions HTTP/1.1", *lines, body=body)


_SHOWN: Final = 60


def shown(data: bytes) -> str:
    """Return bytes for a reader: printable ASCII, the middle of what is long left out."""
    text = ascii(data.decode("latin-1"))[1:-1].replace("|", "\\x7c")
    return text if len(text) <= _SHOWN else f"{text[:40]}…{text[-12:]} ({len(data)} bytes)"
