"""Leases, the workers' side: the pipes to the lease manager, and the requests that wait for its answers.

Knows: what a message is, that all demands of one loop turn are one message, and how long a request may wait. Does not
know: what a demand means (velox.shm.leased), or how the lease manager answers it (leases/lease_manager.py).

There is one pipe to the lease manager and one back to each worker's block. The supervisor makes them, and they outlive
every process that uses them: a lease manager that is restarted still finds the demands. No side ever blocks: a message
to a full pipe is lost, and its sender waits for the answer no longer than VELOX_REDIS_TIMEOUT.

The lease manager may hang, or be dead for a moment. A worker that waits in vain takes Redis for down until the lease
manager sends something again; a running lease manager sends a heartbeat once a second.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from velox.gateway.limits.lease_wait import Want
from velox.settings import Settings
from velox.shm.leased import Demand, LeasedQuota
from velox.shm.leased_budget import BUDGET_ROWS, LeasedBudget
from velox.shm.status import GatewayStatus

__all__ = ["ALIVE", "BUDGETS_ALIVE", "EVERY_ROW", "BudgetClient", "LeaseClient", "LeasePipes"]

# Instead of a row: the lease manager runs; every row of limits has an answer; the lease manager's thread of budgets
# runs.
ALIVE: Final = 0xFFFF_FFFF
EVERY_ROW: Final = 0xFFFF_FFFE
BUDGETS_ALIVE: Final = 0xFFFF_FFFD

# pipe(7): a write of at most so many bytes is whole or not at all.
_ATOMIC: Final = select.PIPE_BUF
_MOST_DEMANDS: Final = _ATOMIC // Demand.size()
_MOST_ROWS: Final = _ATOMIC // 4
# 14,000 demands. It is as much as a user without privileges may ask for.
_DEMANDS_BYTES: Final = 2**20


class LeasePipes:
    """The pipes of one gateway. blocks: Segment.blocks."""

    def __init__(self, blocks: int) -> None:
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self.demands_fd, self._demands_write = os.pipe2(flags)
        self._answers: Final = [os.pipe2(flags) for _ in range(blocks)]
        try:
            fcntl.fcntl(self._demands_write, fcntl.F_SETPIPE_SZ, _DEMANDS_BYTES)
        except OSError:
            pass  # the user's limit on pipes is reached: 900 demands have to do

    def __repr__(self) -> str:
        return f"<LeasePipes blocks={len(self._answers)}>"

    def answers_fd(self, block: int) -> int:
        """Return the descriptor that becomes readable when the lease manager has an answer for a worker."""
        return self._answers[block][0]

    # -- a worker's side --------------------------------------------------------------------------

    def demand(self, demands: Sequence[Demand]) -> None:
        """Send demands to the lease manager."""
        for first in range(0, len(demands), _MOST_DEMANDS):
            part = demands[first : first + _MOST_DEMANDS]
            _write(self._demands_write, b"".join([demand.packed() for demand in part]))

    def answers(self, block: int) -> list[int]:
        """Return the rows that the lease manager has answered, ALIVE and EVERY_ROW among them."""
        words = _read(self._answers[block][0], _ATOMIC)
        return list(struct.unpack(f"={len(words) // 4}I", words))

    # -- the lease manager's side ------------------------------------------------------------------------

    def demands(self) -> list[Demand]:
        """Return what workers asked for."""
        found: list[Demand] = []
        while messages := _read(self.demands_fd, _MOST_DEMANDS * Demand.size()):
            found += Demand.unpacked(messages)
        return found

    def answer(self, block: int, rows: Iterable[int]) -> None:
        """Send answered rows to a worker."""
        words = list(rows)
        for first in range(0, len(words), _MOST_ROWS):
            part = words[first : first + _MOST_ROWS]
            _write(self._answers[block][1], struct.pack(f"={len(part)}I", *part))

    def answer_all(self, word: int) -> None:
        """Send ALIVE or EVERY_ROW to every worker."""
        for block in range(len(self._answers)):
            self.answer(block, (word,))

    def close(self) -> None:
        """Close all ends, as this process has them."""
        for fd in (self.demands_fd, self._demands_write, *(fd for pair in self._answers for fd in pair)):
            os.close(fd)


def _write(fd: int, message: bytes) -> None:
    try:
        os.write(fd, message)
    except BlockingIOError:
        pass  # see above


def _read(fd: int, most: int) -> bytes:
    try:
        return os.read(fd, most)
    except BlockingIOError:
        return b""


class _Waiter:
    """One request that waits for answers for some rows."""

    __slots__ = ("future", "rows")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future: Final = future
        self.rows: Final[set[int]] = set()


class LeaseClient:
    """A velox.shm.leased.Link, and a velox.gateway.limits.lease_wait.LeaseWait. block: of this worker."""

    __slots__ = (
        "_block",
        "_demands",
        "_loop",
        "_pipes",
        "_settings",
        "_status",
        "_trusts",
        "_waiting",
        "answers_for_budgets",
    )

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
        self.answers_for_budgets = True  # the lease manager does, as far as this worker knows
        loop.add_reader(pipes.answers_fd(block), self._on_answers)

    def __repr__(self) -> str:
        return f"<LeaseClient up={self.is_up} waiting={len(self._waiting)}>"

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
        """Send a demand to the lease manager, at the end of this turn of the loop."""
        if not self._demands:
            self._loop.call_soon(self._flush)
        self._demands.append(demand)

    async def wait_for_lease(self, wants: Sequence[Want], until_s: float) -> bool:
        """Ask for permits and wait for the lease manager's answer on all of them; False: there was none in time."""
        waiter = _Waiter(self._loop.create_future())
        for quota, n in wants:
            assert isinstance(quota, LeasedQuota | LeasedBudget), "no other says NOT_YET"
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
            is_of_budgets = [row >= BUDGET_ROWS for row in waiter.rows]
            self._trusts &= all(is_of_budgets)
            self.answers_for_budgets &= not any(is_of_budgets)
            return False
        finally:
            timer.cancel()
            for row in waiter.rows:
                self._forget(row, waiter)

    def _flush(self) -> None:
        demands, self._demands = self._demands, []
        self._pipes.demand(demands)

    def _on_answers(self) -> None:
        rows = self._pipes.answers(self._block)
        for row in rows:
            if BUDGET_ROWS <= row <= BUDGETS_ALIVE:
                self.answers_for_budgets = True
            else:
                self._trusts = True
        if EVERY_ROW in rows:
            rows += [row for row in self._waiting if row < BUDGET_ROWS]
        for row in rows:
            if row < BUDGETS_ALIVE:
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


class BudgetClient:
    """A velox.shm.leased.LinkState."""

    __slots__ = ("_leases",)

    def __init__(self, leases: LeaseClient) -> None:
        self._leases: Final = leases

    def __repr__(self) -> str:
        return f"<BudgetClient of {self._leases!r}>"

    @property
    def is_up(self) -> bool:
        """True while the lease manager answers."""
        return self._leases.answers_for_budgets

    @property
    def replicas(self) -> int:
        """How many gateways share the budgets."""
        return self._leases.replicas

    @property
    def stands_alone(self) -> bool:
        """True if this gateway spends its share while Redis is down."""
        return self._leases.stands_alone


def _give_up(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
