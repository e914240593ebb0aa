"""Fuzz: heads that are read by what is remembered of others, held against readers that remember nothing.

Input: a byte for how the heads are to be changed, then lines. They are put into a head of a client or of an upstream
that was read many times with other values. Whatever they are:
- a reader that was trained and one that is new read the same, or refuse with the same words;
- one that finds a head by its form says what it says of the lines;
- what goes up, and what goes to the client, is the same with a template as without;
- the head that it was trained with is still found, and says what it said.
"""

from __future__ import annotations

from functools import cache

from tests.fuzz.target_head import check_forwarded
from velox.errors import VeloxError
from velox.gateway.reply.headers import DROPPED, ReplyFields
from velox.gateway.translation.forward import Forwarder
from velox.heads import Headers, ReplyHead, RequestHead
from velox.protocol.http1.request import HeadReader, Http1Limits
from velox.protocol.http1.response_head import Framed, ReplyHeads, ResponseError
from velox.protocol.http2.response_head import Http2ReplyHeads
from velox.providers.rows import OPENAI
from velox.types import BodyFields

__all__ = ["run"]

_LIMITS = Http1Limits(target_bytes=256, head_bytes=2048, line_bytes=2048, header_count=20, body_bytes=4096)
_REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1",
    b"Host: a",
    b"Content-Type: application/json",
    b"Authorization: Bearer k",
    b"traceparent: 00-%032d-01",
    b"x-request-id: %036d",
    b"Cookie: a=%d",
    b"Content-Length: %d",
)
_REPLY = (
    b"HTTP/1.1 200 OK",
    b"Date: %d GMT",
    b"Content-Type: application/json",
    b"x-request-id: req_%d",
    b"set-cookie: a=%d",
    b"set-cookie: b=%d; Secure",
    b"Content-Length: %d",
)


def run(data: bytes) -> None:
    """Read the heads that an input makes. Raises AssertionError, or what a bug raises."""
    how, *lines = data[:1], *data[1:].split(b"\n")
    for known in (_REQUEST, _REPLY):
        for head in _twisted(known, how[0] if how else 0, lines):
            if head.find(b"\r\n\r\n") != len(head) - 4:
                continue  # no decoder gives that to a reader
            (_check_request if known is _REQUEST else _check_reply)(head)
            if known is _REPLY:
                _check_http2_reply(_as_fields(head))


def _filled(known: tuple[bytes, ...], n: int) -> list[bytes]:
    return [line % n if b"%" in line else line for line in known]


def _twisted(known: tuple[bytes, ...], how: int, lines: list[bytes]) -> list[bytes]:
    """Return the lines as a head of their own, and put into the known one: in place of some, before some, as values."""
    base = _filled(known, 7)
    at = how % len(base)
    n_lines = len(lines)
    names = [line.partition(b":")[0] for line in base]
    values = [b"%b: %b" % (names[(at + n) % len(base)], line) for n, line in enumerate(lines)]
    variants = [
        [base[0], *lines],
        lines,
        [*base[:at], *lines, *base[at:]],
        [*base[:at], *lines, *base[at + n_lines :]],
        [*base[:at], *values, *base[at + n_lines :]],
        [*base[:at], *(b"%b%b" % pair for pair in zip(base[at:], lines, strict=False)), *base[at + n_lines :]],
    ]
    return [b"\r\n".join([*variant, b"", b""]) for variant in variants]


def _trained_request() -> HeadReader:
    reader = HeadReader(_LIMITS)
    for n in range(8):
        reader.accept(reader.read(_request(n)))
    for n in range(48):  # from then on, names that are new are read beside what is known, and by a form
        reader.accept(reader.read(_request(n).replace(b"Cookie", b"X-%d: a\r\nCookie" % n)))
    return reader


@cache
def _request(n: int) -> bytes:
    return b"\r\n".join([*_filled(_REQUEST, n), b"", b""])


@cache
def _reply(n: int) -> bytes:
    return b"\r\n".join([*_filled(_REPLY, n), b"", b""])


