"""Room in a full queue: whether a newcomer fits, and who goes for it if not.

Knows: the limits in count and bytes, and what each class and line holds. Does not know: the order of service, or
deadlines.

A full queue pushes out the newest of the longest line (longest queue drop; Suter et al., INFOCOM 1998), so a caller
that fills the queue loses its own. Nobody is pushed out
- by a caller of a lower class;
- by a caller of its own class whose line would then be as long as the one that lost, so never out of a line of one.

A higher class pushes out of the lowest class that holds more than its floor of the places. These places are kept for a
class from its first request on, so that a flood from above can't fill the queue before it; until then they are
anybody's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Final, Generic, TypeVar

from velox.policy.virtual_tokens import Line, VirtualTokens, Waiting

__all__ = ["LongestLines", "Room", "Shortage"]

T = TypeVar("T", bound=Hashable)

_MOST_PUSHED_OUT: Final = 16  # for one newcomer
_SLACK: Final = 64


class Shortage(enum.IntEnum):
    """What a queue has too little of for a newcomer."""

    NONE = 0
    PLACES = 1
    BYTES = 2


class LongestLines(Generic[T]):
    """Finds the longest line of one class. Costs nothing until it is asked; then O(log n) a change."""

    __slots__ = ("_heap", "_lines", "_measure", "_n_seen")

    def __init__(self, lines: VirtualTokens[T], measure: Callable[[Line[T]], int]) -> None:
        self._lines: Final = lines
        self._measure: Final = measure
        # (-size, number, line): a size may be too large, for lines shrink unseen, but never too small.
        self._heap: list[tuple[int, int, Line[T]]] | None = None
        self._n_seen = 0

    def find(self) -> Line[T] | None:
        """Return the longest line; None if nobody waits."""
        heap = self._heap
        if heap is None or len(heap) > 2 * self._lines.n_lines + _SLACK:
            heap = self._heap = [(-self._measure(line), index, line) for index, line in enumerate(self._lines)]
            heapify(heap)
            self._n_seen = len(heap)
        while heap:
            size, number, line = heap[0]
            now = -self._measure(line)
            if now == size and line.waiting:
                return line
            if line.waiting:
                heapreplace(heap, (now, number, line))
            else:
                heappop(heap)
        return None

    def grew(self, line: Line[T]) -> None:
        """One has joined `line`."""
        heap = self._heap
        if heap is None:
            return
        if len(heap) > 2 * self._lines.n_lines + _SLACK:
            self._heap = None  # found anew when it is needed
            return
        self._n_seen += 1
        heappush(heap, (-self._measure(line), self._n_seen, line))

    def forget(self) -> None:
        """Nobody waits any more."""
        self._heap = None


class _Resource(Generic[T]):
    """One of the two limits: places, or bytes."""

    __slots__ = ("floor", "limit", "longest", "measure", "used")

    def __init__(
        self,
        limit: int,
        floor: float,
        classes: Sequence[VirtualTokens[T]],
        used: Callable[[VirtualTokens[T]], int],
        measure: Callable[[Line[T]], int],
    ) -> None:
        self.limit: Final = limit
        self.floor: Final = int(limit * floor)  # what is kept for a class
        self.used: Final = used
        self.measure: Final = measure
        self.longest: Final = [LongestLines(lines, measure) for lines in classes]


class Room(Generic[T]):
    """The places and the bytes of one queue. classes: the highest first."""

    def __init__(self, depth: int, max_bytes: int, floor: float, classes: Sequence[VirtualTokens[T]]) -> None:
        self._classes: Final = classes
        self._seen: Final = [False] * len(classes)
        self._places: Final[_Resource[T]] = _Resource(
            depth, floor, classes, lambda lines: lines.n, lambda line: len(line.waiting)
        )
        self._bytes: Final[_Resource[T]] = _Resource(
            max_bytes, floor, classes, lambda lines: lines.n_bytes, lambda line: line.n_bytes
        )
        self._kept = 0  # places, for all classes that have been seen
        self._kept_bytes = 0
        self.is_pressed = False  # somebody was looked for to push out: grew() must be told

    def is_wide(self, n: int, n_bytes: int) -> bool:
        """Return True if anybody may join and the queue then holds `n` and `n_bytes`."""
        return n <= self._places.limit - self._kept and n_bytes <= self._bytes.limit - self._kept_bytes

    def see(self, index: int) -> None:
        """A request of class `index` has come: from now on places are kept for it."""
        if not self._seen[index] and index:
            self._seen[index] = True
            self._kept += self._places.floor
            self._kept_bytes += self._bytes.floor

    def make(self, index: int, line: Line[T] | None, n_bytes: int) -> tuple[Shortage, list[Waiting[T]]]:
        """Find room for a newcomer of class `index`; line: that of its caller, if there is one.

        Returns what is short, else who must go for it.
        """
        self.is_pressed = True
        has_bytes, victims = self._make(self._bytes, index, line, n_bytes)
        if not has_bytes:
            return Shortage.BYTES, []
        if victims and victims[0].line.tokens is self._classes[index]:
            return Shortage.NONE, victims  # whoever goes leaves a place as well
        has_places, more = self._make(self._places, index, line, 1, freed=len(victims))
        return (Shortage.NONE, victims + more) if has_places else (Shortage.PLACES, [])

    def grew(self, index: int, line: Line[T]) -> None:
        """One has joined `line` of class `index`."""
        self._places.longest[index].grew(line)
        self._bytes.longest[index].grew(line)

    def emptied(self) -> None:
        """Nobody waits any more."""
        if not self.is_pressed:
            return
        self.is_pressed = False
        for resource in (self._places, self._bytes):
            for longest in resource.longest:
                longest.forget()

    def _make(
        self, resource: _Resource[T], index: int, line: Line[T] | None, need: int, *, freed: int = 0
    ) -> tuple[bool, list[Waiting[T]]]:
        """Find `need` of a resource, of which lower classes give `freed` already; return who must go, if that helps."""
        used = [resource.used(lines) for lines in self._classes]
        kept = sum(resource.floor for seen in self._seen[index + 1 :] if seen)
        over = sum(used) - freed + need - resource.limit
        over_own = sum(used[: index + 1]) + need - (resource.limit - kept)
        if over_own > 0:
            longest = resource.longest[index].find()
            own = 0 if line is None else resource.measure(line)
            if longest is None or longest is line or resource.measure(longest) <= own + need:
                return False, []
            return self._newest(resource, longest, max(over, over_own), len(longest.waiting) - 1)
        if over <= 0:
            return True, []
        for lower in range(len(used) - 1, index, -1):
            if used[lower] > resource.floor:
                longest = resource.longest[lower].find()
                assert longest is not None, "a class that uses something has a line"
                return self._newest(resource, longest, over, len(longest.waiting))
        return False, []

    def _newest(self, resource: _Resource[T], line: Line[T], over: int, most: int) -> tuple[bool, list[Waiting[T]]]:
        """Return the newest of `line` that hold `over` together, if they are not too many."""
        victims: list[Waiting[T]] = []
        newest: Iterator[Waiting[T]] = reversed(line.waiting.values())
        for waiting in islice(newest, min(most, _MOST_PUSHED_OUT)):
            victims.append(waiting)
            over -= 1 if resource is self._places else waiting.n_bytes
            if over <= 0:
                return True, victims
        return False, []
