"""One round of an adaptive limit: so many requests, and how long the replies to them took to begin.

Knows: who belongs to it, when it is over, what its median is worth. Does not know: what follows (concurrency.py).

Only requests that began in the round count, and all of them: of those that were sent while a limit grows, the fast ones
reply first, and a median of whoever has replied by now would be that of the fast ones.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Round"]

_ENOUGH: Final = 0.75  # of a round have replied: those that have not are the slow ones


class Round:
    """Requests that begin under one limit, and how long the replies to them took to begin."""

    __slots__ = ("began_s", "closed_s", "is_used", "n", "n_begun", "n_ended", "n_lost", "streamed", "whole")

    def __init__(self, n: int, now_s: float) -> None:
        self.n: Final = n
        self.began_s: Final = now_s
        self.closed_s = math.inf  # when the last of the n began
        self.n_begun = 0
        self.is_used = False  # the limit was used up
        self.n_ended = 0  # in this time, whenever they began
        self.n_lost = 0
        self.streamed: list[float] = []
        self.whole: list[float] = []

    def has(self, began_s: float) -> bool:
        """Say whether a request that began then belongs to it."""
        return self.began_s <= began_s <= self.closed_s

    @property
    def is_over(self) -> bool:
        """True when it can be judged."""
        return self.n_begun >= self.n and len(self.streamed) + len(self.whole) + self.n_lost >= self.n * _ENOUGH

    @property
    def is_streamed(self) -> bool:
        """True if the streamed replies are enough to judge by: the others tell more of their length."""
        return len(self.streamed) * 4 >= len(self.streamed) + len(self.whole)

    def medians_s(self) -> tuple[float, float, float]:
        """Return the median between its bounds, one standard error away: what is not chance, however samples spread.

        (0, 0, 0): there is none. Those that have not replied are slower than all others.
        """
        samples = sorted(self.streamed if self.is_streamed else self.whole)
        n = len(samples) + max(0, self.n - self.n_lost - len(self.streamed) - len(self.whole))
        if not samples:
            return 0.0, 0.0, 0.0
        last, middle, error = len(samples) - 1, n / 2, math.sqrt(n) / 2
        low, median, high = (samples[min(last, int(rank))] for rank in (middle - error, middle, middle + error))
        return low, median, high
