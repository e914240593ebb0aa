"""A relay that passes bytes on and looks at none: what any process between a client and its server costs, at the least.

    python -m bench.relay PORT ORIGIN_PORT

Each connection of a client's has one to the origin. The loop is Velox's (uvloop).

Knows: sockets. Does not know: HTTP.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, cast

import uvloop


class _End(asyncio.Protocol):
    """One end of a relayed connection."""

    def __init__(self, other: _End | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self._other = other
        self._early = b""  # before the other end was there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def join(self, other: _End) -> None:
        """Take the other end, and give it what has come."""
        self._other = other
        if self._early and other.transport is not None:
            other.transport.write(self._early)

    def data_received(self, data: bytes) -> None:
        if self._other is None or self._other.transport is None:
            self._early += data
        else:
            self._other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()


async def _serve(port: int, origin: int) -> None:
    loop = asyncio.get_running_loop()
    dialing: set[asyncio.Task[None]] = set()

    def accept() -> _End:
        client = _End()

        async def dial() -> None:
            _, upstream = await loop.create_connection(lambda: _End(client), "127.0.0.1", origin)
            client.join(upstream)

        task = loop.create_task(dial())
        dialing.add(task)
        task.add_done_callback(dialing.discard)
        return client

    server: Final = await loop.create_server(accept, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
