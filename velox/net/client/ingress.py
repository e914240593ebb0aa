"""The client side of a worker: its connections, and what they share.

Knows: how many connections there are, whose deadline has passed, how they drain. Does not know: when it is asked
to look (runtime/worker.py), or what goes over one (client/connection.py, client/http2.py).
"""

from __future__ import annotations

import asyncio
import select
from typing import Final, Protocol

from velox.net.application import Application, ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.connection import ClientConnection
from velox.net.client.door import Door
from velox.net.client.greeter import Greeter
from velox.net.client.http2 import ClientHttp2Connection
from velox.net.client.plain_socket import PlainSocket, read_view
from velox.net.yielding_sweep import YieldingSweep
from velox.policy.pace import PaceRules
from velox.protocol.http1 import HeadReader, Http1Limits
from velox.protocol.http2 import EngineFactory
from velox.protocol.http2_heads import Http2HeadReader

__all__ = ["Ingress", "PausedConnection", "WatchedConnection"]

# Connections that are ended in one turn of the loop. One takes 40 us if it was idle, and up to 350 us with an exchange,
# an upstream's connection, and megabytes that the kernel holds for both.
_ENDS_PER_TURN: Final = 4


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

    def left(self) -> None:
        """The client has closed."""


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
        max_per_address: int = 0,
        http2: EngineFactory | None = None,
    ) -> None:
        """http2: what makes the engines of clients that speak it; None: none may."""
        self.app: Final = app
        self.limits: Final = limits
        self.heads: Final = HeadReader(limits)
        self.http2_heads: Final = Http2HeadReader(limits)
        self.timeouts: Final = timeouts
        self.budget: Final = budget
        self.loop: Final = loop
        self.pace: Final = PaceRules(timeouts.body_s, timeouts.min_rate_bytes)
        self.least_taken_bytes: Final = round(timeouts.min_rate_bytes * timeouts.write_s)
        self.door: Final = Door(max_connections, max_per_address)
        self.connections: Final[set[WatchedConnection]] = set()
        self.paused: Final[set[PausedConnection]] = set()  # those that are not read from
        self.read_view: Final = read_view()
        self.http2: Final = http2
        self.n_http2 = 0  # of the connections, those that speak HTTP/2
        self.draining = False
        self._overdue: Final[YieldingSweep[WatchedConnection]] = YieldingSweep(self._end_overdue, _ENDS_PER_TURN, loop)
        self._left: Final[YieldingSweep[PausedConnection]] = YieldingSweep(self._end_left, _ENDS_PER_TURN, loop)

    def connection(self, alpn: str | None = None) -> asyncio.Protocol | asyncio.BufferedProtocol:
        """Make the protocol of an accepted socket, or of one whose TLS handshake has ended.

        alpn: what was agreed on in that handshake, "h2" or "http/1.1"; a TLS client that offered nothing speaks
        "http/1.1" (RFC 9113 §3.3). None for a plain socket: there the first bytes tell. "h2" may be offered to clients
        only while `http2` is set.
        """
        if alpn is None:
            above = ClientConnection(self) if self.http2 is None else Greeter(self, self.http2)
            return PlainSocket(self.read_view, above)
        if self.http2 is None or alpn == "http/1.1":
            return ClientConnection(self)
        return ClientHttp2Connection(self, self.http2)

    def stop(self) -> None:
        """Abort what is still open."""
        self._overdue.stop()
        self._left.stop()
        for connection in tuple(self.connections):
            connection.abort()

    def drain(self) -> None:
        """Answer what has begun, then close each connection."""
        self.draining = True
        for connection in tuple(self.connections):
            connection.close_if_idle()

    def sweep(self) -> None:
        """Look at the connections' deadlines; every 0.25 s.

        One timer for all of them: arming one per request would cost each request about a microsecond.
        """
        now = self.loop.time()
        self._overdue.begin([each for each in self.connections if each.deadline_s and now >= each.deadline_s])
        self.budget.expire()
        if self.paused:
            self._left.begin(self._find_left())

    def _end_overdue(self, connection: WatchedConnection) -> None:
        # Some turns may have gone by: it may have ended, or gone on in time.
        if connection in self.connections and connection.deadline_s and self.loop.time() >= connection.deadline_s:
            connection.on_deadline()

    def _end_left(self, connection: PausedConnection) -> None:
        if connection in self.paused:  # else it is read from again, and its end is seen there
            connection.left()

    def _find_left(self) -> list[PausedConnection]:
        """Return those whose clients have closed while they are not read from: the loop does not look at these.

        A close behind bytes that the kernel has no room for is seen when these are read, not before.
        """
        poll = select.poll()
        by_descriptor = {connection.fileno(): connection for connection in self.paused}
        by_descriptor.pop(-1, None)
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLRDHUP)
        return [by_descriptor[descriptor] for descriptor, _ in poll.poll(0)]
