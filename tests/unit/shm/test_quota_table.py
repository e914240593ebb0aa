"""The quota table: rows found, shared, freed and overflown, under every interleaving that hypothesis thinks of."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.shm.quota_steps import Stage, Turn
from velox.policy.limits.quota import Quota, Slots
from velox.policy.limits.token_bucket import NEVER, UNLIMITED, BucketRate
from velox.shm.quota_table import LEAVING, PROBES, QuotaMemory, QuotaSweeper, TableSize
from velox.shm.quotas import QuotaGroup, QuotaTable, SharedQuota, SharedSlots

NOW = 10**12
SECOND = 10**9
RATE = BucketRate(interval_ns=100, burst=2, max_wait_ns=300)
SOON = BucketRate(interval_ns=SECOND // 10, burst=5, max_wait_ns=0)
HOMES = 64 // 2 - PROBES  # of the smallest table, in each half


def neighbours(n: int) -> list[int]:
    """Tags that all have the first row as their home."""
    return [HOMES * i for i in range(1, n + 1)]


def tables(n: int, rows: TableSize | int = 64) -> tuple[QuotaMemory, list[QuotaTable]]:
    memory = QuotaMemory(rows, blocks=n)
    return memory, [QuotaTable(memory, block) for block in range(n)]


def fill(table: QuotaTable, now_ns: int, *, n: int = PROBES) -> list[SharedQuota]:
    """Take all rows of the first home, each for a minute and more."""
    slow = BucketRate.from_rpm(1, 10, 0)
    quotas = [table.quota(tag, slow) for tag in neighbours(n)]
    assert [quota.take(1, now_ns) for quota in quotas] == [0] * n
    return quotas


# -- one quota ------------------------------------------------------------------------------------


def test_quota_is_one_for_all_workers() -> None:
    """What one worker took, another one can't take."""
    _, (one, two) = tables(2)
    first, second = one.quota(7, RATE), two.quota(7, RATE)

    assert first.take(2, NOW) == 0
    assert second.ask(1, NOW) == second.take(1, NOW) == 100
    assert (first.remaining(NOW), second.full_in_ns(NOW)) == (0, 300)


def test_quota_refusal_takes_nothing_and_asking_neither() -> None:
    """An answer below 0 leaves the bucket as it was, and no row is claimed for a question."""
    memory, (table,) = tables(1)
    quota = table.quota(7, RATE)

    assert quota.ask(2, NOW) == 0
    assert quota.take(3, NOW) == NEVER
    assert memory.statistics().in_use == 0
    assert quota.take(2, NOW) == 0
    assert quota.take(2, NOW) == 200
    assert quota.take(2, NOW) == -400
    assert quota.full_in_ns(NOW) == 400


def test_quota_given_back_lets_another_request_have_it() -> None:
    """A request that fails or leaves costs nobody anything."""
    _, (table,) = tables(1)
    quota = table.quota(7, RATE)
    assert (quota.take(2, NOW), quota.take(2, NOW)) == (0, 200)

    quota.give_back(2, waiting=True)
    assert quota.full_in_ns(NOW) == 200
    quota.give_back(1, waiting=False)
    assert quota.remaining(NOW) == 1


def test_quota_given_back_late_gives_no_more_than_burst() -> None:
    """Permits given back into a bucket that has filled up again add nothing."""
    _, (table,) = tables(1)
    quota = table.quota(7, RATE)
    quota.take(2, NOW)

    quota.give_back(2, waiting=False)
    assert quota.remaining(NOW + SECOND) == RATE.burst


def test_quota_charged_goes_into_debt() -> None:
    """Usage above the estimate was used already: it is paid back at the bucket's rate."""
    _, (table,) = tables(1)
    quota = table.quota(7, RATE)
    quota.take(1, NOW)

    quota.charge(50)
    assert quota.remaining(NOW) == 0
    assert quota.ask(1, NOW) == -(50 * 100)
    assert quota.ask(1, NOW + 50 * 100) == 0


