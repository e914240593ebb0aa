"""Vectors of bodies that are read: JSON that two readers could take for two things, media types, compression.

Knows: what a chat completion's body may be. Does not know: where a body ends (framing.py).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Final

from tests.vectors.vector import (
    CHAT,
    Seen,
    Vector,
    bad,
    good,
    json_bad,
    json_good,
    json_request,
    shown,
)

__all__ = ["VECTORS"]

_JSON: Final = "RFC 8259: one JSON object in UTF-8"
_TWICE: Final = "RFC 8259 §4: of two equal names some readers take the first, some the last"
_FIELD: Final = "a field that Velox acts on has one type"
_SAME: Final = "the body goes up byte for byte"
_DATA: Final = "what a body names is data: nobody connects to it (R-SSRF-1)"
_ELSEWHERE: Final = "http://127.0.0.1:9/"


def _with(fields: bytes) -> bytes:
    return b'{"model":"m","messages":[],%b}' % fields


def _shapes() -> Iterator[Vector]:
    for name, body in (
        ("EMPTY", b""),
        ("SPACE", b" "),
        ("NULL", b"null"),
        ("ARRAY", b"[]"),
        ("STRING", b'"x"'),
        ("NUMBER", b"1"),
        ("OPEN", b"{"),
        ("TRAILING", CHAT + b"x"),
        ("TWO", CHAT + CHAT),
        ("TRAILING-COMMA", b'{"model":"m",}'),
        ("SINGLE-QUOTES", b"{'model':'m'}"),
        ("COMMENT", b'{"model":"m"}//x'),
        ("BARE-NAME", b'{model:"m"}'),
        ("LEADING-ZERO", _with(b'"n":01')),
    ):
        yield json_bad(f"B-31-{name}", "B-31", body, _JSON)
    yield json_good("B-31-SPACE-AROUND", "B-31", b" \r\n\t" + CHAT + b" \n", _SAME)


def _twice() -> Iterator[Vector]:
    for name, body in (
        ("MODEL", b'{"model":"cheap","model":"dear"}'),
        ("MODEL-SAME", b'{"model":"m","model":"m"}'),
        ("STREAM", _with(b'"stream":false,"stream":true')),
        ("MAX-TOKENS", _with(b'"max_tokens":1,"max_tokens":100000')),
        ("ESCAPED", b'{"model":"cheap","mod\\u0065l":"dear"}'),
        ("APART", b'{"model":"cheap","messages":[{"model":"x"}],"model":"dear"}'),
    ):
        yield json_bad(f"B-32-{name}", "B-32", body, _TWICE, reason="duplicate_key")
    why = "RFC 8259 §4: a name inside another object is another name; the body goes up byte for byte"
    yield json_good("B-32-INNER", "B-32", b'{"model":"m","messages":[{"model":"x"}]}', why)
    yield json_good("B-32-OTHER", "B-32", _with(b'"x":1,"x":2'), "a field that Velox does not act on is the upstream's")


def _encodings() -> Iterator[Vector]:
    for name, body in (
        ("INVALID-UTF8", b'{"model":"\xff"}'),
        ("OVERLONG", b'{"model":"\xc0\xae"}'),
        ("SURROGATE-BYTES", b'{"model":"\xed\xa0\x80"}'),
        ("NUL", b'{"model":"a\x00b"}'),
        ("CONTROL", b'{"model":"a\x01b"}'),
        ("UTF-16", '{"model":"m"}'.encode("utf-16")),
        ("UTF-16-BE", '{"model":"m"}'.encode("utf-16-be")),
        ("TRUNCATED-UTF8", b'{"model":"\xe2\x82'),
    ):
        yield json_bad(f"B-33-{name}", "B-33", body, _JSON)
    yield json_good("B-33-BOM", "B-33", b"\xef\xbb\xbf" + CHAT, "RFC 8259 §8.1: a BOM may be ignored; it goes up")
    for name, value in (("LONE-SURROGATE", b'"\\ud83d"'), ("1E400", b"1e400"), ("30-DIGITS", b"9" * 30)):
        yield json_good(f"B-34-{name}", "B-34", _with(b'"x":' + value), "what SDKs send passes, byte for byte")
    for value in (b"NaN", b"Infinity", b"-Infinity"):
        yield json_bad(f"B-34-{value.decode().upper()}", "B-34", _with(b'"x":' + value), "RFC 8259 §6: no number")


def _sizes() -> Iterator[Vector]:
    bound = "no crash, and at most 100 ms for a megabyte"
    for name, depth in (("DEPTH-1100", 1100), ("DEPTH-100000", 100_000)):
        yield json_bad(f"B-35-{name}", "B-35", _with(b'"x":' + b"[" * depth + b"]" * depth), bound)
    yield json_good("B-35-DEPTH-900", "B-35", _with(b'"x":' + b"[" * 900 + b"]" * 900), _SAME)
    keys = b",".join(b'"k%d":%d' % (n, n) for n in range(100_000))
    yield json_good("B-35-100000-KEYS", "B-35", _with(keys), bound)
    yield json_good("B-35-10-MB-STRING", "B-35", _with(b'"x":"%b"' % (b"s" * 10_000_000)), bound)
    yield json_good("B-35-300000-ELEMENTS", "B-35", _with(b'"x":[%b1]' % (b"1," * 300_000)), bound)


def _fields() -> Iterator[Vector]:
    for name, model in (
        ("NUMBER", b"1"),
        ("LIST", b'["m"]'),
        ("OBJECT", b'{"x":1}'),
        ("TRUE", b"true"),
        ("EMPTY", b'""'),
        ("257-CHARS", b'"%b"' % (b"m" * 257)),
        ("NUL", b'"a\\u0000b"'),
        ("NEWLINE", b'"a\\nb"'),
        ("ESCAPE", b'"\\u001b[31m"'),
        ("C1", b'"\\u0085"'),
    ):
        yield json_bad(f"B-36-{name}", "B-36", b'{"model":%b}' % model, _FIELD, reason="bad_request")
    for name, model in (
        ("256-CHARS", b'"%b"' % (b"m" * 256)),
        ("PATH", b'"../x"'),
        ("LABEL", b'"\\"}"'),
        ("RIGHT-TO-LEFT", '"\u202em"'.encode()),
        ("SLASH", b'"org/name"'),
    ):
        why = "any text may name a model; it is no label of a metric, and no path"
        yield json_good(f"B-36-{name}", "B-36", b'{"model":%b}' % model, why)
    for name, value in (("STRING", b'"true"'), ("NUMBER", b"1"), ("LIST", b"[]"), ("OBJECT", b"{}")):
        yield json_bad(f"B-38-{name}", "B-38", _with(b'"stream":' + value), _FIELD, reason="bad_request")
    yield json_good("B-38-NULL", "B-38", _with(b'"stream":null'), "null is no stream; " + _SAME)
    for name, fields in (
        ("N-NEGATIVE", b'"n":-1'),
        ("N-HUGE", b'"n":1000000000000'),
        ("TOKENS-HUGE", b'"max_tokens":99999999999999999999'),
        ("TOKENS-NULL", b'"max_tokens":null'),
    ):
        yield json_good(f"B-39-{name}", "B-39", _with(fields), "the upstream judges it; no limiter here counts by it")
    for name, value in (("NEGATIVE", b"-5"), ("FLOAT", b"1.5"), ("STRING", b'"7"'), ("TRUE", b"true")):
        body = _with(b'"max_tokens":' + value)
        yield json_bad(f"B-39-TOKENS-{name}", "B-39", body, "a count of tokens is a whole number", reason="bad_request")


def _destinations() -> Iterator[Vector]:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": _ELSEWHERE}}]}]
    for row, name, fields in (
        ("B-29", "API-BASE", {"api_base": _ELSEWHERE}),
        ("B-29", "BASE-URL", {"base_url": _ELSEWHERE}),
        ("B-29", "CUSTOM-HOST", {"custom_host": _ELSEWHERE}),
        ("B-29", "FALLBACKS", {"fallbacks": [{"api_base": _ELSEWHERE}]}),
        ("B-29", "EXTRA-HEADERS", {"extra_headers": {"host": "evil.test"}}),
        ("B-30", "IMAGE-URL", {"messages": image}),
        ("B-30", "METADATA-SERVICE", {"image_url": "http://169.254.169.254/latest/"}),
        ("B-30", "FILE-URL", {"image_url": "file:///etc/passwd"}),
    ):
        body = json.dumps({"model": "m", **fields}).encode()
        yield json_good(f"{row}-{name}", row, body, _DATA)


def _coded() -> Iterator[Vector]:
    packed = "a body that can't be unpacked here is refused, before it is read (R-BODY-1)"
    for name in ("br", "gzip, gzip", "x-unknown"):
        field = f"Content-Encoding: {name}"
        wire = json_request(b"\x1f\x8b\x08" + b"\x00" * 500, field.encode())
        label = f"B-42-{name.upper().replace(', ', '-')}"
        yield bad(label, "B-42", field, packed, wire, status=415, reason="unsupported_encoding")
    none = "what is none of its coding is no request; its end is known, so that another may follow"
    for name in ("gzip", "zstd", "deflate"):
        wire = json_request(b"\x1f\x8b\x08" + b"\x00" * 500, f"Content-Encoding: {name}".encode())
        what = f"Content-Encoding: {name}, over something else"
        yield bad(f"B-42-{name.upper()}", "B-42", what, none, wire, reason="bad_request", closes=False)
    seen = Seen(b"POST", b"/v1/chat/completions", ((b"content-type", b"application/json"),), CHAT)
    unpacked = "it goes up without its coding, with the length that it has then"
    for name, coded in (("GZIP-GOOD", gzip.compress(CHAT, mtime=0)), ("DEFLATE-GOOD", zlib.compress(CHAT))):
        coding = name.partition("-")[0].lower()
        wire = json_request(coded, f"Content-Encoding: {coding}".encode())
        yield good(f"B-42-{name}", "B-42", f"Content-Encoding: {coding}", unpacked, wire, seen=seen)
    for name, value in (("NONE", b""), ("IDENTITY", b" identity")):
        wire = json_request(CHAT, b"Content-Encoding:" + value)
        yield good(f"B-42-{name}", "B-42", f"Content-Encoding:{value.decode()}", "that is no coding", wire, seen=seen)


def _media() -> Iterator[Vector]:
    one = "RFC 9110 §15.5.16: this path takes JSON in UTF-8, or a form where the API has one"
    for name, media in (
        ("TEXT", b"text/plain"),
        ("FORM", b"application/x-www-form-urlencoded"),
        ("UTF-16", b"application/json; charset=utf-16"),
        ("LATIN-1", b"application/json;charset=iso-8859-1"),
        ("NO-SLASH", b"json"),
        ("TWO", b"application/json, text/plain"),
    ):
        wire = json_request(CHAT, media=b"Content-Type: " + media)
        yield bad(
            f"B-41-{name}", "B-41", f"Content-Type: {shown(media)}", one, wire, status=415, reason="unsupported_media"
        )
    wire = json_request(CHAT, media=b"")
    yield bad("B-41-NONE", "B-41", "no Content-Type", one, wire, status=415, reason="unsupported_media")
    wire = json_request(b"hello", media=b"Content-Type: application/x-nonsense")
    what = "Content-Type: application/x-nonsense"
    yield bad("COMP-POST-UNSUPPORTED-CT", "B-41", what, one, wire, status=415, reason="unsupported_media")
    wire = json_request(CHAT, b"Content-Type: text/html")
    why = "two readers could each take another one"
    yield bad("COMP-DUPLICATE-CT", "B-41", "two Content-Types", why, wire, reason="bad_request")
    for name, media in (("UTF-8", b"application/json; charset=utf-8"), ("CASE", b"Application/JSON")):
        seen = Seen(b"POST", b"/v1/chat/completions", ((b"content-type", media),), CHAT)
        wire = json_request(CHAT, media=b"Content-Type: " + media)
        yield good(f"B-41-{name}", "B-41", f"Content-Type: {shown(media)}", _SAME, wire, seen=seen)
    yield from _coded()
    junk = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\x00\xff\r\n--y\n--x--z' + b"\r\n" * 20
    media = b"multipart/form-data; boundary=x"
    wire = json_request(junk, media=b"Content-Type: " + media)
    why = "this path takes no form: a server that reads it as JSON would run what was not read"
    yield bad("B-43-JUNK", "B-43", "a form of junk", why, wire, status=415, reason="unsupported_media")


VECTORS: Final = (
    *_shapes(),
    *_twice(),
    *_encodings(),
    *_sizes(),
    *_fields(),
    *_destinations(),
    *_media(),
)
