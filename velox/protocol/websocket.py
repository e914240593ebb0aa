"""WebSocket frames, as far as a tunnel that passes them on unchanged needs them (RFC 6455 §5.2).

Knows: where each frame ends, the code in a Close frame, and the one frame that Velox sends itself. Does not know:
payloads, extensions, whether a frame is allowed: the two endpoints judge each other.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GOING_AWAY", "NO_CODE", "FrameScanner", "close_frame"]

# RFC 6455 §7.4.1.
GOING_AWAY: Final = 1001
NO_CODE: Final = 1005  # stands for a Close frame that gives none; never on a wire

_CLOSE: Final = 0x8
_FIN: Final = 0x80
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127
_MAX_HEAD_BYTES: Final = 14
_MAX_CONTROL_BYTES: Final = 125  # §5.5, what a control frame may carry


class FrameScanner:
    """Follows one direction of a WebSocket: does it stand between two frames, has it been closed, and why?

    However the bytes are cut into pieces, the answers are the same. It keeps at most 13 bytes. A length that no frame
    may have (above 2^63) is believed: such a direction comes to no end of a frame, and nothing is put into it.
    close_code: of the first Close frame that was whole; None before.
    """

    __slots__ = ("_code", "_head", "_is_close", "_left", "_mask", "close_code")

    def __init__(self) -> None:
        self._head = b""  # of a frame, as far as it has come
        self._left = 0  # bytes of the open frame's payload still to come
        self._is_close = False
        self._code = b""
        self._mask = b""
        self.close_code: int | None = None

    def __repr__(self) -> str:
        return f"<FrameScanner {'between' if self.between else 'in a frame'} close={self.close_code}>"

    @property
    def between(self) -> bool:
        """True when a frame may be put in here without touching another one."""
        return not self._left and not self._head

    def feed(self, data: bytes) -> None:
        """Follow bytes that were passed on."""
        at, n_bytes = 0, len(data)
        while at < n_bytes:
            at = self.feed_frame(data, at)

    def feed_frame(self, data: bytes, at: int = 0) -> int:
        """Follow bytes, from `at` to the end of the frame that is open there or begins there.

        Return where that is; where the data ends, if the frame goes on.
        """
        if not self._left:
            at = self._read_head(data, at)
            if self._head:
                return at
        n_taken = min(self._left, len(data) - at)
        if self._is_close:
            self._code += data[at : at + min(n_taken, 2 - len(self._code))]
        self._left -= n_taken
        if not self._left:
            self._end_frame()
        return at + n_taken

    def _read_head(self, data: bytes, at: int) -> int:
        n_known = len(self._head)
        head = self._head + data[at : at + _MAX_HEAD_BYTES - n_known]
        n_bytes = _head_bytes(head)
        if len(head) < n_bytes:
            self._head = head
            return len(data)
        self._head = b""
        length = head[1] & _LENGTH
        if length == _LENGTH_16:
            length = int.from_bytes(head[2:4])
        elif length == _LENGTH_64:
            length = int.from_bytes(head[2:10])
        self._left = length
        self._is_close = head[0] & 0xF == _CLOSE
        if self._is_close:
            self._code = b""
            self._mask = head[n_bytes - 4 : n_bytes] if head[1] & _MASKED else b""
        return at + n_bytes - n_known

    def _end_frame(self) -> None:
        if self._is_close:
            self._is_close = False
            if self.close_code is None:
                code = _masked(self._code, self._mask)
                self.close_code = int.from_bytes(code) if len(code) == 2 else NO_CODE


def close_frame(code: int, text: str, mask: bytes = b"") -> bytes:
    """Return a Close frame. text: why, for people; short. mask: 4 unpredictable bytes towards a server, else none."""
    payload = code.to_bytes(2) + text.encode()
    assert len(payload) <= _MAX_CONTROL_BYTES, "the texts are Velox's own"
    head = bytes((_FIN | _CLOSE, (_MASKED if mask else 0) | len(payload)))
    return head + mask + _masked(payload, mask)


def _head_bytes(head: bytes) -> int:
    """Return how long a frame's head is, as far as what has come of it tells."""
    if len(head) < 2:
        return 2
    length = head[1] & _LENGTH
    n_bytes = 2 + (2 if length == _LENGTH_16 else 8 if length == _LENGTH_64 else 0)
    return n_bytes + 4 if head[1] & _MASKED else n_bytes


def _masked(payload: bytes, mask: bytes) -> bytes:
    """Return the payload masked, or unmasked, which is the same (§5.3)."""
    return bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload)) if mask else payload
