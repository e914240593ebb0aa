"""The client side of a worker: its connections, and what they share.

Knows: how many connections there are, when to look at their deadlines, how they drain. Does not know: what goes over
one (client_connection.py).
"""

from __future__ import annotations

import asyncio
from typing import Final

from velox.net.application import Application, ClientTimeouts
from velox.net.body_budget import BodyBudget
from velox.net.client_connection import ClientConnection
from velox.protocol.http1 import HeadReader, Http1Limits

__all__ = ["Ingress"]

_SWEEP_S: Final = 0.25


class Ingress:
    """What the connections of one worker share."""

    def __init__(
        self,
        app: Application,
        limits: Http1Limits,
        timeouts: ClientTimeouts,
        budget: BodyBudget,
        loop: asyncio.AbstractEventLoop,
        *,
        max_connections: int,
    ) -> None:
        self.app: Final = app
        self.limits: Final = limits
        self.heads: Final = HeadReader(limits)
        self.timeouts: Final = timeouts
        self.budget: Final = budget
        self.loop: Final = loop
        self.max_connections: Final = max_connections
        self.connections: Final[set[ClientConnection]] = set()
        self.draining = False
        self._sweeper: asyncio.TimerHandle | None = None

    def connection(self) -> ClientConnection:
        """Make the protocol of an accepted socket."""
        return ClientConnection(self)

    def start(self) -> None:
        """Begin to watch the connections' deadlines."""
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)

    def stop(self) -> None:
        """Stop watching, and abort what is still open."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in tuple(self.connections):
            connection.abort()

    def drain(self) -> None:
        """Answer what has begun, then close each connection."""
        self.draining = True
        for connection in tuple(self.connections):
            connection.close_if_idle()

    def _sweep(self) -> None:
        # One timer for all connections: arming one per request would cost each request about a microsecond.
        # Armed first: an error in one connection must not end all time-outs.
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)
        now = self.loop.time()
        for connection in tuple(self.connections):
            if connection.deadline_s and now >= connection.deadline_s:
                connection.on_deadline()
        self.budget.expire()
