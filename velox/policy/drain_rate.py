"""How fast a queue drains: what tells a newcomer how long it would wait.

Knows: how many left, and when, while others stayed behind. Does not know: who waits, a clock, or why the pace changed.

Only a queue that leaves somebody behind shows what its servers can do; one that empties shows only what was asked of
them. So time counts from the second take of a stretch in which somebody is always left. (The first fills servers that
were idle; the time up to the second is how long one request takes, not how often one ends.) Old counts fade once there
are more than 128 of them, from more than two seconds, and from more than four times what a request takes: requests that
began in one moment end in one, and a window must hold several of these with the silences between them. A queue that
does not drain keeps its last rate: how long a silence lasts, nobody knows. After ten times the silence that is usual,
and ten seconds, nothing is known.

Requests count, not tokens: the one at place 10 goes when 10 of those that are being served have ended, whatever the
nine before it will need.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DrainRate"]

_KNOWN_FROM: Final = 8  # fewer may be chance
_WINDOW: Final = 128
_WINDOW_NS: Final = 2_000_000_000
_WINDOW_SERVICES: Final = 4
_STALE_NS: Final = 10_000_000_000
_STALE_INTERVALS: Final = 10


class DrainRate:
    """The rate of one queue. Times are nanoseconds and never decrease."""

    __slots__ = ("_elapsed_ns", "_is_behind", "_last_ns", "_n", "_seen_ns")

    def __init__(self) -> None:
        self._n = 0
        self._elapsed_ns = 0
        self._is_behind = False  # the last take left somebody
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
        """Return True while somebody left not unusually long ago."""
        silence_ns = now_ns - self._seen_ns
        return self._n >= _KNOWN_FROM and silence_ns * self._n <= _STALE_INTERVALS * self._elapsed_ns
