"""What the clients and the upstream of the rig say, encoded before anything is counted.

Knows: heads in both kinds of HTTP, which of them are equal. Does not know: connections, the gateway.

Over HTTP/2 a client's fields are encoded as `h2` does it (every field goes into the dynamic table, but for the
credential, which never does); an upstream's constant fields stand in the table after a connection's first reply, and
those that change are literals outside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, Final

import hpack

from bench import traffic
from bench.instructions.kinds import Kind
from bench.payloads import API_KEY, CHAT_REPLY, chat_body
from bench.traffic import KEYS, REPLY_END, Fields, Reply, Request

__all__ = ["Replies", "Requests", "api_keys", "whole_end"]

# What equal heads are: as an OpenAI SDK's, beside the key.
_EQUAL: Final = (
    ("content-type", "application/json"),
    ("accept", "application/json"),
    ("user-agent", "OpenAI/Python 3.52.0"),
    ("accept-encoding", "identity"),
    ("x-stainless-lang", "python"),
    ("x-stainless-retry-count", "0"),
    ("x-stainless-read-timeout", "600"),
    ("authorization", f"Bearer {API_KEY}"),
)
_EQUAL_REPLY: Final = (("server", "nginx/1.22.1"), ("date", "Sun, 22 Nov 2026 02:00:00 GMT"))
_FIRST_DYNAMIC: Final = 62  # RFC 7541 §2.3.3
_STATUS_200: Final = b"\x88"


def api_keys(kind: Kind) -> str:
    """Return the keys of the callers, as the setting has them."""
    return API_KEY if kind.heads == "equal" else ",".join(KEYS)


def whole_end(kind: Kind) -> bytes:
    """Return what a whole answer over HTTP/1.1 ends with."""
    if kind.stream:
        return b"0\r\n\r\n"
    return CHAT_REPLY if kind.heads == "equal" else REPLY_END


class Requests:
    """The requests of one kind, in order."""

    def __init__(self, kind: Kind) -> None:
        self._is_http2: Final = kind.client == "http2"
        self._encoder: Final = hpack.Encoder()
        if kind.heads == "equal":
            body = chat_body(stream=kind.stream)
            self._all: Iterator[Request] = repeat(Request((*_EQUAL, ("content-length", str(len(body)))), body))
        else:
            self._all = traffic.requests(stream=kind.stream, hostile=kind.heads == "hostile")

    def take(self, n: int) -> Iterator[Any]:
        """Return the next n requests."""
        return iter([self._encoded(each) for each in islice(self._all, n)])

    def _encoded(self, request: Request) -> Any:
        if not self._is_http2:
            return request.http1()
        fields: list[Any] = [
            hpack.NeverIndexedHeaderTuple(*field) if field[0] == "authorization" else field for field in request.http2()
        ]
        return self._encoder.encode(fields), request.body


class Replies:
    """The replies of one kind, in order."""

    def __init__(self, kind: Kind) -> None:
        self._is_http2: Final = kind.upstream == "http2"
        if kind.heads == "equal":
            what = ("content-type", "text/event-stream" if kind.stream else "application/json")
            self._all: Iterator[Reply] = repeat(Reply((), (*_EQUAL_REPLY, what), b"" if kind.stream else CHAT_REPLY))
        else:
            self._all = traffic.replies(stream=kind.stream)

    def take(self, n: int) -> Iterator[Any]:
        """Return the next n replies."""
        return iter([self._encoded(each) for each in islice(self._all, n)])

    def _encoded(self, reply: Reply) -> Any:
        if not self._is_http2:
            return reply.http1_head() + reply.body
        length: Fields = (("content-length", str(len(reply.body))),) if reply.body else ()
        changing = b"".join(_literal(b"\x00", *field) for field in (*reply.changing, *length))
        first = b"".join(_literal(b"\x40", *field) for field in reply.constant)
        later = bytes(0x80 | _FIRST_DYNAMIC + at for at in range(len(reply.constant)))
        return _STATUS_200 + first + changing, _STATUS_200 + later + changing, reply.body


def _literal(kind: bytes, name: str, value: str) -> bytes:
    """Return a literal field, RFC 7541 §6.2: b"\\x40" adds it to the table, b"\\x00" does not."""
    return kind + _string(name.encode()) + _string(value.encode())


def _string(text: bytes) -> bytes:
    """Return a string without Huffman's code, RFC 7541 §5.2."""
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    size -= 127
    length = b"\x7f"
    while size >= 128:
        length += bytes((size % 128 + 128,))
        size //= 128
    return length + bytes((size,)) + text
