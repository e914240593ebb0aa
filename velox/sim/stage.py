"""What all connections of one simulator share.

Knows: the app, the pace, the engine, counts. Does not know: HTTP versions, sockets.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from velox.sim.app import Simulator
from velox.sim.engine import Engine
from velox.sim.player import Outlet, Pace, Player
from velox.sim.shapes import Reply

__all__ = ["Connection", "Stage"]


class Connection(Protocol):
    """One client connection, whatever version of HTTP it speaks."""

    @property
    def n_running(self) -> int:
        """How many answers are being played."""

    @property
    def n_queued_bytes(self) -> int:
        """How many bytes of answers wait for the client to read."""

    def leave(self) -> None:
        """Take no new request; close when no answer is running any more."""

    def abort(self) -> None:
        """Close at once; running answers are cut."""


class Stage:
    """The connections, and what they need to answer."""

    def __init__(self, app: Simulator, pace: Pace, engine: Engine) -> None:
        self.app: Final = app
        self._pace: Final = pace
        self._engine: Final = engine
        self.connections: Final[set[Connection]] = set()
        self.n_requests = 0
        self.n_cancelled = 0  # answers that were still being played when their client left
        self.is_leaving = False
        self._is_empty: Final = asyncio.Event()

    def answer(self, outlet: Outlet, method: bytes, target: bytes, body: bytes) -> Player | None:
        """Return a player, not yet started, of the reply to a whole request; None: break it off without one."""
        self.n_requests += 1
        reply = self.app.answer(method, target, body)
        return None if reply is None else self.player(outlet, reply)

    def player(self, outlet: Outlet, reply: Reply) -> Player:
        """Return a player, not yet started, of a reply."""
        return Player(self._engine, self._pace, outlet, reply)

    def enter(self, connection: Connection) -> None:
        """Register a connection that has just been made."""
        self.connections.add(connection)
        if self.is_leaving:
            connection.leave()

    def exit(self, connection: Connection) -> None:
        """Forget a connection that has ended; its running answers count as cancelled."""
        self.n_cancelled += connection.n_running
        self.connections.discard(connection)
        if not self.connections:
            self._is_empty.set()

    def leave(self) -> None:
        """Say goodbye to all connections, now and as they come."""
        self.is_leaving = True
        self.send_away()

    def send_away(self) -> None:
        """Say goodbye to the connections there are."""
        for connection in tuple(self.connections):
            connection.leave()

    def abort(self) -> None:
        """Cut all connections."""
        for connection in tuple(self.connections):
            connection.abort()

    async def wait_empty(self) -> None:
        """Wait until the last connection has ended."""
        while self.connections:
            self._is_empty.clear()
            await self._is_empty.wait()
