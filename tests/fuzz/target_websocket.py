"""Fuzz: the frames of a WebSocket that pass through, against a reader that has all the bytes at once.

Input: the bytes of one direction. Whatever they are, and however they are cut: Velox knows when it stands between two
frames, and which code the first whole Close frame gives, as the reader does; and a Close frame that it puts in between
two frames is read as one more frame.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.fuzz.wires import Pieces, cuttings
from velox.protocol.websocket.handshake import GOING_AWAY, NO_CODE, FrameScanner, close_frame

__all__ = ["run"]

_CLOSE = 8


class _Frame(NamedTuple):
    opcode: int
    payload: bytes


def run(data: bytes) -> None:
    """Follow a direction. Raises AssertionError, or what a bug raises."""
    frames, is_whole = _frames(data)
    closes = [frame.payload[:2] for frame in frames if frame.opcode == _CLOSE]
    code = None if not closes else int.from_bytes(closes[0], "big") if len(closes[0]) == 2 else NO_CODE
    for pieces in ([data], *cuttings(data)):
        scanner = _follow(pieces)
        assert scanner.between == is_whole, "between two frames, or not"
        assert scanner.close_code == code, f"closed with {scanner.close_code}, not {code}"
    assert _count(data) == len(frames), "frames end elsewhere"
    if is_whole:
        for mask in (b"", b"\x00\x81\xfe\x7f"):
            more, still = _frames(data + close_frame(GOING_AWAY, "the gateway is shutting down", mask))
            assert still and len(more) == len(frames) + 1, "what was put in is not one frame"
            assert more[-1].opcode == _CLOSE and more[-1].payload[:2] == GOING_AWAY.to_bytes(2, "big")


def _follow(pieces: Pieces) -> FrameScanner:
    scanner = FrameScanner()
    for piece in pieces:
        scanner.feed(piece)
    return scanner


def _count(data: bytes) -> int:
    """Return the number of whole frames, as feed_frame() finds them."""
    scanner, at, n_frames = FrameScanner(), 0, 0
    while at < len(data):
        after = scanner.feed_frame(data, at)
        assert after > at, "no progress"
        at = after
        n_frames += scanner.between
    return n_frames


def _frames(data: bytes) -> tuple[list[_Frame], bool]:
    """Return the whole frames (RFC 6455 §5.2), and whether nothing is left over."""
    frames: list[_Frame] = []
    while len(data) >= 2:
        length, at = data[1] & 0x7F, 2
        if length >= 126:
            at += 2 if length == 126 else 8
            length = int.from_bytes(data[2:at], "big")
        mask = data[at : at + 4] if data[1] & 0x80 else b""
        at += 4 if data[1] & 0x80 else 0
        if len(data) < at + length:
            return frames, False
        payload = data[at : at + length]
        if mask:
            payload = bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload))
        frames.append(_Frame(data[0] & 15, payload))
        data = data[at + length :]
    return frames, not data
