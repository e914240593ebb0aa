"""The head of an HTTP/2 request: from its fields as decoded to the same RequestHead as HTTP/1.1 gives.

Knows: what RFC 9113 §8 says of fields and pseudo fields, and what could mean something else once it is written as
HTTP/1.1. Does not know: frames, streams, routes, keys.

Called by whoever is told of a head (EngineHandler.on_head, server side), before anything else is done with it. ngh2
checks much of this too, h2 is told not to; what is refused must not depend on which one is in use.

There are two kinds of "no". MalformedError: these fields are no request (RFC 9113 §8.1.1); the stream is reset with
PROTOCOL_ERROR and nothing of it is looked at. VeloxError: a request that HTTP/1.1 would refuse as well, with the same
answer; its `close` says nothing here, since a frame's length stays known.

That a body is as long as it said is checked by the engines, with its last byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from velox.errors import Reason, VeloxError
from velox.heads import Header, Headers, HeadShape, RequestHead
from velox.protocol.heads.fields import HANDSHAKE, HOP_BY_HOP, TOKEN, beyond_ascii, field_values
from velox.protocol.heads.target import SERVER, split_target
from velox.protocol.http1.request_head import (
    METHODS,
    Http1Limits,
    asks_for_foreign_page,
    bad_method,
    body_length,
    check_host,
    check_single,
    expects_continue,
    too_long,
)

__all__ = ["MalformedError", "check_trailers", "read_head"]

_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
# RFC 9113 §8.2.1. A name in upper case is malformed, not repaired.
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
_PATH: Final = re.compile(rb"/[!-~]*")
# RFC 9113 §8.2.2: these speak of a connection that there is none of.
_FORBIDDEN: Final = HOP_BY_HOP - {b"te", b"trailer", b"proxy-authenticate", b"proxy-authorization"}
# Read here and then gone: the next hop's are built anew.
_REMOVED: Final = HOP_BY_HOP | HANDSHAKE | {b"host", b"content-length", b"expect"}


class MalformedError(Exception):
    """These fields are no HTTP/2 request. The message is for logs of tests: it goes to nobody."""


def read_head(fields: Sequence[Header], limits: Http1Limits, *, end_stream: bool) -> RequestHead:
    """Return the head that `fields` are, pseudo fields first; end_stream: no body follows.

    `chunked` of the result is True where a body follows whose length is not stated. Raises MalformedError, and
    VeloxError for what is well-formed and not served.
    """
    pseudo, rest = _split(fields)
    values = _check_fields(rest)
    _check_pseudo(pseudo, values)
    method, target = pseudo[b":method"], pseudo[b":path"]
    length = _content_length(values, end_stream=end_stream)
    # Well-formed from here on: what is refused gets an answer.
    if method not in METHODS:
        raise bad_method(method)
    if len(target) > limits.target_bytes:
        raise too_long(f"request target is over {limits.target_bytes} bytes", status=414)
    path, query = (SERVER, b"") if target == SERVER else split_target(target)  # of OPTIONS, see _is_path()
    if not all(map(bytes.isascii, values.values())):
        raise beyond_ascii(next(name for name, value in values.items() if not value.isascii()))
    if len(values) != len(rest):
        check_single(rest)
    host = pseudo.get(b":authority", values.get(b"host"))
    check_host(host, http_1_0=False)
    content_length = None if length is None else body_length(length, limits)
    has_body = not end_stream and content_length != 0
    expect_continue = b"expect" in values and expects_continue(values[b"expect"]) and has_body
    # A CGI-like server reads Content_Length as Content-Length: never forwarded.
    headers = tuple([field for field in rest if field[0] not in _REMOVED and b"_" not in field[0]])
    chunked = has_body and content_length is None
    line = method, target, path, query, False
    is_foreign_page = asks_for_foreign_page(host, values, limits)
    shape = HeadShape(
        *line, True, chunked, expect_continue, None, headers, is_foreign_page=is_foreign_page, host=host or b""
    )
    return RequestHead(shape, (), content_length)


def check_trailers(fields: Sequence[Header]) -> None:
    """Raise MalformedError for what can't be trailers; they are dropped then, but their stream is not."""
    _check_fields(list(fields))


def _split(fields: Sequence[Header]) -> tuple[dict[bytes, bytes], Headers]:
    """Return the pseudo fields by name, and the others."""
    pseudo: dict[bytes, bytes] = {}
    for n_pseudo, (name, value) in enumerate(fields):
        if name[:1] != b":":
            return pseudo, list(fields[n_pseudo:])
        if name not in _PSEUDO or name in pseudo:
            raise MalformedError("a pseudo field is unknown or comes twice")
        pseudo[name] = value
    return pseudo, []


def _check_fields(fields: Headers) -> dict[bytes, bytes]:
    """Check each field for itself; return the values by name."""
    for name, value in fields:
        if not _NAME.fullmatch(name):
            raise MalformedError("a field's name is empty, in upper case, a pseudo field's, or no name")
        if not _VALUE.fullmatch(value):
            raise MalformedError("a field's value has a control character, or white space around it")
        if name in _FORBIDDEN:
            raise MalformedError("a field is about a connection of HTTP/1.1")
        if name == b"te" and value.lower() != b"trailers":
            raise MalformedError("te is not 'trailers'")
    return field_values(fields)


def _check_pseudo(pseudo: dict[bytes, bytes], values: dict[bytes, bytes]) -> None:
    """Check the pseudo fields of a request (RFC 9113 §8.3.1)."""
    method = pseudo.get(b":method")
    if method is None or not TOKEN.fullmatch(method):
        raise MalformedError(":method is missing or no method")
    if method == b"CONNECT":
        # It has an :authority and nothing else (RFC 9113 §8.5), so there is no head to make of it.
        raise VeloxError(Reason.METHOD_NOT_ALLOWED, "method is not supported")
    if pseudo.get(b":scheme") not in (b"http", b"https"):
        raise MalformedError(":scheme is missing or not of HTTP")
    if not _is_path(pseudo.get(b":path"), method):
        raise MalformedError(":path is missing or not visible ASCII from '/' on")
    authority = pseudo.get(b":authority")
    host = values.get(b"host")
    if authority is not None and (not authority or (host is not None and host.lower() != authority.lower())):
        raise MalformedError(":authority is empty or is not the Host")


def _is_path(path: bytes | None, method: bytes) -> bool:
    if path is None:
        return False
    return _PATH.fullmatch(path) is not None or (path == b"*" and method == b"OPTIONS")


def _content_length(values: dict[bytes, bytes], *, end_stream: bool) -> bytes | None:
    length = values.get(b"content-length")
    if length is not None and (not length.isdigit() or (end_stream and length.strip(b"0"))):
        raise MalformedError("content-length is no number, or nothing follows it")
    return length
