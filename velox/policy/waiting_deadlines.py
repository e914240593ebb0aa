"""Until when those in a queue may wait, whoever is next to leave it.

Knows: deadlines in order. Does not know: the order of service, or why somebody left.

A heap, for clients have deadlines of their own. One who leaves before stays in it, emptied, until it is found at the
top or more than half are such: then the rest is put in order anew. That is O(log n) each, and memory for twice as many.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from velox.policy.virtual_tokens import Waiting

__all__ = ["WaitingDeadlines"]

T = TypeVar("T", bound=Hashable)

_SLACK: Final = 64


class WaitingDeadlines(Generic[T]):
    """The deadlines of one queue; of equal ones, the one that came first is first."""

    __slots__ = ("_heap", "_n_added")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiting[T]]] = []
        self._n_added = 0

    def __repr__(self) -> str:
        return f"<WaitingDeadlines {len(self._heap)}>"

    def add(self, waiting: Waiting[T], n_waiting: int) -> None:
        """Add one; n_waiting: how many there are with it that have not left."""
        self._n_added += 1
        heap = self._heap
        heappush(heap, (waiting.deadline_ns, self._n_added, waiting))
        if len(heap) > 2 * n_waiting + _SLACK:
            self._heap = [entry for entry in heap if entry[2].item is not None]
            heapify(self._heap)

    def next_ns(self) -> int | None:
        """Return the next deadline; None if nobody waits."""
        heap = self._heap
        while heap and heap[0][2].item is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_late(self, now_ns: int) -> Waiting[T] | None:
        """Remove and return one whose deadline has come; None if there is none."""
        heap = self._heap
        while heap and (heap[0][0] <= now_ns or heap[0][2].item is None):
            waiting = heappop(heap)[2]
            if waiting.item is not None:
                return waiting
        return None

    def clear(self) -> None:
        """Nobody waits any more."""
        self._heap.clear()
