"""HTTP/2 frames by hand, for what no library would send (RFC 9113 §4.1, §6).

Knows: the nine bytes before a frame, and each fault's frames. Does not know: streams' states, or what a peer makes.
"""

from __future__ import annotations

from typing import Final

import hpack

__all__ = [
    "CONTINUATION",
    "DATA",
    "END_HEADERS",
    "END_STREAM",
    "HEADERS",
    "PING",
    "RST_STREAM",
    "SETTINGS",
    "WINDOW_UPDATE",
    "fields",
    "frame",
]

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PING: Final = 6
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
END_STREAM: Final = 1
END_HEADERS: Final = 4


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def fields(encoder: hpack.Encoder, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return headers as they are, unchecked. encoder: the connection's own, so that later ones are still understood."""
    return bytes(encoder.encode(headers))
