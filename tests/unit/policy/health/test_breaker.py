"""When an upstream is passed over, and how it comes back (F-27)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.health.breaker import FAULTS, PROBE_EVERY_S, PROBE_PENDING_S, Breaker


def broken(now_s: float = 100.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAULTS):
        breaker.begin(now_s)
        breaker.failed(now_s, now_s)
    assert breaker.is_open
    return breaker


def test_faults_in_a_row_open_it() -> None:
    """One fewer does not, and a success in between begins anew."""
    breaker = Breaker()
    for at in range(FAULTS - 1):
        breaker.failed(at, at)
    assert breaker.allows(9.0)
    breaker.succeeded(9.0)
    for at in range(10, 10 + FAULTS - 1):
        breaker.failed(at, at)
    assert breaker.allows(20.0)
    breaker.failed(20.0, 20.0)
    assert not breaker.allows(20.0)


def test_old_success_tells_nothing_of_now() -> None:
    """A stream that began before the faults ends well while every new request fails."""
    breaker = Breaker()
    for at in range(100, 100 + FAULTS - 1):
        breaker.failed(at, at)
    breaker.succeeded(99.0)
    breaker.failed(110.0, 110.0)
    breaker.succeeded(99.0)
    assert breaker.is_open


def test_reply_that_begins_well_tells_of_now() -> None:
    """One request in a hundred fails at once, the others stream for a minute: nothing is wrong with this upstream."""
    breaker = Breaker()
    for at in range(100, 100 + 10 * FAULTS):
        breaker.failed(at, at)
        breaker.answers()
    assert not breaker.is_open
    breaker = broken(200.0)
    breaker.begin(201.0)
    breaker.answers()
    assert not breaker.is_open


def test_replies_that_are_cut_open_it_though_each_begins_well() -> None:
    """And only a whole one closes it."""
    breaker = Breaker()
    for at in range(100, 100 + FAULTS):
        breaker.begin(at)
        breaker.answers()
        breaker.failed(at, at, cut=True)
    assert breaker.is_open
    breaker.begin(110.0)
    breaker.answers()
    assert breaker.is_open
    breaker.succeeded(110.0)
    assert not breaker.is_open


def test_open_breaker_lets_one_probe_a_second_through() -> None:
    """None at once, then one; while that is under way no other."""
    breaker = broken(100.0)
    assert not breaker.allows(100.0 + PROBE_EVERY_S - 0.01)
    assert breaker.allows(100.0 + PROBE_EVERY_S)
    breaker.begin(101.0)
    assert not breaker.allows(101.0) and not breaker.allows(103.0)
    breaker.failed(101.0, 101.5)
    assert breaker.is_open and not breaker.allows(101.9) and breaker.allows(102.0)


def test_success_of_a_probe_closes_it() -> None:
    """And then everything passes."""
    breaker = broken(100.0)
    breaker.begin(101.0)
    breaker.succeeded(101.0)
    assert not breaker.is_open and breaker.allows(101.0)


def test_probe_that_is_given_up_makes_room_for_the_next() -> None:
    """A client that left must not keep the upstream out for ever, nor one that waits and waits."""
    breaker = broken(100.0)
    breaker.begin(101.0)
    breaker.gave_up(101.0)
    assert not breaker.allows(101.5) and breaker.allows(102.0)
    breaker.begin(102.0)
    assert not breaker.allows(102.0 + PROBE_PENDING_S - 0.01)
    assert breaker.allows(102.0 + PROBE_PENDING_S)


def test_end_of_an_attempt_before_the_probe_is_not_the_probes() -> None:
    """Attempts that began while it was closed end while it is open."""
    breaker = broken(100.0)
    breaker.begin(101.0)
    breaker.gave_up(99.0)
    breaker.failed(99.5, 101.5)
    assert not breaker.allows(102.5), "the probe is still under way"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["succeeded", "failed", "gave_up", "lost"]), st.floats(0.0, 2.0), st.floats(0.0, 2.0)
        ),
        max_size=60,
    )
)
def test_breaker_never_stays_shut(steps: list[tuple[str, float, float]]) -> None:
    """However attempts end or are lost: PROBE_PENDING_S later one more is allowed."""
    breaker, now_s = Breaker(), 100.0
    for how, wait_s, took_s in steps:
        now_s += wait_s
        if not breaker.allows(now_s):
            continue
        breaker.begin(now_s)
        began_s, now_s = now_s, now_s + took_s
        if how == "failed":
            breaker.failed(began_s, now_s)
        elif how == "succeeded":
            breaker.succeeded(began_s)
            assert not breaker.is_open
        elif how == "gave_up":
            breaker.gave_up(began_s)
    assert breaker.allows(now_s + PROBE_PENDING_S)


def test_probes_are_at_most_one_a_second() -> None:
    """Over a minute of an upstream that is out, with a request every 10 ms."""
    breaker, n_probes = broken(100.0), 0
    for tick in range(6000):
        now_s = 100.0 + tick / 100
        if breaker.allows(now_s):
            n_probes += 1
            breaker.begin(now_s)
            breaker.failed(now_s, now_s)
    assert n_probes == pytest.approx(59, abs=1)


def test_requests_that_come_though_none_is_allowed_close_it_when_they_are_answered() -> None:
    """All upstreams are out and one is back: a request every 0.1 s, each of which takes 2 s."""
    breaker = broken(100.0)
    for tick in range(50):
        now_s = 100.1 + tick / 10
        breaker.begin(now_s)
        if tick >= 20:
            breaker.succeeded(now_s - 2.0)
    assert not breaker.is_open
