"""The admission queue of one worker: bounded, first in first out, drained in batches.

Knows: who waits, since when, and who has waited too long. Does not know: what an item is, a clock, or how a
waiter is told.

Every operation takes constant time an item, and an item that is discarded is gone at once, so memory is
bounded by `depth` whatever clients do. An ordered dict gives both: a deque would have to keep the place of
an item that left, and a plain dict walks over the places of removed items to find its first one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["AdmissionQueue"]

T = TypeVar("T")


class AdmissionQueue(Generic[T]):
    """Items that wait for room. An item is hashable and waits at most once at a time.

    depth: most items that may wait. batch: most items that one take() hands out.
    timeout_ns: how long an item may wait. Times given to the methods never decrease.
    """

    __slots__ = ("_batch", "_depth", "_timeout_ns", "_waiting")

    def __init__(self, depth: int, batch: int, timeout_ns: int) -> None:
        self._depth = depth
        self._batch = batch
        self._timeout_ns = timeout_ns
        self._waiting: OrderedDict[T, int] = OrderedDict()  # item -> when it came, oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"<AdmissionQueue {len(self._waiting)} of {self._depth}>"

    @property
    def next_deadline_ns(self) -> int | None:
        """Return when the oldest item becomes late; None if nothing waits."""
        for offered_ns in self._waiting.values():
            return offered_ns + self._timeout_ns
        return None

    def offer(self, item: T, now_ns: int) -> bool:
        """Let `item` wait; False if the queue is full (reason queue_full)."""
        waiting = self._waiting
        if len(waiting) >= self._depth:
            return False
        waiting[item] = now_ns
        return True

    def take(self, room: int, now_ns: int) -> list[tuple[T, int]]:
        """Remove the oldest items, up to `room` and one batch; return each with how long it waited, in ns.

        Does not look at the time-out: call late() first.
        """
        waiting = self._waiting
        count = min(room, self._batch, len(waiting))
        batch: list[tuple[T, int]] = []
        for _ in range(count):
            item, offered_ns = waiting.popitem(last=False)
            batch.append((item, now_ns - offered_ns))
        return batch

    def late(self, now_ns: int) -> list[T]:
        """Remove and return the items that have waited for the time-out or longer (reason queue_timeout)."""
        waiting = self._waiting
        limit_ns = now_ns - self._timeout_ns
        late: list[T] = []
        # One clock for all: the first that is in time ends the search.
        for item, offered_ns in waiting.items():
            if offered_ns > limit_ns:
                break
            late.append(item)
        for item in late:
            del waiting[item]
        return late

    def discard(self, item: T) -> bool:
        """Remove `item` because its client left; False if it no longer waits."""
        return self._waiting.pop(item, None) is not None
