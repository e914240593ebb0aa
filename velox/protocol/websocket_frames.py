"""The frames of a WebSocket's server: a client's messages in, a server's frames out (RFC 6455 §5).

Knows: frames, masks, fragments, control frames between them. Does not know: what a message means, or when one is sent.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BINARY", "CLOSE", "MOST_BYTES", "PING", "PONG", "TEXT", "FrameReader", "close_code_of", "frame"]

_CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
MOST_BYTES: Final = 16 * 1024 * 1024  # of a message
_FIN: Final = 0x80
_RESERVED: Final = 0x70
_MASKED: Final = 0x80
_MOST_CONTROL_BYTES: Final = 125  # §5.5
_NORMAL: Final = 1000


def frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """Return a server's frame."""
    n_bytes = len(payload)
    if n_bytes < 126:
        return bytes((_FIN | opcode, n_bytes)) + payload
    if n_bytes < 65536:
        return bytes((_FIN | opcode, 126)) + n_bytes.to_bytes(2) + payload
    return bytes((_FIN | opcode, 127)) + n_bytes.to_bytes(8) + payload


def close_code_of(payload: bytes) -> int:
    """Return the code to answer a client's Close frame with: its own, or 1000 where it gives none."""
    return int.from_bytes(payload[:2]) if len(payload) >= 2 else _NORMAL


class FrameReader:
    """A client's frames: feed() returns whole messages and control frames, each with its opcode."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """most_bytes: of a message."""
        self._most_bytes: Final = most_bytes
        self._held = bytearray()
        self._message = bytearray()
        self._opcode = _CONTINUATION  # of the message that has begun

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take what came. Raises ValueError for what no client may send."""
        self._held += data
        found: list[tuple[int, bytes]] = []
        while (taken := self._take()) is not None:
            first, payload = taken
            opcode = first & 0xF
            if first & _RESERVED:
                raise ValueError("a reserved bit is set")
            if opcode >= CLOSE:
                if not first & _FIN or len(payload) > _MOST_CONTROL_BYTES:
                    raise ValueError("a control frame is too long, or in fragments")
                found.append((opcode, payload))
                continue
            if (opcode == _CONTINUATION) is (self._opcode == _CONTINUATION):
                raise ValueError("a message begins within another, or goes on before it began")
            self._opcode = opcode or self._opcode
            self._message += payload
            if len(self._message) > self._most_bytes:
                raise ValueError("the message is too long")
            if first & _FIN:
                found.append((self._opcode, bytes(self._message)))
                self._message.clear()
                self._opcode = _CONTINUATION
        return found

    def _take(self) -> tuple[int, bytes] | None:
        held = self._held
        if len(held) < 2:
            return None
        if not held[1] & _MASKED:
            raise ValueError("a client's frame is not masked")
        length, at = held[1] & 0x7F, 2
        if length >= 126:
            n_more = 2 if length == 126 else 8
            if len(held) < 2 + n_more:
                return None
            length, at = int.from_bytes(held[2 : 2 + n_more]), 2 + n_more
        if length > self._most_bytes:
            raise ValueError("the frame is too long")
        end = at + 4 + length
        if len(held) < end:
            return None
        mask = bytes(held[at : at + 4]) * (length // 4 + 1)
        payload = (int.from_bytes(held[at + 4 : end]) ^ int.from_bytes(mask[:length])).to_bytes(length)
        first = held[0]
        del held[:end]
        return first, payload
