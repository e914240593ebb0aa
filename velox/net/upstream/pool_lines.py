"""The two lines of a pool: callers that wait for a connection, and connections that wait for a caller.

Knows: who is next. Does not know: how many there should be (pool.py), or what a connection is made of.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final

from velox.errors import VeloxError
from velox.net.upstream.interface import UpstreamConnection

__all__ = ["Rooms", "Waiters"]

Waiter = asyncio.Future[UpstreamConnection]


class Waiters:
    """Callers in the order in which they came. One that was served in vain comes back to its old place."""

    def __init__(self) -> None:
        self._n_tickets = 0
        self._waiting: OrderedDict[int, Waiter] = OrderedDict()
        self._served: Final[set[Waiter]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def n_served(self) -> int:
        """Callers that were given a connection and have not woken yet, so that they have not used its room."""
        return len(self._served)

    def ticket(self) -> int:
        """Return a caller's place."""
        self._n_tickets += 1
        return self._n_tickets

    def join(self, ticket: int) -> Waiter:
        """Stand in line; the result is a connection that had room when it was set."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        waiting = self._waiting
        is_last = not waiting or next(reversed(waiting)) < ticket
        waiting[ticket] = waiter
        if not is_last:
            self._waiting = OrderedDict(sorted(waiting.items()))
        return waiter

    def leave(self, ticket: int) -> bool:
        """Give the place up; False if it was served, or told of a failure, already."""
        return self._waiting.pop(ticket, None) is not None

    def serve(self, connection: UpstreamConnection) -> bool:
        """Give a connection to who has waited longest; False if nobody waits."""
        waiter = self._next()
        if waiter is None:
            return False
        waiter.set_result(connection)
        self._served.add(waiter)
        return True

    def woke(self, waiter: Waiter) -> None:
        """The caller has what it was given, and uses it now."""
        self._served.discard(waiter)

    def fail(self, make: Callable[[], VeloxError]) -> bool:
        """Tell who has waited longest that it was in vain; False if nobody waits.

        make: each gets an error of its own, because an error gathers the traceback of who raises it.
        """
        waiter = self._next()
        if waiter is None:
            return False
        waiter.set_exception(make())
        return True

    def _next(self) -> Waiter | None:
        while self._waiting:
            _, waiter = self._waiting.popitem(last=False)
            if not waiter.done():  # else its task was cancelled, and has not run yet
                return waiter
        return None


class Rooms:
    """Connections with room. Those of the core, at most `core_size`, round robin; then the others, last used first."""

    def __init__(self, core_size: int) -> None:
        self._core_size: Final = core_size
        self._core: Final[set[UpstreamConnection]] = set()
        self._ready: Final[deque[UpstreamConnection]] = deque()
        # A dict in the place of a stack: thousands may end at once, and each must leave the line at no cost.
        self._spare: Final[dict[UpstreamConnection, None]] = {}

    def __len__(self) -> int:
        return len(self._ready) + len(self._spare)

    def is_core(self, connection: UpstreamConnection) -> bool:
        """Tell whether a connection is one of those that are used first, and kept."""
        return connection in self._core

    def take(self) -> UpstreamConnection | None:
        """Return the next connection, if one has room; it stands in line no more."""
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
        """Put a connection in line, unless it stands there already or has no room."""
        if not connection.queued and connection.has_room:
            connection.queued = True
            if connection in self._core:
                self._ready.append(connection)
            else:
                self._spare[connection] = None

    def remove(self, connection: UpstreamConnection) -> None:
        """Forget a connection."""
        self._leave(connection)
        self._core.discard(connection)

    def promote(self, connections: Iterable[UpstreamConnection]) -> None:
        """Fill the core up from `connections`, the first ones first."""
        for connection in connections:
            if len(self._core) >= self._core_size:
                return
            if connection not in self._core:
                was_queued = connection.queued
                self._leave(connection)
                self._core.add(connection)
                if was_queued:
                    connection.queued = True
                    self._ready.append(connection)

    def _leave(self, connection: UpstreamConnection) -> None:
        if connection.queued:
            connection.queued = False
            if connection in self._core:
                self._ready.remove(connection)
            else:
                del self._spare[connection]
