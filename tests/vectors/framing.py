"""Vectors of where a body ends: Content-Length, Transfer-Encoding, both, and bodies where none is usual.

Knows: requests whose end two servers could see in two places. Does not know: chunks (chunks.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.vectors.vector import (
    CHUNKED,
    FOLLOW_UP,
    GET,
    HELLO,
    POST,
    SMUGGLED,
    Door,
    Pause,
    Seen,
    Vector,
    bad,
    bad_field,
    good,
    hello,
    passed,
    refused,
    request,
    shown,
)

__all__ = ["VECTORS"]

_BOTH: Final = "RFC 9112 §6.1: a length beside a transfer coding is how requests are smuggled"
_DIGITS: Final = "RFC 9110 §8.6: Content-Length = 1*DIGIT"
_LIST: Final = "RFC 9110 §8.6: one value, even if a list repeats it"
_CODING: Final = "RFC 9112 §6.1: only `chunked` is known, spelled as one token"
_NO_CONTENT: Final = "RFC 9110 §9.3: content of this method has no meaning; one that skips it reads it as a request"
_OWS: Final = "RFC 9110 §5.5 strips it; a server in front that does not would see another body, so it is refused"
_END: Final = b"0\r\n\r\n"
_LEN: Final = b"Content-Length: 5"


def _length(label: str, row: str, value: bytes, why: str = _DIGITS, body: bytes = HELLO) -> Vector:
    return bad_field(label, row, b"Content-Length: " + value, why, body=body)


def _coding(label: str, value: bytes, why: str = _CODING, status: int = 400) -> Vector:
    """A coding beside a length, so that a server that overlooks it reads on."""
    return bad_field(label, "B-4", b"Transfer-Encoding: %b\r\nContent-Length: 5" % value, why, status=status)


def _alone(label: str, value: bytes, why: str = _CODING, status: int = 400) -> Vector:
    return bad_field(label, "B-4", b"Transfer-Encoding: " + value, why, status=status, body=b"5\r\nhello\r\n" + _END)


def _carrying(label: str, row: str, *fields: bytes, body: bytes = _END + SMUGGLED, why: str = _BOTH) -> Vector:
    """A whole request inside a body, for those who end it early. `%d` in a field is the body's length."""
    filled = b"\r\n".join(fields).replace(b"%d", b"%d" % len(body))
    return bad(label, row, f"{shown(filled)}, a GET in the body", why, request(POST, filled, body=body))


def _with_content(label: str, method: bytes, *after: bytes | Pause, body: bytes = HELLO) -> Vector:
    wire = request(method + b" /v1/blobs HTTP/1.1", b"Content-Length: %d" % len(body), body=body)
    answer = refused(400, reason="bad_request", has_body=method != b"HEAD")
    what = f"{method.decode()} with the body {shown(body)}" + (", then a GET" if after else "")
    return Vector(label, "B-12", what, _NO_CONTENT, (wire, *after), (answer,), closes=True)


