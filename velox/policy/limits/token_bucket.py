"""A bucket of permits as pure integer arithmetic: GCRA on one number, the theoretical arrival time (TAT).

Knows: whether n permits may be taken, when, and when a refused request could. Does not know: a clock, where the TAT is
kept or who else moves it (velox.shm.quotas does), or whether a permit is for a request or a model's token.

Theory: the TAT is the moment at which the bucket will be full again. A permit moves it by one interval, and n permits
may be used once the TAT before them is at most (burst - n) intervals ahead of the clock. So the whole state of a
bucket is one 64-bit integer, and taking permits, all or none, is one compare-and-swap. Source: GCRA, ITU-T I.371
annex A (the virtual scheduling algorithm). Differs in two ways: several permits are taken at once, and they may be
taken ahead of their time, by a request that then waits for it.

Never above burst + elapsed / interval, counted from the first use, with what is given back taken off and what is
charged later added: the TAT is at least the first use plus an interval for each permit that is out. Inside a shorter
window that holds but for what is given back or charged in it: an estimate that was too high leaves a bucket fuller
than it would have been, when it had to wait for the answer to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["NEVER", "UNLIMITED", "BucketRate", "ask", "full_in_ns", "outlook", "remaining"]

_NS_PER_S: Final = 1_000_000_000
_NS_PER_MINUTE: Final = 60 * _NS_PER_S

# The answer for an amount that a full bucket does not hold: no wait helps.
NEVER: Final = -(1 << 62)
# A bucket that takes longer than this to fill (36 years) is none, and its times would not fit in 64 bits.
_LONGEST_NS: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class BucketRate:
    """How fast a bucket fills and how much it holds.

    interval_ns: time for one permit; 0 means no limit at all.
    burst: permits that a full bucket holds, at least 1.
    max_wait_ns: how far ahead of its time a permit may be taken; 0 means that nothing ever waits.
    """

    interval_ns: int
    burst: int
    max_wait_ns: int

    @classmethod
    def from_rpm(cls, rpm: int, burst: int, max_wait_s: float) -> BucketRate:
        """Return the rate for `rpm` permits a minute; rpm 0 means no limit.

        The interval is rounded up to whole nanoseconds, so the bucket is never faster than asked for, and
        slower by less than rpm / 60e9 (0.17 % at 100 million a minute, 2e-7 at 10,000).
        Raises ValueError if rpm or max_wait_s is negative, burst is below 1, or takes 36 years to fill.
        """
        if rpm < 0 or burst < 1 or max_wait_s < 0:
            raise ValueError(f"no such bucket: rpm {rpm}, burst {burst}, max wait {max_wait_s} s")
        interval_ns = -(-_NS_PER_MINUTE // rpm) if rpm else 0
        if interval_ns * burst > _LONGEST_NS:
            raise ValueError(f"a burst of {burst} takes years to fill at {rpm} a minute")
        return cls(interval_ns, burst, round(max_wait_s * _NS_PER_S))


UNLIMITED: Final = BucketRate(interval_ns=0, burst=1, max_wait_ns=0)


def ask(rate: BucketRate, tat: int, now_ns: int, n: int) -> int:
    """Return how long a request for `n` permits, all or none, must wait; below 0 when it is refused.

    >= 0: it passes after so many ns (at most rate.max_wait_ns), and the bucket's state is then max(tat, now_ns) +
    n * rate.interval_ns. < 0: -ns is when it could pass without a wait, if nobody else came. NEVER: n > rate.burst.
    tat: the bucket's state, 0 for a new (full) bucket. now_ns: monotonic nanoseconds. n: at least 0.
    """
    if not rate.interval_ns:
        return 0
    if n > rate.burst:
        return NEVER
    wait_ns = (tat if tat > now_ns else now_ns) - now_ns - (rate.burst - n) * rate.interval_ns
    if wait_ns <= 0:
        return 0
    return wait_ns if wait_ns <= rate.max_wait_ns else -wait_ns


def remaining(rate: BucketRate, tat: int, now_ns: int) -> int:
    """Return how many permits could be taken without a wait now: x-ratelimit-remaining-*."""
    if not rate.interval_ns or tat <= now_ns:
        return rate.burst
    left = rate.burst - -(-(tat - now_ns) // rate.interval_ns)
    return left if left > 0 else 0


def outlook(rate: BucketRate, tat: int, now_ns: int) -> tuple[int, int]:
    """Return remaining() and full_in_ns() at once: they go out with every reply."""
    ahead_ns = tat - now_ns
    if ahead_ns <= 0 or not rate.interval_ns:
        return rate.burst, 0
    left = rate.burst - -(-ahead_ns // rate.interval_ns)
    return left if left > 0 else 0, ahead_ns


def full_in_ns(rate: BucketRate, tat: int, now_ns: int) -> int:
    """Return the time until the bucket is full again: x-ratelimit-reset-*."""
    return max(0, tat - now_ns) if rate.interval_ns else 0
