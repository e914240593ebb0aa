"""Budgets over several gateways: what the keeper of leases asks Redis for, and notes in the rows of budgets.

    ten times a second   rows whose part gets short ask for more; a part that nobody used for a second goes back
    demands              a request that finds too little in its row: asked for at once
    every five seconds   each row reports, so that what was spent elsewhere is known here, too

Knows: when a row asks, and for how much. Does not know: the connection (lease_redis.py, whose script budget.lua this
is), how a worker holds (shm/leased_budget.py), or amounts of requests.

Redis keeps, for each window of a budget, what each gateway is granted and has spent, and the two sums. A gateway asks
with what it uses; it gets that, what its requests need, and a part of what is free, of which there is less the nearer
the limit comes. What it was granted is never taken from it: it lowers its part itself, before it tells Redis.

A Redis that comes back empty learns from each gateway what it had. Until all have said so, for two seconds after one
that knows of another life, nobody gets more than it had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from velox.runtime.lease_redis import BudgetQuery, LeaseRedis
from velox.shm.budget_table import BudgetMemory, Told
from velox.shm.leased import Demand
from velox.shm.leased_budget import BUDGET_ROWS

__all__ = ["BudgetKeeper"]

_MOST_ROWS: Final = 64
_TICK_NS: Final = 100_000_000
# A row that needs something is demanded; this finds those whose spend was read from the ledger.
_SCAN_NS: Final = 1_000_000_000
# Of a thousand rows and more, looking takes longer; it may take this part of the time.
_LOOK_PART: Final = 10
_IDLE_NS: Final = 1_000_000_000
_REPORT_NS: Final = 5_000_000_000
# In advance, all gateways together hold at most one part of so many of what is free.
PARTS: Final = 8
_GRACE_MS: Final = 2000
_DAY_MS: Final = 86_400_000
_FOREVER_MS: Final = 400 * _DAY_MS
_NAME_BYTES: Final = 8


class _Row:
    """What the keeper knows of one row, in one window."""

    __slots__ = ("blocks", "is_due", "needs", "number", "reported_ns", "since_ns", "used")

    def __init__(self, number: int, now_ns: int) -> None:
        self.number: Final = number
        self.used = -1
        self.since_ns = now_ns  # it is as it is
        self.reported_ns = 0
        self.needs: list[int] = []
        self.blocks: set[int] = set()
        self.is_due = False


class BudgetKeeper:
    """One gateway's. name: its own, the same after a restart. wall_s: Unix time, by which windows end."""

    def __init__(
        self, memory: BudgetMemory, redis: LeaseRedis, name: str, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._memory: Final = memory
        self._redis: Final = redis
        self._name: Final = name
        self._wall_s: Final = wall_s
        self._rows: Final[dict[int, _Row]] = {}
        self._life = ""  # of Redis' memory, as last seen
        self._next_look_ns = self._next_scan_ns = 0

    def __repr__(self) -> str:
        return f"<BudgetKeeper {self._name} rows={len(self._rows)}>"

    def demanded(self, demand: Demand, now_ns: int) -> None:
        """Note what a worker needs."""
        index = demand.row - BUDGET_ROWS
        if 0 <= index < self._memory.rows:
            row = self._row(index, now_ns)
            row.needs.append(demand.n)
            row.blocks.add(demand.block)
            row.is_due = True

    def turn(self, now_ns: int, replicas: int) -> list[tuple[int, int]]:
        """Ask for all that need it; return the workers that wait, as block and word. Raises RedisDownError."""
        if now_ns >= self._next_look_ns:
            began_ns = time.monotonic_ns()
            self._look(now_ns, PARTS * max(1, replicas))
            took_ns = time.monotonic_ns() - began_ns
            self._next_look_ns = now_ns + max(_TICK_NS, _LOOK_PART * took_ns)
        answered: list[tuple[int, int]] = []
        due = [index for index, row in self._rows.items() if row.is_due]
        for first in range(0, len(due), _MOST_ROWS):
            answered += self._ask(due[first : first + _MOST_ROWS], replicas, now_ns)
        return answered

    def drop(self) -> list[tuple[int, int]]:
        """Redis is down: return the workers that wait. What was asked for is dropped."""
        waiting = []
        for index, row in self._rows.items():
            waiting += [(block, BUDGET_ROWS | index) for block in row.blocks]
            row.needs.clear()
            row.blocks.clear()
        return waiting

    def report_again(self) -> None:
        """Have every row report: Redis may have lost what it knew."""
        for row in self._rows.values():
            row.is_due = True

    def leave(self) -> None:
        """Give back what is not used. Raises RedisDownError."""
        for index, row in self._rows.items():
            self._lower(index, row)
            row.is_due = True
        self.turn(time.monotonic_ns(), 1 << 40)

    # -- one row ------------------------------------------------------------------------------------

    def _look(self, now_ns: int, parts: int) -> None:
        memory, now_s = self._memory, self._wall_s()
        if now_ns >= self._next_scan_ns:
            self._next_scan_ns = now_ns + _SCAN_NS
            for index in memory.used_rows():
                self._row(index, now_ns)
        for index in list(self._rows):
            limit, number, end_s = memory.window_of(index)
            if not number:
                continue
            row, told = self._row(index, now_ns), memory.told(index, number)
            used = sum(memory.amounts(index, number))
            if used != row.used:
                row.used, row.since_ns = used, now_ns
            if told is None:
                row.is_due = row.is_due or used > 0
                continue
            if now_ns - row.since_ns >= _IDLE_NS:
                if told.grant > used:
                    self._lower(index, row)
                    row.is_due = True
            elif row.since_ns == now_ns:  # it changes
                free = limit - told.granted - used
                row.is_due = row.is_due or told.grant - used < free // (2 * parts)
            is_over = end_s and end_s < now_s and told.grant <= used
            if now_ns - row.reported_ns >= _REPORT_NS and not is_over:
                row.is_due = True

    def _row(self, index: int, now_ns: int) -> _Row:
        number = self._memory.window_of(index)[1]
        row = self._rows.get(index)
        if row is None or row.number != number:
            waiting = set() if row is None else row.blocks
            row = self._rows[index] = _Row(number, now_ns)
            row.blocks |= waiting
        return row

    def _lower(self, index: int, row: _Row) -> None:
        """Take back what nobody uses. What is held meanwhile stays granted."""
        memory = self._memory
        told = memory.told(index, row.number)
        if told is not None:
            memory.lower(index, min(told.grant, sum(memory.amounts(index, row.number))))
            used = sum(memory.amounts(index, row.number))
            memory.lower(index, min(told.grant, used))

    # -- Redis --------------------------------------------------------------------------------------

    def _ask(self, indexes: Sequence[int], replicas: int, now_ns: int) -> list[tuple[int, int]]:
        memory, now_s = self._memory, self._wall_s()
        queries = [self._query(index, self._rows[index], now_s) for index in indexes]
        life, is_unsure, answers = self._redis.ask_budgets(
            queries, self._name, self._life, _GRACE_MS, PARTS * max(1, replicas)
        )
        if self._life and life != self._life:
            self.report_again()
        self._life = life
        at_ns = time.monotonic_ns()
        answered: list[tuple[int, int]] = []
        for index, query, (grant, spent, granted) in zip(indexes, queries, answers, strict=True):
            row = self._rows[index]
            # While Redis is unsure, others may have what it does not know of.
            granted = max(granted, query.limit - grant) if is_unsure else granted
            memory.tell(index, query.number, Told(grant, spent, granted, at_ns))
            row.reported_ns = now_ns
            # Not all that was needed: who waits asks again, or is refused.
            answered += [(block, BUDGET_ROWS | index) for block in row.blocks]
            row.needs.clear()
            row.blocks.clear()
            row.is_due = is_unsure
        return answered

    def _query(self, index: int, row: _Row, now_s: float) -> BudgetQuery:
        memory, number = self._memory, row.number
        limit, _, end_s = memory.window_of(index)
        spent, held = memory.amounts(index, number)
        told = memory.told(index, number)
        ttl_ms = _FOREVER_MS if not end_s else max(0, round((end_s - now_s) * 1000)) + _DAY_MS
        return BudgetQuery(
            memory.name(index),
            *(number, limit, spent + held, spent),
            *(0 if told is None else told.grant, sum(row.needs), min(row.needs, default=0), ttl_ms),
        )
