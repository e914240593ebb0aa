"""Budgets over several gateways, one line of code after the other: workers, lease managers and Redis in every order.

Each worker and each lease manager is a thread that stops before each line of the code that shares memory; a scheduler
lets one of them go on at a time. The script is a real Redis', which runs it at once.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

import pytest

from tests.e2e.redis_server import RedisServer, redis_server
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule
from velox.runtime.leases.budget_manager import BudgetManager
from velox.runtime.leases.lease_redis import LeaseRedis
from velox.shm.budget_table import BudgetMemory
from velox.shm.leased import Demand
from velox.shm.leased_budget import LeasedBudget, LeasedBudgetTable

NOON: Final = 1_795_435_200.0
STEPPED: Final = ("budget_table.py", "leased_budget.py", "leases/budget_manager.py")
COST: Final = 10
FITS: Final = 9
LIMIT: Final = FITS * COST + 5
# Of what is left at some time it is always too much.
TOO_MUCH: Final = LIMIT - COST


class Actor(threading.Thread):
    """Work that goes on line by line. Made by Stage, which alone lets it."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._work: Final = work
        self._may: Final = threading.Semaphore(0)
        self.stopped: Final = threading.Semaphore(0)
        self.is_over = False
        self.failure: BaseException | None = None

    def run(self) -> None:
        self._may.acquire()
        sys.settrace(self._trace)
        try:
            self._work()
        except BaseException as exc:
            self.failure = exc
        finally:
            sys.settrace(None)
            self.is_over = True
            self.stopped.release()

    def step(self) -> None:
        """Let it do one line; return when it has."""
        self._may.release()
        assert self.stopped.acquire(timeout=20), f"{self.name} hangs"
        if self.failure is not None:
            raise self.failure

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(STEPPED):
            return None
        if event == "line":
            self.stopped.release()
            self._may.acquire()
        return self._trace


class Gateway:
    """Two workers' ways to one budget, and the lease manager. It is also its own link. n_answered: requests that
    passed."""

    is_up = True
    stands_alone = False
    replicas = 2

    def __init__(self, url: str, prefix: str) -> None:
        budget = parse_budget({"tokens": LIMIT, "window": "day", "strict": True})
        rule = BudgetRule("budgets[0]", "gateway", budget)
        self.memory = BudgetMemory(256, 2)
        self.redis = LeaseRedis(url, prefix, 2.0, name := os.urandom(8).hex())
        self.manager = BudgetManager(self.memory, self.redis, name, lambda: NOON)
        self.workers = [LeasedBudgetTable(self.memory, block, self).budget(rule, "", "", NOON) for block in (0, 1)]
        self.row = next(self.memory.used_rows())
        self.number = self.workers[0].window(NOON).number
        self.now_ns = 10**9
        self.demands: deque[Demand] = deque()
        self.n_answered = 0

    def asks(self, worker: int, amounts: Sequence[int]) -> Callable[[], None]:
        """Return the work of a worker: requests that hold these amounts and cost as much."""
        budget = self.workers[worker]
        assert isinstance(budget, LeasedBudget)

        def work() -> None:
            for amount in amounts:
                hold = budget.hold(amount, NOON)
                if hold is None:
                    demand = budget.demand(amount)
                    assert demand is not None
                    self.demands.append(demand)
                    continue
                budget.begin(hold, amount)
                budget.spend(hold, amount)
                budget.release(hold, amount, 1)
                self.n_answered += 1

        return work

    def keeps(self, turns: int) -> Callable[[], None]:
        """Return the work of the lease manager. Each turn is later by a tick; some by as much as makes a part idle."""

        def work() -> None:
            for n in range(turns):
                while self.demands:
                    self.manager.demanded(self.demands.popleft(), self.now_ns)
                self.now_ns += 1_500_000_000 if n % 4 == 3 else 100_000_000
                self.manager.turn(self.now_ns, self.replicas)

        return work

    def granted(self) -> int:
        told = self.memory.told(self.row, self.number)
        return 0 if told is None else told.grant


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def explore(server: RedisServer, seed: int) -> tuple[int, int]:
    """Run one order of steps to its end; return what is granted then, and the number of requests that passed."""
    rng, prefix = random.Random(seed), os.urandom(4).hex()
    gateways = [Gateway(server.url, prefix) for _ in range(2)]
    actors = []
    for each in gateways:
        actors.append(Actor("asks what fits", each.asks(0, [COST] * 2 * FITS)))
        actors.append(Actor("asks too much", each.asks(1, [TOO_MUCH] * 3 * FITS)))
        actors.append(Actor("keeps", each.keeps(3 * FITS)))
    for actor in actors:
        actor.start()
    try:
        running = list(actors)
        while running:
            actor = rng.choice(running)
            for _ in range(rng.choice((1, 1, 2, 5, 20))):
                actor.step()
                assert sum(each.granted() for each in gateways) <= LIMIT, f"granted too much, seed {seed}"
                if actor.is_over:
                    running.remove(actor)
                    break
            assert sum(each.n_answered for each in gateways) * COST <= LIMIT, f"spent too much, seed {seed}"
        return sum(each.granted() for each in gateways), sum(each.n_answered for each in gateways)
    finally:
        for each in gateways:
            each.redis.close()


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_steps_grants_more_than_the_limit(server: RedisServer, seed: int) -> None:
    """M4: a request that asks for more than is left is refused, whatever the lease manager sees of it meanwhile."""
    explore(server, seed)


@pytest.mark.more
def test_no_order_of_many_grants_more_than_the_limit(server: RedisServer) -> None:
    for seed in range(100, 250):
        explore(server, seed)
