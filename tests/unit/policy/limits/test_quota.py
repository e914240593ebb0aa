"""Amounts of permits, all or none: against a leaky bucket that counts in fractions, and at the edges."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.limits.token_bucket import NEVER, UNLIMITED, BucketRate, ask, full_in_ns, remaining

NOW = 10**12
RATE = BucketRate(interval_ns=100, burst=10, max_wait_ns=300)

rates = st.builds(BucketRate, st.integers(1, 50), st.integers(1, 30), st.integers(0, 400))
requests = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 35)), max_size=30)


class LeakyBucket:
    """What is in the bucket leaks at one permit an interval; a request passes at once while it fits on top of it."""

    def __init__(self, rate: BucketRate) -> None:
        self.rate = rate
        self.level = Fraction(0)
        self.at_ns = NOW

    def leak(self, now_ns: int) -> None:
        self.level = max(Fraction(0), self.level - Fraction(now_ns - self.at_ns, self.rate.interval_ns))
        self.at_ns = now_ns

    def wait_ns(self, n: int) -> Fraction:
        return max(Fraction(0), (self.level + n - self.rate.burst) * self.rate.interval_ns)


@given(rates, requests)
def test_amount_any_requests_pass_and_wait_as_a_leaky_bucket_says(
    rate: BucketRate, steps: list[tuple[int, int]]
) -> None:
    """An amount passes when the bucket has room for all of it, and its wait is exact to the nanosecond."""
    bucket, tat, now_ns = LeakyBucket(rate), 0, NOW

    for pause_ns, n in steps:
        now_ns += pause_ns
        bucket.leak(now_ns)
        answer = ask(rate, tat, now_ns, n)

        if n > rate.burst:
            assert answer == NEVER
            continue
        assert abs(answer) == bucket.wait_ns(n)
        assert (answer >= 0) == (bucket.wait_ns(n) <= rate.max_wait_ns)
        if answer >= 0:
            bucket.level += n
            tat = max(tat, now_ns) + n * rate.interval_ns


@given(rates, st.integers(0, 5000), st.integers(1, 30))
def test_amount_refused_passes_at_its_time_and_not_before(rate: BucketRate, ahead_ns: int, n: int) -> None:
    """-ns of a refusal is exact: a client that sleeps for it is let in without a wait."""
    tat = NOW + ahead_ns
    answer = ask(rate, tat, NOW, n)
    if answer >= 0 or answer == NEVER:
        return

    assert ask(rate, tat, NOW - answer, n) == 0
    assert ask(rate, tat, NOW - answer - 1, n) != 0


@given(rates, st.integers(0, 5000))
def test_remaining_is_the_most_that_passes_at_once(rate: BucketRate, ahead_ns: int) -> None:
    """The header's number is what a client gets, and one more is too many."""
    left = remaining(rate, NOW + ahead_ns, NOW)

    assert left == 0 or ask(rate, NOW + ahead_ns, NOW, left) == 0
    assert ask(rate, NOW + ahead_ns, NOW, left + 1) != 0
    assert ask(rate, NOW + ahead_ns, NOW + full_in_ns(rate, NOW + ahead_ns, NOW), rate.burst) == 0


@pytest.mark.parametrize(("n", "answer"), [(9, 0), (10, 0), (11, NEVER)])
def test_amount_at_the_edge_of_a_full_bucket(n: int, answer: int) -> None:
    """A full bucket gives all that it holds; more than that no wait can give."""
    assert ask(RATE, 0, NOW, n) == answer


@pytest.mark.parametrize(("ahead_ns", "answer"), [(999, 99), (1000, 100), (1200, 300), (1201, -301)])
def test_amount_waits_no_longer_than_it_may(ahead_ns: int, answer: int) -> None:
    """Up to the longest wait it is a wait, from there on a refusal with the time."""
    assert ask(RATE, NOW + ahead_ns, NOW, 1) == answer


def test_amount_without_limit_always_passes() -> None:
    """Interval 0: nothing is counted."""
    assert ask(UNLIMITED, NOW + 10**15, NOW, 10**9) == 0


def test_rate_that_takes_years_to_fill_is_refused() -> None:
    """The state of a bucket is a time in 64 bits."""
    BucketRate.from_rpm(1, 10**7, 0)
    with pytest.raises(ValueError, match="years"):
        BucketRate.from_rpm(1, 10**8, 0)
