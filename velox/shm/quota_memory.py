"""The memory of the quota table: a memfd of its own beside Segment, and where everything in it lies.

Knows: the layout. Does not know: how a row is found (quota_table.py), used (quotas.py) or freed (quota_sweep.py).

Everything is an 8-byte cell, as in segment.py. Pages that nobody touched take no memory.

    gateway      1 line            written by the supervisor: rows freed so far
    processes    1 line a block    BUSY, and what the process counts; written by that process
    tags         1 cell a row      0: the row is free; else the name of what has it. Bit 63: about to be freed.
                                   Those of overflow rows are 0
    rows         each row:
      shared     1 line            TAT, GRANTED, USED, HOLD, READY, NAME (two cells), RATE; written by all
      slots      1 cell a block    slots in use; written by that process
      waiting    1 cell a block    nanoseconds of permits taken ahead of their time, not yet used; by that process
    overflow     OVERFLOW_ROWS     rows without a tag, for those that find no row of their own

TAT is the state of the bucket (policy.token_bucket). The other shared cells belong to a lease of permits from elsewhere
(leased.py says what they mean): a row is not freed while HOLD is not 0 or GRANTED differs from USED, and its lease
cells are handed to the row's next owner as they are.

BUSY is odd while the process is inside an operation on any row. What it means is said in quota_table.py.
"""

from __future__ import annotations

import mmap
import os
from typing import Final, NamedTuple

from atomicshm import AtomicU64, AtomicView

__all__ = ["LEAVING", "OVERFLOW_ROWS", "PROBES", "QuotaMemory", "QuotaStatistics"]

_CELL_BYTES: Final = 8
_LINE_CELLS: Final = 8  # 64-byte cache lines

# Set in the tag of a row that is about to be freed: whoever needs the row takes the bit away, and it is not.
LEAVING: Final = 1 << 63
# How many rows from its first one on a tag may be in. At half of the rows taken, one tag in some hundreds finds none.
PROBES: Final = 16
# Quotas of one rate overflow into one row, so that slow ones are not in the way of fast ones.
OVERFLOW_ROWS: Final = 64

_TAT, _GRANTED, _N_STATE, _N_SHARED = 0, 1, 4, _LINE_CELLS
_N_LEASE: Final = 7  # GRANTED to RATE
_BUSY, _CLAIMED, _OVERFLOWED = 0, 1, 2


class QuotaStatistics(NamedTuple):
    """What the table has done since the start, over all processes."""

    rows: int  # that there are
    in_use: int  # of them, now
    claimed: int
    freed: int
    overflowed: int  # operations that found no row


