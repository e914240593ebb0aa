"""The quota table: its memory, how a tag finds its row, and how the supervisor frees rows.

Knows: the layout, where the row of a tag is, and when all that was seen still holds. Does not know: what is in a row
(quotas.py), or when a process died.

LAYOUT. A memfd beside Segment. Everything is an 8-byte cell, as in segment.py. Untouched pages take no memory.

    gateway      1 line            written by the supervisor: rows freed so far
    processes    1 line a block    BUSY, and what the process counts; written by that process
    tags         1 cell a row      0: the row is free; else the name of what has it. Bit 63: about to be freed.
                                   Those of overflow rows are 0
    rows         each row:
      shared     1 line            TAT, GRANTED, USED, HOLD, READY, NAME (two cells), RATE; written by all
      slots      1 cell a block    slots in use; written by that process
      waiting    1 cell a block    nanoseconds of permits taken ahead of their time, not yet used; by that process
    overflow     OVERFLOW_ROWS     rows without a tag, for tags that find no row of their own

TAT is the state of the bucket (policy.token_bucket). The other shared cells belong to a lease of permits from elsewhere
(leased.py says what they mean): a row is not freed while HOLD is not 0 or GRANTED differs from USED, and its lease
cells are handed to the row's next owner as they are.

ROWS. A tag may be in PROBES rows from its home on (open addressing, linear probing). Processes look and claim without
a lock: a claim is one compare-and-swap of the first free row's tag from 0. Two things must never happen: that a row
changes hands under somebody who uses it, and that a tag has two rows, each with a full bucket. Both follow from how a
row is freed, by the supervisor only:

    1. It sets LEAVING in the tag of a row that looks unused.
    2. It waits until each process whose BUSY was odd has moved it: whoever may have seen the tag without the bit is
       out.
    3. It looks again; if the row is still unused and LEAVING still set, the tag becomes 0, else the bit goes away.

Each operation makes BUSY odd before it looks at a tag, and even when it is done. So inside an operation:

    - A row whose tag was seen as one's own, without LEAVING, stays one's own. (Nobody needs to search for it again.)
    - A tag seen with LEAVING is taken back by a compare-and-swap that takes the bit away; it fails if the row is free.
    - A row that was seen taken stays taken, if whoever passes it takes LEAVING away too. So all that look for one tag
      agree on the first free row for it: one of them gets it, the others then find it.
    - A window seen full stays full: nobody can have claimed a row in it before the operation ends.

From the last one: what a tag takes in an overflow row is taken before the tag can get a row of its own. That row's
bucket starts where the one of the overflow row stands, so no tag gets twice what its limit gives. The price is that a
tag pays for its neighbours in the overflow row: too little, never too much.

Killed anywhere, a process leaves BUSY odd (no row is freed until the supervisor has reaped it: those that need a new
row meanwhile overflow), a claimed row that is unused (it is freed later), or LEAVING taken away (the row is freed
later).

Memory order: AtomicView's operations are sequentially consistent. The windows are read with plain loads, and on arm64
these may pass an earlier atomic store: fence() goes between. The store of BUSY and a load of a tag, on one side, and
the swap of a tag and the load of BUSY, on the other, are all of them atomic: one of the two sees the other.

Prior art: Purcell and Harris, "Non-blocking Hashtables with Open Addressing" (2005), which resolves two inserts of one
key by a state in each cell; waiting for all that are inside is read-copy-update (McKenney and Slingwine, 1998).

FREEING. A row is unused when its bucket is full again, no slot is taken, no permit waits, and no lease is held: a new
row is in the same state. The table is bounded, and half of it should be free, so that a new tag finds a row near its
home.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from atomicshm import AtomicU64, AtomicView, fence

from velox.shm.segment import CELL_BYTES, LINE_CELLS, shared_memory, whole_lines

__all__ = [
    "LEAVING",
    "OVERFLOW_ROWS",
    "PROBES",
    "QuotaMemory",
    "QuotaStatistics",
    "QuotaSweeper",
    "Row",
    "RowTable",
    "Window",
]


# Set in the tag of a row that is about to be freed: a process that needs the row clears the bit, and the row stays.
LEAVING: Final = 1 << 63
# How many rows from its first one on a tag may be in. At half of the rows taken, one tag in some hundreds finds none.
PROBES: Final = 16
# Quotas of one rate overflow into one row, so that slow ones are not in the way of fast ones.
OVERFLOW_ROWS: Final = 64

_TAT, _GRANTED, _N_STATE, _N_SHARED = 0, 1, 4, LINE_CELLS
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
        self._own_first = LINE_CELLS
        self._tags_first = self._own_first + self.blocks * LINE_CELLS
        self._rows_first = self._tags_first + whole_lines(self.rows + OVERFLOW_ROWS)
        self._row_cells = _N_SHARED + whole_lines(2 * self.blocks)
        size = (self._rows_first + (self.rows + OVERFLOW_ROWS) * self._row_cells) * CELL_BYTES
        memory = shared_memory("velox-quotas", size)
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
        return self._atomic.cas_u64((self._tags_first + row) * CELL_BYTES, seen, tag)

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
        return self._cell(self._own_first + self._checked(block) * LINE_CELLS + _BUSY)

    def count_claim(self, block: int) -> None:
        """Count a row that was free and is in use now."""
        self.cells[self._own_first + block * LINE_CELLS + _CLAIMED] += 1

    def count_overflow(self, block: int) -> None:
        """Count an operation that found no row."""
        self.cells[self._own_first + block * LINE_CELLS + _OVERFLOWED] += 1

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
        return sum(self.cells[self._own_first + cell : self._tags_first : LINE_CELLS])

    def _row(self, row: int) -> int:
        assert 0 <= row < self.rows + OVERFLOW_ROWS, f"no row {row}"
        return self._rows_first + row * self._row_cells

    def _checked(self, block: int) -> int:
        if not 0 <= block < self.blocks:
            raise IndexError(f"no block {block} of {self.blocks}")
        return block

    def _cell(self, index: int) -> AtomicU64:
        return self._atomic.cell_u64(index * CELL_BYTES)


class Row:
    """One row, as one process sees it."""

    __slots__ = ("index", "is_overflow", "own_slots", "slots", "tag", "tat", "waiting")

    def __init__(self, memory: QuotaMemory, index: int, block: int) -> None:
        self.index: Final = index
        self.is_overflow: Final = index >= memory.rows
        self.tag: Final = memory.tag(index)
        self.tat: Final = memory.tat(index)
        self.slots: Final = memory.slots(index)
        self.own_slots: Final = memory.own_slots(index, block)
        self.waiting: Final = memory.waiting(index)[block : block + 1]

    def __repr__(self) -> str:
        return f"<Row {self.index} tat={self.tat.load()} slots={sum(self.slots)} waiting={self.waiting[0]}>"


class Window:
    """The rows that a tag may be in, and the one that it overflows into."""

    __slots__ = ("home", "overflow", "tag")

    def __init__(self, tag: int, home: int, overflow: int) -> None:
        self.tag: Final = tag
        self.home: Final = home
        self.overflow: Final = overflow


class RowTable:
    """One process's way to the rows. block: of this process; there is one RowTable in it, and one thread.

    enter(): begin an operation: what is seen from now on stays as it was seen, until leave(). Both are the same step,
    and without a Python frame, for each request takes them.
    """

    __slots__ = ("_tags", "block", "enter", "leave", "memory")

    def __init__(self, memory: QuotaMemory, block: int) -> None:
        self.memory: Final = memory
        self.block: Final = block
        self._tags = memory.tags()
        self.enter: Final[Callable[[], object]] = partial(memory.busy(block).fetch_add, 1)
        self.leave: Final = self.enter

    def __repr__(self) -> str:
        return f"<RowTable block={self.block} {self.memory!r}>"

    def window(self, tag: int, overflow: int, *, open_ended: bool) -> Window:
        """Return where `tag` may be. overflow: a number; what has the same one overflows together.

        open_ended: clients name such tags (models), so that there is no end of them. They have one half of the rows,
        also of those for overflow: they are in nobody's way that the configuration names.
        """
        half, half_of_overflow = self.memory.rows // 2, OVERFLOW_ROWS // 2
        home = tag % (half - PROBES) + half * open_ended
        row = overflow % half_of_overflow + half_of_overflow * open_ended
        return Window(tag, home, self.memory.overflow_row(row))

    def find(self, window: Window) -> Row | None:
        """Return the row of a tag if it has one. Inside an operation."""
        index = self._look(window, self._read(window))
        return None if index is None else Row(self.memory, index, self.block)

    def claim(self, window: Window) -> Row:
        """Return the row of a tag, a new one if it has none, or an overflow row. Inside an operation."""
        memory = self.memory
        while True:
            seen = self._read(window)
            index = self._look(window, seen)
            if index is None:
                n_passed = seen.index(0) if 0 in seen else PROBES
                if not self._pass(window, seen[:n_passed]):
                    continue
                index = window.home + n_passed
                if n_passed == PROBES:
                    memory.count_overflow(self.block)
                    return self.overflow(window)
                self._start(window, index)
                if memory.cas_tag(index, 0, window.tag):
                    continue  # somebody else was faster, perhaps with the same tag
                memory.count_claim(self.block)
            return Row(memory, index, self.block)

    def overflow(self, window: Window) -> Row:
        """Return the row that a tag overflows into."""
        return Row(self.memory, window.overflow, self.block)

    def has_room(self, window: Window) -> bool:
        """True if a tag without a row could get one now. Inside an operation."""
        return 0 in self._read(window)

    def _read(self, window: Window) -> list[int]:
        fence()
        return self._tags[window.home : window.home + PROBES].tolist()

    def _look(self, window: Window, seen: list[int]) -> int | None:
        """Return the index of the tag's row, kept if it was about to be freed."""
        tag = window.tag
        if tag in seen:
            return window.home + seen.index(tag)
        if tag | LEAVING in seen:
            index = window.home + seen.index(tag | LEAVING)
            if self._keep(index, tag | LEAVING):
                return index
        return None

    def _pass(self, window: Window, passed: list[int]) -> bool:
        """Have the rows that were passed stay taken; False: one of them is free by now, look again."""
        leaving = [(window.home + i, tag) for i, tag in enumerate(passed) if tag & LEAVING]
        return all(self._keep(index, tag) for index, tag in leaving)

    def _keep(self, index: int, seen: int) -> bool:
        """Take LEAVING away from a row's tag; False: it is free."""
        kept = seen & ~LEAVING
        return self.memory.cas_tag(index, seen, kept) in (seen, kept)

    def _start(self, window: Window, index: int) -> None:
        """Make a free row's bucket start where the overflow row's stands. Killed here, the row stays free."""
        overflow_tat, tat = self.memory.tat(window.overflow).load(), self.memory.tat(index)
        seen = tat.load()
        while seen < overflow_tat:
            found = tat.cas(seen, overflow_tat)
            if found == seen:
                break
            seen = found


# A bucket that became full just now may be full only for us: another process asks with a time that it read before.
_MARGIN_NS: Final = 1_000_000_000
# Rows that leave at once: while they do, a process that passes one of them makes it stay.
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
        """True if a new row would say the same. The lease's cells: see quota_table.py."""
        tat, granted, used, hold, *others = self._memory.row(row)
        return tat + _MARGIN_NS <= now_ns and granted == used and not hold and not any(others)


def _give_back(tat: AtomicU64, n_ns: int) -> None:
    seen = tat.load()
    while (found := tat.cas(seen, max(0, seen - n_ns))) != seen:
        seen = found
