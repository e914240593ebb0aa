"""Second tries before the first byte: when, and how many."""

from __future__ import annotations

import random

import pytest

from velox.policy.retries.hedge import FirstByteTimes, HedgeBudget, Hedging
from velox.policy.routes.entries import Delay, Hedge


@pytest.mark.parametrize("percent", [50.0, 90.0, 95.0, 99.0])
def test_percentile_is_within_a_cell(percent: float) -> None:
    """Against the sorted times themselves: never too short, 4.4 % too long at most."""
    rng = random.Random(3)
    times = FirstByteTimes(0.0)
    values = [rng.lognormvariate(-1.0, 1.0) for _ in range(5000)]
    for value in values:
        times.heard(value, 1.0)
    exact = sorted(values)[int(percent / 100 * 5000) - 1]
    found = times.percentile_s(percent, 1.0)
    assert found is not None and exact <= found <= exact * 1.06


def test_percentile_is_not_guessed_from_few() -> None:
    """Three must be beyond it: of p95 that takes 60, of p99 300."""
    times = FirstByteTimes(0.0)
    for n in range(1, 301):
        times.heard(0.2, 1.0)
        assert (times.percentile_s(95.0, 1.0) is None) == (n < 60)
        assert (times.percentile_s(99.0, 1.0) is None) == (n < 300)


def test_times_are_forgotten_after_two_minutes() -> None:
    """The half before goes when the next one is full, and all after a pause."""
    times = FirstByteTimes(0.0)
    for _ in range(100):
        times.heard(10.0, 0.0)
    for _ in range(5000):
        times.heard(0.1, 61.0)
    assert times.percentile_s(99.0, 61.0) == pytest.approx(10.0, rel=0.1)
    for _ in range(5000):
        times.heard(0.1, 122.0)
    assert times.percentile_s(99.0, 122.0) == pytest.approx(0.1, rel=0.1)
    assert times.percentile_s(99.0, 500.0) is None


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.001, 1e9])
def test_times_of_any_size_are_kept(value: float) -> None:
    """The cells at the ends take all beyond."""
    times = FirstByteTimes(0.0)
    for _ in range(100):
        times.heard(value, 0.0)
    assert times.percentile_s(50.0, 0.0) is not None


@pytest.mark.parametrize("percent", [1.0, 5.0, 33.0, 100.0])
def test_budget_is_a_part_of_the_requests(percent: float) -> None:
    """However many ask, over any stretch: no more than so many percent, and ten that were saved."""
    budget = HedgeBudget(percent)
    assert not budget.take()
    taken = 0
    for n in range(1, 2001):
        budget.on_request()
        taken += budget.take()
        assert taken * 100 <= n * percent
    assert taken == 2000 * percent // 100


def test_budget_saves_ten_at_most() -> None:
    """A quiet day does not pay for a storm."""
    budget = HedgeBudget(50.0)
    for _ in range(10_000):
        budget.on_request()
    assert sum(budget.take() for _ in range(100)) == 10


def test_hedging_waits_for_the_percentile() -> None:
    """None while nothing is known; then the p95 of now, found anew each second."""
    hedging = Hedging(Hedge(Delay(percentile=95.0), 5.0), 0.0)
    assert hedging.delay_s(0.0) is None
    for n in range(200):
        hedging.heard(2.0 if n % 10 == 0 else 0.1, 0.5)
    assert hedging.delay_s(0.9) is None
    assert hedging.delay_s(1.0) == pytest.approx(2.0, rel=0.1)


def test_hedging_after_a_fixed_time_measures_nothing() -> None:
    """It is known at once."""
    hedging = Hedging(Hedge(Delay(seconds=0.5), 100.0), 0.0)
    assert hedging.delay_s(0.0) == 0.5
    assert not hedging.take()
    hedging.on_request()
    assert hedging.take() and not hedging.take()


def tail(hedging: Hedging | None, seed: int = 1) -> tuple[float, float, float]:
    """Return p50 and p99 of the first byte and the extra load: one in 25 takes ten times as long, by chance."""
    rng = random.Random(seed)
    waits: list[float] = []
    n_extra = 0

    def first_s() -> float:
        return rng.uniform(0.1, 0.3) * (10.0 if rng.random() < 0.04 else 1.0)

    for n in range(20_000):
        now_s = n / 20
        wait_s = first_s()
        if hedging is not None:
            hedging.on_request()
            delay_s = hedging.delay_s(now_s)
            if delay_s is not None and wait_s > delay_s and hedging.take():
                n_extra += 1
                wait_s = min(wait_s, delay_s + first_s())
            hedging.heard(wait_s, now_s + wait_s)
        waits.append(wait_s)
    waits.sort()
    return waits[10_000], waits[19_800], n_extra / 20_000


def main() -> None:
    """Print the figures of docs/decisions/0023-health.md: `python -m tests.unit.policy.retries.test_hedge`."""
    for at_most in (None, 1.0, 2.0, 5.0, 10.0):
        for seed in (1, 2, 3):
            hedging = None if at_most is None else Hedging(Hedge(Delay(percentile=95.0), at_most), 0.0)
            p50, p99, extra = tail(hedging, seed)
            print(f"at most {at_most} %: p50 {p50:.2f} s  p99 {p99:.2f} s  extra {extra:.1%}")


def test_hedging_takes_the_tail_away_within_its_budget() -> None:
    """p99 falls to less than half for less than 5 % more load."""
    p50, p99, _ = tail(None)
    hedged_p50, hedged_p99, extra = tail(Hedging(Hedge(Delay(percentile=95.0), 5.0), 0.0))
    assert hedged_p99 < p99 / 2
    assert hedged_p50 == pytest.approx(p50, rel=0.05)
    assert 0.0 < extra <= 0.05


if __name__ == "__main__":
    main()
