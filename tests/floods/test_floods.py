"""Floods of a real gateway: how they end, what they reach, and that memory is as flat after them as before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.floods.attacker import Target, attack, target
from tests.floods.attacks import ATTACKS, Attack
from tests.h2spec.table import EngineName

MIB = 1 << 20
# What a worker that has done nothing yet takes to do it.
WARMTH = 16 * MIB
FLAT = 4 * MIB


@pytest.fixture(scope="module", params=["ngh2", "h2"])
def attacked(request: pytest.FixtureRequest) -> Iterator[Target]:
    """One gateway for each engine; it takes every flood."""
    name: EngineName = request.param
    with target(name) as at:
        yield at


@pytest.mark.parametrize("flood", ATTACKS, ids=lambda flood: flood.name)
def test_flood_ends_as_wanted_and_leaves_memory_flat(flood: Attack, attacked: Target) -> None:
    """B-45 to B-47, B-50: each connection ends by the right GOAWAY, few bytes come back, honest requests pass after.

    What the allocator keeps of a first round serves the second one, whose peak is no higher.
    """
    first = attack(attacked, flood)
    assert set(first.ends) <= set(flood.ends), first
    assert first.n_calls <= flood.n_calls
    assert first.cost.bytes_ratio < 100
    held = flood.held_bytes * flood.n_connections
    assert first.cost.rss_grown <= WARMTH + held

    second = attack(attacked, flood)
    assert set(second.ends) <= set(flood.ends), second
    assert second.cost.rss_peak - first.cost.rss_peak <= FLAT


def test_no_reply_is_read_that_nobody_takes(attacked: Target) -> None:
    """A megabyte that is there already is not read to its end for a client without a window."""
    (flood,) = [it for it in ATTACKS if "1 MB" in it.name]
    before = attacked.velox.metric('velox_requests_total{class="2xx",reason="ok",route="other"}')
    attack(attacked, flood)
    assert attacked.velox.metric('velox_requests_total{class="2xx",reason="ok",route="other"}') == before
