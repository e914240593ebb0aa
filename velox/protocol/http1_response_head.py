"""The head of an upstream's HTTP/1.1 reply: from its bytes to a ReplyHead, and how its body is framed.

Knows: the framing of replies (RFC 9112 §6.3), what an upstream may not send, which heads it has read already. Does not
know: how the bytes came (http1_response.py), bodies, pools.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import httptools

from velox.memo import Memo
from velox.protocol.http1_fields import HOP_BY_HOP, FieldCollector, connection_members, cut_length, field_values
from velox.types import NO_BODY_STATUSES, Headers, ReplyHead

__all__ = ["Framed", "ReplyHeads", "ResponseError", "read_fields"]

_HEADER_COUNT: Final = 200
# 128 KiB of heads at most. Model servers send 150 to 300 bytes, and the same ones for a second.
_KEPT_HEADS: Final = 64
_KEPT_FIELDS: Final = 60
_KEPT_HEAD_BYTES: Final = 2048
_LENGTH_DIGITS: Final = 18  # what fits 64 bits whatever its digits are
_REMOVED: Final = HOP_BY_HOP | {b"content-length"}


class ResponseError(Exception):
    """The upstream broke the protocol. The message says how, and repeats nothing that it sent."""


# A head; how many bytes its body has, None if that ends with its last chunk, or with the connection; and whether the
# upstream means to keep the connection open after it.
Framed: TypeAlias = tuple[ReplyHead, int | None, bool]


class ReplyHeads:
    """Reads the heads of one upstream's connections, so that what one of them taught helps the next.

    A server sends the same head again and again, but for its Content-Length and, once a second, its Date. As with
    requests (http1_head.py) what a head says is a pure function of its bytes, so the result is kept by the head without
    that length. Only heads that passed every check are kept.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Final[Memo[bytes, Framed]] = Memo(_KEPT_HEADS)

    def __repr__(self) -> str:
        return f"<ReplyHeads {self._known!r}>"

    def read(self, data: bytes) -> Framed:
        """Read a whole head, from its first byte to the empty line, that is no interim reply. Raises ResponseError."""
        if len(data) > _KEPT_HEAD_BYTES:
            return _read(data)
        key, digits = cut_length(data)
        known = self._known.get(key)
        # Without the line that was cut out the same fields say that the body ends in another way.
        if known is None or (known[1] is None) != (digits is None):
            return self._learn(key, _read(data), digits)
        if digits is None:
            return known
        if len(digits) > _LENGTH_DIGITS:
            return _read(data)
        head, _, keep_alive = known
        length = int(digits)
        return ReplyHead(head.status, head.headers, length, False, head.key), length, keep_alive

    def _learn(self, key: bytes, framed: Framed, digits: bytes | None) -> Framed:
        """Keep a head that was read, unless it tells of a length in another line than the one that was cut out."""
        head = framed[0]
        told_by_it = (head.content_length is None) == (digits is None)
        # So few fields that the line which was cut out makes no difference to the limit on their number.
        if told_by_it and head.status not in NO_BODY_STATUSES and key.count(b"\n") < _KEPT_FIELDS:
            head.key = key
            self._known.put(key, framed)
        return framed


def read_fields(data: bytes, what: str = "reply") -> tuple[int, Headers]:
    """Return the status of a whole head, and all of its fields. what: it is, for people. Raises ResponseError."""
    collector = FieldCollector()
    parser = httptools.HttpResponseParser(collector)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # llhttp stops at a 101, as is wanted
    except httptools.HttpParserError:
        raise ResponseError(f"{what} is malformed") from None
    return parser.get_status_code(), collector.fields


def _read(data: bytes) -> Framed:
    """Build the head, find how the body ends; llhttp has refused two lengths, and length with coding."""
    status, fields = read_fields(data)
    if len(fields) > _HEADER_COUNT:
        raise ResponseError("reply has over 200 header fields")
    if not 200 <= status <= 599:
        raise ResponseError("reply has a status outside 200 to 599")
    http_1_0 = data[7] == ord("0")
    values = field_values(fields)
    coding = values.get(b"transfer-encoding")
    if coding is not None and (http_1_0 or coding.lower() != b"chunked"):
        raise ResponseError("Transfer-Encoding other than chunked, or on HTTP/1.0")
    digits = values.get(b"content-length")
    length = None if digits is None else int(digits)
    removed = _REMOVED
    keep_alive = not http_1_0
    if b"connection" in values and values[b"connection"] != b"keep-alive":
        members = connection_members(values[b"connection"])
        removed = _REMOVED | members
        keep_alive = keep_alive and b"close" not in members
    is_bare = status in NO_BODY_STATUSES
    headers = [field for field in fields if field[0] not in removed]
    head = ReplyHead(status, headers, length, coding is None and length is None and not is_bare)
    return head, 0 if is_bare else length, keep_alive
