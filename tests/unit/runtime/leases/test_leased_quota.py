"""Leases: whoever takes, gives back, dies or loses an answer, all gateways together never use more than the limit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.runtime.leases.lease_buckets import Buckets
from velox.gateway.reply.headers import RateHeaders
from velox.policy.limits.lease import BACK_AFTER_NS, FRESH_NS, block
from velox.policy.limits.quota import NEVER, NOT_YET, UNAVAILABLE
from velox.policy.limits.token_bucket import BucketRate
from velox.runtime.leases.lease_manager import LeaseRows, RedisTimes
from velox.shm.leased import Demand, Lease, LeasedQuota, LeasedTable, balance_of, pack_rate, unpack_rate
from velox.shm.quota_table import PROBES, QuotaMemory, QuotaSweeper

NOW = 10**13
MS, SECOND = 10**6, 10**9
ODD = 1  # what was moved without Redis is odd
PARTS = (b"rpm", b"VELOX_RATE_LIMIT", b"", b"")


@dataclass
class FakeLink:
    """A velox.shm.leased.Link whose state the test sets."""

    is_up: bool = True
    replicas: int = 1
    stands_alone: bool = True
    sent: list[Demand] = field(default_factory=list)

    def send(self, demand: Demand) -> None:
        self.sent.append(demand)


class Gateway:
    """One gateway of `workers` workers with one quota, and its lease manager."""

    def __init__(self, rate: BucketRate, buckets: Buckets, *, workers: int = 1, rows: int = 64) -> None:
        self.rate, self.buckets = rate, buckets
        self.memory = QuotaMemory(rows, workers)
        self.link = FakeLink()
        self.quotas = [self.quota(block) for block in range(workers)]
        self.manager = LeaseRows(self.memory, rate.max_wait_ns)
        self.times = RedisTimes(0, 0)

    def quota(self, block: int, *parts: bytes) -> LeasedQuota:
        table = LeasedTable(self.memory, block, self.link)
        return table.quota(table.tag(*(parts or PARTS)), self.rate)

    def hear(self, now_ns: int) -> None:
        """Let the lease manager read what workers sent."""
        for demand in self.link.sent:
            self.manager.demanded(demand, now_ns)
        self.link.sent.clear()

    def turn(self, now_ns: int, *, loses: str = "") -> None:
        """One turn of the lease manager. loses: "unsent": no connection; "question", "answer": which was lost."""
        self.hear(now_ns)
        self.manager.look(now_ns, self.link.replicas, is_up=True)
        held = self.manager.next(1000)
        asked = [(one, ask) for one in held if (ask := one.ask(now_ns, self.times, self.link.replicas)) is not None]
        told = [] if loses in ("unsent", "question") else self.buckets.ask([ask for _, ask in asked], now_ns)
        if loses:
            for one in held:
                one.failed(is_lost=loses != "unsent")
            return
        for (one, _), answer in zip(asked, told, strict=True):
            one.take_answer(answer, now_ns)

    def turn_down(self, now_ns: int) -> None:
        """One turn of the lease manager while Redis is down and not tried."""
        self.hear(now_ns)
        self.manager.look(now_ns, self.link.replicas, is_up=False)
        self.manager.drop()

    def replace_manager(self, now_ns: int) -> None:
        """Kill the lease manager and start the next one."""
        QuotaSweeper(self.memory).reclaim(self.memory.lease_manager_block)
        self.manager = LeaseRows(self.memory, self.rate.max_wait_ns)
        self.manager.take_over(now_ns)

    def take(self, n: int, now_ns: int) -> int:
        """Take, and ask the lease manager once if it must be asked."""
        answer = self.quotas[0].take(n, now_ns)
        if answer != NOT_YET:
            return answer
        demand = self.quotas[0].demand(n)
        assert demand is not None
        self.link.send(demand)
        self.turn(now_ns)
        return self.quotas[0].take(n, now_ns)

    @property
    def balance(self) -> int:
        return Lease(self.memory, self.memory.tags().tolist().index(self.tag)).balance()

    @property
    def tag(self) -> int:
        return next(tag for tag in self.memory.tags().tolist() if tag)


def slow(burst: int = 10, max_wait_ns: int = 0) -> BucketRate:
    return BucketRate(SECOND, burst, max_wait_ns)


# -- one gateway --------------------------------------------------------------------------------------------


def test_first_request_asks_then_the_lease_answers() -> None:
    """A limit with blocks asks once, and what it holds then needs no lease manager until it is low."""
    gateway = Gateway(BucketRate(MS, 1000, 0), Buckets())

    assert gateway.quotas[0].ask(1, NOW) == gateway.quotas[0].take(1, NOW) == NOT_YET
    assert gateway.take(1, NOW) == 0
    assert gateway.balance == block(gateway.rate, 1) == 50
    for _ in range(25):
        assert gateway.quotas[0].take(1, NOW) == 0
    assert gateway.link.sent == []
    assert gateway.quotas[0].take(1, NOW) == 0
    assert [demand.n for demand in gateway.link.sent] == [0]
    gateway.turn(NOW)
    assert gateway.balance == 50


def test_limit_without_blocks_asks_each_time_and_is_exact() -> None:
    """Nothing is held of a small limit, so nothing is missing elsewhere."""
    buckets = Buckets()
    one, two = Gateway(slow(3), buckets), Gateway(slow(3), buckets)

    assert [one.take(1, NOW), two.take(1, NOW), one.take(1, NOW)] == [0, 0, 0]
    assert two.take(1, NOW) == -SECOND
    assert (one.balance, two.balance) == (0, 0)
    assert two.take(1, NOW + SECOND) == 0


def test_refusal_is_repeated_without_asking_while_it_is_fresh() -> None:
    """What Redis said is good for 100 ms; then it is asked again, because others may have given back."""
    gateway = Gateway(slow(1), Buckets())
    assert gateway.take(1, NOW) == 0
    assert gateway.take(1, NOW) == -SECOND

    assert gateway.quotas[0].take(1, NOW + FRESH_NS - 1) == -SECOND + FRESH_NS - 1
    assert gateway.quotas[0].ask(1, NOW + FRESH_NS) == NOT_YET


def test_amount_above_the_burst_never_passes_and_nobody_is_asked() -> None:
    """n - 1, n, n + 1."""
    assert [Gateway(slow(10), Buckets()).take(n, NOW) for n in (9, 10, 11)] == [0, 0, NEVER]


def test_permits_ahead_of_their_time_must_be_waited_for() -> None:
    """As with a bucket of one gateway: up to max_wait, and no further."""
    gateway = Gateway(slow(1, 2 * SECOND), Buckets())

    assert [gateway.take(1, NOW) for _ in range(4)] == [0, SECOND, 2 * SECOND, -3 * SECOND]


def test_refund_serves_the_next_request_and_then_goes_back() -> None:
    """What an answer did not cost is used here first; after a second without use it is everybody's."""
    buckets = Buckets()
    one, two = Gateway(slow(10), buckets), Gateway(slow(10), buckets)
    assert one.take(10, NOW) == 0
    one.quotas[0].give_back(6, waiting=False)
    assert one.take(2, NOW) == 0
    assert two.take(4, NOW) == -4 * SECOND

    one.turn(NOW + 1)
    one.turn(NOW + 2)  # what was too much a moment ago, too
    assert one.balance == 0
    assert two.take(4, NOW + FRESH_NS) == 0


