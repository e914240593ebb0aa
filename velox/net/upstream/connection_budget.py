"""How many connections to upstreams a worker may have open, in all pools together.

Each pool has a limit of its own, but the open files are those of the worker. When all that it may have are open,

- a pool with callers that wait gets the place of the connection, of any pool, that has been idle longest;
- where none is idle, pools with more than an equal share give up connections as their exchanges end, until each pool
  with waiting callers has its share.

A lone connection is in no pool: a WebSocket's. It takes the place of an idle one, too, but does not wait for one.

Knows: how many each pool has, and which of them wait. Does not know: which connections a pool has.
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["BudgetedPool", "ConnectionBudget"]

_LOOK_EVERY_S: Final = 0.05  # where no connection was idle


class BudgetedPool(Protocol):
    """What is asked of a pool."""

    def idle_s(self, now_s: float) -> float | None:
        """Return for how long its longest idle connection has been so; None: it has none."""

    def close_idle(self, now_s: float) -> None:
        """Close that one."""

    def on_budget(self) -> None:
        """There may be room for a connection that was refused before."""


class ConnectionBudget:
    """Of one worker. most: connections and dials, of all pools. is_wanted: some pool waits for room."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._n = 0
        self._n_lone = 0  # of these
        self._taken: Final[dict[BudgetedPool, int]] = {}
        self._waiting: Final[dict[BudgetedPool, None]] = {}  # in order
        self._found_none_s = -_LOOK_EVERY_S  # when no connection was idle, last
        self._is_closing_idle = False
        self.is_wanted = False

    def __repr__(self) -> str:
        return f"<ConnectionBudget {self._n} of {self._most}>"

    def take(self, pool: BudgetedPool) -> bool:
        """Say whether one more connection may be made. It counts until release()."""
        if self._n >= self._most or self._is_closing_idle:
            return False
        self._n += 1
        self._taken[pool] = self._taken.get(pool, 0) + 1
        return True

    def take_for_callers(self, pool: BudgetedPool, now_s: float) -> bool:
        """The same for callers that wait; where there is no room now, on_budget() is called when there is."""
        if self._n >= self._most and now_s - self._found_none_s >= _LOOK_EVERY_S:
            self._close_idle(now_s)
        if self.take(pool):
            return True
        self._waiting[pool] = None
        self.is_wanted = True
        return False

    def take_lone(self, now_s: float) -> bool:
        """Say whether a connection of no pool may be made. It counts until release_lone()."""
        if self._n >= self._most and now_s - self._found_none_s >= _LOOK_EVERY_S:
            self._close_idle(now_s)
        if self._n >= self._most or self._is_closing_idle:
            return False
        self._n += 1
        self._n_lone += 1
        return True

    def release_lone(self) -> None:
        """Such a connection has ended."""
        assert self._n_lone > 0, "each is released once"
        self._n -= 1
        self._n_lone -= 1
        self._offer()

    def must_yield(self, pool: BudgetedPool) -> bool:
        """Say whether a pool is to give up a connection that is free now: it has more than its share, others less."""
        share = self._share()
        return self._taken[pool] > share and any(self._taken.get(each, 0) < share for each in self._waiting)

    def release(self, pool: BudgetedPool, n: int = 1) -> None:
        """`n` connections or dials of a pool have ended."""
        if not n:
            return
        left = self._taken[pool] - n
        assert left >= 0, "each is released once"
        self._n -= n
        if left:
            self._taken[pool] = left
        else:
            del self._taken[pool]
        self._offer()

    def leave(self, pool: BudgetedPool) -> None:
        """A pool has closed all that it had, and makes no more connections."""
        self._forget(pool)
        self.release(pool, self._taken.get(pool, 0))

    def _offer(self) -> None:
        """Let pools that wait have what room there is."""
        while self._waiting and self._n < self._most and not self._is_closing_idle:
            share = self._share()
            below = (each for each in self._waiting if self._taken.get(each, 0) < share)
            first = next(below, next(iter(self._waiting)))
            self._forget(first)
            first.on_budget()

    def _share(self) -> int:
        """Return how many each pool may have that has some, or waits for one."""
        n_pools = len(self._taken) + sum(each not in self._taken for each in self._waiting)
        return max(1, (self._most - self._n_lone) // n_pools)

    def _forget(self, pool: BudgetedPool) -> None:
        self._waiting.pop(pool, None)
        self.is_wanted = bool(self._waiting)

    def _close_idle(self, now_s: float) -> None:
        longest_s, found = -1.0, None
        for pool in self._taken:
            idle_s = pool.idle_s(now_s)
            if idle_s is not None and idle_s > longest_s:
                longest_s, found = idle_s, pool
        if found is None:
            self._found_none_s = now_s
            return
        # Its pool would make another one in its place at once, to have as many warm ones as it is to keep.
        self._is_closing_idle = True
        try:
            found.close_idle(now_s)
        finally:
            self._is_closing_idle = False