def _both() -> Iterator[Vector]:
    chunks = b"D\r\nhello-bananas\r\n" + _END
    yield bad_field("SMUG-CL-TE-BOTH", "B-1", b"Content-Length: 23\r\n" + CHUNKED, _BOTH, body=chunks)
    yield bad_field("SMUG-CLTE-PIPELINE", "B-1", b"Content-Length: 4\r\n" + CHUNKED, _BOTH, body=_END)
    yield bad_field("SMUG-TECL-PIPELINE", "B-1", CHUNKED + b"\r\nContent-Length: 30", _BOTH, body=_END)
    for label, fields in {
        "SMUG-CLTE-CONN-CLOSE": _LEN + b"\r\n" + CHUNKED,
        "SMUG-TECL-CONN-CLOSE": CHUNKED + b"\r\n" + _LEN,
    }.items():
        wire = request(POST, fields, body=_END)
        yield bad(label, "B-1", f"{shown(fields)}, then a GET", _BOTH, wire, Pause.ANSWER, FOLLOW_UP)
    for label, fields in {
        "SMUG-CLTE-DESYNC": b"Content-Length: 6\r\n" + CHUNKED,
        "SMUG-TECL-DESYNC": CHUNKED + b"\r\nContent-Length: 30",
    }.items():
        wire = request(POST, fields, body=_END + b"X")
        yield bad(label, "B-1", f"{shown(fields)}, one byte too many, a GET", _BOTH, wire, Pause.ANSWER, FOLLOW_UP)
    yield _carrying("SMUG-CLTE-SMUGGLED-GET", "B-1", b"Content-Length: %d", CHUNKED)
    head = SMUGGLED.replace(b"GET", b"HEAD")
    yield _carrying("SMUG-CLTE-SMUGGLED-HEAD", "B-1", b"Content-Length: %d", CHUNKED, body=_END + head)
    yield _carrying("SMUG-CLTE-SMUGGLED-GET-CL-PLUS", "B-1", b"Content-Length: +%d", CHUNKED)
    yield _carrying("SMUG-CLTE-SMUGGLED-GET-CL-NON-NUMERIC", "B-1", b"Content-Length: %dx", CHUNKED)
    yield _carrying(
        "SMUG-CLTE-SMUGGLED-GET-TE-OBS-FOLD", "B-1", b"Transfer-Encoding:\r\n chunked\r\nContent-Length: %d"
    )
    yield _carrying("SMUG-CLTE-SMUGGLED-GET-TE-TRAILING-SPACE", "B-1", b"Content-Length: %d", CHUNKED + b" ")
    comma = b"Transfer-Encoding: , chunked"
    yield _carrying("SMUG-CLTE-SMUGGLED-GET-TE-LEADING-COMMA", "B-1", b"Content-Length: %d", comma)
    case = b"Transfer-Encoding: Chunked"
    yield _carrying("SMUG-CLTE-SMUGGLED-GET-TE-CASE-MISMATCH", "B-1", b"Content-Length: %d", case)
    twice = (CHUNKED, b"Transfer-Encoding: identity", b"Content-Length: %d")
    yield _carrying("SMUG-TE-DUPLICATE-HEADERS-SMUGGLED-GET", "B-4", *twice)
    inner = SMUGGLED[:-2] + b"Content-Length: 7\r\n\r\n"
    in_chunk = b"%x\r\n%b\r\n%b" % (len(inner), inner, _END)
    yield _carrying("SMUG-TECL-SMUGGLED-GET", "B-1", CHUNKED, b"Content-Length: 4", body=in_chunk)
    two = (b"Content-Length: 4", b"Content-Length: %d")
    yield _carrying("SMUG-DUPLICATE-CL-SMUGGLED-GET", "B-2", *two, body=b"PING" + SMUGGLED, why=_LIST)


def _lengths() -> Iterator[Vector]:
    ten = b"helloworld"
    yield bad_field("SMUG-DUPLICATE-CL", "B-2", _LEN + b"\r\nContent-Length: 10", _LIST, body=ten)
    yield bad_field("B-2-SAME", "B-2", _LEN + b"\r\n" + _LEN, _LIST)
    yield bad_field("B-2-APART", "B-2", _LEN + b"\r\nX-A: b\r\ncontent-length: 6", _LIST)
    yield _length("SMUG-CL-COMMA-DIFFERENT", "B-2", b"5, 10", _LIST)
    yield _length("SMUG-CL-COMMA-SAME", "B-2", b"5, 5", _LIST)
    yield _length("SMUG-CL-COMMA-TRIPLE", "B-2", b"5, 5, 5", _LIST)
    yield _length("B-2-COMMA-EMPTY", "B-2", b"5,", _LIST)
    zeros = "RFC 9110 §8.6 allows it, but some read a leading zero as octal: a second spelling is refused"
    for label, value, body in (
        ("SMUG-CL-LEADING-ZEROS", b"005", HELLO),
        ("SMUG-CL-DOUBLE-ZERO", b"00", b""),
        ("SMUG-CL-LEADING-ZEROS-OCTAL", b"0200", b"A" * 200),
    ):
        yield _length(label, "B-3", value, zeros, body)
    for label, value, body in (
        ("SMUG-CL-NEGATIVE", b"-1", b""),
        ("SMUG-CL-NEGATIVE-ZERO", b"-0", b""),
        ("SMUG-CL-UNDERSCORE", b"1_0", ten),
        ("SMUG-CL-OCTAL", b"0o5", HELLO),
        ("SMUG-CL-HEX-PREFIX", b"0x5", HELLO),
        ("SMUG-CL-INTERNAL-SPACE", b"1 0", ten),
        ("RFC9112-6.1-CL-NON-NUMERIC", b"abc", b""),
        ("RFC9112-6.1-CL-PLUS-SIGN", b"+5", HELLO),
        ("MAL-CL-EMPTY", b"", HELLO),
        ("MAL-CL-OVERFLOW", b"99999999999999999999", b""),
        ("B-3-EXPONENT", b"1e1", ten),
        ("B-3-POINT", b"5.0", HELLO),
        ("B-3-SEMICOLON", b"5;", HELLO),
        ("B-3-QUOTED", b'"5"', HELLO),
        ("B-3-WRAPS-32-BITS", b"4294967301x", HELLO),
        ("B-3-WRAPS-64-BITS", b"18446744073709551621", HELLO),
        ("B-3-40-DIGITS", b"9" * 40, b""),
        ("B-3-VTAB", b"\x0b5", HELLO),
        ("B-3-FULLWIDTH", "\uff15".encode(), HELLO),
        ("B-3-NUL", b"5\x00", HELLO),
    ):
        yield _length(label, "B-3", value, body=body)
    for label, line in (
        ("SMUG-CL-TRAILING-SPACE", b"Content-Length: 5 "),
        ("SMUG-CL-EXTRA-LEADING-SP", b"Content-Length:  5"),
        ("MAL-CL-TAB-BEFORE-VALUE", b"Content-Length:\t5"),
        ("B-3-TAB-AFTER", b"Content-Length: 5\t"),
    ):
        yield bad_field(label, "B-3", line, _OWS)
    plain = "RFC 9112 §5: the space before a value is optional, and names have no case"
    for label, line in (("B-3-NO-SPACE", b"Content-Length:5"), ("B-3-CASE", b"cONTENT-lENGTH: 5")):
        yield good(label, "B-3", shown(line), plain, hello(line))


