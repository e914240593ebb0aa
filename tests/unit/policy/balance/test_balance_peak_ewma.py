"""The best of a few by latency and load."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.policy.balance.candidates import Candidates
from velox.policy.balance.peak_ewma import DECAY_S, PeakEwma, PeakLatency


def known(*latencies_s: float) -> list[PeakLatency]:
    members = [PeakLatency() for _ in latencies_s]
    for member, latency_s in zip(members, latencies_s, strict=True):
        member.heard(latency_s, 1000.0)
    return members


def test_peak_counts_at_once_and_fades() -> None:
    """One slow answer makes a member slow; a quick one after it hardly changes that, time does."""
    (latency,) = known(0.1)
    latency.heard(2.0, 1001.0)
    assert latency.estimate_s(1001.0) == 2.0

    latency.heard(0.1, 1001.0)
    assert latency.estimate_s(1001.0) == 2.0

    assert latency.estimate_s(1001.0 + DECAY_S) == pytest.approx(2.0 / math.e)
    latency.heard(0.1, 1001.0 + DECAY_S)
    assert latency.estimate_s(1001.0 + DECAY_S) == pytest.approx(0.1 + 1.9 / math.e)


def test_estimate_of_steady_answers_is_their_latency() -> None:
    """The mean of what was heard and what fades is never under the answers themselves."""
    (latency,) = known(0.5)
    for number in range(100):
        latency.heard(0.5, 1000.0 + number)

    assert latency.estimate_s(1099.0) == 0.5


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 60.0)), min_size=1, max_size=50))
def test_estimate_lies_between_nothing_and_the_slowest(heard: list[tuple[float, float]]) -> None:
    """Whatever is heard, whenever."""
    latency = PeakLatency()
    now_s = 1000.0
    for latency_s, pause_s in heard:
        now_s += pause_s
        latency.heard(latency_s, now_s)

        assert latency_s <= latency.estimate_s(now_s) <= max(each for each, _ in heard)


@pytest.mark.parametrize(
    ("latencies_s", "inflight", "weights", "best"),
    [
        ((0.1, 0.2), [0, 0], [1.0, 1.0], 0),
        ((0.1, 0.2), [2, 0], [1.0, 1.0], 1),
        ((0.1, 0.1), [3, 1], [1.0, 1.0], 1),
        ((0.1, 0.1), [3, 1], [3.0, 1.0], 0),
    ],
)
def test_better_of_two_is_by_latency_load_and_weight(
    latencies_s: tuple[float, ...], inflight: list[int], weights: list[float], best: int
) -> None:
    """Latency times load with one more, by weight; whichever was drawn first."""
    balancer = PeakEwma(known(*latencies_s))

    assert {balancer.pick(Candidates(weights, inflight), 1000.0, chance) for chance in (0.1, 0.9)} == {best}


@pytest.mark.parametrize("order", [range(10), range(9, -1, -1)])
def test_best_of_two_pairs_is_chosen(order: range) -> None:
    """Of ten, the best is among them in a third of all cases, one of the better half nearly always."""
    balancer = PeakEwma(known(*[0.1 + 0.1 * rank for rank in order]))
    candidates = Candidates([1.0] * 10, [0] * 10)
    rng = random.Random(1)

    counts = Counter(balancer.pick(candidates, 1000.0, rng.random()) for _ in range(10_000))

    for member, rank in enumerate(order):
        none_better = ((10 - rank) * (9 - rank) / 90) ** 2
        none_as_good = ((9 - rank) * (8 - rank) / 90) ** 2
        assert abs(counts[member] - 10_000 * (none_better - none_as_good)) < 150


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_all_of_a_few_are_compared(n: int) -> None:
    """There is no drawing a pair of slow ones where the best is one of four."""
    balancer = PeakEwma(known(*[0.1 * (n - member) for member in range(n)]))

    for chance in (0.0, 0.3, 0.6, 0.9):
        assert balancer.pick(Candidates([1.0] * n, [0] * n), 1000.0, chance) == n - 1


@pytest.mark.parametrize("out", [range(0), range(5, 10), range(2, 10), range(1, 10)])
def test_members_are_drawn_alike_whoever_is_out(out: range) -> None:
    """Members that are left share the requests, however few they are."""
    weights = [0.0 if member in out else 1.0 for member in range(10)]
    left = weights.count(1.0)
    balancer = PeakEwma(known(*[0.1] * 10))
    rng = random.Random(1)
    inflight = [0] * 10

    for _ in range(1000):
        member = balancer.pick(Candidates(weights, inflight), 1000.0, rng.random())
        assert member is not None
        inflight[member] += 1

    assert all(abs(count - 1000 / left) <= 12 for count, weight in zip(inflight, weights, strict=True) if weight)


def test_unknown_member_is_asked_once_until_it_answers() -> None:
    """Nothing known is worth a question at once, but one: others go elsewhere, whoever else has requests there."""
    members = [*known(0.1), PeakLatency()]
    balancer = PeakEwma(members)
    candidates = Candidates([1.0, 1.0], [0, 7])

    assert balancer.pick(candidates, 1000.0, 0.1) == 1
    balancer.began(1, 1000.0)
    assert balancer.pick(candidates, 1000.1, 0.1) == 0

    balancer.answered(1, 0.01, 1000.2)
    assert members[1].estimate_s(1000.2) == 0.01


def test_stalled_member_is_avoided_before_it_is_heard_of() -> None:
    """Those who wait for it tell how slow it is; no answer is needed."""
    balancer = PeakEwma(known(0.1, 0.2))
    candidates = Candidates([1.0, 1.0], [0, 0])
    assert balancer.pick(candidates, 1000.0, 0.1) == 0

    balancer.began(0, 1000.0)

    assert balancer.pick(candidates, 1000.1, 0.1) == 0
    assert balancer.pick(candidates, 1001.0, 0.1) == 1


def test_member_that_fails_fast_looks_slow() -> None:
    """Else it would draw all requests to it. Each failure makes it worse, up to a minute."""
    members = known(0.1, 3.0)
    balancer = PeakEwma(members)
    balancer.began(0, 1000.0)

    balancer.failed(0, 0.001, 1000.0)
    assert members[0].estimate_s(1000.0) == 3.0

    for _ in range(20):
        balancer.began(0, 1000.0)
        balancer.failed(0, 0.001, 1000.0)
    assert members[0].estimate_s(1000.0) == 60.0


@pytest.mark.parametrize("waited_s", [0.1, 0.9])
def test_who_gave_up_tells_only_that_it_was_slow(waited_s: float) -> None:
    """Longer than the estimate says something, shorter nothing."""
    members = known(0.5)
    before_s = members[0].estimate_s(1005.0)
    balancer = PeakEwma(members)
    balancer.began(0, 1005.0 - waited_s)

    balancer.gave_up(0, waited_s, 1005.0)

    assert members[0].estimate_s(1005.0) == max(before_s, waited_s)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["answered", "failed", "gave_up"]), st.floats(0, 5)), max_size=60)
)
def test_nobody_waits_once_all_have_ended(steps: list[tuple[bool, str, float]]) -> None:
    """However attempts end and overlap, what is left is the estimate."""
    members = [PeakLatency()]
    balancer = PeakEwma(members)
    now_s = 1000.0
    waiting: list[float] = []
    for begins, how, pause_s in steps:
        now_s += pause_s
        if begins or not waiting:
            balancer.began(0, now_s)
            waiting.append(now_s)
        else:
            getattr(balancer, how)(0, now_s - waiting.pop(), now_s)
    for began_s in waiting:
        balancer.answered(0, now_s - began_s, now_s)

    assert members[0].cost_s(now_s) == members[0].estimate_s(now_s)
