"""When an event stream tells of the model's work for the first time.

Knows: which events say nothing yet. Does not know: an error's event from another (early_error.py).
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["PRELUDES", "FirstEventWatch", "has_whole_event"]

# Events that some providers send before the model has begun: Anthropic, and OpenAI's Responses.
PRELUDES: Final = frozenset(
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
        if text.startswith(b"data:") and self._name not in PRELUDES:
            return True  # as most begin
        may_go_on = text.endswith(b"\r")  # with the rest of this line's end
        *lines, rest = _LINE.split(text[:-1] if may_go_on else text)
        for line in lines:
            if not line:
                self._name = b""
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif line.startswith(b"data:") and self._name not in PRELUDES:
                return True
        if rest.startswith(b"data:") and self._name not in PRELUDES:
            return True
        self._line = rest[:_MOST_OF_LINE] + (b"\r" if may_go_on else b"")
        return False


def has_whole_event(data: bytes) -> bool:
    """Return True if the begin of a stream has a whole event that tells of the model's work."""
    end = max(data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n"), data.rfind(b"\r\r"))
    return end >= 0 and FirstEventWatch().feed(data[:end])
