"""Budgets over several gateways: what the lease manager asks Redis for, and notes in the rows of budgets.

    ten times a second   rows whose part gets short ask for more; a part that nobody used for a second goes back
    demands              a request that finds too little in its row: asked for at once
    every five seconds   each row reports, so that what was spent elsewhere is known here, too

There may be tens of thousands of rows, and one question has 64 of them. So only demands are all asked for in one turn;
of the others it is one question a turn, and demands come in between. Reports take a fifth of the time at most, and one
look is at no more than a thousand rows: the next look goes on from there.

Knows: when a row asks, and for how much. Does not know: the connection (lease_redis.py, whose script budget.lua this
is), how a worker holds (shm/leased_budget.py), or amounts of requests.

Redis keeps, for each window of a budget, what each gateway has of it and has spent, and the two sums. Free is what the
others leave of the limit. A gateway is granted what its requests need and a part of what is free then, of which there
is less the nearer the limit comes; all of it never is more than what is free. So whatever a gateway reports, the grants
together are no more than the limit. What it reports as used is taken, for the others, even if it was not granted: calls
that cost more than they held, or what was spent while Redis was down.

A gateway reports nothing that may be taken back: a request that only asks whether there is room is not in it. It lowers
its part itself, before it tells Redis.

A Redis that comes back empty learns from each gateway what it had. Until all have said so, for some seconds after one
that knows of another life, nobody gets more than it had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from velox.runtime.leases.lease_redis import BudgetQuery, LeaseRedis
from velox.shm.budget_table import BudgetMemory, Told
from velox.shm.leased import Demand
from velox.shm.leased_budget import BUDGET_ROWS

__all__ = ["BudgetManager"]

_MOST_ROWS: Final = 64
_TICK_NS: Final = 100_000_000
# A row that needs something is demanded; this finds those whose spend was read from the ledger.
_SCAN_NS: Final = 1_000_000_000
# Rows of one look: some 8 ms. It may take one part of so many of the time.
_MOST_LOOKS: Final = 1000
_LOOK_PART: Final = 10
_IDLE_NS: Final = 1_000_000_000
_REPORT_NS: Final = 5_000_000_000
# In advance, all gateways together hold at most one part of so many of what is free.
PARTS: Final = 8
# How long it takes until all gateways have told a Redis that lost its data what they had; of a slow one, as many times
# as long as it took for its last answer.
_GRACE_MS: Final = 2000
_GRACE_TRIPS: Final = 8
# A part is not taken for idle while what was asked for it may be under way.
_IDLE_TRIPS: Final = 4
# Reports rest so many times as long as the last one took.
_REPORT_PART: Final = 4
_DAY_MS: Final = 86_400_000
_FOREVER_MS: Final = 400 * _DAY_MS
_NAME_BYTES: Final = 8


class _Row:
    """What the lease manager knows of one row, in one window."""

    __slots__ = ("blocks", "is_unsure", "needs", "number", "reported_ns", "since_ns", "used")

    def __init__(self, number: int, now_ns: int) -> None:
        self.number: Final = number
        self.used = -1
        self.since_ns = now_ns  # it is as it is
        self.reported_ns = 0
        self.needs: list[int] = []
        self.blocks: set[int] = set()
        self.is_unsure = False  # Redis was, when it answered last


class BudgetManager:
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
        self._trip_ns = 0  # for so long the last question was out
        self._next_look_ns = self._next_scan_ns = self._next_report_ns = 0
        self._to_look: list[int] = []
        # Rows to ask for, in their order: that a worker waits for, that need something, that only report.
        self._waiting: dict[int, None] = {}
        self._due: dict[int, None] = {}
        self._reports: dict[int, None] = {}

    def __repr__(self) -> str:
        return f"<BudgetManager {self._name} rows={len(self._rows)}>"

    def demanded(self, demand: Demand, now_ns: int) -> None:
        """Note what a worker needs."""
        index = demand.row - BUDGET_ROWS
        if 0 <= index < self._memory.rows:
            row = self._row(index, now_ns)
            row.needs.append(demand.n)
            row.blocks.add(demand.block)
            self._waiting[index] = None

    def turn(self, now_ns: int, replicas: int) -> list[tuple[int, int]]:
        """Ask for all that need it; return the workers that wait, as block and word. Raises RedisDownError."""
        if now_ns >= self._next_look_ns:
            began_ns = time.monotonic_ns()
            self._look(now_ns, PARTS * max(1, replicas))
            took_ns = time.monotonic_ns() - began_ns
            self._next_look_ns = now_ns + max(_TICK_NS, _LOOK_PART * took_ns)
        answered: list[tuple[int, int]] = []
        while self._waiting:
            answered += self._ask(_first(self._waiting), replicas, now_ns)
        if self._due:
            answered += self._ask(_first(self._due), replicas, now_ns)
        elif self._reports and now_ns >= self._next_report_ns:
            began_ns = time.monotonic_ns()
            answered += self._ask(_first(self._reports), replicas, now_ns)
            self._next_report_ns = now_ns + (1 + _REPORT_PART) * (time.monotonic_ns() - began_ns)
        return answered

    def probe(self, replicas: int) -> None:
        """Ask for nothing: whether Redis is there, and knows what it knew. Raises RedisDownError."""
        self._ask((), replicas, time.monotonic_ns())

    @property
    def next_ns(self) -> int | None:
        """When the next turn is to be; 0: at once; None: when it is time to look."""
        return 0 if self._due else self._next_report_ns if self._reports else None

    def drop(self) -> list[tuple[int, int]]:
        """Redis is down: return the workers that wait. What was asked for is dropped."""
        waiting = []
        for index in self._waiting:
            row = self._rows[index]
            waiting += [(block, BUDGET_ROWS | index) for block in row.blocks]
            row.needs.clear()
            row.blocks.clear()
        self._due |= self._waiting
        self._waiting.clear()
        return waiting

    def report_again(self) -> None:
        """Have every row report: Redis may have lost what it knew."""
        self._due = dict.fromkeys(self._rows)

    def leave(self) -> None:
        """Give back what is not used. Raises RedisDownError."""
        for index, row in self._rows.items():
            self._lower(index, row)
        indexes = list(self._rows)
        for first in range(0, len(indexes), _MOST_ROWS):
            self._ask(indexes[first : first + _MOST_ROWS], 1 << 40, time.monotonic_ns())

    # -- one row ------------------------------------------------------------------------------------

    def _look(self, now_ns: int, parts: int) -> None:
        memory, now_s = self._memory, self._wall_s()
        if now_ns >= self._next_scan_ns:
            self._next_scan_ns = now_ns + _SCAN_NS
            for index in memory.used_rows():
                if index not in self._rows:
                    self._row(index, now_ns)
        if not self._to_look:
            self._to_look = list(self._rows)
        indexes, self._to_look = self._to_look[:_MOST_LOOKS], self._to_look[_MOST_LOOKS:]
        for index in indexes:
            limit, number, end_s = memory.window_of(index)
            if not number:
                continue
            row, told = self._row(index, now_ns), memory.told(index, number)
            used = sum(memory.taken(index, number))
            if used != row.used:
                row.used, row.since_ns = used, now_ns
            if row.is_unsure or (told is None and used > 0):
                self._due[index] = None
            if told is None:
                continue
            if now_ns - row.since_ns >= max(_IDLE_NS, _IDLE_TRIPS * self._trip_ns):
                if told.grant > used:
                    self._lower(index, row)
                    self._due[index] = None
            elif row.since_ns == now_ns:  # it changes
                free = limit - told.granted - used
                if told.grant - used < free // (2 * parts):
                    self._due[index] = None
            is_over = end_s and end_s < now_s and told.grant <= used
            if now_ns - row.reported_ns >= _REPORT_NS and not is_over:
                self._reports[index] = None

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
        grace_ms = max(_GRACE_MS, _GRACE_TRIPS * self._trip_ns // 1_000_000)
        began_ns = time.monotonic_ns()
        life, is_unsure, answers = self._redis.ask_budgets(
            queries, self._name, self._life, grace_ms, PARTS * max(1, replicas)
        )
        at_ns = time.monotonic_ns()
        self._trip_ns = at_ns - began_ns
        for index in indexes:
            for asked in (self._waiting, self._due, self._reports):
                asked.pop(index, None)
        if self._life and life != self._life:
            self.report_again()
        self._life = life
        answered: list[tuple[int, int]] = []
        for index, query, (grant, spent, granted) in zip(indexes, queries, answers, strict=True):
            row = self._rows[index]
            # While Redis is unsure, others may have what it does not know of.
            granted = max(granted, query.limit - grant) if is_unsure else granted
            memory.tell(index, query.number, Told(grant, spent, granted, at_ns))
            row.reported_ns = now_ns
            if grant < query.had:
                self._due[index] = None  # others have what it had: it says what it has used of that
            # Not all that was needed: who waits asks again, or is refused.
            answered += [(block, BUDGET_ROWS | index) for block in row.blocks]
            row.needs.clear()
            row.blocks.clear()
            row.is_unsure = is_unsure
        return answered

    def _query(self, index: int, row: _Row, now_s: float) -> BudgetQuery:
        memory, number = self._memory, row.number
        limit, _, end_s = memory.window_of(index)
        spent, held = memory.taken(index, number)
        told = memory.told(index, number)
        ttl_ms = _FOREVER_MS if not end_s else max(0, round((end_s - now_s) * 1000)) + _DAY_MS
        return BudgetQuery(
            memory.name(index),
            *(number, limit, spent + held, spent),
            *(0 if told is None else told.grant, sum(row.needs), min(row.needs, default=0), ttl_ms),
        )


def _first(rows: Iterable[int]) -> list[int]:
    return list(islice(rows, _MOST_ROWS))
