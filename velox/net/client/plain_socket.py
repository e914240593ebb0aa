"""How a plain socket is read: every connection of a worker through one buffer.

Knows: the buffer, and the connection above it. Does not know: HTTP. With TLS the same is done in client/tls.py.

The loop's own reading takes up to 250 KiB at once. That would be what a client can make a worker hold beyond each
limit, and four times as much as the limit on what may come ahead.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["PlainSocket", "read_view"]

_READ_BYTES: Final = 64 * 1024


def read_view() -> memoryview:
    """Return a buffer for all plain sockets of a worker: what a read brought is copied before the next one begins."""
    return memoryview(bytearray(_READ_BYTES))


class PlainSocket(asyncio.BufferedProtocol):
    """The protocol of a plain socket, under that of its connection."""

    def __init__(self, view: memoryview, above: asyncio.Protocol) -> None:
        """view: from read_view()."""
        self._view: Final = view
        self._above: Final = above

    def __repr__(self) -> str:
        return f"<PlainSocket {self._above!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._above.connection_made(transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._above.data_received(self._view[:nbytes].tobytes())

    def eof_received(self) -> bool:
        return bool(self._above.eof_received())

    def connection_lost(self, exc: BaseException | None) -> None:
        self._above.connection_lost(exc)  # type: ignore[arg-type] # as the loop calls it

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()
