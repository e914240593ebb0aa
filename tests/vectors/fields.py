"""Vectors of fields: their syntax, Host, limits, Connection, Expect, cookies, keys, and what never goes up.

Knows: RFC 9110 §5 to §14 as far as a gateway acts on it. Does not know: bodies (bodies.py), framing
(framing.py), other protocols (upgrades.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.vectors.vector import (
    FOLLOW_UP,
    GET,
    GOOD,
    HELLO,
    POST,
    Door,
    Pause,
    Seen,
    Vector,
    bad,
    good,
    hello,
    passed,
    request,
    shown,
)

__all__ = ["KEY", "VECTORS"]

KEY: Final = "vk-" + "k" * 40  # of the keyed door

_NAME: Final = "RFC 9112 §5.1: a name is a token, and its colon follows at once"
_VALUE: Final = "RFC 9110 §5.5: no control character but HTAB in a value, and here no byte beyond ASCII"
_HOST: Final = "RFC 9112 §3.2: exactly one Host, a name or address with or without a port"
_HOP: Final = "RFC 9110 §7.6.1: ends at this hop, with what Connection names"
_DROPPED: Final = "R-SEC-1: what a client claims of hops, or carries for itself, is not the upstream's"
_SIZE: Final = "RFC 6585 §5: 431 beyond 32 KiB, 16 KiB a line, or 100 fields"
_PASSES: Final = "no matter of a gateway: the upstream's answer counts"
_MODELS: Final = Seen(b"GET", b"/v1/models")
_DOT: Final = b"X-A: "


def _get(label: str, row: str, fields: bytes, why: str, reason: str = "bad_framing", status: int = 400) -> Vector:
    return bad(label, row, shown(fields), why, request(GET, fields), status=status, reason=reason)


def _up(label: str, row: str, fields: bytes, why: str, *seen: tuple[bytes, bytes], closes: bool = False) -> Vector:
    """A GET with these fields, of which the upstream sees `seen`."""
    view = Seen(b"GET", b"/v1/models", seen)
    return good(label, row, shown(fields), why, request(GET, fields), seen=view, closes=closes)


def _same(label: str, row: str, field: bytes, why: str) -> Vector:
    """A GET with a field that goes up as it is."""
    name, _, value = field.partition(b": ")
    return _up(label, row, field, why, (name.lower(), value))


def _baselines() -> Iterator[Vector]:
    plain = "what is well-formed passes"
    for label, what in (
        ("COMP-BASELINE", "GET"),
        ("COMP-DATE-HEADER", "GET; every answer has a Date, also where the upstream sent none (RFC 9110 §6.6.1)"),
        ("COMP-DATE-FORMAT", "GET; every Date is an IMF-fixdate (RFC 9110 §5.6.7)"),
        ("COMP-CONTENT-TYPE", "GET; Content-Type is the upstream's"),
    ):
        yield good(label, "B-12", what, plain, request(GET), seen=_MODELS)
    yield good("COMP-POST-CL-BODY", "B-12", "POST with a length", plain, hello(b"Content-Length: 5"))
    empty = Seen(b"POST", b"/v1/blobs")
    why = "RFC 9112 §6.3: no length and no coding is no body; a length of 0 goes up"
    yield good(
        "COMP-POST-CL-ZERO", "B-12", "POST, Content-Length: 0", why, request(POST, b"Content-Length: 0"), seen=empty
    )
    yield good("COMP-POST-NO-CL-NO-TE", "B-12", "POST without a length", why, request(POST), seen=empty)
    wire, why = request(b"HEAD /v1/blobs HTTP/1.1"), "RFC 9110 §9.3.2: no body in the answer"
    answer = passed(Seen(b"HEAD", b"/v1/blobs"), has_body=False)
    yield Vector("COMP-HEAD-NO-BODY", "B-12", "HEAD", why, (wire,), (answer,), closes=False)
    for label, what in (("COMP-NO-CL-IN-204", "OPTIONS"), ("COMP-OPTIONS-ALLOW", "OPTIONS; Allow is the upstream's")):
        wire = request(b"OPTIONS /v1/blobs HTTP/1.1")
        yield good(label, "B-20", what, _PASSES, wire, seen=Seen(b"OPTIONS", b"/v1/blobs"))


def _syntax() -> Iterator[Vector]:
    for label, line in (
        ("RFC9110-5.6.2-SP-BEFORE-COLON", b"X-Test : value"),
        ("B-6-TAB-BEFORE-COLON", b"X-Test\t: value"),
        ("RFC9112-5-EMPTY-HEADER-NAME", b": empty-name"),
        ("RFC9112-5-INVALID-HEADER-NAME", b"Bad[Name: value"),
        ("RFC9112-5-HEADER-NO-COLON", b"NoColonHere"),
        ("B-6-SPACE-IN-NAME", b"X Test: value"),
        ("B-6-QUOTE-IN-NAME", b'X": a'),
        ("B-6-CONTROL-IN-NAME", b"X\x01: a"),
        ("B-6-NUL-IN-NAME", b"X\x00: a"),
        ("MAL-NON-ASCII-HEADER-NAME", "X-Tëst: value".encode()),
        ("B-6-AT-IN-NAME", b"X@Test: value"),
    ):
        yield _get(label, "B-6", line, _NAME)
    fold = "RFC 9112 §5.2: no folded lines in requests"
    yield _get("RFC9112-5.1-OBS-FOLD", "B-6", b"X-Test: value\r\n continued", fold)
    yield _get("B-6-FOLD-TAB", "B-6", b"X-Test: value\r\n\tcontinued", fold)
    yield _get("B-6-FOLD-EMPTY", "B-6", b"X-Test:\r\n ", fold)
    yield _get("SMUG-BARE-CR-HEADER-VALUE", "B-7", b"X-Test: val\rue", "RFC 9112 §2.2: a bare CR is invalid")
    for label, value in (
        ("MAL-NUL-IN-HEADER-VALUE", b"val\x00ue"),
        ("MAL-CONTROL-CHARS-HEADER", b"abc\x07\x08\x0bdef"),
        ("B-6-DEL-IN-VALUE", b"a\x7fb"),
        ("B-6-ESCAPE-IN-VALUE", b"\x1b[31mred"),
        ("B-6-HIGH-IN-VALUE", b"caf\xe9"),
        ("B-6-UTF8-IN-VALUE", "café".encode()),
    ):
        yield _get(label, "B-6", _DOT + value, _VALUE)
    for label, value in (("B-6-TAB-IN-VALUE", b"a\tb"), ("B-6-ALL-VISIBLE", bytes(range(0x21, 0x7F)))):
        yield _same(label, "B-6", _DOT + value, "RFC 9110 §5.5: allowed in a value")
    yield _up("B-6-OWS", "B-6", b"X-A: \t b \t", "RFC 9110 §5.5: white space around is no part of it", (b"x-a", b"b"))
    yield _up("B-6-EMPTY-VALUE", "B-6", b"X-A:", "RFC 9110 §5.5: a value may be empty", (b"x-a", b""))
    twice = ((b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3"))
    yield _up("B-6-TWICE", "B-6", b"X-A: 1\r\nX-B: 2\r\nx-a: 3", "RFC 9110 §5.3: order is kept", *twice)


def _hosts() -> Iterator[Vector]:
    yield bad("RFC9112-7.1-MISSING-HOST", "B-15", "no Host", _HOST, request(GET, host=b""), reason="bad_request")
    other = b"Host: other.example.com"
    yield _get("RFC9110-5.4-DUPLICATE-HOST", "B-15", other, _HOST, "bad_request")
    yield _get("COMP-DUPLICATE-HOST-SAME", "B-15", b"Host: velox.test", _HOST, "bad_request")
    for label, value in (
        ("COMP-HOST-WITH-USERINFO", b"user@velox.test"),
        ("COMP-HOST-WITH-PATH", b"velox.test/path"),
        ("COMP-HOST-EMPTY-VALUE", b""),
        ("SMUG-MULTIPLE-HOST-COMMA", b"velox.test, other.example.com"),
        ("B-15-QUERY", b"velox.test?x"),
        ("B-15-FRAGMENT", b"velox.test#x"),
        ("B-15-SPACE", b"velox test"),
        ("B-15-PORT-99999", b"velox.test:99999"),
        ("B-15-PORT-NAME", b"velox.test:http"),
        ("B-15-PORT-EMPTY", b"velox.test:"),
        ("B-15-TWO-PORTS", b"velox.test:1:2"),
        ("B-15-OPEN-BRACKET", b"[::1"),
        ("B-15-BACKSLASH", b"velox.test\\x"),
        ("B-15-URL", b"http://velox.test"),
        ("B-15-QUERY-PATH", b"a/x?y="),
        ("B-15-PERCENT", b"velox%2etest"),
    ):
        wire = request(GET, host=b"Host: " + value)
        yield bad(label, "B-15", f"Host: {shown(value)}", _HOST, wire, reason="bad_request")
    for label, value in (
        ("B-15-IPV6", b"[::1]:8080"),
        ("B-15-IPV4", b"127.0.0.1:80"),
        ("B-15-ELSEWHERE", b"other.example.com"),
    ):
        wire = request(GET, host=b"Host: " + value)
        why = "a host that is right; which upstream it is, and its Host, is not the client's choice (R-H1-2)"
        yield good(label, "B-15", f"Host: {shown(value)}", why, wire, seen=_MODELS)


def _limits() -> Iterator[Vector]:
    def over(label: str, what: str, *fields: bytes) -> Vector:
        wire = request(GET, *fields)
        return bad(label, "B-24", what, _SIZE, wire, status=431, reason="header_too_large")

    def fits(label: str, what: str, *fields: bytes) -> Vector:
        pairs = tuple((name.lower(), value) for name, _, value in (field.partition(b": ") for field in fields))
        seen = Seen(b"GET", b"/v1/models", pairs)
        return good(label, "B-24", what, "the limit itself fits", request(GET, *fields), seen=seen)

    yield over("MAL-LONG-HEADER-VALUE", "a value of 100,000 bytes", b"X-Big: " + b"B" * 100_000)
    yield over("MAL-LONG-HEADER-NAME", "a name of 100,000 bytes", b"A" * 100_000 + b": val")
    yield over("MAL-MANY-HEADERS", "10,000 fields", *(b"X-H-%d: value" % n for n in range(10_000)))
    yield over("B-24-101-FIELDS", "101 fields with Host", *(b"X-%d: v" % n for n in range(100)))
    yield fits("B-24-100-FIELDS", "100 fields with Host", *(b"X-%d: v" % n for n in range(99)))
    yield over("B-24-LINE-16385", "a line of 16,385 bytes", _DOT + b"v" * 16_380)
    yield fits("B-24-LINE-16384", "a line of 16,384 bytes", _DOT + b"v" * 16_379)
    lines = [b"X-%02d: %b" % (n, b"v" * 994) for n in range(32)]
    room = 32_768 - len(request(GET, *lines, b"Y: "))
    yield fits("B-24-HEAD-32768", "a head of 32,768 bytes", *lines, b"Y: " + b"v" * room)
    yield over("B-24-HEAD-32769", "a head of 32,769 bytes", *lines, b"Y: " + b"v" * (room + 1))
    counted = "counted while it is read: refused before the head ends (R-H1-6)"
    for label, what, rest in (
        ("R-H1-6-ENDLESS-LINE", "a line that does not end", _DOT + b"v" * 17_000),
        ("R-H1-6-ENDLESS-HEAD", "a head that does not end", b"".join(line + b"\r\n" for line in lines) + b"Y: v" * 400),
    ):
        wire = request(GET)[:-2] + rest
        yield bad(label, "B-24", what, counted, wire, status=431, reason="header_too_large")
    yield over("COOK-OVERSIZED", "a cookie of 64 KiB", b"Cookie: big=" + b"A" * 65_536)


def _connection() -> Iterator[Vector]:
    strip = "a Connection that names what the next hop relies on makes proxies drop it (R-HOP-1)"
    for label, value in (
        ("B-25-AUTHORIZATION", b"authorization, x-forwarded-for"),
        ("B-25-CLOSE-AUTHORIZATION", b"close, Authorization"),
        ("B-25-FORWARDED-PROTO", b"x-forwarded-proto"),
        ("B-25-HOST", b"keep-alive ,\thost"),
        ("B-25-LENGTH", b"content-length"),
        ("B-25-TYPE", b"Content-Type"),
        ("B-25-CODING", b"transfer-encoding"),
        ("B-25-TWO-FIELDS", b"close\r\nConnection: host"),
    ):
        yield _get(label, "B-25", b"Connection: " + value, strip, "bad_request")
    yield _up("B-25-NAMED", "B-25", b"X-A: b\r\nConnection: x-a, X-C\r\nX-C: d\r\nX-E: f", _HOP, (b"x-e", b"f"))
    hops = b"Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nTrailer: X-A"
    hops += b"\r\nProxy-Authorization: Basic eA=="
    yield _up("R-HOP-1-LIST", "B-25", hops, _HOP)
    yield _up("COMP-CONNECTION-CLOSE", "B-14", b"Connection: close", "RFC 9112 §9.6: the last request", closes=True)
    yield _up("B-14-CLOSE-CASE", "B-14", b"connection: foo, CLOSE", "RFC 9112 §9.6: options have no case", closes=True)


def _expect() -> Iterator[Vector]:
    other = "RFC 9110 §10.1.1: an expectation that can't be met is answered by 417"
    for label, field in (
        ("COMP-EXPECT-UNKNOWN", b"Expect: 200-ok"),
        ("B-13-EXPECT-LIST", b"Expect: 100-continue, x"),
        ("B-13-EXPECT-EMPTY", b"Expect:"),
    ):
        yield _get(label, "B-13", field, other, "bad_request", 417)
    twice = b"Expect: 100-continue\r\nExpect: 100-continue"
    yield _get("B-13-EXPECT-TWICE", "B-13", twice, "two readers could each take another", "bad_request")
    ours = "RFC 9110 §10.1.1: 100 is our own, once the head has passed; the field never goes up (R-H1-9)"
    head = request(POST, b"Content-Length: 5", b"Expect: 100-continue")
    yield good("SMUG-EXPECT-100-CL", "B-13", "Expect, the body at once", ours, head + HELLO)
    two = (head + HELLO, Pause.ANSWER, FOLLOW_UP)
    next_ = Seen(b"GET", b"/v1/next")
    yield good("SMUG-EXPECT-100-CL-DESYNC", "B-13", "Expect, the body, a GET", ours, *two, seen=(GOOD, next_))
    yield good("B-13-WAITS", "B-13", "Expect, the body after 100", ours, head, Pause.CONTINUE, HELLO)
    case = request(POST, b"Content-Length: 5", b"Expect: 100-Continue")
    yield good("B-13-CASE", "B-13", "Expect: 100-Continue", ours, case, Pause.CONTINUE, HELLO)
    none = request(GET, b"Expect: 100-continue")
    yield good("B-13-NO-BODY", "B-13", "Expect without a body", "RFC 9110 §10.1.1: no body, no 100", none, seen=_MODELS)
    old = request(b"POST /v1/blobs HTTP/1.0", b"Expect: 100-continue", b"Content-Length: 5", body=HELLO)
    why = "RFC 9110 §15.2: HTTP/1.0 has no 1xx"
    yield good("COMP-NO-1XX-HTTP10", "B-13", "Expect on HTTP/1.0", why, old, closes=True)
    refused = request(POST, b"Content-Length: 99999999999", b"Expect: 100-continue")
    why = "RFC 9110 §10.1.1: no 100 for what is refused"
    yield bad(
        "B-13-TOO-LARGE", "B-13", "Expect, a length over the limit", why, refused, status=413, reason="body_too_large"
    )


def _never_up() -> Iterator[Vector]:
    claims = b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nForwarded: for=1.2.3.4"
    claims += b"\r\nVia: 1.1 x\r\nX-Real-IP: 1.2.3.4"
    yield _up("B-26-FORWARDED", "B-26", claims, _DROPPED)
    yield _up("B-26-VELOX", "B-26", b"X-Velox-Reason: x\r\nX-Velox-Request-Id: y", _DROPPED)
    ids = "[A-Za-z0-9_-]{1,64} goes up; another is dropped, not mended"
    yield _same("B-26-ID", "B-26", b"X-Request-Id: " + b"Az09_-" * 10 + b"abcd", ids)
    for label, value in (
        ("B-26-ID-65", b"a" * 65),
        ("B-26-ID-4-KIB", b"a" * 4096),
        ("B-26-ID-SPACE", b"a b"),
        ("B-26-ID-QUOTE", b'a"b'),
        ("B-26-ID-EMPTY", b""),
    ):
        yield _up(label, "B-26", b"X-Request-Id: " + value, ids)
    split = b"X-Request-Id: a\r\n\tb"
    yield _get("B-26-ID-CRLF", "B-26", split, "RFC 9112 §5.2: no folded lines in requests")
    elsewhere = b"X-Portkey-Custom-Host: http://evil.test\r\nX-Target-Url: http://evil.test"
    data = "data for the upstream; no client chooses where a request goes (R-SSRF-1)"
    pairs = ((b"x-portkey-custom-host", b"http://evil.test"), (b"x-target-url", b"http://evil.test"))
    yield _up("B-29-FIELDS", "B-29", elsewhere, data, *pairs)
    for label, fields in (
        ("COOK-ECHO", b"Cookie: foo=bar"),
        ("COOK-EMPTY", b"Cookie: "),
        ("COOK-MANY-PAIRS", b"Cookie: " + b"; ".join(b"k%d=v%d" % (n, n) for n in range(1000))),
        ("COOK-MALFORMED", b"Cookie: ===;;;"),
        ("COOK-MULTI-HEADER", b"Cookie: a=1\r\nCookie: b=2"),
        ("COOK-PARSED-BASIC", b"Cookie: foo=bar; Path=/"),
        ("COOK-PARSED-MULTI", b"Cookie: a=1; b=2; c=3"),
        ("COOK-PARSED-EMPTY-VAL", b"Cookie: foo="),
        ("COOK-PARSED-SPECIAL", b"Cookie: a=!#$%&'()*+-./:<=>?@[]^_`{}~"),
    ):
        yield _up(label, "B-26", fields, "R-SEC-1: cookies are the client's own; none goes up")
    for label, value in (("COOK-NUL", b"foo=\x00bar"), ("COOK-CONTROL-CHARS", b"foo=\x01\x02\x03")):
        yield _get(label, "B-6", b"Cookie: " + value, _VALUE)


def _passing() -> Iterator[Vector]:
    for label, field in (
        ("COMP-ACCEPT-NONSENSE", b"Accept: application/x-nonsense"),
        ("COMP-RANGE-INVALID", b"Range: bytes=abc-xyz"),
        ("MAL-RANGE-OVERLAPPING", b"Range: bytes=" + b"0-," * 500 + b"0-"),
        ("CAP-ETAG-304", b'If-None-Match: "a"'),
        ("CAP-ETAG-IN-304", b'If-None-Match: "b"'),
        ("CAP-ETAG-WEAK", b'If-None-Match: W/"a"'),
        ("CAP-INM-WILDCARD", b"If-None-Match: *"),
        ("CAP-INM-UNQUOTED", b"If-None-Match: a"),
        ("CAP-LAST-MODIFIED-304", b"If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT"),
        ("CAP-IMS-FUTURE", b"If-Modified-Since: Sun, 06 Nov 2094 08:49:37 GMT"),
        ("CAP-IMS-INVALID", b"If-Modified-Since: not-a-date"),
    ):
        yield _same(label, "B-6", field, _PASSES)
    both = b'If-None-Match: "a"\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT'
    pairs = ((b"if-none-match", b'"a"'), (b"if-modified-since", b"Sun, 06 Nov 1994 08:49:37 GMT"))
    yield _up("CAP-INM-PRECEDENCE", "B-6", both, _PASSES, *pairs)
    range_ = Seen(b"POST", b"/v1/blobs", ((b"range", b"bytes=0-10"),), HELLO)
    wire = hello(b"Content-Length: 5", b"Range: bytes=0-10")
    yield good("COMP-RANGE-POST", "B-6", "POST with a Range", _PASSES, wire, seen=range_)


def _keys() -> Iterator[Vector]:
    secret = KEY.encode()
    two = "two readers could each take another one"
    wire = request(GET, b"Authorization: Bearer " + secret, b"Authorization: Bearer x")
    yield bad("B-27-TWO", "B-27", "two Authorization fields", two, wire, reason="bad_request", door=Door.KEYED)
    wire = request(GET, b"Authorization: Bearer \xc3\xa9")
    yield bad("B-27-HIGH", "B-27", "a bearer beyond ASCII", _VALUE, wire, door=Door.KEYED)
    why = "RFC 9110 §15.5.2: 401, with the same words whatever was wrong (R-AUTH-2)"
    for label, what, line, reason in (
        ("B-27-NONE", "no key", b"GET /v1/models HTTP/1.1", "auth_invalid"),
        (
            "B-27-QUERY",
            "a key in the query",
            b"GET /v1/models?api_key=%b&key=%b HTTP/1.1" % (secret, secret),
            "auth_invalid",
        ),
    ):
        yield bad(label, "B-27", what, why, request(line), status=401, reason=reason, closes=False, door=Door.KEYED)
    for label, value, reason in (
        ("B-27-9-KIB", b"Bearer " + b"k" * 9216, "auth_invalid"),
        ("B-27-SCHEME-ONLY", b"Bearer", "auth_invalid"),
        ("B-27-OTHER-SCHEME", b"Basic " + secret, "auth_invalid"),
        ("B-27-WRONG", b"Bearer wrong", "auth_invalid"),
        ("B-27-LONGER", b"Bearer " + secret + b"x", "auth_invalid"),
        ("B-27-SHORTER", b"Bearer " + secret[:-1], "auth_invalid"),
    ):
        what, wire = f"Authorization: {shown(value.replace(secret, b'KEY'))}", request(GET, b"Authorization: " + value)
        yield bad(label, "B-27", what, why, wire, status=401, reason=reason, closes=False, door=Door.KEYED)
    why = "R-SEC-1: a key of ours never goes up"
    wire = request(GET, b"Authorization: Bearer " + secret)
    yield good("B-27-RIGHT", "B-27", "the right key", why, wire, seen=_MODELS, door=Door.KEYED)


def _admin_paths() -> Iterator[Vector]:
    why = "what is the admin listener's is not served, and not passed on, by this one"
    for name, path in (("METRICS", b"/metrics"), ("PPROF", b"/debug/pprof/profile"), ("ADMIN", b"/admin")):
        wire = request(b"GET %b HTTP/1.1" % path)
        yield bad(
            f"B-52-{name}", "B-52", f"GET {path.decode()}", why, wire, status=404, reason="unknown_route", closes=False
        )


VECTORS: Final = (
    *_baselines(),
    *_syntax(),
    *_hosts(),
    *_limits(),
    *_connection(),
    *_expect(),
    *_never_up(),
    *_passing(),
    *_keys(),
    *_admin_paths(),
)
