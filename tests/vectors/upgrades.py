"""Vectors of other protocols: what an Upgrade may ask for, where, and what becomes of the bytes behind it.

Knows: RFC 9110 §7.8, and the opening handshake of RFC 6455. Does not know: WebSockets that were opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.vectors.vector import GET, SMUGGLED, Answer, Seen, Vector, bad, good, request, shown

__all__ = ["VECTORS"]

_LINE: Final = b"GET /v1/realtime HTTP/1.1"
_CONNECTION: Final = b"Connection: Upgrade"
_UPGRADE: Final = b"Upgrade: websocket"
_VERSION: Final = b"Sec-WebSocket-Version: 13"
_KEY: Final = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
_HANDSHAKE: Final = (_CONNECTION, _UPGRADE, _VERSION, _KEY)


def _elsewhere() -> Iterator[Vector]:
    why = "RFC 9110 §7.8: no other protocol on this path; 101 never comes"
    for label, line, fields in (
        ("WS-UPGRADE-POST", b"POST /v1/files HTTP/1.1", _HANDSHAKE),
        ("WS-UPGRADE-MISSING-CONN", GET, _HANDSHAKE[1:]),
        ("WS-UPGRADE-UNKNOWN", GET, (_CONNECTION, b"Upgrade: totally-made-up/1.0")),
        ("WS-UPGRADE-INVALID-VER", GET, (_CONNECTION, _UPGRADE, b"Sec-WebSocket-Version: 99", _KEY)),
        ("WS-UPGRADE-HTTP10", b"GET /v1/models HTTP/1.0", _HANDSHAKE),
        ("B-21-WEBSOCKET", GET, _HANDSHAKE),
        ("B-21-H2C", GET, (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")),
        ("B-21-TWO", GET, (_CONNECTION, b"Upgrade: h2c, websocket")),
        ("B-21-TWICE", GET, (_CONNECTION, _UPGRADE, b"Upgrade: h2c")),
        ("B-21-EMPTY", GET, (_CONNECTION, b"Upgrade:")),
    ):
        wire, what = request(line, *fields, body=SMUGGLED), shown(b" / ".join((line, *fields)))
        answer = Answer((400, 426), "bad_request")
        yield Vector(label, "B-21", what, why, (wire,), (answer,), closes=True)
    alone = b"HTTP2-Settings: AAMAAABk"
    seen = Seen(b"GET", b"/v1/models")
    why = "RFC 9113 §3.1: obsolete; ends at this hop"
    yield good("B-21-SETTINGS-ALONE", "B-21", shown(alone), why, request(GET, alone), seen=seen)
    why = "RFC 6455 §11.3: without an upgrade they mean nothing, and end at this hop"
    yield good(
        "B-21-FIELDS-ALONE", "B-21", shown(_VERSION + b" / " + _KEY), why, request(GET, _VERSION, _KEY), seen=seen
    )


def _realtime() -> Iterator[Vector]:
    """The one path that may become a WebSocket: what is no opening handshake there, and one that is declined."""
    why = "RFC 6455 §4.2.1: an opening handshake as it has to be, or none"
    for name, line, fields in (
        ("POST", b"POST /v1/realtime HTTP/1.1", _HANDSHAKE),
        ("HTTP10", b"GET /v1/realtime HTTP/1.0", _HANDSHAKE),
        ("H2C", _LINE, (_CONNECTION, b"Upgrade: h2c")),
        ("NO-KEY", _LINE, _HANDSHAKE[:3]),
        ("TWO-KEYS", _LINE, (*_HANDSHAKE, _KEY)),
        ("SHORT-KEY", _LINE, (*_HANDSHAKE[:3], b"Sec-WebSocket-Key: YQ==")),
        ("BODY", _LINE, (*_HANDSHAKE, b"Content-Length: 5")),
        ("CHUNKS", _LINE, (*_HANDSHAKE, b"Transfer-Encoding: chunked")),
        ("NO-CONNECTION", _LINE, _HANDSHAKE[1:]),
        ("CONNECTION-NAMES", _LINE, (b"Connection: Upgrade, x-a", *_HANDSHAKE[1:])),
        ("CONNECTION-CLOSE", _LINE, (b"Connection: Upgrade, close", *_HANDSHAKE[1:])),
    ):
        wire, what = request(line, *fields, body=SMUGGLED), shown(b" / ".join((line, *fields)))
        yield bad(f"B-21-REALTIME-{name}", "B-21", what, why, wire, reason="bad_request")
    wire = request(_LINE, _CONNECTION, _UPGRADE, b"Sec-WebSocket-Version: 8", _KEY, body=SMUGGLED)
    what = "GET /v1/realtime with version 8, a GET behind it"
    why = "RFC 6455 §4.4: 426, with the version that is spoken"
    yield bad("B-21-REALTIME-VERSION", "B-21", what, why, wire, status=426, reason="bad_request")
    pairs = tuple((name.lower(), value) for name, _, value in (field.partition(b": ") for field in _HANDSHAKE))
    answer = Answer((502,), "upstream_protocol", Seen(b"GET", b"/v1/realtime", pairs))
    what = "GET /v1/realtime, a GET behind it; the upstream declines"
    why = "RFC 9110 §7.8: no WebSocket after all; what was sent for one is not read as a request"
    wire = request(_LINE, *_HANDSHAKE, body=SMUGGLED)
    yield Vector("B-21-REALTIME-DECLINED", "B-21", what, why, (wire,), (answer,), closes=True)


VECTORS: Final = (*_elsewhere(), *_realtime())
