"""Consistent hashing: who has a key, what moves when members come and go, and how uneven it may get."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from velox.policy.balance.bounded_hash import BoundedHash, Ring
from velox.policy.balance.candidates import Candidates, load_per_weight

KEYS = [f"user-{number}".encode() for number in range(4000)]

names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8, unique=True)


def owners(members: dict[str, float], keys: list[bytes] = KEYS) -> list[str]:
    ring = Ring(list(members), list(members.values()))
    order = list(members)
    return [order[ring.owner(key)] for key in keys]


def test_key_has_the_same_member_everywhere() -> None:
    """Workers and replicas agree, whatever the order of the members; a later version, too."""
    before = owners({"a": 1.0, "b": 1.0, "c": 1.0}, KEYS[:12])

    assert before == owners({"c": 1.0, "a": 1.0, "b": 1.0}, KEYS[:12])
    assert "".join(before) == "ccbacbbccbaa"


@pytest.mark.slow
@settings(deadline=None)
@given(members=names, new=st.text(min_size=1, max_size=8))
def test_member_that_comes_takes_keys_and_moves_no_other(members: list[str], new: str) -> None:
    """And so does one that goes, for that is the same read backwards."""
    assume(new not in members)
    before = owners(dict.fromkeys(members, 1.0))
    after = owners(dict.fromkeys([new, *members], 1.0))

    moved = [now for old, now in zip(before, after, strict=True) if old != now]

    assert set(moved) <= {new}
    assert 0.5 < len(moved) / (len(KEYS) / (len(members) + 1)) < 1.6


@pytest.mark.slow
@settings(deadline=None)
@given(members=names, weight=st.floats(1.5, 5.0))
def test_member_of_more_weight_takes_keys_and_moves_no_other(members: list[str], weight: float) -> None:
    """Its old keys stay."""
    before = owners(dict.fromkeys(members, 1.0))
    after = owners({name: weight if name == members[0] else 1.0 for name in members})

    assert {now for old, now in zip(before, after, strict=True) if old != now} <= {members[0]}


@pytest.mark.slow
@pytest.mark.parametrize("weights", [[1.0] * 16, [1.0, 2.0, 4.0], [100.0, 300.0], [1000.0] * 100])
def test_keys_are_spread_by_weight(weights: list[float]) -> None:
    """Within the few per cent that points at random leave; large weights do not need large memory."""
    ring = Ring([f"upstream-{member}" for member in range(len(weights))], weights)
    keys = [f"{number}".encode() for number in range(40_000)]

    counts = Counter(ring.owner(key) for key in keys)

    for member, weight in enumerate(weights):
        assert 0.7 < counts[member] / (len(keys) * weight / sum(weights)) < 1.35
    n_points = int(repr(ring).split()[-2])
    assert n_points <= 65_536 + len(weights)


@settings(deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 0.1, 1.0, 1.0, 4.0]), min_size=1, max_size=10),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=200),
    factor=st.sampled_from([1.0, 1.25, 2.0]),
    spare=st.sampled_from([0.0, 2.0, 8.0]),
)
def test_bound_is_never_exceeded(
    weights: list[float], steps: list[tuple[bool, int]], factor: float, spare: float
) -> None:
    """Few keys, many requests: no member gets one beyond the bound that the paper has."""
    n = len(weights)
    balancer = BoundedHash(Ring([f"m{member}" for member in range(n)], [1.0] * n), factor=factor, spare=spare)
    inflight = [0] * n
    order: list[int] = []

    for begins, key in steps:
        if not begins and order:
            inflight[order.pop(0)] -= 1
            continue
        member = balancer.pick(Candidates(weights, inflight), 0.0, 0.5, b"%d" % key)
        if member is None:
            assert not any(weights)
            return
        inflight[member] += 1
        order.append(member)
        n_may = sum(weight > 0 for weight in weights)
        share = weights[member] / sum(weights)
        assert inflight[member] <= math.ceil(max(factor * sum(inflight), spare * n_may) * share + 1e-9)


@pytest.mark.parametrize(
    ("weights", "inflight", "extra", "bound"),
    [
        ([1.0, 1.0], [9, 30], [0.0, 0.0], 1.5 * 40 / 2),
        ([1.0, 3.0], [9, 30], [8.0, 2.0], 1.5 * 50 / 4),
        ([1.0, 0.0, 3.0], [9, 500, 30], [8.0, 500.0, 2.0], 1.5 * 50 / 4),
        ([1.0, 0.0, 3.0], [0, 500, 1], [0.0, 0.0, 0.0], 8 * 2 / 4),
        ([1.0, 1.0], [0, 1], [0.0, 0.0], 8),
        ([0.0, 0.0], [0, 1], [0.0, 0.0], 0),
        ([], [], [], 0),
    ],
)
def test_bound_counts_those_that_may_be_chosen(
    weights: list[float], inflight: list[int], extra: list[float], bound: float
) -> None:
    """All their load, from here and elsewhere, and the request itself; or the spare room of each."""
    assert load_per_weight(Candidates(weights, inflight, extra), weights, 1.5, 8.0) == bound


def test_key_stays_while_its_member_has_room_and_overflows_to_the_same_one() -> None:
    """Affinity is kept up to the bound; beyond it there is a second home, not a random one."""
    ring = Ring(["a", "b", "c", "d"], [1.0] * 4)
    balancer = BoundedHash(ring)
    inflight = [0, 0, 0, 0]
    candidates = Candidates([1.0] * 4, inflight)
    home = ring.owner(b"alice")

    for _ in range(8):
        assert balancer.pick(candidates, 0.0, 0.5, b"alice") == home
        inflight[home] += 1

    second = {balancer.pick(candidates, 0.0, chance, b"alice") for chance in (0.0, 0.3, 0.6, 0.9)}
    assert len(second) == 1
    assert home not in second


def test_keys_of_a_member_that_is_out_are_spread_and_come_back() -> None:
    """Not all to one neighbour; and the keys of the others stay where they are."""
    n = 5
    balancer = BoundedHash(Ring([f"m{member}" for member in range(n)], [1.0] * n))
    weights = [1.0] * n
    candidates = Candidates(weights, [0] * n)
    before = [balancer.pick(candidates, 0.0, 0.5, key) for key in KEYS]
    weights[2] = 0.0

    while_out = [balancer.pick(candidates, 0.0, 0.5, key) for key in KEYS]

    moved = Counter(now for old, now in zip(before, while_out, strict=True) if old != now)
    assert sum(moved.values()) == before.count(2)
    assert set(moved) == {0, 1, 3, 4}
    weights[2] = 1.0
    assert [balancer.pick(candidates, 0.0, 0.5, key) for key in KEYS] == before


def test_request_without_a_key_goes_to_the_least_loaded() -> None:
    """Nothing keeps it anywhere."""
    balancer = BoundedHash(Ring(["a", "b"], [1.0] * 2))

    assert balancer.pick(Candidates([1.0, 1.0], [3, 2]), 0.0, 0.5) == 1


def test_many_keys_at_once_stay_within_the_bound_of_the_mean() -> None:
    """A thousand requests of skewed keys: the busiest has at most a quarter more than the mean."""
    n = 10
    balancer = BoundedHash(Ring([f"m{member}" for member in range(n)], [1.0] * n))
    inflight = [0] * n
    rng = random.Random(1)

    for _ in range(1000):
        key = b"%d" % int(rng.paretovariate(0.7))
        member = balancer.pick(Candidates([1.0] * n, inflight), 0.0, rng.random(), key)
        assert member is not None
        inflight[member] += 1

    assert max(inflight) <= 125
