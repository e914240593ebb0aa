"""Least in flight: the least by weight, and fair among equals."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from velox.policy.balance.candidates import Candidates, LeastInflight


def pick(candidates: Candidates, chance: float = 0.0) -> int | None:
    return LeastInflight().pick(candidates, 0.0, chance)


@settings(deadline=None)
@given(
    facts=st.lists(
        st.tuples(st.sampled_from([0.1, 1.0, 2.0]), st.integers(0, 20), st.integers(0, 5)), min_size=1, max_size=16
    ),
    chance=st.floats(0.0, 0.999),
)
def test_nobody_has_less(facts: list[tuple[float, int, int]], chance: float) -> None:
    """With one more request no other member would have a lower load for its weight."""
    weights, inflight, extra = ([*column] for column in zip(*facts, strict=True))

    chosen = pick(Candidates(weights, inflight, extra), chance)

    assert chosen is not None
    loads = [(own + more + 1) / weight for weight, own, more in facts]
    assert loads[chosen] == min(loads)


def test_equals_are_chosen_equally() -> None:
    """Also those behind one that is out or busy: no member has the turns of its neighbour."""
    candidates = Candidates([1.0, 0.0, 1.0, 1.0, 1.0], [0, 0, 3, 0, 0])
    rng = random.Random(1)

    counts = Counter(pick(candidates, rng.random()) for _ in range(6000))

    assert set(counts) == {0, 3, 4}
    assert all(1800 <= count <= 2200 for count in counts.values())


def test_idle_member_of_more_weight_goes_first() -> None:
    """Of two idle ones that with more room."""
    assert pick(Candidates([1.0, 3.0], [0, 0])) == 1
    assert pick(Candidates([1.0, 3.0], [0, 2])) in (0, 1)
    assert pick(Candidates([1.0, 3.0], [0, 3])) == 0


def test_load_from_elsewhere_counts() -> None:
    """What a scrape says is on top of what was sent from here."""
    assert pick(Candidates([1.0, 1.0], [1, 0], [0.0, 5.0])) == 0
