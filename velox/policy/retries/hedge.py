"""When a second try may go while the first has not answered, and how many there may be.

Knows: how long first bytes of one route took lately, and how many requests and second tries there were. Does not know:
a clock, who runs the tries, or which was faster.

J. Dean, L. A. Barroso, The Tail at Scale, 2013: a second request after the 95th percentile adds 5 % of load and takes
most of the tail away. But when all is slow, all are late: then it doubles the load just when there is none to spare. So
there is a budget, a part of the requests, and it is saved up to a few only.

Times are kept in a histogram of 16 cells for each doubling, in two parts of a minute each: of the last one to two
minutes, in 5 kB, whatever the traffic. A percentile is the upper end of its cell: 4.4 % too long at most, never too
short, for a little too short is where most of the usual times are, and the budget would go for those.
"""

from __future__ import annotations

import math
from typing import Final

from velox.policy.routes.entries import Hedge

__all__ = ["FirstByteTimes", "HedgeBudget", "Hedging", "ProbeRelief", "SecondTries"]

_LEAST_S: Final = 0.001
_PER_DOUBLING: Final = 16
_CELLS: Final = 320  # up to 1000 s
_HALF_S: Final = 60.0
_BEYOND: Final = 3.0  # times beyond the percentile, before it is believed: for p95, of 60 requests
_FRESH_S: Final = 1.0  # a percentile is kept as long
_MOST_SAVED: Final = 10.0  # second tries at once after a quiet time; arbitrary


class SecondTries:
    """When a second try may go beside a first one. All times are monotonic seconds and never decrease."""

    def on_request(self) -> None:
        """Count one request, hedged or not. Its second try earns nothing."""

    def heard(self, waited_s: float, now_s: float) -> None:
        """A first try waited so long for its first byte, or until it was given up."""

    def delay_s(self, now_s: float) -> float | None:
        """Return how long after the first try a second one may go; None: none may, for too little is known."""
        raise NotImplementedError

    def take(self) -> bool:
        """Ask, when the delay is over, whether the second try goes; what is taken is spent."""
        raise NotImplementedError


class ProbeRelief(SecondTries):
    """For one request that is sent to a member that is out, to see if it is back: its silence is not the client's wait.

    It has a second try on any route, and without a budget: there is one such request in some seconds. What it took says
    nothing about other requests.
    """

    def __init__(self, probe_timeout_s: float) -> None:
        """probe_timeout_s: when no first byte means that the member is not back."""
        self._probe_timeout_s: Final = probe_timeout_s

    def delay_s(self, now_s: float) -> float | None:
        return self._probe_timeout_s

    def take(self) -> bool:
        return True


class FirstByteTimes:
    """How long the first bytes of a route took in one worker. All times are monotonic seconds and never decrease."""

    __slots__ = ("_before", "_n_before", "_n_now", "_now", "_since_s")

    def __init__(self, now_s: float) -> None:
        self._now = [0] * _CELLS
        self._before = [0] * _CELLS
        self._n_now = 0
        self._n_before = 0
        self._since_s = now_s

    def __repr__(self) -> str:
        return f"<FirstByteTimes {self._n_before}+{self._n_now}>"

    def heard(self, waited_s: float, now_s: float) -> None:
        """A first byte came after `waited_s`.

        One that was given up is told, too, with how long it took until then: if only those that answered counted, each
        hedge that is faster would make the percentile shorter.
        """
        self._turn(now_s)
        cell = int(_PER_DOUBLING * math.log2(waited_s / _LEAST_S)) if waited_s > _LEAST_S else 0
        self._now[min(cell, _CELLS - 1)] += 1
        self._n_now += 1

    def percentile_s(self, percent: float, now_s: float) -> float | None:
        """Return the time that `percent` of them took at most; None while too few are known to say."""
        self._turn(now_s)
        n = self._n_now + self._n_before
        n_beyond = n * (1.0 - percent / 100.0)
        if n_beyond < _BEYOND:
            return None
        for cell in range(_CELLS - 1, -1, -1):
            n_beyond -= self._now[cell] + self._before[cell]
            if n_beyond <= 0.0:
                return _LEAST_S * math.exp2((cell + 1) / _PER_DOUBLING)
        return _LEAST_S

    def _turn(self, now_s: float) -> None:
        """Forget what is too old."""
        age_s = now_s - self._since_s
        if age_s < _HALF_S:
            return
        if age_s < 2.0 * _HALF_S:
            self._before, self._n_before = self._now, self._n_now
        else:
            self._before, self._n_before = [0] * _CELLS, 0
        self._now, self._n_now = [0] * _CELLS, 0
        self._since_s = now_s


class HedgeBudget:
    """How many second tries there may be: each request earns a part of one. It begins with none.

    Workers share nothing for it: the part is of their own requests.
    """

    __slots__ = ("_percent", "_saved")

    def __init__(self, percent: float) -> None:
        self._percent: Final = percent
        self._saved = 0.0  # percents of one: a hundred times 1 % are then exactly one

    def __repr__(self) -> str:
        return f"<HedgeBudget {self._saved / 100.0:.2f}>"

    def on_request(self) -> None:
        """Count one request."""
        self._saved = min(100.0 * _MOST_SAVED, self._saved + self._percent)

    def take(self) -> bool:
        """Take one second try; False when none is left, and nothing is taken."""
        if self._saved < 100.0:
            return False
        self._saved -= 100.0
        return True


class Hedging(SecondTries):
    """The second tries of one route in one worker. All times are monotonic seconds and never decrease."""

    __slots__ = ("_budget", "_delay_s", "_fixed_s", "_known_s", "_percentile", "_times")

    def __init__(self, entry: Hedge, now_s: float) -> None:
        self._fixed_s: Final = entry.after.seconds
        self._percentile: Final = entry.after.percentile or 95.0
        self._budget: Final = HedgeBudget(entry.at_most_percent)
        self._times: Final = FirstByteTimes(now_s)
        self._delay_s: float | None = None
        self._known_s = -math.inf  # when _delay_s was found

    def __repr__(self) -> str:
        return f"<Hedging after {self._fixed_s or self._delay_s} s {self._budget!r}>"

    def on_request(self) -> None:
        self._budget.on_request()

    def heard(self, waited_s: float, now_s: float) -> None:
        if self._fixed_s is None:
            self._times.heard(waited_s, now_s)

    def delay_s(self, now_s: float) -> float | None:
        if self._fixed_s is not None:
            return self._fixed_s
        if now_s - self._known_s >= _FRESH_S:
            self._delay_s = self._times.percentile_s(self._percentile, now_s)
            self._known_s = now_s
        return self._delay_s

    def take(self) -> bool:
        return self._budget.take()
