"""The queue of one worker: who waits for room, who is next, and who is told at once that it is too late.

Knows: who waits, of which caller and class, until when, and how fast the queue drains. Does not know: what an item is,
a clock, or how a waiter is told. docs/queue.md says what it promises, docs/decisions/0019-fair-queue.md why.

- class_floors.py: which class is next         - waiting_deadlines.py: whose time is over
- virtual_tokens.py: which caller of it        - drain_rate.py: how long a newcomer would wait
- push_out.py: who goes when it is full        - standing_queue.py: how long it may

Most requests find the queue empty, or only others that came in the same turn of the loop, and leave it a moment later.
Those of one caller and class are in no order but the one they came in: while they are few, they are in no line.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeAlias, TypeVar

from velox.policy.class_floors import ClassFloors
from velox.policy.drain_rate import DrainRate
from velox.policy.push_out import Room, Shortage
from velox.policy.queue_verdict import ADMITTED, Outcome, Verdict
from velox.policy.standing_queue import StandingQueue
from velox.policy.virtual_tokens import VirtualTokens, Waiting
from velox.policy.waiting_deadlines import WaitingDeadlines
from velox.types import Priority

__all__ = ["ADMITTED", "FairQueue", "Outcome", "Verdict"]

T = TypeVar("T", bound=Hashable)

_CALM_NS: Final = 1_000_000_000  # after so long without anybody left behind, all callers are equal
_BRIEF_NS: Final = 1_000_000  # who is taken as fast as this has not waited for room
_OVERSTAY: Final = 1.5

# One that is offered: item, caller, priority, cost, bytes, offered, deadline.
_Newcomer: TypeAlias = tuple[T, Hashable, Priority, int, int, int, int]


class FairQueue(Generic[T]):
    """Items that wait for room. An item is hashable, not None, and waits at most once at a time.

    depth: most items that may wait. max_bytes: most bytes of them together; an item that is larger may wait alone.
    batch: most items that one take() hands out. timeout_ns: how long any item may wait. floor: what each lower class
    gets of the tokens served at least, and keeps of the places; below 0.33. Times given to the methods never decrease.

    n: how many wait. serviced: to be called with how long it took when an item that was taken has been served.
    """

    __slots__ = (
        *("_batch", "_classes", "_contended_ns", "_deadlines", "_drain", "_equal_ns", "_few", "_few_until_ns"),
        *("_floor", "_floors", "_may_stand", "_n_bytes", "_now_ns", "_refused_ns", "_room", "_standing", "_timeout_ns"),
        *("_waiting", "n", "serviced"),
    )

    def __init__(self, depth: int, max_bytes: int, batch: int, timeout_ns: int, floor: float) -> None:
        self._batch: Final = batch
        self._timeout_ns: Final = timeout_ns
        self._floor: Final = floor
        self.n = 0
        self._n_bytes = 0
        # All that wait, while they are of one caller and class, and no more than a batch. Then nothing is in the lines.
        self._few: list[_Newcomer[T]] = []
        self._few_until_ns = 0  # the first of their deadlines
        self._waiting: Final[OrderedDict[T, Waiting[T]]] = OrderedDict()  # oldest first
        self._classes: Final[tuple[VirtualTokens[T], ...]] = tuple(VirtualTokens() for _ in Priority)
        self._deadlines: Final[WaitingDeadlines[T]] = WaitingDeadlines()
        self._floors: Final = ClassFloors(len(Priority), floor)
        self._room: Final[Room[T]] = Room(depth, max_bytes, floor, self._classes)
        self._drain: Final = DrainRate()
        self._standing: Final = StandingQueue()
        self.serviced: Final = self._standing.serviced
        self._may_stand = False
        self._refused_ns = -_CALM_NS  # somebody would have waited for too long last
        self._contended_ns = -_CALM_NS  # somebody was left behind last
        self._equal_ns = 0  # all callers became equal last
        self._now_ns = 0  # the time, as told last while somebody was in the lines

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"<FairQueue {self.n} {self.depth_by_class} {self._drain!r}>"

    @property
    def n_bytes(self) -> int:
        """Return the bytes of all that wait."""
        return self._n_bytes

    @property
    def depth_by_class(self) -> tuple[int, ...]:
        """Return how many wait in each class, in the order of Priority."""
        depth = [lines.n for lines in self._classes]
        if self._few:
            depth[self._few[0][2]] = len(self._few)
        return tuple(depth)

    @property
    def next_deadline_ns(self) -> int | None:
        """Return when the next item becomes late, if nothing is taken before; None if nothing waits."""
        if self._few:
            return self._few_until_ns
        return self._deadlines.next_ns()

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
            self._n_bytes = n_bytes
            self._few_until_ns = deadline_ns
            self._few.append(newcomer)
            return ADMITTED
        if self._few:
            if self._joins_few(newcomer):
                return ADMITTED
            self._line_up(now_ns)
        return self._offer(newcomer)

    def pass_through(self, caller: Hashable, priority: Priority, cost: int, now_ns: int) -> None:
        """Do what offer() and take() do together, for one that finds the queue empty and room for itself."""
        if self._may_stand:
            self._may_stand = self._standing.found_room(now_ns)
        if now_ns - self._contended_ns < _CALM_NS:
            self._classes[priority].serve_alone(caller, cost or 1)

    def take(self, room: int, now_ns: int) -> list[tuple[T, int]]:
        """Remove those that are next, up to `room` and one batch; return each with how long it waited, in ns.

        Does not look at deadlines: call late() first. Charges each caller the item's cost; see correct().
        """
        if room <= 0 or not self.n:
            return []
        self._now_ns = now_ns
        few = self._few
        if len(few) > 1:
            if self.n <= room and self._floors.is_even:
                return self._take_few(now_ns)
            self._line_up(now_ns)
        elif few:
            alone = self._forget_few()[0]
            waited_ns = now_ns - alone[5]
            if waited_ns > _BRIEF_NS:
                self._waited_alone(alone, now_ns)
                return [(alone[0], waited_ns)]
            if self._may_stand:
                self._may_stand = self._standing.found_room(now_ns)
            if now_ns - self._contended_ns < _CALM_NS:
                self._classes[alone[2]].serve_alone(alone[1], alone[3] or 1)
            return [(alone[0], waited_ns)]
        batch: list[tuple[T, int]] = []
        for _ in range(min(room, self._batch, self.n)):
            item, waiting = self._serve()
            self._gone(item, waiting)
            batch.append((item, now_ns - waiting.offered_ns))
        left_behind = self.n > 0 and len(batch) == room
        if left_behind:
            self._contended_ns = now_ns
        self._drain.took(len(batch), now_ns, self._standing.mean_ns, left_behind=left_behind)
        if not self.n:
            self._emptied()
        return batch

    def late(self, now_ns: int) -> list[T]:
        """Remove and return the items whose deadline has come, and those that a standing queue kept for too long."""
        if self._few:
            if self._few_until_ns > now_ns:
                return []
            if self.n == 1:
                return [self._forget_few()[0][0]]
            self._line_up(now_ns)
        late: list[T] = []
        self._now_ns = now_ns
        while (waiting := self._deadlines.pop_late(now_ns)) is not None:
            assert waiting.item is not None, "who is late waits"
            late.append(waiting.item)
            self._remove(waiting.item, waiting)
        # Nobody else is sent away while nothing moves at all, or while nobody new has to be turned away for them.
        if self.n and now_ns - self._refused_ns < _CALM_NS and self._drain.flows(now_ns):
            allowed_ns = self._standing.allowed_ns(now_ns)
            if allowed_ns is not None:
                late += self._overstayed(now_ns, allowed_ns)
        return late

    def discard(self, item: T) -> bool:
        """Remove `item` because its client left; False if it no longer waits."""
        if len(self._few) > 1:
            self._line_up(self._now_ns)
        elif self._few:
            if self._few[0][0] != item:
                return False
            self._forget_few()
            return True
        waiting = self._waiting.get(item)
        if waiting is None:
            return False
        self._remove(item, waiting)
        return True

    def correct(self, caller: Hashable, delta: int, *, priority: Priority, taken_ns: int) -> None:
        """Tell what an item really cost: `delta` tokens more than it said, or less (below 0). taken_ns: as for take().

        What was taken before all callers became equal was charged to nobody, or is forgotten: nothing of it comes back.
        """
        if taken_ns >= self._equal_ns:
            if len(self._few) > 1:
                self._line_up(self._now_ns)
            self._classes[priority].correct(caller, delta)

    # -- with few that wait -----------------------------------------------------------------------------

    def _joins_few(self, newcomer: _Newcomer[T]) -> bool:
        """Let one wait with the few that do; False if an order is needed, or it is not sure that it may wait at all."""
        _, caller, priority, _, n_bytes, now_ns, deadline_ns = newcomer
        few, n = self._few, self.n
        first = few[0]
        self._now_ns = now_ns
        if caller != first[1] or priority != first[2] or n >= self._batch or self._drain.interval_ns(now_ns):
            return False
        if n == 1:
            self._not_alone(first, now_ns)
        if not self._room.is_wide(n + 1, self._n_bytes + n_bytes):
            return False
        few.append(newcomer)
        self.n = n + 1
        self._n_bytes += n_bytes
        if deadline_ns < self._few_until_ns:
            self._few_until_ns = deadline_ns
        return True

    def _forget_few(self) -> list[_Newcomer[T]]:
        """Remove, and return, all that wait while these are few."""
        few, self._few = self._few, []
        self.n = self._n_bytes = 0
        return few

    def _take_few(self, now_ns: int) -> list[tuple[T, int]]:
        """Do what take() does, for more than one: as if they had been served one by one."""
        few = self._forget_few()
        costs = [each[3] or 1 for each in few]
        last = costs.pop()
        self._classes[few[0][2]].serve_alone(few[0][1], last, sum(costs))
        self._drain.took(len(few), now_ns, self._standing.mean_ns, left_behind=False)
        self._emptied()
        return [(each[0], now_ns - each[5]) for each in few]

    def _not_alone(self, first: _Newcomer[T], now_ns: int) -> None:
        """A second one has come."""
        self._make_equal(now_ns)
        if first[2]:
            self._room.see(first[2])
        self._standing.filled(first[5])
        self._may_stand = True

    def _line_up(self, now_ns: int) -> None:
        """Put the few that wait into their lines: they are few no more, or not of one caller."""
        few = self._forget_few()
        if len(few) == 1:
            self._not_alone(few[0], now_ns)
        for each in few:
            self._join(each)

    # -- with more than one that waits ------------------------------------------------------------------

    def _waited_alone(self, alone: _Newcomer[T], now_ns: int) -> None:
        """Count one that waited alone, but for room: servers are as busy as if there were more."""
        _, caller, priority, cost, _, offered_ns, _ = alone
        self._make_equal(now_ns)
        self._contended_ns = now_ns
        self._classes[priority].serve_alone(caller, cost or 1)
        self._standing.filled(offered_ns)
        self._standing.emptied(now_ns)
        self._may_stand = True

    def _make_equal(self, now_ns: int) -> None:
        """Forget what callers were charged, if nobody has had to wait for long. Nobody is in the lines."""
        if now_ns - self._contended_ns >= _CALM_NS:
            self._equal_ns = now_ns
            for lines in self._classes:
                lines.forgive()

    def _offer(self, newcomer: _Newcomer[T]) -> Verdict[T]:
        _, caller, priority, _, n_bytes, now_ns, deadline_ns = newcomer
        lines = self._classes[priority]
        self._now_ns = now_ns
        room = self._room
        if priority:
            room.see(priority)
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
        if room.is_wide(self.n + 1, self._n_bytes + n_bytes):
            self._join(newcomer)
            return ADMITTED
        shortage, victims = room.make(priority, lines.line(caller), n_bytes)
        if shortage:
            return Verdict(Outcome.FULL if shortage is Shortage.PLACES else Outcome.FULL_BYTES, wait_ns)
        # The newcomer first: the queue is not empty in between.
        self._join(newcomer)
        pushed_out: list[T] = []
        for waiting in victims:
            assert waiting.item is not None, "who is pushed out waits"
            pushed_out.append(waiting.item)
            self._remove(waiting.item, waiting)
        return Verdict(Outcome.ADMITTED, pushed_out=tuple(pushed_out)) if pushed_out else ADMITTED

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
        if self._room.is_pressed:
            self._room.grew(priority, line)
        self._waiting[item] = waiting
        self.n = len(self._waiting)
        self._n_bytes += n_bytes
        self._deadlines.add(waiting, self.n)

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
        """Remove and return those that were let in before it was known that the queue stands, and have waited too long.

        Not when the queue is short enough: a light caller may have come on top of what the door allows.
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
        self._gone(item, waiting)
        if not self.n:
            self._emptied()

    def _gone(self, item: T, waiting: Waiting[T]) -> None:
        del self._waiting[item]
        waiting.item = None
        self.n -= 1
        self._n_bytes -= waiting.n_bytes

    def _emptied(self) -> None:
        self._deadlines.clear()
        self._drain.emptied()
        self._standing.emptied(self._now_ns)
        self._room.emptied()
