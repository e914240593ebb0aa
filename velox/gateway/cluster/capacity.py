"""The requests that wait for a free slot at an upstream: a wait queue for each list of priority levels.

    wait()         wait in the queue of its levels until it is this request's turn and a slot is free; choose then
    notify()       something has ended: in each queue that would find a free slot, the next request has its turn

A request that has had its turn, or leaves, passes the turn on, so that no slot stays unused. Queues that wait for the
same member get its slots in rotation. A queue moves when the first healthy priority level has a free slot; it stands
still while that is full, though later levels are not.

Each is a fair queue (policy/queue/fair_queue.py), as the one before it (front/intake.py): where some upstreams have
limits and others have not, requests leave that one at once, and wait here.

Knows: which request is next, and where a slot is free. Does not know: how a choice is made (routing.py).
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, TypeAlias

from velox.errors import Reason, VeloxError
from velox.gateway.cluster.group import Attempt, PriorityLevel
from velox.policy.queue.fair_queue import ADMITTED, FairQueue, Outcome, Verdict
from velox.types import Priority

__all__ = ["CapacityWaiters", "QueueTicket"]

_Levels: TypeAlias = tuple[PriorityLevel, ...]
_Turn: TypeAlias = asyncio.Future[None]
_NS_PER_S: Final = 1_000_000_000
_LATEST_NS: Final = 1 << 62


class QueueTicket(NamedTuple):
    """What decides when it is a request's turn: its caller, its class, and its cost in tokens."""

    caller: Hashable = b""
    priority: Priority = Priority.NORMAL
    cost: int = 1


class _WaitQueue:
    """Requests that wait for the same levels. first: had a turn, and found the slot taken; served before the others."""

    __slots__ = ("fair", "first")

    def __init__(self, most: int, floor: float) -> None:
        self.first: Final[deque[_Turn]] = deque()
        self.fair: Final[FairQueue[_Turn]] = FairQueue(most, sys.maxsize, 1, _LATEST_NS, floor)

    def __len__(self) -> int:
        return len(self.first) + self.fair.n

    def next(self, now_ns: int) -> _Turn:
        """Remove and return who is next."""
        if self.first:
            return self.first.popleft()
        ((turn, _),) = self.fair.take(1, now_ns)
        return turn

    def discard(self, turn: _Turn) -> None:
        """Its request has left."""
        if turn in self.first:
            self.first.remove(turn)
        else:
            self.fair.discard(turn)