SLOW = BucketRate.from_rpm(6, 6, 0)
FAST = BucketRate.from_rpm(600, 100, 0)
FEW = BucketRate.from_rpm(60, 10, 0)


@pytest.mark.parametrize(("before", "after"), [(SLOW, FAST), (BucketRate.from_rpm(60, 100, 0), FEW)])
@pytest.mark.parametrize("name", ["take", "ask"])
def test_quota_whose_rate_changes_is_at_most_empty(before: BucketRate, after: BucketRate, name: str) -> None:
    """What was used by the old rate refuses nobody for longer than an empty bucket of the new one does."""
    _, (one, two) = tables(2)
    assert one.quota(7, before).take(before.burst, NOW) == 0

    for table in (one, two):
        quota = table.quota(7, after)
        assert getattr(quota, name)(1, NOW) == -after.interval_ns
        assert quota.outlook(NOW) == (0, after.burst * after.interval_ns)
        assert quota.ask(1, NOW + after.interval_ns) == 0


def test_quota_whose_rate_goes_down_stays_as_far_from_full() -> None:
    """Nothing is given for it, nor taken."""
    _, (table,) = tables(1)
    table.quota(7, FAST).take(FAST.burst, NOW)

    assert table.quota(7, SLOW).outlook(NOW) == (5, 10 * SECOND)
    assert table.quota(7, SLOW).take(6, NOW) == -10 * SECOND


def test_worker_that_still_counts_by_the_old_rate_locks_nobody_out() -> None:
    """It takes over the reload a moment later; what it takes meanwhile is more than the new bucket holds."""
    _, (one, two) = tables(2)
    old, new = two.quota(7, SLOW), one.quota(7, FAST)
    assert old.take(6, NOW) == 0
    assert new.take(1, NOW) == -SECOND // 10
    assert old.take(5, NOW) == 0

    assert new.take(1, NOW) == -SECOND // 10
    assert old.take(1, NOW) == 0
    assert two.quota(7, FAST).ask(1, NOW) == new.ask(1, NOW) == -SECOND // 10


def test_worker_that_still_counts_by_the_old_rate_gives_nothing_back() -> None:
    """It refuses what its own bucket could never have given, and leaves that to the new rate."""
    _, (one, two) = tables(2)
    old, new = two.quota(7, FAST), one.quota(7, SLOW)
    assert old.take(FAST.burst, NOW) == 0

    answers = [quota.take(1, NOW) for _ in range(10) for quota in (new, old)]

    assert sum(answer == 0 for answer in answers) == 5
    assert new.full_in_ns(NOW) == 60 * SECOND


@pytest.mark.parametrize(("later_s", "wait_s"), [(0, 0.1), (60, 0.1), (61, 39.1)])
def test_debt_counts_again_a_minute_after_a_change_of_rate(later_s: int, wait_s: float) -> None:
    """Until then nobody can tell it from what was used by the old rate."""
    _, (table,) = tables(1)
    table.quota(7, SLOW).take(1, NOW)
    quota = table.quota(7, FAST)
    assert quota.take(1, NOW) == -SECOND // 10

    quota.charge(1000)

    assert quota.take(1, NOW + later_s * SECOND) == -wait_s * SECOND


def test_debt_in_a_row_that_another_limit_had_stays() -> None:
    """That had another rate, but has moved nothing that counts."""
    memory, (table,) = tables(1)
    first, second = neighbours(2)
    table.quota(first, SLOW).take(1, NOW)
    memory.count_overflow(0)
    now_ns = NOW + 100 * SECOND
    assert QuotaSweeper(memory).sweep(now_ns) == 1
    quota = table.quota(second, FAST)
    assert quota.take(100, now_ns) == 0
    assert memory.tag(0).load() == second

    quota.charge(100)

    assert quota.take(1, now_ns) == -10 * SECOND - SECOND // 10