def _codings() -> Iterator[Vector]:
    yield _coding("SMUG-TE-XCHUNKED", b"xchunked")
    yield _coding("SMUG-TE-TRAILING-SPACE", b"chunked ", _BOTH)
    yield bad_field("SMUG-TE-SP-BEFORE-COLON", "B-4", b"Transfer-Encoding : chunked\r\n" + _LEN, "RFC 9112 §5.1")
    yield _coding("SMUG-TE-DOUBLE-CHUNKED", b"chunked, chunked", "RFC 9112 §6.1: chunked is applied once")
    yield _coding("SMUG-TE-CASE-MISMATCH", b"Chunked", _BOTH)
    yield _coding("SMUG-TE-EMPTY-VALUE", b"")
    yield _coding("SMUG-TE-LEADING-COMMA", b", chunked")
    yield _coding("SMUG-TE-TRAILING-COMMA", b"chunked,")
    yield _coding("SMUG-TE-DUPLICATE-HEADERS", b"chunked\r\nTransfer-Encoding: identity")
    yield _coding("SMUG-TE-IDENTITY", b"identity")
    yield _coding("SMUG-TE-VTAB", b"\x0bchunked", "RFC 9110 §5.5: no control characters in values")
    yield _coding("SMUG-TE-FORMFEED", b"\x0cchunked", "RFC 9110 §5.5: no control characters in values")
    yield _coding("SMUG-TE-NULL", b"chunked\x00", "RFC 9110 §5.5: NUL ends a string for some")
    yield _coding("SMUG-TE-OBS-FOLD", b"\r\n chunked", "RFC 9112 §5.2: no folded lines in requests")
    yield _coding("SMUG-TE-TAB-BEFORE-VALUE", b"\tchunked", _BOTH)
    yield _coding("SMUG-CHUNKED-WITH-PARAMS", b"chunked;ext=val")
    not_last = "RFC 9112 §6.3: chunked must be the last coding of a request"
    yield _alone("SMUG-TE-NOT-FINAL-CHUNKED", b"chunked, gzip", not_last)
    yield _alone("COMP-UNKNOWN-TE-501", b"gzip", not_last)
    unknown = "RFC 9112 §6.1: a coding that is not understood is answered by 501"
    yield _alone("B-4-GZIP-CHUNKED", b"gzip, chunked", unknown, 501)
    yield _alone("B-4-COMMA-CHUNKED", b",chunked", status=501)
    yield _alone("B-4-IDENTITY-CHUNKED", b"identity, chunked", unknown, 501)
    for label, value in (
        ("B-4-XCHUNKED", b"xchunked"),
        ("B-4-PARAMS", b"chunked;p=1"),
        ("B-4-QUOTED", b'"chunked"'),
        ("B-4-VTAB-AFTER", b"chunked\x0b"),
        ("B-4-FORMFEED-AFTER", b"chunked\x0c"),
        ("B-4-NBSP", b"chunked\xa0"),
        ("B-4-TWICE", b"chunked\r\nTransfer-Encoding: chunked"),
        ("B-4-KELVIN", "chun\u212aed".encode()),
        ("B-4-CHUNK", b"chunk"),
        ("B-4-SPACE-AFTER", b"chunked "),
        ("B-4-TAB-AFTER", b"chunked\t"),
        ("B-4-TWO-SPACES", b" chunked"),
    ):
        yield _alone(label, value)
    old = "RFC 9112 §6.1: HTTP/1.0 has no transfer codings; the framing is faulty"
    on_1_0 = request(b"POST /v1/blobs HTTP/1.0", CHUNKED, _LEN, body=HELLO)
    yield bad("SMUG-TE-HTTP10", "B-4", "Transfer-Encoding and a length on HTTP/1.0", old, on_1_0)
    alone = request(b"POST /v1/blobs HTTP/1.0", CHUNKED, body=_END)
    yield bad("B-4-HTTP10", "B-4", "Transfer-Encoding on HTTP/1.0", old, alone)


