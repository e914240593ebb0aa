"""Cases of requests: section http2/8 of h2spec 2.6, written anew; and more, since what is let through goes upstream.

Knows: what the client says, what is wanted. Does not know: who is at the other end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.h2spec.generic import both, get
from tests.h2spec.talker import (
    PROTOCOL_ERROR,
    Case,
    Step,
    Talker,
    connection_error,
    frame,
    stream_error,
    uint32,
)
from velox.heads import Header

__all__ = ["BEYOND", "MESSAGES"]

_METHOD, _SCHEME, _PATH, _AUTHORITY = range(4)


def _plus(*fields: Header) -> Step:
    return lambda it: it.head([*it.get, *fields])


def _without(index: int) -> Step:
    return lambda it: it.head([*it.get[:index], *it.get[index + 1 :]])


def _twice(index: int) -> Step:
    return lambda it: it.head([*it.get, it.get[index]])


def _with(index: int, value: bytes) -> Step:
    return lambda it: it.head([*it.get[:index], (it.get[index][0], value), *it.get[index + 1 :]])


def _body(length: bytes, *pieces: bytes) -> Step:
    """A request that says how long its body is, and the body."""

    def say(talker: Talker) -> None:
        talker.head([*talker.post, (b"content-length", length)], end=not pieces)
        for n, piece in enumerate(pieces, 1):
            talker.data(piece, end=n == len(pieces))

    return say


def _trailers(*fields: Header, end: bool = True) -> Step:
    def say(talker: Talker) -> None:
        talker.head(talker.post, end=False)
        talker.data(end=False)
        talker.head(fields, end=end)

    return say


def _push(talker: Talker) -> None:
    talker.say(frame(5, 4, 1, uint32(2) + talker.block(talker.get)))


_MALFORMED: Final = stream_error(PROTOCOL_ERROR, stream_id=1)

MESSAGES: Final[Sequence[Case]] = [
    Case("http2/8.1/1", "second HEADERS without END_STREAM", _trailers((b"x-test", b"ok"), end=False), _MALFORMED),
    Case("http2/8.1.2/1", "name in upper case", _plus((b"X-TEST", b"ok")), _MALFORMED),
    Case("http2/8.1.2.1/1", "unknown pseudo field", _plus((b":test", b"ok")), _MALFORMED),
    Case("http2/8.1.2.1/2", "pseudo field of a reply", _plus((b":status", b"200")), _MALFORMED),
    Case("http2/8.1.2.1/3", "pseudo field in trailers", _trailers((b":method", b"POST"), end=False), _MALFORMED),
    Case(
        "http2/8.1.2.1/4", "pseudo field after a field", lambda it: it.head([(b"x-test", b"ok"), *it.get]), _MALFORMED
    ),
    Case("http2/8.1.2.2/1", "connection", _plus((b"connection", b"keep-alive")), _MALFORMED),
    Case("http2/8.1.2.2/2", "te with more than trailers", _plus((b"te", b"trailers, deflate")), _MALFORMED),
    Case("http2/8.1.2.3/1", ":path empty", _with(_PATH, b""), _MALFORMED),
    Case("http2/8.1.2.3/2", ":method missing", _without(_METHOD), _MALFORMED),
    Case("http2/8.1.2.3/3", ":scheme missing", _without(_SCHEME), _MALFORMED),
    Case("http2/8.1.2.3/4", ":path missing", _without(_PATH), _MALFORMED),
    Case("http2/8.1.2.3/5", ":method twice", _twice(_METHOD), _MALFORMED),
    Case("http2/8.1.2.3/6", ":scheme twice", _twice(_SCHEME), _MALFORMED),
    Case("http2/8.1.2.3/7", ":path twice", _twice(_PATH), _MALFORMED),
    Case("http2/8.1.2.6/1", "content-length unlike DATA", _body(b"1", b"test"), _MALFORMED),
    Case("http2/8.1.2.6/2", "content-length unlike all DATA", _body(b"1", b"test", b"test"), _MALFORMED),
    Case("http2/8.2/1", "PUSH_PROMISE", both(get, _push), connection_error(PROTOCOL_ERROR)),
]

# What h2spec has no case for (B-48, B-49).
BEYOND: Final[Sequence[Case]] = [
    Case("B-48/1", ":path absolute", _with(_PATH, b"http://evil.example/v1/models"), _MALFORMED),
    Case("B-48/2", ":path without '/'", _with(_PATH, b"v1/models"), _MALFORMED),
    Case("B-48/3", ":path with CR LF", _with(_PATH, b"/v1/models HTTP/1.1\r\nhost: evil"), _MALFORMED),
    Case("B-48/4", ":path with a space", _with(_PATH, b"/v1/models x"), _MALFORMED),
    Case("B-48/5", ":path with NUL", _with(_PATH, b"/v1/models\0"), _MALFORMED),
    Case("B-48/6", ":path beyond ASCII", _with(_PATH, b"/v1/models\xff"), _MALFORMED),
    Case("B-48/7", ":authority is not the Host", _plus((b"host", b"evil.example")), _MALFORMED),
    Case("B-48/8", ":authority empty", _with(_AUTHORITY, b""), _MALFORMED),
    Case("B-48/9", ":authority twice", _twice(_AUTHORITY), _MALFORMED),
    Case("B-48/10", ":method with a space", _with(_METHOD, b"GET /x"), _MALFORMED),
    Case("B-48/11", ":method empty", _with(_METHOD, b""), _MALFORMED),
    Case("B-48/12", ":scheme of something else", _with(_SCHEME, b"ftp"), _MALFORMED),
    Case("B-48/13", "name partly in upper case", _plus((b"x-Test", b"ok")), _MALFORMED),
    Case("B-48/14", "empty name", _plus((b"", b"ok")), _MALFORMED),
    Case("B-48/15", "name with a colon", _plus((b"x:y", b"ok")), _MALFORMED),
    Case("B-48/16", "name with a space", _plus((b"x y", b"ok")), _MALFORMED),
    Case("B-48/17", "name with CR LF", _plus((b"x\r\ny", b"ok")), _MALFORMED),
    Case("B-48/18", "name beyond ASCII", _plus((b"x-\xe9", b"ok")), _MALFORMED),
    Case("B-48/19", "value with CR LF", _plus((b"x", b"a\r\nauthorization: b")), _MALFORMED),
    Case("B-48/20", "value with CR", _plus((b"x", b"a\rb")), _MALFORMED),
    Case("B-48/21", "value with LF", _plus((b"x", b"a\nb")), _MALFORMED),
    Case("B-48/22", "value with NUL", _plus((b"x", b"a\0b")), _MALFORMED),
    Case("B-48/23", "te: gzip", _plus((b"te", b"gzip")), _MALFORMED),
    Case("B-48/24", "transfer-encoding", _plus((b"transfer-encoding", b"chunked")), _MALFORMED),
    Case("B-48/25", "keep-alive", _plus((b"keep-alive", b"timeout=5")), _MALFORMED),
    Case("B-48/26", "proxy-connection", _plus((b"proxy-connection", b"close")), _MALFORMED),
    Case("B-48/27", "upgrade", _plus((b"upgrade", b"websocket")), _MALFORMED),
    Case("B-48/28", "http2-settings", _plus((b"http2-settings", b"AAMAAABk")), _MALFORMED),
    Case("B-49/1", "content-length over DATA", _body(b"9", b"test"), _MALFORMED),
    Case("B-49/2", "content-length and no DATA", _body(b"9"), _MALFORMED),
    Case("B-49/3", "content-length of 0 and DATA", _body(b"0", b"test"), _MALFORMED),
    Case("B-49/4", "content-length, negative", _body(b"-4", b"test"), _MALFORMED),
    Case("B-49/5", "content-length, signed", _body(b"+4", b"test"), _MALFORMED),
    Case("B-49/6", "content-length, hexadecimal", _body(b"0x4", b"test"), _MALFORMED),
    Case("B-49/7", "content-length, a list", _body(b"4, 4", b"test"), _MALFORMED),
    Case("B-49/8", "content-length, empty", _body(b"", b"test"), _MALFORMED),
    Case("B-49/9", "two content-length", _plus((b"content-length", b"0"), (b"content-length", b"0")), _MALFORMED),
    Case("B-49/10", "pseudo field in trailers", _trailers((b":path", b"/")), _MALFORMED),
    Case("B-49/11", "trailers in upper case", _trailers((b"X-Test", b"ok")), _MALFORMED),
    Case("B-49/12", "trailers with CR LF", _trailers((b"x", b"a\r\nb")), _MALFORMED),
]
