"""Canary and mirror: which requests, and how many at once."""

from __future__ import annotations

import random

import pytest

from velox.policy.routes.split import CanarySplit, MirrorGate

KEYS = [b"caller-%d" % n for n in range(20_000)]


@pytest.mark.parametrize("percent", [0.0, 1.0, 5.0, 50.0, 100.0])
def test_canary_gets_its_part(percent: float) -> None:
    """Of callers as of requests."""
    split, rng = CanarySplit("chat", percent), random.Random(1)
    assert sum(split.takes(key, 0.0) for key in KEYS) / 200 == pytest.approx(percent, abs=1.2)
    assert sum(split.takes(b"", rng.random()) for _ in range(20_000)) / 200 == pytest.approx(percent, abs=1.2)


def test_caller_always_goes_the_same_way() -> None:
    """Chance has no part in it, and who was there at 5 % is there at 20 %."""
    few, many = CanarySplit("chat", 5.0), CanarySplit("chat", 20.0)
    taken = {key for key in KEYS if few.takes(key, 0.0)}
    assert taken == {key for key in KEYS if few.takes(key, 0.99)}
    assert taken < {key for key in KEYS if many.takes(key, 0.5)}


def test_each_route_has_other_callers() -> None:
    """Nobody is the canary of all."""
    one, other = CanarySplit("chat", 10.0), CanarySplit("embed", 10.0)
    both = sum(one.takes(key, 0.0) and other.takes(key, 0.0) for key in KEYS)
    assert both / 200 == pytest.approx(1.0, abs=0.3)


def test_mirror_copies_its_part() -> None:
    """None at 0 %, all at 100 %."""
    rng = random.Random(1)
    for percent in (0.0, 10.0, 100.0):
        gate = MirrorGate(percent, 1 << 30, 1 << 40)
        assert sum(gate.begin(1, rng.random()) for _ in range(10_000)) / 100 == pytest.approx(percent, abs=1.0)


def test_mirror_has_bounds_and_counts_what_it_drops() -> None:
    """By number and by bytes; each end makes room, and what is not drawn is not dropped."""
    gate = MirrorGate(50.0, 2, 100)
    assert gate.begin(60, 0.0)
    assert not gate.begin(41, 0.0) and gate.n_dropped == 1
    assert not gate.begin(41, 0.9) and gate.n_dropped == 1
    assert gate.begin(40, 0.0)
    assert not gate.begin(0, 0.0) and gate.n_dropped == 2
    gate.end(60)
    assert (gate.n_inflight, gate.n_bytes) == (1, 40)
    assert gate.begin(60, 0.0)
