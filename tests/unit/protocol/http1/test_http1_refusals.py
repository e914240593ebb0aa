"""Requests that must not pass, each with its status. Ids are those of the list of bad inputs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.unit.protocol.http1.http1_wires import HOST, LIMITS, head, refusal
from velox.errors import VeloxError
from velox.protocol.http1.request import RequestDecoder


@dataclass(frozen=True)
class Bad:
    """One input that must be refused, with the one status that it must be refused with."""

    id: str
    wire: bytes
    status: int = 400


def field(name: str, text: bytes, status: int = 400) -> Bad:
    return Bad(name, head(text + b"\r\n"), status)


def line(name: str, text: bytes, status: int = 400) -> Bad:
    return Bad(name, head(b"", line=text), status)


def target(name: str, text: bytes, status: int = 400) -> Bad:
    return line(name, b"GET " + text + b" HTTP/1.1", status)


def host(name: str, text: bytes) -> Bad:
    return Bad(name, head(b"", host=text))


CHUNKED = b"Transfer-Encoding: chunked"
BAD = [
    field("B-1 CL then TE", b"Content-Length: 5\r\n" + CHUNKED),
    field("B-1 TE then CL", CHUNKED + b"\r\nContent-Length: 5"),
    field("B-2 CL twice, equal", b"Content-Length: 5\r\nContent-Length: 5"),
    field("B-2 CL twice, different", b"Content-Length: 5\r\nContent-Length: 6"),
    field("B-2 CL list", b"Content-Length: 5, 5"),
    *(
        field(f"B-3 CL {text!r}", b"Content-Length: " + text)
        for text in (
            b"+5",
            b"-0",
            b"-5",
            b"0x5",
            b"5_0",
            b"1e1",
            b" 5 5",
            b"",
            b"05",
            b"00",
            b"5;",
            b"5.0",
            b"18446744073709551616",
            b"9" * 40,
        )
    ),
    *(
        field(f"B-4 TE {text!r}", b"Transfer-Encoding: " + text, status)
        for text, status in (
            (b"chunked, gzip", 400),
            (b"gzip, chunked", 501),
            (b"xchunked", 400),
            (b",chunked", 501),
            (b"chunked,", 400),
            (b"chunked;p=1", 400),
            (b'"chunked"', 400),
            (b"\x0bchunked", 400),
            (b"chunked\x0c", 400),
            (b"chunked\x00", 400),
            (b"chunked\xa0", 400),
            (b"identity", 400),
            (b"chunked, chunked", 400),
            (b"", 400),
            (b"gzip", 400),
            (b"chunked\r\n gzip", 400),
        )
    ),
    field("B-4 TE twice", CHUNKED + b"\r\n" + CHUNKED),
    Bad("B-4 TE on HTTP/1.0", head(CHUNKED + b"\r\n", line=b"POST / HTTP/1.0")),
    field("B-6 space before colon", b"X : a"),
    field("B-6 tab before colon", b"X\t: a"),
    Bad("B-6 space before the first field", head(b"", host=b" Host: a\r\n")),
    field("B-6 obs-fold", b"X: a\r\n b"),
    field("B-6 no colon", b"X"),
    field("B-6 empty name", b": a"),
    Bad("B-7 bare LF after the request line", b"GET / HTTP/1.1\nHost: a\r\n\r\n"),
    Bad("B-7 bare LF after a field", b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n"),
    Bad("B-7 bare LF everywhere", b"GET / HTTP/1.1\nHost: a\n\n"),
    Bad("B-7 bare LF at the end", b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
    field("B-7 bare CR in a value", b"X: a\rb"),
    Bad("B-7 bare CR after the request line", b"GET / HTTP/1.1\rX: y\r\nHost: a\r\n\r\n"),
    field("B-13 Expect x", b"Content-Length: 5\r\nExpect: x", 417),
    field("B-13 Expect twice", b"Content-Length: 5\r\nExpect: 100-continue\r\nExpect: 100-continue"),
    host("B-15 no Host", b""),
    host("B-15 two Hosts", HOST + HOST),
    *(
        host(f"B-15 Host {text!r}", b"Host: " + text + b"\r\n")
        for text in (
            b"",
            b"u@a",
            b"a/x",
            b"a?x",
            b"a#x",
            b"a b",
            b"a,b",
            b"a:99999",
            b"a:x",
            b"a:",
            b"a:1:2",
            b"[::1",
            b"a\\b",
            b"http://a",
            b"a/x?y=",
        )
    ),
    target("B-16 absolute-form", b"http://other/v1/models"),
    line("B-16 authority-form", b"GET other:80 HTTP/1.1"),
    line("B-16 asterisk", b"GET * HTTP/1.1"),
    target("B-17 fragment", b"/v1/models#x"),
    target("B-17 fragment in the query", b"/v1/models?a#x"),
    line("B-17 space", b"GET /a b HTTP/1.1"),
    line("B-17 two spaces", b"GET  / HTTP/1.1"),
    *(
        target(f"B-17 {text!r}", text)
        for text in (
            b"/a\tb",
            b"/a\x00",
            b"/a\x01",
            b"/a\x7f",
            b"/\x80",
            b"/\xc3\xa9",
            b"/a\\b",
            b"/?\\",
            b"",
        )
    ),
    target("B-17 9 KiB", b"/" + b"a" * 9216, 414),
    *(
        target(f"B-18 {text!r}", text)
        for text in (
            b"/a%00",
            b"/a%0d%0ab",
            b"/a%0A",
            b"/a/..",
            b"/../a",
            b"/a/../b",
            b"/a/./b",
            b"/.",
            b"/a/.",
            b"/%2e%2e/a",
            b"/a/%2E%2e",
            b"/a/.%2e/b",
            b"/a/..;/b",
            b"/a;b",
            b"/a%3bb",
            b"//a",
            b"/a//b",
            b"/a%2F%2Fb",
            b"/a/..%2fb",
            b"/a%5c..%5cb",
            b"/%c0%ae%c0%ae/a",
            b"/%c0%af",
            b"/%ff",
            b"/%7f",
            b"/a%",
            b"/a%2",
            b"/a%zz",
            b"/a%u002e",
        )
    ),
    line("B-19 HTTP/0.9 without version", b"GET /"),
    *(
        line(f"B-19 {version!r}", b"GET / " + version, status)
        for version, status in (
            (b"HTTP/0.9", 400),
            (b"HTTP/1.2", 505),
            (b"HTTP/2.0", 505),
            (b"HTTP/3.0", 505),
            (b"HTTP/1.1 ", 400),
            (b"http/1.1", 400),
            (b"HTTP/01.1", 400),
            (b"HTTP/1.10", 400),
            (b"HTTP/1", 400),
            (b"HTTP/11", 400),
            (b"HTCPCP/1.0", 400),
            (b"", 400),
        )
    ),
    line("B-20 64 KiB method", b"A" * 65536 + b" / HTTP/1.1"),
    line("B-20 tab in the method", b"GE\tT / HTTP/1.1"),
    line("B-20 unknown method", b"BREW / HTTP/1.1", 405),
    line("B-20 lower-case method", b"get / HTTP/1.1", 405),
    line("B-20 TRACE", b"TRACE / HTTP/1.1", 405),
    line("B-20 CONNECT", b"CONNECT a:443 HTTP/1.1", 405),
    field("B-21 websocket", b"Upgrade: websocket\r\nConnection: Upgrade"),
    field("B-21 websocket beside h2c", b"Upgrade: h2c, websocket\r\nConnection: Upgrade"),
    field("B-21 websocket that Connection does not name", b"Upgrade: websocket"),
    Bad("B-22 HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Bad("B-23 TLS ClientHello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    Bad("B-23 binary", bytes(range(256))),
    Bad("B-23 two empty lines first", b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    *(
        field(f"B-25 Connection {text!r}", b"Connection: " + text)
        for text in (
            b"authorization, x-forwarded-for",
            b"close, Authorization",
            b"x-forwarded-proto",
            b"host",
            b"content-length",
            b"Content-Type",
            b"transfer-encoding",
            b"keep-alive ,\thost",
        )
    ),
    field("B-25 two Connections", b"Connection: close\r\nConnection: host"),
    field("B-26 CR and LF in an id", b"x-request-id: a\r\n\tb"),
    field("B-27 two Authorizations", b"Authorization: Bearer a\r\nAuthorization: Bearer b"),
    field("B-27 bearer beyond ASCII", b"Authorization: Bearer \xc3\xa9"),
    field("B-40 Content-Length over the limit", b"Content-Length: 1001", 413),
    field("B-40 Content-Length, 17 digits", b"Content-Length: " + b"9" * 17, 413),
    field("two Content-Types", b"Content-Type: application/json\r\nContent-Type: multipart/form-data"),
    field("NUL in a value", b"X: a\x00b"),
    field("control character in a value", b"X: a\x01b"),
    field("DEL in a value", b"X: a\x7fb"),
    field("byte beyond ASCII in a value", b"X: \xe9"),
    field("byte beyond ASCII in a name", b"X\xe9: a"),
    field("quote in a name", b'X": a'),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.id)
def test_request_ambiguous_refused_and_connection_closes(bad: Bad) -> None:
    """What two servers could read differently gets its status, whole or byte by byte, and ends the connection."""
    error = refusal(bad.wire)

    assert error.status == bad.status
    assert error.close


@pytest.mark.parametrize("value", [b"caf\xe9", "größe".encode()])
def test_header_beyond_ascii_is_refused_by_its_name(value: bytes) -> None:
    """C23: RFC 9110 takes it for opaque data; who sends it reads which field it is, and what to write instead."""
    error = refusal(b"GET / HTTP/1.1\r\nHost: a\r\nX-Title: " + value + b"\r\n\r\n")
    assert error.message == "value of the header X-Title has bytes beyond ASCII; percent-encode them (%C3%A9)"

    error = refusal(b"GET / HTTP/1.1\r\nHost: a\r\nX-" + value + b": a\r\n\r\n")
    assert error.message.startswith("request head has bytes beyond ASCII")


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.id)
def test_request_refused_reads_nothing_after(bad: Bad) -> None:
    """After a refusal no byte of the connection is parsed again."""
    decoder = RequestDecoder(LIMITS)
    decoder.feed(bad.wire)
    with pytest.raises(VeloxError):
        decoder.read_head()

    decoder.feed(head(b""))

    assert decoder.read_head() is None
    assert decoder.buffered == 0


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.id)
def test_request_refusal_names_nothing_of_the_input(bad: Bad) -> None:
    """An error's message is fixed text: nothing of the input gets into logs or replies by it."""
    message = refusal(bad.wire).message

    assert message.isascii() and message.isprintable()
    assert "bearer" not in message.lower() and "other" not in message.replace("other than", "")
