"""The client side of a worker: makes its connections, and ends those that are late.

Knows: which protocol an accepted socket gets, whose deadline has passed, how connections drain. Does not know: when it
is called (runtime/worker.py), or what goes over a connection (client/http1.py, client/http2.py).
"""

from __future__ import annotations

import asyncio
import select
from typing import Final

from velox.net.application import Application, ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.http1 import ClientHttp1Connection
from velox.net.client.http2 import ClientHttp2Connection
from velox.net.client.ingress_state import IngressState, PausedConnection, WatchedConnection
from velox.net.client.plain_socket import PlainSocket, read_view
from velox.net.client.preface_detector import PrefaceDetector
from velox.net.turn_budget import TurnBudget
from velox.net.yielding_sweep import YieldingSweep
from velox.protocol.http1.request import Http1Limits
from velox.protocol.http2.engine import EngineFactory

__all__ = ["Ingress"]

# Connections that are ended in one turn of the loop. One takes 40 us if it was idle, and up to 350 us with an exchange,
# an upstream's connection, and megabytes that the kernel holds for both.
_ENDS_PER_TURN: Final = 4


class Ingress(IngressState):
    """The ingress of one worker; its connections see the state only."""

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
        guarded: frozenset[str] = frozenset(),
        http2: EngineFactory | None = None,
        idlest_gives_way: bool = False,
        turns: TurnBudget | None = None,
    ) -> None:
        """http2: what makes the engines of clients that speak it; None: none may.

        idlest_gives_way: a connection over the limit takes the place of one that waits for its client.
        """
        super().__init__(
            app,
            limits,
            timeouts,
            budget,
            loop,
            max_connections=max_connections,
            max_per_address=max_per_address,
            guarded=guarded,
            make_room=self._end_idlest if idlest_gives_way else None,
            turns=turns,
        )
        self._read_view: Final = read_view()
        self._http2: Final = http2
        self._overdue: Final[YieldingSweep[WatchedConnection]] = YieldingSweep(self._end_overdue, _ENDS_PER_TURN, loop)
        self._closed: Final[YieldingSweep[PausedConnection]] = YieldingSweep(self._end_closed, _ENDS_PER_TURN, loop)

    def connection(self, alpn: str | None = None) -> asyncio.Protocol | asyncio.BufferedProtocol:
        """Make the protocol of an accepted socket, or of one whose TLS handshake has ended.

        alpn: what was agreed on in that handshake, "h2" or "http/1.1"; a TLS client that offered nothing speaks
        "http/1.1" (RFC 9113 §3.3). None for a plain socket: there the first bytes tell. "h2" may be offered to clients
        only while `http2` is set.
        """
        if alpn is None:
            if self._http2 is None:
                return PlainSocket(self._read_view, ClientHttp1Connection(self))
            return PlainSocket(self._read_view, PrefaceDetector(self, self._http2, self._read_view))
        if self._http2 is None or alpn == "http/1.1":
            return ClientHttp1Connection(self)
        return ClientHttp2Connection(self, self._http2)

    def renew(self, connection: WatchedConnection) -> None:
        """Take a connection for one that has just come: it gives way after all others."""
        if connection in self.connections:
            self.connections[connection] = self.connections.pop(connection)

    def _end_idlest(self) -> bool:
        """End the connection that came first of those that wait for their client; False: none does."""
        for connection in self.connections:
            if connection.deadline_s:  # it has one whenever it waits
                del self.connections[connection]
                connection.abort()
                return True
        return False

    def stop(self) -> None:
        """Abort what is still open."""
        self._overdue.stop()
        self._closed.stop()
        for connection in tuple(self.connections):
            connection.abort()

    def hand_over(self) -> None:
        """Another process serves new connections: let each end with a reply that says so; idle ones wait as always.

        A client of HTTP/2 is told that it is to open another connection.
        """
        self.draining = True
        for connection in tuple(self.connections):
            if isinstance(connection, ClientHttp2Connection):
                connection.close_if_idle()
            elif isinstance(connection, ClientHttp1Connection):
                connection.stay()

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
            self._closed.begin(self._find_closed())

    def _end_overdue(self, connection: WatchedConnection) -> None:
        # Some turns may have gone by: it may have ended, or gone on in time.
        if connection in self.connections and connection.deadline_s and self.loop.time() >= connection.deadline_s:
            connection.on_deadline()

    def _end_closed(self, connection: PausedConnection) -> None:
        if connection in self.paused:  # else it is read from again, and its end is seen there
            connection.peer_closed()

    def _find_closed(self) -> list[PausedConnection]:
        """Return those whose clients have closed while they are not read from: the loop does not look at these.

        A close behind bytes that the kernel has no room for is seen when these are read, not before.
        """
        poll = select.poll()
        by_descriptor = {connection.fileno(): connection for connection in self.paused}
        by_descriptor.pop(-1, None)
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLRDHUP)
        return [by_descriptor[descriptor] for descriptor, _ in poll.poll(0)]
