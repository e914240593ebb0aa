"""The requests that wait for capacity at an upstream: a queue for each way through the routes.

    wait()         to the end of the line, until it is one's turn and there is room all the same; then one's choice
    notify()       something has ended: the first of each line that would find room has its turn

Whoever has had a turn, or leaves, passes it on, so that no room is left unused. Lines that wait for the same member get
its places in turn. There is room where RouteCursor.first()
finds some: at the members of the first stage that is well. A line stands still while these are full, though others are
not.

Knows: who came first, and where there is room. Does not know: how a choice is made (routing.py), or what took the room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from velox.errors import Reason, VeloxError
from velox.gateway.group import Attempt, Stage

__all__ = ["CapacityWaiters"]

_Stages: TypeAlias = tuple[Stage, ...]


class CapacityWaiters:
    """The lines of one worker. n_waiting: in all of them, or about to look for room.

    most: who comes when so many wait is refused. They count as running, and must leave some of what may run to requests
    that have room elsewhere.
    """

    __slots__ = ("_lines", "_most", "n_waiting")

    def __init__(self, most: int) -> None:
        self._most: Final = most
        # Only those with waiting requests: each end of a request looks at all of them. Who got a place last is last.
        self._lines: Final[dict[_Stages, deque[asyncio.Future[None]]]] = {}
        self.n_waiting = 0

    def __repr__(self) -> str:
        return f"<CapacityWaiters {[len(line) for line in self._lines.values()]}>"

    async def wait(self, stages: _Stages, choose: Callable[[float], Attempt | None], until_s: float) -> Attempt:
        """Wait for a turn; return what is chosen then. choose: given the time; None: there is no room after all.

        Raises VeloxError: QUEUE_FULL at once, QUEUE_TIMEOUT at `until_s`, or what `choose` raises.
        """
        if self.n_waiting >= self._most:
            message = f"{self.n_waiting} requests wait in this worker for room at their upstreams (`concurrency`)"
            raise VeloxError(Reason.QUEUE_FULL, message, retry_after_s=1.0)
        loop = asyncio.get_running_loop()
        attempt: Attempt | None = None
        is_new = True
        self.n_waiting += 1
        try:
            async with asyncio.timeout_at(until_s):
                while attempt is None:
                    await self._wait_turn(stages, is_new=is_new)
                    attempt = choose(loop.time())
                    is_new = False  # another one was faster: it is still the first one
        except TimeoutError:
            message = "no upstream of this request's route had room for it in time (`concurrency`)"
            raise VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0) from None
        finally:
            self.n_waiting -= 1
            self._has_left(stages, has_place=attempt is not None)
            self.notify(loop.time())  # there may be more than one place, or it left with one
        return attempt

    def notify(self, now_s: float) -> None:
        """Give the first of each line a turn if there is room."""
        for stages, line in self._lines.items():
            if line and _has_room(stages, now_s):
                turn = line.popleft()
                if not turn.done():
                    turn.set_result(None)

    async def _wait_turn(self, stages: _Stages, *, is_new: bool) -> None:
        line = self._lines.setdefault(stages, deque())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if is_new:
            line.append(turn)
        else:
            line.appendleft(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in line:
                line.remove(turn)
            raise

    def _has_left(self, stages: _Stages, *, has_place: bool) -> None:
        """One has left a line. has_place: the other lines come before this one now."""
        line = self._lines.get(stages)
        if not line or has_place:
            self._lines.pop(stages, None)
        if line and has_place:
            self._lines[stages] = line


def _has_room(stages: _Stages, now_s: float) -> bool:
    """Say whether RouteCursor.first() would find room. Where nobody is well it is to look for itself."""
    for group, closed in stages:
        has_room = group.has_room(now_s, closed)
        if has_room is not None:
            return has_room
    return True
