"""What is kept of a WebSocket's messages for its trace, where content is switched on: those that say something.

Knows: by which types of events the realtime and the Responses API say it, and how much is kept. Does not know: what is
read in them (socket_content.py). Sound is in none of them: it goes in events of its own.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from velox.observe.traces.record import ContentRecord
from velox.protocol.websocket.tap import MessageTap

__all__ = ["SocketCapture"]

_OF_CLIENTS: Final = frozenset({"conversation.item.create", "response.create", "session.update"})
# What a client has said, as the upstream has understood it; and answers, once they are whole.
_HEARD: Final = "conversation.item.input_audio_transcription.completed"
_ANSWERS: Final = frozenset({"response.done", "response.completed", "response.incomplete", "response.failed"})


class _Event(msgspec.Struct):
    type: str = ""


_EVENT: Final = msgspec.json.Decoder(_Event)


class SocketCapture:
    """Of one tunnel. most: bytes that are kept of each side, the last ones, and of one message. up, down: read it."""

    def __init__(self, most: int) -> None:
        self._asked: Final = _Kept(most)
        self._answered: Final = _Kept(most)
        self.up: Final = MessageTap(self._take_up, most, self._asked.miss)
        self.down: Final = MessageTap(self._take_down, most, self._answered.miss)

    def __repr__(self) -> str:
        return f"<SocketCapture {self._asked!r} {self._answered!r}>"

    def record(self) -> ContentRecord | None:
        """Return what was kept; None: nothing."""
        if not self._asked.messages and not self._answered.messages:
            return None
        is_cut = self._asked.is_cut or self._answered.is_cut
        return ContentRecord(self._asked.joined(), self._answered.joined(), False, is_cut, True)

    def _take_up(self, message: bytes) -> None:
        if _type_of(message) in _OF_CLIENTS:
            self._asked.add(message)

    def _take_down(self, message: bytes) -> None:
        kind = _type_of(message)
        if kind == _HEARD:
            self._asked.add(message)
        elif kind in _ANSWERS:
            self._answered.add(message)


class _Kept:
    """The last messages up to a bound."""

    def __init__(self, most: int) -> None:
        self.messages: Final[deque[bytes]] = deque()
        self.is_cut = False
        self._most: Final = most
        self._n_bytes = 0

    def __repr__(self) -> str:
        return f"{self._n_bytes} bytes"

    def add(self, message: bytes) -> None:
        self.messages.append(message)
        self._n_bytes += len(message)
        while self._n_bytes > self._most:
            self._n_bytes -= len(self.messages.popleft())
            self.is_cut = True

    def miss(self) -> None:
        """Note that one was too long, which may have been sound."""
        self.is_cut = True

    def joined(self) -> bytes:
        """Return a list in JSON."""
        return b"[%b]" % b",".join(self.messages)


def _type_of(message: bytes) -> str:
    try:
        return _EVENT.decode(message).type
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
