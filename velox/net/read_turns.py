"""Which connections go on to read in a turn of the loop: as many as are gone through in a millisecond together.

The loop reads a connection up to 32 times before it looks at another one, and in one turn all that have something. Each
read may be short and cheap: it is their sum that the others wait for. What is read once the turn's time is over is to
be short: the loop has begun with that connection, and nothing stops it before.

While some wait, each has one read in a turn, then waits behind the others. Reads that cost little have half of a turn,
and so wait behind no flood.

Knows: how long reads took, who is in line. Does not know: what is done with what was read, or how reading is stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["READ_TURN_S", "ReadTurns", "TurnReader"]

# Of each turn: one read is made as long as takes half of it (net/upstream/read_pace.py).
READ_TURN_S: Final = 0.001
_SHORT_S: Final = READ_TURN_S / 4  # of a read that costs little


class TurnReader(Protocol):
    """A connection in line."""

    def read_on(self) -> None:
        """Read again, unless somebody else is waited for."""


class TurnLoop(Protocol):
    """What is asked of an event loop."""

    def call_soon(self, callback: Callable[[TurnLoop], None], loop: TurnLoop, /) -> object:
        """Call it in the next turn, with the loop."""


class ReadTurns:
    """Of all connections of one kind in a worker. is_over: this turn's time is spent."""

    __slots__ = ("_is_due", "_line", "_short", "_spent_s", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._line: Final[deque[tuple[TurnReader, float]]] = deque()
        self._short: Final[deque[tuple[TurnReader, float]]] = deque()  # those whose reads cost little
        self._spent_s = 0.0  # in this turn
        self._is_due = False  # _next() will be called

    def __repr__(self) -> str:
        return f"<ReadTurns {len(self._line) + len(self._short)} in line>"

    def took(self, reader: TurnReader, seconds: float, loop: TurnLoop) -> bool:
        """Note how long it took to go through a read.

        Return True if the connection has to stop reading: it is in line then, and read_on() is called once.
        """
        self._spent_s += seconds
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next, loop)
        self.is_over = self._spent_s >= READ_TURN_S
        if not (self.is_over or self._line or self._short):
            return False
        (self._short if seconds < _SHORT_S else self._line).append((reader, seconds))
        return True

    def _next(self, loop: TurnLoop) -> None:
        """Begin a turn with the first of both lines: as many as fit into it, if they take as long as they last took."""
        self._spent_s = 0.0
        self.is_over = False
        expected_s = self._go_on(self._short, 0.0, READ_TURN_S / 2)
        self._go_on(self._line, expected_s, READ_TURN_S)
        self._is_due = bool(self._line or self._short)
        if self._is_due:
            loop.call_soon(self._next, loop)

    def _go_on(self, line: deque[tuple[TurnReader, float]], expected_s: float, until_s: float) -> float:
        while line and expected_s < until_s:
            reader, seconds = line.popleft()
            expected_s += seconds
            reader.read_on()
        return expected_s
