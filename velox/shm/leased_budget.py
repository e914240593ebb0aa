"""Budgets that several gateways share: this gateway's part of each is granted by Redis in advance.

Knows: how a worker holds within that part, when the lease manager must be asked for more, and what a worker does while
Redis can't be asked. Does not know: Redis (runtime/leases/budget_manager.py), or how a request waits
(gateway/limits/lease_wait.py).

What all gateways are granted is never more than the limit, and a gateway holds within its part. So over all gateways
no more is held and spent than over the workers of one.

While Redis is down, a gateway may go on with what it was granted and its share of what nobody was granted when Redis
last answered; the whole is then still within the limit, if all heard the same, and none can ask it. Where others can,
they are granted that share as well: Redis does not know a gateway that is cut off from one that has left. Without an
answer for this window it is its share of the limit. With VELOX_REDIS_FALLBACK=refuse only what was granted passes; so
it is with a budget that is `strict`, whatever that says.
"""

from __future__ import annotations

import time
from typing import Final

from velox.policy.budgets.rules import BudgetRule
from velox.shm.budget_table import BudgetMemory, BudgetTable, Lack, SharedBudget
from velox.shm.leased import Demand, LinkState

__all__ = ["BUDGET_ROWS", "LeasedBudget", "LeasedBudgetTable"]

# Rows of budgets in demands and answers begin here; those of limits are below, and the lease manager's own words above.
BUDGET_ROWS: Final = 0x8000_0000
# What the lease manager said is good for a refusal for so long: others may have returned something since.
_FRESH_NS: Final = 100_000_000
# For how long a client is asked to stay away while Redis does: as long as that lasts already, and no longer.
_MOST_RETRY_S: Final = 60.0


class LeasedBudgetTable(BudgetTable):
    """One worker's way to the rows, of which each is a part of a budget."""

    def __init__(self, memory: BudgetMemory, block: int, link: LinkState) -> None:
        super().__init__(memory, block)
        self._link: Final = link

    def shared(self, memory: BudgetMemory, row: int, block: int, rule: BudgetRule) -> SharedBudget:
        """Return what one process knows of a row."""
        return LeasedBudget(memory, row, block, rule, self._link)


class LeasedBudget(SharedBudget):
    """One budget, in one process of one gateway of several."""

    __slots__ = ("_link",)

    def __init__(self, memory: BudgetMemory, row: int, block: int, rule: BudgetRule, link: LinkState) -> None:
        super().__init__(memory, row, block, rule)
        self._link: Final = link

    @property
    def retry_s(self) -> float:
        """See SharedBudget."""
        away_ns = self._memory.away_ns
        return min(max(1.0, (time.monotonic_ns() - away_ns) / 1e9), _MOST_RETRY_S) if away_ns else 1.0

    @property
    def _is_up(self) -> bool:
        """Redis can be asked."""
        return not self._memory.away_ns and self._link.is_up

    def lack(self, amount: int, now_s: float) -> Lack:
        """Say why hold() gave nothing."""
        number = self.window(now_s).number
        told, limit = self._memory.told(self._row, number), self.limit
        spent, held = self._memory.amounts(self._row, number)
        elsewhere = 0 if told is None else told.spent
        if spent + elsewhere + amount > limit:
            return Lack.SPENT
        if not self._is_up:
            return Lack.HELD if spent + amount <= self._granted(number) else Lack.UNKNOWN
        if spent + held + amount > limit:
            return Lack.HELD
        is_fresh = told is not None and time.monotonic_ns() - told.at_ns < _FRESH_NS
        has_room = told is None or spent + held + amount <= limit - told.granted
        return Lack.NOT_GRANTED if has_room or not is_fresh else Lack.HELD

    def spent(self, now_s: float) -> int:
        """Return what is spent in the open window, by all gateways, as far as is known."""
        number = self.window(now_s).number
        told = self._memory.told(self._row, number)
        return self._memory.amounts(self._row, number)[0] + (0 if told is None else told.spent)

    def demand(self, n: int) -> Demand | None:
        """Return what to tell the lease manager so that so much may be held; None: there is no row for it."""
        number = self._window.number
        return Demand(BUDGET_ROWS | self._row, self._block, number, self._memory.name(self._row), 0, 0, n)

    def _granted(self, number: int) -> int:
        limit, grant = self.limit, self._memory.grant(self._row, number)
        if not self.is_strict and not self._is_up and self._link.stands_alone:
            told = self._memory.told(self._row, number)
            left = limit if told is None else max(0, limit - told.granted - grant)
            grant += left // max(1, self._link.replicas)
        return min(limit, grant)
