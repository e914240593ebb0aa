"""The opening handshake of a WebSocket: what a client's must be, and what an upstream's answer."""

from __future__ import annotations

import pytest

from tests.unit.protocol.http1.http1_wires import decode, head, refusal
from velox.errors import Reason
from velox.heads import Headers, WebSocketOffer
from velox.protocol.http1.request import Http1Limits, RequestDecoder
from velox.protocol.http1.response import ResponseDecoder, ResponseError
from velox.protocol.http1.response_head import ReplyHeads
from velox.protocol.websocket.handshake import HandshakeError, accept_value, check_accepted, offer_fields, read_offer

LINE = b"GET /v1/realtime?model=m HTTP/1.1"
# RFC 6455 §1.2 and §1.3: the specification's own example.
KEY, ACCEPT = b"dGhlIHNhbXBsZSBub25jZQ==", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
FIELDS = {
    b"Upgrade": b"websocket",
    b"Connection": b"Upgrade",
    b"Sec-WebSocket-Key": KEY,
    b"Sec-WebSocket-Version": b"13",
}


def lines(**changes: bytes | None) -> bytes:
    """Return the handshake's fields, with some changed or (None) left out."""
    named = {name.lower().replace(b"-", b"_"): (name, value) for name, value in FIELDS.items()}
    for key, value in changes.items():
        name = named.get(key.encode(), (key.replace("_", "-").encode(), b""))[0]
        if value is None:
            named.pop(key.encode())
        else:
            named[key.encode()] = (name, value)
    return b"".join(b"%b: %b\r\n" % field for field in named.values())


# -- the client's -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        lines(),
        lines(connection=b"keep-alive, Upgrade"),
        lines(connection=b"upgrade", upgrade=b"WebSocket"),
        lines(content_length=b"0"),
        lines(origin=b"https://a.example", sec_websocket_extensions=b"permessage-deflate; client_max_window_bits"),
    ],
)
def test_handshake_as_clients_send_it_is_an_offer(fields: bytes) -> None:
    """§4.2.1: browsers, the SDKs' libraries and command-line tools write it in these ways."""
    request = decode(head(fields, LINE))

    assert request is not None and request.offer is not None
    assert request.offer.key == KEY
    assert not request.keep_alive and not request.has_body


def test_fields_of_the_handshake_are_the_offers_only() -> None:
    """What goes up is built anew: none of the handshake's fields is left among the headers."""
    fields = lines(sec_websocket_protocol=b"realtime,  b", sec_websocket_extensions=b"x; y=1", x_own=b"1")

    request = decode(head(fields, LINE))

    assert request is not None
    assert request.headers == [(b"x-own", b"1")]
    assert request.offer == WebSocketOffer(KEY, (b"realtime", b"b"), b"x; y=1")


def test_offered_protocols_are_not_shown() -> None:
    """A browser's key stands among the protocols; no repr, and so no traceback, has it."""
    fields = lines(sec_websocket_protocol=b"realtime, openai-insecure-api-key.sk-hidden")

    request = decode(head(fields, LINE))

    assert request is not None
    assert "sk-hidden" not in repr(request)


WRONG = {
    "h2c beside it": lines(upgrade=b"websocket, h2c"),
    "two upgrades": lines() + b"Upgrade: h2c\r\n",
    "no connection": lines(connection=None),
    "connection without upgrade": lines(connection=b"keep-alive"),
    "connection close": lines(connection=b"Upgrade, close"),
    "connection with a field": lines(connection=b"Upgrade, Sec-WebSocket-Key"),
    "connection with settings": lines(connection=b"Upgrade, HTTP2-Settings"),
    "no key": lines(sec_websocket_key=None),
    "empty key": lines(sec_websocket_key=b""),
    "short key": lines(sec_websocket_key=b"dGhlIHNhbXBsZSBub25j"),
    "long key": lines(sec_websocket_key=b"dGhlIHNhbXBsZSBub25jZTE=MQ=="),
    "key of another spelling": lines(sec_websocket_key=b"dGhlIHNhbXBsZSBub25jZR=="),
    "key without padding": lines(sec_websocket_key=b"dGhlIHNhbXBsZSBub25jZQ"),
    "key in the URL's alphabet": lines(sec_websocket_key=b"-GhlIHNhbXBsZSBub25jZQ=="),
    "two keys": lines() + b"Sec-WebSocket-Key: %b\r\n" % KEY,
    "empty protocol": lines(sec_websocket_protocol=b""),
    "protocol that is no token": lines(sec_websocket_protocol=b"a b"),
    "protocol twice": lines(sec_websocket_protocol=b"a, b, a"),
    "protocols with a hole": lines(sec_websocket_protocol=b"a,,b"),
    "body": lines(content_length=b"3"),
    "chunked body": lines(transfer_encoding=b"chunked"),
}


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG.keys())
def test_handshake_that_is_wrong_is_refused(fields: bytes) -> None:
    """§4.2.1, B-21: what is not a WebSocket's handshake to the letter is no upgrade; the connection closes."""
    error = refusal(head(fields, LINE))

    assert (error.status, error.reason, error.close) == (400, Reason.BAD_REQUEST, True)


