"""How long a request that comes to the queue would wait, and how long it may.

Knows: when requests left while others stayed behind, since when requests have always been waiting, how long requests
took. Does not know: who waits, a clock, or the servers.

DrainRate. Only a queue that leaves requests behind shows what its servers can do; one that empties shows only the
demand. So time counts from the second take of a stretch in which some are always left. (The first take fills servers
that were idle; the time up to the second is how long one request takes, not how often one ends.) Old counts fade once
there are more than 128 of them, from more than two seconds, and from more than four times what a request takes:
requests that began in one moment end in one, and a window must hold several of these with the silences between them. A
queue that does not drain keeps its last rate, as nobody knows how long a silence lasts. After ten times the usual
silence, and ten seconds, nothing is known. Requests count, not tokens: the one at place 10 goes when 10 of those that
are being served have ended, whatever the nine before it need.

StandingQueue. A queue is good for a burst: it holds what comes at once until there is room. A queue that is
never empty holds no burst: more comes than can be served, and each place in it only adds waiting time. Then the allowed
wait shrinks, from VELOX_QUEUE_TIMEOUT to seven eighths of the mean time that a request takes: a request that is
admitted gets its response in twice that time, with an eighth to spare for what a busy gateway adds; the others are
refused at once. Idea: CoDel (RFC 8289), whose target is a fixed time. Here it is in proportion: a time that is nothing
for a completion of a minute would be an outage for an embedding.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DrainRate", "StandingQueue"]

_KNOWN_FROM: Final = 8  # fewer may be chance
_WINDOW: Final = 128
_WINDOW_NS: Final = 2_000_000_000
_WINDOW_SERVICES: Final = 4
_STALE_NS: Final = 10_000_000_000
_STALE_INTERVALS: Final = 10

# RFC 8289 §3.2: an interval of 100 ms, a target of 5 ms. Here they are the least.
_PATIENCE_NS: Final = 100_000_000
_LEAST_NS: Final = 5_000_000
_BLINK: Final = 8  # empty for less than this part of the patience is not empty
_GAIN: Final = 5  # a new time counts 1/32
_SPARE: Final = 3  # 1/8 of the mean time is not waited


class DrainRate:
    """The rate of one queue. Times are nanoseconds and never decrease."""

    __slots__ = ("_elapsed_ns", "_is_behind", "_last_ns", "_n", "_seen_ns")

    def __init__(self) -> None:
        self._n = 0
        self._elapsed_ns = 0
        self._is_behind = False  # the last take left requests behind
        self._last_ns: int | None = None  # the last take that time counts from
        self._seen_ns = 0  # the last take of all that was counted

    def __repr__(self) -> str:
        return f"<DrainRate {self._n} in {self._elapsed_ns / 1e9:.3f} s>"

    def took(self, n: int, now_ns: int, mean_ns: int, *, left_behind: bool) -> None:
        """Count `n` that left. mean_ns: what one takes, 0 if not known. left_behind: some had no room."""
        if not n:
            return
        last_ns = self._last_ns
        if last_ns is not None:
            self._n += n
            self._elapsed_ns += now_ns - last_ns
            if self._n > _WINDOW and self._elapsed_ns > max(_WINDOW_NS, _WINDOW_SERVICES * mean_ns):
                self._n -= self._n >> 3
                self._elapsed_ns -= self._elapsed_ns >> 3
        self._seen_ns = now_ns
        self._last_ns = now_ns if left_behind and self._is_behind else None
        self._is_behind = left_behind

    def emptied(self) -> None:
        """Nobody waits any more, whatever ended it."""
        self._is_behind = False
        self._last_ns = None

    def interval_ns(self, now_ns: int) -> float:
        """Return the mean time from one that leaves to the next; 0 if nothing is known."""
        if self._n < _KNOWN_FROM:
            return 0.0
        silence_ns = now_ns - self._seen_ns
        if silence_ns > _STALE_NS and silence_ns * self._n > _STALE_INTERVALS * self._elapsed_ns:
            self._n = self._elapsed_ns = 0
            return 0.0
        return self._elapsed_ns / self._n

    def flows(self, now_ns: int) -> bool:
        """Return True while the last request left not unusually long ago."""
        silence_ns = now_ns - self._seen_ns
        return self._n >= _KNOWN_FROM and silence_ns * self._n <= _STALE_INTERVALS * self._elapsed_ns


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
        """A request waits, since `now_ns`."""
        if self._emptied_ns is not None and now_ns - self._emptied_ns > self._patience_ns:
            self._since_ns = None
        if self._since_ns is None:
            self._since_ns = now_ns
        self._emptied_ns = None

    def emptied(self, now_ns: int) -> None:
        """Nobody waits; but who comes now may have to, as servers may be busy with the last ones."""
        self._emptied_ns = now_ns

    def found_room(self, now_ns: int) -> bool:
        """A request arrived and need not wait; return True if the queue may still be standing."""
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
