"""Heads of requests: which pass, as what, and which are refused with which status. Ids are those of the bad-input list."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from velox.errors import Reason, VeloxError
from velox.protocol.http1 import Http1Limits, RequestDecoder
from velox.types import RequestHead

LIMITS = Http1Limits(body_bytes=1000)
HOST = b"Host: a\r\n"


def decode(wire: bytes, limits: Http1Limits = LIMITS) -> RequestHead | None:
    """Feed a whole wire and read one head."""
    decoder = RequestDecoder(limits)
    decoder.feed(wire)
    return decoder.read_head()


def refusal(wire: bytes, limits: Http1Limits = LIMITS) -> VeloxError:
    """Return what a wire is refused with, given whole; byte by byte it must be the same."""
    with pytest.raises(VeloxError) as whole:
        decode(wire, limits)
    decoder = RequestDecoder(limits)
    with pytest.raises(VeloxError) as dripped:
        for i in range(len(wire)):
            decoder.feed(wire[i : i + 1])
            decoder.read_head()
            decoder.read_body()
    assert (whole.value.status, whole.value.reason) == (dripped.value.status, dripped.value.reason)
    return whole.value


def head(fields: bytes, line: bytes = b"POST /v1/chat/completions HTTP/1.1", host: bytes = HOST) -> bytes:
    """Build a head from a request line and more fields."""
    return line + b"\r\n" + host + fields + b"\r\n"


@dataclass(frozen=True)
class Bad:
    """One input that must be refused, with the one status that it must be refused with."""

    id: str
    wire: bytes
    status: int = 400


def field(id: str, text: bytes, status: int = 400) -> Bad:
    return Bad(id, head(text + b"\r\n"), status)


def line(id: str, text: bytes, status: int = 400) -> Bad:
    return Bad(id, head(b"", line=text), status)


def target(id: str, text: bytes, status: int = 400) -> Bad:
    return line(id, b"GET " + text + b" HTTP/1.1", status)


def host(id: str, text: bytes) -> Bad:
    return Bad(id, head(b"", host=text))


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
            b"+5", b"-0", b"-5", b"0x5", b"5_0", b"1e1", b" 5 5", b"", b"05", b"00", b"5;", b"5.0",
            b"18446744073709551616", b"9" * 40,
        )
    ),
    *(
        field(f"B-4 TE {text!r}", b"Transfer-Encoding: " + text, status)
        for text, status in (
            (b"chunked, gzip", 400), (b"gzip, chunked", 501), (b"xchunked", 400), (b",chunked", 501),
            (b"chunked,", 400), (b"chunked;p=1", 400), (b'"chunked"', 400), (b"\x0bchunked", 400),
            (b"chunked\x0c", 400), (b"chunked\x00", 400), (b"chunked\xa0", 400), (b"identity", 400),
            (b"chunked, chunked", 400), (b"", 400), (b"gzip", 400), (b"chunked\r\n gzip", 400),
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
            b"", b"u@a", b"a/x", b"a?x", b"a#x", b"a b", b"a,b", b"a:99999", b"a:x", b"a:", b"a:1:2", b"[::1",
            b"a\\b", b"http://a", b"a/x?y=",
        )
    ),
    target("B-16 absolute-form", b"http://other/v1/models"),
    line("B-16 authority-form", b"GET other:80 HTTP/1.1"),
    line("B-16 asterisk", b"OPTIONS * HTTP/1.1"),
    target("B-17 fragment", b"/v1/models#x"),
    target("B-17 fragment in the query", b"/v1/models?a#x"),
    line("B-17 space", b"GET /a b HTTP/1.1"),
    line("B-17 two spaces", b"GET  / HTTP/1.1"),
    *(
        target(f"B-17 {text!r}", text)
        for text in (b"/a\tb", b"/a\x00", b"/a\x01", b"/a\x7f", b"/\x80", b"/\xc3\xa9", b"/a\\b", b"/?\\", b"")
    ),
    target("B-17 9 KiB", b"/" + b"a" * 9216, 414),
    *(
        target(f"B-18 {text!r}", text)
        for text in (
            b"/a%00", b"/a%0d%0ab", b"/a%0A", b"/a/..", b"/../a", b"/a/../b", b"/a/./b", b"/.", b"/a/.",
            b"/%2e%2e/a", b"/a/%2E%2e", b"/a/.%2e/b", b"/a/..;/b", b"/a;b", b"/a%3bb", b"//a", b"/a//b",
            b"/a%2F%2Fb", b"/a/..%2fb", b"/a%5c..%5cb", b"/%c0%ae%c0%ae/a", b"/%c0%af", b"/%ff", b"/%7f",
            b"/a%", b"/a%2", b"/a%zz", b"/a%u002e",
        )
    ),
    line("B-19 HTTP/0.9 without version", b"GET /"),
    *(
        line(f"B-19 {version!r}", b"GET / " + version, status)
        for version, status in (
            (b"HTTP/0.9", 400), (b"HTTP/1.2", 505), (b"HTTP/2.0", 505), (b"HTTP/3.0", 505), (b"HTTP/1.1 ", 400),
            (b"http/1.1", 400), (b"HTTP/01.1", 400), (b"HTTP/1.10", 400), (b"HTTP/1", 400), (b"HTTP/11", 400),
            (b"HTCPCP/1.0", 400), (b"", 400),
        )
    ),
    line("B-20 64 KiB method", b"A" * 65536 + b" / HTTP/1.1"),
    line("B-20 tab in the method", b"GE\tT / HTTP/1.1"),
    line("B-20 unknown method", b"BREW / HTTP/1.1", 405),
    line("B-20 lower-case method", b"get / HTTP/1.1", 405),
    line("B-20 TRACE", b"TRACE / HTTP/1.1", 405),
    line("B-20 CONNECT", b"CONNECT a:443 HTTP/1.1", 405),
    field("B-21 websocket", b"Upgrade: websocket\r\nConnection: Upgrade"),
    field("B-21 h2c", b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk"),
    field("B-21 Upgrade that Connection does not name", b"Upgrade: h2c"),
    Bad("B-22 HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Bad("B-23 TLS ClientHello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    Bad("B-23 binary", bytes(range(256))),
    Bad("B-23 two empty lines first", b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    *(
        field(f"B-25 Connection {text!r}", b"Connection: " + text)
        for text in (
            b"authorization, x-forwarded-for", b"close, Authorization", b"x-forwarded-proto", b"host",
            b"content-length", b"Content-Type", b"transfer-encoding", b"keep-alive ,\thost",
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


def test_request_chat_gives_plain_values() -> None:
    """A usual request comes out with its fields in order, lower-case, without what ends at this hop."""
    wire = (
        b"POST /v1/chat/completions?x=1&y HTTP/1.1\r\nHOST: api.example:8080\r\nContent-Type:application/json \t\r\n"
        b"Connection: Keep-Alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nProxy-Authorization: a\r\nTE: trailers\r\n"
        b"Proxy-Connection: a\r\nTrailer: x\r\nExpect: 100-continue\r\nAuthorization: Bearer K\r\nX-Two: 1\r\n"
        b"X-Empty:\r\nX-Two: 2\r\nContent-Length: 10\r\n\r\n"
    )

    request = decode(wire)

    assert request == RequestHead(
        method=b"POST",
        target=b"/v1/chat/completions?x=1&y",
        path=b"/v1/chat/completions",
        query=b"x=1&y",
        http_1_0=False,
        headers=[
            (b"content-type", b"application/json"),
            (b"authorization", b"Bearer K"),
            (b"x-two", b"1"),
            (b"x-empty", b""),
            (b"x-two", b"2"),
        ],
        keep_alive=True,
        content_length=10,
        chunked=False,
        expect_continue=True,
    )


@pytest.mark.parametrize("name", [b"Transfer_Encoding: chunked", b"Content_Length: 5", b"X_A: b"])
def test_request_underscore_name_dropped_without_effect_on_framing(name: bytes) -> None:
    """B-5: a field that a CGI-like server would read as another one is not forwarded and means nothing."""
    request = decode(head(name + b"\r\nx-b: c_d\r\n"))

    assert request is not None
    assert request.headers == [(b"x-b", b"c_d")]
    assert not request.has_body


@pytest.mark.parametrize(
    "path",
    [b"/", b"/v1/models/org%2Fname", b"/v1/models/ft:gpt-4o-mini:a::b", b"/v1/files/file-1/content", b"/v1/",
     b"/v1/models/.hidden", b"/v1/models/a..b", b"/v1/%E2%82%AC", b"/v1/%252e%252e/x", b"/v1/a'b(c)!$&*+,=@~_"],
)  # fmt: skip
def test_request_unusual_path_passes_byte_for_byte(path: bytes) -> None:
    """B-18: what no two servers read differently is used as it came, `%2F` in a model's name included."""
    request = decode(head(b"", line=b"GET " + path + b"?q=%00&r=/../;//\" HTTP/1.1"))

    assert request is not None
    assert (request.path, request.query) == (path, b"q=%00&r=/../;//\"")
    assert request.target == path + b"?" + request.query


