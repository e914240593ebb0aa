"""Vectors of other protocols: what an Upgrade may ask for, where, and what becomes of the bytes behind it.

Knows: RFC 9110 §7.8, and the opening handshake of RFC 6455. Does not know: WebSockets that were opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.vectors.vector import (
    CHUNKED,
    FOLLOW_UP,
    GET,
    POST,
    SMUGGLED,
    Answer,
    Pause,
    Seen,
    Vector,
    bad,
    good,
    passed,
    refused,
    request,
    shown,
)

__all__ = ["VECTORS"]

_LINE: Final = b"GET /v1/realtime HTTP/1.1"
_CONNECTION: Final = b"Connection: Upgrade"
_UPGRADE: Final = b"Upgrade: websocket"
_VERSION: Final = b"Sec-WebSocket-Version: 13"
_KEY: Final = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
_HANDSHAKE: Final = (_CONNECTION, _UPGRADE, _VERSION, _KEY)
# What the JDK's HttpClient and curl --http2 offer with their first request.
_H2C: Final = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")


def _elsewhere() -> Iterator[Vector]:
    why = "RFC 9110 §7.8: no WebSocket on this path, or none as it has to be; 101 never comes"
    for label, line, fields in (
        ("WS-UPGRADE-POST", b"POST /v1/blobs HTTP/1.1", _HANDSHAKE),
        ("WS-UPGRADE-MISSING-CONN", GET, _HANDSHAKE[1:]),
        ("WS-UPGRADE-INVALID-VER", GET, (_CONNECTION, _UPGRADE, b"Sec-WebSocket-Version: 99", _KEY)),
        ("WS-UPGRADE-HTTP10", b"GET /v1/models HTTP/1.0", _HANDSHAKE),
        ("B-21-WEBSOCKET", GET, _HANDSHAKE),
        ("B-21-TWO", GET, (_CONNECTION, b"Upgrade: h2c, websocket")),
        ("B-21-TWICE", GET, (_CONNECTION, _UPGRADE, b"Upgrade: h2c")),
        ("B-21-WEBSOCKET-VERSION", GET, (_CONNECTION, b"Upgrade: WebSocket/13", *_HANDSHAKE[2:])),
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


def _ignored() -> Iterator[Vector]:
    """Offers of another protocol than WebSocket: the request is served, and what follows it is read as HTTP/1.1."""
    why = "RFC 9110 §7.8: a server may ignore an offer; its fields end at this hop"
    models, following = Seen(b"GET", b"/v1/models"), Seen(b"GET", b"/v1/next")
    for label, fields in (
        ("WS-UPGRADE-UNKNOWN", (_CONNECTION, b"Upgrade: totally-made-up/1.0")),
        ("B-21-H2C", _H2C),
        ("B-21-H2C-SPELLING", (b"connection: hTTP2-settings , uPGRADE", b"upgrade: H2C", b"http2-settings:AAMAAABk")),
        ("B-21-H2C-ALONE", (b"Upgrade: h2c",)),
        ("B-21-H2C-TWICE", (*_H2C, b"Upgrade: h2c")),
        ("B-21-H2C-BAD-SETTINGS", (*_H2C[:2], b"HTTP2-Settings: \t!")),
        ("B-21-H2C-KEEP-ALIVE", (b"Connection: keep-alive, Upgrade, HTTP2-Settings", *_H2C[1:])),
        ("B-21-H2C-NAMES-MORE", (b"Connection: Upgrade, HTTP2-Settings, X-A", *_H2C[1:], b"X-A: 1")),
        ("B-21-TLS", (_CONNECTION, b"Upgrade: TLS/1.3, h2c")),
        ("B-21-EMPTY", (_CONNECTION, b"Upgrade:")),
        ("B-21-WEBSOCKET-FIELDS", (_CONNECTION, b"Upgrade: h2c", *_HANDSHAKE[2:])),
    ):
        wire, what = request(GET, *fields, body=FOLLOW_UP), shown(b" / ".join((*fields, b"a GET behind it")))
        yield good(label, "B-21", what, why, wire, seen=(models, following))
    once = (
        ("HTTP10", request(b"GET /v1/models HTTP/1.0", *_H2C), "RFC 9110 §7.8: ignored in HTTP/1.0"),
        ("CLOSE", request(GET, b"Connection: Upgrade, HTTP2-Settings, close", *_H2C[1:]), why),
        ("REALTIME", request(_LINE, b"Connection: Upgrade, close", b"Upgrade: h2c"), why),
    )
    for label, wire, reason in once:
        seen = Seen(b"GET", b"/v1/realtime") if label == "REALTIME" else models
        yield good(f"B-21-H2C-{label}", "B-21", shown(wire), reason, wire, seen=seen, closes=True)


def _ignored_with_bodies() -> Iterator[Vector]:
    """The same with bodies: their framing counts, and nothing else."""
    why = "RFC 9112 §6.3: the body's end is where its framing says, with an offer or without"
    length = b"Content-Length: %d" % len(SMUGGLED)
    inside = Seen(b"POST", b"/v1/blobs", (), SMUGGLED)
    following = Seen(b"GET", b"/v1/next")
    whole = request(POST, *_H2C, length, body=SMUGGLED + FOLLOW_UP)
    yield good("B-21-H2C-BODY", "B-21", "h2c, a GET as body", why, whole, seen=(inside, following))
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    wire = request(POST, *_H2C, CHUNKED, body=chunks + FOLLOW_UP)
    yield good("B-21-H2C-CHUNKS", "B-21", "h2c, a GET in a chunk", why, wire, seen=(inside, following))
    first, last = request(POST, *_H2C, b"Expect: 100-continue", length), SMUGGLED + FOLLOW_UP
    yield good(
        *("B-21-H2C-EXPECT", "B-21", "h2c with Expect: 100-continue", why, first, Pause.CONTINUE, last),
        seen=(inside, following),
    )
    line = b"POST /v1/blobs HTTP/1.0"
    wire = request(line, *_H2C, length, body=SMUGGLED + FOLLOW_UP)
    yield good("B-21-H2C-HTTP10-BODY", "B-21", "h2c in HTTP/1.0, a GET as body", why, wire, seen=inside, closes=True)
    wire = request(GET, *_H2C, body=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
    why = "RFC 9113 §3.1: HTTP/2 begins after a 101, which never came"
    answers = (passed(Seen(b"GET", b"/v1/models")), refused(400))
    yield Vector("B-21-H2C-PREFACE", "B-21", "h2c, HTTP/2's preface behind it", why, (wire,), answers, closes=True)
    why = "R-H1-3: an offer makes no framing better"
    for label, status, fields in (
        ("BOTH", 400, (b"Content-Length: 5", CHUNKED)),
        ("BOTH-TURNED", 400, (CHUNKED, b"Content-Length: 5")),
        ("TWO-LENGTHS", 400, (b"Content-Length: 5", b"Content-Length: 6")),
        ("SIGN", 400, (b"Content-Length: +5",)),
        ("LIST", 400, (b"Content-Length: 5, 5",)),
        ("SPACE", 400, (b"Content-Length:  5",)),
        ("COLON", 400, (b"Content-Length : 5",)),
        ("FOLD", 400, (b"Transfer-Encoding:\r\n chunked",)),
        ("TWO-CODINGS", 400, (b"Transfer-Encoding: chunked, identity",)),
        ("IDENTITY", 501, (b"Transfer-Encoding: identity",)),
        ("X-CHUNKED", 501, (b"Transfer-Encoding: xchunked",)),
    ):
        for place, given in (("AFTER", (*_H2C, *fields)), ("BEFORE", (*fields, *_H2C))):
            wire = request(POST, *given, body=b"0\r\n\r\n" + SMUGGLED)
            what = shown(b" / ".join(fields)) + f", h2c {'before' if place == 'AFTER' else 'behind'} it"
            yield bad(f"B-21-H2C-{label}-{place}", "B-21", what, why, wire, status=status)
    why = "CVE-2022-31813: a Connection that names what the next hop relies on"
    for name in (b"Host", b"Content-Length", b"Transfer-Encoding", b"Authorization", b"X-Forwarded-For"):
        wire = request(POST, b"Connection: Upgrade, " + name, b"Upgrade: h2c", length, body=SMUGGLED)
        label = f"B-21-H2C-NAMES-{name.decode().upper()}"
        yield bad(label, "B-21", f"h2c, Connection names {name.decode()}", why, wire, reason="bad_request")


def _realtime() -> Iterator[Vector]:
    """The one path that may become a WebSocket: what is no opening handshake there, and one that is declined."""
    why = "RFC 6455 §4.2.1: an opening handshake as it has to be, or none"
    for name, line, fields in (
        ("POST", b"POST /v1/realtime HTTP/1.1", _HANDSHAKE),
        ("HTTP10", b"GET /v1/realtime HTTP/1.0", _HANDSHAKE),
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


VECTORS: Final = (*_elsewhere(), *_ignored(), *_ignored_with_bodies(), *_realtime())
