"""How much a gateway holds in advance, what it asks for, and what its share is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.limits.lease import block, low_mark, missing, own_share, pairs, retry_ns, surplus
from velox.policy.limits.quota import NEVER, NOT_YET, UNAVAILABLE
from velox.policy.limits.token_bucket import UNLIMITED, BucketRate, ask

SECOND = 10**9

rates = st.builds(BucketRate, st.integers(600, 60 * SECOND), st.integers(1, 10**7), st.integers(0, 10 * SECOND))


@pytest.mark.parametrize(
    ("rpm", "burst", "replicas", "held"),
    [
        (60_000, 2_000, 1, 100),  # 100 ms of 1,000 a second
        (60_000, 1_000, 1, 50),  # a twentieth of the burst
        (60_000, 1_000, 10, 5),
        (60_000, 1_000, 51, 0),
        (600, 100, 1, 1),
        (60, 10, 1, 0),
    ],
)
def test_block_is_small_and_divided(rpm: int, burst: int, replicas: int, held: int) -> None:
    """A twentieth of the burst and 100 ms of the rate, whichever is less, over all gateways together."""
    assert block(BucketRate.from_rpm(rpm, burst, 0), replicas) == held


def test_unlimited_holds_nothing() -> None:
    """Where there is no limit, there is no lease."""
    assert block(UNLIMITED, 1) == 0


@given(rates, st.integers(0, 1000))
def test_blocks_of_all_gateways_are_within_the_bound(rate: BucketRate, replicas: int) -> None:
    """However many gateways there are, together they hold at most 5 % of the burst, and 100 ms of the rate."""
    held = max(1, replicas) * block(rate, replicas)

    assert held <= rate.burst / 20
    assert held * rate.interval_ns <= SECOND / 10


@given(st.integers(1, 1000), st.integers(0, 2000))
def test_low_is_told_once_on_the_way_down(size: int, start: int) -> None:
    """A lease that is used up permit by permit is low exactly once, if it was not from the start."""
    mark = low_mark(size)
    told = [balance - 1 < mark <= balance for balance in range(start, 0, -1)]

    assert 0 < mark <= size
    assert sum(told) == (1 if start >= mark else 0)


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(0, 500))
def test_surplus_leaves_a_block(balance: int, before: int, size: int) -> None:
    """What goes back was there all the time, and a block stays."""
    back = surplus(balance, before, size)

    assert back >= 0
    assert back == 0 or (balance - back >= size and before - back >= size)
    assert missing(balance, size) == 0 or back == 0


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(-100, 300), st.integers(1, 40))
def test_what_is_asked_for_and_what_is_held_serves_those_that_came_first(
    needs: list[int], balance: int, most: int
) -> None:
    """What is held goes to the first; each of the rest is asked for whole, in order, as far as there is place."""
    asked = pairs(needs, balance, most)

    assert len(asked) <= most
    flat = [n for n, times in asked for _ in range(times)]
    total, held = 0, max(0, balance)
    expected = []
    for n in needs:
        total += n
        short = min(n, max(0, total - held))
        if short:
            expected.append(short)
    assert flat == expected[: len(flat)]
    assert len(asked) == most or flat == expected


@given(rates, st.integers(1, 50), st.data())
def test_shares_of_all_gateways_are_the_limit(rate: BucketRate, replicas: int, data: st.DataObject) -> None:
    """A share fills so many times slower; what the whole limit lets through passes a full share, nothing else."""
    n = data.draw(st.integers(1, rate.burst))
    share = own_share(rate, replicas, n)

    assert share.interval_ns == rate.interval_ns * replicas
    assert share.burst <= max(rate.burst // replicas, n)
    assert ask(share, 0, SECOND, n) == 0
    assert ask(own_share(rate, replicas, rate.burst + 1), 0, SECOND, rate.burst + 1) == NEVER


def test_redis_is_left_alone_for_longer_and_longer() -> None:
    """0.1 s, doubling to 1 s."""
    waits = [0]
    for _ in range(6):
        waits.append(retry_ns(waits[-1]))

    assert [wait / SECOND for wait in waits[1:]] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_answers_are_no_times() -> None:
    """The three answers without a time are below all that have one."""
    assert NEVER < NOT_YET < UNAVAILABLE < -(1 << 61)
