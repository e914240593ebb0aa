"""The text messages of one direction of a WebSocket, read as they pass (RFC 6455 §5).

Knows: frames, masks and fragments, of either side. Does not know: what a message means, or how much may be held. It
refuses nothing: what can't be followed, or is compressed, is passed over. So is the rest of a read that has more frames
than a turn of the loop has time for; where these are more than can even be followed in it, no more is read.
"""

from __future__ import annotations

from typing import Final, Protocol

from velox.protocol.websocket.frames import TEXT
from velox.protocol.websocket.handshake import head_bytes, payload_bytes

__all__ = ["MOST_FRAMES", "MOST_PASSED", "MessageSink", "MessageTap"]

# Of one read, of 64 KiB: an event of an API has more than a hundred bytes, and a fragment of one more than a few.
MOST_FRAMES: Final = 512
MOST_PASSED: Final = 4096  # heads that are only followed: 2 ms
_MOST_HEAD_BYTES: Final = 14
_FIN: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_CONTROL: Final = 0x08
_CONTINUATION: Final = 0x0
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_LONG: Final = 126  # lengths from here on stand behind the second byte


class MessageSink(Protocol):
    """What gets the messages."""

    def hold(self, n_bytes: int) -> bool:
        """Say whether so many more bytes of a message may be held; if not, it is passed over, and none of it is."""

    def take(self, message: bytes) -> None:
        """Take a message that is whole. It is not held any more."""

    def drop(self) -> None:
        """The message that was held will not become whole; perhaps there was none."""

    def passed_over(self) -> None:
        """Frames are not read: there are too many at once. Nothing is held any more."""


class MessageTap:
    """sink: gets each text message. One is held until it is whole, as far as the sink lets it."""

    __slots__ = ("_head", "_is_fin", "_is_off", "_left", "_mask", "_message", "_reads", "_sink", "_turn")

    def __init__(self, sink: MessageSink) -> None:
        self._sink: Final = sink
        self._is_off = False
        self._head = b""  # of a frame, as far as it has come
        self._left = 0  # bytes of the open frame's payload still to come
        self._mask = b""
        self._turn = 0  # of the mask, at the next byte
        self._is_fin = False
        self._reads = False  # the frame that is open belongs to a message that is read
        self._message: bytearray | None = None  # None: none has begun that is read

    def __repr__(self) -> str:
        return f"<MessageTap held={len(self._message or b'')}{' off' if self._is_off else ''}>"

    def feed(self, data: bytes) -> bytes:
        """Read what passes, and return it as it is."""
        if self._is_off:
            return data
        at, n_bytes, n_frames = 0, len(data), 0
        while at < n_bytes:
            if not self._left:
                if n_frames == MOST_FRAMES:
                    self._message, self._reads = None, False
                    self._sink.passed_over()
                    at, n_frames = self._pass_over(data, at), 0
                    if at < 0:
                        self.close()
                        break
                at = self._read_head(data, at)
                n_frames += 1
            else:
                end = min(n_bytes, at + self._left)
                self._left -= end - at
                if self._reads:
                    self._read(data[at:end])
                at = end
            if not self._left and not self._head:
                self._end_frame()
        return data

    def close(self) -> None:
        """Read nothing from now on, and hold nothing."""
        self._is_off, self._message, self._reads = True, None, False

    def _pass_over(self, data: bytes, at: int) -> int:
        """Follow the frames that end in this read, as far as their heads are whole; return where the next begins.

        Negative: they are too many.
        """
        n_bytes = len(data)
        for _ in range(MOST_PASSED):
            if n_bytes - at < _MOST_HEAD_BYTES:
                return at
            second = data[at + 1]
            length = second & _LENGTH
            if length < _LONG:
                end = at + 2 + length
            else:
                head = data[at : at + _MOST_HEAD_BYTES]
                end = at + head_bytes(head) + payload_bytes(head)
                second = 0  # the mask is counted
            if second & _MASKED:
                end += 4
            if end > n_bytes:
                return at
            at = end
        return -1

    def _read_head(self, data: bytes, at: int) -> int:
        """Take a frame's head, or what there is of it; return where it ends."""
        n_known = len(self._head)
        head = self._head + data[at : at + _MOST_HEAD_BYTES - n_known]
        n_bytes = head_bytes(head)
        if len(head) < n_bytes:
            self._head = head
            return len(data)
        self._head = b""
        self._left, self._turn = payload_bytes(head), 0
        self._mask = head[n_bytes - 4 : n_bytes] if head[1] & _MASKED else b""
        self._begin_frame(head[0])
        return at + n_bytes - n_known

    def _begin_frame(self, first: int) -> None:
        opcode = first & _OPCODE
        if opcode & _CONTROL:
            self._reads = self._is_fin = False
            return
        if opcode != _CONTINUATION:
            self._sink.drop()
            self._message = bytearray() if opcode == TEXT and not first & _RESERVED else None
        self._is_fin = bool(first & _FIN)
        self._reads = self._message is not None
        if self._reads and not self._sink.hold(self._left):
            self._message, self._reads = None, False

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
            self._sink.take(message)
