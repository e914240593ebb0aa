"""What a reply's headers tell of a key: how much is left of its quota, and how long it is to rest.

Knows: x-ratelimit-* as OpenAI and those who follow it write them, and what stands for what. Does not know: keys, or a
clock.

    x-ratelimit-limit-requests: 500          x-ratelimit-limit-tokens: 200000
    x-ratelimit-remaining-requests: 499      x-ratelimit-remaining-tokens: 199000
    x-ratelimit-reset-requests: 120ms        x-ratelimit-reset-tokens: 6m0s

A reset is the time until all of it is there again: a duration; a number of seconds; or, by others, a Unix time in
seconds or milliseconds. The same without a unit (x-ratelimit-remaining) tells of requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from velox.policy.retry import retry_after_s
from velox.types import Headers

__all__ = ["NO_QUOTA", "Told", "UnitTold", "quota_told", "rest_told_s"]

# A limit of a day is the longest there is; what asks for more is a mistake, and nobody would ever find out.
_MOST_REST_S: Final = 86_400.0
_PREFIX: Final = b"x-ratelimit-"
_DURATION: Final = re.compile(
    rb"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9})ms)?"
)
_NUMBER: Final = re.compile(rb"\d{1,15}(\.\d{1,9})?")
_UNIX_S: Final = 1e9  # a number above is a time of day, not a duration: 2001 on one side, 31 years on the other
_UNIX_MS: Final = 1e12


@dataclass(slots=True)
class UnitTold:
    """What was told of one unit. None: nothing. reset_s: seconds until all is there again."""

    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of a key."""

    requests: UnitTold
    tokens: UnitTold


NO_QUOTA: Final = Told(UnitTold(), UnitTold())


def quota_told(headers: Headers, unix_s: float) -> Told:
    """Read the quota from a reply. Of a field that comes twice the last counts. unix_s: the time of day."""
    found: Told | None = None
    for name, value in headers:
        if not name.startswith(_PREFIX):
            continue
        what, _, unit = name[len(_PREFIX) :].partition(b"-")
        if found is None:
            found = Told(UnitTold(), UnitTold())
        if unit in (b"requests", b""):
            _set(found.requests, what, value.strip(), unix_s)
        elif unit == b"tokens":
            _set(found.tokens, what, value.strip(), unix_s)
    return NO_QUOTA if found is None else found


def rest_told_s(headers: Headers, unix_s: float) -> float | None:
    """Return how long a refused key is to rest; None if the reply says nothing of it.

    Retry-After says it in so many words. Else what is used up says when it is back; the rest does not matter. If
    nothing is (the request asked for more tokens than are left), then the first of them that is whole again.
    """
    asked_s = retry_after_s(headers, unix_s)
    if asked_s is None:
        told = quota_told(headers, unix_s)
        units = [unit for unit in (told.requests, told.tokens) if unit.reset_s is not None]
        used_up = [unit.reset_s or 0.0 for unit in units if unit.remaining is not None and unit.remaining < 1.0]
        if used_up:
            asked_s = max(used_up)
        elif units:
            asked_s = min(unit.reset_s or 0.0 for unit in units)
    return None if asked_s is None else min(asked_s, _MOST_REST_S)


def _set(unit: UnitTold, what: bytes, value: bytes, unix_s: float) -> None:
    if what == b"reset":
        unit.reset_s = _seconds(value, unix_s)
    elif _NUMBER.fullmatch(value):
        if what == b"remaining":
            unit.remaining = float(value)
        elif what == b"limit":
            unit.limit = float(value)


def _seconds(value: bytes, unix_s: float) -> float | None:
    """Read a reset in any of its forms; None if it is none."""
    if _NUMBER.fullmatch(value):
        number = float(value)
        if number >= _UNIX_MS:
            number /= 1000.0
        return max(0.0, number - unix_s) if number >= _UNIX_S else number
    found = _DURATION.fullmatch(value)
    if found is None or not value:
        return None
    days, hours, minutes, seconds, ms = (float(part or 0.0) for part in found.groups())
    return days * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds + ms / 1000.0
