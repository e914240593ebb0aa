"""The ways in which a client leaves a socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Final

__all__ = ["LEAVING", "Leave", "close", "half_close", "reset"]

Leave = Callable[[socket.socket], None]


def close(sock: socket.socket) -> None:
    """Leave in good order: FIN."""
    sock.close()


def reset(sock: socket.socket) -> None:
    """Leave by a reset: RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def half_close(sock: socket.socket) -> None:
    """Close the sending side only, which counts as leaving."""
    sock.shutdown(socket.SHUT_WR)


LEAVING: Final = (close, reset, half_close)