def test_usage_above_the_estimate_is_a_debt_that_all_gateways_pay() -> None:
    """The bucket in Redis goes below empty, and nobody gets anything until it is paid."""
    buckets = Buckets()
    one, two = Gateway(slow(10), buckets), Gateway(slow(10), buckets)
    assert one.take(10, NOW) == 0
    one.quotas[0].charge(5)
    assert one.balance == -5
    assert one.quotas[0].full_in_ns(NOW) == 15 * SECOND
    one.turn(NOW)

    assert one.balance == 0
    assert two.take(1, NOW) == -6 * SECOND


def test_idle_lease_goes_back_and_its_row_is_free_again() -> None:
    """After a second without use nothing is held; when the bucket is full, nobody looks after the row."""
    buckets = Buckets()
    gateway = Gateway(BucketRate(MS, 1000, 0), buckets)
    assert gateway.take(1, NOW) == 0
    assert gateway.balance == 50

    gateway.turn(NOW)  # as it does ten times a second
    gateway.turn(NOW + BACK_AFTER_NS - 1)
    assert gateway.balance == 50
    gateway.turn(NOW + BACK_AFTER_NS)
    assert gateway.balance == 0
    gateway.turn(NOW + 2 * BACK_AFTER_NS)
    assert len(gateway.manager) == 0
    tat, granted, used, hold, *_ = gateway.memory.row(gateway.memory.tags().tolist().index(gateway.tag))
    assert (granted, hold) == (used, 0) and tat <= NOW + BACK_AFTER_NS