class QuotaMemory:
    """Made by the supervisor before it forks; children inherit it. It is in no file system.

    rows: how many quotas and slots have a row of their own. blocks: how many processes may use them, Segment.blocks;
    there is one more, `keeper_block`, for a process that is no worker.
    """

    __slots__ = ("_atomic", "_own_first", "_row_cells", "_rows_first", "_tags_first", "blocks", "cells", "key", "rows")

    def __init__(self, rows: int, blocks: int) -> None:
        self.rows: Final = max(rows, 4 * PROBES)
        self.blocks: Final = blocks + 1
        # Clients choose what is in a tag. They must not know which tags share a row, or its neighbourhood.
        self.key: Final = os.urandom(16)
        self._own_first = _LINE_CELLS
        self._tags_first = self._own_first + self.blocks * _LINE_CELLS
        self._rows_first = self._tags_first + -(-(self.rows + OVERFLOW_ROWS) // _LINE_CELLS) * _LINE_CELLS
        self._row_cells = _N_SHARED + -(-2 * self.blocks // _LINE_CELLS) * _LINE_CELLS
        size = (self._rows_first + (self.rows + OVERFLOW_ROWS) * self._row_cells) * _CELL_BYTES
        fd = os.memfd_create("velox-quotas", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            memory = mmap.mmap(fd, size)  # keeps a descriptor of its own
        finally:
            os.close(fd)
        self._atomic = AtomicView(memory)
        self.cells: Final[memoryview[int]] = memoryview(memory).cast("Q")

    def __repr__(self) -> str:
        return f"<QuotaMemory rows={self.rows} blocks={self.blocks}>"

    @property
    def keeper_block(self) -> int:
        """The block of the one process that is no worker."""
        return self.blocks - 1

    def tags(self) -> memoryview[int]:
        """Return the tags of all rows, to look through: plain loads, so fence() goes before."""
        return self.cells[self._tags_first : self._tags_first + self.rows]

    def tag(self, row: int) -> AtomicU64:
        """Return the tag of a row; an overflow row's is 0."""
        assert 0 <= row < self.rows + OVERFLOW_ROWS, f"no row {row}"
        return self._cell(self._tags_first + row)

    def cas_tag(self, row: int, seen: int, tag: int) -> int:
        """Compare and swap the tag of a row; return what was there."""
        assert 0 <= row < self.rows, f"row {row} of {self.rows} has no tag"
        return self._atomic.cas_u64((self._tags_first + row) * _CELL_BYTES, seen, tag)

    def overflow_row(self, number: int) -> int:
        """Return one of the OVERFLOW_ROWS rows for those that find none."""
        return self.rows + number

    def row(self, row: int) -> list[int]:
        """Return TAT, GRANTED, USED, HOLD and each process's cells of a row: plain loads, so fence() goes before."""
        first = self._row(row)
        shared = self.cells[first : first + _N_STATE].tolist()
        return shared + self.cells[first + _N_SHARED : first + _N_SHARED + 2 * self.blocks].tolist()

    def tat(self, row: int) -> AtomicU64:
        """Return the state of the row's bucket."""
        return self._cell(self._row(row) + _TAT)

    def lease(self, row: int) -> tuple[AtomicU64, ...]:
        """Return GRANTED, USED, HOLD, READY, both of NAME, and RATE of a row."""
        first = self._row(row) + _GRANTED
        return tuple(self._cell(first + i) for i in range(_N_LEASE))

    def slots(self, row: int) -> memoryview[int]:
        """Return the slots in use of a row, one cell a block, to add up: plain loads, so fence() goes before."""
        first = self._row(row) + _N_SHARED
        return self.cells[first : first + self.blocks]

    def own_slots(self, row: int, block: int) -> AtomicU64:
        """Return the slots that a process uses."""
        return self._cell(self._row(row) + _N_SHARED + self._checked(block))

    def waiting(self, row: int) -> memoryview[int]:
        """Return the nanoseconds of waiting permits of a row, one cell a block."""
        first = self._row(row) + _N_SHARED + self.blocks
        return self.cells[first : first + self.blocks]

    def busy(self, block: int) -> AtomicU64:
        """Return the cell that is odd while the process of a block is inside an operation."""
        return self._cell(self._own_first + self._checked(block) * _LINE_CELLS + _BUSY)

    def count_claim(self, block: int) -> None:
        """Count a row that was free and is in use now."""
        self.cells[self._own_first + block * _LINE_CELLS + _CLAIMED] += 1

    def count_overflow(self, block: int) -> None:
        """Count an operation that found no row."""
        self.cells[self._own_first + block * _LINE_CELLS + _OVERFLOWED] += 1

    def count_freed(self, n: int) -> None:
        """Count rows that were freed. For the supervisor."""
        self.cells[0] += n

    def overflowed(self) -> int:
        """Return how many operations found no row, over all processes."""
        return self._sum_of_own(_OVERFLOWED)

    def statistics(self) -> QuotaStatistics:
        """Return what the table has done so far."""
        in_use = self.rows - self.tags().tolist().count(0)
        return QuotaStatistics(self.rows, in_use, self._sum_of_own(_CLAIMED), self.cells[0], self.overflowed())

    def _sum_of_own(self, cell: int) -> int:
        return sum(self.cells[self._own_first + cell : self._tags_first : _LINE_CELLS])

    def _row(self, row: int) -> int:
        assert 0 <= row < self.rows + OVERFLOW_ROWS, f"no row {row}"
        return self._rows_first + row * self._row_cells

    def _checked(self, block: int) -> int:
        if not 0 <= block < self.blocks:
            raise IndexError(f"no block {block} of {self.blocks}")
        return block

    def _cell(self, index: int) -> AtomicU64:
        return self._atomic.cell_u64(index * _CELL_BYTES)
