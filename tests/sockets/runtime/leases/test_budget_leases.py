"""Budgets over several gateways and a real Redis: what all are granted together, and what becomes of it when Redis is
frozen, emptied, or back."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.redis_server import RedisServer, redis_server
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule
from velox.runtime.leases.budget_manager import BudgetManager
from velox.runtime.leases.lease_redis import LeaseRedis, RedisDownError
from velox.runtime.ledger.gateway_name import gateway_name
from velox.shm.budget_table import BudgetMemory, Lack, SharedBudget
from velox.shm.leased_budget import LeasedBudget, LeasedBudgetTable

NOON = 1_795_435_200.0
SECOND = 10**9
DAY = 86_400
LIMIT = 10_000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def rule(tokens: int = LIMIT, **more: object) -> BudgetRule:
    return BudgetRule("budgets[0]", "gateway", parse_budget({"tokens": tokens, "window": "day", **more}))


class Gateway:
    """Two workers' ways to one budget, and the lease manager. It is also its own link."""

    def __init__(self, url: str, prefix: str, of: BudgetRule, name: str = "") -> None:
        self.memory = BudgetMemory(256, 2)
        self.name = name or os.urandom(8).hex()
        self.redis = LeaseRedis(url, prefix, 2.0, self.name)
        self.manager = BudgetManager(self.memory, self.redis, self.name, lambda: NOON)
        self.is_up = True
        self.stands_alone = True
        self.replicas = 3
        self.now_ns = SECOND
        self.workers = [LeasedBudgetTable(self.memory, block, self).budget(of, "", "", NOON) for block in (0, 1)]
        self.running: list[tuple[SharedBudget, int, int]] = []

    def hold(self, amount: int, worker: int = 0, now_s: float = NOON) -> int | None:
        """Hold as the gate does: ask the lease manager where that is needed."""
        budget = self.workers[worker]
        assert isinstance(budget, LeasedBudget)
        for _ in range(5):
            hold = budget.hold(amount, now_s)
            if hold is not None:
                self.running.append((budget, hold, amount))
                return hold
            if budget.lack(amount, now_s) is not Lack.NOT_GRANTED:
                return None
            demand = budget.demand(amount)
            assert demand is not None
            self.manager.demanded(demand, self.now_ns)
            self.turn()
        return None

    def turn(self, seconds: float = 0.2) -> None:
        self.now_ns += round(seconds * SECOND)
        try:
            self.manager.turn(self.now_ns, self.replicas)
            self.is_up = True
        except RedisDownError:
            self.is_up = False
            self.manager.drop()

    def end_one(self, cost: int | None = None) -> None:
        budget, hold, amount = self.running.pop(0)
        budget.spend(hold, amount if cost is None else cost)
        budget.release(hold, amount)

    def idle(self) -> None:
        """Let so much time pass that what nobody uses goes back."""
        self.turn()
        self.turn(1.5)

    @property
    def used(self) -> int:
        return sum(self.workers[0].amounts(NOON))

    @property
    def spent(self) -> int:
        return self.workers[0].amounts(NOON)[0]


class Fleet:
    """Makes gateways that share a part of Redis."""

    def __init__(self) -> None:
        self.prefix = os.urandom(4).hex()
        self.made: list[Gateway] = []

    def one(self, url: str, name: str = "") -> Gateway:
        self.made.append(Gateway(url, self.prefix, rule(), name))
        return self.made[-1]

    def three(self, server: RedisServer, of: BudgetRule | None = None) -> list[Gateway]:
        self.made += [Gateway(server.url, self.prefix, of or rule()) for _ in range(3)]
        return self.made[-3:]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    for each in fleet.made:
        each.redis.close()


def fill(gateways: list[Gateway], rng: random.Random, most: int = 300, limit: int = LIMIT) -> int:
    """Have all gateways hold until each was refused often; return what is used then."""
    refused = 0
    while refused < 60:
        here = rng.choice(gateways)
        if here.hold(rng.randint(1, most), rng.randint(0, 1)) is None:
            refused += 1
        elif rng.random() < 0.5:
            here.end_one()
        if rng.random() < 0.1:
            here.turn()
        assert sum(each.used for each in gateways) <= limit
    return sum(each.used for each in gateways)


@pytest.mark.parametrize("seed", range(4))
def test_case_01_gateways_together_never_hold_more_than_the_limit(server: RedisServer, fleet: Fleet, seed: int) -> None:
    """Nor much less: what is missing at the end is smaller than the last requests that were refused."""
    gateways = fleet.three(server)
    fill(gateways, random.Random(seed))
    for each in gateways:
        each.idle()
    assert fill(gateways, random.Random(seed), 20) > LIMIT - 100