def test_overflow_row_has_no_lease() -> None:
    """A quota without a row of its own gets its gateway's share, and what it gives back is dropped."""
    gateway = Gateway(slow(10), Buckets())
    gateway.link.replicas = 5
    quotas = [gateway.quota(0, b"%d" % i) for i in range(200)]
    answers = [quota.take(1, NOW) for quota in quotas]
    last = quotas[answers.index(0)]

    assert PROBES <= answers.count(NOT_YET) < 64
    assert {answer for answer in answers if answer != NOT_YET} <= {0, -ODD}
    assert last.demand(1) is None
    last.give_back(1, waiting=False)
    assert last.remaining(NOW) < 2


# -- without Redis ------------------------------------------------------------------------------------------


def test_lease_is_used_up_then_the_share_answers() -> None:
    """What is held is paid for; after that it is a part of burst and rate, from where the bucket stood."""
    gateway = Gateway(slow(40), Buckets())
    assert gateway.take(18, NOW) == 0
    assert gateway.balance == 0
    gateway.quotas[0].give_back(2, waiting=False)
    gateway.link.is_up, gateway.link.replicas = False, 4

    assert gateway.quotas[0].take(2, NOW) == 0
    # 18 of 40 are used: the share of 10 has 5.5 left.
    assert [gateway.quotas[0].take(1, NOW) for _ in range(6)] == [0, 0, 0, 0, 0, -2 * SECOND - ODD]


def test_headers_tell_of_the_share() -> None:
    """A client that was told of the whole limit would run into a refusal, though it counts what it sends."""
    gateway = Gateway(slow(40), Buckets())
    headers = RateHeaders(gateway.quotas, ())
    assert gateway.take(18, NOW) == 0
    gateway.link.is_up, gateway.link.replicas = False, 4

    assert headers.headers(NOW + 10**6 * SECOND) == [
        (b"x-ratelimit-limit-requests", b"40"),
        (b"x-ratelimit-remaining-requests", b"%d" % gateway.quotas[0].remaining(NOW + 10**6 * SECOND)),
        (b"x-ratelimit-reset-requests", b"0ms"),
    ]
    assert gateway.quotas[0].remaining(NOW + 10**6 * SECOND) < 40


def test_request_larger_than_a_share_passes_when_the_share_is_full() -> None:
    """A prompt that the limit has room for is not shut out for the time of an outage."""
    gateway = Gateway(slow(40), Buckets())
    gateway.link.is_up, gateway.link.replicas = False, 4

    assert gateway.quotas[0].take(40, NOW) == 0
    assert gateway.quotas[0].take(1, NOW) == -(160 - 40 + 4) * SECOND - ODD
    assert gateway.quotas[0].take(41, NOW) == NEVER


def test_refuse_gives_nothing_but_what_is_held() -> None:
    """VELOX_REDIS_FALLBACK=refuse: what was paid for may be used, and then nothing passes."""
    gateway = Gateway(slow(40), Buckets())
    assert gateway.take(3, NOW) == 0
    gateway.link.is_up = gateway.link.stands_alone = False
    gateway.quotas[0].give_back(1, waiting=False)

    assert gateway.quotas[0].ask(1, NOW) == gateway.quotas[0].take(1, NOW) == 0
    assert gateway.quotas[0].ask(1, NOW) == gateway.quotas[0].take(1, NOW) == UNAVAILABLE


def test_refund_without_redis_serves_the_next_request() -> None:
    """As with Redis: what an answer did not cost is free again, here, and afterwards for all."""
    buckets = Buckets()
    one, two = Gateway(slow(40), buckets), Gateway(slow(40), buckets)
    one.link.is_up, one.link.replicas = False, 2
    for _ in range(10):
        assert one.quotas[0].take(10, NOW) == 0
        one.quotas[0].give_back(9, waiting=False)
    assert one.quotas[0].outlook(NOW) == (20 - 10 - 1, 20 * SECOND + ODD)

    one.link.is_up, one.times = True, RedisTimes(NOW + 1, NOW)
    one.turn(NOW + 1)
    assert [two.take(n, NOW + 1) for n in (30, 1)] == [0, -SECOND + 1]


