"""What a caller is told of its limits: on every reply how much is left, on a refusal exactly when to come back.

Knows: the headers that SDKs read, and which of several quotas they tell of. Does not know: which quotas a caller has.
Source: the x-ratelimit-* headers of the OpenAI API. They tell of the quota that is nearest to its end, for each unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.heads import Headers
from velox.policy.limits.quota import Quota

__all__ = ["RateHeaders", "duration_text"]

_NS_PER_MS: Final = 1_000_000


class RateHeaders:
    """The headers of one caller and model.

    dropped: what an upstream's reply loses to them; its own tell of an account that is not the caller's. Of a unit that
    has no quota here they pass. headers, lines: return them as they are at a moment, as pairs and as lines of HTTP/1.1.
    also_dropped: what no reply keeps anyway.
    """

    __slots__ = ("_units", "dropped", "headers", "lines")

    def __init__(
        self, requests: Sequence[Quota], tokens: Sequence[Quota], also_dropped: frozenset[bytes] = frozenset()
    ) -> None:
        self._units: Final = tuple(
            _Unit(unit, quotas) for unit, quotas in ((b"requests", requests), (b"tokens", tokens)) if quotas
        )
        is_one = len(self._units) == 1
        self.headers: Final = self._units[0].headers if is_one else self._headers
        self.lines: Final = self._units[0].lines if is_one else self._lines
        self.dropped: Final = also_dropped.union(*(unit.names for unit in self._units))

    def _headers(self, now_ns: int) -> Headers:
        return [header for unit in self._units for header in unit.headers(now_ns)]

    def _lines(self, now_ns: int) -> bytes:
        return b"".join([unit.lines(now_ns) for unit in self._units])


class _Unit:
    """The three headers of one unit."""

    __slots__ = ("_before", "_between", "_first", "_form", "_full", "_limit", "_others", "names")

    def __init__(self, unit: bytes, quotas: Sequence[Quota]) -> None:
        self.names: Final = tuple(b"x-ratelimit-%b-%b" % (what, unit) for what in (b"limit", b"remaining", b"reset"))
        # What never changes is written once.
        self._form: Final = b"%b: %%b\r\n%b: %%d\r\n%b: %%b\r\n" % self.names
        limits = [b"%d" % quota.rate.burst for quota in quotas]
        self._first: Final = quotas[0]
        self._limit: Final = limits[0]
        self._others: Final = tuple(zip(quotas, limits, strict=True))[1:]
        self._full: Final = self._form % (limits[0], quotas[0].rate.burst, duration_text(0))
        # With one quota all but two numbers is constant. Text is put together in half the time that bytes take.
        limit, remaining, reset = (name.decode() for name in self.names)
        self._before: Final = f"{limit}: {limits[0].decode()}\r\n{remaining}: "
        self._between: Final = f"\r\n{reset}: "

    def headers(self, now_ns: int) -> Headers:
        """Return them as they are at this moment, as pairs."""
        limit, remaining, full_in_ns = self._state(now_ns)
        values = (limit, b"%d" % remaining, duration_text(full_in_ns))
        return list(zip(self.names, values, strict=True))

    def lines(self, now_ns: int) -> bytes:
        """Return them as they are at this moment, as lines."""
        if not self._others:
            remaining, full_in_ns = self._first.outlook(now_ns)
            # A gateway that is cut off from Redis has its share of the limit, be that as full as it may.
            if not full_in_ns and remaining == self._first.rate.burst:
                return self._full
            return f"{self._before}{remaining}{self._between}".encode() + duration_text(full_in_ns) + b"\r\n"
        limit, remaining, full_in_ns = self._state(now_ns)
        return self._form % (limit, remaining, duration_text(full_in_ns))

    def _state(self, now_ns: int) -> tuple[bytes, int, int]:
        limit = self._limit
        remaining, full_in_ns = self._first.outlook(now_ns)
        for quota, its_limit in self._others:
            left, its_full_in_ns = quota.outlook(now_ns)
            if left < remaining:
                limit, remaining, full_in_ns = its_limit, left, its_full_in_ns
        return limit, remaining, full_in_ns


def duration_text(ns: int) -> bytes:
    """Write a duration as OpenAI does: 120ms, 3.5s, 6m0s. Rounded up to whole milliseconds."""
    ms = -(-ns // _NS_PER_MS)
    if ms < 1000:
        return f"{ms}ms".encode()
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = b"%gs" % (rest_ms / 1000)
    return b"%dm%b" % (minutes, seconds) if minutes else seconds