class CapacityWaiters:
    """The wait queues of one worker. n_waiting: requests in all of them, or about to choose.

    most: requests in one queue, and about as many in all. They count as running, and must leave some of what may run to
    requests that find a slot elsewhere. floor: as in FairQueue.
    """

    __slots__ = ("_floor", "_most", "_queues", "n_waiting")

    def __init__(self, most: int, floor: float = 0.0) -> None:
        self._most: Final = most
        self._floor: Final = floor
        # Only those with waiting requests, as each end of a request looks at all. The latest to get a slot is last.
        self._queues: Final[dict[_Levels, _WaitQueue]] = {}
        self.n_waiting = 0

    def __repr__(self) -> str:
        return f"<CapacityWaiters {[len(queue) for queue in self._queues.values()]}>"

    async def wait(
        self, levels: _Levels, choose: Callable[[float], Attempt | None], until_s: float, ticket: QueueTicket
    ) -> Attempt:
        """Wait for a turn; return what is chosen then. choose: given the time; None: no slot is free after all.

        Raises VeloxError: QUEUE_FULL at once, or later where another one has the better ticket; QUEUE_TIMEOUT at
        `until_s`, or at once where the turn would come later; or what `choose` raises.
        """
        loop = asyncio.get_running_loop()
        turn = self._join(levels, until_s, ticket, loop)
        attempt: Attempt | None = None
        self.n_waiting += 1
        try:
            async with asyncio.timeout_at(until_s):
                while attempt is None:
                    await self._wait_turn(levels, turn)
                    attempt = choose(loop.time())
                    if attempt is None:  # another one was faster: it is still the first one
                        turn = loop.create_future()
                        self._queue(levels).first.appendleft(turn)
        except TimeoutError:
            raise _late() from None
        finally:
            self.n_waiting -= 1
            self._has_left(levels, has_place=attempt is not None)
            self.notify(loop.time())  # there may be more than one place, or it left with one
        return attempt

    def notify(self, now_s: float) -> None:
        """Give the next request of each queue its turn, where a slot is free."""
        for levels, queue in self._queues.items():
            while queue and _has_free_slot(levels, now_s):
                turn = queue.next(_ns(now_s))
                if not turn.done():
                    turn.set_result(None)
                    break

    def _queue(self, levels: _Levels) -> _WaitQueue:
        queue = self._queues.get(levels)
        if queue is None:
            queue = self._queues[levels] = _WaitQueue(self._most, self._floor)
        return queue

    def _join(self, levels: _Levels, until_s: float, ticket: QueueTicket, loop: asyncio.AbstractEventLoop) -> _Turn:
        """Join a queue. Raises VeloxError."""
        queue = self._queues.get(levels)
        # The longest queue takes one in all the same: another request may be evicted from it.
        if self.n_waiting >= self._most and (queue is None or 2 * len(queue) <= self._most):
            raise self._full(self.n_waiting)
        turn: _Turn = loop.create_future()
        verdict = self._queue(levels).fair.offer(
            turn,
            _ns(loop.time()),
            caller=ticket.caller,
            priority=ticket.priority,
            cost=ticket.cost,
            n_bytes=0,
            deadline_ns=_ns(until_s),
        )
        if verdict is not ADMITTED:
            for other in verdict.evicted:
                if not other.done():  # its request may leave in this very turn
                    other.set_exception(self._full(self.n_waiting))
                    other.exception()
            if verdict.outcome is not Outcome.ADMITTED:
                self._has_left(levels, has_place=False)
                raise self._refused(verdict)
        return turn

    async def _wait_turn(self, levels: _Levels, turn: _Turn) -> None:
        try:
            await turn
        except asyncio.CancelledError:
            queue = self._queues.get(levels)
            if queue is not None:
                queue.discard(turn)
            raise

    def _has_left(self, levels: _Levels, *, has_place: bool) -> None:
        """Note that one has left a queue. has_place: with a slot: the other queues come before this one now."""
        queue = self._queues.get(levels)
        if not queue or has_place:
            self._queues.pop(levels, None)
        if queue and has_place:
            self._queues[levels] = queue

    def _refused(self, verdict: Verdict[_Turn]) -> VeloxError:
        if verdict.outcome is not Outcome.TOO_LATE:
            return self._full(self.n_waiting)
        if not verdict.wait_ns:
            return _late()
        wait_s = verdict.wait_ns / _NS_PER_S
        message = f"this request would wait about {wait_s:.1f} s for a free slot at its upstream (`concurrency`)"
        return VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=max(1.0, wait_s))

    def _full(self, n_waiting: int) -> VeloxError:
        message = f"{n_waiting} requests wait in this worker for a free slot at their upstreams (`concurrency`)"
        return VeloxError(Reason.QUEUE_FULL, message, retry_after_s=1.0)


def _late() -> VeloxError:
    message = "no upstream of this request's route had a free slot in time (`concurrency`)"
    return VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0)


def _ns(time_s: float) -> int:
    return _LATEST_NS if time_s == math.inf else round(time_s * _NS_PER_S)


def _has_free_slot(levels: _Levels, now_s: float) -> bool:
    """Say whether RouteCursor.first() would find room. Where nobody is well it is to look for itself."""
    for group, closed in levels:
        has_room = group.has_room(now_s, closed)
        if has_room is not None:
            return has_room
    return True
