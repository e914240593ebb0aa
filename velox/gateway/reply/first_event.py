"""When an event stream tells of the model's work for the first time.

Knows: which events say nothing yet. Does not know: an error's event from another (early_error.py).
"""

from __future__ import annotations

import re
from typing import Final

from velox.protocol.reply_body import BrokenReplyError
from velox.protocol.sse_events import SseEvents

__all__ = ["MOST_PRELUDES_BYTES", "FirstEventWatch", "has_whole_event", "is_prelude"]

# Events that some providers send before the model has begun: Anthropic, and OpenAI's Responses. `keepalive` comes while
# it thinks (openai/openai-node#1964).
_PRELUDES: Final = frozenset(
    {b"ping", b"message_start", b"response.created", b"response.in_progress", b"response.queued", b"keepalive"}
)
# Where a server leaves the event's name out, its data begin with it.
_DATA: Final = re.compile(rb'data:[ ]?\{[ ]?"type":[ ]?"(?:%b)"' % b"|".join(map(re.escape, sorted(_PRELUDES))))
_TYPED: Final = (b'data: {"type"', b'data:{"type"', b'data: { "type"', b'data:{ "type"')
_MOST_OF_LINE: Final = 64  # more than any of these names has, and than the data that begin with one
# Of what says nothing yet. Two of Codex's events, each with all of its tools and instructions, take 80 to 600 KiB.
MOST_PRELUDES_BYTES: Final = 2 * 1024 * 1024
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
        if text.startswith(b"data:") and self._tells(text):
            return True  # as most begin
        may_go_on = text.endswith(b"\r")  # with the rest of this line's end
        *lines, rest = _LINE.split(text[:-1] if may_go_on else text)
        for line in lines:
            if not line:
                self._name = b""
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif line.startswith(b"data:") and self._tells(line, is_whole=True):
                return True
        if rest.startswith(b"data:") and self._tells(rest):
            return True
        self._line = rest[:_MOST_OF_LINE] + (b"\r" if may_go_on else b"")
        return False

    def _tells(self, line: bytes, *, is_whole: bool = False) -> bool:
        """Say whether a line of data is of an event that counts. line: what came of it; more may follow."""
        if self._name:
            return self._name not in _PRELUDES
        is_known = is_whole or len(line) >= _MOST_OF_LINE
        if line.startswith(_TYPED):
            return is_known and _DATA.match(line) is None
        # Too short to tell, if it may become one with data that name their type.
        return is_known or not any(each.startswith(line) for each in _TYPED)


def is_prelude(name: bytes, data: bytes) -> bool:
    """Return True for an event that says nothing yet of the model's work. name: b"" where it has none."""
    return name in _PRELUDES or (not name and _DATA.match(b"data:" + data) is not None)


def has_whole_event(data: bytes) -> bool:
    """Return True if the begin of a stream has a whole event that tells of the model's work."""
    try:
        return not all(is_prelude(name, text) for name, text in SseEvents(MOST_PRELUDES_BYTES).feed(data))
    except BrokenReplyError:
        return True
