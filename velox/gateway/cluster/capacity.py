"""The requests that wait for capacity at an upstream: a queue for each way through the routes.

    wait()         into the line, until it is one's turn and there is room all the same; then one's choice
    notify()       something has ended: who is next in each line that would find room has its turn

Whoever has had a turn, or leaves, passes it on, so that no room is left unused. Lines that wait for the same member get
its places in turn. A queue moves when the first healthy priority level has a free slot.
A line stands still while these are full, though others are not.

A line is a fair queue of its own (policy/queue/fair_queue.py), as the one before it: where some upstreams have limits
and others have not, requests leave that one at once, and wait here.

Knows: who is next, and where there is room. Does not know: how a choice is made (routing.py), or what took the room.
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

__all__ = ["CapacityWaiters", "Claim"]

_Levels: TypeAlias = tuple[PriorityLevel, ...]
_Turn: TypeAlias = asyncio.Future[None]
_NS_PER_S: Final = 1_000_000_000
_LATEST_NS: Final = 1 << 62


class Claim(NamedTuple):
    """What decides when it is a request's turn: whose it is, its class, and what it costs in tokens."""

    caller: Hashable = b""
    priority: Priority = Priority.NORMAL
    cost: int = 1


class _Line:
    """Those who wait for the same levels. first: who had a turn, and found the place taken."""

    __slots__ = ("first", "queue")

    def __init__(self, most: int, floor: float) -> None:
        self.first: Final[deque[_Turn]] = deque()
        self.queue: Final[FairQueue[_Turn]] = FairQueue(most, sys.maxsize, 1, _LATEST_NS, floor)

    def __len__(self) -> int:
        return len(self.first) + self.queue.n

    def next(self, now_ns: int) -> _Turn:
        """Remove and return who is next."""
        if self.first:
            return self.first.popleft()
        ((turn, _),) = self.queue.take(1, now_ns)
        return turn

    def discard(self, turn: _Turn) -> None:
        """Its request has left."""
        if turn in self.first:
            self.first.remove(turn)
        else:
            self.queue.discard(turn)


class CapacityWaiters:
    """The lines of one worker. n_waiting: in all of them, or about to look for room.

    most: places of a line, and about as many of all. They count as running, and must leave some of what may run to
    requests that have room elsewhere. floor: as in FairQueue.
    """

    __slots__ = ("_floor", "_lines", "_most", "n_waiting")

    def __init__(self, most: int, floor: float = 0.0) -> None:
        self._most: Final = most
        self._floor: Final = floor
        # Only those with waiting requests: each end of a request looks at all of them. Who got a place last is last.
        self._lines: Final[dict[_Levels, _Line]] = {}
        self.n_waiting = 0

    def __repr__(self) -> str:
        return f"<CapacityWaiters {[len(line) for line in self._lines.values()]}>"

    async def wait(
        self, levels: _Levels, choose: Callable[[float], Attempt | None], until_s: float, claim: Claim
    ) -> Attempt:
        """Wait for a turn; return what is chosen then. choose: given the time; None: there is no room after all.

        Raises VeloxError: QUEUE_FULL at once, or later where another one has the better claim; QUEUE_TIMEOUT at
        `until_s`, or at once where the turn would come later; or what `choose` raises.
        """
        loop = asyncio.get_running_loop()
        turn = self._join(levels, until_s, claim, loop)
        attempt: Attempt | None = None
        self.n_waiting += 1
        try:
            async with asyncio.timeout_at(until_s):
                while attempt is None:
                    await self._wait_turn(levels, turn)
                    attempt = choose(loop.time())
                    if attempt is None:  # another one was faster: it is still the first one
                        turn = loop.create_future()
                        self._line(levels).first.appendleft(turn)
        except TimeoutError:
            raise _late() from None
        finally:
            self.n_waiting -= 1
            self._has_left(levels, has_place=attempt is not None)
            self.notify(loop.time())  # there may be more than one place, or it left with one
        return attempt

    def notify(self, now_s: float) -> None:
        """Give who is next in each line a turn if there is room."""
        for levels, line in self._lines.items():
            while line and _has_room(levels, now_s):
                turn = line.next(_ns(now_s))
                if not turn.done():
                    turn.set_result(None)
                    break

    def _line(self, levels: _Levels) -> _Line:
        line = self._lines.get(levels)
        if line is None:
            line = self._lines[levels] = _Line(self._most, self._floor)
        return line

    def _join(self, levels: _Levels, until_s: float, claim: Claim, loop: asyncio.AbstractEventLoop) -> _Turn:
        """Take a place in a line. Raises VeloxError."""
        line = self._lines.get(levels)
        # A line that has the most of the places has one for each: somebody else may have to leave it.
        if self.n_waiting >= self._most and (line is None or 2 * len(line) <= self._most):
            raise self._full(self.n_waiting)
        turn: _Turn = loop.create_future()
        verdict = self._line(levels).queue.offer(
            turn,
            _ns(loop.time()),
            caller=claim.caller,
            priority=claim.priority,
            cost=claim.cost,
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
            line = self._lines.get(levels)
            if line is not None:
                line.discard(turn)
            raise

    def _has_left(self, levels: _Levels, *, has_place: bool) -> None:
        """One has left a line. has_place: the other lines come before this one now."""
        line = self._lines.get(levels)
        if not line or has_place:
            self._lines.pop(levels, None)
        if line and has_place:
            self._lines[levels] = line

    def _refused(self, verdict: Verdict[_Turn]) -> VeloxError:
        if verdict.outcome is not Outcome.TOO_LATE:
            return self._full(self.n_waiting)
        if not verdict.wait_ns:
            return _late()
        wait_s = verdict.wait_ns / _NS_PER_S
        message = f"this request would wait about {wait_s:.1f} s for room at its overloaded upstream (`concurrency`)"
        return VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=max(1.0, wait_s))

    def _full(self, n_waiting: int) -> VeloxError:
        message = f"{n_waiting} requests wait in this worker for room at their upstreams (`concurrency`)"
        return VeloxError(Reason.QUEUE_FULL, message, retry_after_s=1.0)


def _late() -> VeloxError:
    message = "no upstream of this request's route had room for it in time (`concurrency`)"
    return VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0)


def _ns(time_s: float) -> int:
    return _LATEST_NS if time_s == math.inf else round(time_s * _NS_PER_S)


def _has_room(levels: _Levels, now_s: float) -> bool:
    """Say whether RouteCursor.first() would find room. Where nobody is well it is to look for itself."""
    for group, closed in levels:
        has_room = group.has_room(now_s, closed)
        if has_room is not None:
            return has_room
    return True
