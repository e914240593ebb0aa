"""When a request that an upstream may have begun is tried again, and after how long (R-RETRY-2, R-RETRY-3).

Knows: statuses, Retry-After in its three forms, how long to wait without one. Does not know: a clock, upstreams, the
budget (retry_budget.py), or whether the client has seen a byte.
"""

from __future__ import annotations

import email.utils
import re
from dataclasses import dataclass
from typing import Final

from velox.types import Headers

__all__ = ["RetryRules", "retry_after_s"]

BACKOFF_FIRST_S: Final = 0.25
_SECONDS: Final = re.compile(rb"\d{1,9}(\.\d{1,9})?")


@dataclass(frozen=True, slots=True)
class RetryRules:
    """What the settings allow.

    retries: further attempts. statuses: of an upstream, that are tried again. max_wait_s: longest Retry-After that is
    waited for.
    """

    retries: int
    statuses: frozenset[int]
    max_wait_s: float

    def covers(self, status: int, headers: Headers) -> bool:
        """Say whether a reply may be refused for another attempt.

        The upstream's own word goes first: `x-should-retry: false` forbids it, `true` allows it for any 5xx. Of the
        4xx only those of the settings are ever tried again: the rest would be answered alike.
        """
        says = _value(headers, b"x-should-retry")
        if says == b"false":
            return False
        return status in self.statuses or (says == b"true" and status >= 500)

    def wait_s(self, headers: Headers, n_before: int, unix_s: float, random: float) -> float | None:
        """Return how long to wait before the same upstream is asked again; None: longer than is waited for.

        headers: of the refused reply, empty if none came. n_before: retries before this one. unix_s: the time of day,
        for a Retry-After that is a date. random: in [0, 1), so that those who were refused together come back apart.
        """
        asked_s = retry_after_s(headers, unix_s)
        if asked_s is not None:
            return asked_s if asked_s <= self.max_wait_s else None
        return BACKOFF_FIRST_S * 2.0**n_before * (0.5 + random)


def retry_after_s(headers: Headers, unix_s: float) -> float | None:
    """Return the seconds that a reply asks to wait, at least 0; None when it says nothing that can be read.

    Forms: `retry-after-ms` (OpenAI, Azure), `retry-after` in seconds or as a date (RFC 9110 §10.2.3). A date counts
    from the reply's own Date where there is one: the two clocks then need not agree.
    """
    ms = _value(headers, b"retry-after-ms")
    if ms is not None and _SECONDS.fullmatch(ms):
        return float(ms) / 1000.0
    value = _value(headers, b"retry-after")
    if value is None:
        return None
    if _SECONDS.fullmatch(value):
        return float(value)
    until_s = _date_s(value)
    if until_s is None:
        return None
    sent_s = _date_s(_value(headers, b"date") or b"")
    return max(0.0, until_s - (unix_s if sent_s is None else sent_s))


def _date_s(value: bytes) -> float | None:
    """Read an HTTP date in any of its three formats (RFC 9110 §5.6.7); None if it is none."""
    parts = email.utils.parsedate_tz(value.decode("latin-1"))
    try:
        return None if parts is None else float(email.utils.mktime_tz(parts))
    except (ValueError, OverflowError):  # 31 February, the year 0
        return None


def _value(headers: Headers, name: bytes) -> bytes | None:
    for key, value in headers:
        if key == name:
            return value.strip()
    return None
