"""What is kept of a WebSocket's messages for its trace, where content is switched on: those that say something.

Knows: by which types of events the realtime and the Responses API say it, in which of their fields, and how much is
kept. Does not know: what is read in them (socket_content.py). Sound is in none of them: it goes in events of its own,
or in fields that are not kept.

    of each side    the last messages, and one that is not whole yet, of up to three quarters of that, 96 KiB at most
    of a worker     CaptureRoom: what all its WebSockets keep; what has no room is left out

Memory is at most twice what is said to be kept: a message counts with what it takes beside its text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from velox.observe.traces.record import ContentRecord
from velox.protocol.websocket.tap import MessageTap

__all__ = ["ROOM_BYTES", "CaptureRoom", "SocketCapture"]

ROOM_BYTES: Final = 32 * 1024 * 1024  # of a worker
_OF_CLIENTS: Final = frozenset({"conversation.item.create", "response.create", "session.update"})
# What a client has said, as the upstream has understood it; and answers, once they are whole.
_HEARD: Final = "conversation.item.input_audio_transcription.completed"
_ANSWERS: Final = frozenset({"response.done", "response.completed", "response.incomplete", "response.failed"})
_MESSAGE_BYTES: Final = 100  # beside its text
_CAPTURE_BYTES: Final = 4096  # beside its messages; 3.0 KiB measured
# To read one of these takes up to 3.5 ms, if it is of items without any text; of texts a tenth of that.
_MOST_OF_ONE: Final = 96 * 1024

# The fields that are exported, each as it came.
_Field: TypeAlias = Raw | UnsetType


class _Part(msgspec.Struct, omit_defaults=True, gc=False):
    type: _Field = UNSET
    text: _Field = UNSET
    refusal: _Field = UNSET
    transcript: _Field = UNSET


class _Item(msgspec.Struct, omit_defaults=True, gc=False):
    type: _Field = UNSET
    role: _Field = UNSET
    content: list[_Part] | str | UnsetType | None = UNSET
    id: _Field = UNSET
    call_id: _Field = UNSET
    name: _Field = UNSET
    arguments: _Field = UNSET
    output: _Field = UNSET
    summary: _Field = UNSET


class _Inner(msgspec.Struct, omit_defaults=True, gc=False):
    """A session or a response."""

    instructions: _Field = UNSET
    input: list[_Item] | str | UnsetType | None = UNSET
    output: list[_Item] | UnsetType | None = UNSET
    status: _Field = UNSET


class _Event(_Inner, omit_defaults=True, gc=False):
    type: str | UnsetType = UNSET
    item: _Item | UnsetType | None = UNSET
    session: _Inner | UnsetType | None = UNSET
    response: _Inner | UnsetType | None = UNSET
    transcript: _Field = UNSET


class _Kind(msgspec.Struct):
    type: str = ""


_KIND: Final = msgspec.json.Decoder(_Kind)
_EVENT: Final = msgspec.json.Decoder(_Event)
_WRONG: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


class CaptureRoom:
    """Bytes that all captures of a worker may keep together."""

    def __init__(self, most: int = ROOM_BYTES) -> None:
        self._most: Final = most
        self.n_bytes = 0  # that are taken

    def __repr__(self) -> str:
        return f"<CaptureRoom {self.n_bytes} of {self._most} bytes>"

    def take(self, n_bytes: int) -> bool:
        """Take so many; False: there are not so many left, and none is taken."""
        if self.n_bytes + n_bytes > self._most:
            return False
        self.n_bytes += n_bytes
        return True

    def give(self, n_bytes: int) -> None:
        """Give so many back."""
        self.n_bytes -= n_bytes


class SocketCapture:
    """Of one tunnel, from begin() to end(). most: bytes that are kept of each side. up, down: read it."""

    def __init__(self, most: int, room: CaptureRoom) -> None:
        self._room: Final = room
        self._n_taken = 0  # for itself
        self._asked: Final = _Kept(most, room)
        self._answered: Final = _Kept(most, room)
        of_one = min(most * 3 // 4, _MOST_OF_ONE)
        up = dict.fromkeys(_OF_CLIENTS, self._asked)
        down = {_HEARD: self._asked, **dict.fromkeys(_ANSWERS, self._answered)}
        self._sinks: Final = (_Sink(up, self._asked, of_one, room), _Sink(down, self._answered, of_one, room))
        self.up: Final = MessageTap(self._sinks[0])
        self.down: Final = MessageTap(self._sinks[1])

    def __repr__(self) -> str:
        return f"<SocketCapture {self._asked!r} {self._answered!r}>"

    def begin(self) -> None:
        """Read messages from now on; none where the worker has no room for it, which the record then says."""
        if self._room.take(_CAPTURE_BYTES):
            self._n_taken = _CAPTURE_BYTES
        else:
            self._asked.is_cut = True
            self._close()

    def end(self) -> None:
        """Keep nothing any more."""
        self._close()
        for kept in (self._asked, self._answered):
            kept.clear()
        self._room.give(self._n_taken)
        self._n_taken = 0

    def record(self) -> ContentRecord | None:
        """Return what was kept; None: nothing was said."""
        is_cut = self._asked.is_cut or self._answered.is_cut
        if not (self._asked.messages or self._answered.messages or is_cut):
            return None
        return ContentRecord(self._asked.packed(), self._answered.packed(), False, is_cut, True)

    def _close(self) -> None:
        self.up.close()
        self.down.close()
        for sink in self._sinks:
            sink.drop()


class _Kept:
    """The last messages up to a bound, with the fields that are exported. is_cut: there were more."""

    def __init__(self, most: int, room: CaptureRoom) -> None:
        self.messages: Final[deque[bytes]] = deque()
        self.is_cut = False
        self._most: Final = most
        self._room: Final = room
        self._n_bytes = 0

    def __repr__(self) -> str:
        return f"{self._n_bytes} bytes"

    def add(self, message: bytes) -> None:
        """Keep a message, in place of the first ones if need be."""
        try:
            kept = bytes(memoryview(msgspec.json.encode(_EVENT.decode(message))))  # as it is, it has half as much again
        except _WRONG:
            self.is_cut = True
            return
        n_bytes = len(kept) + _MESSAGE_BYTES
        if n_bytes > self._most:
            self.is_cut = True
            return
        while self._n_bytes + n_bytes > self._most:
            self._drop_first()
        if not self._room.take(n_bytes):
            self.is_cut = True
            return
        self.messages.append(kept)
        self._n_bytes += n_bytes

    def _drop_first(self) -> None:
        n_bytes = len(self.messages.popleft()) + _MESSAGE_BYTES
        self._n_bytes -= n_bytes
        self._room.give(n_bytes)
        self.is_cut = True

    def clear(self) -> None:
        """Keep nothing any more."""
        self.messages.clear()
        self._room.give(self._n_bytes)
        self._n_bytes = 0

    def packed(self) -> bytes:
        """Return the messages as a list in MessagePack."""
        return msgspec.msgpack.encode(list(self.messages))


class _Sink:
    """Of one direction. kinds: of events, with where each is kept. usual: is told of what is left out unread.

    of_one: bytes of a message.
    """

    def __init__(self, kinds: Mapping[str, _Kept], usual: _Kept, of_one: int, room: CaptureRoom) -> None:
        self._kinds: Final = kinds
        self._usual: Final = usual
        self._of_one: Final = of_one
        self._room: Final = room
        self._n_held = 0  # bytes of the message that has begun

    def hold(self, n_bytes: int) -> bool:
        """See MessageSink. One that is too long may have been sound."""
        if self._n_held + n_bytes > self._of_one or not self._room.take(n_bytes):
            self.drop()
            self._usual.is_cut = True
            return False
        self._n_held += n_bytes
        return True

    def take(self, message: bytes) -> None:
        """See MessageSink."""
        self.drop()
        try:
            kept = self._kinds.get(_KIND.decode(message).type)
        except msgspec.ValidationError:  # JSON, and no event
            return
        except _WRONG:
            if message.lstrip().startswith(b"{"):
                self._usual.is_cut = True
            return
        if kept is not None:
            kept.add(message)

    def drop(self) -> None:
        """See MessageSink."""
        self._room.give(self._n_held)
        self._n_held = 0

    def passed_over(self) -> None:
        """See MessageSink."""
        self.drop()
        self._usual.is_cut = True