@pytest.mark.parametrize("dies_at", range(12))
def test_worker_that_dies_as_a_rate_changes_leaves_the_limit_right(dies_at: int) -> None:
    """The next one finds the bucket at most empty, and no fuller than that."""
    stage = Stage(64, blocks=2)
    one, two = (QuotaTable(stage.memory, block) for block in range(2))
    assert one.quota(7, SLOW).take(6, NOW) == 0

    def take() -> None:
        one.quota(7, FAST).take(1, NOW)

    stage.play([[Turn(take, dies_at)]], [], lambda _: None)

    assert two.quota(7, FAST).take(1, NOW) == -SECOND // 10


@pytest.mark.parametrize("n", [1, 10**15])
def test_quota_state_never_leaves_its_64_bits(n: int) -> None:
    """However much is given back or charged, the state is a time."""
    _, (table,) = tables(1)
    quota = table.quota(7, BucketRate(10**9, 10**8, 0))
    quota.take(1, 5)

    quota.give_back(n, waiting=False)
    assert quota.remaining(10**6) == 10**8
    for _ in range(20):
        quota.charge(n)
    assert (quota.remaining(NOW) == 0) == (n > 1)


def test_quota_without_limit_has_no_row() -> None:
    """0 per minute: nothing is written anywhere."""
    memory, (table,) = tables(1)
    quota = table.quota(7, UNLIMITED)

    assert (quota.ask(10**9, NOW), quota.take(10**9, NOW)) == (0, 0)
    quota.charge(5)
    quota.give_back(5, waiting=False)
    assert memory.statistics().in_use == 0


def test_quota_used_twice_is_an_error() -> None:
    """A permit can't be used or given back that nobody waits for: that is a bug, and says so."""
    _, (table,) = tables(1)
    quota = table.quota(7, RATE)
    quota.take(2, NOW)

    with pytest.raises(ValueError, match="format"):
        quota.used_wait(1)
    with pytest.raises(ValueError, match="format"):
        quota.give_back(1, waiting=True)


def test_dead_worker_waiting_permits_come_back_once() -> None:
    """What a killed worker had reserved is free again; what the others reserved, and what was used, is not."""
    memory, (one, two) = tables(2)
    dead, alive = one.quota(7, RATE), two.quota(7, RATE)
    assert [dead.take(1, NOW) for _ in range(4)] == [0, 0, 100, 200]
    assert alive.take(1, NOW) == 300
    dead.used_wait(1)

    assert QuotaSweeper(memory).reclaim(0) == 100
    assert QuotaSweeper(memory).reclaim(0) == 0
    assert alive.full_in_ns(NOW) == 400
    alive.give_back(1, waiting=True)


def test_tag_is_keyed_and_has_no_two_readings() -> None:
    """Clients choose the words in a tag: nothing is to be learnt from another gateway, and parts don't run together."""
    _, (one, two) = tables(2)
    _, (other,) = tables(1)

    assert one.tag(b"a", b"bc") == two.tag(b"a", b"bc")
    assert one.tag(b"a", b"bc") != one.tag(b"ab", b"c")
    assert one.tag(b"a", b"bc") != other.tag(b"a", b"bc")
    assert all(0 < one.tag(b"%d" % i) < LEAVING for i in range(100))


# -- slots ----------------------------------------------------------------------------------------


def test_slots_are_one_number_for_all_workers() -> None:
    """At n - 1, n and n + 1."""
    _, (one, two) = tables(2)
    first, second = one.slots(7, 3), two.slots(7, 3)

    assert [first.take(), second.take(), first.take(), second.take(), first.take()] == [True] * 3 + [False] * 2
    assert first.in_use() == second.in_use() == 3
    second.release()
    assert first.take()
    assert not second.take()


def test_slots_of_a_dead_worker_are_free() -> None:
    """The others' are not."""
    memory, (one, two) = tables(2)
    dead, alive = one.slots(7, 3), two.slots(7, 3)
    assert [dead.take(), dead.take(), alive.take()] == [True] * 3

    QuotaSweeper(memory).reclaim(0)
    assert alive.in_use() == 1
    assert [alive.take(), alive.take(), alive.take()] == [True, True, False]


def test_slots_released_twice_is_an_error() -> None:
    """That is a bug, and says so."""
    _, (table,) = tables(1)
    slots = table.slots(7, 3)
    slots.take()
    slots.release()

    with pytest.raises(AssertionError, match="once"):
        slots.release()


