"""A body may be silent for a while and slow for a while, and neither for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from velox.policy.pace import Pace, PaceRules

RULES = PaceRules(idle_s=15.0, rate=1024)


def test_silence_ends_a_body_whatever_came_before() -> None:
    """A megabyte at once buys no more silence than anything else."""
    pace = Pace(RULES)

    assert pace.begin(100.0) == 115.0
    assert pace.came(2**20, 101.0) == 116.0
    assert not pace.is_trickle(116.0 - 0.01)


def test_trickle_is_over_when_its_time_in_hand_is() -> None:
    """A byte a second is never silent; 15 s in hand are spent after 15 s all the same."""
    pace, now_s = Pace(RULES), 100.0
    deadline_s = pace.begin(now_s)
    while now_s < deadline_s:
        now_s += 1.0
        deadline_s = pace.came(1, now_s)

    assert 115.0 <= now_s < 117.0
    assert pace.is_trickle(now_s)


def test_body_at_just_the_rate_goes_on_and_a_little_below_it_ends() -> None:
    """1 KiB a second passes for an hour; one byte less a second has spent its 15 s after 4.3 hours."""
    for rate, passes in ((1024, True), (1000, False)):
        pace, now_s = Pace(RULES), 0.0
        deadline_s = pace.begin(now_s)
        while now_s < deadline_s and now_s < 3600.0:
            now_s += 1.0
            deadline_s = pace.came(rate, now_s)
        assert (now_s >= 3600.0) is passes, rate


def test_without_a_rate_only_silence_counts() -> None:
    """VELOX_CLIENT_MIN_RATE=0."""
    pace = Pace(PaceRules(idle_s=15.0, rate=0))
    pace.begin(0.0)

    assert pace.came(1, 1000.0) == 1015.0
    assert not pace.is_trickle(1015.0)


def test_short_silence_is_allowed_for_as_long_as_ten_seconds_are_in_hand() -> None:
    """The rate counts after 10 s, also where a silence may be shorter."""
    rules = PaceRules(idle_s=0.5, rate=1024)

    assert rules.in_hand_s == 10.0
    pace = Pace(rules)
    pace.begin(0.0)
    assert pace.came(1, 0.4) == 0.9


@given(st.lists(st.tuples(st.floats(0.0, 14.0), st.integers(1, 4096)), max_size=60))
def test_no_body_lasts_longer_than_its_bytes_pay_for(pieces: list[tuple[float, int]]) -> None:
    """However it is cut: time spent <= 15 s in hand + bytes / rate, and one more silence at the end."""
    pace, now_s, n_bytes = Pace(RULES), 0.0, 0
    deadline_s = pace.begin(now_s)
    for wait_s, size in pieces:
        if now_s + wait_s >= deadline_s:
            break
        now_s += wait_s
        n_bytes += size
        deadline_s = pace.came(size, now_s)

    assert deadline_s <= 15.0 + n_bytes / 1024 + 1e-6
    assert deadline_s <= now_s + 15.0
