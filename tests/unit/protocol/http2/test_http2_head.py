"""Fields of an HTTP/2 request become the same head as HTTP/1.1's, an answer, or nothing."""

from __future__ import annotations

import pytest

from velox.errors import Reason, VeloxError
from velox.heads import Header, RequestHead
from velox.protocol.http1.request_head import HeadReader, Http1Limits
from velox.protocol.http2.request_head import MalformedError, read_head

LIMITS = Http1Limits()
POST: list[Header] = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"gateway.example:8080"),
    (b":path", b"/v1/chat/completions?x=1"),
]
FIELDS: list[Header] = [
    (b"authorization", b"Bearer sk-1"),
    (b"content-type", b"application/json"),
    (b"x-empty", b""),
    (b"accept", b"text/html, */*"),
]


def read(*fields: Header, end_stream: bool = False) -> RequestHead:
    return read_head(fields, LIMITS, end_stream=end_stream)


def test_head_is_the_same_as_over_http1() -> None:
    """What routes, keys and limits are applied to does not depend on the protocol."""
    wire = b"".join(b"%b: %b\r\n" % field for field in FIELDS)
    line = b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: gateway.example:8080\r\nContent-Length: 7\r\n"
    over_http1 = HeadReader(LIMITS).read(line + wire + b"\r\n")
    assert read(*POST, *FIELDS, (b"content-length", b"7")) == over_http1


@pytest.mark.parametrize(
    ("fields", "end_stream", "length", "chunked", "has_body"),
    [
        ([], False, None, True, True),
        ([], True, None, False, False),
        ([(b"content-length", b"5")], False, 5, False, True),
        ([(b"content-length", b"0")], False, 0, False, False),
        ([(b"content-length", b"0")], True, 0, False, False),
    ],
)
def test_body_is_known_by_its_length_or_the_streams_end(
    fields: list[Header], end_stream: bool, length: int | None, chunked: bool, has_body: bool
) -> None:
    """`chunked` stands for a body whose length is not stated."""
    head = read(*POST, *fields, end_stream=end_stream)
    assert (head.content_length, head.chunked, head.has_body) == (length, chunked, has_body)


def test_what_ends_here_is_not_forwarded() -> None:
    """Hop-by-hop fields, Host, the length, names that a CGI would read as others."""
    head = read(
        *POST,
        (b"te", b"trailers"),
        (b"host", b"Gateway.example:8080"),
        (b"content-length", b"3"),
        (b"content_length", b"9"),
        (b"proxy-authorization", b"x"),
        (b"trailer", b"x"),
        (b"x-mine", b"1"),
    )
    assert head.headers == [(b"x-mine", b"1")]


def test_expect_continue_is_known() -> None:
    """An interim reply may be waited for in HTTP/2 as well (RFC 9110 §10.1.1)."""
    assert read(*POST, (b"expect", b"100-continue")).expect_continue
    assert not read(*POST, (b"expect", b"100-continue"), end_stream=True).expect_continue


def test_host_may_stand_for_the_authority() -> None:
    """RFC 9113 §8.3.1: one of them is enough, and they are compared as host names are."""
    assert read(*POST[:2], POST[3], (b"host", b"gateway.example")).method == b"POST"
    assert read(*POST, (b"host", b"GATEWAY.example:8080")).method == b"POST"


