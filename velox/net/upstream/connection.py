"""What every connection to an upstream does, whatever is spoken over it: it reads as much at a time as others can wait.

Knows: the socket's transport, the buffer and the turns of all reads. Does not know: HTTP, or what a read holds.
"""

from __future__ import annotations

import asyncio
from typing import Final

from velox.net.upstream.interface import Address, ConnectionOwner, ReadBuffer
from velox.net.upstream.read_pace import ReadPace
from velox.outcomes import ConnectionEnd

__all__ = ["HttpConnection"]


class HttpConnection(asyncio.BufferedProtocol):
    """The base of a protocol. has_room, queued, address, end, n_begun: see UpstreamConnection."""

    # Over 30 attributes, CPython finds each in a dictionary where a class has no slots (SHARED_KEYS_MAX_SIZE): 2,000 to
    # 5,000 instructions more for each request.
    __slots__ = (
        "_clock",
        "_is_in_line",
        "_is_paused",
        "_loop",
        "_n_untimed",
        "_owner",
        "_pace",
        "_transport",
        "_turns",
        "_view",
        "_whole_view",
        "address",
        "end",
        "has_room",
        "n_begun",
        "queued",
    )

    def __init__(self, owner: ConnectionOwner, buffer: ReadBuffer, loop: asyncio.AbstractEventLoop) -> None:
        self.queued = False
        self.has_room = False
        self.address: Address = ""
        self.end: ConnectionEnd | None = None
        self.n_begun = 0
        self._owner: Final = owner
        self._loop: Final = loop
        self._transport: asyncio.Transport | None = None
        self._whole_view: Final = buffer.view
        self._turns: Final = buffer.turns
        self._is_in_line = False  # for a turn in which to read on
        self._is_paused = False  # by the sink of its only exchange
        self._clock: Final = buffer.clock
        self._pace: Final = ReadPace(len(buffer.view))
        self._view = buffer.view[: self._pace.n_bytes]  # of the next read
        self._n_untimed = 0  # bytes since a read was timed

    def fileno(self) -> int:
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    @property
    def is_closed(self) -> bool:
        return self._transport is None

    def get_buffer(self, sizehint: int) -> memoryview:
        # In a turn that is over, so much as is gone through in next to no time; what is more waits in line.
        return self._view[: self._pace.quick_bytes] if self._turns.is_over else self._view

    def _paced(self, nbytes: int, seconds: float) -> None:
        """Read less at a time where a read took long to go through, and no more in a turn of the loop that is over."""
        pace, transport = self._pace, self._transport
        self._n_untimed = 0
        pace.took(nbytes, seconds)
        if len(self._view) != pace.n_bytes:
            self._view = self._whole_view[: pace.n_bytes]
        if transport is not None and not self._is_in_line and self._turns.took(self, seconds, self._loop):
            self._is_in_line = True
            transport.pause_reading()

    def read_on(self) -> None:
        """See TurnReader."""
        self._is_in_line = False
        if self._transport is not None and not self._is_paused:
            self._transport.resume_reading()
