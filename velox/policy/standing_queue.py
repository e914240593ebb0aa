"""How long a request may wait while the queue stands: no longer than it will then take (R-LOAD-2).

Knows: since when somebody has always been waiting, and how long the requests that ran took. Does not know: the
queue, a clock, or the servers.

A queue is good for a burst: it holds what comes at once until there is room. Where it is never empty, it is no burst:
more comes than can be served, and each place in the queue is only waiting time for whoever gets it. Then the wait that
is allowed shrinks, from VELOX_QUEUE_TIMEOUT to seven eighths of the mean time that a request takes: whoever is let in
has its answer in twice that, with an eighth to spare for what a busy gateway adds, and the rest know at once. Idea:
CoDel (RFC 8289), whose target is a fixed time; here it is in proportion, for a time that is nothing for a completion of
a minute would be an outage for an embedding.
"""

from __future__ import annotations

from typing import Final

__all__ = ["StandingQueue"]

# RFC 8289 §3.2: an interval of 100 ms, a target of 5 ms. Here they are the least.
_PATIENCE_NS: Final = 100_000_000
_LEAST_NS: Final = 5_000_000
_BLINK: Final = 8  # empty for less than this part of the patience is not empty
_GAIN: Final = 5  # a new time counts 1/32
_SPARE: Final = 3  # 1/8 of the mean time is not waited


class StandingQueue:
    """The allowed wait of one queue. mean_ns: what a request takes; 0: not known. Times are ns and never decrease."""

    __slots__ = ("_emptied_ns", "_since_ns", "mean_ns")

    def __init__(self) -> None:
        self.mean_ns = 0
        self._since_ns: int | None = None
        self._emptied_ns: int | None = None

    def __repr__(self) -> str:
        return f"<StandingQueue mean={self.mean_ns / 1e9:.3f} s since={self._since_ns}>"

    def serviced(self, duration_ns: int) -> None:
        """A request has ended `duration_ns` after it left the queue."""
        if self.mean_ns:
            self.mean_ns += (duration_ns - self.mean_ns) >> _GAIN
        else:
            self.mean_ns = duration_ns

    def filled(self, now_ns: int) -> None:
        """Somebody waits, since `now_ns`."""
        if self._emptied_ns is not None and now_ns - self._emptied_ns > self._patience_ns:
            self._since_ns = None
        if self._since_ns is None:
            self._since_ns = now_ns
        self._emptied_ns = None

    def emptied(self, now_ns: int) -> None:
        """Nobody waits; but who comes now may have to, as servers may be busy with the last ones."""
        self._emptied_ns = now_ns

    def found_room(self, now_ns: int) -> bool:
        """Somebody came and had not to wait; return True if it may still be said that the queue stands."""
        # Requests that end in one moment may empty a queue which then fills again at once: it stood all the time.
        if self._emptied_ns is None or (now_ns - self._emptied_ns) * _BLINK > self._patience_ns:
            self._since_ns = None
        return self._since_ns is not None

    @property
    def _patience_ns(self) -> int:
        return max(self.mean_ns, _PATIENCE_NS)

    def allowed_ns(self, now_ns: int) -> int | None:
        """Return how long a request may wait; None: as long as its deadline allows."""
        since_ns = self._since_ns
        mean_ns = self.mean_ns
        if since_ns is None or not mean_ns or now_ns - since_ns < self._patience_ns:
            return None
        return max(mean_ns - (mean_ns >> _SPARE), _LEAST_NS)
