"""An event stream held back until its first event: another upstream may be asked while the client has no byte of it.

Knows: how much is held at most, and which events say nothing yet. Does not know: who decides, or who else is asked
(group.py, retries.py). What is compressed passes unread.
"""

from __future__ import annotations

import re
from typing import Final

from velox.gateway.filters import ReplyFilter
from velox.heads import ReplyHead

__all__ = ["FirstEventGate", "FirstEventWatch"]

# Of a longer one, all goes on: nobody sends so many comments.
_MOST_HELD: Final = 64 * 1024
# Events that some providers send before the model has begun: Anthropic, and OpenAI's Responses.
_PRELUDES: Final = frozenset(
    {b"ping", b"message_start", b"response.created", b"response.in_progress", b"response.queued"}
)
_MOST_OF_LINE: Final = 64  # more than any of these names has
_LINE: Final = re.compile(rb"\r\n|\r|\n")


class FirstEventWatch:
    """Looks on where nothing is held back: when does a stream tell of the model's work? It keeps at most 65 bytes."""

    __slots__ = ("_line", "_name")

    def __init__(self) -> None:
        self._line = b""  # the head of the line that is open
        self._name = b""  # of the event that is

    def feed(self, data: bytes) -> bool:
        """Take what came, comments too; not to be asked again once it is True."""
        text = self._line + data
        if text.startswith(b"data:") and self._name not in _PRELUDES:
            return True  # as most begin
        may_go_on = text.endswith(b"\r")  # with the rest of this line's end
        *lines, rest = _LINE.split(text[:-1] if may_go_on else text)
        for line in lines:
            if not line:
                self._name = b""
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif line.startswith(b"data:") and self._name not in _PRELUDES:
                return True
        if rest.startswith(b"data:") and self._name not in _PRELUDES:
            return True
        self._line = rest[:_MOST_OF_LINE] + (b"\r" if may_go_on else b"")
        return False


class FirstEventGate(ReplyFilter):
    """Of one event stream."""

    __slots__ = ("_head", "_held", "_watch")

    def __init__(self) -> None:
        super().__init__()
        self._watch: Final = FirstEventWatch()
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
        if not end and len(held) <= _MOST_HELD and not self._watch.feed(data):
            return b""
        self._held = b""
        self.reads_body = False
        self.released = self._head
        return held
