"""The text messages of one direction of a WebSocket, read as they pass (RFC 6455 §5).

Knows: frames, masks and fragments, of either side. Does not know: what a message means. It refuses nothing: what can't
be followed, is compressed, or is too long is passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from velox.protocol.websocket.frames import TEXT
from velox.protocol.websocket.handshake import head_bytes, payload_bytes

__all__ = ["MessageTap"]

_FIN: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_CONTROL: Final = 0x08
_CONTINUATION: Final = 0x0
_MASKED: Final = 0x80


class MessageTap:
    """take: is given each message that is whole. most_bytes: of one; passed_over: is called for each longer one."""

    __slots__ = ("_head", "_is_fin", "_left", "_mask", "_message", "_most", "_passed_over", "_reads", "_take", "_turn")

    def __init__(self, take: Callable[[bytes], None], most_bytes: int, passed_over: Callable[[], None]) -> None:
        self._take: Final = take
        self._most: Final = most_bytes
        self._passed_over: Final = passed_over
        self._head = b""  # of a frame, as far as it has come
        self._left = 0  # bytes of the open frame's payload still to come
        self._mask = b""
        self._turn = 0  # of the mask, at the next byte
        self._is_fin = False
        self._reads = False  # the frame that is open belongs to a message that is read
        self._message: bytearray | None = None  # None: none has begun that is read

    def __repr__(self) -> str:
        return f"<MessageTap held={len(self._message or b'')}>"

    def feed(self, data: bytes) -> bytes:
        """Read what passes, and return it as it is."""
        at, n_bytes = 0, len(data)
        while at < n_bytes:
            if not self._left:
                at = self._read_head(data, at)
            else:
                end = min(n_bytes, at + self._left)
                self._left -= end - at
                if self._reads:
                    self._read(data[at:end])
                at = end
            if not self._left and not self._head:
                self._end_frame()
        return data

    def _read_head(self, data: bytes, at: int) -> int:
        """Take a frame's head, or what there is of it; return where it ends."""
        while len(self._head) < head_bytes(self._head):
            if at == len(data):
                return at
            self._head += data[at : at + 1]
            at += 1
        head, self._head = self._head, b""
        self._left, self._turn = payload_bytes(head), 0
        self._mask = head[-4:] if head[1] & _MASKED else b""
        opcode = head[0] & _OPCODE
        if opcode & _CONTROL:
            self._reads = self._is_fin = False
            return at
        if opcode != _CONTINUATION:
            self._message = bytearray() if opcode == TEXT and not head[0] & _RESERVED else None
        self._is_fin = bool(head[0] & _FIN)
        self._reads = self._message is not None
        if self._message is not None and len(self._message) + self._left > self._most:
            self._message, self._reads = None, False
            self._passed_over()
        return at

    def _read(self, piece: bytes) -> None:
        assert self._message is not None, "one is read"
        n_bytes = len(piece)
        if self._mask:
            turned = self._mask[self._turn :] + self._mask[: self._turn]
            key = (turned * (n_bytes // 4 + 1))[:n_bytes]
            piece = (int.from_bytes(piece) ^ int.from_bytes(key)).to_bytes(n_bytes)
            self._turn = (self._turn + n_bytes) % 4
        self._message += piece

    def _end_frame(self) -> None:
        if self._reads and self._is_fin and self._message is not None:
            message, self._message, self._reads = bytes(self._message), None, False
            self._take(message)
