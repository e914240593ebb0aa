"""What is kept of a reply for its trace, where content is switched on: its first bytes, as the client gets them.

Knows: how much is kept. Does not know: what is read in it (observe/traces/content.py).

Plain where filters are compiled: few gateways export content.
"""

from __future__ import annotations

from typing import ClassVar, Final

from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import ReplyHead

__all__ = ["ReplyCapture"]


class ReplyCapture(ReplyFilter):
    """most: bytes that are kept of a reply. is_stream: it came as events. is_cut: there was more."""

    __slots__ = ("_kept", "_most", "is_cut", "is_stream")
    order: ClassVar[int] = FilterOrder.TRACE
    only_reads = True

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most: Final = most
        self._kept = bytearray()
        self.is_stream = False
        self.is_cut = False

    def __repr__(self) -> str:
        return f"<ReplyCapture {len(self._kept)} bytes>"

    @property
    def kept(self) -> bytes:
        """Return the bytes so far."""
        return bytes(self._kept)

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Begin anew: it is the reply of another attempt."""
        self._kept.clear()
        self.is_stream, self.is_cut = is_sse, False
        self.reads_body = is_plain  # one that is compressed, though nobody asked for that, is not read
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Keep what there is room for."""
        room = self._most - len(self._kept)
        self._kept += data[:room]
        self.is_cut |= len(data) > room
        return data
