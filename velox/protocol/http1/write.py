"""Builds the heads and chunks that Velox writes on HTTP/1.1; none is copied from a peer.

Knows: the wire's form. Does not know: which fields may pass; its callers give only those.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from velox.heads import Header, Headers

__all__ = [
    "CONTINUE_100",
    "LAST_CHUNK",
    "check_unsplit",
    "chunk",
    "field_lines",
    "reply_head",
    "reply_lines",
    "request_head",
    "request_start",
    "sized_reply",
]

CONTINUE_100: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

# As numbers: to look for one as bytes raises and drops an error inside CPython, at ten times the cost.
_LF: Final = 10
_CR: Final = 13
_NUL: Final = 0

_STATUS_LINES: Final = {status.value: b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in HTTPStatus}


def request_start(method: bytes, target: bytes, host: bytes) -> bytes:
    """Return the first two lines of a request. Raises ValueError when they would be more."""
    start = b"".join((method, b" ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n"))
    if start.count(b"\n") != 2 or start.count(b"\r") != 2 or _NUL in start:
        raise _split_error()
    return start


def request_head(start: bytes, lines: bytes, content_length: int | None, body: bytes | bytearray = b"") -> bytes:
    """Return the head of a request, and the first of its body; content_length None: it has none, and no length.

    start: from request_start(). lines: from field_lines().
    """
    if content_length is None:
        return b"".join((start, lines, b"\r\n"))
    return b"".join((start, lines, b"content-length: ", str(content_length).encode(), b"\r\n\r\n", body))


def field_lines(headers: Headers) -> bytes:
    """Return header fields as lines, each with its CRLF; neither host nor content-length nor a hop-by-hop field.

    Raises ValueError when one of them holds CR, LF or NUL.
    """
    return _joined([*map(b": ".join, headers)])[:-2] if headers else b""


def reply_head(
    status: int, headers: Iterable[Header], *, content_length: int | None, chunked: bool, close: bool
) -> bytes:
    """Return the head of a reply; with neither content_length nor chunked it has no body, or ends at close.

    headers: neither content-length nor a hop-by-hop field. Raises ValueError as `_joined` does.
    """
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status, *map(b": ".join, headers)]
    if content_length is not None:
        lines.append(b"content-length: %d" % content_length)
    if chunked:
        lines.append(b"transfer-encoding: chunked")
    if close:
        lines.append(b"connection: close")
    return _joined(lines)


def sized_reply(status: int, lines: bytes, length: int, data: bytes, *, close: bool) -> bytes:
    """Return a reply of known length, with the first of its body. lines: of its head, from field_lines()."""
    end = b"connection: close\r\n\r\n" if close else b"\r\n"
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status
    return b"".join((line, b"\r\n", lines, b"content-length: ", str(length).encode(), b"\r\n", end, data))


def reply_lines(status: int, lines: bytes, *, chunked: bool, close: bool) -> bytes:
    """Return the head of a reply without a length. lines: from field_lines()."""
    coding = b"transfer-encoding: chunked\r\n" if chunked else b""
    end = b"connection: close\r\n\r\n" if close else b"\r\n"
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status
    return b"".join((line, b"\r\n", lines, coding, end))


def chunk(data: bytes) -> bytes:
    """Return data as one chunk; b"" for no data, because an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _joined(lines: list[bytes]) -> bytes:
    """Join the lines of a head; raise ValueError when one of them holds CR, LF or NUL.

    The parsers refuse these already. They came through HTTP/2 once (CVE-2025-57804), so we look again.
    """
    head = b"\r\n".join(lines)
    n_ends = len(lines) - 1
    if head.count(b"\n") != n_ends or head.count(b"\r") != n_ends or _NUL in head:
        raise _split_error()
    return head + b"\r\n\r\n"


def check_unsplit(values: bytes) -> None:
    """Raise ValueError if values, joined, hold CR, LF or NUL, which would make more lines of them."""
    if _LF in values or _CR in values or _NUL in values:
        raise _split_error()


def _split_error() -> ValueError:
    return ValueError("a field of this head holds CR, LF or NUL")
