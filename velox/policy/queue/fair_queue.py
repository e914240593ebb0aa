"""The queue of one worker: who waits for room, who is next, and who is refused at once because it would be too late.

Knows: who waits, of which caller and class, until when, and how fast the queue drains. Does not know: what an item is,
a clock, or how a waiter is notified. docs/queue.md says what it promises, docs/decisions/0019-fair-queue.md why.

- virtual_tokens.py: which class is next, and which caller of it
- queue_wait.py: how long a newcomer would wait, and how long it may
- EvictionPolicy, here: who goes when the queue is full

Most requests find the queue empty and room for them: pass_through() serves these in one step. An item that waits alone
is in no line either; the second one puts both into their lines.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from velox.policy.queue.queue_wait import DrainRate, StandingQueue
from velox.policy.queue.virtual_tokens import ClassFloors, Line, VirtualTokens, Waiting
from velox.types import Priority

__all__ = ["ADMITTED", "FairQueue", "Outcome", "Verdict"]

T = TypeVar("T", bound=Hashable)

_CALM_NS: Final = 1_000_000_000  # after so long without anybody left behind, all callers are equal
_BRIEF_NS: Final = 1_000_000  # an item that is taken as fast as this has not waited for room
_OVERSTAY: Final = 1.5
_MOST_EVICTED: Final = 16  # for one newcomer
_SLACK: Final = 64  # entries of a heap that may be obsolete

# One that is offered: item, caller, priority, cost, bytes, offered, deadline.
_Newcomer: TypeAlias = tuple[T, Hashable, Priority, int, int, int, int]


class Outcome(enum.IntEnum):
    """What became of an offer. FULL: VELOX_QUEUE_DEPTH; FULL_BYTES: VELOX_QUEUE_BYTES."""

    ADMITTED = 0
    FULL = 1
    FULL_BYTES = 2
    TOO_LATE = 3


class Verdict(NamedTuple, Generic[T]):
    """The answer to an offer.

    wait_ns: when refused: about how long it would have waited; 0: not known. allowed_ns: when TOO_LATE: how long it
    might have. evicted: those that had to go for it; they no longer wait (as if they had found the queue FULL).
    """

    outcome: Outcome
    wait_ns: int = 0
    allowed_ns: int = 0
    evicted: tuple[T, ...] = ()


# The answer to most offers.
ADMITTED: Final[Verdict[Any]] = Verdict(Outcome.ADMITTED)


class FairQueue(Generic[T]):
    """Items that wait for room. An item is hashable, not None, and waits at most once at a time.

    depth: most items that may wait. max_bytes: most bytes of them together; an item that is larger may wait alone.
    batch: most items that one take() hands out. timeout_ns: how long any item may wait. floor: what each lower class
    gets of the tokens served at least, and keeps of the places; below 0.33. Times given to the methods never decrease.

    n: how many wait. n_bytes: of all that wait. serviced: to be called with how long it took when an item that was
    taken has been served.
    """

    def __init__(self, depth: int, max_bytes: int, batch: int, timeout_ns: int, floor: float) -> None:
        self.batch: Final = batch
        self._timeout_ns: Final = timeout_ns
        self._floor: Final = floor
        self.n = 0
        self.n_bytes = 0
        self._alone: _Newcomer[T] | None = None  # the only one that waits; then nothing is in the lines
        self._waiting: Final[OrderedDict[T, Waiting[T]]] = OrderedDict()  # in the lines, oldest first
        self._classes: Final[tuple[VirtualTokens[T], ...]] = tuple(VirtualTokens() for _ in Priority)
        # Clients have deadlines of their own. An item that left stays in the heap until it is at the top, or until more
        # than half of the entries are such. Of equal deadlines, the one that came first is first.
        self._deadlines: list[tuple[int, int, Waiting[T]]] = []
        self._n_joined = 0
        self._floors: Final = ClassFloors(len(Priority), floor)
        self._eviction: Final[EvictionPolicy[T]] = EvictionPolicy(depth, max_bytes, floor, self._classes)
        self._drain: Final = DrainRate()
        self._standing: Final = StandingQueue()
        self.serviced: Final = self._standing.serviced
        self._may_stand = False
        self._refused_ns = -_CALM_NS  # an item that would have waited for too long was refused last
        self._contended_ns = -_CALM_NS  # somebody was left behind last
        self._equal_ns = 0  # all callers became equal last
        self._now_ns = 0  # the last time that was given while somebody was in the lines

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"<FairQueue {self.n} {self.depth_by_class} {self._drain!r}>"

    def waiting(self) -> list[T]:
        """Return those that wait."""
        return list(self._waiting) if self._alone is None else [self._alone[0]]

    @property
    def depth_by_class(self) -> tuple[int, ...]:
        """Return how many wait in each class, in the order of Priority."""
        depth = [lines.n for lines in self._classes]
        if self._alone is not None:
            depth[self._alone[2]] = 1
        return tuple(depth)

    @property
    def next_deadline_ns(self) -> int | None:
        """Return when the next item becomes late, if nothing is taken before; None if nothing waits."""
        if self._alone is not None:
            return self._alone[6]
        heap = self._deadlines
        while heap and heap[0][2].item is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def offer(
        self,
        item: T,
        now_ns: int,
        *,
        caller: Hashable,
        priority: Priority,
        cost: int,
        n_bytes: int,
        deadline_ns: int,
    ) -> Verdict[T]:
        """Let `item` wait, or say why not. cost: tokens, as estimated; n_bytes: of memory, while it waits.

        deadline_ns: the client's own; the time-out of the queue comes on top.
        """
        latest_ns = now_ns + self._timeout_ns
        if deadline_ns > latest_ns:
            deadline_ns = latest_ns
        if deadline_ns <= now_ns:
            return Verdict(Outcome.TOO_LATE)
        newcomer = (item, caller, priority, cost, n_bytes, now_ns, deadline_ns)
        if not self.n:
            self.n = 1
            self.n_bytes = n_bytes
            self._alone = newcomer
            return ADMITTED
        self._now_ns = now_ns
        if self._alone is not None:
            self._line_up(now_ns)
        return self._offer(newcomer)

    def pass_through(self, caller: Hashable, priority: Priority, cost: int, now_ns: int) -> None:
        """Do what offer() and take() do together, for one that finds the queue empty and room for itself."""
        if self._may_stand:
            self._may_stand = self._standing.found_room(now_ns)
        if now_ns - self._contended_ns < _CALM_NS:
            self._classes[priority].serve_alone(caller, cost or 1)

    def take(self, n_free: int, now_ns: int) -> list[tuple[T, int]]:
        """Remove those that are next, up to `n_free` and one batch; return each with how long it waited, in ns.

        Does not look at deadlines: call late() first. Charges each caller the item's cost; see correct().
        """
        if n_free <= 0 or not self.n:
            return []
        if self._alone is not None:
            return [self._take_alone(now_ns)]
        self._now_ns = now_ns
        batch: list[tuple[T, int]] = []
        for _ in range(min(n_free, self.batch, self.n)):
            item, waiting = self._serve()
            self._forget(item, waiting)
            batch.append((item, now_ns - waiting.offered_ns))
        left_behind = self.n > 0 and len(batch) == n_free
        if left_behind:
            self._contended_ns = now_ns
        self._drain.took(len(batch), now_ns, self._standing.mean_ns, left_behind=left_behind)
        if not self.n:
            self._emptied()
        return batch

    def late(self, now_ns: int) -> list[T]:
        """Remove and return the items whose deadline has come, and those that a standing queue kept for too long."""
        if self._alone is not None:
            return [self._pop_alone()[0]] if self._alone[6] <= now_ns else []
        late: list[T] = []
        self._now_ns = now_ns
        heap = self._deadlines
        while heap and (heap[0][0] <= now_ns or heap[0][2].item is None):
            waiting = heappop(heap)[2]
            if waiting.item is not None:
                late.append(waiting.item)
                self._remove(waiting.item, waiting)
        # No others are removed while nothing moves at all, or while no newcomer has to be refused for them.
        if self.n and now_ns - self._refused_ns < _CALM_NS and self._drain.flows(now_ns):
            allowed_ns = self._standing.allowed_ns(now_ns)
            if allowed_ns is not None:
                late += self._overstayed(now_ns, allowed_ns)
        return late

    def discard(self, item: T) -> bool:
        """Remove `item` because its client left; False if it no longer waits."""
        if self._alone is not None:
            if self._alone[0] != item:
                return False
            self._pop_alone()
            return True
        waiting = self._waiting.get(item)
        if waiting is None:
            return False
        self._remove(item, waiting)
        return True

    def correct(self, caller: Hashable, delta: int, *, priority: Priority, taken_ns: int) -> None:
        """Correct what an item cost by `delta` tokens: more than estimated, or less (below 0). taken_ns: as for take().

        What was taken before all callers became equal was charged to nobody, or is forgotten: nothing of it comes back.
        """
        if taken_ns >= self._equal_ns:
            self._classes[priority].correct(caller, delta)

    # -- with one that waits ------------------------------------------------------------------------

    def _pop_alone(self) -> _Newcomer[T]:
        alone = self._alone
        assert alone is not None, "the caller has checked"
        self._alone = None
        self.n = self.n_bytes = 0
        return alone

    def _take_alone(self, now_ns: int) -> tuple[T, int]:
        item, caller, priority, cost, _, offered_ns, _ = self._pop_alone()
        waited_ns = now_ns - offered_ns
        if waited_ns <= _BRIEF_NS:
            self.pass_through(caller, priority, cost, now_ns)
        else:
            # It waited for room: servers are as busy as if there were more.
            self._make_equal(now_ns)
            self._contended_ns = now_ns
            self._classes[priority].serve_alone(caller, cost or 1)
            self._standing.filled(offered_ns)
            self._standing.emptied(now_ns)
            self._may_stand = True
        return item, waited_ns

    def _line_up(self, now_ns: int) -> None:
        """Put the one that waits alone into its line, as a second one has come."""
        first = self._pop_alone()
        self._make_equal(now_ns)
        self._eviction.reserve_for(first[2])
        self._standing.filled(first[5])
        self._may_stand = True
        self._join(first)

    def _make_equal(self, now_ns: int) -> None:
        """Forget what callers were charged, if nobody has had to wait for long. Nobody is in the lines."""
        if now_ns - self._contended_ns >= _CALM_NS:
            self._equal_ns = now_ns
            for lines in self._classes:
                lines.forgive()

    # -- with more than one that waits ------------------------------------------------------------------

    def _offer(self, newcomer: _Newcomer[T]) -> Verdict[T]:
        _, caller, priority, _, n_bytes, now_ns, deadline_ns = newcomer
        self._eviction.reserve_for(priority)
        wait_ns = 0
        interval_ns = self._drain.interval_ns(now_ns)
        if interval_ns:
            allowed_ns = deadline_ns - now_ns
            standing_ns = self._standing.allowed_ns(now_ns)
            if standing_ns is not None and standing_ns < allowed_ns:
                allowed_ns = standing_ns
            # If even the last place is good enough, it does not matter which one this is.
            if (self.n + 1) * interval_ns > allowed_ns:
                wait_ns = self._wait_ns(caller, priority, interval_ns)
                if wait_ns > allowed_ns:
                    self._refused_ns = now_ns
                    return Verdict(Outcome.TOO_LATE, wait_ns, allowed_ns)
        if self._eviction.has_room(self.n + 1, self.n_bytes + n_bytes):
            self._join(newcomer)
            return ADMITTED
        outcome, victims = self._eviction.find(priority, self._classes[priority].line(caller), n_bytes)
        if outcome is not Outcome.ADMITTED:
            return Verdict(outcome, wait_ns)
        # The newcomer first: the queue is not empty in between.
        self._join(newcomer)
        evicted: list[T] = []
        for waiting in victims:
            assert waiting.item is not None, "who is evicted waits"
            evicted.append(waiting.item)
            self._remove(waiting.item, waiting)
        return Verdict(Outcome.ADMITTED, evicted=tuple(evicted)) if evicted else ADMITTED

    def _wait_ns(self, caller: Hashable, priority: Priority, interval_ns: float) -> int:
        """Return about how long a newcomer would wait; 0 if it would be the next: one may always wait for that."""
        n_ahead = self._classes[priority].n_ahead(caller)
        n_higher = sum([lines.n for lines in self._classes[:priority]])
        if n_higher:
            n_first = n_higher + n_ahead
            # A class waits for the higher ones, but no longer than its floor takes.
            n_ahead = min(n_first, int(n_ahead / self._floor)) if self._floor else n_first
        # All of them, and itself: each goes when one that is being served has ended.
        return round((n_ahead + 1) * interval_ns) if n_ahead else 0

    def _join(self, newcomer: _Newcomer[T]) -> None:
        item, caller, priority, cost, n_bytes, offered_ns, deadline_ns = newcomer
        lines = self._classes[priority]
        line = lines.join(caller)
        waiting = Waiting(item, line, cost or 1, n_bytes, offered_ns, deadline_ns)
        lines.push(item, waiting)
        self._eviction.grew(priority, line)
        self._waiting[item] = waiting
        self.n = len(self._waiting)
        self.n_bytes += n_bytes
        self._n_joined += 1
        heappush(self._deadlines, (deadline_ns, self._n_joined, waiting))
        if len(self._deadlines) > 2 * self.n + _SLACK:
            self._deadlines = [entry for entry in self._deadlines if entry[2].item is not None]
            heapify(self._deadlines)

    def _serve(self) -> tuple[T, Waiting[T]]:
        floors, classes = self._floors, self._classes
        for lines in classes:
            if lines.n:
                break
        if lines.n == self.n and floors.is_even:
            return lines.serve()  # one class is in use
        depths = [lines.n for lines in classes]
        chosen = floors.choose(depths)
        item, waiting = classes[chosen].serve()
        floors.served(chosen, waiting.cost, depths)
        return item, waiting

    def _overstayed(self, now_ns: int, allowed_ns: int) -> list[T]:
        """Remove and return those that were admitted before the queue was known to stand, and have waited too long.

        Not when the queue is short enough: a light caller may have come on top of what offer() allows.
        """
        overstayed: list[T] = []
        interval_ns = self._drain.interval_ns(now_ns)
        since_ns = now_ns - round(allowed_ns * _OVERSTAY)
        while self.n * interval_ns > 2 * allowed_ns:
            item, waiting = next(iter(self._waiting.items()))
            if waiting.offered_ns > since_ns:
                break
            overstayed.append(item)
            self._remove(item, waiting)
        return overstayed

    def _remove(self, item: T, waiting: Waiting[T]) -> None:
        """Remove one that is not served."""
        waiting.line.tokens.remove(item, waiting)
        self._forget(item, waiting)
        if not self.n:
            self._emptied()

    def _forget(self, item: T, waiting: Waiting[T]) -> None:
        del self._waiting[item]
        waiting.item = None
        self.n -= 1
        self.n_bytes -= waiting.n_bytes

    def _emptied(self) -> None:
        self._deadlines.clear()
        self._drain.emptied()
        self._standing.emptied(self._now_ns)
        self._eviction.emptied()


class EvictionPolicy(Generic[T]):
    """Whether a newcomer fits into a queue, by places and bytes, and who goes if not. classes: the highest first.

    A full queue evicts the newest of the longest line (longest queue drop; Suter et al., INFOCOM 1998), so a caller
    that fills the queue loses its own items. Nobody is evicted
    - by a caller of a lower class;
    - by a caller of its own class whose line would then be as long as the one that lost, so never out of a line of one.

    A higher class evicts from the lowest class that holds more than its floor of the places. These places are reserved
    for a class from its first request on, so that a flood from above can't fill the queue before it; until then anybody
    may use them.
    """

    def __init__(self, depth: int, max_bytes: int, floor: float, classes: Sequence[VirtualTokens[T]]) -> None:
        self._classes: Final = classes
        self._seen: Final = [False] * len(classes)
        self._places: Final[_Resource[T]] = _Resource(
            depth, floor, classes, lambda lines: lines.n, lambda line: len(line.waiting)
        )
        self._bytes: Final[_Resource[T]] = _Resource(
            max_bytes, floor, classes, lambda lines: lines.n_bytes, lambda line: line.n_bytes
        )
        self._is_tracking = False  # somebody was looked for to evict

    def has_room(self, n: int, n_bytes: int) -> bool:
        """Return True if anybody may join and the queue then holds `n` and `n_bytes`."""
        return n <= self._places.free_for_all and n_bytes <= self._bytes.free_for_all

    def reserve_for(self, index: int) -> None:
        """A request of class `index` has come: from now on its floor is reserved for it."""
        if index and not self._seen[index]:
            self._seen[index] = True
            self._places.free_for_all -= self._places.floor
            self._bytes.free_for_all -= self._bytes.floor

    def find(self, index: int, line: Line[T] | None, n_bytes: int) -> tuple[Outcome, list[Waiting[T]]]:
        """Find room for a newcomer of class `index`; line: that of its caller, if there is one.

        Returns FULL_BYTES, FULL, or ADMITTED with those who must go for it.
        """
        self._is_tracking = True
        victims = self._find(self._bytes, index, line, n_bytes)
        if victims is None:
            return Outcome.FULL_BYTES, []
        if victims and victims[0].line.tokens is self._classes[index]:
            return Outcome.ADMITTED, victims  # whoever goes leaves a place as well
        more = self._find(self._places, index, line, 1, freed=len(victims))
        return (Outcome.FULL, []) if more is None else (Outcome.ADMITTED, victims + more)

    def grew(self, index: int, line: Line[T]) -> None:
        """One has joined `line` of class `index`."""
        if self._is_tracking:
            self._places.longest[index].grew(line)
            self._bytes.longest[index].grew(line)

    def emptied(self) -> None:
        """Nobody waits any more."""
        if self._is_tracking:
            self._is_tracking = False
            for longest in (*self._places.longest, *self._bytes.longest):
                longest.forget()

    def _find(
        self, resource: _Resource[T], index: int, line: Line[T] | None, need: int, *, freed: int = 0
    ) -> list[Waiting[T]] | None:
        """Find `need` of a resource, of which lower classes give `freed` already; return who must go, if that helps."""
        used = [resource.used(lines) for lines in self._classes]
        reserved = sum(resource.floor for seen in self._seen[index + 1 :] if seen)
        over = sum(used) - freed + need - resource.limit
        over_own = sum(used[: index + 1]) + need - (resource.limit - reserved)
        if over_own > 0:
            longest = resource.longest[index].find()
            own = 0 if line is None else resource.measure(line)
            if longest is None or longest is line or resource.measure(longest) <= own + need:
                return None
            return self._newest(resource, longest, max(over, over_own), len(longest.waiting) - 1)
        if over <= 0:
            return []
        for lower in range(len(used) - 1, index, -1):
            if used[lower] > resource.floor:
                longest = resource.longest[lower].find()
                assert longest is not None, "a class that uses something has a line"
                return self._newest(resource, longest, over, len(longest.waiting))
        return None

    def _newest(self, resource: _Resource[T], line: Line[T], over: int, most: int) -> list[Waiting[T]] | None:
        """Return the newest of `line` that hold `over` together; None if they are too many."""
        victims: list[Waiting[T]] = []
        newest: Iterator[Waiting[T]] = reversed(line.waiting.values())
        for waiting in islice(newest, min(most, _MOST_EVICTED)):
            victims.append(waiting)
            over -= 1 if resource is self._places else waiting.n_bytes
            if over <= 0:
                return victims
        return None


class _Resource(Generic[T]):
    """One of the two limits: places, or bytes. floor: reserved for a class. free_for_all: not reserved."""

    def __init__(
        self,
        limit: int,
        floor: float,
        classes: Sequence[VirtualTokens[T]],
        used: Callable[[VirtualTokens[T]], int],
        measure: Callable[[Line[T]], int],
    ) -> None:
        self.limit: Final = limit
        self.free_for_all = limit
        self.floor: Final = int(limit * floor)
        self.used: Final = used
        self.measure: Final = measure
        self.longest: Final = [_LongestLines(lines, measure) for lines in classes]


class _LongestLines(Generic[T]):
    """Finds the longest line of one class. Costs nothing until it is asked; then O(log n) a change."""

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
