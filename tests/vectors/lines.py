"""Vectors of the request line and of how lines end: methods, targets, versions, and what is no request at all.

Knows: RFC 9112 §2 and §3. Does not know: fields (fields.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.vectors.vector import (
    FOLLOW_UP,
    GET,
    HELLO,
    HOST,
    POST,
    SMUGGLED,
    Answer,
    Door,
    Pause,
    Seen,
    Vector,
    bad,
    bad_target,
    good,
    passed,
    refused,
    request,
    shown,
)

__all__ = ["VECTORS"]

_LF: Final = "RFC 9112 §2.2: a lone LF may end a line for some, so it ends none"
_CR: Final = "RFC 9112 §2.2: a bare CR is invalid"
_LINE: Final = "RFC 9112 §3: method SP target SP version, single spaces"
_VERSION: Final = "RFC 9112 §2.3: HTTP/DIGIT.DIGIT, in capitals"
_ORIGIN: Final = "RFC 9112 §3.2.1: origin-form; a gateway is nobody's forward proxy"
_CHARS: Final = "RFC 3986 §2: a target is visible ASCII, without `#` and `\\`"
_PATH: Final = "one reading of the path only, for auth, routes and upstream alike (R-PATH-1)"
_METHOD: Final = "RFC 9110 §9.1: methods are tokens with case; 405 names those that pass"
_MODELS: Final = Seen(b"GET", b"/v1/models")
_NOT_ALLOWED: Final = Answer(
    (405,), "method_not_allowed", fields=(("allow", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),)
)


def _line(label: str, row: str, line: bytes, why: str, *, status: int = 400, reason: str = "bad_framing") -> Vector:
    return bad(label, row, shown(line), why, request(line), status=status, reason=reason)


def _raw(label: str, row: str, what: str, wire: bytes, why: str) -> Vector:
    return bad(label, row, what, why, wire)


def _method(
    label: str, line: bytes, why: str = _METHOD, *, body: bytes = b"", fields: tuple[bytes, ...] = ()
) -> Vector:
    wire = request(line, *fields, body=body)
    return Vector(label, "B-20", shown(b" / ".join([line, *fields])), why, (wire,), (_NOT_ALLOWED,), closes=True)


def _ok(
    label: str, row: str, wire: bytes, what: str, why: str, seen: Seen = _MODELS, *, closes: bool = False
) -> Vector:
    return good(label, row, what, why, wire, seen=seen, closes=closes)


def _line_ends() -> Iterator[Vector]:
    yield _raw(
        "RFC9112-2.2-BARE-LF-REQUEST-LINE", "B-7", "LF after the request line", GET + b"\n" + HOST + b"\r\n\r\n", _LF
    )
    wire = GET + b"\r\n" + HOST + b"\nX-Test: value\r\n\r\n"
    yield _raw("RFC9112-2.2-BARE-LF-HEADER", "B-7", "LF after a field", wire, _LF)
    yield _raw("B-7-LF-EVERYWHERE", "B-7", "LF only", GET + b"\n" + HOST + b"\n\n", _LF)
    yield _raw("B-7-LF-AT-END", "B-7", "LF instead of the last line", GET + b"\r\n" + HOST + b"\r\n\n", _LF)
    wire = GET + b"\r\n" + HOST + b"\r\nX-A: b\n\r\n"
    yield _raw("B-7-LF-BEFORE-EMPTY-LINE", "B-7", "LF after the last field", wire, _LF)
    yield _raw(
        "RFC9112-3-CR-ONLY-LINE-ENDING", "B-7", "CR after the request line", GET + b"\r" + HOST + b"\r\n\r\n", _CR
    )
    yield _raw("B-7-CR-CR-LF", "B-7", "CR CR LF after the request line", GET + b"\r\r\n" + HOST + b"\r\n\r\n", _CR)
    wire = GET + b"\r\n" + HOST + b"\r\rX-A: b\r\n\r\n"
    yield _raw("B-7-CR-AFTER-FIELD", "B-7", "CR after a field", wire, _CR)
    yield _raw("B-7-LF-FIRST", "B-7", "LF before the request", b"\n" + request(GET), _LF)
    yield _raw("B-7-CR-FIRST", "B-7", "CR before the request", b"\r" + request(GET), _CR)
    one = "RFC 9112 §2.2: one empty line before a request is ignored"
    yield _ok("B-7-ONE-EMPTY-LINE", "B-7", b"\r\n" + request(GET), "one empty line first", one)
    more = "RFC 9112 §2.2: one empty line may be ignored; more would escape the limits"
    yield _raw("COMP-LEADING-CRLF", "B-7", "two empty lines first", b"\r\n\r\n" + request(GET), more)
    white = "RFC 9112 §2.2: white space before the first field could hide it"
    wire = GET + b"\r\n \r\n" + HOST + b"\r\n\r\n"
    yield _raw("COMP-WHITESPACE-BEFORE-HEADERS", "B-6", "a line of one space before the fields", wire, white)
    yield _raw("B-6-SPACE-BEFORE-FIRST", "B-6", "a space before the first field", request(GET, host=b" " + HOST), white)
    yield _raw("B-6-TAB-BEFORE-FIRST", "B-6", "a tab before the first field", request(GET, host=b"\t" + HOST), white)


def _request_lines() -> Iterator[Vector]:
    yield _line("RFC9112-3-MULTI-SP-REQUEST-LINE", "B-17", b"GET  /v1/models HTTP/1.1", _LINE)
    yield _line("B-17-TWO-SPACES-BEFORE-VERSION", "B-17", b"GET /v1/models  HTTP/1.1", _LINE)
    yield _line("RFC9112-3-MISSING-TARGET", "B-17", b"GET HTTP/1.1", _LINE)
    yield _line("COMP-SPACE-IN-TARGET", "B-17", b"GET /pa th HTTP/1.1", _LINE)
    yield _line("COMP-REQUEST-LINE-TAB", "B-20", b"GET\t/v1/models HTTP/1.1", _LINE)
    yield _line("B-17-TAB-BEFORE-VERSION", "B-17", b"GET /v1/models\tHTTP/1.1", _LINE)
    yield _line("B-17-SPACE-FIRST", "B-17", b" GET /v1/models HTTP/1.1", _LINE)
    yield _line("B-17-FORMFEED", "B-17", b"GET\x0c/v1/models HTTP/1.1", _LINE)
    yield _raw("MAL-WHITESPACE-ONLY-LINE", "B-17", "three spaces", b"   \r\n\r\n", _LINE)
    yield _line("B-20-TAB-IN-METHOD", "B-20", b"GE\tT /v1/models HTTP/1.1", _LINE)
    yield _line("MAL-LONG-METHOD", "B-20", b"A" * 100_000 + b" / HTTP/1.1", "no method is so long")
    yield _line("B-20-64-KIB", "B-20", b"A" * 65_536 + b" / HTTP/1.1", "no method is so long")
    yield _line("B-20-NO-TOKEN", "B-20", b"GE(T /v1/models HTTP/1.1", "RFC 9110 §5.6.2: a method is a token")
    yield _line("B-20-NUL", "B-20", b"GET\x00 /v1/models HTTP/1.1", "RFC 9110 §5.6.2: a method is a token")
    yield _method("COMP-METHOD-CASE", b"get /v1/models HTTP/1.1")
    yield _method("COMP-UNKNOWN-METHOD", b"FOOBAR /v1/models HTTP/1.1")
    yield _method("COMP-405-ALLOW", b"PURGE /v1/models HTTP/1.1", "RFC 9110 §15.5.6: 405 comes with Allow")
    trace = "RFC 9110 §9.3.8: TRACE gives credentials back to whoever asks"
    yield _method("COMP-METHOD-TRACE", b"TRACE /v1/models HTTP/1.1", trace)
    secret = (b"Authorization: Bearer secret-token-123",)
    yield _method("COMP-TRACE-SENSITIVE", b"TRACE /v1/models HTTP/1.1", trace, fields=secret)
    length = (b"Content-Length: 5",)
    yield _method("COMP-TRACE-WITH-BODY", b"TRACE /v1/models HTTP/1.1", trace, fields=length, body=HELLO)
    tunnel = "RFC 9110 §9.3.6: CONNECT is for proxies"
    wire = request(b"CONNECT example.com:443 HTTP/1.1", host=b"Host: example.com:443")
    yield Vector(
        "COMP-METHOD-CONNECT", "B-20", "CONNECT example.com:443", tunnel, (wire,), (_NOT_ALLOWED,), closes=True
    )
    for method in (b"PUT", b"PATCH", b"DELETE", b"OPTIONS"):
        wire = request(method + b" /v1/blobs/1 HTTP/1.1")
        what, seen = f"{method.decode()} without a body", Seen(method, b"/v1/blobs/1")
        yield _ok(f"B-20-{method.decode()}", "B-20", wire, what, "RFC 9110 §9: the upstream decides", seen)


def _versions() -> Iterator[Vector]:
    for label, version, status in (
        ("RFC9112-2.3-INVALID-VERSION", b"HTTP/9.9", 505),
        ("COMP-HTTP12-VERSION", b"HTTP/1.2", 505),
        ("B-19-2.0", b"HTTP/2.0", 505),
        ("B-19-3.0", b"HTTP/3.0", 505),
        ("B-19-0.9", b"HTTP/0.9", 400),
        ("COMP-VERSION-CASE", b"http/1.1", 400),
        ("COMP-VERSION-MISSING-MINOR", b"HTTP/1", 400),
        ("COMP-VERSION-LEADING-ZEROS", b"HTTP/01.01", 400),
        ("COMP-VERSION-WHITESPACE", b"HTTP/ 1.1", 400),
        ("B-19-TRAILING-SPACE", b"HTTP/1.1 ", 400),
        ("B-19-TWO-DIGITS", b"HTTP/1.10", 400),
        ("B-19-NO-POINT", b"HTTP/11", 400),
        ("B-19-COMMA", b"HTTP/1,1", 400),
        ("B-19-OTHER-PROTOCOL", b"HTCPCP/1.0", 400),
        ("B-19-SIGN", b"HTTP/+1.1", 400),
        ("B-19-EMPTY", b"", 400),
    ):
        yield _line(label, "B-19", b"GET /v1/models " + version, _VERSION, status=status)
    yield _raw("RFC9112-2.3-HTTP09-REQUEST", "B-19", "GET / without a version", b"GET /\r\n", _VERSION)
    wire = request(b"GET /v1/models HTTP/1.0")
    why = "RFC 9112 §9.3: HTTP/1.0 closes"
    yield _ok("COMP-HTTP10-DEFAULT-CLOSE", "B-19", wire, "HTTP/1.0", why, closes=True)
    why = "RFC 9112 §3.2: Host is asked of HTTP/1.1 only; it never chooses the upstream"
    wire = request(b"GET /v1/models HTTP/1.0", host=b"")
    yield _ok("COMP-HTTP10-NO-HOST", "B-15", wire, "HTTP/1.0 without Host", why, closes=True)
    why = "HTTP/1.0 keep-alive is not spoken: its framing is too weak to reuse a connection"
    wire = request(b"GET /v1/models HTTP/1.0", b"Connection: keep-alive") + SMUGGLED
    yield _ok("B-19-HTTP10-KEEP-ALIVE", "B-19", wire, "HTTP/1.0 with keep-alive and a second request", why, closes=True)


def _targets() -> Iterator[Vector]:
    for label, target in (
        ("SMUG-ABSOLUTE-URI-HOST-MISMATCH", b"http://other.example.com/v1/models"),
        ("B-16-ABSOLUTE-BEGINS-SO", b"http://velox.test.example.com/v1/models"),
        ("B-16-ABSOLUTE-ENDS-SO", b"http://a.velox.test/v1/models"),
        ("B-16-ABSOLUTE-USER", b"http://user@velox.test/v1/models"),
        ("B-16-ABSOLUTE-AS-USER", b"http://velox.test@other.example.com/v1/models"),
        ("B-16-ABSOLUTE-PORT", b"http://velox.test:80x/v1/models"),
        ("B-16-ABSOLUTE-LARGE-PORT", b"http://velox.test:65536/v1/models"),
        ("B-16-ABSOLUTE-BACKSLASH", b"http://velox.test\\.example.com/v1/models"),
        ("B-16-ABSOLUTE-FRAGMENT", b"http://velox.test#/v1/models"),
        ("B-16-ABSOLUTE-NO-HOST", b"http:///v1/models"),
        ("B-16-ABSOLUTE-ONE-SLASH", b"http:/velox.test/v1/models"),
        ("B-16-ABSOLUTE-TWICE", b"http://velox.test/http://velox.test/v1/models"),
        ("B-16-ABSOLUTE-EMPTY-SEGMENT", b"http://velox.test//v1/models"),
        ("B-16-ABSOLUTE-DOTS", b"http://velox.test/../v1/models"),
        ("B-16-ABSOLUTE-FTP", b"ftp://velox.test/v1/models"),
        ("B-16-ABSOLUTE-METADATA", b"http://169.254.169.254/latest/meta-data/"),
        ("B-16-ABSOLUTE-FILE", b"file:///etc/passwd"),
        ("B-16-AUTHORITY", b"other:80"),
        ("B-16-NO-SLASH", b"v1/models"),
        ("B-16-AT", b"@other/v1/models"),
        ("COMP-ASTERISK-WITH-GET", b"*"),
    ):
        yield bad_target(label, "B-16", target, _ORIGIN)
    own = "RFC 9112 §3.2.2: a URL of ours is understood, and counts instead of Host; it goes up from its path on"
    for label, target, path in (
        ("COMP-ABSOLUTE-FORM", b"http://velox.test/v1/models", b"/v1/models"),
        ("B-16-ABSOLUTE-HTTPS", b"https://velox.test/v1/models", b"/v1/models"),
        ("B-16-ABSOLUTE-CASE", b"HTTP://Velox.Test:8080/v1/models?a=b", b"/v1/models?a=b"),
        ("B-16-ABSOLUTE-LOCALHOST", b"http://localhost/v1/models", b"/v1/models"),
    ):
        line = b"GET %b HTTP/1.1" % target
        yield _ok(label, "B-16", request(line), shown(line), own, Seen(b"GET", path))
    wire = request(b"GET http://velox.test/v1/models HTTP/1.1", host=b"Host: other.example.com") + FOLLOW_UP
    seen = (Seen(b"GET", b"/v1/models"), Seen(b"GET", b"/v1/next"))
    yield good("B-16-ABSOLUTE-OTHER-HOST", "B-16", "a URL of ours, another Host, a GET behind it", own, wire, seen=seen)
    line = b"GET http://velox.test/v1/models HTTP/1.1"
    why = "RFC 9112 §3.2: exactly one Host, whatever the target is"
    yield bad("B-16-ABSOLUTE-NO-HOST-FIELD", "B-16", shown(line), why, request(line, host=b""), reason="bad_request")
    star = "RFC 9110 §9.3.7: `*` asks about the gateway as a whole, which answers for itself"
    line = b"OPTIONS * HTTP/1.1"
    ours = Answer((200,), fields=(("allow", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"), ("content-length", "0")))
    yield Vector("COMP-OPTIONS-STAR", "B-16", shown(line), star, (request(line),), (ours,), closes=False)
    why = "RFC 9112 §3.2.4: only OPTIONS may ask about a whole server"
    yield _line("B-16-GET-STAR", "B-16", b"GET * HTTP/1.1", why, reason="bad_request")
    for label, target in (
        ("RFC9112-3.2-FRAGMENT-IN-TARGET", b"/v1/models#frag"),
        ("B-17-FRAGMENT-IN-QUERY", b"/v1/models?a#frag"),
        ("MAL-NUL-IN-URL", b"/v1/\x00models"),
        ("B-17-TAB", b"/v1/mod\tels"),
        ("B-17-CONTROL", b"/v1/\x01"),
        ("B-17-DEL", b"/v1/\x7f"),
        ("B-17-HIGH", b"/v1/\x80"),
        ("MAL-NON-ASCII-URL", "/v1/café".encode()),
        ("MAL-URL-BACKSLASH", b"/v1\\models"),
        ("B-17-BACKSLASH-IN-QUERY", b"/v1/models?a\\b"),
        ("B-17-CR", b"/v1/\rmodels"),
    ):
        yield bad_target(label, "B-17", target, _CHARS)
    for label, target in (
        ("MAL-URL-OVERLONG-UTF8", b"/v1/%c0%af"),
        ("B-18-OVERLONG-DOTS", b"/v1/%c0%ae%c0%ae/x"),
        ("MAL-URL-PERCENT-NULL", b"/v1/models%00"),
        ("MAL-URL-PERCENT-CRLF", b"/v1/models%0d%0aX-A:%20b"),
        ("B-18-DOTS", b"/v1/../admin"),
        ("B-18-DOTS-FIRST", b"/../v1/models"),
        ("B-18-DOTS-LAST", b"/v1/blobs/.."),
        ("B-18-DOT", b"/v1/./models"),
        ("B-18-ENCODED-DOTS", b"/v1/%2e%2e/admin"),
        ("B-18-HALF-ENCODED-DOTS", b"/v1/.%2E/admin"),
        ("B-18-DOTS-ENCODED-SLASH", b"/v1/..%2fadmin"),
        ("B-18-DOTS-SEMICOLON", b"/v1/..;/admin"),
        ("B-18-SEMICOLON", b"/v1/models;x=y"),
        ("B-18-ENCODED-SEMICOLON", b"/v1/models%3bx"),
        ("B-18-DOUBLE-SLASH", b"/v1//models"),
        ("B-18-DOUBLE-SLASH-FIRST", b"//other/v1/models"),
        ("B-18-ENCODED-DOUBLE-SLASH", b"/v1%2F%2Fmodels"),
        ("B-18-ENCODED-BACKSLASH", b"/v1/%5c..%5cx"),
        ("B-18-ENCODED-DEL", b"/v1/%7f"),
        ("B-18-BROKEN-ESCAPE", b"/v1/%zz"),
        ("B-18-SHORT-ESCAPE", b"/v1/%4"),
        ("B-18-IIS-ESCAPE", b"/v1/%u002e"),
        ("B-18-LATIN-1", b"/v1/%e9"),
    ):
        yield bad_target(label, "B-18", target, _PATH)
    same = "the path passes byte for byte; model ids have encoded slashes (R-PATH-1)"
    for label, target in (
        ("B-18-ENCODED-SLASH", b"/v1/models/org%2Fname"),
        ("B-18-UTF8", b"/v1/models/caf%C3%A9"),
        ("B-18-DOTS-IN-QUERY", b"/v1/models?a=../..//b;c&%00"),
        ("B-18-THREE-DOTS", b"/v1/blobs/..."),
        ("B-18-ENCODED-PERCENT", b"/v1/models/a%252e"),
        ("B-18-EMPTY-QUERY", b"/v1/models?"),
    ):
        line = b"GET %b HTTP/1.1" % target
        yield _ok(label, "B-18", request(line), shown(line), same, Seen(b"GET", target))


def _long_targets() -> Iterator[Vector]:
    long = "RFC 9112 §3: 8,000 bytes at least; here 8,192, and 414 beyond"
    for label, n_bytes in (("COMP-LONG-URL-OK", 7900), ("B-17-8192-BYTES", 8192)):
        target = b"/" + b"a" * (n_bytes - 1)
        wire = request(b"GET %b HTTP/1.1" % target)
        yield _ok(label, "B-17", wire, f"a target of {n_bytes} bytes", long, Seen(b"GET", target))
    for label, n_bytes in (("B-17-8193-BYTES", 8193), ("MAL-LONG-URL", 100_000)):
        wire = request(b"GET /%b HTTP/1.1" % (b"a" * (n_bytes - 1)))
        what = f"a target of {n_bytes} bytes"
        yield bad(label, "B-17", what, long, wire, status=414, reason="header_too_large")
    endless = b"GET /" + b"a" * 9000
    what, why = "a target that does not end", "counted while it is read (R-H1-6)"
    yield bad("R-H1-6-ENDLESS-TARGET", "B-17", what, why, endless, status=414, reason="header_too_large")


def _no_requests() -> Iterator[Vector]:
    garbage = "what begins with no method is no request"
    bytes_ = bytes((i * 167 + 41) % 256 for i in range(256))
    yield _raw("MAL-BINARY-GARBAGE", "B-23", "256 bytes of noise", bytes_, garbage)
    tls = bytes.fromhex("16030102000100 01fc0303".replace(" ", "")) + bytes(range(64))
    yield _raw("B-23-TLS", "B-23", "a TLS ClientHello", tls, garbage)
    yield _raw("B-23-ALL-BYTES", "B-23", "each byte once", bytes(range(256)), garbage)
    yield _raw("B-23-REPLY", "B-23", "a reply", b"HTTP/1.1 200 OK\r\n\r\n", garbage)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    h2 = "RFC 9113 §3.4: HTTP/2 is not spoken here, unless it is switched on"
    yield _raw("MAL-H2-PREFACE", "B-22", "the preface of HTTP/2", preface, h2)
    end = "a wait for a request has an end, told by 408 once a byte of one has come"
    yield Vector("MAL-EMPTY-REQUEST", "B-23", "nothing", end, (b"",), (), closes=True, door=Door.TIGHT)
    yield Vector("B-23-EMPTY-LINE", "B-23", "an empty line", end, (b"\r\n",), (), closes=True, door=Door.TIGHT)
    for label, what, wire in (
        ("MAL-INCOMPLETE-REQUEST", "a head without its end", GET + b"\r\n" + HOST + b"\r\nX-Test: value"),
        ("B-23-HALF-LINE", "half a request line", b"GET /v1/mo"),
    ):
        yield bad(label, "B-23", what, end, wire, status=408, reason="header_timeout", door=Door.TIGHT)


def _in_order() -> Iterator[Vector]:
    why = "RFC 9112 §9.3.2: answered one at a time, in the order in which they came (R-H1-10)"
    seen = tuple(Seen(b"GET", b"/v1/models/%d" % n) for n in range(100))
    wire = b"".join(request(b"GET %b HTTP/1.1" % each.target) for each in seen)
    yield good("R-H1-10-PIPELINE", "B-12", "100 GETs in one segment", why, wire, seen=seen)
    post = request(POST, b"Content-Length: 5", body=HELLO)
    all_seen = (_MODELS, Seen(b"POST", b"/v1/blobs", (), HELLO), _MODELS)
    yield good(
        "R-H1-10-MIXED", "B-12", "GET, POST, GET in one segment", why, request(GET) + post + request(GET), seen=all_seen
    )
    answers = (passed(_MODELS), refused(400))
    behind = request(GET) + GET + b"\n" + HOST + b"\r\n\r\n" + SMUGGLED
    what = "a GET, one with a bare LF, a third"
    yield Vector(
        "R-H1-1-NOTHING-AFTER", "B-7", what, "after a refusal no byte is read (R-H1-1)", (behind,), answers, closes=True
    )
    closing = request(GET, b"Connection: close") + SMUGGLED
    why = "RFC 9112 §9.6: what comes after the last request is not read"
    yield good("B-14-CLOSE-THEN-MORE", "B-14", "Connection: close, then a GET", why, closing, seen=_MODELS, closes=True)
    later = (request(GET, b"Connection: close"), Pause.ANSWER, SMUGGLED)
    yield good(
        "B-14-CLOSE-THEN-LATER",
        "B-14",
        "Connection: close, a GET after the answer",
        why,
        *later,
        seen=_MODELS,
        closes=True,
    )


VECTORS: Final = (
    *_line_ends(),
    *_request_lines(),
    *_versions(),
    *_targets(),
    *_long_targets(),
    *_no_requests(),
    *_in_order(),
)