# -- rows -----------------------------------------------------------------------------------------


def test_row_unused_is_freed_and_its_quota_is_full_again() -> None:
    """Only while rows are short; who comes back finds what he would have found."""
    memory, (table,) = tables(1)
    sweeper, quotas = QuotaSweeper(memory), fill(table, NOW)
    assert sweeper.sweep(NOW + 10**12) == 0, "most of the table is free"
    others = [table.quota(tag, SOON, open_ended=True) for tag in neighbours(PROBES)]
    others += [table.quota(tag + HOMES - 1, SOON) for tag in neighbours(PROBES - 1)]
    assert all(quota.take(5, NOW) == 0 for quota in others)

    assert sweeper.sweep(NOW + 2 * SECOND) == memory.statistics().freed == memory.statistics().claimed - PROBES
    assert all(quota.take(5, NOW + 2 * SECOND) == 0 for quota in others[:3])
    assert all(quota.full_in_ns(NOW) == 60 * SECOND for quota in quotas)


def hold_nothing(_memory: QuotaMemory, table: QuotaTable) -> None:
    table.quota(HOMES, RATE).take(1, NOW)


def wait_for_permits(_memory: QuotaMemory, table: QuotaTable) -> None:
    quota = table.quota(HOMES, BucketRate(100, 1, 300))
    assert [quota.take(1, NOW), quota.take(1, NOW)] == [0, 100]


def use_slots(_memory: QuotaMemory, table: QuotaTable) -> None:
    assert table.slots(HOMES, 5).take()


def hold_a_lease(memory: QuotaMemory, table: QuotaTable) -> None:
    table.quota(HOMES, RATE).take(1, NOW)
    memory.lease(0)[2].store(1)


def have_a_lease(memory: QuotaMemory, table: QuotaTable) -> None:
    table.quota(HOMES, RATE).take(1, NOW)
    memory.lease(0)[0].fetch_add(3)


@pytest.mark.parametrize(
    ("hold", "freed"),
    [(hold_nothing, 20), (wait_for_permits, 19), (use_slots, 19), (hold_a_lease, 19), (have_a_lease, 19)],
)
def test_row_in_use_is_not_freed(hold: Callable[[QuotaMemory, QuotaTable], None], freed: int) -> None:
    """A row with permits that wait, slots in use or a lease says something that a new one would not."""
    memory, (table,) = tables(1)
    hold(memory, table)
    for row in range(1, 20):
        assert memory.cas_tag(row, 0, 10**6 + row) == 0
    memory.count_overflow(0)

    assert QuotaSweeper(memory).sweep(NOW + 1000 * SECOND) == freed


@pytest.mark.parametrize(("later_ns", "freed"), [(SECOND + 499_999_999, 0), (SECOND + 500_000_000, 1)])
def test_row_is_freed_a_second_after_its_bucket_is_full(later_ns: int, freed: int) -> None:
    """Others ask with a time that they read before: they must not find a full bucket too early."""
    memory, (table,) = tables(1)
    table.quota(HOMES, SOON).take(5, NOW)
    memory.count_overflow(0)

    assert QuotaSweeper(memory).sweep(NOW + later_ns) == freed


def test_row_is_not_freed_while_a_worker_stands_in_an_operation() -> None:
    """It may have seen the row as its own; when it is reaped, it is out."""
    memory, (table, _) = tables(2)
    table.quota(HOMES, SOON).take(5, NOW)
    memory.count_overflow(0)
    memory.busy(1).store(1)
    sweeper = QuotaSweeper(memory)

    assert sweeper.sweep(NOW + 1000 * SECOND) == 0
    assert memory.tag(0).load() == HOMES, "it is left as it was"
    sweeper.reclaim(1)
    memory.count_overflow(0)
    assert sweeper.sweep(NOW + 1000 * SECOND) == 1


