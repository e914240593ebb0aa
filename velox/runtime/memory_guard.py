"""A worker's watch over its own memory: looks, refuses, asks for a successor.

Knows: who is told of each state. Does not know: the limits' meaning (policy/memory_watch.py), how a worker is replaced
(supervisor.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from velox.policy.memory_watch import MemoryState, MemoryWatch
from velox.shm.status import WorkerStatus

__all__ = ["MemoryGuard"]

# Trimming takes 0.6 ms for each MiB that it gives back (the kernel clears pages), so it is not done at every look, and
# never while there is memory enough: what the allocator keeps it will need again.
_LOOKS_PER_TRIM: Final = 5


class _Memory(Protocol):
    def read(self) -> int: ...

    def trim(self) -> None: ...


class MemoryGuard:
    """Of one worker. refuse: new requests, from now on or no longer. wake: the supervisor."""

    def __init__(
        self,
        watch: MemoryWatch,
        memory: _Memory,
        status: WorkerStatus,
        logger: logging.Logger,
        *,
        refuse: Callable[[bool], None],
        wake: Callable[[], None],
    ) -> None:
        self._watch: Final = watch
        self._memory: Final = memory
        self._status: Final = status
        self._logger: Final = logger
        self._refuse: Final = refuse
        self._wake: Final = wake
        self._state = MemoryState.FINE
        self._n_looks = 0
        self._next_trim = 0
        self._is_told = False

    def __repr__(self) -> str:
        return f"<MemoryGuard {self._state.name}>"

    def look(self, *, is_idle: bool) -> None:
        """Read, judge, act; four times a second. is_idle: nothing runs that could give memory back."""
        self._n_looks += 1
        n_bytes = self._memory.read()
        if self._watch.is_over(n_bytes) and self._n_looks >= self._next_trim:
            # Perhaps it is only what the allocator keeps for later.
            self._next_trim = self._n_looks + _LOOKS_PER_TRIM
            self._memory.trim()
            n_bytes = self._memory.read()
        self._status.resident_bytes = n_bytes
        state = self._watch.look(n_bytes, is_idle=is_idle)
        if state is self._state:
            return
        self._state = state
        short = state is not MemoryState.FINE
        if short != self._status.refuses:
            self._status.refuses = short
            self._refuse(short)
        if short and not self._is_told:
            # Once: around the limit it goes up and down. The metrics show how long it lasts.
            self._is_told = True
            self._logger.warning("%d MiB of memory: new requests are refused (VELOX_MEMORY_*)", n_bytes >> 20)
        if state is MemoryState.FULL:
            # Not taken back: a worker that was over the hard limit once is replaced, even if it gets better.
            self._status.wants_successor = True
            self._wake()
