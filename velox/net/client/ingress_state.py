"""What the client connections of one worker share, whatever is spoken over them.

Knows: the application, limits and timers, and which connections there are. Does not know: how a connection is made or
ended (client/ingress.py), or what goes over one (client/http1.py, client/http2.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from velox.net.application import Application, ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.connection_limiter import ConnectionLimiter
from velox.net.turn_budget import TurnBudget
from velox.policy.pace import PaceRules
from velox.protocol.http1.request import HeadReader, Http1Limits
from velox.protocol.http2.head_reader import Http2HeadReader

__all__ = [
    "ABORT_S",
    "CLOSE_S",
    "FIRST_REQUEST_S",
    "LINGER_S",
    "IngressState",
    "PausedConnection",
    "WatchedConnection",
]

# After our end of a connection the client's is waited for: what it still sends would otherwise be answered by a reset,
# which could overtake what was sent last (RFC 9112 §9.6).
LINGER_S: Final = 2.0
# A drain waits this long for the first request, or the handshake, of a connection that came just before it.
FIRST_REQUEST_S: Final = 0.5
# What the end of a connection takes of the turn after that in which it was asked for: the loop closes the socket then.
# With a request that it has begun, this one is given up, too.
CLOSE_S: Final = 0.000_02
ABORT_S: Final = 0.000_1


class WatchedConnection(Protocol):
    """A connection as the ingress sees it, whatever goes over it; also one whose TLS handshake has not ended."""

    deadline_s: float  # loop time; 0: none

    def on_deadline(self) -> None:
        """The time is over."""

    def close_if_idle(self) -> None:
        """Draining: close unless a request has begun, or the first one may be on its way."""

    def abort(self) -> None:
        """Close now."""


class PausedConnection(Protocol):
    """A connection that is not read from, so that the loop does not notice when its client closes."""

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 when there is none any more."""

    def peer_closed(self) -> None:
        """The client has closed."""


class IngressState:
    """One object for all connections of a worker."""

    def __init__(
        self,
        app: Application,
        limits: Http1Limits,
        timeouts: ClientTimeouts,
        budget: BodyBudget,
        loop: asyncio.AbstractEventLoop,
        *,
        max_connections: int,
        max_per_address: int,
        guarded: frozenset[str],
        make_room: Callable[[], bool] | None,
        turns: TurnBudget | None = None,
    ) -> None:
        """max_per_address: 0 for no such limit. make_room: see ConnectionLimiter. turns: None for some of its own.

        guarded: addresses of this gateway, at which the Host of a browser must be one of its own.
        """
        self.app: Final = app
        self.limits: Final = limits
        self.heads: Final = HeadReader(limits)
        self.http2_heads: Final = Http2HeadReader(limits)
        self.timeouts: Final = timeouts
        self.budget: Final = budget
        self.loop: Final = loop
        self.turns: Final = turns or TurnBudget(loop)  # of all that clients send
        self.pace: Final = PaceRules(timeouts.body_s, timeouts.min_rate_bytes)
        self.least_taken_bytes: Final = round(timeouts.min_rate_bytes * timeouts.write_s)
        self.limiter: Final = ConnectionLimiter(max_connections, max_per_address, make_room)
        self.guarded: Final = guarded
        # In the order in which they came, or were renewed (client/ingress.py); since when they are there, loop time.
        self.connections: Final[dict[WatchedConnection, float]] = {}
        self.paused: Final[set[PausedConnection]] = set()  # those that are not read from
        self.n_http2 = 0  # of the connections, those that speak HTTP/2
        self.draining = False
        # Connections whose reply had begun when another process took over: it did not say that it is the last.
        self.staying: Final[set[WatchedConnection]] = set()

    def __repr__(self) -> str:
        draining = " draining" if self.draining else ""
        return f"<{type(self).__name__} connections={len(self.connections)} http2={self.n_http2}{draining}>"
