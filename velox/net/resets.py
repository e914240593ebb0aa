"""Closing a connection so that its peer can't take it for a clean end.

Knows: the socket option for it. Does not know: when that is wanted.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

__all__ = ["reset"]

# struct linger {on, 0 s}: close() sends RST instead of FIN.
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


def reset(transport: asyncio.Transport) -> None:
    """Close with a reset; what was not sent is dropped."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    transport.abort()
