"""What requests and replies of HTTP/1.1 have in common: names of fields, and which of them end at this hop.

Knows: RFC 9110's token, the hop-by-hop fields, how `Connection` names more of them.
Does not know: heads, bodies.
"""

from __future__ import annotations

import re
from typing import Final

from velox.errors import Reason, VeloxError
from velox.types import Headers

__all__ = [
    "CREDENTIALS",
    "HANDSHAKE",
    "HOP_BY_HOP",
    "NEVER_VOLATILE",
    "NEVER_VOLATILE_STARTS",
    "TOKEN",
    "FieldCollector",
    "connection_members",
    "cut_length",
    "field_values",
    "framing_error",
]

# RFC 9110 §5.6.2.
TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# RFC 9110 §7.6.1, and the two that older clients send (Proxy-Connection, HTTP2-Settings).
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)

# A WebSocket's opening handshake (RFC 6455 §11.3): without one they mean nothing, and a browser's may hold a key.
HANDSHAKE: Final = frozenset(
    {
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-protocol",
        b"sec-websocket-extensions",
        b"sec-websocket-accept",
    }
)


# Whose request it is.
CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})

# A request's fields that Velox acts on (policy/deadline.py, gateway/), so that two heads which differ in one of them
# are two kinds of request. Those that do not pass are none of them: they need no place in what passes.
NEVER_VOLATILE: Final = CREDENTIALS | {
    b"content-type",
    b"content-encoding",
    b"accept-encoding",
    b"x-request-timeout-ms",
}
NEVER_VOLATILE_STARTS: Final = (b"x-velox-", b"x-stainless-", b"sec-websocket-")


class FieldCollector:
    """Takes llhttp's `on_header`: keeps the fields in order, names lower-case, values without space around.

    llhttp has refused every control character but HTAB before this, and leaves space only after a value.
    """

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: Headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one field; called by the parser only."""
        self.fields.append((name.lower(), value.rstrip()))


def field_values(fields: Headers) -> dict[bytes, bytes]:
    """Return name -> value; the values of a name that is there more than once are joined by commas."""
    values = dict(fields)
    if len(values) != len(fields):
        values = {}
        for name, value in fields:
            values[name] = values[name] + b"," + value if name in values else value
    return values


def connection_members(value: bytes) -> frozenset[bytes]:
    """Return the lower-case members of a `Connection` value."""
    return frozenset(member.strip(b" \t") for member in value.lower().split(b",")) - {b""}


def cut_length(head: bytes) -> tuple[bytes, bytes | None]:
    """Return a head without its last Content-Length line, and that line's value (None: there is none)."""
    at = head.rfind(b"\r\nContent-Length: ")
    if at < 0:
        at = head.rfind(b"\r\ncontent-length: ")
        if at < 0:
            return head, None
    end = head.find(b"\r\n", at + 18)
    digits = head[at + 18 : end]
    return (head[:at] + head[end:], digits) if digits.isdigit() else (head, None)


def framing_error(message: str, *, status: int = 400) -> VeloxError:
    """Return the refusal of a request whose bytes can't be framed safely; the connection closes (R-H1-1)."""
    return VeloxError(Reason.BAD_FRAMING, message, status=status, close=True)