def test_quota_charged_after_its_row_was_freed_counts_from_its_last_use() -> None:
    """An answer that took longer than its bucket to fill is paid for in the new row."""
    memory, (table,) = tables(1)
    table.quota(2 * HOMES, SOON).take(1, NOW - 100 * SECOND)
    quota = table.quota(HOMES, SOON)
    quota.take(5, NOW)
    memory.count_overflow(0)
    assert QuotaSweeper(memory).sweep(NOW + 3 * SECOND) == 2

    quota.charge(50)
    assert quota.full_in_ns(NOW + 3 * SECOND) == 2 * SECOND


# -- overflow -------------------------------------------------------------------------------------


def test_quota_without_a_row_is_counted_by_each_worker_for_itself() -> None:
    """All rows near its home are taken, and there are no more: nobody else's use refuses it. Nothing waits there."""
    memory, (table, other) = tables(2)
    fill(table, NOW)
    one, two = (table.quota(tag, RATE) for tag in neighbours(PROBES + 2)[-2:])

    assert one.take(2, NOW) == 0
    assert one.ask(1, NOW) == one.take(1, NOW) == -100
    assert two.ask(2, NOW) == two.take(2, NOW) == 0, "a quiet one pays for nobody"
    assert other.quota(neighbours(PROBES + 1)[-1], RATE).take(2, NOW) == 0, "its price: each worker gives the limit"
    one.give_back(2, waiting=False)
    assert one.take(2, NOW) == 0, "what is given back is there again"
    one.charge(3)
    assert one.take(1, NOW) == -400
    assert memory.statistics().overflowed >= 4


def test_table_that_may_grow_has_a_row_for_each_tag() -> None:
    """Ten times as many as at first; nothing overflows, each is one for all workers, and no tag has two rows."""
    memory, (one, two) = tables(2, TableSize(64, 64, 4096, 64))
    tags = [one.tag(b"%d" % i) for i in range(640)]

    assert all(one.quota(tag, RATE).take(2, NOW) == 0 for tag in tags)
    assert all(two.quota(tag, RATE).take(2, NOW) == 200 for tag in tags)

    counts = memory.statistics()
    assert (counts.overflowed, counts.in_use, counts.claimed) == (0, 640, 640)
    assert 640 < counts.rows < 2600
    assert QuotaSweeper(memory).reclaim(1) == 640 * 200
    sweeper = QuotaSweeper(memory)
    memory.count_overflow(0)
    assert sum(sweeper.sweep(NOW + 1000 * SECOND) for _ in range(2)) == 640


@pytest.mark.parametrize("n_keys", [8_400, 10_000])
@pytest.mark.parametrize("size", [TableSize.for_need(16_800, 0), TableSize.for_need(0, 0), 64])
@pytest.mark.slow
def test_quiet_keys_are_never_refused(n_keys: int, size: TableSize | int) -> None:
    """Two limits each, one request each: whether the table was made for them, grows, or is full."""
    memory, (table,) = tables(1, size)
    rates = BucketRate.from_rpm(60, 10, 0), BucketRate.from_rpm(1000, 1000, 0)

    for i in range(n_keys):
        quotas = [table.quota(table.tag(kind, b"%d" % i), rate) for kind, rate in zip((b"r", b"t"), rates, strict=True)]
        assert [quota.ask(n, NOW) for quota, n in zip(quotas, (1, 1000), strict=True)] == [0, 0]
        assert [quota.take(n, NOW) for quota, n in zip(quotas, (1, 1000), strict=True)] == [0, 0]

    assert (memory.overflowed() > 0) == (size == 64)


@pytest.mark.slow
def test_row_that_this_process_forgets_lets_nobody_down() -> None:
    """Its own memory is bounded, too: the full ones go first, those with slots never."""
    _, (table,) = tables(1)
    fill(table, NOW)
    held = table.slots(neighbours(PROBES + 1)[-1], 1)
    assert held.take()

    for tag in neighbours(10_000)[PROBES + 1 :]:
        assert table.quota(tag, RATE).take(2, NOW) == 0
    assert len(table.rows._overflown) <= 4096
    assert not held.take()
    held.release()
    assert held.take()


