"""Weighted round robin: everybody's share, at any time, and never in bursts."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from velox.policy.balance.candidates import Candidates
from velox.policy.balance.round_robin import RoundRobin


def turns(balancer: RoundRobin, weights: list[float], n: int, random: float = 0.0) -> list[int]:
    members = [balancer.pick(Candidates(weights, [0] * len(weights)), 0.0, random) for _ in range(n)]
    return [member for member in members if member is not None]


def test_turns_are_as_nginx_has_them() -> None:
    """Weights 5, 1, 1 give a a b a c a a."""
    assert turns(RoundRobin(), [5.0, 1.0, 1.0], 14) == [0, 0, 1, 0, 2, 0, 0] * 2


def test_equal_weights_go_round() -> None:
    """Each once before any twice."""
    assert turns(RoundRobin(), [1.0] * 3, 6) == [0, 1, 2, 0, 1, 2]


@settings(deadline=None)
@given(weights=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=16))
def test_share_is_kept_at_any_time(weights: list[float]) -> None:
    """After any number of turns nobody has a turn more than its share, and hardly less."""
    balancer = RoundRobin()
    counts = [0] * len(weights)

    for n, member in enumerate(turns(balancer, weights, 200), 1):
        counts[member] += 1
        for count, weight in zip(counts, weights, strict=True):
            share = n * weight / sum(weights)
            assert share - 1 - math.log(len(weights)) < count < share + 1 + 1e-6


def test_workers_begin_at_different_places() -> None:
    """A burst that is one request for each worker does not go to the first member alone."""
    first = [turns(RoundRobin(), [1.0] * 4, 1, random)[0] for random in (0.0, 0.3, 0.6, 0.9)]

    assert first == [0, 1, 2, 3]


def test_weight_that_grows_is_followed() -> None:
    """Slow start: the share is by the weight of now."""
    balancer = RoundRobin()
    weights = [1.0, 0.1]

    slow = turns(balancer, weights, 110)
    weights[1] = 1.0
    full = turns(balancer, weights, 100)

    assert slow.count(1) == 10
    assert 49 <= full.count(1) <= 51


def test_member_that_was_out_has_nothing_saved() -> None:
    """After a long absence it gets its turn, not all turns that it missed."""
    balancer = RoundRobin()
    weights = [1.0, 1.0]
    turns(balancer, weights, 3)
    weights[1] = 0.0
    turns(balancer, weights, 1000)
    weights[1] = 1.0

    assert 4 <= turns(balancer, weights, 10).count(1) <= 6


def test_even_weights_go_round_without_a_look_at_all() -> None:
    """As turns by weight would, from anywhere on; others were chosen by weight in between, and nobody is left out."""
    balancer = RoundRobin()
    even = Candidates([1.0] * 4, [0] * 4, is_even=True)

    first = [balancer.pick(even, 0.0, 0.6) for _ in range(6)]
    balancer.pick(even, 0.0, 0.6, tried={0})
    balancer.pick(Candidates([1.0, 0.0, 1.0, 1.0], [0] * 4), 0.0, 0.6)

    assert first == [2, 3, 0, 1, 2, 3]
    assert [balancer.pick(even, 0.0, 0.6) for _ in range(4)] == [0, 1, 2, 3]


def test_even_weights_do_not_bring_back_who_was_tried() -> None:
    """Whoever was tried is passed over, however even they are."""
    even = Candidates([1.0] * 3, [0] * 3, is_even=True)
    balancer = RoundRobin()

    assert {balancer.pick(even, 0.0, 0.0, tried={1}) for _ in range(9)} == {0, 2}
