"""What lies in a client's socket: what it has not taken of its reply, and whether it takes it fast enough.

Knows: where unsent bytes wait, and how many must leave between two looks. Does not know: when it is looked, or what
happens to a client that is too slow.

A client that reads a byte now and then is never silent. It costs us what a client costs that reads nothing: a slot, a
stream of the upstream, up to 192 KiB. So while its buffer is full it must take a least number of bytes, and not just
one. What the kernel holds counts too: it gives room back in pieces of many kilobytes, between which nothing seems to
move for a client that reads slowly and steadily.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from typing import Final

__all__ = ["Backlog", "discard_unread", "is_sending", "unsent_bytes"]

_INT: Final = struct.Struct("i")
_NOTHING: Final = bytes(_INT.size)
# What a client may have sent before it was refused at its connection: more is not worth our time.
_DISCARDED_BYTES: Final = 64 * 1024


class Backlog:
    """Of one client at a time: begin(), then wrote() whatever is written on top, and now and then is_taken()."""

    __slots__ = ("_least_bytes", "_left_bytes")

    def __init__(self, least_bytes: int) -> None:
        """least_bytes: what must leave between two looks; at least one byte."""
        self._least_bytes: Final = max(1, least_bytes)
        self._left_bytes = 0

    def __repr__(self) -> str:
        return f"<Backlog left={self._left_bytes}>"

    def begin(self, transport: asyncio.Transport) -> None:
        """Count from now on."""
        self._left_bytes = unsent_bytes(transport)

    def wrote(self, n_bytes: int) -> None:
        """More was written to it."""
        self._left_bytes += n_bytes

    def is_taken(self, transport: asyncio.Transport) -> bool:
        """True when the client has taken enough since the last look."""
        before, self._left_bytes = self._left_bytes, unsent_bytes(transport)
        return before - self._left_bytes >= self._least_bytes


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Return what was written and the other side's kernel has not acknowledged: in the transport and in the kernel."""
    sock = transport.get_extra_info("socket")
    try:
        # tcp(7) SIOCOUTQ, unix(7): the number is TIOCOUTQ's.
        (in_kernel,) = _INT.unpack(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, _NOTHING))
    except (OSError, AttributeError, ValueError):
        in_kernel = 0  # closed meanwhile, or no socket that tells
    return transport.get_write_buffer_size() + int(in_kernel)


def is_sending(transport: asyncio.Transport | None) -> bool:
    """Return whether bytes wait in the transport; none do once it is lost."""
    return transport is not None and transport.get_write_buffer_size() > 0


def discard_unread(transport: asyncio.Transport) -> None:
    """Throw away what has come and was not read: else close() would send a reset, which can overtake the reply."""
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("ssl_object") is not None:
        return
    try:
        os.read(sock.fileno(), _DISCARDED_BYTES)
    except OSError:
        pass  # nothing has come, or it is closed