def _names() -> Iterator[Vector]:
    gone = "CGI reads `_` as `-`: the field frames nothing here, and never goes up (R-H1-7)"
    line = b"Transfer_Encoding: chunked\r\n" + _LEN
    yield good("SMUG-TRANSFER_ENCODING", "B-5", shown(line), gone, hello(line))
    wire = request(POST, b"Content-Length: 11", b"Content_Length: 99", body=b"hello world")
    seen = Seen(b"POST", b"/v1/blobs", (), b"hello world")
    yield good("NORM-UNDERSCORE-CL", "B-5", "Content_Length: 99 beside Content-Length: 11", gone, wire, seen=seen)
    rest = request(POST, b"Transfer_Encoding: chunked", body=b"B\r\nhello world\r\n0\r\n\r\n")
    answers = (passed(Seen(b"POST", b"/v1/blobs")), refused(400))
    what = "Transfer_Encoding: chunked alone: no body; what follows is no request"
    yield Vector("NORM-UNDERSCORE-TE", "B-5", what, gone, (rest,), answers, closes=True)
    name = "RFC 9112 §5.1: a name is a token, and nothing stands between it and its colon"
    twice = b"Content-Length: 11\r\nContent-Length : 5"
    yield bad_field("NORM-SP-BEFORE-COLON-CL", "B-6", twice, name, body=b"hello world")
    tab = b"Content-Length: 11\r\nContent\tLength: 99"
    yield bad_field("NORM-TAB-IN-NAME", "B-6", tab, name, body=b"hello world")
    upper = request(POST, b"TRANSFER-ENCODING: chunked", body=b"B\r\nhello world\r\n0\r\n\r\n")
    why = "RFC 9110 §5.1: names have no case; the coding ends here and a length goes up"
    yield good("NORM-CASE-TE", "B-5", "TRANSFER-ENCODING: chunked", why, upper, seen=seen)
    for label, fields in (
        ("B-5-DOT", b"Content.Length: 99\r\n" + _LEN),
        ("B-5-PREFIX", b"X-Content-Length: 99\r\n" + _LEN),
    ):
        name_, _, value = fields.partition(b"\r\n")[0].partition(b": ")
        seen_ = Seen(b"POST", b"/v1/blobs", ((name_.lower(), value),), HELLO)
        yield good(
            label, "B-5", shown(fields), "RFC 9110 §5.1: another name, which frames nothing", hello(fields), seen=seen_
        )


