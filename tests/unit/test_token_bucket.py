"""The token bucket's arithmetic, against a slow model written from the rule instead of from GCRA."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.token_bucket import UNLIMITED, BucketRate, full_in_ns, remaining, take

NOW = 10**12


class SlowModel:
    """Remembers every use. The next comes as soon as no window holds more than burst + length / interval."""

    def __init__(self, rate: BucketRate) -> None:
        self.rate = rate
        self.uses: list[int] = []

    def earliest(self, now_ns: int) -> int:
        rate, uses = self.rate, self.uses
        count = len(uses) + 1
        return max([now_ns, *(use + (count - i - rate.burst) * rate.interval_ns for i, use in enumerate(uses))])

    def take(self, now_ns: int, n: int) -> list[int]:
        """Return the waits of the granted ones."""
        waits: list[int] = []
        for _ in range(n):
            wait_ns = self.earliest(now_ns) - now_ns
            if wait_ns > self.rate.max_wait_ns:
                break
            self.uses.append(now_ns + wait_ns)
            waits.append(wait_ns)
        return waits


rates = st.builds(BucketRate, st.integers(1, 50), st.integers(1, 8), st.integers(0, 200))
batches = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 10)), max_size=30)


@given(rates, batches)
def test_bucket_any_batches_grants_and_waits_as_the_rule_says(rate: BucketRate, steps: list[tuple[int, int]]) -> None:
    """No window ever holds more than burst + length / interval uses, and none is later than that demands."""
    model, tat, now_ns = SlowModel(rate), 0, NOW

    for pause_ns, n in steps:
        now_ns += pause_ns
        taken = take(rate, tat, now_ns, n)
        tat = taken.tat
        waits = model.take(now_ns, n)

        assert [taken.wait_ns(i) for i in range(taken.granted)] == waits
        assert taken.waiting == sum(wait_ns > 0 for wait_ns in waits)


@given(rates, batches)
def test_bucket_batch_of_n_equals_n_single_takes(rate: BucketRate, steps: list[tuple[int, int]]) -> None:
    """A batch gets what its requests would have got one by one."""
    tat = single_tat = 0
    now_ns = NOW

    for pause_ns, n in steps:
        now_ns += pause_ns
        taken = take(rate, tat, now_ns, n)
        tat = taken.tat
        granted = 0
        for _ in range(n):
            single = take(rate, single_tat, now_ns, 1)
            single_tat = single.tat
            granted += single.granted

        assert (taken.granted, tat) == (granted, single_tat)


@given(rates, batches, st.integers(0, 5))
def test_bucket_refused_passes_at_its_retry_after_and_not_before(
    rate: BucketRate, steps: list[tuple[int, int]], index: int
) -> None:
    """Retry-After is exact: then one more passes without a wait, a nanosecond earlier it would not."""
    tat, now_ns = 0, NOW
    for pause_ns, n in steps:
        now_ns += pause_ns
        tat = take(rate, tat, now_ns, n).tat
    taken = take(rate, tat, now_ns, 1000)
    retry_ns = now_ns + taken.retry_after_ns(index)

    # The refused ones before it come back at their own times.
    ahead = taken.tat
    for earlier in range(index):
        ahead = take(rate, ahead, now_ns + taken.retry_after_ns(earlier), 1).tat

    assert take(rate, ahead, retry_ns, 1).wait_ns(0) == 0
    assert take(rate, ahead, retry_ns - 1, 1).first_wait_ns == 1


def test_bucket_refusal_takes_nothing() -> None:
    """A refused request does not push the others back."""
    rate = BucketRate(interval_ns=100, burst=2, max_wait_ns=0)
    empty = take(rate, 0, NOW, 2).tat

    refused = take(rate, empty, NOW, 5)

    assert (refused.granted, refused.tat) == (0, empty)


@pytest.mark.parametrize(("max_wait_ns", "granted"), [(0, 2), (99, 2), (100, 3), (101, 3), (200, 4)])
def test_bucket_empty_grants_what_comes_within_the_wait(max_wait_ns: int, granted: int) -> None:
    """A request waits only if its token comes within the longest wait."""
    rate = BucketRate(interval_ns=100, burst=2, max_wait_ns=max_wait_ns)

    assert take(rate, 0, NOW, 10).granted == granted


def test_bucket_after_a_long_pause_holds_burst_and_no_more() -> None:
    """Idle time fills a bucket to its burst only."""
    rate = BucketRate(interval_ns=100, burst=5, max_wait_ns=0)
    tat = take(rate, 0, NOW, 5).tat

    assert take(rate, tat, NOW + 10**15, 50).granted == 5


@given(rates, batches)
def test_bucket_remaining_is_what_passes_at_once(rate: BucketRate, steps: list[tuple[int, int]]) -> None:
    """x-ratelimit-remaining-requests names exactly the requests that would pass now without a wait."""
    tat, now_ns = 0, NOW
    patient = BucketRate(rate.interval_ns, rate.burst, max_wait_ns=0)
    for pause_ns, n in steps:
        now_ns += pause_ns
        tat = take(rate, tat, now_ns, n).tat

        assert remaining(rate, tat, now_ns) == take(patient, tat, now_ns, 1000).granted
        assert remaining(rate, tat, now_ns + full_in_ns(rate, tat, now_ns)) == rate.burst


def test_bucket_without_limit_grants_everything() -> None:
    """RPM 0 switches the limit off."""
    taken = take(UNLIMITED, 0, NOW, 10_000)

    assert (taken.granted, taken.waiting, taken.wait_ns(9_999), taken.tat) == (10_000, 0, 0, 0)
    assert BucketRate.from_rpm(0, 500, 1.0).interval_ns == 0


@pytest.mark.parametrize("rpm", [1, 7, 600, 10_000, 59_999_999, 60_000_000])
def test_rate_from_rpm_is_never_above_what_was_asked(rpm: int) -> None:
    """Rounding makes a bucket slower, by less than 0.1 %."""
    interval_ns = BucketRate.from_rpm(rpm, 500, 1.0).interval_ns

    assert 0 <= interval_ns * rpm - 60 * 10**9 < rpm


@pytest.mark.parametrize(("rpm", "burst", "max_wait_s"), [(-1, 1, 0.0), (1, 0, 0.0), (1, 1, -0.1)])
def test_rate_from_rpm_impossible_is_refused(rpm: int, burst: int, max_wait_s: float) -> None:
    """A bucket that can't exist is a ValueError, not a bucket that grants nothing."""
    with pytest.raises(ValueError, match="no such bucket"):
        BucketRate.from_rpm(rpm, burst, max_wait_s)