@pytest.mark.parametrize("upgrade", [b"h2c", b"H2C, TLS/1.3", b"", b"made-up/1"])
@pytest.mark.parametrize("connection", [b"Upgrade", b"Upgrade, HTTP2-Settings", b"keep-alive", None])
def test_offer_of_another_protocol_is_ignored(upgrade: bytes, connection: bytes | None) -> None:
    """RFC 9110 §7.8: the request is an ordinary one, its connection goes on, and no field of the offer passes."""
    fields = lines(upgrade=upgrade, connection=connection, http2_settings=b"AAMAAABk", content_length=b"3")

    request = decode(head(fields, b"POST /v1/realtime HTTP/1.1"))

    assert request is not None
    assert (request.offer, request.keep_alive, request.content_length, request.headers) == (None, True, 3, [])


@pytest.mark.parametrize(
    "line",
    [
        b"POST /v1/realtime HTTP/1.1",
        b"HEAD /v1/realtime HTTP/1.1",
        b"OPTIONS /v1/realtime HTTP/1.1",
        b"GET /v1/realtime HTTP/1.0",
    ],
)
def test_handshake_is_a_get_of_http_1_1(line: bytes) -> None:
    """§4.2.1."""
    error = refusal(head(lines(), line))

    assert (error.status, error.reason, error.close) == (400, Reason.BAD_REQUEST, True)


@pytest.mark.parametrize("version", [None, b"", b"8", b"12", b"14", b"013", b"13, 8", b"13,13"])
def test_other_versions_are_told_which_one_is_spoken(version: bytes | None) -> None:
    """§4.4: 426 with Sec-WebSocket-Version; RFC 9110 §15.5.22: and with Upgrade."""
    error = refusal(head(lines(sec_websocket_version=version), LINE))

    assert (error.status, error.reason, error.close) == (426, Reason.BAD_REQUEST, True)
    assert {(b"sec-websocket-version", b"13"), (b"upgrade", b"websocket")} <= set(error.headers)


def test_handshake_is_not_kept_for_the_next_one() -> None:
    """Each handshake has a key of its own: none takes the place of a head that comes again, or is mixed up."""
    decoder = RequestDecoder(Http1Limits())
    decoder.feed(head(lines(), LINE))
    first = decoder.read_head()
    other = RequestDecoder(Http1Limits())
    other.feed(head(lines(sec_websocket_key=b"AAAAAAAAAAAAAAAAAAAAAA=="), LINE))
    second = other.read_head()

    assert first is not None and second is not None and first.offer is not None and second.offer is not None
    assert (first.offer.key, second.offer.key) == (KEY, b"AAAAAAAAAAAAAAAAAAAAAA==")


def test_what_follows_the_handshake_is_held_for_the_tunnel() -> None:
    """A client that does not wait for the answer loses nothing, and nothing of it is read as a request."""
    decoder = RequestDecoder(Http1Limits())
    decoder.feed(head(lines(), LINE) + b"GET / HT")
    assert decoder.read_head() is not None
    decoder.feed(b"TP/1.1\r\n\r\n")

    assert decoder.take_rest() == b"GET / HTTP/1.1\r\n\r\n"
    assert decoder.read_head() is None


def test_fields_of_a_handshake_mean_nothing_without_one() -> None:
    """A key among the protocols of a request that is no handshake goes nowhere."""
    field = b"Sec-WebSocket-Protocol: openai-insecure-api-key.sk-1\r\n"

    request = decode(head(field, b"GET / HTTP/1.1"))

    assert request is not None and request.offer is None
    assert request.headers == []


# -- the upstream's -----------------------------------------------------------------------------------

