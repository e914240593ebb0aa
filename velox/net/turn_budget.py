"""How much time of one turn of the loop the reads of many connections take together.

A read of 64 KiB may hold ten thousand messages, and each may cost as much as a request; and the loop reads all
connections that have something before it does anything else. What does not fit into a turn waits for the next ones in
line, so that the connections take turns, and all other work of the worker goes on.

There are two lines. A connection that was served before and begins its next request has half of each turn: so it waits
behind its like, not behind hundreds that have just been opened, or that send what takes many turns.

Knows: how long a turn has lasted, who is in line. Does not know: what is done with the time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["TURN_S", "TurnBudget", "TurnWaiter"]

# Of each turn. A step of the loop that takes longer is felt by others (docs/benchmarks).
TURN_S: Final = 0.001


class TurnWaiter(Protocol):
    """A connection in line."""

    def turn_came(self) -> None:
        """Go on for as long as has_time() says."""


class TurnLoop(Protocol):
    """What is asked of an event loop."""

    def time(self) -> float:
        """Return the same for a whole turn, for some short ones, or for a part of a long one."""

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call it in the next turn."""


class TurnBudget:
    """Of all connections of one kind in a worker. clock: seconds, of any origin, that go on within a turn.

    share_s: of each turn; what is set counts from the next one on.
    """

    __slots__ = ("_clock", "_known", "_line", "_loop", "_turn_s", "_until_s", "share_s")

    def __init__(
        self, loop: TurnLoop, clock: Callable[[], float] = time.perf_counter, *, share_s: float = TURN_S
    ) -> None:
        self._loop: Final = loop
        self._clock: Final = clock
        self.share_s = share_s
        self._line: Final[deque[TurnWaiter]] = deque()
        self._known: Final[deque[TurnWaiter]] = deque()  # those that were served before
        self._until_s: float | None = None  # when this turn's time is over; None: nobody has asked in it
        self._turn_s = 0.0  # the loop's time when has_room() was last asked and this turn had not begun

    def __repr__(self) -> str:
        return f"<TurnBudget {len(self._known) + len(self._line)} in line>"

    def has_time(self) -> bool:
        """Say whether there is time left in this turn, which begins with the first question. Ask for each message."""
        until_s = self._until_s
        if until_s is None:
            self._until_s = self._clock() + self.share_s
            self._loop.call_soon(self._next)
            return True
        return self._clock() < until_s

    def has_room(self, *, is_known: bool = False) -> bool:
        """Say whether something that has just come may begin: nobody is in line before it, and there is time left.

        is_known: see wait(). Who asks alone in a turn has both, and no clock is read for it: to ask costs a request
        next to nothing.
        """
        if self._until_s is None:
            turn_s = self._loop.time()
            if turn_s != self._turn_s:
                self._turn_s = turn_s
                return True
        # In a crowd, most are in line: none of them reads the clock.
        return not self._known and (is_known or not self._line) and self.has_time()

    def spend(self, seconds: float) -> None:
        """Take time from this turn for what is about to be done outside of it."""
        if self._until_s is not None:
            self._until_s -= seconds

    def wait(self, waiter: TurnWaiter, *, is_known: bool = False) -> None:
        """Call turn_came() in a later turn: once, in the order of these calls.

        is_known: it was served before, and what it waits with is short. Such have a half of each turn to themselves.
        """
        (self._known if is_known else self._line).append(waiter)
        if self._until_s is None:
            self.has_time()  # there will be a next turn

    def _next(self) -> None:
        """Begin a turn with those in line, each of them once at most."""
        self._until_s = None
        n_known, n_others = len(self._known), len(self._line)
        while n_known and self._has_time_for_known(n_others):
            n_known -= 1
            self._known.popleft().turn_came()
        while n_others and self.has_time():
            n_others -= 1
            self._line.popleft().turn_came()
        while n_known and self.has_time():
            n_known -= 1
            self._known.popleft().turn_came()

    def _has_time_for_known(self, n_others: int) -> bool:
        """Say whether there is time left for those that were served before. n_others: have the other half."""
        if not self.has_time():
            return False
        assert self._until_s is not None, "it was asked whether there is time"
        return not n_others or self._clock() < self._until_s - self.share_s / 2
