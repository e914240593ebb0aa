"""The messages of one direction of a WebSocket, each held back until it was looked at (RFC 6455 §5).

Knows: frames, masks and fragments. Does not know: what a message means, or who holds the connection. A stream that is
not as the RFC has it, or compressed, can't be looked at: `MessageError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velox.protocol.websocket import head_bytes

__all__ = ["MessageError", "MessageGate"]

# Audio goes in messages of up to 15 MiB.
MOST_BYTES: Final = 16 * 1024 * 1024
_FIN: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_CONTROL: Final = 0x08
_CONTINUATION: Final = 0x0
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F


class MessageError(Exception):
    """The stream can't be followed; the text says why."""


class MessageGate:
    """Of a client's direction. check: is given each message, and raises if it may not pass."""

    __slots__ = ("_at", "_check", "_held", "_in_message", "_message")

    def __init__(self, check: Callable[[bytes], None]) -> None:
        self._check: Final = check
        self._held: Final = bytearray()  # that was not passed on, from the start of a frame
        self._at = 0  # where in it the next frame begins
        self._message: Final = bytearray()  # of fragments so far
        self._in_message = False

    def __repr__(self) -> str:
        return f"<MessageGate held={len(self._held)}>"

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may go on: whole frames of messages that were checked. Raises what `check` raises."""
        held = self._held
        held += data
        passed = 0
        while (end := self._frame_end()) > 0:
            self._read_frame(end)
            self._at = end
            if not self._in_message:
                passed = end
        out = bytes(held[:passed])
        del held[:passed]
        self._at -= passed
        return out

    def _frame_end(self) -> int:
        """Return where the next frame ends; 0: it has not come as a whole. Raises MessageError."""
        held, at = self._held, self._at
        head = bytes(held[at : at + 14])
        n_head = head_bytes(head)
        if len(head) < max(2, n_head):
            return 0
        length = head[1] & _LENGTH
        if length == 126:
            length = int.from_bytes(head[2:4])
        elif length == 127:
            length = int.from_bytes(head[2:10])
        if not head[1] & _MASKED or head[0] & _RESERVED:
            raise MessageError("a frame is not masked, or uses an extension that was not agreed on")
        if length + len(self._message) > MOST_BYTES:
            raise MessageError(f"a message is over {MOST_BYTES >> 20} MiB")
        end = at + n_head + length
        return end if end <= len(held) else 0

    def _read_frame(self, end: int) -> None:
        held, at = self._held, self._at
        first = held[at]
        opcode = first & _OPCODE
        if opcode & _CONTROL:
            return
        if (opcode == _CONTINUATION) is not self._in_message:
            raise MessageError("the fragments of a message are out of order")
        content = at + head_bytes(bytes(held[at : at + 14]))
        self._message.extend(_unmasked(bytes(held[content:end]), bytes(held[content - 4 : content])))
        self._in_message = not first & _FIN
        if not self._in_message:
            message = bytes(self._message)
            self._message.clear()
            self._check(message)


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    n_bytes = len(payload)
    key = (mask * (n_bytes // 4 + 1))[:n_bytes]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(key, "little")).to_bytes(n_bytes, "little")
