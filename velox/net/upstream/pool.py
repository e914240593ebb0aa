"""The connections of one worker to one upstream: which request gets which connection, and how many there are.

Knows: how many connections there are, which have room, which callers wait for one, how long each is used, when another
is needed. Does not know: HTTP, or how to connect (connecting.py, dialer.py).

A lease is granted at once while a connection has room. The warm connections (`core`) are used round robin. Connections
beyond them are used only when the core is full, so that they become idle and are closed when they are not needed any
more. Without room the caller waits, first come first served, for a dial that is under way: another dial starts only if
those cannot serve all who wait.

A connection that has reached its age or its number of requests is used until another one replaces it, then it ends with
its last exchange. Connections that end so are not counted against the maximum: each holds at least one exchange, and
exchanges are counted elsewhere. All of them count in the worker's budget (connection_budget.py).
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, Protocol

from velox.errors import Reason, VeloxError, untraced
from velox.net.upstream.connecting import BackOff, Dial, PacedDial, Warmup
from velox.net.upstream.connection_budget import ConnectionBudget
from velox.net.upstream.interface import Address, UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.outcomes import ConnectionEnd

__all__ = ["AvailableConnections", "OpenUpstream", "Pool", "PoolStatistics", "Upkeep", "UpstreamPool"]

# Dials under way at a time: a handshake costs this worker about 1 ms, and its requests should not wait for many.
_MAX_DIALS: Final = 32
# A connection unused for so long may be closed by the upstream where another one was.
_STALE_IDLE_S: Final = 1.0
# A connection that lived shorter than this, and served next to nothing, shows that the upstream closes connections that
# it should keep.
_STABLE_S: Final = 1.0
# How long SETTINGS are waited for: several round trips to the other side of the world.
_SETTLE_S: Final = 1.0
_JITTER: Final = 0.1
_ENDS_BY_UPSTREAM: Final = frozenset(
    {
        ConnectionEnd.CLOSED,
        ConnectionEnd.LOST,
        ConnectionEnd.LAST,
        ConnectionEnd.GOAWAY,
        ConnectionEnd.EXTRA_DATA,
        ConnectionEnd.PROTOCOL,
    }
)


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool holds at one instant. streams: also those on connections that take no new ones."""

    connections: int
    dialing: int
    streams: int
    waiting: int


