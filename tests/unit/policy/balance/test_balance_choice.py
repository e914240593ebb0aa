"""What holds of every way to choose a member: whom it may choose, and how it spreads."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.policy.balance.bounded_hash import BoundedHash, Ring
from velox.policy.balance.candidates import Balancer, Candidates, LeastInflight
from velox.policy.balance.peak_ewma import PeakEwma, PeakLatency
from velox.policy.balance.prefix import PrefixAffinity, PrefixTable
from velox.policy.balance.round_robin import RoundRobin

MOST = 12

PROMPTS = [bytes([byte]) * 3000 for byte in range(4)]
ALMOST_1 = 1.0 - 2**-53


def bounded_hash(n: int) -> Balancer:
    return BoundedHash(Ring([f"m{member}" for member in range(n)], [1.0] * n))


def prefix(n: int) -> Balancer:
    return PrefixAffinity(PrefixTable(memoryview(bytearray(8 * 1024)).cast("Q")), range(n))


WAYS: dict[str, Callable[[int], Balancer]] = {
    "round robin": lambda n: RoundRobin(),
    "least in flight": lambda n: LeastInflight(),
    "peak ewma": lambda n: PeakEwma([PeakLatency() for _ in range(n)]),
    "hash": bounded_hash,
    "prefix": prefix,
}

weight_lists = st.lists(st.sampled_from([0.0, 0.0, 0.1, 1.0, 1.0, 3.0]), min_size=1, max_size=MOST)
chances = st.floats(0.0, ALMOST_1)


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(chances, st.sampled_from([b"", b"a", b"b", *PROMPTS]), st.sets(st.integers(0, MOST - 1), max_size=4)),
        max_size=30,
    ),
    weights=weight_lists,
    inflight=st.lists(st.integers(0, 50), min_size=MOST, max_size=MOST),
)
def test_only_who_may_be_chosen_is(
    way: str, steps: list[tuple[float, bytes, set[int]]], weights: list[float], inflight: list[int]
) -> None:
    """Never a member that is out or was tried; None when there is no other, and only then."""
    balancer = WAYS[way](len(weights))
    candidates = Candidates(weights, inflight[: len(weights)])

    for number, (chance, key, tried) in enumerate(steps):
        chosen = balancer.pick(candidates, 1000.0 + number, chance, key, tried)

        may = {member for member, weight in enumerate(weights) if weight and member not in tried}
        assert chosen in may if may else chosen is None
        if chosen is not None:
            balancer.began(chosen, 1000.0 + number)


@pytest.mark.parametrize("way", WAYS)
def test_member_that_comes_back_is_chosen_again(way: str) -> None:
    """Being out leaves no trace in who is chosen once it is over."""
    balancer = WAYS[way](3)
    weights = [1.0, 0.0, 1.0]
    candidates = Candidates(weights, [0, 0, 0])
    rng = random.Random(1)

    def chosen() -> Counter[int | None]:
        keys = [b"%d" % number if way == "hash" else b"" for number in range(3000)]
        return Counter(balancer.pick(candidates, 1000.0, rng.random(), key) for key in keys)

    out = chosen()
    weights[1] = 1.0
    back = chosen()

    assert 1 not in out
    assert 800 <= back[1] <= 1200 or way == "peak ewma"
    assert back[1] > 0


@pytest.mark.parametrize("way", ["round robin", "least in flight", "prefix"])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0, 1.0], [5.0, 1.0, 1.0], [0.05, 1.0]])
def test_requests_that_stay_are_spread_by_weight(way: str, weights: list[float]) -> None:
    """A thousand requests in flight at a time stand as the weights do."""
    balancer = WAYS[way](len(weights))
    inflight = [0] * len(weights)
    rng = random.Random(2)

    for _ in range(1000):
        member = balancer.pick(Candidates(weights, inflight), 1000.0, rng.random())
        assert member is not None
        inflight[member] += 1

    for count, weight in zip(inflight, weights, strict=True):
        assert abs(count - 1000 * weight / sum(weights)) <= 2
