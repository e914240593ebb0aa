"""Quotas that a request takes from at once: all of them give what it needs, or none does."""

from __future__ import annotations

import pytest

from tests.unit.shm.quota_steps import Stage, Turn
from velox.policy.limits.token_bucket import UNLIMITED, BucketRate
from velox.shm.quota_table import PROBES, QuotaMemory, QuotaSweeper
from velox.shm.quotas import QuotaGroup, QuotaTable, SharedQuota

NOW = 10**12
SECOND = 10**9
REQUESTS = BucketRate(interval_ns=SECOND, burst=3, max_wait_ns=0)
TOKENS = BucketRate(interval_ns=SECOND // 100, burst=100, max_wait_ns=0)


class Key:
    """A key's limits of requests and of tokens, as one worker sees them. Both have rows, and are full."""

    def __init__(self, memory: QuotaMemory, worker: int = 0) -> None:
        table = QuotaTable(memory, worker)
        self.requests: SharedQuota = table.quota(7, REQUESTS)
        self.tokens: SharedQuota = table.quota(8, TOKENS)
        for quota in (self.requests, self.tokens):
            quota.take(1, NOW)
            quota.give_back(1, waiting=False)
        group = table.group([self.requests], [self.tokens])
        assert group is not None
        self.group: QuotaGroup = group

    @property
    def left(self) -> tuple[int, int]:
        return self.requests.remaining(NOW), self.tokens.remaining(NOW)


def test_all_of_a_group_is_taken_and_what_was_not_used_of_its_tokens_comes_back() -> None:
    key = Key(QuotaMemory(64, 1))
    assert key.group.take(60, NOW) and key.left == (2, 40)
    key.group.give_back_tokens(35)
    assert key.left == (2, 75)


@pytest.mark.parametrize(("n_before", "n_tokens"), [(3, 1), (0, 101)])
def test_group_of_which_one_has_no_room_takes_of_none(n_before: int, n_tokens: int) -> None:
    """Whichever of them it is."""
    key = Key(QuotaMemory(64, 1))
    if n_before:
        assert key.requests.take(n_before, NOW) == 0
    before = key.left
    assert not key.group.take(n_tokens, NOW) and key.left == before


def test_group_takes_as_soon_as_a_wait_is_over() -> None:
    key = Key(QuotaMemory(64, 1))
    assert key.group.take(100, NOW)
    assert not key.group.take(50, NOW + SECOND // 2 - 1) and key.group.take(50, NOW + SECOND // 2)


def test_group_claims_no_rows_and_gives_back_to_those_that_were_freed() -> None:
    """A quota by itself finds its row, or a new one."""
    memory = QuotaMemory(64, 1)
    table = QuotaTable(memory, 0)
    requests, tokens = table.quota(7, REQUESTS), table.quota(8, TOKENS)
    group = table.group([requests], [tokens])
    assert group is not None
    assert not group.take(1, NOW) and memory.statistics().in_use == 0
    assert [requests.take(1, NOW), tokens.take(50, NOW)] == [0, 0] and group.take(50, NOW)
    for tag in range(9, 9 + 2 * PROBES):
        table.quota(tag, TOKENS).take(1, NOW)
    later_ns = NOW + 10 * SECOND
    memory.count_overflow(0)
    assert QuotaSweeper(memory).sweep(later_ns)
    assert not group.take(1, later_ns)
    group.give_back_tokens(50)  # its bucket is full
    assert tokens.remaining(later_ns) == 100


def test_quotas_without_a_limit_are_no_group() -> None:
    table = QuotaTable(QuotaMemory(64, 1), 0)
    assert table.group([table.quota(7, REQUESTS), table.quota(9, UNLIMITED)], []) is None
    assert table.group([], []) is None


@pytest.mark.parametrize("steps", range(40))
def test_two_workers_that_take_at_once_take_no_more_than_there_is(steps: int) -> None:
    """Wherever one interrupts the other, one of them gets all that is left, and the other one nothing of either."""
    stage = Stage(64, 2)
    one, two = (Key(stage.memory, worker) for worker in (0, 1))
    taken: list[bool] = []

    def take(key: Key) -> None:
        taken.append(key.group.take(60, NOW))

    stage.play([[Turn(lambda: take(one))], [Turn(lambda: take(two))]], [(0, steps), (1, 10**6)], lambda _: None)

    n = sum(taken)
    assert n <= 1 and len(taken) == 2
    assert one.left == two.left == (3 - n, 100 - 60 * n)


@pytest.mark.parametrize("dies_at", range(16))
def test_worker_that_dies_while_it_takes_leaves_no_more_than_there_was(dies_at: int) -> None:
    """What it had taken by then is lost once, and nothing is taken for ever."""
    stage = Stage(64, 2)
    one, two = (Key(stage.memory, worker) for worker in (0, 1))

    stage.play([[Turn(lambda: one.group.take(60, NOW), dies_at)]], [], lambda _: None)

    assert two.left in {(3, 100), (2, 100), (2, 40)}
    assert two.requests.remaining(NOW + SECOND) == 3 and two.tokens.remaining(NOW + SECOND) == 100
