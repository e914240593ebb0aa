"""A picture that clients read from a file."""

from __future__ import annotations

import struct
import zlib
from typing import Final

__all__ = ["BEGINS", "red_square"]

# What the picture's base64 begins with, wherever it comes up.
BEGINS: Final = "iVBORw0KGgo"


def red_square(side: int = 16) -> bytes:
    """Return a PNG."""
    rows = b"".join(b"\0" + b"\xff\0\0" * side for _ in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
