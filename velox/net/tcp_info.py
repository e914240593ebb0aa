"""How many bytes a TCP connection has carried, as the kernel counts them (Linux, struct tcp_info).

Knows: where in that structure they stand (linux/tcp.h). Does not know: what a connection is for.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

__all__ = ["transferred"]

_INFO_BYTES: Final = 256
_BOTH: Final = struct.Struct("=120xQQ")  # tcpi_bytes_acked, tcpi_bytes_received, which Linux has since 4.1


def transferred(descriptor: int) -> tuple[int | None, int | None]:
    """Return the bytes that came, and those that the peer's kernel has acknowledged; None each of what is no TCP."""
    if descriptor < 0:
        return None, None
    try:
        # Without asking for its family: a socket is made without a system call, and not closed.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:
        return None, None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None, None
    finally:
        sock.detach()
    if len(info) < _BOTH.size:
        return None, None
    acked, received = _BOTH.unpack_from(info)
    return int(received), max(0, int(acked) - 1)  # the handshake counts as one