# -- shares ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_caller_that_makes_up_models_takes_its_share_of_rows_only() -> None:
    """12,000 models of one caller; the others' models have rows, and are limited as ever."""
    clock = [NOW]
    memory = QuotaMemory(TableSize.for_need(0, 0), 1)
    table = QuotaTable(memory, 0, lambda: clock[0])
    others = table.tag(b"caller")
    made_up = [table.quota(table.tag(b"m%d" % i), SOON, open_ended=True, others=others) for i in range(12_000)]

    answers = [quota.take(1, NOW) for quota in made_up]

    share = memory.share
    assert answers[: share + SOON.burst] == [0] * (share + SOON.burst)
    assert set(answers[share + SOON.burst :]) == {-SOON.interval_ns}, "those beyond it have one bucket together"
    assert (memory.statistics().in_use, memory.overflowed()) == (share, 0)
    assert memory.over_share() == 12_000 - share
    assert made_up[-1].ask(1, NOW) < 0 and made_up[-1].ask(1, NOW + SECOND) == 0
    assert made_up[0].take(1, NOW) == 0, "one that has a row keeps it"
    quiet = table.quota(table.tag(b"m11999", b"quiet"), SOON, open_ended=True, others=table.tag(b"quiet"))
    assert [quiet.take(1, NOW) for _ in range(6)] == [0, 0, 0, 0, 0, -SOON.interval_ns]
    slots = table.slots(table.tag(b"s"), 2, open_ended=True, others=others)
    assert [slots.take(), slots.take(), slots.take(), slots.in_use()] == [True, True, False, 2]
    slots.release()
    assert slots.in_use() == 1

    clock[0] += 60 * SECOND
    assert made_up[-1].take(1, clock[0]) == 0
    assert memory.statistics().in_use == share + 2, "the quiet one's, and after a minute it may claim as many again"


def test_caller_alone_has_all_rows_and_is_never_refused_for_want_of_one() -> None:
    """Without keys there is one caller: its models overflow when all rows are taken."""
    memory, (table,) = tables(1)

    for i in range(1000):
        assert table.quota(table.tag(b"m%d" % i), SOON, open_ended=True).take(5, NOW) == 0

    assert memory.overflowed() > 900 and memory.over_share() == 0


def test_quota_that_gets_a_row_goes_on_where_it_was() -> None:
    """What it took from the overflow row counts, when a row near its home is free."""
    memory, (table,) = tables(1)
    *_, last = fill(table, NOW)
    quota = table.quota(neighbours(PROBES + 1)[-1], RATE)
    assert quota.take(2, NOW) == 0
    memory.tat(PROBES - 1).store(0)
    assert memory.cas_tag(PROBES - 1, neighbours(PROBES)[-1], 0)

    assert quota.take(1, NOW) == 100
    assert quota.take(2, NOW) == 300
    assert last.take(1, NOW) == 0, "it overflows now, but at another rate"


def test_slots_without_a_row_are_counted_by_each_worker_for_itself() -> None:
    """Those taken there count when the tag gets a row, and are released where they were taken."""
    memory, (one, two) = tables(2)
    fill(one, NOW)
    tag = neighbours(PROBES + 1)[-1]
    first, second = one.slots(tag, 3), two.slots(tag, 3)
    assert [first.take(), second.take()] == [True, True]
    assert (first.in_use(), second.in_use()) == (1, 1)
    assert memory.cas_tag(0, HOMES, 0)

    assert [first.take(), first.take(), first.take()] == [True, True, False]
    assert second.take() is False, "two in the row, and one of its own"
    assert (first.in_use(), second.in_use()) == (3, 3)
    for slots in (first, second, first, first):
        slots.release()
    assert (first.in_use(), second.in_use()) == (0, 0)
    assert [first.take() for _ in range(4)] == [True, True, True, False]


def test_models_without_end_leave_the_other_rows_alone() -> None:
    """A client that makes up names gets no row that a key of the configuration needs."""
    _, (table,) = tables(1)
    for i in range(1000):
        table.quota(table.tag(b"model-%d" % i), RATE, open_ended=True).take(1, NOW)

    quotas = [table.quota(tag, RATE) for tag in neighbours(PROBES)]
    assert all(quota.take(2, NOW) == 0 for quota in quotas)


