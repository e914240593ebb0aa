"""The plain values that pass between the rooms of the house.

Knows: shapes. Does not know: how a value was read or where it goes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, TypeAlias

__all__ = [
    "ANYONE",
    "NO_BODY_STATUSES",
    "Caller",
    "Header",
    "Headers",
    "Peek",
    "ReplyHead",
    "RequestHead",
    "Route",
    "WebSocketOffer",
]

# Names are lower-case; order and duplicates are kept.
Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = list[Header]

# RFC 9110 §6.4.1: these never carry content, whatever their headers say.
NO_BODY_STATUSES: Final = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class WebSocketOffer:
    """What a client that asks for a WebSocket offers, after every check of its handshake.

    key: as it came. protocols: a browser's may hold a key of the API. extensions: the field's value, b"" for none.
    """

    key: bytes
    protocols: tuple[bytes, ...] = field(repr=False)
    extensions: bytes


@dataclass(slots=True)
class RequestHead:
    """The head of a client's request, after every framing check.

    target: as it came; path: target up to the first "?"; query: what follows it, without the "?".
    content_length: None when the body is chunked or absent (`chunked` tells which).
    key: heads with the same key are equal but for content_length; None when nothing is known of that.
    offer: this is the opening handshake of a WebSocket, whose own fields are then not among the headers.
    """

    method: bytes
    target: bytes
    path: bytes
    query: bytes
    http_1_0: bool
    headers: Headers
    keep_alive: bool
    content_length: int | None
    chunked: bool
    expect_continue: bool
    key: bytes | None = None
    offer: WebSocketOffer | None = None

    @property
    def has_body(self) -> bool:
        """True when body bytes follow the head."""
        return self.chunked or bool(self.content_length)

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of `name` (lower-case), or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


@dataclass(slots=True)
class ReplyHead:
    """The head of an upstream's reply. content_length is None when the upstream stated none.

    until_close: only the end of the connection ends it (RFC 9112 §6.3, rule 8), so that it may as well have been cut.
    """

    status: int
    headers: Headers
    content_length: int | None
    until_close: bool = False


@dataclass(slots=True)  # not frozen: that would double the cost of making one, 0.5 µs of each request
class Peek:
    """What Velox reads of a request's body: plain values only, never a parser's object."""

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as far as its key tells.

    name: as the log shows it: the name of the key, or the start of its digest; "" where no key is asked for.
    models: what the key is limited to, each with `*` for any text; none: every model.
    """

    name: str
    models: tuple[str, ...] = ()


# The caller of a gateway that asks for no key.
ANYONE: Final = Caller("")


class Route(enum.IntEnum):
    """What a path is for. Labels of metrics come from this closed list, never from a request."""

    OTHER = 0
    CHAT = 1
    RESPONSES = 2
    COMPLETIONS = 3
    EMBEDDINGS = 4
    MODELS = 5
    MODERATIONS = 6
    IMAGES = 7
    AUDIO = 8
    FILES = 9
    BATCHES = 10
    VECTOR_STORES = 11
    MESSAGES = 12
    REALTIME = 13