def _content() -> Iterator[Vector]:
    yield _with_content("COMP-GET-WITH-CL-BODY", b"GET")
    yield _with_content("SMUG-HEAD-CL-BODY", b"HEAD")
    yield _with_content("SMUG-OPTIONS-CL-BODY", b"OPTIONS")
    then = (Pause.ANSWER, FOLLOW_UP)
    yield _with_content("SMUG-GET-CL-BODY-DESYNC", b"GET", *then)
    yield _with_content("SMUG-OPTIONS-CL-BODY-DESYNC", b"OPTIONS", *then)
    rest = (Pause.ANSWER, b"\r\n" + FOLLOW_UP)
    yield _with_content("SMUG-GET-CL-PREFIX-DESYNC", b"GET", *rest, body=SMUGGLED[:-2])
    yield _with_content("B-12-GET-BODY-IS-A-REQUEST", b"GET", body=SMUGGLED)
    yield _with_content("B-12-HEAD-BODY-IS-A-REQUEST", b"HEAD", body=SMUGGLED)
    fold = request(b"OPTIONS /v1/blobs HTTP/1.1", b"Transfer-Encoding:\r\n chunked", _LEN, body=HELLO)
    yield bad("SMUG-OPTIONS-TE-OBS-FOLD", "B-12", "OPTIONS, folded coding, length", "RFC 9112 §5.2", fold, *then)
    for method in (b"GET", b"OPTIONS"):
        wire = request(method + b" /v1/blobs HTTP/1.1", CHUNKED, body=b"5\r\nhello\r\n" + _END)
        what = f"{method.decode()} with a body in chunks"
        yield bad(f"B-12-{method.decode()}-CHUNKED", "B-12", what, _NO_CONTENT, wire, reason="bad_request")
    wire = request(b"DELETE /v1/blobs/1 HTTP/1.1", _LEN, body=HELLO) + request(GET)
    seen = (Seen(b"DELETE", b"/v1/blobs/1", (), HELLO), Seen(b"GET", b"/v1/models"))
    why = "RFC 9110 §9.3.5: APIs do use it; it is read to its end, and a request behind it is the next one"
    yield good("B-12-DELETE-BODY", "B-12", "DELETE with a body, then a GET", why, wire, seen=seen)
    empty = request(GET, b"Content-Length: 0")
    why = "RFC 9110 §8.6: a length of 0 is no body"
    yield good("B-12-GET-CL-ZERO", "B-12", "GET with Content-Length: 0", why, empty, seen=Seen(b"GET", b"/v1/models"))
    zero = (request(POST, b"Content-Length: 0", body=b"X"), Pause.ANSWER, FOLLOW_UP)
    answers = (passed(Seen(b"POST", b"/v1/blobs")), refused(405, reason="method_not_allowed"))
    why = "RFC 9112 §6.3: the body is empty; the byte after it begins the next request, `XGET`"
    yield Vector(
        "SMUG-CL0-BODY-POISON", "B-12", "POST of no byte and one byte more, a GET", why, zero, answers, closes=True
    )
    why = "RFC 9112 §9.3: two requests on a connection are two requests"
    two = (request(GET), Pause.ANSWER, request(GET))
    models = Seen(b"GET", b"/v1/models")
    yield good("SMUG-PIPELINE-SAFE", "B-12", "two GETs, one after the other", why, *two, seen=(models, models))


def _lengths_that_wait() -> Iterator[Vector]:
    """Bodies that do not come to their end."""
    short = "RFC 9112 §6.3: a body that is not whole is no request; the wait has an end"
    ten = request(POST, b"Content-Length: 10", body=HELLO)
    late = {"COMP-POST-CL-UNDERSEND": ("5 of 10 bytes", ten)}
    late["COMP-CHUNKED-NO-FINAL"] = ("chunks without the last one", request(POST, CHUNKED, body=b"5\r\nhello\r\n"))
    late["B-40-NO-BYTE"] = ("none of 10 bytes", request(POST, b"Content-Length: 10"))
    for label, (what, wire) in late.items():
        yield bad(label, "B-40", what, short, wire, status=408, reason="body_timeout", door=Door.TIGHT)
    huge = request(POST, b"Content-Length: 999999999")
    why = "RFC 9110 §15.5.14: over the limit, so no byte of it is waited for"
    what = "Content-Length: 999999999, no body"
    yield bad("MAL-POST-CL-HUGE-NO-BODY", "B-40", what, why, huge, status=413, reason="body_too_large")
    over = request(POST, b"Content-Length: 1001", body=b"x" * 1001)
    yield bad(
        "B-40-OVER-BY-LENGTH",
        "B-40",
        "1,001 of 1,000 bytes",
        why,
        over,
        status=413,
        reason="body_too_large",
        door=Door.TIGHT,
    )
    full = Seen(b"POST", b"/v1/blobs", (), b"x" * 1000)
    why = "the limit itself fits"
    yield good(
        "B-40-AT-LIMIT",
        "B-40",
        "1,000 of 1,000 bytes",
        why,
        request(POST, b"Content-Length: 1000", body=b"x" * 1000),
        seen=full,
        door=Door.TIGHT,
    )
    why = "RFC 9110 §15.5.14: refused at the byte that is too many, announced by no length"
    chunks = request(POST, CHUNKED, body=b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n")
    yield bad(
        "B-40-OVER-BY-CHUNKS",
        "B-40",
        "1,000 bytes, then a chunk of one",
        why,
        chunks,
        status=413,
        reason="body_too_large",
        door=Door.TIGHT,
    )
    at = request(POST, CHUNKED, body=b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n")
    yield good(
        "B-40-AT-LIMIT-CHUNKED",
        "B-40",
        "1,000 bytes in a chunk",
        "the limit itself fits",
        at,
        seen=full,
        door=Door.TIGHT,
    )


VECTORS: Final = (*_both(), *_lengths(), *_codings(), *_names(), *_content(), *_lengths_that_wait())