def test_table_is_what_the_policy_asks_for() -> None:
    """The shared ones are a Quota and Slots."""
    _, (table,) = tables(1)
    quota: Quota = table.quota(1, RATE)
    slots: Slots = table.slots(2, 1)

    assert (quota.rate, slots.limit) == (RATE, 1)


# -- any interleaving -----------------------------------------------------------------------------

WORKERS = 3
SWEEPER = WORKERS
LIMIT = 2
GROWING = TableSize(32, 32, 128, 32)

WHATS = ["take", "take", "take", "take both", "take both", "give_back", "give both back", "charge"]
WHATS += ["slot", "slot", "release"]


class Town:
    """Workers that take what they can, and count what each tag may have had since its first use."""

    def __init__(self, n_filled: int) -> None:
        self.stage = Stage(GROWING, WORKERS)
        self.memory = self.stage.memory
        self.sweeper = QuotaSweeper(self.memory)
        self.now_ns = NOW
        self.tags = neighbours(40)[-2:]
        self.dead: set[int] = set()
        self.first_ns: dict[int, int] = {}
        self.taken = dict.fromkeys(self.tags, 0)
        self.charged = dict.fromkeys(self.tags, 0)
        self.held = dict.fromkeys(self.tags, 0)
        self.quotas: dict[tuple[int, int], SharedQuota] = {}
        self.groups: dict[int, QuotaGroup] = {}  # of both tags: a request of the first one, tokens of the second
        self.slots: dict[tuple[int, int], SharedSlots] = {}
        self.mine: dict[tuple[int, int, str], int] = {}
        # In the way near the home of the tags, some for long and some for a second.
        table = QuotaTable(self.memory, 0)
        fill(table, NOW, n=n_filled - 2)
        for tag in neighbours(n_filled)[-2:]:
            table.quota(tag, SOON).take(1, NOW)
        for worker in range(WORKERS):
            self.start(worker)

    def start(self, worker: int) -> None:
        table = QuotaTable(self.memory, worker)
        for tag in self.tags:
            self.quotas[worker, tag] = table.quota(tag, SOON)
            self.slots[worker, tag] = table.slots(tag + 10 * HOMES, LIMIT)
            self.mine[worker, tag, "quota"] = self.mine[worker, tag, "slots"] = 0
        first, second = (self.quotas[worker, tag] for tag in self.tags)
        group = table.group([first], [second])
        assert group is not None
        self.groups[worker] = group

    def play(self, chance: random.Random) -> None:
        """Have each worker do something 15 times, in steps of which some are many and some few."""
        turns = [[self.turn(worker, chance) for _ in range(15)] for worker in range(WORKERS)]
        turns.append([Turn(self.sweep)] * 20)
        self.stage.play(turns, self.passing(chance), self.on_death)

    def turn(self, worker: int, chance: random.Random) -> Turn:
        work = partial(self.work, worker, chance.choice(WHATS), chance.choice(self.tags), chance.randint(1, 5))
        return Turn(work, chance.randrange(12) if chance.random() < 0.1 else None)

    def passing(self, chance: random.Random) -> Iterator[tuple[int, int]]:
        for _ in range(80):
            self.now_ns += chance.choice([0] * 12 + [50, 400, 3000]) * 10**6
            yield chance.randrange(WORKERS + 1), chance.choice([1, 2, 3, 5, 8, 20, 60])

    def on_death(self, worker: int) -> None:
        self.dead.add(worker)
        for tag in self.tags:
            self.held[tag] -= self.mine[worker, tag, "slots"]

    def sweep(self) -> None:
        for worker in sorted(self.dead):
            self.sweeper.reclaim(worker)
            self.start(worker)
            self.dead.discard(worker)
        self.memory.count_overflow(0)  # there is always need
        self.sweeper.sweep(self.now_ns)

    def work(self, worker: int, what: str, tag: int, n: int) -> None:
        if worker in self.dead:
            return
        quota, slots, now_ns = self.quotas[worker, tag], self.slots[worker, tag], self.now_ns
        charged_before = self.charged[tag]  # what is charged from here on, this may have been too early to see
        if what == "take" and quota.take(n, now_ns) >= 0:
            self.took(worker, tag, n, now_ns, charged_before)
        elif what == "take both":
            before = dict(self.charged)
            if self.groups[worker].take(n, now_ns):
                for each, n_of_it in zip(self.tags, (1, n), strict=True):
                    self.took(worker, each, n_of_it, now_ns, before[each])
        elif what == "give both back" and self.mine[worker, self.tags[1], "quota"]:
            n = min(n, self.mine[worker, self.tags[1], "quota"])
            self.mine[worker, self.tags[1], "quota"] -= n
            self.taken[self.tags[1]] -= n
            self.groups[worker].give_back_tokens(n)
        elif what == "give_back" and self.mine[worker, tag, "quota"]:
            n = min(n, self.mine[worker, tag, "quota"])
            self.mine[worker, tag, "quota"] -= n
            self.taken[tag] -= n
            quota.give_back(n, waiting=False)
        elif what == "charge" and self.mine[worker, tag, "quota"]:
            quota.charge(n)
            self.charged[tag] += n
        elif what == "slot" and slots.take():
            self.mine[worker, tag, "slots"] += 1
            self.held[tag] += 1
            assert self.held[tag] <= LIMIT
        elif what == "release" and self.mine[worker, tag, "slots"]:
            self.mine[worker, tag, "slots"] -= 1
            self.held[tag] -= 1
            slots.release()

    def took(self, worker: int, tag: int, n: int, now_ns: int, charged_before: int) -> None:
        self.mine[worker, tag, "quota"] += n
        self.taken[tag] += n
        first_ns = self.first_ns[tag] = min(now_ns, self.first_ns.get(tag, now_ns))
        assert self.taken[tag] + charged_before <= SOON.burst + (self.now_ns - first_ns) / SOON.interval_ns


