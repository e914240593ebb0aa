"""The messages of one direction of a WebSocket, each held back until it was looked at (RFC 6455 §5).

A look may show that others must be asked first: then that message and what comes behind it wait for answered().

Knows: frames, masks and fragments. Does not know: what a message means, or who holds the connection. A stream that is
not as the RFC has it, or compressed, can't be looked at: `MessageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from velox.protocol.websocket.handshake import head_bytes, payload_bytes

__all__ = ["MOST_BYTES", "MessageError", "MessageGate"]

# Audio goes in messages of up to 15 MiB.
MOST_BYTES: Final = 16 * 1024 * 1024
_FIN: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_CONTROL: Final = 0x08
_CONTINUATION: Final = 0x0
_MASKED: Final = 0x80
_MOST_CONTROL_BYTES: Final = 125  # RFC 6455 §5.5
# Of a message, bytes that are not its content, as of a chunked body (protocol/http1/chunked.py).
_OVERHEAD_BYTES: Final = 16 * 1024
_OVERHEAD_SHARE: Final = 8
_PIECE_BYTES: Final = 64 * 1024  # a multiple of the mask's length


class MessageError(Exception):
    """The stream can't be followed; the text says why."""


class MessageGate:
    """Of a client's direction. most_bytes: of a message.

    check: is given each message, and whether others were asked about it; it raises if the message may not pass. It
    returns what must be asked first; nothing: the message passes.

    What is held beside a message, the heads of its fragments and control frames between them, is bounded too.
    """

    __slots__ = (
        *("_at", "_check", "_has_asked", "_held", "_in_message", "_is_whole", "_most_bytes", "_payload_bytes"),
        *("_start", "wanted"),
    )

    def __init__(self, check: Callable[[bytes, bool], Sequence[str]], most_bytes: int = MOST_BYTES) -> None:
        self.wanted: Sequence[str] = ()  # what must be asked before the next message may pass
        self._is_whole = False  # the message that ends at _at is, and was not passed on
        self._has_asked = False  # about that message
        self._check: Final = check
        self._most_bytes: Final = most_bytes
        self._held: Final = bytearray()  # that was not passed on, from the start of a frame
        self._at = 0  # where in it the next frame begins
        self._start = 0  # where the message begins
        self._payload_bytes = 0  # of its fragments so far
        self._in_message = False

    def __repr__(self) -> str:
        return f"<MessageGate held={len(self._held)}>"

    @property
    def held_bytes(self) -> int:
        """What was not passed on."""
        return len(self._held)

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may go on: whole frames of messages that were checked. Raises what `check` raises."""
        held = self._held
        held += data
        passed = 0
        while not self.wanted and (self._is_whole or self._take_frame()):
            if self._is_whole:
                self.wanted = self._check(self._message(self._at), self._has_asked)
                if self.wanted:
                    break
                self._is_whole = self._has_asked = False
            if not self._in_message:
                passed = self._start = self._at
                self._payload_bytes = 0
        out = bytes(memoryview(held)[:passed])
        del held[:passed]
        self._at -= passed
        self._start -= passed
        return out

    def answered(self) -> None:
        """Look again at the message that waits, with the next feed(): what was wanted is known now, or can't be."""
        self.wanted, self._has_asked = (), True

    def _take_frame(self) -> bool:
        """Go on behind the next frame; return False if it has not come as a whole. Raises MessageError."""
        frame = self._next_frame()
        if frame is None:
            return False
        first, _, content, self._at = frame
        if not first & _CONTROL:
            self._payload_bytes += self._at - content
            self._in_message = not first & _FIN
            self._is_whole = not self._in_message
        n_beside = self._at - self._start - self._payload_bytes
        if self._in_message and n_beside > _OVERHEAD_BYTES + self._payload_bytes // _OVERHEAD_SHARE:
            raise MessageError("a message has more framing than content; send larger fragments")
        return True

    def _next_frame(self) -> tuple[int, bytes, int, int] | None:
        """Return the next frame: first byte, mask, where its content begins and ends; None: it has not come as a whole.

        Raises MessageError.
        """
        found = _frame_at(self._held, self._at)
        if found is None:
            return None
        first, mask, content, end = found
        if not mask or first & _RESERVED:
            raise MessageError("a frame is not masked, or uses an extension that was not agreed on")
        if first & _CONTROL:
            if end - content > _MOST_CONTROL_BYTES or not first & _FIN:
                raise MessageError("a control frame is too long, or in fragments")
        elif (first & _OPCODE == _CONTINUATION) is not self._in_message:
            raise MessageError("the fragments of a message are out of order")
        elif end - content + self._payload_bytes > self._most_bytes:
            raise MessageError(f"a message is over {self._most_bytes} bytes")
        return found if end <= len(self._held) else None

    def _message(self, end: int) -> bytes:
        """Return the message that ends here. It was held as it came: its frames pass unchanged."""
        message = bytearray()
        at = self._start
        while at < end:
            found = _frame_at(self._held, at)
            assert found is not None, "each was read before"
            first, mask, content, at = found
            if not first & _CONTROL:
                for begin in range(content, at, _PIECE_BYTES):
                    message += _unmasked(bytes(self._held[begin : min(begin + _PIECE_BYTES, at)]), mask)
        return bytes(message)


def _frame_at(held: bytearray, at: int) -> tuple[int, bytes, int, int] | None:
    """Return a frame's first byte, its mask, where its content begins and ends; None: its head is not whole."""
    head = bytes(held[at : at + 14])
    n_head = head_bytes(head)
    if len(head) < n_head:
        return None
    mask = head[n_head - 4 : n_head] if head[1] & _MASKED else b""
    return head[0], mask, at + n_head, at + n_head + payload_bytes(head)


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    n_bytes = len(payload)
    key = (mask * (n_bytes // 4 + 1))[:n_bytes]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(key, "little")).to_bytes(n_bytes, "little")
