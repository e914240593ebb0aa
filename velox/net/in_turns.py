"""One thing to do to each of many: a few in each turn of the loop, so that what is ready meanwhile is not held up.

Knows: what is still to do, and how many go in one turn. Does not know: what is done, or to whom.

A sweep may find hundreds whose time is over at once: those that came together. All of them in one turn would be a
silence of some 20 ms for everybody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

__all__ = ["InTurns"]

T = TypeVar("T")


class InTurns(Generic[T]):
    """Does `act` to each item, `per_turn` of them in a turn. Items are not looked at again before: `act` has to.

    An error that `act` raises is the caller's of begin(), or the loop's; the others get their turn all the same.
    """

    __slots__ = ("_act", "_handle", "_loop", "_per_turn", "_waiting")

    def __init__(self, act: Callable[[T], None], per_turn: int, loop: asyncio.AbstractEventLoop) -> None:
        self._act: Final = act
        self._per_turn: Final = per_turn
        self._loop: Final = loop
        self._waiting: Final[deque[T]] = deque()
        self._handle: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<InTurns {len(self._waiting)} waiting>"

    def begin(self, items: Iterable[T]) -> None:
        """Begin with these, now. Nothing happens while there are some of an earlier call: a sweep comes again."""
        if not self._waiting:
            self._waiting.extend(items)
            self._turn()

    def stop(self) -> None:
        """Leave the rest undone."""
        self._waiting.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _turn(self) -> None:
        waiting = self._waiting
        try:
            for _ in range(min(self._per_turn, len(waiting))):
                self._act(waiting.popleft())
        finally:
            if waiting:
                self._handle = self._loop.call_soon(self._turn)
