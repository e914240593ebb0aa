"""Heads of requests that pass, and the limits at their edges."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.protocol.http1.http1_wires import LIMITS, decode, head, refusal
from velox.errors import Reason, VeloxError
from velox.heads import RequestHead
from velox.protocol.http1.request import RequestDecoder


def test_request_chat_gives_plain_values() -> None:
    """A usual request comes out with its fields in order, lower-case, without what ends at this hop."""
    wire = (
        b"POST /v1/chat/completions?x=1&y HTTP/1.1\r\nHOST: api.example:8080\r\nContent-Type:application/json \t\r\n"
        b"Connection: Keep-Alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nProxy-Authorization: a\r\nTE: trailers\r\n"
        b"Proxy-Connection: a\r\nTrailer: x\r\nExpect: 100-continue\r\nAuthorization: Bearer K\r\nX-Two: 1\r\n"
        b"X-Empty:\r\nX-Two: 2\r\nContent-Length: 10\r\n\r\n"
    )

    request = decode(wire)

    assert request == RequestHead.of(
        b"POST",
        b"/v1/chat/completions?x=1&y",
        [
            (b"content-type", b"application/json"),
            (b"authorization", b"Bearer K"),
            (b"x-two", b"1"),
            (b"x-empty", b""),
            (b"x-two", b"2"),
        ],
        content_length=10,
        expect_continue=True,
    )
    assert (request.path, request.query) == (b"/v1/chat/completions", b"x=1&y")


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
    request = decode(head(b"", line=b"GET " + path + b'?q=%00&r=/../;//" HTTP/1.1'))

    assert request is not None
    assert (request.path, request.query) == (path, b'q=%00&r=/../;//"')
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
    """HTTP/1.1 stays open unless it says close; HTTP/1.0 is always closed."""
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
    [(b"Content-Length: 1\r\n", b"1.1", True), (b"Transfer-Encoding: chunked\r\n", b"1.1", True),
     (b"", b"1.1", False),
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
def test_request_head_limit_exact(build: Callable[[int], bytes], limit: int, status: int) -> None:
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
    """B-24: what more bytes can't mend is refused at once, and not held until a time-out."""
    assert refusal(wire).status == status