OFFER = WebSocketOffer(KEY, (b"realtime", b"v2"), b"permessage-deflate; client_max_window_bits")
GOOD: Headers = [
    (b"upgrade", b"websocket"),
    (b"connection", b"Upgrade"),
    (b"sec-websocket-accept", ACCEPT),
]


def test_accept_value_of_the_specification() -> None:
    """§1.3."""
    assert accept_value(KEY) == ACCEPT


def test_offer_is_written_as_it_was_read() -> None:
    """What goes up says the same as what came."""
    values = dict(offer_fields(OFFER))

    assert read_offer(b"GET", values, http_1_0=False, has_body=False) == OFFER


def test_accepted_upgrade_passes_on() -> None:
    """The client's 101 is built from what was checked; other fields follow, framing and hop-by-hop fields do not."""
    fields = [
        *GOOD,
        (b"sec-websocket-protocol", b"realtime"),
        (b"sec-websocket-extensions", b"permessage-deflate; server_no_context_takeover"),
        (b"x-request-id", b"r1"),
        (b"content-length", b"0"),
        (b"keep-alive", b"timeout=5"),
        (b"sec-websocket-version", b"13"),
    ]

    switched, others = check_accepted(fields, OFFER)

    assert switched == fields[:5]
    assert others == [(b"x-request-id", b"r1")]


BAD = {
    "no upgrade": GOOD[1:],
    "another upgrade": [(b"upgrade", b"h2c"), *GOOD[1:]],
    "no connection": [GOOD[0], GOOD[2]],
    "connection without upgrade": [GOOD[0], (b"connection", b"keep-alive"), GOOD[2]],
    "no accept": GOOD[:2],
    "wrong accept": [*GOOD[:2], (b"sec-websocket-accept", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOO=")],
    "accept of another case": [*GOOD[:2], (b"sec-websocket-accept", ACCEPT.lower())],
    "two accepts": [*GOOD, GOOD[2]],
    "protocol not offered": [*GOOD, (b"sec-websocket-protocol", b"v3")],
    "two protocols": [*GOOD, (b"sec-websocket-protocol", b"realtime, v2")],
    "extension not offered": [*GOOD, (b"sec-websocket-extensions", b"permessage-deflate, x-other; a=1")],
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD.keys())
def test_answer_that_does_not_belong_to_the_offer_is_none(fields: Headers) -> None:
    """§4.1: a client must fail the connection; so the client behind the gateway never sees it."""
    with pytest.raises(HandshakeError):
        check_accepted(fields, OFFER)


SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-A: b\r\n\r\n"


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"])
@pytest.mark.parametrize("rest", [b"", b"\x81\x02hi\x81", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_switch_is_seen_and_what_follows_is_kept(before: bytes, rest: bytes) -> None:
    """A 101 ends HTTP: not a byte of what comes with it is read as a reply; cut anywhere, it is the same."""
    wire = before + SWITCH + rest
    for cut in range(len(wire) - len(rest) + 1):
        decoder = ResponseDecoder(ReplyHeads(), head_request=False, upgrade=True)
        decoder.feed(wire[:cut])
        if decoder.switched is None:
            decoder.feed(wire[cut:])
            assert decoder.rest == rest

        assert decoder.switched == [(b"upgrade", b"websocket"), (b"connection", b"Upgrade"), (b"x-a", b"b")]
        assert decoder.head is None and not decoder.complete


def test_switch_that_nobody_asked_for_is_refused() -> None:
    """RFC 9110 §15.2.2."""
    with pytest.raises(ResponseError):
        ResponseDecoder(ReplyHeads(), head_request=False).feed(SWITCH)


@pytest.mark.parametrize("wire", [SWITCH.replace(b"/1.1", b"/1.0"), SWITCH.replace(b"X-A: b", b"X A: b")])
def test_switch_that_is_malformed_is_refused(wire: bytes) -> None:
    """HTTP/1.0 has no interim replies; a head is a head."""
    with pytest.raises(ResponseError):
        ResponseDecoder(ReplyHeads(), head_request=False, upgrade=True).feed(wire)


def test_refusal_of_an_upgrade_is_a_reply() -> None:
    """An upstream that says 401 is read as for any other request."""
    decoder = ResponseDecoder(ReplyHeads(), head_request=False, upgrade=True)
    decoder.feed(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")

    assert decoder.head is not None and decoder.head.status == 401
    assert decoder.complete and decoder.take_body() == b"no" and decoder.switched is None