def test_small_budget_is_exact_over_gateways(server: RedisServer, fleet: Fleet) -> None:
    """Nothing is held in advance of a budget of some requests: the last one is had by who asks for it."""
    gateways = fleet.three(server, rule(10))
    assert [each.hold(4) is not None for each in gateways] == [True, True, False]
    assert gateways[2].hold(2) is not None and gateways[2].hold(1) is None
    gateways[0].end_one(0)
    gateways[0].idle()
    gateways[2].now_ns += SECOND
    gateways[2].turn(6)
    assert gateways[2].hold(4) is not None


def test_refusal_knows_what_others_spent(server: RedisServer, fleet: Fleet) -> None:
    here, there, _ = fleet.three(server)
    assert here.hold(9900) is not None
    here.end_one(9950)
    here.turn()
    assert there.hold(100) is None and there.workers[0].lack(100, NOON) is Lack.SPENT
    assert there.workers[0].spent(NOON) == 9950
    (state,) = there.memory.states(NOON)
    assert (state.spent, state.left) == (9950, 50)


def test_overshoot_of_one_is_missing_everywhere(server: RedisServer, fleet: Fleet) -> None:
    """A call that cost more than it held counts against all; the sum is above the limit by just that."""
    here, there, _ = fleet.three(server)
    assert here.hold(5000) is not None
    here.end_one(12_000)
    here.turn()
    assert there.hold(1) is None


def test_case_08_new_window_is_new_in_all_gateways(server: RedisServer, fleet: Fleet) -> None:
    """Holds of the old window that end in the new one change nothing of it, here and elsewhere."""
    here, there, _ = fleet.three(server)
    assert here.hold(9990) is not None
    assert there.hold(100) is None
    midnight = NOON + DAY / 2
    assert there.hold(6000, now_s=midnight) is not None
    here.end_one(9999)
    assert here.hold(4500, now_s=midnight) is None and here.hold(3800, now_s=midnight) is not None


def test_case_18_frozen_redis_lets_each_gateway_have_its_share_of_what_was_left(fleet: Fleet) -> None:
    with redis_server() as server:
        gateways = fleet.three(server)
        for each in gateways:
            assert each.hold(1000) is not None
            each.end_one()
        for each in gateways:
            each.turn(6)  # now all know of all
        server.pause()
        try:
            for each in gateways:
                each.redis._timeout_s = 0.05  # type: ignore[misc]
                each.redis.close()
                each.is_up = False
            # What a gateway heard is some seconds old: others were granted a little since.
            most = LIMIT + 300
            assert fill(gateways, random.Random(1), 20, most) > 0.9 * LIMIT
            assert all(each.workers[0].lack(500, NOON) is Lack.HELD for each in gateways)
            while gateways[0].running:
                gateways[0].end_one()
            for gateways[0].stands_alone in (True, False, True):
                assert gateways[0].hold(500) is None and gateways[0].workers[0].lack(500, NOON) is Lack.UNKNOWN
        finally:
            server.resume()
        for each in gateways:
            each.redis._timeout_s = 2.0  # type: ignore[misc]
            each.manager.report_again()
            each.turn()
        assert all(each.is_up for each in gateways)
        fill(gateways, random.Random(2), 20, most)


def test_case_18_gateway_that_is_cut_off_alone_spends_no_more_than_its_share_besides(
    server: RedisServer, fleet: Fleet
) -> None:
    """The others are granted all that is left. With the fallback `refuse` it spends what it was granted."""
    here, there, last = gateways = fleet.three(server)
    for each in gateways:
        assert each.hold(400) is not None
    for each in gateways:
        each.idle()
        each.turn(6)  # now all know of all
    here.is_up = False
    fill([there, last], random.Random(1), 20)
    here.stands_alone = False
    while here.hold(10) is not None:
        pass
    assert here.workers[0].lack(10, NOON) is Lack.HELD, "what it was granted may be free again"
    while here.running:
        here.end_one()
    assert here.workers[0].lack(10, NOON) is Lack.UNKNOWN and sum(each.used for each in gateways) <= LIMIT

    here.stands_alone = True
    while here.hold(10) is not None:
        pass
    free = LIMIT - 3 * 400
    assert LIMIT < sum(each.used for each in gateways) <= LIMIT + free // 3