def test_refund_of_what_redis_gave_pays_what_was_taken_without_it() -> None:
    """The share has back what the lease covers now; the rest is held."""
    gateway = Gateway(slow(40), Buckets())
    assert gateway.take(18, NOW) == 0
    gateway.link.is_up, gateway.link.replicas = False, 4
    assert gateway.quotas[0].take(5, NOW) == 0
    assert gateway.quotas[0].remaining(NOW) == 0

    gateway.quotas[0].give_back(8, waiting=False)
    assert gateway.balance == 3
    assert gateway.quotas[0].remaining(NOW) == 3 + 5


def test_debt_that_the_share_never_had_is_not_given_back_to_it() -> None:
    """Used above the estimate right before the outage: the share starts where Redis' bucket stood, and stays there."""
    gateway = Gateway(slow(40), Buckets())
    assert gateway.take(18, NOW) == 0
    gateway.quotas[0].charge(4)
    gateway.link.is_up, gateway.link.replicas = False, 4
    before = gateway.quotas[0].remaining(NOW)

    gateway.quotas[0].give_back(4, waiting=False)
    assert gateway.quotas[0].remaining(NOW) == before == 5


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["take", "charge", "back"]), st.integers(1, 9)), max_size=30),
    st.integers(0, 18),
    st.integers(1, 4),
)
def test_share_is_charged_with_what_no_lease_covers(script: list[tuple[str, int]], held: int, replicas: int) -> None:
    """To the permit, in whatever order: what is held is paid for in Redis already."""
    gateway = Gateway(slow(40), Buckets())
    assert gateway.take(18, NOW) == 0
    gateway.quotas[0].give_back(held, waiting=False)
    gateway.link.is_up, gateway.link.replicas = False, replicas
    index, used, quota = gateway.memory.tags().tolist().index(gateway.tag), 18 - held, gateway.quotas[0]
    for what, n in script:
        if what == "take":
            used += n if quota.take(n, NOW) >= 0 else 0
        elif what == "charge":
            quota.charge(n)
            used += n
        else:
            quota.give_back(min(n, used), waiting=False)
            used -= min(n, used)
        assert gateway.balance == 18 - used
        debt = max(0, -gateway.balance)
        assert gateway.memory.row(index)[0] & ~ODD == NOW + (18 + debt * replicas) * SECOND


def test_what_is_held_stays_while_redis_is_down() -> None:
    """Nobody could have it; when Redis is back it is everybody's."""
    buckets = Buckets()
    one, two = Gateway(slow(10), buckets), Gateway(slow(10), buckets)
    assert one.take(10, NOW) == 0
    one.link.is_up = one.link.stands_alone = False
    one.quotas[0].give_back(8, waiting=False)
    for i in range(1, 30):
        one.turn_down(NOW + i * FRESH_NS)
    assert one.balance == 8
    assert one.quotas[0].take(1, NOW + SECOND) == 0

    one.link.is_up, one.times = True, RedisTimes(NOW + 4 * SECOND, NOW)
    one.manager.ask_again()
    for i in range(2):
        one.turn(NOW + 4 * SECOND + i * BACK_AFTER_NS)
    assert one.balance == 0
    assert [two.take(n, NOW + 5 * SECOND) for n in (10, 1)] == [0, -SECOND]


def test_row_that_nobody_needs_is_free_again_while_redis_is_down() -> None:
    """An outage is no reason to hold the rows of all keys that came by."""
    gateway = Gateway(slow(10), Buckets())
    assert gateway.take(1, NOW) == 0
    gateway.link.is_up = False

    for passed_ns in (0, BACK_AFTER_NS - 1):
        gateway.turn_down(NOW + passed_ns)
        assert len(gateway.manager) == 1
    gateway.turn_down(NOW + BACK_AFTER_NS)
    assert len(gateway.manager) == 0


