"""The same bucket taken from by two processes at once: what it costs, and whether every permit is counted.

Knows: two processes, and how many permits they took together. Does not know: how a way counts. CPU time would hide the
waiting for a lock, so here the clock on the wall counts.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from ctypes import c_byte, c_uint64
from functools import partial
from itertools import repeat
from multiprocessing.sharedctypes import RawValue
from typing import Final, Protocol

from bench.machine import pick_cores
from bench.micro.buckets import LockedBucket, shared_quota
from bench.micro.candidates import Answers, Candidate, Case
from velox.policy.limits.token_bucket import BucketRate
from velox.shm.quota_table import QuotaMemory

__all__ = ["CASES", "Contest"]

# The second core, for the other process. Found out here: a moment later this process may have one core alone.
_OTHER_CORE: Final = pick_cores().rest
_N_EACH: Final = 1000
_SPELL: Final = 256  # permits between two looks at whether it is enough
# An interval of 1 ns at a time that stands still: the bucket's state is the number of permits that were taken.
_COUNTING: Final = BucketRate(interval_ns=1, burst=1 << 59, max_wait_ns=0)
_FORK: Final = multiprocessing.get_context("fork")


class Counter(Protocol):
    """Something that processes count in together."""

    def adder(self, process: int) -> Callable[[], object]:
        """Return what takes one permit in a process, 0 or 1. Called in that process."""

    def total(self) -> int:
        """Return how many were taken."""


class _Velox:
    def __init__(self) -> None:
        self._memory: Final = QuotaMemory(64, 2)
        self._quota: Final = shared_quota(self._memory, 0, _COUNTING)

    def adder(self, process: int) -> Callable[[], object]:
        quota = self._quota if process == 0 else shared_quota(self._memory, process, _COUNTING)
        return partial(quota.take, 1, 0)

    def total(self) -> int:
        return _COUNTING.burst - self._quota.remaining(0)


class _Locked:
    def __init__(self) -> None:
        self._bucket: Final = LockedBucket(_COUNTING)

    def adder(self, process: int) -> Callable[[], object]:
        return partial(self._bucket.take, 1, 0)

    def total(self) -> int:
        return self._bucket.tat


class _Bare:
    """What one would like to get away with."""

    def __init__(self) -> None:
        self._cell: Final = RawValue(c_uint64, 0)

    def adder(self, process: int) -> Callable[[], object]:
        cell = self._cell

        def add() -> None:
            cell.value += 1

        return add

    def total(self) -> int:
        return self._cell.value


class Contest:
    """A Timed beside another process that does the same all the while."""

    def __init__(self, make: Callable[[], Counter], *, is_exact: bool) -> None:
        self._make: Final = make
        self._is_exact: Final = is_exact
        self._n_taken = 0
        self._n_lost = 0

    def __call__(self, n: int) -> float:
        counter, stop, other = self._make(), RawValue(c_byte, 0), RawValue(c_uint64, 0)
        rival = _FORK.Process(target=_take_on, args=(counter, stop, other))
        rival.start()
        try:
            while not other.value:  # until it is under way
                assert rival.is_alive(), "it takes until it is stopped"
                time.sleep(0.0001)
            add, laps = counter.adder(0), repeat(None, n)
            began_s = time.perf_counter()
            for _ in laps:
                add()
            took_s = time.perf_counter() - began_s
        finally:
            stop.value = 1
            rival.join()
        lost = n + other.value - counter.total()
        assert lost == 0 or not self._is_exact, f"{lost} permits were not counted"
        self._n_taken += n + other.value
        self._n_lost += lost
        return took_s

    def told(self) -> dict[str, int]:
        """Return how many permits were taken in all runs so far, and how many of them were not counted."""
        return {"taken": self._n_taken, "lost": self._n_lost}


def _take_on(counter: Counter, stop: c_byte, taken: c_uint64) -> None:
    """Take permits on the other core until told to stop, and note how many."""
    os.sched_setaffinity(0, {_OTHER_CORE})
    add = counter.adder(1)
    while not stop.value:
        for _ in repeat(None, _SPELL):
            add()
        taken.value += _SPELL


def _answers(make: Callable[[], Counter]) -> Answers:
    """Count in two processes that don't meet. When they do, each measured run looks whether all are counted."""
    counter = make()
    rival = _FORK.Process(target=_take, args=(counter, 1))
    rival.start()
    rival.join()
    _take(counter, 0)
    return {"counted by two, one after the other": counter.total()}


def _take(counter: Counter, process: int) -> None:
    add = counter.adder(process)
    for _ in repeat(None, _N_EACH):
        add()


def _candidate(name: str, make: Callable[[], Counter], *, is_exact: bool = True) -> Candidate:
    return Candidate(name, partial(Contest, make, is_exact=is_exact), partial(_answers, make))


CASES: Final = (
    Case(
        "one request, while another process takes too",
        (
            _candidate("Velox", _Velox),
            _candidate("multiprocessing.Value and its lock", _Locked),
            _candidate("`value += 1` without a lock", _Bare, is_exact=False),
        ),
    ),
)
