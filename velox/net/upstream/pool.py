"""The connections of one worker to one upstream: who gets which, and how many there should be.

Knows: how many connections there are, which has room, who waits for one, when another is wanted. Does not know: HTTP,
how to connect, or how long a connection may be used (pool_keeper.py).

A lease is decided without waiting wherever a connection has room. The warm connections (`core`) are used round robin;
those beyond them only when the core is full, so that they fall idle and are closed when they are needed no more. Where
there is no room the caller waits, first come first served, and counts on the dials that are under way: another one is
started only if those can't serve all who wait.

A connection whose term is over is used until another stands in for it (`doomed`), then it ends with its last exchange.
Such leaving connections are not counted against the maximum: each holds at least one exchange, and those are counted
elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

from velox.errors import Reason, VeloxError
from velox.net.upstream.interface import Address, UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.net.upstream.pool_capacity import Capacity, PoolStatistics
from velox.net.upstream.pool_keeper import BackOff, Dial, PacedDial, Term, Upkeep, Warmup, again, is_instable
from velox.net.upstream.pool_lines import Rooms, Waiters
from velox.outcomes import ConnectionEnd

__all__ = ["Upkeep", "UpstreamPool"]

# Dials under way at a time: a handshake costs this worker about 1 ms, and its requests should not wait for many.
_MAX_DIALS: Final = 32
_USUAL_UPKEEP: Final = Upkeep()
# A connection unused for so long may be closed already where another one was.
_DOUBTED_S: Final = 1.0


class UpstreamPool:
    """Connections to one upstream; the owner that connections report to.

    on_change: is_warm or the number of connections may have changed. on_warm_failure: a dial or a warm-up failed; told
    once a round of failures while callers wait. on_end: a connection takes no more exchanges.
    """

    def __init__(
        self,
        dial: Dial,
        warmup: UpstreamRequest,
        *,
        warm_connections: int,
        max_connections: int,
        warmup_timeout_s: float,
        on_change: Callable[[], None],
        on_warm_failure: Callable[[VeloxError], None],
        on_end: Callable[[ConnectionEnd], None] = lambda _cause: None,
        upkeep: Upkeep = _USUAL_UPKEEP,
    ) -> None:
        self._dial: Final = PacedDial(dial)
        self._warmup: Final = warmup
        self._n_warm: Final = warm_connections
        self._max: Final = max_connections
        self._warmup_timeout_s: Final = warmup_timeout_s
        self._on_change: Final = on_change
        self._on_warm_failure: Final = on_warm_failure
        self._on_end: Final = on_end
        self._upkeep: Final = upkeep
        self._back_off: Final = BackOff(self._fill)  # holds up dials that nobody waits for
        # Those that take exchanges, and which of them only until another stands in.
        self._connections: Final[dict[UpstreamConnection, Term]] = {}
        self._doomed: Final[dict[UpstreamConnection, ConnectionEnd]] = {}
        self._leaving: set[UpstreamConnection] = set()
        self._rooms: Final = Rooms(warm_connections)
        self._waiters: Final = Waiters()
        self._n_kept = 0  # warm connections to keep; none before start()
        self._dialing = 0
        self._warming = 0
        self._capacity: Final = Capacity()
        self._addresses: frozenset[Address] | None = None  # None: any
        self._failed = False  # the last dial
        self._reached = False  # a warm-up was answered, and the upstream has not been lost since
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._closing = False

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<UpstreamPool connections={s.connections} dialing={s.dialing} streams={s.streams} waiting={s.waiting}>"

    def statistics(self) -> PoolStatistics:
        """Count usable connections, dials, streams in flight and callers that wait."""
        streams = sum(connection.n_streams for connection in (*self._connections, *self._leaving))
        return PoolStatistics(len(self._connections), self._dialing, streams, len(self._waiters))

    @property
    def is_warm(self) -> bool:
        """True once a warm-up was answered, until the upstream can't be reached any more."""
        return self._reached

    @property
    def is_down(self) -> bool:
        """True while there is nothing to use and the last dial failed."""
        return self._failed and not self._connections

    def start(self) -> None:
        """Make the warm connections, and keep as many from now on."""
        self._n_kept = self._n_warm
        self._fill()

    # -- leasing ----------------------------------------------------------------------------------

    def lease_nowait(self) -> UpstreamConnection | None:
        """Return a connection with room, or None. The caller opens its stream before it awaits anything.

        Then it calls give_back(), also if it opened none.
        """
        return self._rooms.take()

    def give_back(self, connection: UpstreamConnection) -> None:
        """After a stream was opened: pass on the room that is left, and get more before there is none."""
        if connection.has_room or self._capacity.unsettled:
            self.on_room(connection)
        term = self._connections.get(connection)
        if term is not None and connection.n_begun >= term.max_begun:
            self._doom(connection, ConnectionEnd.REQUESTS)
        elif self._capacity.low and connection.n_rooms < self._capacity.low and not self._dialing:
            self._fill()

    async def lease(self) -> UpstreamConnection:
        """Wait for a connection with room; give_back() as for lease_nowait().

        Raises UpstreamFailure when the dial that the caller counted on failed, VeloxError(DRAINING) after close().
        """
        connection = self._rooms.take()
        ticket = self._waiters.ticket()
        while connection is None:
            if self._closing:
                raise _closed()
            connection = await self._wait(ticket)
            if not connection.has_room:  # lost before the caller woke: it keeps its place in the line
                connection = self._rooms.take()
        return connection

    async def _wait(self, ticket: int) -> UpstreamConnection:
        waiter = self._waiters.join(ticket)
        self._fill()
        try:
            return await waiter
        except asyncio.CancelledError:
            if not self._waiters.leave(ticket) and not waiter.cancelled() and waiter.exception() is None:
                self.on_room(waiter.result())
            raise
        finally:
            self._waiters.woke(waiter)

    # -- ConnectionOwner ------------------------------------------------------------------------

    def on_room(self, connection: UpstreamConnection) -> None:
        """Give the room to who has waited longest, else put the connection into its line."""
        if connection not in self._connections:
            return  # its dial has not returned yet, or it leaves
        is_news = bool(self._capacity.unsettled) and self._capacity.hear(connection)
        # One caller at a time: it opens its stream when it wakes, then gives the rest back.
        if not (self._waiters and connection.has_room and self._waiters.serve(connection)):
            self._rooms.put(connection)
        if is_news:
            self._fill()

    def on_closed(self, connection: UpstreamConnection) -> None:
        """The connection takes no more exchanges: get another if it is missed."""
        term = self._connections.pop(connection, None)
        if term is None:
            return
        self._doomed.pop(connection, None)
        self._capacity.forget(connection)
        self._rooms.remove(connection)
        self._rooms.promote(self._connections)
        if connection.n_streams:
            self._leaving.add(connection)
        if connection.end is not None:
            self._on_end(connection.end)
        if self._closing:
            return
        now_s = asyncio.get_running_loop().time()
        if is_instable(connection, term, now_s):
            self._back_off.start()
        elif not self._failed and term.is_stable(now_s):
            self._back_off.reset()
        self._on_change()
        self._fill()

    # -- how many ---------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start the dials that are wanted and may begin now."""
        if self._closing:
            return
        n_dials = min(self._n_dials_wanted(), _MAX_DIALS)
        while self._dialing < n_dials and len(self._connections) + self._dialing < self._max:
            self._dialing += 1
            self._spawn(self._dial_one())

    def _n_dials_wanted(self) -> int:
        """Return how many dials should be under way."""
        wanted = self._n_for_waiters()
        if not self._back_off.is_on:
            missing = self._n_kept - (len(self._connections) - len(self._doomed))
            wanted = max(wanted, missing, 1 if self._is_scarce() else 0)
        # While it is down, one is enough to find out that it is back.
        return min(wanted, 1) if self.is_down else wanted

    def _n_for_waiters(self) -> int:
        """Return how many connections those who wait need.

        Before one was made nobody knows which protocol it speaks, and so whether it serves one or a hundred: one dial
        (and those for the warm connections) must do until then.
        """
        n_waiters, capacity = len(self._waiters), self._capacity
        if n_waiters and capacity.is_http2:
            # Room is handed on from caller to caller: these will have it in a few turns of the loop.
            n_free = sum(connection.n_rooms for connection in self._connections) - self._waiters.n_served
            n_waiters -= min(n_waiters, max(0, n_free))
        if not n_waiters or self._is_blocked():
            return 0
        n_wanted = -(-n_waiters // capacity.each) if capacity.each else 1
        return max(0, n_wanted - len(capacity.unsettled))  # those will have room in a round trip

    def _is_blocked(self) -> bool:
        """Tell whether an idle connection has no room: the upstream allows no streams now, more of them don't help."""
        return self._capacity.is_http2 and any(not each.n_streams and not each.has_room for each in self._connections)

    def _is_scarce(self) -> bool:
        """Tell whether another connection should be made before the rooms of HTTP/2 connections run out."""
        capacity = self._capacity
        if not capacity.low or not self._connections or capacity.unsettled:
            return False
        n_wanted = max(1, capacity.each * len(self._connections) // 10)
        n_free = sum(connection.n_rooms for connection in self._connections)
        return n_free < n_wanted and not self._is_blocked()

    # -- dialing and warming ----------------------------------------------------------------------

    async def _dial_one(self) -> None:
        try:
            connection = await self._dial.connect(self)
        except UpstreamFailure as failure:
            self._dialing -= 1
            self._dial_failed(failure)
            return
        self._dialing -= 1  # not when it was cancelled: then the pool is closed
        if (warmup := self._adopt(connection)) is not None:
            await self._wait_warm(warmup)

    def _adopt(self, connection: UpstreamConnection) -> Warmup | None:
        """Use a connection from now on, and warm it unless those who wait need all its room."""
        self._failed = False
        now_s = asyncio.get_running_loop().time()
        self._connections[connection] = Term.begin(now_s, self._upkeep)
        self._capacity.meet(connection, now_s)
        self._rooms.promote(self._connections)
        if self._addresses is not None and connection.address not in self._addresses:
            self._doomed[connection] = ConnectionEnd.MOVED  # the name changed during the dial
        self._retire_doomed()
        warmup = Warmup.begin(connection, self._warmup) if connection.n_rooms > len(self._waiters) else None
        self.on_room(connection)
        self._on_change()
        self._fill()
        return warmup

    def _dial_failed(self, failure: UpstreamFailure) -> None:
        """Tell those who counted on this dial: all whom the others that are under way can't serve."""
        self._failed = True
        is_news = self._back_off.start()
        n_waiters, each = len(self._waiters), self._capacity.each
        n_coming = self._dialing + len(self._capacity.unsettled)
        if each:
            n_left = max(0, n_waiters - n_coming * each)
            n_told = n_left if self.is_down else min(n_left, each)
        else:
            n_told = 0 if n_coming else n_waiters
        for _ in range(n_told):
            self._waiters.fail(lambda: again(failure))
        if is_news or not n_told:
            self._on_warm_failure(failure)
        self._note_loss()
        self._fill()

    def _note_loss(self) -> None:
        if self.is_down:
            self._reached = False
        self._on_change()

    async def _wait_warm(self, warmup: Warmup) -> None:
        self._warming += 1
        try:
            await warmup.wait_answer(self._warmup_timeout_s)
        except UpstreamFailure as failure:
            self._failed = not self._connections
            self._back_off.start()
            self._on_warm_failure(failure)
            self._note_loss()
            self._fill()
        else:
            self._reached = True
            self._on_change()
        finally:
            self._warming -= 1

    # -- upkeep -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Look after the connections; every 0.25 s or so. now_s: the loop's time."""
        if self._closing:
            return
        self._leaving = {connection for connection in self._leaving if connection.n_streams}
        silence_s = self._upkeep.ping_interval_s
        for connection in self._leaving.copy():
            connection.check_alive(now_s, silence_s)
        for connection, term in tuple(self._connections.items()):
            connection.check_alive(now_s, silence_s)
            if connection in self._connections:
                if not self._failed and term.is_stable(now_s):
                    self._back_off.reset()
                self._look_after(connection, term, now_s)
        self._capacity.look(self._connections, now_s)
        if not self._reached and not self._warming and not self._back_off.is_on:
            self._warm_any()
        self._fill()

    def doubt_idle(self, now_s: float) -> None:
        """An idle connection was closed as it was used (F-10): leave the others that have been idle, too.

        A load balancer drops them all at once, and each would cost the next request a try.
        """
        for connection, term in tuple(self._connections.items()):
            if not connection.n_streams and term.idle_s(connection, now_s) >= _DOUBTED_S:
                connection.retire(ConnectionEnd.CLOSED)

    def keep_only(self, addresses: frozenset[Address]) -> None:
        """The upstream's name stands for these addresses now: leave the others as soon as there is another way."""
        self._addresses = addresses
        for connection, cause in tuple(self._doomed.items()):
            if cause is ConnectionEnd.MOVED and connection.address in addresses:
                del self._doomed[connection]  # the name's answers waver
        for connection in tuple(self._connections):
            if connection.address not in addresses:
                self._doom(connection, ConnectionEnd.MOVED)

    def _look_after(self, connection: UpstreamConnection, term: Term, now_s: float) -> None:
        idle_s = term.idle_s(connection, now_s)
        # A warm one too, if it allows no streams: so may an upstream say that it leaves.
        is_spare = not self._rooms.is_core(connection) or not connection.has_room
        if idle_s >= self._upkeep.idle_timeout_s and is_spare:
            connection.retire(ConnectionEnd.IDLE)
        elif now_s >= term.until_s:
            self._doom(connection, ConnectionEnd.AGE)

    def _warm_any(self) -> None:
        """Prove the way: the requests that waited at the start took all the room of the first connections."""
        connection = None if self._waiters else self.lease_nowait()
        if connection is not None:
            warmup = Warmup.begin(connection, self._warmup)
            self.give_back(connection)
            if warmup is not None:
                self._spawn(self._wait_warm(warmup))

    def _doom(self, connection: UpstreamConnection, cause: ConnectionEnd) -> None:
        """Use a connection only until another stands in for it."""
        if connection in self._connections and connection not in self._doomed:
            self._doomed[connection] = cause
            self._retire_doomed()
            self._fill()

    def _retire_doomed(self) -> None:
        """Let go of those that are not needed: enough others are there, or no place is left for another."""
        here, doomed = self._connections, self._doomed
        while doomed and (len(here) - len(doomed) >= self._n_kept or len(here) >= self._max):
            connection, cause = doomed.popitem()
            connection.retire(cause)

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Abort every connection, give up every dial, and tell those who wait."""
        self._closing = True
        self._back_off.close()
        for task in tuple(self._tasks):
            task.cancel()
        for connection in (*self._connections, *self._leaving):
            connection.abort(ConnectionEnd.SHUTDOWN)
        while self._waiters.fail(_closed):
            pass

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="pool")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _closed() -> VeloxError:
    return VeloxError(Reason.DRAINING, "the gateway is shutting down", close=True)
