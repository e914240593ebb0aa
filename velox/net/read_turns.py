"""Which connections go on to read in a turn of the loop: as many as are gone through in a millisecond together.

The loop reads a connection up to 32 times before it looks at another one, and in one turn all that have something. Each
read may be short and cheap: it is their sum that the others wait for.

Knows: how long reads took, who is in line. Does not know: what is done with what was read, or how reading is stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from velox.net.turn_budget import TURN_S

__all__ = ["ReadTurns", "TurnReader"]


class TurnReader(Protocol):
    """A connection in line."""

    def read_on(self) -> None:
        """Read again, unless somebody else is waited for."""


class TurnLoop(Protocol):
    """What is asked of an event loop."""

    def call_soon(self, callback: Callable[[TurnLoop], None], loop: TurnLoop, /) -> object:
        """Call it in the next turn, with the loop."""


class ReadTurns:
    """Of all connections of one kind in a worker."""

    __slots__ = ("_is_due", "_line", "_spent_s")

    def __init__(self) -> None:
        self._line: Final[deque[tuple[TurnReader, float]]] = deque()
        self._spent_s = 0.0  # in this turn
        self._is_due = False  # _next() will be called

    def __repr__(self) -> str:
        return f"<ReadTurns {len(self._line)} in line>"

    def took(self, reader: TurnReader, seconds: float, loop: TurnLoop) -> bool:
        """Note how long it took to go through a read.

        Return True if the connection has to stop reading: it is in line then, and read_on() is called once.
        """
        self._spent_s += seconds
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next, loop)
        if self._spent_s < TURN_S:
            return False
        self._line.append((reader, seconds))
        return True

    def _next(self, loop: TurnLoop) -> None:
        """Begin a turn with the first of the line: as many as fit into it, if they take as long as they last took."""
        line, expected_s = self._line, 0.0
        self._spent_s = 0.0
        while line and expected_s < TURN_S:
            reader, seconds = line.popleft()
            expected_s += seconds
            reader.read_on()
        self._is_due = bool(line)
        if line:
            loop.call_soon(self._next, loop)
