"""What a model server says of its own load, made comparable with requests in flight.

Knows: how running and waiting requests and a full cache weigh. Does not know: how the numbers are asked for, a server's
names for them (`vllm:num_requests_running`, `sglang:num_running_reqs` ...), or a clock.

Our own count of requests in flight is exact and of now; a scrape is seconds old but sees everybody's requests. So only
what our count can't know is kept of a scrape: how many more there were than we had sent (`extra`). A request that waits
counts once more: a server takes others into its batch at little cost, but a request behind a line waits for all of it.
A cache of keys and values that is nearly full takes new prompts only by dropping others, or preempts (`headroom`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["ScrapedLoad"]

_FULL_FROM: Final = 0.8  # of the cache: up to here nothing is dropped that is in use; arbitrary
_MOST: Final = 1e6  # requests on one server; a text from a network may say anything
_LEAST_HEADROOM: Final = 0.1  # a full cache is no reason never to choose a member


class ScrapedLoad:
    """The last scrape of one member. All times are monotonic seconds."""

    __slots__ = ("_extra", "_headroom", "_stale_s", "_told_s")

    def __init__(self, stale_s: float) -> None:
        """stale_s: after so long a scrape says nothing any more; a few times the interval of the scrapes."""
        self._stale_s: Final = stale_s
        self._told_s = -stale_s
        self._extra = 0.0
        self._headroom = 1.0

    def __repr__(self) -> str:
        return f"<ScrapedLoad extra={self._extra:.0f} headroom={self._headroom:.2f}>"

    def told(self, running: float, waiting: float, cache_usage: float, inflight: int, now_s: float) -> None:
        """A scrape came. cache_usage: 0 to 1, 0 where a server has none. inflight: our own count at the same time."""
        # In this order also what is no number becomes 0.
        running = min(_MOST, max(0.0, running))
        waiting = min(_MOST, max(0.0, waiting))
        self._extra = max(0.0, running + waiting - inflight) + waiting
        free = (1.0 - max(0.0, cache_usage)) / (1.0 - _FULL_FROM)
        self._headroom = min(1.0, max(_LEAST_HEADROOM, free))
        self._told_s = now_s

    def extra(self, now_s: float) -> float:
        """Return the load beyond our own requests in flight, in requests (Candidates.extra)."""
        return self._extra if now_s - self._told_s < self._stale_s else 0.0

    def headroom(self, now_s: float) -> float:
        """Return the factor, 0.1 to 1, for the member's weight."""
        return self._headroom if now_s - self._told_s < self._stale_s else 1.0
