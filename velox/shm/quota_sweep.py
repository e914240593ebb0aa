"""What the supervisor does in the quota table: it frees rows that nobody needs, and takes back what the dead had.

Knows: when a row may be freed, and what a process leaves behind. Does not know: how a row is found (quota_table.py,
which says why it is freed in these steps), or when a process died.

A row is unused when its bucket is full again, no slot is taken, no permit waits, and no lease is held: a new row says
the same. The table is bounded, and half of it should be free, so that a new tag finds a row near its home.
"""

from __future__ import annotations

import os
from typing import Final

from atomicshm import AtomicU64, fence

from velox.shm.quota_memory import LEAVING, OVERFLOW_ROWS, QuotaMemory

__all__ = ["QuotaSweeper"]

# A bucket that became full just now may be full only for us: another process asks with a time that it read before.
_MARGIN_NS: Final = 1_000_000_000
# Rows that leave at once: while they do, whoever passes one of them makes it stay.
_BATCH: Final = 128
# An operation takes microseconds. One that takes longer belongs to a process that has no core, or is dead.
_LOOKS: Final = 100
# Rows looked at in one sweep, and how many sweeps a large table takes: the supervisor has other work.
_PART: Final = 4096
_MOST_PARTS: Final = 64


class QuotaSweeper:
    """The supervisor's view of the table."""

    __slots__ = ("_first", "_memory", "_overflowed", "_tags", "_urgent")

    def __init__(self, memory: QuotaMemory) -> None:
        self._memory: Final = memory
        self._tags = memory.tags()
        self._overflowed = 0
        self._urgent = 0  # parts to look at, however much is free
        self._first = 0

    def __repr__(self) -> str:
        return f"<QuotaSweeper {self._memory!r}>"

    def reclaim(self, block: int) -> int:
        """Take back what a dead process had; return the nanoseconds of permits given back.

        After it was reaped, and before the next process starts in that block. Permits that were charged and used stay
        charged: nobody knows what came of their requests.
        """
        memory = self._memory
        given_back_ns = 0
        taken = [row for row, tag in enumerate(self._tags.tolist()) if tag]
        for row in (*taken, *range(memory.rows, memory.rows + OVERFLOW_ROWS)):
            own = memory.own_slots(row, block)
            if own.load():
                own.store(0)
            waiting = memory.waiting(row)
            if waiting[block]:
                n_ns, waiting[block] = waiting[block], 0
                _give_back(memory.tat(row), n_ns)
                given_back_ns += n_ns
        busy = memory.busy(block)
        if busy.load() & 1:
            busy.fetch_add(1)
        return given_back_ns

    def sweep(self, now_ns: int) -> int:
        """Look at the next part of the table; return how many rows of it were freed.

        That is none, as long as half of the part is free and each tag found a row.
        """
        memory = self._memory
        part = max(_PART, memory.rows // _MOST_PARTS)
        first, self._first = self._first, self._first + part
        if self._first >= memory.rows:
            self._first = 0
        tags = self._tags[first : first + part].tolist()
        # An overflow is an overflow until all parts were looked at once more.
        overflowed = memory.overflowed()
        if overflowed != self._overflowed:
            self._overflowed, self._urgent = overflowed, -(-memory.rows // part)
        if 2 * tags.count(0) >= len(tags) and not self._urgent:
            return 0
        self._urgent -= self._urgent > 0
        fence()
        unused = [row for row, tag in enumerate(tags, first) if tag and self._is_unused(row, now_ns)]
        freed = sum(self._free(unused[i : i + _BATCH], now_ns) for i in range(0, len(unused), _BATCH))
        memory.count_freed(freed)
        return freed

    def _free(self, rows: list[int], now_ns: int) -> int:
        memory = self._memory
        tags = [(row, self._tags[row]) for row in rows]
        leaving = [(row, tag) for row, tag in tags if memory.cas_tag(row, tag, tag | LEAVING) == tag]
        are_out = self._all_are_out()
        fence()
        freed = 0
        for row, tag in leaving:
            is_unused = are_out and self._is_unused(row, now_ns)
            was = memory.cas_tag(row, tag | LEAVING, 0 if is_unused else tag)
            freed += is_unused and was == tag | LEAVING
        return freed

    def _all_are_out(self) -> bool:
        """Wait until no process is in an operation that it was in when this was called; False: one still is."""
        cells = [self._memory.busy(block) for block in range(self._memory.blocks)]
        inside = [(cell, n_busy) for cell in cells if (n_busy := cell.load()) & 1]
        for _ in range(_LOOKS):
            inside = [(cell, n_busy) for cell, n_busy in inside if cell.load() == n_busy]
            if not inside:
                return True
            os.sched_yield()
        return False

    def _is_unused(self, row: int, now_ns: int) -> bool:
        """True if a new row would say the same. The lease's cells: see quota_memory.py."""
        tat, granted, used, hold, *others = self._memory.row(row)
        return tat + _MARGIN_NS <= now_ns and granted == used and not hold and not any(others)


def _give_back(tat: AtomicU64, n_ns: int) -> None:
    seen = tat.load()
    while (found := tat.cas(seen, max(0, seen - n_ns))) != seen:
        seen = found
