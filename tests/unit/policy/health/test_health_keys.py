"""Several keys of an upstream: rotated by what is left, rested as told, put out when refused."""

from __future__ import annotations

import random

import pytest

from velox.heads import Headers
from velox.policy.health.keys import Keys, cooldown_of, quota_of

DAY_S = 86_400.0


def left(requests: int, tokens: int, *, limit: int = 1000, reset: bytes = b"60s") -> Headers:
    return [
        (b"x-ratelimit-limit-requests", b"%d" % limit),
        (b"x-ratelimit-remaining-requests", b"%d" % requests),
        (b"x-ratelimit-reset-requests", reset),
        (b"x-ratelimit-limit-tokens", b"100000"),
        (b"x-ratelimit-remaining-tokens", b"%d" % tokens),
        (b"x-ratelimit-reset-tokens", reset),
    ]


def told(keys: Keys, key: int, headers: Headers, now_s: float, status: int = 200) -> None:
    keys.begin(key, now_s)
    keys.answered(key, status, headers, now_s, now_s, 0.0)


def shares(keys: Keys, n: int, now_s: float) -> list[float]:
    rng = random.Random(1)
    picks = [keys.pick(now_s, rng.random()) for _ in range(4000)]
    return [picks.count(key) / 4000 for key in range(n)]


def test_keys_are_used_alike_while_nothing_is_known() -> None:
    """And one of which nothing is known as much as the best."""
    keys = Keys(3)
    assert shares(keys, 3, 0.0) == pytest.approx([1 / 3] * 3, abs=0.03)


def test_keys_are_rotated_by_what_is_left() -> None:
    """The scarcer unit decides: 900 requests but few tokens are few."""
    keys = Keys(3)
    told(keys, 0, left(900, 80_000), 0.0)
    told(keys, 1, left(300, 80_000), 0.0)
    told(keys, 2, left(900, 8_000), 0.0)
    assert shares(keys, 3, 0.0) == pytest.approx([1 / 1.433, 0.333 / 1.433, 0.1 / 1.433], abs=0.03)


def test_key_that_is_put_out_and_is_back_is_told_once() -> None:
    """Not each refusal, and no 429: that one only rests."""
    found: list[tuple[int, bool]] = []
    keys = Keys(2, on_out=lambda key, is_out: found.append((key, is_out)))
    told(keys, 0, [], 0.0, 429)
    told(keys, 1, [], 0.0, 401)
    told(keys, 1, [], 1.0, 401)
    assert found == [(1, True)]
    told(keys, 1, [], 400.0)
    told(keys, 1, [], 401.0)
    assert found == [(1, True), (1, False)]


@pytest.mark.slow
def test_what_is_left_grows_until_the_reset_and_own_requests_are_taken_off() -> None:
    """Half of the way to the reset half of what was missing is back."""
    keys = Keys(2)
    told(keys, 0, left(1000, 100_000), 0.0)
    told(keys, 1, left(0, 100_000), 0.0)
    assert shares(keys, 2, 0.0)[1] < 0.01
    assert shares(keys, 2, 30.0)[1] == pytest.approx(1 / 3, abs=0.03)
    assert shares(keys, 2, 60.0)[1] == pytest.approx(1 / 2, abs=0.03)
    for _ in range(750):
        keys.begin(0, 0.0)
    assert shares(keys, 2, 30.0)[1] == pytest.approx(500 / 750, abs=0.03)


@pytest.mark.parametrize(
    ("headers", "cooldown_s"),
    [
        ([(b"retry-after-ms", b"1500")], 1.5),
        ([(b"retry-after", b"7")], 7.0),
        ([(b"retry-after", b"2"), *left(0, 5, reset=b"6m0s")], 2.0),
        (left(0, 500, reset=b"120ms"), 0.12),
        ([(b"x-ratelimit-remaining", b"0"), (b"x-ratelimit-reset", b"20")], 20.0),
    ],
)
def test_refused_key_rests_for_exactly_as_long_as_told(headers: Headers, cooldown_s: float) -> None:
    """Not a moment longer; the others are used."""
    keys = Keys(2)
    told(keys, 0, headers, 100.0, 429)
    assert shares(keys, 2, 100.0) == [0.0, 1.0]
    assert keys.cooldown_left_s(100.0) == pytest.approx(cooldown_s)
    assert set(range(2)) > {keys.pick(99.999 + cooldown_s, at / 10) for at in range(10)}
    assert keys.pick(100.001 + cooldown_s, 0.0, {1}) == 0


def test_refused_key_that_is_not_told_rests_longer_each_time() -> None:
    """1 s, 2, 4; and 1 again after a good answer. Those under way together are one refusal."""
    keys, now_s, rests = Keys(1), 100.0, []
    for refused in (True, True, True, False, True):
        if not refused:
            told(keys, 0, [], now_s)
            now_s += 0.1
            continue
        for _ in range(3):
            told(keys, 0, [], now_s, 429)
        cooldown_s = keys.cooldown_left_s(now_s)
        assert cooldown_s is not None
        rests.append(cooldown_s)
        now_s += cooldown_s
    assert rests == pytest.approx([1.0, 2.0, 4.0, 1.0])