MALFORMED: dict[str, list[Header]] = {
    "nothing": [],
    "no method": POST[1:],
    "no scheme": [POST[0], *POST[2:]],
    "no path": POST[:3],
    "method twice": [*POST, POST[0]],
    "unknown pseudo field": [*POST, (b":protocol", b"websocket")],
    "pseudo field of a reply": [*POST, (b":status", b"200")],
    "pseudo field after a field": [*POST[:3], (b"x", b"y"), POST[3]],
    "empty pseudo name": [*POST, (b":", b"")],
    "scheme": [POST[0], (b":scheme", b"file"), *POST[2:]],
    "method is no token": [(b":method", b"GET /"), *POST[1:]],
    "empty path": [*POST[:3], (b":path", b"")],
    "absolute path": [*POST[:3], (b":path", b"http://x/")],
    "star for another method than OPTIONS": [*POST[:3], (b":path", b"*")],
    "space in the path": [*POST[:3], (b":path", b"/a b")],
    "line in the path": [*POST[:3], (b":path", b"/a\r\nb")],
    "empty authority": [*POST[:2], (b":authority", b""), POST[3]],
    "authority is not the host": [*POST, (b"host", b"other.example")],
    "one of two hosts": [*POST, (b"host", b"gateway.example:8080"), (b"host", b"other.example")],
    "empty name": [*POST, (b"", b"x")],
    "upper case": [*POST, (b"X-a", b"x")],
    "space in a name": [*POST, (b"x a", b"x")],
    "value with CR": [*POST, (b"x", b"a\rb")],
    "value with LF": [*POST, (b"x", b"a\nb")],
    "value with NUL": [*POST, (b"x", b"a\0b")],
    "value with DEL": [*POST, (b"x", b"a\x7fb")],
    "space before a value": [*POST, (b"x", b" a")],
    "tab after a value": [*POST, (b"x", b"a\t")],
    "connection": [*POST, (b"connection", b"close")],
    "transfer-encoding": [*POST, (b"transfer-encoding", b"chunked")],
    "upgrade": [*POST, (b"upgrade", b"h2c")],
    "te": [*POST, (b"te", b"gzip")],
    "length is no number": [*POST, (b"content-length", b"+5")],
    "two lengths": [*POST, (b"content-length", b"5"), (b"content-length", b"5")],
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_request_is_not_answered(fields: list[Header]) -> None:
    """The stream ends; nobody sees what it said."""
    with pytest.raises(MalformedError):
        read(*fields)


def test_length_of_a_body_that_does_not_follow_is_malformed() -> None:
    """RFC 9113 §8.1.1."""
    with pytest.raises(MalformedError):
        read(*POST, (b"content-length", b"5"), end_stream=True)


REFUSED: dict[str, tuple[list[Header], Reason, int]] = {
    "method": ([(b":method", b"TRACE"), *POST[1:]], Reason.METHOD_NOT_ALLOWED, 405),
    "CONNECT": ([(b":method", b"CONNECT"), (b":authority", b"x:443")], Reason.METHOD_NOT_ALLOWED, 405),
    "long path": ([*POST[:3], (b":path", b"/" + b"a" * 8192)], Reason.HEADER_TOO_LARGE, 414),
    "dot segments": ([*POST[:3], (b":path", b"/v1/../admin")], Reason.BAD_REQUEST, 400),
    "fragment": ([*POST[:3], (b":path", b"/v1#x")], Reason.BAD_REQUEST, 400),
    "no host": ([*POST[:2], POST[3]], Reason.BAD_REQUEST, 400),
    "host with a user": ([*POST[:2], (b":authority", b"u@x"), POST[3]], Reason.BAD_REQUEST, 400),
    "two keys": ([*POST, (b"authorization", b"a"), (b"authorization", b"b")], Reason.BAD_REQUEST, 400),
    "beyond ASCII": ([*POST, (b"x", b"caf\xc3\xa9")], Reason.BAD_FRAMING, 400),
    "large body": ([*POST, (b"content-length", b"99999999999")], Reason.BODY_TOO_LARGE, 413),
    "expectation": ([*POST, (b"expect", b"200-ok")], Reason.BAD_REQUEST, 417),
}


@pytest.mark.parametrize(("fields", "reason", "status"), REFUSED.values(), ids=REFUSED)
def test_what_http1_refuses_is_refused_alike(fields: list[Header], reason: Reason, status: int) -> None:
    """A well-formed request that is not served gets the same answer as over HTTP/1.1."""
    with pytest.raises(VeloxError) as raised:
        read(*fields)
    assert (raised.value.reason, raised.value.status) == (reason, status)


def test_header_beyond_ascii_is_refused_by_its_name() -> None:
    """C23: as over HTTP/1.1."""
    with pytest.raises(VeloxError, match="value of the header x-title has bytes beyond ASCII"):
        read(*POST, (b"x-title", b"caf\xc3\xa9"))


def test_request_about_the_server_has_no_path() -> None:
    """RFC 9113 §8.3.1: `*` stands for it, of OPTIONS alone."""
    head = read((b":method", b"OPTIONS"), *POST[1:3], (b":path", b"*"), end_stream=True)
    assert (head.method, head.path, head.query) == (b"OPTIONS", b"*", b"")
