"""Fair order: which class of those that wait is served next, and which caller of that class.

Knows: who waits in which line, what each caller was served, what each class has earned. Does not know: deadlines, or
limits.

Virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, arXiv:2401.00588): each
caller of a class has a counter of the tokens that it was charged; the line with the lowest counter is served and
charged. Between two callers that both wait all the time, the difference of what they were charged is never more than
one request's worth of each.

A caller that comes back from idle is lifted to the *level*: the counter of the caller that was served last (start-time
fair queueing; Goyal et al., SIGCOMM 1996). So idle time gives no credit, and a caller at the level or below it has no
more history than a new one, which is why it can be forgotten. A caller above the level has a debt, until the level has
risen past it, or until nobody has had to wait for a while: then all are equal again (forgive()).

The lines of idle callers are kept while there are few, since most come back: 1,024, and a seventh of those that wait.
Beyond, the oldest is dropped with its debt.

Class floors. The highest class is served first. Meanwhile each lower class that waits earns `floor` tokens for each
token served. It is served ahead of its turn as soon as it has earned anything, and pays what that cost: so a large
request is not kept out for being large, and over time the class gets exactly its floor. What it gets when no higher
class waits is free. Nothing is saved: a class that does not wait earns only what pays its debt.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

__all__ = ["ClassFloors", "Line", "VirtualTokens", "Waiting"]

T = TypeVar("T", bound=Hashable)

_KEPT_IDLE: Final = 1024
_LOOKS: Final = 8  # lines looked at, for each new one, while there are too many
_SLACK: Final = 64
_NOT_WAITING: Final = 0
# Largest debt of a caller for a request that cost more than estimated. An upstream may report wrong numbers.
_MOST_OWED: Final = 1 << 20


class Waiting(Generic[T]):
    """One that waits. item: None once it has left. cost: tokens, at least 1."""

    __slots__ = ("cost", "deadline_ns", "item", "line", "n_bytes", "offered_ns")

    def __init__(self, item: T, line: Line[T], cost: int, n_bytes: int, offered_ns: int, deadline_ns: int) -> None:
        self.item: T | None = item
        self.line: Final = line
        self.cost: Final = cost
        self.n_bytes: Final = n_bytes
        self.offered_ns: Final = offered_ns
        self.deadline_ns: Final = deadline_ns


class Line(Generic[T]):
    """Those of one caller that wait, oldest first, and the tokens that the caller was charged (counter).

    ticket: which entry of the heap is valid; the order of lines with equal counters.
    """

    __slots__ = ("caller", "cost", "counter", "n_bytes", "ticket", "tokens", "waiting")

    def __init__(self, tokens: VirtualTokens[T], caller: Hashable, counter: int) -> None:
        self.tokens: Final = tokens
        self.caller: Final = caller
        self.counter = counter
        self.cost = 0
        self.n_bytes = 0
        self.ticket = _NOT_WAITING
        # Ordered: a plain dict would walk over the places of those that left to find its first.
        self.waiting: Final[OrderedDict[T, Waiting[T]]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Line {len(self.waiting)} counter={self.counter}>"


class VirtualTokens(Generic[T]):
    """The lines of one class. n, n_bytes, cost: sums over those that wait. n_lines: callers that wait."""

    __slots__ = ("_by_age", "_heap", "_level", "_lines", "_n_tickets", "_top", "cost", "n", "n_bytes", "n_lines")

    def __init__(self) -> None:
        self.n = 0
        self.n_bytes = 0
        self.cost = 0
        self.n_lines = 0
        self._level = 0
        self._top = 0  # no counter is above it
        self._n_tickets = _NOT_WAITING
        self._lines: Final[dict[Hashable, Line[T]]] = {}
        self._by_age: Final[deque[Line[T]]] = deque()  # every line once
        self._heap: list[tuple[int, int, Line[T]]] = []  # of lines that wait; an entry whose ticket is old is nothing

    def __repr__(self) -> str:
        return f"<VirtualTokens {self.n} of {self.n_lines} callers, level={self._level}>"

    def __iter__(self) -> Iterator[Line[T]]:
        """Iterate over the lines with waiting requests."""
        return (line for line in self._lines.values() if line.waiting)

    @property
    def n_known(self) -> int:
        """Return how many callers are remembered."""
        return len(self._lines)

    def line(self, caller: Hashable) -> Line[T] | None:
        """Return the line of `caller`, if there is one."""
        return self._lines.get(caller)

    def join(self, caller: Hashable) -> Line[T]:
        """Return the line of `caller`, which will have a waiting request."""
        line = self._lines.get(caller)
        if line is None:
            line = self._lines[caller] = Line(self, caller, self._level)
            self._by_age.append(line)
            if len(self._lines) > _KEPT_IDLE + self.n_lines:
                self._forget()
        elif not line.waiting and line.counter < self._level:
            line.counter = self._level
        return line

    def push(self, item: T, waiting: Waiting[T]) -> None:
        """Put one at the end of its line."""
        line = waiting.line
        if not line.waiting:
            self.n_lines += 1
            self._enter(line)
        line.waiting[item] = waiting
        line.cost += waiting.cost
        line.n_bytes += waiting.n_bytes
        self.n += 1
        self.cost += waiting.cost
        self.n_bytes += waiting.n_bytes

    def serve(self) -> tuple[T, Waiting[T]]:
        """Remove the oldest of the line that was served least, and charge its caller. A request is waiting."""
        heap = self._heap
        while True:
            counter, ticket, line = heap[0]
            if line.ticket == ticket:
                break
            heappop(heap)
        item, waiting = line.waiting.popitem(last=False)
        cost = waiting.cost
        if counter > self._level:
            self._level = counter
        counter += cost
        line.counter = counter
        if counter > self._top:
            self._top = counter
        line.cost -= cost
        line.n_bytes -= waiting.n_bytes
        self.n -= 1
        self.cost -= cost
        self.n_bytes -= waiting.n_bytes
        if line.waiting:
            self._n_tickets = line.ticket = self._n_tickets + 1
            heapreplace(heap, (counter, line.ticket, line))
        else:
            heappop(heap)
            self._left(line)
        return item, waiting

    def serve_alone(self, caller: Hashable, cost: int, before: int = 0) -> None:
        """Charge `caller` for one that was in no line, for nobody else waited. before: for its own just before that."""
        line = self.join(caller)
        line.counter += before
        if line.counter > self._level:
            self._level = line.counter
        line.counter += cost
        if line.counter > self._top:
            self._top = line.counter

    def remove(self, item: T, waiting: Waiting[T]) -> None:
        """Remove one that is not served: nobody is charged."""
        line = waiting.line
        del line.waiting[item]
        line.cost -= waiting.cost
        line.n_bytes -= waiting.n_bytes
        self.n -= 1
        self.cost -= waiting.cost
        self.n_bytes -= waiting.n_bytes
        if not line.waiting:
            self._left(line)

    def correct(self, caller: Hashable, delta: int) -> None:
        """Charge `delta` tokens more, or less. A caller that was dropped has no debt, so nothing is done."""
        line = self._lines.get(caller)
        if line is None or not delta:
            return
        line.counter = min(line.counter + delta, max(line.counter, self._level + _MOST_OWED))
        if line.counter > self._top:
            self._top = line.counter
        if line.waiting:
            self._enter(line)

    def forgive(self) -> None:
        """Make all callers equal. Nobody waits."""
        assert not self.n, "those that wait keep their order"
        self._level = max(self._level, self._top)

    def n_ahead(self, caller: Hashable) -> int:
        """Return about how many of this class would be served before a newcomer of `caller`.

        Until its turn, each line is served about as many tokens as this one has before it, and one request besides.
        """
        n = self.n
        if not n:
            return 0
        heap = self._heap
        while heap[0][2].ticket != heap[0][1]:
            heappop(heap)
        line = self._lines.get(caller)
        start, n_own = (self._level, 0) if line is None else (line.counter + line.cost, len(line.waiting))
        tokens = max(start, self._level) - heap[0][0]
        if tokens < 0:
            return n_own  # it would be first, but for its own that were corrected
        others = self.n_lines - 1 if n_own else self.n_lines
        return min(n, max(n_own, (others + 1) * tokens * n // self.cost + others))

    def _enter(self, line: Line[T]) -> None:
        self._n_tickets = line.ticket = self._n_tickets + 1
        heap = self._heap
        heappush(heap, (line.counter, line.ticket, line))
        if len(heap) > 2 * self.n_lines + _SLACK:
            self._heap = [entry for entry in heap if entry[2].ticket == entry[1]]
            heapify(self._heap)

    def _left(self, line: Line[T]) -> None:
        line.ticket = _NOT_WAITING
        self.n_lines -= 1

    def _forget(self) -> None:
        """Forget some idle callers, the oldest first."""
        by_age = self._by_age
        for _ in range(min(_LOOKS, len(by_age) - 1)):  # not the newest: a request is about to wait in it
            line = by_age.popleft()
            if line.waiting:
                by_age.append(line)
            else:
                del self._lines[line.caller]
                if len(self._lines) <= _KEPT_IDLE + self.n_lines:
                    return


class ClassFloors:
    """What the classes have earned. Class 0 is the highest. floor: part of the tokens served, below 1 / n_classes."""

    __slots__ = ("_earned", "_floor", "is_even")

    def __init__(self, n_classes: int, floor: float) -> None:
        assert 0 <= floor * n_classes < 1, "the floors leave something for the highest class"
        self._floor: Final = floor
        self._earned: Final = [0.0] * n_classes
        self.is_even = True  # no class has a credit or a debt

    def __repr__(self) -> str:
        return f"<ClassFloors {self._earned}>"

    def choose(self, waiting: Sequence[int]) -> int:
        """Return the class to serve. waiting: how many wait in each; at least one does."""
        top = -1
        for index, n in enumerate(waiting):
            if n:
                if top < 0:
                    top = index
                elif self._earned[index] > 0:
                    return index
        return top

    def served(self, chosen: int, cost: int, waiting: Sequence[int]) -> None:
        """Count `cost` tokens for class `chosen`. waiting: how many waited in each before."""
        earned = self._earned
        top = next(index for index, n in enumerate(waiting) if n)
        if chosen != top:
            earned[chosen] -= cost
        for index in range(1, len(earned)):
            if index > top:
                earned[index] += self._floor * cost
                if not waiting[index]:
                    earned[index] = min(0.0, earned[index])
            else:
                # No higher class waits, so its debt to them is cleared.
                earned[index] = min(0.0, earned[index] + cost)
        self.is_even = not any(earned)
