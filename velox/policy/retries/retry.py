"""When a request that an upstream may have begun is tried again, and after how long.

Knows: statuses, Retry-After in its three forms, how long to wait without one, and how many requests and
retries there were in the last seconds. Does not know: a clock, upstreams, or whether the client has seen a byte.
"""

from __future__ import annotations

import email.utils
import re
from dataclasses import dataclass
from typing import Final

from velox.heads import Headers

__all__ = ["RetryBudget", "RetryRules", "retry_after_s", "sent_at_s"]

BACKOFF_FIRST_S: Final = 0.25
_SECONDS: Final = re.compile(rb"\d{1,9}(\.\d{1,9})?")
WINDOW_S: Final = 10


@dataclass(frozen=True, slots=True)
class RetryRules:
    """What the settings allow.

    retries: further attempts. statuses: of an upstream, that are tried again. max_wait_s: longest Retry-After that is
    waited for. before_fallback_s: longest wait before the same upstream is asked once more though a fallback with
    another model could be asked at once; 0: the fallback is asked.
    """

    retries: int
    statuses: frozenset[int]
    max_wait_s: float
    before_fallback_s: float = 0.0

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

    def wait_before_fallback_s(
        self, status: int, headers: Headers, unix_s: float, random: float, *, is_single: bool
    ) -> float | None:
        """Return how long to wait before the same upstream is asked once more, not a worse one; None: it is not.

        A 429 that says when to come back, and a single 500, are soon over. Anything else may last. is_single: the
        upstream has not failed just before.
        """
        if status == 429:
            wait_s = retry_after_s(headers, unix_s)
        elif status == 500 and is_single:
            wait_s = self.wait_s(headers, 0, unix_s, random)
        else:
            return None
        return wait_s if wait_s is not None and wait_s <= self.before_fallback_s else None


class RetryBudget:
    """How many retries one worker may make. Times are monotonic seconds and never decrease.

    While an upstream fails, each retry is more load on it. With the budget, the load is at most (1 + percent / 100)
    times the requests, and `spare_per_s` above that, however many fail. The spare part lets a gateway with few requests
    retry at all. Source: Finagle's RetryBudget; differs in that the spare part is not saved up beyond one second.

    percent: retries per hundred requests of the last 10 seconds. spare_per_s: allowed besides; may be less than one.
    """

    def __init__(self, percent: int, spare_per_s: float) -> None:
        self._percent: Final = percent
        self._spare_per_s: Final = spare_per_s
        # A second's share of a worker may be below one retry; it is saved up until it is one.
        self._spare = max(1.0, spare_per_s) if spare_per_s else 0.0
        self._spare_s = 0.0  # when _spare was counted last
        # By second of the window, and their sums. Requests of the second that runs are only in the sum.
        self._requests: Final = [0] * WINDOW_S
        self._retries: Final = [0] * WINDOW_S
        self._n_requests = 0
        self._n_before = 0  # of them, before this second
        self._n_retries = 0
        self._second = 0
        self._next_s = 1.0  # when it is over

    def __repr__(self) -> str:
        return f"<RetryBudget requests={self._n_requests} retries={self._n_retries} spare={self._spare:.2f}>"

    def on_request(self, now_s: float) -> None:
        """Count one request."""
        if now_s >= self._next_s:
            self._roll(int(now_s))
        self._n_requests += 1

    def take(self, now_s: float) -> bool:
        """Take one retry; False when none is left, and nothing is taken."""
        if now_s >= self._next_s:
            self._roll(int(now_s))
        if (self._n_retries + 1) * 100 <= self._n_requests * self._percent:
            self._retries[self._second % WINDOW_S] += 1
            self._n_retries += 1
            return True
        if not self._spare_per_s:
            return False
        earned = (now_s - self._spare_s) * self._spare_per_s
        self._spare = min(self._spare + earned, max(1.0, self._spare_per_s))
        self._spare_s = now_s
        if self._spare < 1.0:
            return False
        self._spare -= 1.0
        return True

    def _roll(self, second: int) -> None:
        """Begin another second, and forget those that have left the window."""
        self._requests[self._second % WINDOW_S] = self._n_requests - self._n_before
        for passed in range(self._second + 1, min(second, self._second + WINDOW_S) + 1):
            place = passed % WINDOW_S
            self._n_requests -= self._requests[place]
            self._n_retries -= self._retries[place]
            self._requests[place] = self._retries[place] = 0
        self._n_before = self._n_requests
        self._second = second
        self._next_s = second + 1.0


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
    sent_s = sent_at_s(headers)
    return max(0.0, until_s - (unix_s if sent_s is None else sent_s))


def sent_at_s(headers: Headers) -> float | None:
    """Return when a reply was made, by its own Date (Unix time); None: it has none that can be read."""
    return _date_s(_value(headers, b"date") or b"")


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
