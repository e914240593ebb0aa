"""A server's own numbers: what they add to what is known here."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velox.policy.balance.scraped import ScrapedLoad


def scraped(running: float, waiting: float, cache_usage: float = 0.0, inflight: int = 0) -> ScrapedLoad:
    load = ScrapedLoad(15.0)
    load.told(running, waiting, cache_usage, inflight, 1000.0)
    return load


@pytest.mark.parametrize(
    ("running", "waiting", "inflight", "extra"),
    [(0, 0, 0, 0), (4, 0, 4, 0), (4, 0, 9, 0), (10, 0, 4, 6), (4, 3, 7, 3), (10, 5, 3, 17)],
)
def test_extra_is_what_was_not_sent_from_here_and_who_waits(
    running: int, waiting: int, inflight: int, extra: int
) -> None:
    """Requests of others count once, those in the server's line once more."""
    assert scraped(running, waiting, inflight=inflight).extra(1001.0) == extra


@pytest.mark.parametrize(("usage", "headroom"), [(0.0, 1.0), (0.8, 1.0), (0.9, 0.5), (0.99, 0.1), (1.0, 0.1)])
def test_full_cache_lowers_the_weight(usage: float, headroom: float) -> None:
    """From 80 % on, and never to nothing: that would be to be out."""
    assert scraped(1, 0, usage).headroom(1001.0) == pytest.approx(headroom)


@pytest.mark.parametrize("now_s", [1015.0, 2000.0])
def test_old_scrape_says_nothing(now_s: float) -> None:
    """A server whose numbers can't be asked for is one without numbers."""
    load = scraped(10, 5, 1.0)
    assert load.extra(1014.9) > 0

    assert (load.extra(now_s), load.headroom(now_s)) == (0.0, 1.0)


def test_member_that_was_never_scraped_has_no_load_of_its_own() -> None:
    """At the start of the clock, too."""
    load = ScrapedLoad(15.0)

    assert (load.extra(0.0), load.headroom(0.0)) == (0.0, 1.0)


@settings(deadline=None)
@given(numbers=st.tuples(*[st.floats()] * 3), inflight=st.integers(0, 1000))
def test_whatever_a_server_says_is_a_load(numbers: tuple[float, float, float], inflight: int) -> None:
    """It is text from a network: negative, endless and no numbers at all make no harm."""
    load = scraped(*numbers, inflight)

    assert 0.0 <= load.extra(1001.0) < math.inf
    assert 0.1 <= load.headroom(1001.0) <= 1.0
