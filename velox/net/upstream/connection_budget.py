"""How many connections to upstreams a worker may have open, in all pools together (R-PROC-6).

Each pool has a limit of its own, but the open files are those of the worker: connections that one pool keeps for the
next request are closed where another one has callers that wait.

Knows: how many are open, which pools have some, who waits. Does not know: which of its connections a pool needs.
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["ConnectionBudget", "Spender"]


class Spender(Protocol):
    """A pool."""

    def idle_s(self, now_s: float) -> float | None:
        """Return for how long its longest idle connection has been so; None: it has none."""

    def close_idle(self, now_s: float) -> None:
        """Close that one."""

    def on_budget(self) -> None:
        """There may be room for a connection that was refused before."""


class ConnectionBudget:
    """Of one worker. most: connections and dials, of all pools."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._n = 0
        self._spenders: Final[dict[Spender, int]] = {}  # with how many each has
        self._waiting: Final[dict[Spender, None]] = {}  # in order
        self._is_closing_idle = False

    def __repr__(self) -> str:
        return f"<ConnectionBudget {self._n} of {self._most}>"

    def take(self, spender: Spender) -> bool:
        """Say whether one more connection may be made. It counts until give_back()."""
        if self._n >= self._most or self._is_closing_idle:
            return False
        self._n += 1
        self._spenders[spender] = self._spenders.get(spender, 0) + 1
        return True

    def take_for_callers(self, spender: Spender, now_s: float) -> bool:
        """The same for callers that wait: the connection that has idled longest is closed for it.

        Where none idles, on_budget() is called when there is room again.
        """
        if self._n >= self._most:
            self._close_idle(now_s)
        if self.take(spender):
            return True
        self._waiting[spender] = None
        return False

    def give_back(self, spender: Spender, n: int = 1) -> None:
        """`n` connections or dials of a pool have ended."""
        if not n:
            return
        left = self._spenders[spender] - n
        assert left >= 0, "each is given back once"
        self._n -= n
        if left:
            self._spenders[spender] = left
        else:
            del self._spenders[spender]
        while self._waiting and self._n < self._most and not self._is_closing_idle:
            first = next(iter(self._waiting))
            del self._waiting[first]
            first.on_budget()

    def leave(self, spender: Spender) -> None:
        """A pool has closed all that it had, and makes no more connections."""
        self._waiting.pop(spender, None)
        self.give_back(spender, self._spenders.get(spender, 0))

    def _close_idle(self, now_s: float) -> None:
        longest_s, found = -1.0, None
        for spender in self._spenders:
            idle_s = spender.idle_s(now_s)
            if idle_s is not None and idle_s > longest_s:
                longest_s, found = idle_s, spender
        if found is None:
            return
        # Its pool would make another one in its place at once, to have as many warm ones as it is to keep.
        self._is_closing_idle = True
        try:
            found.close_idle(now_s)
        finally:
            self._is_closing_idle = False