@pytest.mark.parametrize("name", [b"a", b"127.0.0.1:8080", b"[::1]:80", b"my_service.ns", b"a:65535"])
def test_request_host_name_or_address_passes(name: bytes) -> None:
    """A Host is a name, an IPv4 or [IPv6] address, and perhaps a port."""
    assert decode(head(b"", host=b"Host: " + name + b"\r\n")) is not None


def test_request_second_on_connection_checked_like_the_first() -> None:
    """What a connection said before is remembered only for what is equal to it."""
    decoder = RequestDecoder(LIMITS)
    decoder.feed(head(b"", line=b"GET /a HTTP/1.1") * 2 + head(b"", line=b"GET /a/../b HTTP/1.1"))

    assert decoder.read_head() == decoder.read_head() != None  # noqa: E711
    with pytest.raises(VeloxError):
        decoder.read_head()


def test_request_second_without_host_refused() -> None:
    """B-15: a Host of an earlier request does not stand for a later one's."""
    decoder = RequestDecoder(LIMITS)
    decoder.feed(head(b"") + head(b"", host=b""))
    assert decoder.read_head() is not None

    with pytest.raises(VeloxError):
        decoder.read_head()


@pytest.mark.parametrize(
    ("fields", "version", "keep"),
    [(b"", b"1.1", True), (b"Connection: close\r\n", b"1.1", False), (b"Connection: x, Close\r\n", b"1.1", False),
     (b"Connection: x\r\nConnection: close\r\n", b"1.1", False), (b"Connection: keep-alive\r\n", b"1.1", True),
     (b"", b"1.0", False), (b"Connection: keep-alive\r\n", b"1.0", False)],
)  # fmt: skip
def test_request_connection_decides_keep_alive(fields: bytes, version: bytes, keep: bool) -> None:
    """HTTP/1.1 stays open unless it says close; HTTP/1.0 is always closed, so nobody needs `keep-alive` in a reply."""
    request = decode(head(fields, line=b"GET / HTTP/" + version))

    assert request is not None
    assert request.keep_alive is keep


