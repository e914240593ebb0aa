"""What a caller is told of its limits: on every reply how much is left, on a refusal exactly when to come back.

Knows: the headers that SDKs read, and which of several quotas they tell of. Does not know: which quotas a caller has.
Source: the x-ratelimit-* headers of the OpenAI API. They tell of the quota that is nearest to its end, for each unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.policy.quota import Quota
from velox.types import Header, Headers

__all__ = ["RateHeaders", "duration_text"]

_NS_PER_MS: Final = 1_000_000


class RateHeaders:
    """The headers of one caller and model.

    dropped: what an upstream's reply loses to them; its own tell of an account that is not the caller's. Of a unit that
    has no quota here they pass. lines: returns them as they are at a moment. also_dropped: what no reply keeps anyway.
    """

    __slots__ = ("_units", "dropped", "lines")

    def __init__(
        self, requests: Sequence[Quota], tokens: Sequence[Quota], also_dropped: frozenset[bytes] = frozenset()
    ) -> None:
        self._units: Final = tuple(
            _Unit(unit, quotas) for unit, quotas in ((b"requests", requests), (b"tokens", tokens)) if quotas
        )
        self.lines: Final = self._lines if len(self._units) > 1 else self._units[0].lines
        self.dropped: Final = also_dropped.union(*(unit.names for unit in self._units))

    def _lines(self, now_ns: int) -> Headers:
        return [line for unit in self._units for line in unit.lines(now_ns)]


class _Unit:
    """The three headers of one unit."""

    __slots__ = ("_first", "_full", "_limit", "_others", "_remaining", "_reset", "names")

    def __init__(self, unit: bytes, quotas: Sequence[Quota]) -> None:
        self.names: Final = tuple(b"x-ratelimit-%b-%b" % (what, unit) for what in (b"limit", b"remaining", b"reset"))
        limit, self._remaining, self._reset = self.names
        # What never changes is written once.
        limits = [(limit, b"%d" % quota.rate.burst) for quota in quotas]
        self._first: Final = quotas[0]
        self._limit: Final[Header] = limits[0]
        self._others: Final = tuple(zip(quotas, limits, strict=True))[1:]
        self._full: Final[Headers] = [limits[0], (self._remaining, limits[0][1]), (self._reset, duration_text(0))]

    def lines(self, now_ns: int) -> Headers:
        """Return them as they are at this moment."""
        remaining, full_in_ns = self._first.outlook(now_ns)
        # A gateway that is cut off from Redis has its share of the limit, be that as full as it may.
        if not full_in_ns and not self._others and remaining == self._first.rate.burst:
            return self._full.copy()
        limit = self._limit
        for quota, its_limit in self._others:
            left, its_full_in_ns = quota.outlook(now_ns)
            if left < remaining:
                limit, remaining, full_in_ns = its_limit, left, its_full_in_ns
        return [limit, (self._remaining, b"%d" % remaining), (self._reset, duration_text(full_in_ns))]


def duration_text(ns: int) -> bytes:
    """Write a duration as OpenAI does: 120ms, 3.5s, 6m0s. Rounded up to whole milliseconds."""
    ms = -(-ns // _NS_PER_MS)
    if ms < 1000:
        return b"%dms" % ms
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = b"%gs" % (rest_ms / 1000)
    return b"%dm%b" % (minutes, seconds) if minutes else seconds