def test_key_that_is_refused_inside_replies_that_begin_well_rests_longer_each_time() -> None:
    """As streams whose first event is a 429: their heads do not tell that the key may be used again."""
    keys, now_s, rests = Keys(1), 100.0, []
    for _ in range(4):
        told(keys, 0, [], now_s)
        keys.answered(0, 429, [], now_s, now_s, 0.0)
        cooldown_s = keys.cooldown_left_s(now_s)
        assert cooldown_s is not None
        rests.append(cooldown_s)
        now_s += cooldown_s

    assert rests == pytest.approx([1.0, 2.0, 4.0, 8.0])


def test_key_that_all_rest_or_were_tried_is_none() -> None:
    """The caller then goes elsewhere, or says how long it takes."""
    keys = Keys(2)
    told(keys, 0, [(b"retry-after", b"9")], 0.0, 429)
    assert keys.pick(0.0, 0.5, {1}) is None
    told(keys, 1, [(b"retry-after", b"5")], 0.0, 429)
    assert keys.pick(0.0, 0.5) is None and not keys.is_usable(0.0)
    assert keys.cooldown_left_s(1.0) == pytest.approx(4.0)
    assert keys.n_resting(1.0) == 2 and keys.n_out() == 0


def test_key_that_is_refused_is_out_and_asked_again_seldom() -> None:
    """401 at once; a probe after 10 s, then 20; its success brings it back."""
    keys = Keys(2)
    told(keys, 0, [], 0.0, 401)
    assert shares(keys, 2, 5.0) == [0.0, 1.0] and keys.n_out() == 1
    assert keys.pick(10.0, 0.0) == 0
    told(keys, 0, [], 10.0, 401)
    assert keys.pick(29.9, 0.0) == 1
    assert keys.pick(30.0, 0.0) == 0
    keys.begin(0, 30.0)
    assert keys.pick(30.0, 0.0) == 1, "one at a time"
    keys.answered(0, 200, [], 30.0, 31.0, 0.0)
    assert keys.pick(31.0, 0.0) == 0 and keys.n_out() == 0


def test_forbidden_is_about_the_key_only_in_a_row() -> None:
    """One may be about a model."""
    keys = Keys(2)
    told(keys, 0, [], 0.0, 403)
    told(keys, 0, [], 0.0, 403)
    assert keys.n_out() == 0
    told(keys, 0, [], 0.0, 200)
    for _ in range(3):
        told(keys, 0, [], 1.0, 403)
    assert keys.n_out() == 1


@pytest.mark.parametrize("status", [400, 404, 422, 500, 502, 503])
def test_what_is_not_about_the_key_leaves_it(status: int) -> None:
    """However often."""
    keys = Keys(1)
    for _ in range(20):
        told(keys, 0, [], 0.0, status)
    assert keys.pick(0.0, 0.5) == 0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1s", 1.0),
        (b"6m0s", 360.0),
        (b"120ms", 0.12),
        (b"1h2m3.5s", 3723.5),
        (b"1d", DAY_S),
        (b"30", 30.0),
        (b"0", 0.0),
        (b"1700000060", 60.0),
        (b"1700000060000", 60.0),
        (b"1600000000", 0.0),
        (b"", None),
        (b"soon", None),
        (b"-5", None),
        (b"1e9", None),
        (b"9" * 400, None),
    ],
)
def test_reset_is_read_in_all_its_forms(value: bytes, seconds: float | None) -> None:
    """What is none is not guessed."""
    found = quota_of([(b"x-ratelimit-reset-requests", value)], 1_700_000_000.0)
    assert found.requests.reset_s == (None if seconds is None else pytest.approx(seconds))


def test_rest_is_of_what_is_used_up() -> None:
    """Tokens are there, requests are not: the reset of the tokens does not matter."""
    headers = [
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"x-ratelimit-reset-requests", b"2s"),
        (b"x-ratelimit-remaining-tokens", b"5000"),
        (b"x-ratelimit-reset-tokens", b"1h0m0s"),
    ]
    assert cooldown_of(headers, 0.0) == 2.0
    headers[0] = (b"x-ratelimit-remaining-requests", b"3")
    assert cooldown_of(headers, 0.0) == 2.0, "neither is: the first that is whole again"
    headers[0] = (b"x-ratelimit-remaining-requests", b"0")
    headers[2] = (b"x-ratelimit-remaining-tokens", b"0")
    assert cooldown_of(headers, 0.0) == 3600.0, "both are: the last that is whole again"
    assert cooldown_of([], 0.0) is None
    assert cooldown_of([(b"retry-after", b"999999999")], 0.0) == DAY_S