def _read(reader: HeadReader, head: bytes) -> RequestHead | tuple[str, int, str]:
    try:
        found = reader.find(head + b"GET")
        read = reader.read(head)
        assert found is None or found == (read, len(head)), "a form changes what is read"
    except VeloxError as error:
        assert error.close, "a refusal that leaves the connection open"
        return error.reason.code, error.status, str(error)
    reader.accept(read)
    return read


def _check_request(head: bytes) -> None:
    reader = _trained_request()
    kept, unkept = _forwarder(), _forwarder()
    for n in range(3):
        ours, theirs = _read(reader, head), _read(HeadReader(_LIMITS), head)
        assert ours == theirs, "what is remembered changes what is read"
        if isinstance(ours, RequestHead) and isinstance(theirs, RequestHead) and ours.offer is None:
            for is_stream in (False, True):
                built, alone = (
                    each.build(read, BodyFields(stream=is_stream), b"{}")
                    for each, read in ((kept, ours), (unkept, theirs))
                )
                assert built.target == alone.target
                # Fields of different names have no order (RFC 9110, section 5.3).
                assert sorted(built.headers, key=_name) == sorted(alone.headers, key=_name)
                assert sorted(built.lines.split(b"\r\n"), key=_line_name) == sorted(
                    alone.lines.split(b"\r\n"), key=_line_name
                )
            if n == 2:
                check_forwarded(ours)
    # What an input teaches may make more fields volatile, but never changes what is read.
    assert _read(reader, _request(9)) == _read(HeadReader(_LIMITS), _request(9))


def _name(field: tuple[bytes, bytes]) -> bytes:
    return field[0]


def _line_name(line: bytes) -> bytes:
    return line.partition(b":")[0]


def _forwarder() -> Forwarder:
    return Forwarder(OPENAI, base_path="", root_path="/v1/chat/completions", key="sk-ours", client_keys_are_ours=True)


def _read_reply(heads: ReplyHeads, head: bytes) -> Framed | str:
    try:
        found = heads.find(head + b"{}")
        read = heads.read(head)
        assert found is None or found == (read, len(head)), "a form changes what is read"
        return read
    except ResponseError as error:
        return str(error)


def _check_reply(head: bytes) -> None:
    if not head.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")) or head[9:10] == b"1":
        return  # refused, or an interim reply's, before a reader sees it
    heads, fields = ReplyHeads(), ReplyFields()
    for n in range(8):
        heads.read(_reply(n))
    for _ in range(3):
        ours, theirs = _read_reply(heads, head), _read_reply(ReplyHeads(), head)
        assert ours == theirs, "what is remembered changes what is read"
        if not isinstance(ours, str) and not isinstance(theirs, str):
            assert _passed(fields, ours[0]) == _passed(ReplyFields(), theirs[0])
    assert heads.read(_reply(9)) == ReplyHeads().read(_reply(9))


def _as_fields(head: bytes) -> Headers:
    """Return the lines of a reply's head as the fields of one over HTTP/2, whatever they hold."""
    start, *lines = head[:-4].split(b"\r\n")
    pairs = [line.partition(b":") for line in lines]
    return [(b":status", start[9:12]), *((name.lower(), value.strip()) for name, _, value in pairs)]


def _check_http2_reply(head: Headers) -> None:
    heads, fields = Http2ReplyHeads(), ReplyFields()
    for n in range(8):
        heads.read(_as_fields(_reply(n)))
    for _ in range(3):
        ours, theirs = heads.read(head), Http2ReplyHeads().read(head)
        assert ours == theirs, "what is remembered changes what is read"
        if ours is not None and theirs is not None:
            assert _passed_or_refused(fields, ours) == _passed_or_refused(ReplyFields(), theirs)
    usual = _as_fields(_reply(9))
    assert heads.read(usual) == Http2ReplyHeads().read(usual)


def _passed_or_refused(fields: ReplyFields, head: ReplyHead) -> tuple[object, ...] | str:
    """As _passed(); what is refused where it is written is no fault of the reader."""
    try:
        return _passed(fields, head)
    except ValueError as error:
        return str(error)


def _passed(fields: ReplyFields, head: ReplyHead) -> tuple[object, ...]:
    """Return what the client gets of a head, as pairs and as lines."""
    template, *kind = fields.passed(head.shape, DROPPED)
    return template.headers(head.values), template.lines(head.values), *kind
