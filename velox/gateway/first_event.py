"""An event stream held back until its first event: another upstream may be asked while the client has no byte of it.

Knows: how much is held at most, and which events say nothing yet. Does not know: who decides, or who else is asked
(group.py, retries.py). What is compressed passes unread.
"""

from __future__ import annotations

import re
from typing import Final

from velox.gateway.filters import ReplyFilter
from velox.heads import ReplyHead

__all__ = ["FirstEventGate"]

# Of a longer one, all goes on: nobody sends so many comments.
_MOST_HELD: Final = 64 * 1024
# Events that some providers send before the model has begun: Anthropic, and OpenAI's Responses.
_PRELUDES: Final = frozenset(
    {b"ping", b"message_start", b"response.created", b"response.in_progress", b"response.queued"}
)
_LINE: Final = re.compile(rb"\r\n|\r|\n")


class FirstEventGate(ReplyFilter):
    """Of one event stream."""

    __slots__ = ("_head", "_held")

    def __init__(self) -> None:
        super().__init__()
        self._head: ReplyHead | None = None
        self._held = b""

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Hold the head back, if there are events to wait for."""
        self.reads_body = is_sse and is_plain
        self._head = head
        return None if self.reads_body else head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came; return all of it once there is an event."""
        held = self._held = self._held + data
        if not end and len(held) <= _MOST_HELD and not _has_event(held):
            return b""
        self._held = b""
        self.reads_body = False
        self.released = self._head
        return held


def _has_event(text: bytes) -> bool:
    """Say whether a stream that begins so has come to the data of an event that tells of the model's work."""
    name = b""
    *lines, rest = _LINE.split(text)
    for line in (*lines, rest):
        if not line:
            name = b""
        elif line.startswith(b"event:") and line is not rest:
            name = line[6:].strip()
        elif line.startswith(b"data:") and name not in _PRELUDES:
            return True
    return False
