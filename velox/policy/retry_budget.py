"""How many retries there may be: a part of the requests, and a few more (R-RETRY-2).

Knows: how many requests and retries there were in the last seconds. Does not know: a clock, or why one is retried.

While an upstream fails, each retry is more load on it. With the budget, the load is at most (1 + percent / 100) times
the requests, and `spare_per_s` above that, however many fail. The spare part lets a gateway with few requests retry at
all. Source: Finagle's RetryBudget; differs in that the spare part is not saved up beyond one second.
"""

from __future__ import annotations

from typing import Final

__all__ = ["RetryBudget"]

WINDOW_S: Final = 10


class RetryBudget:
    """The budget of one worker. Times are monotonic seconds and never decrease.

    percent: retries per hundred requests of the last 10 seconds. spare_per_s: allowed besides; may be less than one.
    """

    def __init__(self, percent: int, spare_per_s: float) -> None:
        self._percent: Final = percent
        self._spare_per_s: Final = spare_per_s
        # A second's share of a worker may be below one retry; it is saved up until it is one.
        self._spare = max(1.0, spare_per_s) if spare_per_s else 0.0
        self._spare_s = 0.0  # when _spare was counted last
        # By second of the window, and their sums.
        self._requests: Final = [0] * WINDOW_S
        self._retries: Final = [0] * WINDOW_S
        self._n_requests = 0
        self._n_retries = 0
        self._second = 0

    def __repr__(self) -> str:
        return f"<RetryBudget requests={self._n_requests} retries={self._n_retries} spare={self._spare:.2f}>"

    def on_request(self, now_s: float) -> None:
        """Count one request."""
        second = int(now_s)
        if second != self._second:
            self._roll(second)
        self._requests[second % WINDOW_S] += 1
        self._n_requests += 1

    def take(self, now_s: float) -> bool:
        """Take one retry; False when none is left, and nothing is taken."""
        second = int(now_s)
        if second != self._second:
            self._roll(second)
        if (self._n_retries + 1) * 100 <= self._n_requests * self._percent:
            self._retries[second % WINDOW_S] += 1
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
        """Forget the seconds that have left the window."""
        for passed in range(self._second + 1, min(second, self._second + WINDOW_S) + 1):
            place = passed % WINDOW_S
            self._n_requests -= self._requests[place]
            self._n_retries -= self._retries[place]
            self._requests[place] = self._retries[place] = 0
        self._second = second
