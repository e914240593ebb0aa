"""A token bucket as pure integer arithmetic: GCRA on one number, the theoretical arrival time (TAT).

Knows: how many of n requests may pass, when each of them may, and when a refused one could.
Does not know: a clock, where the TAT is kept, or who else moves it (velox.shm.bucket does).

Theory: the TAT is the moment at which the bucket will be full again. A token moves it by one interval, and
a token may be used once the TAT before it is at most (burst - 1) intervals ahead of the clock. So the whole
state of a bucket is one 64-bit integer, and taking tokens is one compare-and-swap.
Source: GCRA, ITU-T I.371 annex A (the virtual scheduling algorithm). Differs in two ways: a batch of tokens
is taken at once, and a token may be taken ahead of its time, by a request that then waits for it.

Never above burst + elapsed / interval, counted from the first use, refunds included: a token that is given
back has an earlier time than the one that replaces it. Inside a shorter window, refunds can move uses closer
together by at most the tokens that can wait (max_wait / interval); from burst > max_wait / interval on, the
bound holds in every window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["UNLIMITED", "BucketRate", "Taken", "full_in_ns", "remaining", "take"]

_NS_PER_S: Final = 1_000_000_000
_NS_PER_MINUTE: Final = 60 * _NS_PER_S


@dataclass(frozen=True, slots=True)
class BucketRate:
    """How fast a bucket fills and how much it holds.

    interval_ns: time for one token; 0 means no limit at all.
    burst: tokens that a full bucket holds, at least 1.
    max_wait_ns: how far ahead of its time a token may be taken; 0 means that nothing ever waits.
    """

    interval_ns: int
    burst: int
    max_wait_ns: int

    @classmethod
    def from_rpm(cls, rpm: int, burst: int, max_wait_s: float) -> BucketRate:
        """Return the rate for `rpm` tokens a minute; rpm 0 means no limit.

        The interval is rounded up to whole nanoseconds, so the bucket is never faster than asked for, and
        slower by less than rpm / 60e9 (0.1 % at 60 million a minute, 2e-7 at 10,000).
        Raises ValueError if rpm or max_wait_s is negative, or burst is below 1.
        """
        if rpm < 0 or burst < 1 or max_wait_s < 0:
            raise ValueError(f"no such bucket: rpm {rpm}, burst {burst}, max wait {max_wait_s} s")
        interval_ns = -(-_NS_PER_MINUTE // rpm) if rpm else 0
        return cls(interval_ns, burst, round(max_wait_s * _NS_PER_S))


UNLIMITED: Final = BucketRate(interval_ns=0, burst=1, max_wait_ns=0)


class Taken(NamedTuple):
    """What a batch got: the first `granted` of its requests pass, the others do not.

    tat: the bucket's state after it. offset_ns: the first token's time less now; negative when the bucket
    held more than one. A tuple, not a dataclass: it is made once a batch, on the hot path.
    """

    tat: int
    granted: int
    offset_ns: int
    interval_ns: int

    @property
    def first_wait_ns(self) -> int:
        """Return how long the first granted request must wait."""
        return self.wait_ns(0)

    @property
    def waiting(self) -> int:
        """Return how many of the granted tokens are not usable at once: always the last ones."""
        if self.offset_ns + (self.granted - 1) * self.interval_ns <= 0:
            return 0
        at_once = -self.offset_ns // self.interval_ns + 1
        return self.granted - at_once if at_once > 0 else self.granted

    def wait_ns(self, index: int) -> int:
        """Return how long the granted request `index` (from 0) must wait; 0: it may pass at once."""
        wait_ns = self.offset_ns + index * self.interval_ns
        return wait_ns if wait_ns > 0 else 0

    def retry_after_ns(self, index: int) -> int:
        """Return when the refused request `index` (from 0) could pass without a wait, if nobody else came.

        Refused requests of a batch get different times, one interval apart: as many as retry in time pass.
        """
        return self.wait_ns(self.granted + index)


def take(rate: BucketRate, tat: int, now_ns: int, n: int) -> Taken:
    """Take up to `n` tokens for a batch of n requests in order; a refused request takes nothing.

    tat: the bucket's state, 0 for a new (full) bucket. now_ns: monotonic nanoseconds. n: at least 1.
    """
    interval_ns = rate.interval_ns
    if not interval_ns:
        return Taken(tat, n, 0, 0)
    base = tat if tat > now_ns else now_ns
    offset_ns = base - now_ns - (rate.burst - 1) * interval_ns
    room = (rate.max_wait_ns - offset_ns) // interval_ns + 1
    granted = n if n <= room else room if room > 0 else 0
    return Taken(base + granted * interval_ns if granted else tat, granted, offset_ns, interval_ns)


def remaining(rate: BucketRate, tat: int, now_ns: int) -> int:
    """Return how many requests could pass at once now: x-ratelimit-remaining-requests."""
    if not rate.interval_ns or tat <= now_ns:
        return rate.burst
    left = rate.burst - -(-(tat - now_ns) // rate.interval_ns)
    return left if left > 0 else 0


def full_in_ns(rate: BucketRate, tat: int, now_ns: int) -> int:
    """Return the time until the bucket is full again: x-ratelimit-reset-requests."""
    return max(0, tat - now_ns) if rate.interval_ns else 0
