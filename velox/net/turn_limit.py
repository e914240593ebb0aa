"""How many pieces of work begin in one turn of the loop: those of many connections that have something at once.

The loop reads all connections that have something before it does anything else. A thousand short requests that come
together take it 10 ms. What is over the limit waits for the next turns in line, and all other work goes on between.

Knows: how many have begun in a turn, who is in line. Does not know: what begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from velox.net.turn_budget import TurnWaiter

__all__ = ["MOST_A_TURN", "TurnLimit"]

# One to two milliseconds of requests that are answered at once; others pass the queue, which has a limit of its own.
MOST_A_TURN: Final = 32


class TurnLoop(Protocol):
    """What is asked of an event loop."""

    def time(self) -> float:
        """Return the same for a whole turn, or for some short ones."""

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call it in the next turn."""


class TurnLimit:
    """Of all connections of one kind in a worker. No clock is read, so that to ask costs each request next to nothing.

    most: pieces of work in a turn.
    """

    __slots__ = ("_is_due", "_line", "_loop", "_most", "_n", "_turn_s")

    def __init__(self, loop: TurnLoop, most: int = MOST_A_TURN) -> None:
        self._loop: Final = loop
        self._most: Final = most
        self._line: Final[deque[TurnWaiter]] = deque()
        self._is_due = False  # _next() will be called
        self._turn_s = 0.0
        self._n = 0  # in the turn of that time

    def __repr__(self) -> str:
        return f"<TurnLimit {len(self._line)} in line>"

    def has_room(self) -> bool:
        """Count one, and say whether it may begin now: nobody is in line, and few enough have begun in this turn."""
        turn_s = self._loop.time()
        if turn_s != self._turn_s:
            self._turn_s, self._n = turn_s, 0
        self._n += 1
        return self._n <= self._most and not self._line

    def wait(self, waiter: TurnWaiter) -> None:
        """Call turn_came() in a later turn: once, in the order of these calls."""
        self._line.append(waiter)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Have the first of the line go on, each of them once at most."""
        line = self._line
        n = min(len(line), self._most)
        self._turn_s, self._n = self._loop.time(), n
        try:
            for _ in range(n):
                line.popleft().turn_came()
        finally:
            self._is_due = bool(line)
            if line:
                self._loop.call_soon(self._next)
