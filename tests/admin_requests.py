"""Requests of the admin listener from the bytes of their heads, as its server reads them, without a connection."""

from __future__ import annotations

from collections.abc import Callable

from velox.admin.message import AdminRequest, RefusalError, Reply, read_request, reply_headers
from velox.admin.server import ADMIN_LIMITS
from velox.errors import VeloxError
from velox.protocol.http1 import write as http1_write
from velox.protocol.http1.request import RequestDecoder

__all__ = ["UnreadError", "parse_request", "written"]


class UnreadError(RefusalError):
    """A head that the server refuses before any page is asked: a line of text says why."""


def parse_request(
    head: bytes, host_names: frozenset[str] = frozenset(), takes_any: Callable[[str], bool] = lambda _path: False
) -> AdminRequest:
    """Return the request of a head, to its empty line. Raises RefusalError, UnreadError."""
    decoder = RequestDecoder(ADMIN_LIMITS)
    decoder.feed(head)
    try:
        found = decoder.read_head()
    except VeloxError as error:
        raise UnreadError(error.status, error.message) from error
    assert found is not None, "the head is whole"
    return read_request(found, host_names, takes_any)


def written(reply: Reply) -> bytes:
    """Return the bytes of a reply. Raises ValueError when a header would be more than a line."""
    body = reply.body or b""
    headers = reply_headers(reply)
    return http1_write.reply_head(reply.status, headers, content_length=len(body), chunked=False, close=False) + body