@pytest.mark.parametrize("steps", range(30))
@pytest.mark.parametrize("first", ["sweep", "take"])
def test_row_taken_from_between_any_two_steps_of_a_sweep_stays(first: str, steps: int) -> None:
    """Wherever one of them interrupts the other: what was taken is taken, also for the others."""
    stage, later_ns = Stage(64, 2), NOW + 3 * SECOND
    one, two = (QuotaTable(stage.memory, block) for block in range(2))
    for tag in neighbours(4)[2:]:
        one.quota(tag, SOON).take(1, NOW)  # rows before theirs, that are freed, too
    quota, slots = one.quota(HOMES, SOON), one.slots(2 * HOMES, 1)
    quota.take(5, NOW)
    slots.take()
    slots.release()
    stage.memory.count_overflow(0)

    def take() -> None:
        assert quota.take(5, later_ns) == 0
        assert slots.take()

    def sweep() -> None:
        QuotaSweeper(stage.memory).sweep(later_ns)

    schedule = [(0, steps), (1, 10**6)] if first == "take" else [(1, steps), (0, 10**6)]
    stage.play([[Turn(take)], [Turn(sweep)]], schedule, lambda _: None)

    assert two.quota(HOMES, SOON).take(1, later_ns) < 0
    assert not two.slots(2 * HOMES, 1).take()


@settings(deadline=None)
@given(st.integers(PROBES - 3, PROBES), st.integers(0, 1 << 32))
def test_no_interleaving_gives_more_than_burst_plus_rate_or_a_slot_too_many(n_filled: int, seed: int) -> None:
    """Workers and sweeps between each other's steps, rows that come and go, workers that die: no matter."""
    town = Town(n_filled)

    town.play(random.Random(seed))

    tags = town.memory.tags().tolist()
    assert all(tags.count(tag) <= 1 for tag in tags if tag), "a tag has one row"
    assert not any(tag & LEAVING for tag in tags)
    for worker in range(WORKERS):
        town.sweeper.reclaim(worker)
    assert all(not any(town.memory.slots(row)) for row in range(town.memory.rows))