@pytest.mark.parametrize(("loses", "left"), [("unsent", 10), ("question", 2), ("answer", 2)])
def test_what_goes_back_is_sent_once(loses: str, left: int) -> None:
    """A question without a connection is asked again; one that was sent may have been processed."""
    buckets = Buckets()
    one, two = Gateway(slow(10), buckets), Gateway(slow(10), buckets)
    assert one.take(10, NOW) == 0
    one.quotas[0].give_back(8, waiting=False)
    one.turn(NOW)
    one.turn(NOW + 2 * SECOND, loses=loses)
    for i in range(3):
        one.turn_down(NOW + 2 * SECOND + i)

    one.times = RedisTimes(NOW + 2 * SECOND, NOW)
    one.manager.ask_again()
    one.turn(NOW + 2 * SECOND + 3)
    assert one.balance == 0
    assert two.take(left, NOW + 2 * SECOND + 3) == 0
    assert two.take(1, NOW + 2 * SECOND + 3) < 0


def test_redis_that_comes_back_empty_gives_no_burst() -> None:
    """It starts where the gateways know that the bucket stood."""
    gateway = Gateway(slow(10), Buckets())
    assert gateway.take(9, NOW) == 0
    gateway.buckets.tats.clear()
    gateway.times = RedisTimes(NOW + 1, NOW)

    gateway.manager.ask_again()
    gateway.turn(NOW + 2)
    assert gateway.take(2, NOW + 2) == -SECOND + 2
    assert gateway.take(1, NOW + 2) == 0


def test_what_was_taken_alone_is_a_debt_that_redis_hears_of() -> None:
    """Two gateways were on their own: after the outage the bucket has what both of them gave, and no more."""
    buckets = Buckets()
    one, two = Gateway(slow(20), buckets), Gateway(slow(20), buckets)
    for gateway, n in ((one, 4), (two, 5)):
        gateway.link.is_up, gateway.link.replicas = False, 2
        assert gateway.quotas[0].take(n, NOW) == 0
    one.quotas[0].charge(2)
    for gateway in (one, two):
        gateway.link.is_up, gateway.times = True, RedisTimes(NOW + 1, NOW)
        gateway.turn(NOW + 2)

    assert (one.balance, two.balance) == (0, 0)
    assert one.take(9, NOW + FRESH_NS) == 0
    assert two.take(1, NOW + FRESH_NS) == -SECOND + FRESH_NS


