"""The budgets' side of the process that speaks with Redis: a thread of its own, with a connection of its own.

A question for limits that takes longer than a request may wait is given up, for a gateway can go on without. A strict
budget can't, so a question for budgets has more time: a Redis that is slow is asked less often, and not for down. The
thread blocks while it waits; limits don't wait for it.

Knows: when Redis counts as away for budgets, and when it is tried again. Does not know: what is asked
(leases/budget_manager.py), or who waits (leases/lease_client.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from velox.policy.limits.lease import retry_ns
from velox.runtime.leases.budget_manager import BudgetManager
from velox.runtime.leases.lease_client import BUDGETS_ALIVE, LeasePipes
from velox.runtime.leases.lease_redis import RedisDownError
from velox.shm.budget_table import BudgetMemory
from velox.shm.leased import Demand

__all__ = ["ANSWER_S", "BudgetLoop"]

# The longest time that Redis may take for an answer.
ANSWER_S: Final = 2.0
_TICK_NS: Final = 100_000_000
# Redis is asked at least so often, if only whether it is there and knows what it knew.
_PROBE_NS: Final = 1_000_000_000


class BudgetLoop:
    """Keeps budgets in a thread, from start() until leave(). replicas: how many gateways share them.

    fallback: VELOX_REDIS_FALLBACK, for the log.
    """

    def __init__(
        self,
        manager: BudgetManager,
        memory: BudgetMemory,
        pipes: LeasePipes,
        logger: logging.Logger,
        replicas: Callable[[], int],
        fallback: str,
    ) -> None:
        self._manager: Final = manager
        self._memory: Final = memory
        self._pipes: Final = pipes
        self._logger: Final = logger
        self._replicas: Final = replicas
        self._fallback: Final = fallback
        self._demands: Final[SimpleQueue[Demand | None]] = SimpleQueue()
        self._thread: Final = threading.Thread(target=self._run, name="budgets", daemon=True)
        self._leaves = False
        self._is_up = False
        self._why = ""  # Redis is away, as logged last; "": it is not
        self._retry_ns = self._next_try_ns = self._next_probe_ns = 0
        self._problem: BaseException | None = None
        self.n_failed = 0  # questions

    def __repr__(self) -> str:
        return f"<BudgetLoop {'up' if self._is_up else 'away'} {self._manager!r}>"

    # -- the lease manager, in its thread --------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def demanded(self, demand: Demand) -> None:
        """Have the thread look at what a worker needs."""
        self._demands.put(demand)

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._problem is not None:
            raise self._problem

    def leave(self) -> None:
        """Give back what is not used, if Redis takes it at once."""
        self._leaves = True
        self._demands.put(None)
        self._thread.join(ANSWER_S)

    # -- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._leaves:
                self._turn(time.monotonic_ns())
                self._wait()
            if self._is_up:
                self._manager.leave()
        except RedisDownError:
            pass  # what was held is lost
        except BaseException as exc:
            self._problem = exc

    def _wait(self) -> None:
        """Wait for a demand, or until it is time for the next turn; note all demands that are there."""
        now_ns = time.monotonic_ns()
        next_ns = self._manager.next_ns if self._is_up else None
        until_ns = now_ns + _TICK_NS if next_ns is None else min(next_ns, now_ns + _TICK_NS)
        try:
            demand = self._demands.get(timeout=max(0, until_ns - now_ns) / 1e9)
            while True:
                if demand is not None:
                    self._manager.demanded(demand, time.monotonic_ns())
                demand = self._demands.get_nowait()
        except Empty:
            pass

    def _turn(self, now_ns: int) -> None:
        if self._is_up or now_ns >= self._next_try_ns:
            try:
                self._ask(now_ns)
            except RedisDownError as exc:
                self._failed(str(exc))
        if not self._is_up:
            # Who asked nevertheless must not wait.
            for block, word in self._manager.drop():
                self._pipes.answer(block, (word,))

    def _ask(self, now_ns: int) -> None:
        replicas = self._replicas()
        if not self._is_up or now_ns >= self._next_probe_ns:
            self._manager.probe(replicas)
            self._next_probe_ns = time.monotonic_ns() + _PROBE_NS
            if not self._is_up:
                self._is_up = True
                self._manager.report_again()
            self._memory.away_ns = 0
            self._pipes.answer_all(BUDGETS_ALIVE)
        for block, word in self._manager.turn(now_ns, replicas):
            self._pipes.answer(block, (word,))
        # Not before: a user of Redis may be allowed one command of the script and not another.
        self._retry_ns = 0
        if self._why:
            self._why = ""
            self._logger.warning("Redis is available for budgets again: they hold over all gateways")

    def _failed(self, why: str) -> None:
        self.n_failed += 1
        self._is_up = False
        self._memory.away_ns = self._memory.away_ns or time.monotonic_ns()
        self._retry_ns = retry_ns(self._retry_ns)
        self._next_try_ns = time.monotonic_ns() + self._retry_ns
        if not self._why:
            what = "503 for what needs more than was granted"
            if self._fallback == "local":
                what = f"each gateway spends its share of them, of strict ones what it was granted; then {what}"
            message = "Redis is unavailable for budgets: %(error)s; %(effect)s (VELOX_REDIS_FALLBACK=%(fallback)s)"
            self._logger.error(message, {"error": why, "effect": what, "fallback": self._fallback})
        self._why = why
