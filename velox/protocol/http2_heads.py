"""HTTP/2 heads that came before: what was read of one is kept for the next one like it.

Knows: when two heads are equal but for their content-length. Does not know: how one is read (http2_head.py).

As for HTTP/1.1 (http1_head.HeadReader), and for the same reason: what a head says is a pure function of its fields, and
looking it up replaces 10 µs of reading. Only heads that passed every check are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain
from typing import Final

from velox.memo import Memo
from velox.protocol.http1_head import Http1Limits, body_length
from velox.protocol.http2_head import read_head
from velox.types import Header, RequestHead

__all__ = ["Http2HeadReader"]

# 1 MiB at most, as for HTTP/1.1.
_KEPT_HEADS: Final = 512
_KEPT_FIELDS: Final = 60
_KEPT_HEAD_BYTES: Final = 2048


class Http2HeadReader:
    """Reads the heads of many connections; one a worker."""

    __slots__ = ("_known", "_limits")

    def __init__(self, limits: Http1Limits) -> None:
        self._limits: Final = limits
        # A key begins with "1" where a length was cut out. With the number of fields: by that, no NUL inside a field
        # can pass for one between two.
        self._known: Final[Memo[bytes, tuple[int, RequestHead]]] = Memo(_KEPT_HEADS)

    def __repr__(self) -> str:
        return f"<Http2HeadReader {self._known}>"

    def read(self, fields: Sequence[Header], *, end_stream: bool) -> RequestHead:
        """See read_head()."""
        n_fields = len(fields)
        lengths = [field for field in fields if field[0] == b"content-length"]
        # Framed in the usual way: a length and a body, or neither.
        if n_fields > _KEPT_FIELDS or len(lengths) != (not end_stream):
            return read_head(fields, self._limits, end_stream=end_stream)
        key = b"\0".join(chain.from_iterable(fields))
        digits = b""
        if lengths:
            digits = lengths[0][1]
            line = b"\0content-length\0" + digits
            if key.count(line) != 1 or not digits.isdigit():
                return read_head(fields, self._limits, end_stream=end_stream)
            key = b"1" + key.replace(line, b"\0\0")
        known = self._known.get(key)
        if known is None or known[0] != n_fields:
            return self._learn(key, n_fields, read_head(fields, self._limits, end_stream=end_stream))
        head = known[1]
        # By position: a dataclass takes twice as long by keyword.
        return RequestHead(
            head.method,
            head.target,
            head.path,
            head.query,
            False,
            head.headers,
            True,
            body_length(digits, self._limits) if lengths else None,
            False,
            False,
            key,
        )

    def _learn(self, key: bytes, n_fields: int, head: RequestHead) -> RequestHead:
        if len(key) <= _KEPT_HEAD_BYTES and not head.expect_continue:
            head.key = key
            self._known.put(key, (n_fields, copy(head)))  # a head belongs to its stream, which may change it
        return head