def test_case_18_strict_budget_spends_what_was_granted_while_redis_is_away(server: RedisServer, fleet: Fleet) -> None:
    """As with the fallback `refuse`; and what is left is told as what is surely left here."""
    gateways = fleet.three(server, rule(strict=True))
    here = gateways[0]
    assert here.hold(400) is not None
    here.end_one()
    here.memory.away_ns = 1
    rng = random.Random(1)
    while here.hold(rng.randint(1, 20)) is not None:
        here.end_one()
    row = next(here.memory.used_rows())
    told = here.memory.told(row, here.workers[0].window(NOON).number)
    assert told is not None and told.grant - 20 < here.used <= told.grant < LIMIT
    assert here.workers[0].lack(20, NOON) is Lack.UNKNOWN and here.workers[0].retry_s == 60
    (state,) = here.memory.states(NOON)
    assert state.left == told.grant - here.used
    fill(gateways[1:], random.Random(1), 20)
    here.memory.away_ns = 0
    fill(gateways, random.Random(2), 20)


def test_case_18_gateway_that_never_heard_of_redis_has_its_share(fleet: Fleet) -> None:
    alone = fleet.one("redis://127.0.0.1:1")
    alone.is_up = False
    assert alone.hold(3333) is not None and alone.hold(1) is None


def test_case_18_emptied_redis_gives_nothing_away_twice(server: RedisServer, fleet: Fleet) -> None:
    """Each gateway brings back what it had; until all may have done so, nobody gets more."""
    gateways = fleet.three(server)
    rng = random.Random(3)
    for each in gateways:
        assert each.hold(2000) is not None
    with server.client() as client:
        client.flushall()
    here, there, last = gateways
    assert here.hold(6000) is None, "it may be the first to be back"
    for each in gateways:
        each.turn(6)
    assert there.hold(3000) is None, "what others had is known"
    with server.client() as client:  # two seconds later
        assert client.hget(f"{fleet.prefix}{{velox}}:budgets", "unsure") is not None
        client.hset(f"{fleet.prefix}{{velox}}:budgets", "unsure", 0)
    for each in gateways:
        each.turn(6)
    assert last.hold(1500) is not None
    fill(gateways, rng)


def test_gateway_that_starts_again_goes_on_with_its_part(server: RedisServer, fleet: Fleet) -> None:
    """Its name is kept: what it spent is not counted twice, and what it had not used is free."""
    here = fleet.one(server.url)
    assert here.hold(6000) is not None and here.hold(500) is not None
    here.end_one()
    again = fleet.one(server.url, here.name)
    again.memory.set_base(next(again.memory.used_rows()), again.workers[0].window(NOON).number, 6000)
    again.turn()
    other = fleet.one(server.url)
    assert other.hold(3000) is not None and other.hold(1100) is None
    assert again.hold(900) is not None


def test_gateway_that_stops_gives_back_what_it_did_not_use(server: RedisServer, fleet: Fleet) -> None:
    here, there, _ = fleet.three(server)
    assert here.hold(1000) is not None
    here.end_one(10)
    here.manager.leave()
    assert there.hold(LIMIT - 10) is not None


def test_lease_manager_that_dies_leaves_what_was_granted(server: RedisServer, fleet: Fleet) -> None:
    """The next one finds it in the rows, and what Redis is told stays the same."""
    here, there, _ = fleet.three(server)
    assert here.hold(6000) is not None
    here.manager = BudgetManager(here.memory, here.redis, here.name)
    here.turn(6)
    assert there.hold(4500) is None and there.hold(3500) is not None
    here.end_one(0)
    here.idle()
    here.idle()
    there.turn(6)
    assert there.hold(6000) is not None


def test_spend_from_before_the_start_is_told_before_anybody_asks(server: RedisServer, fleet: Fleet) -> None:
    """A gateway without requests is no reason for the others to spend its part again, once Redis is empty."""
    quiet, there, _ = fleet.three(server)
    row = next(quiet.memory.used_rows())
    window = quiet.workers[0].window(NOON)
    quiet.memory.set_base(row, window.number, 9000)
    quiet.memory.open_window(row, window)
    quiet.turn()
    assert there.hold(1100) is None and there.hold(900) is not None


def test_name_of_a_gateway_is_kept(tmp_path: Path) -> None:
    """Whoever asks first, also at the same time; what holds no name is not taken for one."""
    folder = tmp_path / "ledger"
    with ThreadPoolExecutor(8) as pool:
        (name,) = set(pool.map(lambda _: gateway_name(folder), range(8)))
    assert len(name) == 16 and [path.name for path in folder.iterdir()] == ["gateway"]
    (folder / "gateway").write_bytes(b"\xff{}")
    for wrong in (folder, folder / "gateway"):
        with pytest.raises(OSError):
            gateway_name(wrong)
