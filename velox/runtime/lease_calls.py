"""A worker's way to the keeper of leases: what it asks for, and who waits for the answer.

Knows: that all demands of one turn of the loop are one message, and for how long a request may wait. Does not know:
what a demand says (velox.shm.leased), or what becomes of it (lease_keeper.py).

The keeper may hang, or be dead for a moment. A worker that hears nothing of it for as long as a request may wait takes
Redis for down until it hears something: once a second, of a keeper that lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from velox.gateway.lease_wait import Want
from velox.runtime.lease_pipes import ALIVE, EVERY_ROW, LeasePipes
from velox.settings import Settings
from velox.shm.leased import Demand, LeasedQuota
from velox.shm.status import GatewayStatus

__all__ = ["LeaseCalls"]


class _Waiter:
    """One request that waits for answers for some rows."""

    __slots__ = ("future", "rows")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future: Final = future
        self.rows: Final[set[int]] = set()


class LeaseCalls:
    """A velox.shm.leased.Link, and a velox.gateway.lease_wait.LeaseWait. block: of this worker."""

    __slots__ = ("_block", "_demands", "_loop", "_pipes", "_settings", "_status", "_trusts", "_waiting")

    def __init__(
        self, settings: Settings, pipes: LeasePipes, block: int, status: GatewayStatus, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._settings: Final = settings
        self._pipes: Final = pipes
        self._block: Final = block
        self._status: Final = status
        self._loop: Final = loop
        self._demands: list[Demand] = []
        self._waiting: dict[int, set[_Waiter]] = {}
        self._trusts = True
        loop.add_reader(pipes.told_fd(block), self._on_told)

    def __repr__(self) -> str:
        return f"<LeaseCalls up={self.is_up} waiting={len(self._waiting)}>"

    @property
    def is_up(self) -> bool:
        """True while Redis can be asked, as far as this worker knows."""
        return self._trusts and self._status.redis_is_up

    @property
    def replicas(self) -> int:
        """How many gateways share the limits."""
        return self._settings.replicas or self._status.replicas or 1

    @property
    def stands_alone(self) -> bool:
        """True if this gateway gives its share while Redis is down."""
        return self._settings.redis_fallback == "local"

    @property
    def timeout_s(self) -> float:
        """For how long a request may wait for Redis."""
        return self._settings.redis_timeout_s

    def send(self, demand: Demand) -> None:
        """Tell the keeper, at the end of this turn of the loop."""
        if not self._demands:
            self._loop.call_soon(self._flush)
        self._demands.append(demand)

    async def told(self, wants: Sequence[Want], until_s: float) -> bool:
        """Ask for permits and wait for what the keeper says of all of them; False: it said nothing until then."""
        waiter = _Waiter(self._loop.create_future())
        for quota, n in wants:
            assert isinstance(quota, LeasedQuota), "no other quota says NOT_YET"
            demand = quota.demand(n)
            if demand is not None:
                self.send(demand)
                waiter.rows.add(demand.row)
                self._waiting.setdefault(demand.row, set()).add(waiter)
        if not waiter.rows:
            return True
        timer = self._loop.call_at(until_s, _give_up, waiter.future)
        try:
            await waiter.future
            return True
        except TimeoutError:
            self._trusts = False
            return False
        finally:
            timer.cancel()
            for row in waiter.rows:
                self._forget(row, waiter)

    def _flush(self) -> None:
        demands, self._demands = self._demands, []
        self._pipes.demand(demands)

    def _on_told(self) -> None:
        rows = self._pipes.told(self._block)
        self._trusts = True
        if EVERY_ROW in rows:
            rows = list(self._waiting)
        for row in rows:
            if row != ALIVE:
                for waiter in self._waiting.pop(row, ()):
                    waiter.rows.discard(row)
                    if not waiter.rows and not waiter.future.done():
                        waiter.future.set_result(None)

    def _forget(self, row: int, waiter: _Waiter) -> None:
        waiters = self._waiting.get(row)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiting[row]


def _give_up(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
