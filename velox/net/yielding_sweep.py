"""A sweep that does one thing to each of many items: a few in each turn of the loop, then it yields to other events.

Knows: which items are left, and how many are handled per turn. Does not know: what is done, or to whom.

A sweep may find hundreds of connections whose time is over at once, because they came together. All of them in one turn
would block the loop for some 20 ms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

__all__ = ["YieldingSweep"]

T = TypeVar("T")


class YieldingSweep(Generic[T]):
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
        return f"<YieldingSweep {len(self._waiting)} waiting>"

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
