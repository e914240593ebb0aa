"""The frames of a WebSocket's server: a client's messages in, a server's frames out (RFC 6455 §5).

Knows: frames, masks, fragments, control frames between them. Does not know: what a message means, or when one is sent.
"""

from __future__ import annotations

from typing import Final

from velox.protocol.websocket.handshake import head_bytes, payload_bytes

__all__ = [
    "BINARY",
    "CLOSE",
    "MOST_BYTES",
    "PART",
    "PING",
    "PONG",
    "TEXT",
    "FrameReader",
    "TooLongError",
    "close_code_of",
    "frame",
]

_CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
MOST_BYTES: Final = 16 * 1024 * 1024  # of a message
_LONG_BYTES: Final = 256 * 1024
PART: Final = (_CONTINUATION, b"")  # a frame with nothing to act on
_FIN: Final = 0x80
_RESERVED: Final = 0x70
_MASKED: Final = 0x80
_MOST_CONTROL_BYTES: Final = 125  # §5.5
_MOST_HEAD_BYTES: Final = 14
_NORMAL: Final = 1000
_OPCODES: Final = frozenset({_CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
# §7.4: what a Close frame may say. 1012 to 1014 were registered later; 1004 to 1006 and 1015 are in no frame.
_CLOSE_CODES: Final = frozenset({*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)})


def frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """Return a server's frame."""
    n_bytes = len(payload)
    if n_bytes < 126:
        return bytes((_FIN | opcode, n_bytes)) + payload
    if n_bytes < 65536:
        return bytes((_FIN | opcode, 126)) + n_bytes.to_bytes(2) + payload
    return bytes((_FIN | opcode, 127)) + n_bytes.to_bytes(8) + payload


def close_code_of(payload: bytes) -> int:
    """Return the code to answer a client's Close frame with: its own, or 1000 where it gives none.

    Raises ValueError for half a code, and for one that no frame may hold.
    """
    code = int.from_bytes(payload[:2]) if payload else _NORMAL
    if len(payload) == 1 or code not in _CLOSE_CODES:
        raise ValueError("a Close frame has no valid code")
    return code


class TooLongError(ValueError):
    """A message is longer than it may be."""


class FrameReader:
    """A client's frames, as whole messages and control frames, each with its opcode.

    add(), then take() until it has no more, or feed() for both. A payload is unmasked as it comes: beside what was
    added and not taken, no more than one message is held, in however many fragments it comes. take() reads one frame:
    a read may hold thousands of them, and the caller decides how many are for now.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """most_bytes: of a message."""
        self._most_bytes: Final = most_bytes
        self._data = b""  # that was added
        self._at = 0  # how far in it was read
        self._first = 0  # byte of the frame that has begun
        self._mask = b""  # of it, from the next byte on; b"": none has begun
        self._left = 0  # bytes of it still to come
        self._control = bytearray()
        self._message = bytearray()
        self._opcode = _CONTINUATION  # of the message that has begun
        self._keeps = True

    def __repr__(self) -> str:
        return f"<FrameReader held={len(self._message)} left={self._left}>"

    @property
    def held_bytes(self) -> int:
        """Of the message that has begun, as far as it has come."""
        return len(self._message)

    def feed(self, data: bytes) -> list[tuple[int, bytes | bytearray]]:
        """Return what is whole with these bytes. Raises as take()."""
        self.add(data)
        return [taken for taken in iter(self.take, None) if taken is not PART]

    def add(self, data: bytes) -> None:
        """Note what came."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def skip_messages(self) -> None:
        """Hold no message from now on: control frames alone are returned."""
        self._keeps = False
        self._message.clear()

    def take(self) -> tuple[int, bytes | bytearray] | None:
        """Read the next frame; None: it is not whole. Return what is whole with it, or PART for a fragment.

        A long message is not copied once more: to do so takes a millisecond for each two megabytes.
        Raises ValueError for what no client may send.
        """
        if not self._mask and not self._begin():
            return None
        is_control = self._first & 0xF >= CLOSE
        self._read(self._control if is_control else self._message)
        if self._left:
            return None
        self._mask = b""
        if is_control:
            payload = bytes(self._control)
            self._control.clear()
            return self._first & 0xF, payload
        if not self._first & _FIN:
            return PART
        opcode, self._opcode = self._opcode, _CONTINUATION
        if not self._keeps:
            return PART
        message = self._message
        if len(message) > _LONG_BYTES:
            self._message = bytearray()
            return opcode, message
        text = bytes(message)
        message.clear()
        return opcode, text

    def _begin(self) -> bool:
        """Read the head of a frame; False: it is not whole."""
        head = self._data[self._at : self._at + _MOST_HEAD_BYTES]
        if len(head) < 2:
            return False
        if not head[1] & _MASKED:
            raise ValueError("a client's frame is not masked")
        if head[0] & _RESERVED:
            raise ValueError("a reserved bit is set")
        n_bytes = head_bytes(head)
        if len(head) < n_bytes:
            return False
        length = payload_bytes(head)
        opcode = head[0] & 0xF
        if opcode not in _OPCODES:
            raise ValueError("an opcode is reserved")
        if opcode >= CLOSE:
            if not head[0] & _FIN or length > _MOST_CONTROL_BYTES:
                raise ValueError("a control frame is too long, or in fragments")
        elif (opcode == _CONTINUATION) is (self._opcode == _CONTINUATION):
            raise ValueError("a message begins within another, or goes on before it began")
        elif len(self._message) + length > self._most_bytes:
            raise TooLongError(f"a message is over {self._most_bytes} bytes")
        else:
            self._opcode = opcode or self._opcode
        self._first, self._mask, self._left = head[0], head[n_bytes - 4 : n_bytes], length
        self._at += n_bytes
        return True

    def _read(self, into: bytearray) -> None:
        """Read what has come of a payload."""
        piece = self._data[self._at : self._at + self._left]
        n_bytes = len(piece)
        self._at += n_bytes
        self._left -= n_bytes
        if self._keeps or into is self._control:
            key = (self._mask * (n_bytes // 4 + 1))[:n_bytes]
            into += (int.from_bytes(piece) ^ int.from_bytes(key)).to_bytes(n_bytes)
        turned = n_bytes % 4
        self._mask = self._mask[turned:] + self._mask[:turned]