def test_request_http_1_0_without_host_passes() -> None:
    """HTTP/1.0 knew no Host; one that is there must still be right (B-15)."""
    request = decode(head(b"", line=b"GET / HTTP/1.0", host=b""))

    assert request is not None and request.http_1_0
    assert refusal(head(b"", line=b"GET / HTTP/1.0", host=b"Host: a/b\r\n")).status == 400


@pytest.mark.parametrize(
    ("fields", "version", "expected"),
    [(b"Content-Length: 1\r\n", b"1.1", True), (CHUNKED + b"\r\n", b"1.1", True), (b"", b"1.1", False),
     (b"Content-Length: 0\r\n", b"1.1", False), (b"Content-Length: 1\r\n", b"1.0", False)],
)  # fmt: skip
def test_request_expect_counts_where_a_body_follows(fields: bytes, version: bytes, expected: bool) -> None:
    """B-13: 100-continue is for HTTP/1.1 and a body; elsewhere it is ignored (RFC 9110 §10.1.1)."""
    request = decode(head(fields + b"expect: 100-Continue\r\n", line=b"POST / HTTP/" + version))

    assert request is not None
    assert request.expect_continue is expected
    assert request.headers == []


@pytest.mark.parametrize("method", [b"TRACE", b"BREW"])
def test_request_method_refused_tells_which_are_allowed(method: bytes) -> None:
    """B-20: 405 comes with Allow (RFC 9110 §15.5.6)."""
    error = refusal(head(b"", line=method + b" / HTTP/1.1"))

    assert error.reason is Reason.METHOD_NOT_ALLOWED
    assert dict(error.headers)[b"allow"] == b"DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"


def sized_target(n: int) -> bytes:
    return head(b"", line=b"GET /" + b"a" * (n - 1) + b" HTTP/1.1")


def sized_line(n: int) -> bytes:
    return head(b"X: " + b"a" * (n - 3) + b"\r\n")


def sized_head(n: int) -> bytes:
    wire = head((b"X: " + b"a" * 10000 + b"\r\n") * 3 + b"Y: \r\n")
    return wire[:-4] + b"a" * (n - len(wire)) + b"\r\n\r\n"


def counted_fields(n: int) -> bytes:
    return head(b"X: y\r\n" * (n - 1))


@pytest.mark.parametrize(
    ("build", "limit", "status"),
    [(sized_target, 8192, 414), (sized_line, 16384, 431), (sized_head, 32768, 431), (counted_fields, 100, 431)],
    ids=["target", "line", "head", "count"],
)  # fmt: skip
def test_request_head_limit_exact(build, limit: int, status: int) -> None:  # type: ignore[no-untyped-def]
    """B-17, B-24: one below and at the limit passes, one above is refused, whole or byte by byte."""
    assert decode(build(limit - 1)) is not None
    assert decode(build(limit)) is not None
    error = refusal(build(limit + 1))
    assert (error.status, error.reason) == (status, Reason.HEADER_TOO_LARGE)


@pytest.mark.parametrize(
    ("wire", "status"),
    [(b"GET /" + b"a" * 9000, 414), (b"A" * 40, 400), (b"GET / HTTP/1.1\r\nX: " + b"a" * 16400, 431),
     (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 6000, 431), (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\n", 400),
     (b"GET /\r\n", 400), (b"\x16", 400), (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10000, 431)],
)  # fmt: skip
def test_request_unfinished_refused_before_more_is_held(wire: bytes, status: int) -> None:
    """B-24, R-H1-6: what more bytes can't mend is refused at once, and not held until a time-out."""
    assert refusal(wire).status == status
