"""What requests and replies of HTTP/1.1 have in common: names of fields, and which of them end at this hop.

Knows: RFC 9110's token, the hop-by-hop fields, how `Connection` names more of them.
Does not know: heads, bodies.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from velox.errors import Reason, VeloxError
from velox.heads import Header, Headers

__all__ = [
    "CREDENTIALS",
    "HANDSHAKE",
    "HOP_BY_HOP",
    "LENGTH_DIGITS",
    "TOKEN",
    "FieldCollector",
    "beyond_ascii",
    "connection_members",
    "field_values",
    "framing_error",
    "is_never_volatile",
    "length_line",
    "line_start",
    "only_pass",
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


LENGTH_DIGITS: Final = 18  # fits 64 bits, which is what others count in

# Whose request it is.
CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"})

# A request's fields that Velox acts on (policy/retries/deadline.py, gateway/), so that two heads which differ in one of
# them are two kinds of request. Those that do not pass are none of them: they need no place in what passes.
_NEVER_VOLATILE: Final = frozenset(
    {
        b"content-type",
        b"content-encoding",
        b"accept-encoding",
        b"origin",
        b"user-agent",
        b"x-request-timeout-ms",
    }
)
_NEVER_VOLATILE_STARTS: Final = (b"x-velox-", b"x-stainless-", b"x-litellm-", b"sec-websocket-")
# But nothing that is kept for a head follows from these: routes, sessions and tags of records are read from each
# request anew, and clients have many values of them.
_READ_EACH_TIME: Final = frozenset({b"x-velox-session", b"x-velox-tag", b"x-velox-tags"})

# Names that some part of Velox looks for in a request, or that a server may act on (access.py). All others only
# pass, so that a field of such a name changes nothing else in what follows from a head. A test holds that true.
_LOOKED_FOR: Final = (
    _NEVER_VOLATILE
    | CREDENTIALS
    | HOP_BY_HOP
    | HANDSHAKE
    | {b"host", b"content-length", b"expect", b"x-request-id", b"anthropic-version"}
    | {b"accept-language", b"sec-fetch-mode"}
)
_SUSPECT: Final = re.compile(
    rb"velox|stainless|websocket|forwarded|model|deployment|engine|override|rewrite|original|method|envoy"
    rb"|sagemaker|amzn-bedrock|portkey|litellm|helicone|cf-aig"
)
# Each of these words has one of these letters: to look for letters takes a third of the time.
_SUSPECT_LETTERS: Final = b"gklmvw"


def is_never_volatile(name: bytes) -> bool:
    """Say whether heads that differ in a field of this name (lower-case) are two kinds of request."""
    return name in _NEVER_VOLATILE or (name.startswith(_NEVER_VOLATILE_STARTS) and name not in _READ_EACH_TIME)


def only_pass(names: Collection[bytes], text: bytes) -> bool:
    """Say whether nobody looks for a field of any of these names (lower-case). text: all of them."""
    if not _LOOKED_FOR.isdisjoint(names):
        return False
    return len(text.translate(None, _SUSPECT_LETTERS)) == len(text) or _SUSPECT.search(text) is None


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


def line_start(line: bytes, field: Header) -> bytes | None:
    """Return `Name: ` of the line of a field, as it is spelled; None where its value is not all that follows."""
    name, value = field
    n_name, n_value = len(name), len(value)
    if not n_value or len(line) != n_name + 2 + n_value or line[n_name : n_name + 2] != b": ":
        return None
    return line[: n_name + 2]


def length_line(lines: Sequence[bytes], fields: Headers) -> tuple[int, bytes]:
    """Return where the line of the Content-Length is, and its line_start(); (-1, b"") where it is none or unusual.

    lines: of a head; fields: of these lines without the first one.
    """
    for at, field in enumerate(fields, 1):
        if field[0] == b"content-length":
            start = line_start(lines[at], field)
            return (-1, b"") if start is None else (at, start)
    return -1, b""


def beyond_ascii(name: bytes) -> VeloxError:
    """Return the refusal of a head with a byte beyond ASCII. name: of the field whose value has it, or b""."""
    where = f"value of the header {name.decode('ascii')}" if TOKEN.fullmatch(name) else "request head"
    return framing_error(f"{where} has bytes beyond ASCII; percent-encode them (%C3%A9)")


def framing_error(message: str, *, status: int = 400) -> VeloxError:
    """Return the refusal of a request whose bytes can't be framed safely; the connection closes."""
    return VeloxError(Reason.BAD_FRAMING, message, status=status, close=True)
