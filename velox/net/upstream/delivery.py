"""What TCP knows of the bytes that were sent on a connection: whether the peer has received them.

A server may close an idle connection at the moment when a request is written to it. Nothing in HTTP/1.1 tells that from
a server that has read the request and failed. TCP does: the end of a connection that was closed first acknowledges
nothing of the request, and one that was closed after the request had come acknowledges it.

Knows: Linux's TCP_INFO. Does not know: what was sent, or what follows.
Source: tcp(7); struct tcp_info in linux/tcp.h: tcpi_bytes_acked (Linux 4.1) counts the SYN as one byte (RFC 4898).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

__all__ = ["n_unacknowledged"]

_INFO_BYTES: Final = 256
_LEAST_BYTES: Final = 216  # up to tcpi_bytes_retrans, which Linux has since 4.19
_ACKED: Final = struct.Struct("=120xQ")
_NOT_SENT: Final = struct.Struct("=144xI")
_SENT: Final = struct.Struct("=200xQQ")  # tcpi_bytes_sent, tcpi_bytes_retrans


def n_unacknowledged(transport: asyncio.Transport) -> int | None:
    """Return how many of the bytes that the kernel has taken the peer's kernel has not acknowledged.

    None: that can't be known, as with unix sockets. Only while the transport's socket is open: up to the protocol's
    connection_lost(), except for TLS, where the socket is closed by then.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    if len(info) < _LEAST_BYTES:
        return None
    acked: int = _ACKED.unpack_from(info)[0]
    not_sent: int = _NOT_SENT.unpack_from(info)[0]
    sent, sent_again = _SENT.unpack_from(info)
    return max(0, int(sent) - int(sent_again) + not_sent - max(0, acked - 1))
