"""Which replies are tried again, and after how long."""

from __future__ import annotations

import email.utils
from dataclasses import replace

import pytest

from velox.heads import Headers
from velox.policy.retries.retry import BACKOFF_FIRST_S, RetryRules, retry_after_s

RULES = RetryRules(1, frozenset({408, 429, 500, 503}), 10.0)
NOON = 1_700_000_000.0


def date(unix_s: float) -> bytes:
    return email.utils.formatdate(unix_s, usegmt=True).encode()


@pytest.mark.parametrize(
    ("headers", "wanted_s"),
    [
        ([], None),
        ([(b"retry-after", b"2")], 2.0),
        ([(b"retry-after", b"0")], 0.0),
        ([(b"retry-after", b"1.5")], 1.5),
        ([(b"retry-after-ms", b"250")], 0.25),
        ([(b"retry-after", b"9"), (b"retry-after-ms", b"250")], 0.25),
        ([(b"retry-after-ms", b"soon"), (b"retry-after", b"9")], 9.0),
        ([(b"retry-after", date(NOON + 7))], 7.0),
        ([(b"retry-after", date(NOON - 7))], 0.0),
        # The upstream's clock is an hour ahead: its own Date tells.
        ([(b"date", date(NOON + 3600)), (b"retry-after", date(NOON + 3603))], 3.0),
        ([(b"retry-after", b"Sunday, 06-Nov-94 08:49:37 GMT")], 0.0),
        ([(b"retry-after", b"Sun Nov  6 08:49:37 1994")], 0.0),
        *(
            ([(b"retry-after", value)], None)
            for value in (b"", b"-1", b"+1", b"1e3", b"nan", b"inf", b"soon", b"9" * 30, b"\xff", b"99 Xyz 0000 99:99")
        ),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: Headers, wanted_s: float | None) -> None:
    """Milliseconds, seconds, a date; anything else says nothing."""
    assert retry_after_s(headers, NOON) == wanted_s


@pytest.mark.parametrize(
    ("status", "says", "again"),
    [
        (429, b"", True),
        (500, b"", True),
        (501, b"", False),
        (400, b"", False),
        (500, b"false", False),
        (429, b"false", False),
        (500, b"true", True),
        (501, b"true", True),
        (529, b"true", True),
        (400, b"true", False),
        (409, b"true", False),
        (401, b"true", False),
    ],
)
def test_upstream_has_a_word_in_whether_it_is_tried_again(status: int, says: bytes, again: bool) -> None:
    """The other way round: `x-should-retry` of an upstream is obeyed, but for a 4xx that is final."""
    assert RULES.covers(status, [(b"x-should-retry", says)] if says else []) is again


def test_retry_after_within_the_limit_is_waited_for_exactly() -> None:
    """At the limit yes, above it no: the client gets the reply and decides itself."""
    waits = [RULES.wait_s([(b"retry-after-ms", b"%d" % ms)], 0, NOON, 0.9) for ms in (2000, 10_000, 10_001)]
    assert waits == [2.0, 10.0, None]


def test_wait_without_a_word_of_the_upstream_doubles_and_is_jittered() -> None:
    """0.25 s, then twice that, each half as much more or less."""
    assert RULES.wait_s([], 0, NOON, 0.0) == BACKOFF_FIRST_S * 0.5
    assert RULES.wait_s([], 0, NOON, 0.5) == BACKOFF_FIRST_S
    assert RULES.wait_s([], 2, NOON, 0.5) == BACKOFF_FIRST_S * 4


@pytest.mark.parametrize(
    ("status", "field", "is_single", "wait_s"),
    [
        (429, (b"retry-after", b"2"), True, 2.0),
        (429, (b"retry-after-ms", b"300"), False, 0.3),  # what it was before says nothing of a rate limit
        (429, (b"retry-after", b"4"), True, None),  # longer than anybody should wait who could be answered now
        (429, None, True, None),  # nobody knows how long
        (500, None, True, BACKOFF_FIRST_S),
        (500, (b"retry-after", b"1"), True, 1.0),
        (500, (b"retry-after", b"4"), True, None),
        (500, None, False, None),  # not the first in a row
        (502, None, True, None),
        (503, (b"retry-after", b"1"), True, None),
        (0, None, True, None),  # no reply at all
    ],
)
def test_same_upstream_goes_before_a_worse_one_only_where_it_is_soon_over(
    status: int, field: tuple[bytes, bytes] | None, is_single: bool, wait_s: float | None
) -> None:
    """S01, S03: a short Retry-After, a single 500."""
    rules = replace(RULES, before_fallback_s=3.0)
    headers = [] if field is None else [field]
    assert rules.wait_before_fallback_s(status, headers, NOON, 0.5, is_single=is_single) == wait_s


def test_worse_one_is_asked_at_once_where_no_wait_is_set() -> None:
    """VELOX_RETRY_BEFORE_FALLBACK=0: as before."""
    rules = replace(RULES, before_fallback_s=0.0)
    assert rules.wait_before_fallback_s(500, [], NOON, 0.5, is_single=True) is None
