"""A request into the queue and out of it, while many others wait.

Knows: how each queue is asked. Does not know: how one is chosen (policy/queue/fair_queue.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, cycle, islice
from typing import Final, Protocol

from bench.micro.candidates import Answers, Candidate, Case, Subject, Timed
from velox.policy.queue.fair_queue import FairQueue, Outcome
from velox.types import Priority

__all__ = ["DEPTHS", "SUBJECT"]

DEPTHS: Final = (1024, 16384)
_BODY_BYTES: Final = 750
_COST: Final = 1212
_PATIENCE_NS: Final = 1_000_000_000_000_000


class _Line(Protocol):
    """A queue as it is asked here."""

    def put(self, item: int, caller: bytes) -> bool:
        """Add an item; False: there is no place for it."""

    def get(self) -> int:
        """Remove and return the next one."""


class _Velox:
    def __init__(self, depth: int) -> None:
        self._queue: Final[FairQueue[int]] = FairQueue(depth, 1 << 40, 64, 1 << 60, 0.1)

    def put(self, item: int, caller: bytes) -> bool:
        now_ns = time.monotonic_ns()
        verdict = self._queue.offer(
            item,
            now_ns,
            caller=caller,
            priority=Priority.NORMAL,
            cost=_COST,
            n_bytes=_BODY_BYTES,
            deadline_ns=now_ns + _PATIENCE_NS,
        )
        return verdict.outcome is Outcome.ADMITTED

    def get(self) -> int:
        return self._queue.take(1, time.monotonic_ns())[0][0]


class _Asyncio:
    def __init__(self, depth: int) -> None:
        self._queue: Final[asyncio.Queue[int]] = asyncio.Queue(depth)
        self.get: Final = self._queue.get_nowait

    def put(self, item: int, caller: bytes) -> bool:
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:
            return False
        return True


class _Deque:
    def __init__(self, depth: int) -> None:
        self._items: Final[deque[int]] = deque()
        self.get: Final = self._items.popleft

    def put(self, item: int, caller: bytes) -> bool:
        self._items.append(item)
        return True


_Make = Callable[[int], _Line]


def _answers(make: _Make) -> Answers:
    alone, full, shared = make(8), make(2), make(8)
    for item in range(5):
        alone.put(item, b"a")
    admitted = [full.put(item, b"a") for item in range(3)]
    for item, caller in enumerate((b"loud", b"loud", b"loud", b"quiet")):
        shared.put(item, caller)
    return {
        "order of one caller": [alone.get() for _ in range(5)],
        "beyond its depth": admitted,
        "place of the quiet caller": [shared.get() for _ in range(4)].index(3),
    }


def _begin(make: _Make, depth: int, n_callers: int) -> Timed:
    """Return what puts one in and takes one out while `depth` wait."""
    line = make(2 * depth)
    items: Iterator[tuple[int, bytes]] = zip(count(), cycle([b"%08d" % n for n in range(n_callers)]), strict=False)
    for item, caller in islice(items, depth):
        line.put(item, caller)

    def timed(n: int) -> float:
        laps, put, get = islice(items, n), line.put, line.get
        began_s = time.thread_time()
        for item, caller in laps:
            put(item, caller)
            get()
        return time.thread_time() - began_s

    return timed


_ALIKE: Final = "place of the quiet caller"

SUBJECT: Final = Subject(
    "queues",
    "in and out",
    tuple(
        Case(
            f"{depth:,} wait",
            (
                Candidate("Velox, 1 caller", partial(_begin, _Velox, depth, 1), partial(_answers, _Velox)),
                Candidate("Velox, 1,000 callers", partial(_begin, _Velox, depth, 1000), partial(_answers, _Velox)),
                Candidate(
                    "asyncio.Queue",
                    partial(_begin, _Asyncio, depth, 1000),
                    partial(_answers, _Asyncio),
                    unable=frozenset({_ALIKE}),
                ),
                Candidate(
                    "collections.deque",
                    partial(_begin, _Deque, depth, 1000),
                    partial(_answers, _Deque),
                    unable=frozenset({_ALIKE, "beyond its depth"}),
                ),
            ),
        )
        for depth in DEPTHS
    ),
)
