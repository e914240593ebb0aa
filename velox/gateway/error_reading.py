"""An upstream's error on its way to the client, held back until it is read: another upstream may be asked instead.

Knows: how much of a body is read for this. Does not know: what it says (protocol/error_meaning.py), or who is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velox.errors import Reason
from velox.gateway.filters import ReplyFilter
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure
from velox.protocol.error_meaning import ERROR_BYTES

__all__ = ["ErrorReading"]


class ErrorReading(ReplyFilter):
    """Of one error reply. refuses: told the whole of it, says whether another attempt follows.

    feed() raises UpstreamFailure if one does. A body that is longer than errors are passes unread.
    """

    __slots__ = ("_body", "_head", "_refuses")

    def __init__(self, refuses: Callable[[ReplyHead, bytes], bool]) -> None:
        super().__init__()
        self._refuses: Final = refuses
        self._body = b""
        self._head: ReplyHead | None = None

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Hold the head back."""
        self._head = head
        return None

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came; return all of it once it may go on. Raises UpstreamFailure."""
        if self.released is not None:
            return data
        head, body = self._head, self._body + data
        assert head is not None, "a body comes after its head"
        if not end and len(body) <= ERROR_BYTES:
            self._body = body
            return b""
        self._body = b""
        if end and self._refuses(head, body):
            message = f"the upstream answered with {head.status}"
            raise UpstreamFailure(Reason.UPSTREAM_STATUS, message, status=head.status)
        self.released = head
        return body
