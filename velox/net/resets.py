"""Closing a connection so that its peer can't take it for a clean end.

Knows: the socket option for it. Does not know: when that is wanted.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

__all__ = ["at_any_close", "at_no_close", "reset"]

# struct linger {on, 0 s}: close() sends RST instead of FIN.
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
_FIN_AT_CLOSE: Final = struct.pack("ii", 0, 0)


def at_any_close(transport: asyncio.Transport) -> None:
    """Reset the connection whenever it is closed: also by the kernel, when this process is killed."""
    _set(transport, _RESET_AT_CLOSE)


def at_no_close(transport: asyncio.Transport) -> None:
    """Undo at_any_close()."""
    _set(transport, _FIN_AT_CLOSE)


def reset(transport: asyncio.Transport) -> None:
    """Close with a reset; what was not sent is dropped."""
    at_any_close(transport)
    transport.abort()


def _set(transport: asyncio.Transport, linger: bytes) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
