"""How many retries there may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.retries.retry import WINDOW_S, RetryBudget


def spent(budget: RetryBudget, now_s: float, most: int = 10_000) -> int:
    """Take what there is."""
    n = 0
    while n < most and budget.take(now_s):
        n += 1
    return n


def test_budget_is_a_part_of_the_requests_of_the_window() -> None:
    """20 % of 100 requests are 20 retries; a window later, none."""
    budget = RetryBudget(20, 0.0)
    for _ in range(100):
        budget.on_request(5.0)
    assert (spent(budget, 5.9), spent(budget, 6.0)) == (20, 0)
    budget.on_request(5.0 + WINDOW_S + 1)
    assert spent(budget, 5.0 + WINDOW_S + 1) == 0, "the retries are forgotten, and the requests too"


@pytest.mark.parametrize(("n_requests", "allowed"), [(4, 0), (5, 1), (9, 1), (10, 2)])
def test_part_of_a_retry_is_none(n_requests: int, allowed: int) -> None:
    """One retry at 20 % needs five requests."""
    budget = RetryBudget(20, 0.0)
    for _ in range(n_requests):
        budget.on_request(1.0)
    assert spent(budget, 1.0) == allowed


def test_spare_retries_come_back_with_time_and_are_not_saved_up() -> None:
    """Ten a second, also after a minute without any."""
    budget = RetryBudget(20, 10.0)
    assert [spent(budget, now_s) for now_s in (100.0, 100.0, 100.5, 101.5, 160.0)] == [10, 0, 5, 10, 10]


def test_share_of_a_worker_may_be_less_than_one_a_second() -> None:
    """Ten a second over forty workers: each may retry once in four seconds."""
    budget = RetryBudget(0, 0.25)
    assert [spent(budget, now_s) for now_s in (50.0, 51.0, 53.0, 54.0, 55.0, 90.0)] == [1, 0, 0, 1, 0, 1]


def test_no_budget_allows_nothing() -> None:
    """VELOX_RETRY_BUDGET=0 and VELOX_RETRY_BUDGET_MIN=0."""
    budget = RetryBudget(0, 0.0)
    for _ in range(1000):
        budget.on_request(1.0)
    assert spent(budget, 1.0) == 0


@given(
    percent=st.integers(0, 100),
    spare_per_s=st.integers(0, 20),
    steps=st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 50), st.integers(0, 50)), max_size=40),
)
def test_retries_never_exceed_their_part_of_the_requests(
    percent: int, spare_per_s: int, steps: list[tuple[float, int, int]]
) -> None:
    """Over any run: at most the percentage of all requests, and the spare ones of the time that has passed."""
    budget, now_s, n_requests, n_retries = RetryBudget(percent, float(spare_per_s)), 1000.0, 0, 0
    for later_s, requests, tries in steps:
        now_s += later_s
        for _ in range(requests):
            budget.on_request(now_s)
        n_requests += requests
        n_retries += sum(budget.take(now_s) for _ in range(tries))
        spare = spare_per_s * (now_s - 1000.0 + 1.0)
        assert n_retries <= n_requests * percent / 100 + spare + 1e-6
