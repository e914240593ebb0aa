"""The token bucket that all workers share: policy.token_bucket on a TAT in shared memory.

Knows: how to move the TAT while others move it, and which tokens a worker holds. Does not know: the
arithmetic (policy.token_bucket), or what a token is for.

A worker may be killed between any two steps, so each operation has an order in which a token can be lost but
the limit can't: when tokens are taken, the TAT moves first and the worker's note of them follows; when they
are given back, the other way round. A token lost that way delays the bucket by one interval, once.
"""

from __future__ import annotations

from typing import Final

from velox.policy.token_bucket import BucketRate, Taken, full_in_ns, remaining, take
from velox.shm.segment import Segment
from velox.shm.status import StatusCell

__all__ = ["SharedBucket", "reclaim"]

_WAITING: Final = int(StatusCell.WAITING)  # a plain integer: an enum member costs twice as much to look up


class SharedBucket:
    """One worker's view of the gateway's bucket."""

    __slots__ = ("_own", "_rate", "_tat")

    def __init__(self, segment: Segment, rate: BucketRate, block: int) -> None:
        self._tat = segment.bucket_tat()
        self._rate = rate
        self._own = segment.status(block)

    def __repr__(self) -> str:
        return f"<SharedBucket tat={self._tat.load()} waiting={self.waiting}>"

    @property
    def rate(self) -> BucketRate:
        """Return the rate that the bucket was made with."""
        return self._rate

    @property
    def waiting(self) -> int:
        """Return the tokens that this worker has taken ahead of their time and not yet used."""
        return self._own[_WAITING]

    def take(self, n: int, now_ns: int) -> Taken:
        """Take tokens for a batch of `n` requests in one operation. now_ns: CLOCK_MONOTONIC."""
        rate = self._rate
        tat = self._tat
        seen = tat.load()
        while True:
            taken = take(rate, seen, now_ns, n)
            if taken.tat == seen:  # all refused, or no limit
                return taken
            found = tat.cas(seen, taken.tat)
            if found == seen:
                break
            seen = found
        if taken.offset_ns + (taken.granted - 1) * taken.interval_ns > 0:
            self._own[_WAITING] += taken.waiting
        return taken

    def used_wait(self) -> None:
        """Note that a waiting token is due and about to be used. Call it before the request goes out."""
        self._own[_WAITING] -= 1

    def refund(self, n: int = 1) -> None:
        """Give back `n` waiting tokens whose clients left before they were due."""
        self._own[_WAITING] -= n
        self._tat.fetch_sub(n * self._rate.interval_ns)

    def remaining(self, now_ns: int) -> int:
        """Return how many requests could pass at once now."""
        return remaining(self._rate, self._tat.load(), now_ns)

    def full_in_ns(self, now_ns: int) -> int:
        """Return the time until the bucket is full again."""
        return full_in_ns(self._rate, self._tat.load(), now_ns)


def reclaim(segment: Segment, rate: BucketRate, block: int) -> int:
    """Give back the waiting tokens of a dead worker; return how many.

    For the supervisor, after it has reaped the worker and before it starts the next one in that block.
    """
    own = segment.status(block)
    waiting = own[_WAITING]
    own[_WAITING] = 0
    segment.bucket_tat().fetch_sub(waiting * rate.interval_ns)
    return waiting
