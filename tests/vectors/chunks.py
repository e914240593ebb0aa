"""Vectors of bodies in chunks: sizes, extensions, data, trailers, and how much of them may be framing.

Knows: RFC 9112 §7.1 and what servers make of its edges. Does not know: lengths (framing.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.vectors.vector import (
    FOLLOW_UP,
    POST,
    Pause,
    Seen,
    Vector,
    bad,
    bad_chunks,
    chunked,
    good,
    request,
    shown,
)

__all__ = ["VECTORS"]

_SIZE: Final = "RFC 9112 §7.1: chunk-size = 1*HEXDIG, and nothing around it"
_EXT: Final = "RFC 9112 §7.1.1: `;` name [= value], of tokens or a quoted string"
_DATA: Final = "RFC 9112 §7.1: exactly chunk-size bytes, then CRLF"
_LF: Final = "RFC 9112 §2.2: a lone LF may end a line for some, so it ends none"
_CR: Final = "RFC 9112 §2.2: a bare CR is invalid"
_TRAILER: Final = "RFC 9110 §6.5.1: trailers are read and dropped; none frames, routes or authorises"
_OVERHEAD: Final = "framing is at most 16 KiB and an eighth of the body: CPU is not for sale by the byte (R-H1-5)"
_HELLO: Final = b"5\r\nhello\r\n0\r\n\r\n"


def _ok(label: str, row: str, body: bytes, why: str, seen: bytes = b"hello") -> Vector:
    return good(label, row, f"body {shown(body)}", why, chunked(body), seen=Seen(b"POST", b"/v1/blobs", (), seen))


def _sizes() -> Iterator[Vector]:
    for label, size, data in (
        ("SMUG-CHUNK-UNDERSCORE", b"1_0", b"hello world!!!!!"),
        ("SMUG-CHUNK-HEX-PREFIX", b"0x5", b"hello"),
        ("SMUG-CHUNK-SIZE-PLUS", b"+5", b"hello"),
        ("SMUG-CHUNK-SIZE-TRAILING-OWS", b"5 ", b"hello"),
        ("SMUG-CHUNK-LEADING-SP", b" 5", b"hello"),
        ("SMUG-CHUNK-NEGATIVE", b"-1", b"hello"),
        ("MAL-CHUNK-SIZE-OVERFLOW", b"FFFFFFFFFFFFFFFFF", b"hello"),
        ("B-8-EMPTY", b"", b"hello"),
        ("B-8-HASH", b"#5", b"hello"),
        ("B-8-TAB", b"\t5", b"hello"),
        ("B-8-DECIMAL", b"5.", b"hello"),
        ("B-8-QUOTED", b'"5"', b"hello"),
        ("B-8-WRAPS-64-BITS", b"10000000000000005", b"hello"),
        ("B-8-LETTER", b"g", b"hello"),
        ("B-8-NUL", b"5\x00", b"hello"),
        ("B-8-FULLWIDTH", "\uff15".encode(), b"hello"),
        ("B-8-COMMA", b"5,5", b"hello"),
    ):
        yield bad_chunks(label, "B-8", b"%b\r\n%b\r\n0\r\n\r\n" % (size, data), _SIZE)
    too_large = b"7FFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n"
    why = "RFC 9110 §15.5.14: the size alone is over the limit"
    yield bad_chunks("B-8-HUGE", "B-8", too_large, why, status=413, reason="body_too_large")
    yield bad_chunks("SMUG-CHUNK-BARE-CR-TERM", "B-8", b"5\rhello\r\n0\r\n\r\n", _CR)
    wire = chunked(b"+0\r\n\r\nX")
    what = "size +0, one byte too many, a GET"
    yield bad("SMUG-CHUNK-INVALID-SIZE-DESYNC", "B-8", what, _SIZE, wire, Pause.ANSWER, FOLLOW_UP)
    yield _ok("B-8-LEADING-ZEROS", "B-8", b"0005\r\nhello\r\n00\r\n\r\n", "RFC 9112 §7.1: 1*HEXDIG allows them")
    yield bad_chunks(
        "B-8-17-DIGITS", "B-8", b"00000000000000005\r\nhello\r\n0\r\n\r\n", "over 64 bits' worth of digits"
    )


def _extensions() -> Iterator[Vector]:
    for label, ext, why in (
        ("SMUG-CHUNK-BARE-SEMICOLON", b";", _EXT),
        ("SMUG-CHUNK-EXT-INVALID-TOKEN", b";bad[=x", _EXT),
        ("SMUG-CHUNK-EXT-CTRL", b";\x00ext", _EXT),
        ("SMUG-CHUNK-EXT-CR", b";a\rX", _CR),
        ("MAL-CHUNK-EXT-64K", b";ext=" + b"A" * 65536, "a size line is at most 256 bytes (R-H1-5)"),
        ("B-9-257-BYTES", b";a=" + b"x" * 253, "a size line is at most 256 bytes (R-H1-5)"),
        ("B-9-NO-VALUE", b";a=", _EXT),
        ("B-9-SPACE", b" ;a=b", "RFC 9112 §7.1.1: white space here is for bad senders only (BWS)"),
        ("B-9-SPACE-AFTER", b"; a=b", "RFC 9112 §7.1.1: white space here is for bad senders only (BWS)"),
        ("B-9-OPEN-QUOTE", b';a="b', _EXT),
        ("B-9-QUOTED-CR", b';a="\r"', _CR),
        ("B-9-HIGH", b";a=\xe9", _EXT),
    ):
        yield bad_chunks(label, "B-9", b"5%b\r\nhello\r\n0\r\n\r\n" % ext, why)
    yield bad_chunks("SMUG-CHUNK-EXT-LF", "B-9", b"5;\nhello\r\n0\r\n\r\n", _LF)
    yield bad_chunks("B-9-LF-IN-EXT", "B-9", b"5;a\nb\r\nhello\r\n0\r\n\r\n", _LF)
    gone = "RFC 9112 §7.1.1: a recipient ignores what it does not know; it ends at this hop"
    yield _ok("COMP-CHUNKED-EXTENSION", "B-9", b"5;ext=value\r\nhello\r\n0\r\n\r\n", gone)
    yield _ok("B-9-QUOTED", "B-9", b'5;a="b;\\"c"\r\nhello\r\n0;last\r\n\r\n', gone)
    yield _ok("B-9-256-BYTES", "B-9", b"5;a=%b\r\nhello\r\n0\r\n\r\n" % (b"x" * 252), gone)


def _data() -> Iterator[Vector]:
    yield bad_chunks("SMUG-CHUNK-MISSING-TRAILING-CRLF", "B-10", b"5\r\nhello0\r\n\r\n", _DATA)
    yield bad_chunks("SMUG-CHUNK-SPILL", "B-10", b"5\r\nhello!!\r\n0\r\n\r\n", _DATA)
    yield bad_chunks("SMUG-CHUNK-LF-TERM", "B-10", b"5\r\nhello\n0\r\n\r\n", _LF)
    yield bad_chunks("B-10-CR-TERM", "B-10", b"5\r\nhello\r0\r\n\r\n", _CR)
    yield bad_chunks("B-10-LF-AFTER-SIZE", "B-10", b"5\nhello\r\n0\r\n\r\n", _LF)
    yield bad_chunks("B-10-SHORT", "B-10", b"5\r\nhell\r\n0\r\n\r\n", _DATA)
    yield bad_chunks("B-10-CR-CR-LF", "B-10", b"5\r\nhello\r\r\n0\r\n\r\n", _CR)
    whole = "RFC 9112 §7.1: the coding ends here, and the body goes up with its length"
    yield _ok("COMP-CHUNKED-BODY", "B-10", _HELLO, whole)
    yield _ok("COMP-CHUNKED-MULTI", "B-10", b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", whole, b"hello world")
    yield _ok("COMP-CHUNKED-EMPTY", "B-10", b"0\r\n\r\n", whole, b"")
    yield _ok("COMP-CHUNKED-HEX-UPPERCASE", "B-10", b"A\r\nhelloworld\r\n0\r\n\r\n", whole, b"helloworld")
    inner = b"0\r\n\r\nGET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)
    yield _ok("B-10-REQUEST-AS-DATA", "B-10", body, "data is data, whatever it looks like", inner)
    cased = request(POST, b"tRANSFER-eNCODING: cHUNKED", body=_HELLO)
    yield good("B-10-CASE", "B-10", "tRANSFER-eNCODING: cHUNKED", "RFC 9112 §7: codings have no case", cased)


def _trailers() -> Iterator[Vector]:
    for label, line in (
        ("SMUG-TRAILER-CL", b"Content-Length: 50"),
        ("SMUG-TRAILER-TE", b"Transfer-Encoding: chunked"),
        ("SMUG-TRAILER-HOST", b"Host: evil.example.com"),
        ("SMUG-TRAILER-AUTH", b"Authorization: Bearer evil"),
        ("SMUG-TRAILER-CONTENT-TYPE", b"Content-Type: text/evil"),
        ("COMP-CHUNKED-TRAILER-VALID", b"X-Checksum: abc"),
        ("B-11-FORWARDED", b"X-Forwarded-For: 127.0.0.1"),
        ("B-11-CONNECTION", b"Connection: close"),
        ("B-11-EXPECT", b"Expect: 100-continue"),
    ):
        yield _ok(label, "B-11", b"5\r\nhello\r\n0\r\n%b\r\n\r\n" % line, _TRAILER)
    field = "RFC 9112 §5: a trailer is a field line"
    yield bad_chunks("SMUG-CHUNK-LF-TRAILER", "B-11", b"5\r\nhello\r\n0\r\n\n", _LF)
    for label, line, why in (
        ("B-11-NO-COLON", b"x", field),
        ("B-11-SPACE-BEFORE-COLON", b"x : y", field),
        ("B-11-FOLDED", b"x: y\r\n z", "RFC 9112 §5.2: no folded lines"),
        ("B-11-CR", b"x: a\rb", _CR),
        ("B-11-NUL", b"x: a\x00b", field),
        ("B-11-HIGH", b"x: \xe9", field),
        ("B-11-EMPTY-NAME", b": y", field),
        ("B-11-REQUEST-LINE", b"GET /v1/smuggled HTTP/1.1", field),
    ):
        yield bad_chunks(label, "B-11", b"5\r\nhello\r\n0\r\n%b\r\n\r\n" % line, why)
    many = b"5\r\nhello\r\n0\r\n" + b"x: y\r\n" * 3000 + b"\r\n"
    yield bad_chunks("B-11-18-KIB", "B-11", many, _OVERHEAD)
    long = b"5\r\nhello\r\n0\r\nx: " + b"y" * 20_000 + b"\r\n\r\n"
    yield bad_chunks("B-11-LONG-LINE", "B-11", long, _OVERHEAD)


def _overhead() -> Iterator[Vector]:
    ones = b"1\r\nx\r\n"
    yield bad_chunks("R-H1-5-ONE-BYTE-CHUNKS", "B-9", ones * 6000 + b"0\r\n\r\n", _OVERHEAD)
    yield _ok("R-H1-5-FEW-ONE-BYTE-CHUNKS", "B-9", ones * 3000 + b"0\r\n\r\n", _OVERHEAD, b"x" * 3000)
    padded = b"28;%b\r\n%b\r\n" % (b"e" * 200, b"x" * 40)
    yield bad_chunks("R-H1-5-EXTENSIONS", "B-9", padded * 100 + b"0\r\n\r\n", _OVERHEAD)
    forties = b"28\r\n%b\r\n" % (b"x" * 40)
    yield _ok("R-H1-5-40-BYTE-CHUNKS", "B-9", forties * 3000 + b"0\r\n\r\n", _OVERHEAD, b"x" * 120_000)
    endless = chunked(b"5;" + b"e" * 300)
    why = "counted while it is read: refused though the line never ends (R-H1-6)"
    yield bad("R-H1-5-ENDLESS-SIZE-LINE", "B-9", "a size line of 300 bytes without its end", why, endless)


VECTORS: Final = (*_sizes(), *_extensions(), *_data(), *_trailers(), *_overhead())
