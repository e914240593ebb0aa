"""Connections of a worker that does not accept them: the other workers take them from its listening sockets.

Each worker has a socket of its own for each address, over which the kernel spreads new connections (listeners.py). It
goes on to do so while a worker stands still, is being replaced or starts: without help these connections wait for it,
up to the time after which the supervisor ends it. The sockets are the supervisor's, and every worker has inherited all
of them. So a worker that sees in the shared memory that another one shows no sign of life accepts on its sockets, too,
until it does again.

Knows: heartbeats, and how long one may be silent. Does not know: why it is, or what a connection is for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from velox.runtime.processes.listeners import ClientListener
from velox.shm.segment import Segment
from velox.shm.status import WorkerState, serving

__all__ = ["SILENT_S", "ListenerTakeover"]

# A worker tells of itself four times a second. Shorter than any client's patience, and longer than a worker of a busy
# machine waits for its turn.
SILENT_S: Final = 1.0


class ListenerTakeover:
    """Of one worker. sockets: of the other workers, by slot."""

    def __init__(
        self,
        listener: ClientListener,
        sockets: Mapping[int, Sequence[socket.socket]],
        segment: Segment,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._listener: Final = listener
        self._sockets: Final = sockets
        self._segment: Final = segment
        self._loop: Final = loop
        self._servers: Final[dict[int, list[asyncio.Server]]] = {}  # of the slots that are served here, too
        self._opening: asyncio.Task[None] | None = None
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<ListenerTakeover of {sorted(self._servers)}>"

    def look(self, now_ns: int) -> None:
        """Serve the sockets of the workers that are silent, and of no others. now_ns: monotonic."""
        if self._is_closing:
            return
        wanted = []
        for slot in self._sockets:
            if not self._is_silent(slot, now_ns):
                for server in self._servers.pop(slot, ()):
                    server.close()
            elif slot not in self._servers:
                wanted.append(slot)
        if wanted and self._opening is None:
            self._opening = self._loop.create_task(self._open(wanted), name="takeover of listeners")

    @property
    def served(self) -> tuple[socket.socket, ...]:
        """The sockets of other workers that are served here now."""
        return tuple(sock for slot in self._servers for sock in self._sockets[slot])

    async def leave(self) -> None:
        """Accept no more for others: the next version serves all of these sockets."""
        self._is_closing = True
        if self._opening is not None:
            await self._opening
        self.close()

    async def serve_all(self) -> None:
        """Accept on all sockets, until close(): this worker stops, and what it holds of a socket keeps that open.

        The kernel gives connections to a socket as long as one process holds it. So whoever is the last to close it
        must have taken what is queued there.
        """
        self._is_closing = True
        if self._opening is not None:
            await self._opening
        await self._open([slot for slot in self._sockets if slot not in self._servers])

    def close(self) -> None:
        """Accept no more for others, and let go of their sockets."""
        for servers in self._servers.values():
            for server in servers:
                server.close()
        self._servers.clear()
        for sockets in self._sockets.values():
            for sock in sockets:
                sock.close()

    def _is_silent(self, slot: int, now_ns: int) -> bool:
        status = serving(self._segment, slot)
        return status.state is not WorkerState.READY or now_ns - status.heartbeat_ns > SILENT_S * 1e9

    async def _open(self, slots: Sequence[int]) -> None:
        try:
            for slot in slots:
                self._servers[slot] = [await self._listener.serve(sock) for sock in self._sockets[slot]]
        finally:
            self._opening = None