class OpenUpstream(NamedTuple):
    """A connection that is open. since_s: loop time; None of one that takes no new exchanges."""

    connection: UpstreamConnection
    since_s: float | None


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How long connections are used.

    max_age_s, max_requests: give or take a tenth, so that connections made together do not end together.
    idle_timeout_s: how long one beyond the warm ones is kept unused. ping_interval_s: silence before a PING.
    """

    max_age_s: float = 3600.0
    max_requests: int = 1_000_000
    idle_timeout_s: float = 60.0
    ping_interval_s: float = 30.0


_DEFAULT_UPKEEP: Final = Upkeep()


class Pool(Protocol):
    """What is asked of a pool: by who sends a request, and by who keeps the members of upstreams."""

    def lease_nowait(self) -> UpstreamConnection | None:
        """Return a connection with room, or None."""

    async def lease(self) -> UpstreamConnection:
        """Wait for a connection with room."""

    def give_back(self, connection: UpstreamConnection) -> None:
        """Pass on the room that is left."""

    def retire_stale_idle(self, now_s: float, least_s: float = _STALE_IDLE_S) -> None:
        """An idle connection was closed as it was used."""

    def statistics(self) -> PoolStatistics:
        """Count what is there."""

    def open_connections(self) -> list[OpenUpstream]:
        """Return what is open."""

    @property
    def is_warm(self) -> bool:
        """True while it can serve: see UpstreamPool."""

    def start(self) -> None:
        """Begin to connect."""

    def tick(self, now_s: float) -> None:
        """Do what is due."""

    def keep_none(self) -> None:
        """Keep no connection that idles. Called now and then."""

    def close(self) -> None:
        """Close what is idle, and the rest as it becomes so."""


class UpstreamPool:
    """Connections to one upstream; the owner that connections report to.

    on_change: is_warm or the number of connections may have changed. on_warm_failure: a dial or a warm-up failed;
    called once a round of failures while callers wait. on_warm: one was answered. on_end: a connection takes no more
    exchanges. on_close: there are no more dials.
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
        on_warm: Callable[[], None] = lambda: None,
        on_end: Callable[[ConnectionEnd], None] = lambda _cause: None,
        on_close: Callable[[], None] = lambda: None,
        upkeep: Upkeep = _DEFAULT_UPKEEP,
        budget: ConnectionBudget | None = None,
    ) -> None:
        self._dial: Final = PacedDial(dial)
        self._warmup: Final = warmup
        self._n_warm: Final = warm_connections
        self._max: Final = max_connections
        self._warmup_timeout_s: Final = warmup_timeout_s
        self._on_change: Final = on_change
        self._on_warm_failure: Final = on_warm_failure
        self._on_warm: Final = on_warm
        self._on_end: Final = on_end
        self._on_close: Final = on_close
        self._upkeep: Final = upkeep
        self._budget: Final = budget or ConnectionBudget(sys.maxsize)
        self._back_off: Final = BackOff(self._fill)  # delays dials that no caller waits for
        # The connections that take exchanges, and those of them that another one is to replace.
        self._connections: Final[dict[UpstreamConnection, _Lifetime]] = {}
        self._to_replace: Final[dict[UpstreamConnection, ConnectionEnd]] = {}
        self._closing_connections: set[UpstreamConnection] = set()  # they take no new exchanges
        self._available: Final = AvailableConnections(warm_connections)
        # Return a connection with room, or None. The caller opens its stream before it awaits anything. Then it calls
        # give_back(), also if it opened none.
        self.lease_nowait: Final = self._available.take
        self._waiters: Final = ConnectionWaiters()
        self._capacity: Final = _StreamCapacity()
        self._n_kept = 0  # warm connections to keep; none before start()
        self._dialing = 0
        self._warming = 0
        self._addresses: frozenset[Address] | None = None  # None: any
        self._failed = False  # the last dial
        self._reached = False  # a warm-up or a request was answered, and the upstream has not been lost since
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._closed = False

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<UpstreamPool connections={s.connections} dialing={s.dialing} streams={s.streams} waiting={s.waiting}>"

    def statistics(self) -> PoolStatistics:
        """Count usable connections, dials, streams in flight and callers that wait."""
        streams = sum(connection.n_streams for connection in (*self._connections, *self._closing_connections))
        return PoolStatistics(len(self._connections), self._dialing, streams, len(self._waiters))

    def open_connections(self) -> list[OpenUpstream]:
        """Return what is open, those last that take no new exchanges."""
        found = [OpenUpstream(connection, lifetime.since_s) for connection, lifetime in self._connections.items()]
        found += [OpenUpstream(connection, None) for connection in self._closing_connections]
        return found

    @property
    def is_warm(self) -> bool:
        """True once a warm-up or a request was answered, until the upstream can't be reached any more."""
        return self._reached

    @property
    def is_down(self) -> bool:
        """True while there is no connection and the last dial failed."""
        return self._failed and not self._connections

    def start(self) -> None:
        """Make the warm connections, and keep as many from now on."""
        self._n_kept = self._n_warm
        self._fill()

    # -- leasing ----------------------------------------------------------------------------------

    def give_back(self, connection: UpstreamConnection) -> None:
        """After a stream was opened: offer the room that is left, and dial if more is needed soon."""
        capacity = self._capacity
        if connection.has_room or capacity.unsettled:
            self.on_room(connection)
        lifetime = self._connections.get(connection)
        if lifetime is not None and connection.n_begun >= lifetime.max_begun:
            self._retire_when_replaced(connection, ConnectionEnd.REQUESTS)
        elif capacity.low and connection.n_rooms < capacity.low and not self._dialing:
            self._fill()

    async def lease(self) -> UpstreamConnection:
        """Wait for a connection with room; give_back() as for lease_nowait().

        Raises UpstreamFailure when the dial that the caller waited for failed, VeloxError(DRAINING) after close().
        """
        connection = self._available.take()
        ticket = self._waiters.ticket()
        while connection is None:
            if self._closed:
                raise _draining()
            connection = await self._wait(ticket)
            if not connection.has_room:  # lost before the caller woke: it keeps its place in the queue
                connection = self._available.take()
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
        """Give the connection to the caller that has waited longest, else make it available."""
        if connection not in self._connections:
            return  # its dial has not returned yet, or it takes no more exchanges
        if self._budget.is_wanted and not connection.n_streams and self._budget.must_yield(self):
            connection.retire(ConnectionEnd.IDLE)
            return
        is_settled_now = self._capacity.settle(connection) if self._capacity.unsettled else False
        # One caller at a time: it opens its stream when it wakes, then gives the rest back.
        if not (self._waiters.waiting and connection.has_room and self._waiters.serve(connection)):
            self._available.put(connection)
        if is_settled_now:
            self._fill()

    def on_closed(self, connection: UpstreamConnection) -> None:
        """The connection takes no more exchanges: dial another one if it is needed."""
        lifetime = self._connections.pop(connection, None)
        if lifetime is None:
            return
        self._to_replace.pop(connection, None)
        self._capacity.remove(connection)
        self._available.remove(connection)
        self._available.fill_core(self._connections)
        if connection.n_streams:
            self._closing_connections.add(connection)
        else:
            self._budget.release(self)
        if connection.end is not None:
            self._on_end(connection.end)
        if self._closed:
            return
        now_s = asyncio.get_running_loop().time()
        is_stable = lifetime.is_stable(now_s)
        if not is_stable and connection.end in _ENDS_BY_UPSTREAM and connection.n_begun <= 1:
            self._back_off.start()  # the next connection may end as soon: dial it after a pause
        elif is_stable and not self._failed:
            self._back_off.reset()
        self._on_change()
        self._fill()

    # -- how many ---------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start the dials that are needed and may begin now."""
        if self._closed:
            return
        n_dials = min(self._n_dials_wanted(), _MAX_DIALS)
        while self._dialing < n_dials and len(self._connections) + self._dialing < self._max:
            if not self._budget.take(self) and not self._may_dial_for_callers():
                break
            self._dialing += 1
            self._spawn(self._dial_one())

    def _may_dial_for_callers(self) -> bool:
        """Say whether a dial may begin though the worker has all the connections that it may have."""
        is_for_callers = self._dialing < self._n_for_waiters()
        return is_for_callers and self._budget.take_for_callers(self, asyncio.get_running_loop().time())

    def _n_dials_wanted(self) -> int:
        """Return how many dials should be under way."""
        wanted = self._n_for_waiters()
        if not self._back_off.is_on:
            missing = self._n_kept - (len(self._connections) - len(self._to_replace))
            wanted = max(wanted, missing, 1 if self._is_scarce() else 0)
        # While it is down, one is enough to find out that it is back.
        return min(wanted, 1) if self.is_down else wanted

    def _n_for_waiters(self) -> int:
        """Return how many connections the waiting callers need.

        The first connection shows which protocol the upstream speaks, and so whether a connection serves one exchange
        or a hundred. Until then one dial (and those for the warm connections) must do.
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
        """Tell whether another connection should be made before the HTTP/2 connections run out of room."""
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
            if self._closed:
                return
            self._dialing -= 1
            self._budget.release(self)
            self._dial_failed(untraced(failure))
            return
        self._dialing -= 1  # not when it was cancelled: then the pool is closed
        if (warmup := self._add(connection)) is not None:
            await self._wait_warm(warmup)

    def _add(self, connection: UpstreamConnection) -> Warmup | None:
        """Use a connection from now on, and warm it unless the waiting callers need all its room."""
        self._failed = False
        now_s = asyncio.get_running_loop().time()
        self._connections[connection] = _Lifetime.begin(now_s, self._upkeep)
        self._capacity.add(connection, now_s)
        self._available.fill_core(self._connections)
        if self._addresses is not None and connection.address not in self._addresses:
            self._to_replace[connection] = ConnectionEnd.MOVED  # the name's addresses changed during the dial
        self._retire_replaced()
        warmup = Warmup.begin(connection, self._warmup) if connection.n_rooms > len(self._waiters) else None
        self.on_room(connection)
        self._on_change()
        self._fill()
        return warmup

    def _dial_failed(self, failure: UpstreamFailure) -> None:
        """Fail the callers that waited for this dial: all whom the other dials under way cannot serve."""
        if failure.reason is not Reason.CONN_LIMIT:  # that is the worker's: nothing is known of the upstream
            self._failed = True
        is_new_pause = self._back_off.start()
        n_waiters, each = len(self._waiters), self._capacity.each
        n_coming = self._dialing + len(self._capacity.unsettled)
        if each:
            n_unserved = max(0, n_waiters - n_coming * each)
            n_failed = n_unserved if self.is_down else min(n_unserved, each)
        else:
            n_failed = 0 if n_coming else n_waiters
        for _ in range(n_failed):
            self._waiters.fail(lambda: _copy_of(failure))
        if is_new_pause or not n_failed:
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
            await warmup.wait_reply(self._warmup_timeout_s)
        except UpstreamFailure as failure:
            self._failed = not self._connections
            self._back_off.start()
            self._on_warm_failure(untraced(failure))
            self._note_loss()
            self._fill()
        else:
            self._reached = True
            self._on_warm()
            self._on_change()
        finally:
            self._warming -= 1

    # -- upkeep -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Check the connections; every 0.25 s or so. now_s: the loop's time."""
        if self._closed:
            return
        n_closing = len(self._closing_connections)
        self._closing_connections = {connection for connection in self._closing_connections if connection.n_streams}
        self._budget.release(self, n_closing - len(self._closing_connections))
        silence_s = self._upkeep.ping_interval_s
        for connection in self._closing_connections.copy():
            connection.check_alive(now_s, silence_s)
        for connection, lifetime in tuple(self._connections.items()):
            connection.check_alive(now_s, silence_s)
            if connection in self._connections:
                if not self._failed and lifetime.is_stable(now_s):
                    self._back_off.reset()
                self._check_lifetime(connection, lifetime, now_s)
        self._capacity.refresh(self._connections, now_s)
        if not self._reached:
            self._look_for_answers()
        if not self._reached and not self._warming and not self._back_off.is_on:
            self._warm_any()
        self._fill()

    def retire_stale_idle(self, now_s: float, least_s: float = _STALE_IDLE_S) -> None:
        """Retire what has been idle: the upstream closed an idle connection just as it was used (F-10).

        A load balancer drops all idle connections at once, and each would cost the next request an attempt.
        least_s: how long they have been.
        """
        for connection, lifetime in tuple(self._connections.items()):
            if not connection.n_streams and lifetime.idle_s(connection, now_s) >= least_s:
                connection.retire(ConnectionEnd.CLOSED)

    def keep_none(self) -> None:
        """Keep no warm connections from now on, and close those that are idle: to be called again for later ones."""
        self._n_kept = 0
        for connection in tuple(self._available):
            if connection in self._connections and not connection.n_streams:
                connection.retire(ConnectionEnd.IDLE)

    def keep_only(self, addresses: frozenset[Address]) -> None:
        """The upstream's name has these addresses now: replace the connections to other ones."""
        self._addresses = addresses
        for connection, cause in tuple(self._to_replace.items()):
            if cause is ConnectionEnd.MOVED and connection.address in addresses:
                del self._to_replace[connection]  # the name's answers alternate
        for connection in tuple(self._connections):
            if connection.address not in addresses:
                self._retire_when_replaced(connection, ConnectionEnd.MOVED)

    def _check_lifetime(self, connection: UpstreamConnection, lifetime: _Lifetime, now_s: float) -> None:
        idle_s = lifetime.idle_s(connection, now_s)
        # A warm one too, if it allows no streams: some upstreams announce their end like that.
        is_spare = not self._available.is_core(connection) or not connection.has_room
        if idle_s >= self._upkeep.idle_timeout_s and is_spare:
            connection.retire(ConnectionEnd.IDLE)
        elif now_s >= lifetime.until_s:
            self._retire_when_replaced(connection, ConnectionEnd.AGE)

    def _look_for_answers(self) -> None:
        """See whether a request was answered: under load no connection may be free for a warm-up for a long time.

        A connection of HTTP/1.1 takes another request only after a whole answer. HTTP/2 always has room for a warm-up.
        """
        if not self._capacity.is_http2 and any(connection.n_begun > 1 for connection in self._connections):
            self._reached = True
            self._on_warm()
            self._on_change()

    def _warm_any(self) -> None:
        """Send a warm-up: the requests that waited at the start took all the room of the first connections."""
        connection = None if self._waiters else self.lease_nowait()
        if connection is not None:
            warmup = Warmup.begin(connection, self._warmup)
            self.give_back(connection)
            if warmup is not None:
                self._spawn(self._wait_warm(warmup))

    def _retire_when_replaced(self, connection: UpstreamConnection, cause: ConnectionEnd) -> None:
        """Use a connection only until another one replaces it."""
        if connection in self._connections and connection not in self._to_replace:
            self._to_replace[connection] = cause
            self._retire_replaced()
            self._fill()

    def _retire_replaced(self) -> None:
        """Retire those that are not needed: there are enough others, or no place is left for another one."""
        all_connections, to_replace = self._connections, self._to_replace
        while to_replace and (
            len(all_connections) - len(to_replace) >= self._n_kept or len(all_connections) >= self._max
        ):
            connection, cause = to_replace.popitem()
            connection.retire(cause)

    # -- BudgetedPool ---------------------------------------------------------------------------------

    def idle_s(self, now_s: float) -> float | None:
        idle = self._longest_idle(now_s)
        return None if idle is None else idle[0]

    def close_idle(self, now_s: float) -> None:
        idle = self._longest_idle(now_s)
        if idle is not None:
            idle[1].retire(ConnectionEnd.IDLE)

    def on_budget(self) -> None:
        self._fill()

    def _longest_idle(self, now_s: float) -> tuple[float, UpstreamConnection] | None:
        found: tuple[float, UpstreamConnection] | None = None
        for connection in self._available:
            lifetime = self._connections.get(connection)
            if lifetime is not None and not connection.n_streams:
                idle_s = lifetime.idle_s(connection, now_s)
                if found is None or idle_s > found[0]:
                    found = idle_s, connection
        return found

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Abort every connection, cancel every dial, and fail the waiting callers."""
        self._closed = True
        self._back_off.close()
        for task in tuple(self._tasks):
            task.cancel()
        for connection in (*self._connections, *self._closing_connections):
            connection.abort(ConnectionEnd.SHUTDOWN)
        self._budget.leave(self)
        while self._waiters.fail(_draining):
            pass
        self._on_close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="pool")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _draining() -> VeloxError:
    return VeloxError(Reason.DRAINING, "the gateway is shutting down", close=True)


def _copy_of(failure: UpstreamFailure) -> UpstreamFailure:
    """Return an equal failure: each waiting caller raises one of its own, with its own traceback."""
    return UpstreamFailure(failure.reason, failure.message, unprocessed=failure.unprocessed)


class AvailableConnections:
    """Connections with room. Those of the core, at most `core_size`, round robin; then the others, last used first."""

    def __init__(self, core_size: int) -> None:
        self._core_size: Final = core_size
        self._core: Final[set[UpstreamConnection]] = set()
        self._ready: Final[deque[UpstreamConnection]] = deque()
        # A dict as a stack: thousands may end at once, and removing one must not search.
        self._spare: Final[dict[UpstreamConnection, None]] = {}

    def __len__(self) -> int:
        return len(self._ready) + len(self._spare)

    def __iter__(self) -> Iterator[UpstreamConnection]:
        """Go through those that had room when they were put in."""
        return chain(self._ready, self._spare)

    def is_core(self, connection: UpstreamConnection) -> bool:
        """Tell whether a connection is one of those that are used first, and kept."""
        return connection in self._core

    def take(self) -> UpstreamConnection | None:
        """Remove and return the next connection that has room."""
        ready = self._ready
        while ready:
            connection = ready.popleft()
            connection.queued = False
            if connection.has_room:
                return connection
        spare = self._spare
        while spare:
            connection, _ = spare.popitem()
            connection.queued = False
            if connection.has_room:
                return connection
        return None

    def put(self, connection: UpstreamConnection) -> None:
        """Add a connection, unless it is here already or has no room."""
        if not connection.queued and connection.has_room:
            connection.queued = True
            if connection in self._core:
                self._ready.append(connection)
            else:
                self._spare[connection] = None

    def remove(self, connection: UpstreamConnection) -> None:
        """Forget a connection."""
        self._dequeue(connection)
        self._core.discard(connection)

    def fill_core(self, connections: Iterable[UpstreamConnection]) -> None:
        """Fill the core up from `connections`, the first ones first."""
        for connection in connections:
            if len(self._core) >= self._core_size:
                return
            if connection not in self._core:
                was_queued = connection.queued
                self._dequeue(connection)
                self._core.add(connection)
                if was_queued:
                    connection.queued = True
                    self._ready.append(connection)

    def _dequeue(self, connection: UpstreamConnection) -> None:
        if connection.queued:
            connection.queued = False
            if connection in self._core:
                self._ready.remove(connection)
            else:
                del self._spare[connection]


Waiter = asyncio.Future[UpstreamConnection]


class ConnectionWaiters:
    """Callers that wait for a connection, in the order in which they came.

    A caller that was served but found its connection lost comes back to its old place.
    """

    def __init__(self) -> None:
        self._n_tickets = 0
        self.waiting: OrderedDict[int, Waiter] = OrderedDict()
        self._served: Final[set[Waiter]] = set()

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def n_served(self) -> int:
        """Callers that were given a connection and have not woken yet, so that they have not used its room."""
        return len(self._served)

    def ticket(self) -> int:
        """Return a caller's place."""
        self._n_tickets += 1
        return self._n_tickets

    def join(self, ticket: int) -> Waiter:
        """Wait in the queue; the result is a connection that had room when it was set."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        waiting = self.waiting
        is_last = not waiting or next(reversed(waiting)) < ticket
        waiting[ticket] = waiter
        if not is_last:
            self.waiting = OrderedDict(sorted(waiting.items()))
        return waiter

    def leave(self, ticket: int) -> bool:
        """Leave the queue; False if the caller was served, or failed, already."""
        return self.waiting.pop(ticket, None) is not None

    def serve(self, connection: UpstreamConnection) -> bool:
        """Give a connection to the caller that has waited longest; False if nobody waits."""
        waiter = self._next()
        if waiter is None:
            return False
        waiter.set_result(connection)
        self._served.add(waiter)
        return True

    def woke(self, waiter: Waiter) -> None:
        """The caller has its connection, and uses it now."""
        self._served.discard(waiter)

    def fail(self, make: Callable[[], VeloxError]) -> bool:
        """Fail the caller that has waited longest; False if nobody waits.

        make: each gets an error of its own, because an error gathers the traceback of who raises it.
        """
        waiter = self._next()
        if waiter is None:
            return False
        waiter.set_exception(make())
        return True

    def _next(self) -> Waiter | None:
        while self.waiting:
            _, waiter = self.waiting.popitem(last=False)
            if not waiter.done():  # else its task was cancelled, and has not run yet
                return waiter
        return None


class _StreamCapacity:
    """How many exchanges a connection of one upstream takes at a time.

    An HTTP/2 upstream announces it in its SETTINGS, which over TLS come a round trip after the connection was made.
    Until then a connection takes one exchange, and does not show how many others are needed.

    each: exchanges that one connection takes at a time; 0: not known yet.
    low: free streams of a connection below which more may be needed; 0: HTTP/1.1, which has only one.
    unsettled: connections whose SETTINGS are awaited, and since when (on the loop's clock).
    """

    __slots__ = ("each", "is_http2", "low", "unsettled")

    def __init__(self) -> None:
        self.each = 0
        self.low = 0
        self.is_http2 = False
        self.unsettled: Final[dict[UpstreamConnection, float]] = {}

    def __repr__(self) -> str:
        return f"<_StreamCapacity each={self.each} unsettled={len(self.unsettled)}>"

    def add(self, connection: UpstreamConnection, now_s: float) -> None:
        """A connection was made."""
        if connection.is_settled:
            self._learn(connection.n_rooms)
        else:
            self.is_http2 = True
            self.unsettled[connection] = now_s

    def settle(self, connection: UpstreamConnection) -> bool:
        """A connection has room; True if its SETTINGS have just come."""
        if not connection.is_settled or self.unsettled.pop(connection, None) is None:
            return False
        self._learn(connection.n_rooms + connection.n_streams)
        return True

    def remove(self, connection: UpstreamConnection) -> None:
        """The connection takes no more exchanges."""
        self.unsettled.pop(connection, None)

    def refresh(self, connections: Iterable[UpstreamConnection], now_s: float) -> None:
        """Now and then: limits change, and SETTINGS may never come."""
        for connection, since_s in [*self.unsettled.items()]:
            if connection.is_settled or now_s - since_s >= _SETTLE_S:
                del self.unsettled[connection]
        most = max((each.n_rooms + each.n_streams for each in connections if each not in self.unsettled), default=0)
        if most:
            self._learn(most)

    def _learn(self, n_streams: int) -> None:
        self.is_http2 |= n_streams != 1
        self.each = max(1, n_streams)
        self.low = max(1, self.each // 10) if self.each > 1 else 0


@dataclass(slots=True)
class _Lifetime:
    """How long one connection may be used, and since when it is idle. Times on the loop's clock."""

    since_s: float
    until_s: float
    max_begun: int
    idle_since_s: float
    n_seen: int

    @classmethod
    def begin(cls, now_s: float, upkeep: Upkeep) -> _Lifetime:
        """Return the lifetime of a connection that was made just now."""
        max_age_s = upkeep.max_age_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        max_begun = max(1, round(upkeep.max_requests * random.uniform(1 - _JITTER, 1 + _JITTER)))
        return cls(now_s, now_s + max_age_s, max_begun, now_s, 0)

    def idle_s(self, connection: UpstreamConnection, now_s: float) -> float:
        """Return how long the connection has been idle, as far as the calls of this method have seen."""
        if connection.n_streams or connection.n_begun != self.n_seen:
            self.n_seen = connection.n_begun
            self.idle_since_s = now_s
        return now_s - self.idle_since_s

    def is_stable(self, now_s: float) -> bool:
        """Tell whether the connection has lasted long enough to show that the upstream keeps connections."""
        return now_s - self.since_s >= _STABLE_S