def test_long_outage_is_not_paid_for_when_it_is_over() -> None:
    """What was given in an hour on its own, at the rate of the share, leaves a bucket that is as full as before."""
    gateway = Gateway(slow(20), Buckets())
    gateway.link.is_up, gateway.link.replicas = False, 2
    for i in range(1800):
        assert gateway.quotas[0].take(1, NOW + i * 2 * SECOND) == 0
    assert gateway.balance == -1800
    end_ns = NOW + 3600 * SECOND
    gateway.link.is_up, gateway.times = True, RedisTimes(end_ns, NOW)

    assert gateway.take(20, end_ns + 1) == 0


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("refund", [0, 3])
def test_outage_under_load_makes_no_difference(is_empty: bool, refund: int) -> None:
    """What all gateways gave before, during and after it is what one bucket would have given, to the permit."""
    rate = BucketRate(SECOND // 100, 200, 0)
    buckets = Buckets()
    gateways = [Gateway(rate, buckets) for _ in range(2)]
    admitted = 0
    for ms in range(0, 9_000, 5):
        now_ns = NOW + ms * MS
        for gateway in gateways:
            was_up = gateway.link.is_up
            gateway.link.replicas, gateway.link.is_up = 2, not 3_000 <= ms < 6_000
            if gateway.link.is_up and not was_up:
                gateway.times = RedisTimes(now_ns, NOW + 3_000 * MS)
                gateway.manager.ask_again()
            if gateway.take(1 + refund, now_ns) == 0:
                admitted += 1
                gateway.quotas[0].give_back(refund, waiting=False)
        if is_empty and ms == 5_000:
            buckets.tats.clear()

    most = rate.burst + 9_000 * MS / rate.interval_ns
    assert most - 25 <= admitted <= most


# -- the one rule -------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["take"] * 6 + ["pass", "turn", "turn", "turn", "back", "lost", "kill", "deaf"]),
        st.integers(0, 2),  # the gateway
        st.integers(0, 1),  # its worker
        st.integers(1, 12),
    ),
    max_size=120,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(steps, st.sampled_from([slow(12), slow(12, 5 * SECOND), BucketRate(SECOND // 10, 100, 0)]))
def test_gateways_together_never_use_more_than_the_limit(
    script: list[tuple[str, int, int, int]], rate: BucketRate
) -> None:
    """Burst + rate x time: with three gateways, lost questions and answers, and managers killed at any instant."""
    buckets = Buckets()
    gateways = [Gateway(rate, buckets, workers=2) for _ in range(3)]
    for gateway in gateways:
        gateway.link.replicas = 3
    now_ns = NOW
    taken: list[tuple[int, int, int, int]] = []  # gateway, worker, permits that may be given back, when they are due
    for what, index, worker, n in script:
        gateway = gateways[index]
        quota = gateway.quotas[worker]
        if what == "pass":
            now_ns += n * SECOND // 4
        elif what == "take":
            answer = quota.take(n, now_ns)
            if answer >= 0:
                taken.append((index, worker, n, now_ns + answer))
                for due_ns in {due_ns for *_, due_ns in taken}:  # one that waits may be due after one that came later
                    used = sum(permits for *_, permits, due in taken if due <= due_ns)
                    assert used <= rate.burst + (due_ns - NOW) / rate.interval_ns
            elif answer == NOT_YET:
                demand = quota.demand(n)
                assert demand is not None
                gateway.link.send(demand)
        elif what == "turn":
            gateway.turn(now_ns)
        elif what == "lost":
            gateway.turn(now_ns, loses=("unsent", "question", "answer")[n % 3])
        elif what == "kill":
            gateway.hear(now_ns)
            gateway.replace_manager(now_ns)
        elif what == "deaf":
            gateway.link.sent.clear()
        elif taken:
            of, by, n, _ = taken.pop(n % len(taken))
            gateways[of].quotas[by].give_back(n, waiting=False)


@pytest.mark.more
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=300, max_size=300), st.sampled_from([1, 3]))
def test_gateways_together_get_what_the_limit_gives(turns: list[int], replicas: int) -> None:
    """Under load nobody waits in vain: what is admitted is the limit, less what others may hold, a block each."""
    rate = BucketRate(SECOND // 100, 100, 0)
    buckets = Buckets()
    gateways = [Gateway(rate, buckets) for _ in range(3)]
    for gateway in gateways:
        gateway.link.replicas = replicas
    admitted = 0
    for i, index in enumerate(turns):
        now_ns = NOW + i * 10 * MS
        for _ in range(5):
            admitted += gateways[index].take(1, now_ns) == 0

    most = rate.burst + 10 * MS * (len(turns) - 1) / rate.interval_ns
    # Asked five times at each of 300 moments, 100 a second: there is always somebody who wants more.
    assert most - 3 * block(rate, replicas) - 1 - 10 <= admitted <= most


# -- cells ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**64 - 1), st.integers(-(2**62), 2**62))
def test_balance_survives_counters_that_wrap_around(granted: int, balance: int) -> None:
    """Both are counted modulo 2**64."""
    assert balance_of(granted, (granted - balance) % 2**64) == balance


@given(st.integers(1, 60 * SECOND), st.integers(1, 100_000_000))
def test_rate_fits_in_a_cell(interval_ns: int, burst: int) -> None:
    """The slowest limit and the largest burst that the settings let through."""
    cell = pack_rate(interval_ns, burst)

    assert 0 < cell < 2**64
    assert unpack_rate(cell) == (interval_ns, burst)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_demand_is_as_it_was_sent(n: int) -> None:
    """Messages follow one another in a pipe."""
    demands = [Demand(7, 1, 2**63 - 1, b"\xff" * 16, 60 * SECOND, 100_000_000, i) for i in range(n)]

    assert Demand.unpacked(b"".join(demand.packed() for demand in demands)) == demands


def test_name_is_the_same_in_all_gateways_and_the_tag_is_not() -> None:
    """The table's key is drawn at each start; what a bucket is called in Redis is not."""
    one, two = (Gateway(slow(), Buckets()) for _ in range(2))
    first, second = one.quotas[0].demand(1), two.quotas[0].demand(1)

    assert first is not None and second is not None
    assert first.name == second.name and first.tag != second.tag
