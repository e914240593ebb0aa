"""How the lease manager goes over tens of thousands of budgets: nobody who waits for it waits for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule
from velox.runtime.leases.budget_manager import BudgetManager
from velox.runtime.leases.lease_redis import BudgetQuery, LeaseRedis
from velox.shm.budget_table import BudgetMemory, SharedBudget
from velox.shm.leased import Demand
from velox.shm.leased_budget import BUDGET_ROWS, LeasedBudget, LeasedBudgetTable

NOON = 1_795_435_200.0
SECOND = 10**9
N_ROWS = 1500
MOST = 64


class CountedRedis(LeaseRedis):
    """Grants what is asked for. asked: the names in each question."""

    def __init__(self) -> None:
        super().__init__("redis://nobody.invalid", "", 1.0, "one")
        self.asked: list[list[bytes]] = []

    def ask_budgets(
        self, asks: Sequence[BudgetQuery], name: str, life: str, grace_ms: int, parts: int
    ) -> tuple[str, bool, list[tuple[int, int, int]]]:
        self.asked.append([each.name for each in asks])
        return "life", False, [(max(each.used + each.needs, each.had), 0, 0) for each in asks]


class Kept:
    """A lease manager of so many budgets, all of which have spent something. It is also the worker's link."""

    is_up = True
    replicas = 1
    stands_alone = True

    def __init__(self, n_rows: int = N_ROWS) -> None:
        self.memory = BudgetMemory(8 * n_rows, 1)
        self.redis = CountedRedis()
        self.manager = BudgetManager(self.memory, self.redis, "one", lambda: NOON)
        rule = BudgetRule("budgets[0]", "key", parse_budget({"tokens": 1000, "window": "day"}))
        table = LeasedBudgetTable(self.memory, 0, self)
        self.budgets: list[SharedBudget] = []
        for n in range(n_rows):
            budget = table.budget(rule, str(n), str(n), NOON)
            budget.spend(self.hold_of(budget), 10)
            self.budgets.append(budget)

    def hold_of(self, budget: SharedBudget) -> int:
        hold = budget.hold(0, NOON)
        assert hold is not None
        return hold

    def turns(self, now_ns: int) -> None:
        """Have turns until nothing is due."""
        self.manager.turn(now_ns, 1)
        while self.manager.next_ns == 0:
            now_ns += SECOND // 10
            self.manager.turn(now_ns, 1)

    def demand(self, budget: SharedBudget) -> Demand:
        assert isinstance(budget, LeasedBudget)
        found = budget.demand(5)
        assert found is not None
        return found


def test_worker_that_waits_is_answered_before_the_rows_of_others() -> None:
    kept = Kept()
    kept.manager.turn(SECOND, 1)
    assert [len(names) for names in kept.redis.asked] == [MOST] and kept.manager.next_ns == 0
    demand = kept.demand(kept.budgets[-1])
    kept.manager.demanded(demand, SECOND)
    assert kept.manager.turn(SECOND, 1) == [(0, demand.row)]
    assert [len(names) for names in kept.redis.asked] == [MOST, 1, MOST]
    kept.turns(2 * SECOND)
    assert len({name for names in kept.redis.asked for name in names}) == N_ROWS
    row = demand.row - BUDGET_ROWS
    assert kept.memory.told(row, kept.memory.window_of(row)[1]) is not None


def test_reports_of_all_rows_come_in_time_and_leave_time() -> None:
    kept = Kept()
    kept.turns(SECOND)
    kept.turns(20 * SECOND)  # what nobody has used goes back
    kept.redis.asked.clear()
    at_ns, n_turns = 60 * SECOND, 0
    while sum(map(len, kept.redis.asked)) < N_ROWS:
        n_before = len(kept.redis.asked)
        kept.manager.turn(at_ns, 1)
        assert len(kept.redis.asked) <= n_before + 1, "one question a turn"
        next_ns = kept.manager.next_ns
        assert next_ns is None or next_ns > at_ns, "it rests"
        at_ns, n_turns = next_ns or at_ns + SECOND // 10, n_turns + 1
    assert at_ns < 65 * SECOND and n_turns < 2 * N_ROWS // MOST
    assert len({name for names in kept.redis.asked for name in names}) == N_ROWS


def test_gateway_that_leaves_tells_of_every_row() -> None:
    kept = Kept(200)
    kept.turns(SECOND)
    kept.redis.asked.clear()
    kept.manager.leave()
    assert len({name for names in kept.redis.asked for name in names}) == 200
