"""The quota table: its memory, how a tag finds its row, and how the supervisor frees rows.

Knows: the layout, where the row of a tag is, and when all that was seen still holds. Does not know: what is in a row
(quotas.py), or when a process died.

LAYOUT. A memfd beside Segment. Everything is an 8-byte cell, as in segment.py. Untouched pages take no memory.

    gateway      1 line            rows freed so far, written by the supervisor; how many steps of each half are in use
    processes    1 line a block    BUSY, and what the process counts; written by that process
    tags         1 cell a row      0: the row is free; else the name of what has it. Bit 63: about to be freed
    rows         each row:
      shared     1 line            TAT, GRANTED, USED, HOLD, READY, NAME (two cells), RATE; written by all
      slots      1 cell a block    slots in use; written by that process
      waiting    1 cell a block    nanoseconds of permits taken ahead of their time, not yet used; by that process

TAT is the state of the bucket (policy.limits.token_bucket). The other shared cells belong to a lease of permits from
elsewhere (leased.py says what they mean): a row is not freed while HOLD is not 0 or GRANTED differs from USED, and its
lease cells are handed to the row's next owner as they are. Where no permits come from elsewhere, RATE says by which
rate TAT is moved (quotas.py).

HALVES AND STEPS. Tags that only the configuration names are in one half of the rows; those with a client's words in
them (models) in the other: they are in nobody's way that the configuration names. Each half has steps: the first has as
many rows as the configuration needs, the second as many again, each further one doubles the half. A process that finds
no free row adds the next step, until the half has all that it may have.

ROWS. In each step a tag may be in PROBES rows from its home on (open addressing, linear probing); it looks at those of
the first step, then at those of the second, and so on. Processes look and claim without a lock: a claim is one
compare-and-swap of the first free row's tag from 0. Two things must never happen: that a row changes hands under
somebody who uses it, and that a tag has two rows, each with a full bucket. Both follow from how a row is freed, by the
supervisor only:

    1. It sets LEAVING in the tag of a row that looks unused.
    2. It waits until each process whose BUSY was odd has moved it: whoever may have seen the tag without the bit is
       out.
    3. It looks again; if the row is still unused and LEAVING still set, the tag becomes 0, else the bit goes away.

Each operation makes BUSY odd before it looks at a tag, and even when it is done. So inside an operation:

    - A row whose tag was seen as one's own, without LEAVING, stays one's own. (Nobody needs to search for it again.)
    - A tag seen with LEAVING is taken back by a compare-and-swap that takes the bit away; it fails if the row is free.
    - A row that was seen taken stays taken, if whoever passes it takes LEAVING away too. So all that look for one tag
      agree on the first free row for it: one of them gets it, the others then find it.
    - Rows seen full stay full: nobody can have claimed one of them before the operation ends. So who knows of fewer
      steps than others finds his full, and looks how many there are now.

OVERFLOW. A tag that finds no row when all steps are in use is counted by each process for itself, in memory of its own
(Row.alone): up to the whole limit in each process, so that nobody is refused because others fill the table. It is
counted, for an operator to see. When the tag gets a row, its bucket is as empty as the emptiest of those, not fuller.

SHARES. A caller that makes up models takes rows of the second half. In each process it may claim so many a minute;
beyond that its further models have one bucket together, of that process (Window.others), until it has a share again.

Killed anywhere, a process leaves BUSY odd (no row is freed until the supervisor has reaped it: those that need a new
row meanwhile add a step or overflow), a claimed row that is unused (it is freed later), or LEAVING taken away (the row
is freed later).

Memory order: AtomicView's operations are sequentially consistent. The windows are read with plain loads, and on arm64
these may pass an earlier atomic store: fence() goes between. The store of BUSY and a load of a tag, on one side, and
the swap of a tag and the load of BUSY, on the other, are all of them atomic: one of the two sees the other.

Prior art: Purcell and Harris, "Non-blocking Hashtables with Open Addressing" (2005), which resolves two inserts of one
key by a state in each cell; waiting for all that are inside is read-copy-update (McKenney and Slingwine, 1998).

FREEING. A row is unused when its bucket is full again, no slot is taken, no permit waits, and no lease is held: a new
row is in the same state. Rows are freed while more than half of those in use are taken, or when a tag found none.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from atomicshm import AtomicU64, AtomicView, fence

from velox.memo import Memo
from velox.shm.segment import CELL_BYTES, LINE_CELLS, shared_memory, whole_lines

__all__ = [
    "LEAVING",
    "PROBES",
    "QUOTA_LAYOUT",
    "QuotaMemory",
    "QuotaStatistics",
    "QuotaSweeper",
    "Row",
    "RowTable",
    "TableSize",
    "Window",
]


# Another number whenever memory of before would be read wrongly: an upgrade then begins with a new table.
QUOTA_LAYOUT: Final = 1
# Set in the tag of a row that is about to be freed: a process that needs the row clears the bit, and the row stays.
LEAVING: Final = 1 << 63
# How many rows from its home on a tag may be in, in each step.
PROBES: Final = 16

_TAT, _GRANTED, _N_STATE, _N_SHARED = 0, 1, 4, LINE_CELLS
_N_LEASE: Final = 7  # GRANTED to RATE
_RATE: Final = 7
_FREED, _STEPS = 0, 1  # of the gateway's line; of each half one cell of steps
_BUSY, _CLAIMED, _OVERFLOWED, _OVER_SHARE = 0, 1, 2, 3
# A tag's homes in the steps: other bits of it for each.
_TAG_BITS: Final = 63
_TURN: Final = 11


class TableSize(NamedTuple):
    """Rows of a table, at first and at most: of tags that the configuration names, and of those with clients' words."""

    named: int
    open: int
    most_named: int
    most_open: int

    @classmethod
    def fixed(cls, rows: int) -> TableSize:
        """Return a table that never grows."""
        named = rows // 2
        return cls(named, rows - named, named, rows - named)

    @classmethod
    def for_need(cls, named: int, open_ended: int) -> TableSize:
        """Return one that begins with what the configuration needs, and can grow with it."""
        named, open_ended = max(_LEAST, named), max(_LEAST, open_ended)
        return cls(named, open_ended, max(_MOST_NAMED, 4 * named), max(_MOST_OPEN, 2 * open_ended))

    @property
    def rows(self) -> int:
        """Return the most that there are."""
        return self.most_named + self.most_open

    def rows_used(self, *, has_models: bool) -> int:
        """Return the most that are ever used while the configuration needs what it did at first.

        has_models: limits are counted for models that clients name.
        """
        return min(2 * self.named, self.most_named) + (self.most_open if has_models else 0)


_LEAST: Final = 8192
# Rows that were never touched take no memory: a million keys may come while the gateway runs.
_MOST_NAMED: Final = 2_097_152
_MOST_OPEN: Final = 131_072


class QuotaStatistics(NamedTuple):
    """What the table has done since the start, over all processes."""

    rows: int  # of the steps in use
    in_use: int  # of them, now
    claimed: int
    freed: int
    overflowed: int  # operations that found no row
    over_share: int  # operations of callers that had claimed their share


class _Half:
    """The rows of one kind. first: of all rows. steps: where each begins, and how many homes it has."""

    __slots__ = ("cell", "ends", "first", "steps")

    def __init__(self, first: int, least: int, most: int, cell: int) -> None:
        self.first: Final = first
        self.cell: Final = cell  # of the gateway's line
        steps: list[tuple[int, int]] = []
        ends: list[int] = []
        so_far, size = 0, least
        while not steps or (so_far < most and most - so_far > PROBES):
            size = min(size, most - so_far)
            steps.append((first + so_far, size - PROBES))
            so_far += size
            ends.append(first + so_far)
            size = so_far
        self.steps: Final = tuple(steps)
        self.ends: Final = tuple(ends)


class QuotaMemory:
    """Made by the supervisor before it forks; children inherit it. It is in no file system.

    size: how many quotas and slots have a row of their own; a number: a table that never grows. blocks: how many
    processes may use them, Segment.blocks; there is one more, `lease_manager_block`, for a process that is no worker.
    make, key: of a table that the version before has used (runtime/processes/memories.py); none: of a new one.
    """

    __slots__ = (
        "_atomic",
        "_own_first",
        "_row_cells",
        "_rows_first",
        "_tags_first",
        "blocks",
        "cells",
        "halves",
        "key",
        "rows",
        "share",
    )

    def __init__(
        self,
        size: TableSize | int,
        blocks: int,
        *,
        make: Callable[[str, int], mmap.mmap] = shared_memory,
        key: bytes = b"",
    ) -> None:
        if isinstance(size, int):
            size = TableSize.fixed(max(size, 4 * PROBES))
        self.rows: Final = size.rows
        self.halves: Final = (
            _Half(0, size.named, size.most_named, _STEPS),
            _Half(size.most_named, size.open, size.most_open, _STEPS + 1),
        )
        # Rows that one caller's models may claim, in each process and minute.
        self.share: Final = max(_LEAST_SHARE, size.most_open // _SHARES)
        self.blocks: Final = blocks + 1
        # Clients choose what is in a tag. They must not know which tags share a neighbourhood.
        self.key: Final = key or os.urandom(16)
        self._own_first = LINE_CELLS
        self._tags_first = self._own_first + self.blocks * LINE_CELLS
        self._rows_first = self._tags_first + whole_lines(self.rows)
        self._row_cells = _N_SHARED + whole_lines(2 * self.blocks)
        memory = make("velox-quotas", (self._rows_first + self.rows * self._row_cells) * CELL_BYTES)
        self._atomic = AtomicView(memory)
        self.cells: Final[memoryview[int]] = memoryview(memory).cast("Q")
        for half in self.halves:
            self.cells[half.cell] = self.cells[half.cell] or 1

    def __repr__(self) -> str:
        return f"<QuotaMemory rows={self.rows} blocks={self.blocks}>"

    def take(self, before: QuotaMemory) -> None:
        """Take over the buckets of a table of the same size and key, before anybody uses this one.

        Other blocks may use that one. The slots and waiting permits of its processes stay theirs.
        """
        assert before.rows == self.rows and before.key == self.key, "a row is where it was"
        for half in self.halves:
            self.cells[half.cell] = before.cells[half.cell]
        for first, end in before.parts():
            for row, tag in enumerate(before.tags()[first:end].tolist(), first):
                if tag:
                    self.cells[self._tags_first + row] = tag & ~LEAVING
                    at, of = self._row(row), before._row(row)
                    self.cells[at : at + _N_SHARED] = before.cells[of : of + _N_SHARED]

    @property
    def lease_manager_block(self) -> int:
        """The block of the one process that is no worker."""
        return self.blocks - 1

    def steps(self, half: _Half) -> int:
        """Return how many steps of a half are in use. A plain load, so fence() goes before."""
        return self.cells[half.cell]

    def grow(self, half: _Half, seen: int) -> bool:
        """Put another step into use; False when all are. seen: how many there were; there may be more by now."""
        if seen >= len(half.steps):
            return False
        self._cell(half.cell).cas(seen, seen + 1)
        return True

    def parts(self) -> tuple[tuple[int, int], ...]:
        """Return the rows in use of each half: from, and up to."""
        fence()
        return tuple((half.first, half.ends[self.steps(half) - 1]) for half in self.halves)

    def tags(self) -> memoryview[int]:
        """Return the tags of all rows, to look through: plain loads, so fence() goes before."""
        return self.cells[self._tags_first : self._tags_first + self.rows]

    def tag(self, row: int) -> AtomicU64:
        """Return the tag of a row."""
        assert 0 <= row < self.rows, f"no row {row}"
        return self._cell(self._tags_first + row)

    def cas_tag(self, row: int, seen: int, tag: int) -> int:
        """Compare and swap the tag of a row; return what was there."""
        assert 0 <= row < self.rows, f"row {row} of {self.rows} has no tag"
        return self._atomic.cas_u64((self._tags_first + row) * CELL_BYTES, seen, tag)

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

    def rate(self, row: int) -> AtomicU64:
        """Return RATE of a row."""
        return self._cell(self._row(row) + _RATE)

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

    def has_own(self, row: int, block: int) -> bool:
        """True if a process has slots or waiting permits in a row. Cheap: it is asked of each row."""
        first = self._row(row) + _N_SHARED + block
        return bool(self.cells[first] or self.cells[first + self.blocks])

    def busy(self, block: int) -> AtomicU64:
        """Return the cell that is odd while the process of a block is inside an operation."""
        return self._cell(self._own_first + self._checked(block) * LINE_CELLS + _BUSY)

    def count_claim(self, block: int) -> None:
        """Count a row that was free and is in use now."""
        self.cells[self._own_first + block * LINE_CELLS + _CLAIMED] += 1

    def count_overflow(self, block: int) -> None:
        """Count an operation that found no row."""
        self.cells[self._own_first + block * LINE_CELLS + _OVERFLOWED] += 1

    def count_over_share(self, block: int) -> None:
        """Count an operation of a caller that had claimed its share."""
        self.cells[self._own_first + block * LINE_CELLS + _OVER_SHARE] += 1

    def count_freed(self, n: int) -> None:
        """Count rows that were freed. For the supervisor."""
        self.cells[_FREED] += n

    def overflowed(self) -> int:
        """Return how many operations found no row, over all processes."""
        return self._sum_of_own(_OVERFLOWED)

    def over_share(self) -> int:
        """Return how many operations were of callers that had claimed their share, over all processes."""
        return self._sum_of_own(_OVER_SHARE)

    def statistics(self) -> QuotaStatistics:
        """Return what the table has done so far."""
        tags, parts = self.tags(), self.parts()
        rows = sum(end - first for first, end in parts)
        in_use = rows - sum(tags[first:end].tolist().count(0) for first, end in parts)
        counts = (self._sum_of_own(_CLAIMED), self.cells[_FREED], self.overflowed(), self.over_share())
        return QuotaStatistics(rows, in_use, *counts)

    def _sum_of_own(self, cell: int) -> int:
        return sum(self.cells[self._own_first + cell : self._tags_first : LINE_CELLS])

    def _row(self, row: int) -> int:
        assert 0 <= row < self.rows, f"no row {row}"
        return self._rows_first + row * self._row_cells

    def _checked(self, block: int) -> int:
        if not 0 <= block < self.blocks:
            raise IndexError(f"no block {block} of {self.blocks}")
        return block

    def _cell(self, index: int) -> AtomicU64:
        return self._atomic.cell_u64(index * CELL_BYTES)


# So many callers must make up models at a time to fill what there is of rows for them.
_SHARES: Final = 256
_LEAST_SHARE: Final = 64
_NS_PER_MINUTE: Final = 60_000_000_000


class Row:
    """One row, as one process sees it. is_overflow: it is in memory of this process, and perhaps of several tags."""

    __slots__ = ("index", "is_overflow", "own_slots", "slots", "tag", "tat", "waiting")

    def __init__(
        self,
        index: int,
        tag: AtomicU64,
        tat: AtomicU64,
        slots: memoryview[int],
        own_slots: AtomicU64,
        waiting: memoryview[int],
    ) -> None:
        self.index: Final = index
        self.is_overflow: Final = index < 0
        self.tag: Final = tag
        self.tat: Final = tat
        self.slots: Final = slots
        self.own_slots: Final = own_slots
        self.waiting: Final = waiting

    def __repr__(self) -> str:
        return f"<Row {self.index} tat={self.tat.load()} slots={sum(self.slots)} waiting={self.waiting[0]}>"

    @classmethod
    def of(cls, memory: QuotaMemory, index: int, block: int) -> Row:
        """Return a row of the table."""
        waiting = memory.waiting(index)[block : block + 1]
        own_slots = memory.own_slots(index, block)
        return cls(index, memory.tag(index), memory.tat(index), memory.slots(index), own_slots, waiting)

    @classmethod
    def alone(cls) -> Row:
        """Return a row in memory of this process. Its tag is 0: nobody takes it for the tag's own row."""
        memory = bytearray(_N_ALONE * CELL_BYTES)
        view, cells = AtomicView(memory), memoryview(memory).cast("Q")
        tag, tat, own_slots = (view.cell_u64(i * CELL_BYTES) for i in range(3))
        return cls(-1, tag, tat, cells[2:3], own_slots, cells[3:4])


_N_ALONE: Final = 4


class Window:
    """Where a tag may be. others: the tag that a caller's models beyond its share have together; 0: no share."""

    __slots__ = ("half", "homes", "others", "tag")

    def __init__(self, tag: int, half: _Half, others: int) -> None:
        self.tag: Final = tag
        self.half: Final = half
        self.others: Final = others
        self.homes: tuple[int, ...] = ()  # in the steps that were in use when it was looked for last

    def look_up_homes(self, n_steps: int) -> None:
        """Find its homes in so many steps."""
        tag = self.tag
        turned = ((tag >> n | tag << (_TAG_BITS - n)) & (LEAVING - 1) for n in range(0, _TURN * n_steps, _TURN))
        steps = zip(self.half.steps, turned, strict=False)
        self.homes = tuple(begin + part % n_homes for (begin, n_homes), part in steps)


class _Shares:
    """How many new rows each caller may still claim, in one process: so many at once, and so many a minute."""

    __slots__ = ("_full_at", "_interval_ns", "_now_ns", "_span_ns")

    def __init__(self, n: int, now_ns: Callable[[], int]) -> None:
        self._interval_ns: Final = _NS_PER_MINUTE // n
        self._span_ns: Final = self._interval_ns * (n - 1)
        self._now_ns: Final = now_ns
        self._full_at: Final[Memo[int, int]] = Memo(_KEPT_SHARES)

    def has(self, caller: int) -> bool:
        """True if a caller may claim one now."""
        return self._of(caller) <= self._now_ns() + self._span_ns

    def take(self, caller: int) -> None:
        """Note that it has."""
        self._full_at.put(caller, max(self._of(caller), self._now_ns()) + self._interval_ns)

    def _of(self, caller: int) -> int:
        return self._full_at.get(caller) or self._full_at.find(caller) or 0


_KEPT_SHARES: Final = 4096
# Rows of this process's own. More are needed only if the table is full and thousands of tags want a row at once.
_MOST_OVERFLOWN: Final = 4096


class RowTable:
    """One process's way to the rows. block: of this process; there is one RowTable in it, and one thread.

    enter(): begin an operation: what is seen from now on stays as it was seen, until leave(). Both are the same step,
    and without a Python frame, for each request takes them.
    """

    __slots__ = ("_now_ns", "_overflown", "_shares", "_tags", "block", "enter", "leave", "memory")

    def __init__(self, memory: QuotaMemory, block: int, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.memory: Final = memory
        self.block: Final = block
        self._now_ns: Final = now_ns
        self._tags = memory.tags()
        self._shares: Final = _Shares(memory.share, now_ns)
        self._overflown: Final[dict[int, Row]] = {}
        self.enter: Final[Callable[[], object]] = partial(memory.busy(block).fetch_add, 1)
        self.leave: Final = self.enter

    def __repr__(self) -> str:
        return f"<RowTable block={self.block} {self.memory!r}>"

    def window(self, tag: int, *, open_ended: bool, others: int = 0) -> Window:
        """Return where `tag` may be.

        open_ended: clients name such tags (models), so that there is no end of them. others: of one caller's, the tag
        that all beyond its share have together; 0: there are no other callers.
        """
        return Window(tag, self.memory.halves[open_ended], others)

    def find(self, window: Window) -> Row | None:
        """Return the row of a tag if it has one. Inside an operation."""
        index = self._look(window, self._read(window))
        return None if index is None else self._own(window, index)

    def claim(self, window: Window) -> Row:
        """Return the row of a tag, a new one if it has none, or an overflow row. Inside an operation."""
        memory = self.memory
        while True:
            seen = self._read(window)
            index = self._look(window, seen)
            if index is None:
                if window.others and not self._shares.has(window.others):
                    memory.count_over_share(self.block)
                    return self._overflow(window.others)
                n_passed = seen.index(0) if 0 in seen else len(seen)
                if not self._pass(window, seen[:n_passed]):
                    continue
                if n_passed == len(seen):
                    if memory.grow(window.half, len(window.homes)):
                        continue
                    memory.count_overflow(self.block)
                    return self._overflow(window.tag)
                index = _index(window, n_passed)
                if memory.cas_tag(index, 0, window.tag):
                    continue  # somebody else was faster, perhaps with the same tag
                memory.count_claim(self.block)
                if window.others:
                    self._shares.take(window.others)
            return self._own(window, index)

    def overflown(self, window: Window) -> Row | None:
        """Return the row of this process that counts a tag without a row of its own, if there is one."""
        return self._overflown.get(self._overflow_tag(window))

    def has_room(self, window: Window) -> bool:
        """True if a tag without a row could get one now. Inside an operation."""
        if self._overflow_tag(window) != window.tag:
            return False
        return 0 in self._read(window) or len(window.homes) < len(window.half.steps)

    def _overflow_tag(self, window: Window) -> int:
        return window.others if window.others and not self._shares.has(window.others) else window.tag

    def _read(self, window: Window) -> list[int]:
        fence()
        n_steps = self.memory.steps(window.half)
        if len(window.homes) != n_steps:
            window.look_up_homes(n_steps)
        seen: list[int] = []
        for home in window.homes:
            seen += self._tags[home : home + PROBES].tolist()
        return seen

    def _look(self, window: Window, seen: list[int]) -> int | None:
        """Return the index of the tag's row, kept if it was about to be freed."""
        tag = window.tag
        if tag in seen:
            return _index(window, seen.index(tag))
        if tag | LEAVING in seen:
            index = _index(window, seen.index(tag | LEAVING))
            if self._keep(index, tag | LEAVING):
                return index
        return None

    def _pass(self, window: Window, passed: list[int]) -> bool:
        """Have the rows that were passed stay taken; False: one of them is free by now, look again."""
        leaving = [(_index(window, i), tag) for i, tag in enumerate(passed) if tag & LEAVING]
        return all(self._keep(index, tag) for index, tag in leaving)

    def _keep(self, index: int, seen: int) -> bool:
        """Take LEAVING away from a row's tag; False: it is free."""
        kept = seen & ~LEAVING
        return self.memory.cas_tag(index, seen, kept) in (seen, kept)

    def _own(self, window: Window, index: int) -> Row:
        """Return a tag's own row. What this process has counted for the tag before there was one goes into it."""
        row = Row.of(self.memory, index, self.block)
        alone = self._overflown.get(window.tag) if self._overflown else None
        if alone is not None:
            _raise(row.tat, alone.tat.load())
            if alone.slots[0]:
                alone.tat.store(0)
            else:
                del self._overflown[window.tag]
        return row

    def _overflow(self, tag: int) -> Row:
        row = self._overflown.get(tag)
        if row is None:
            if len(self._overflown) >= _MOST_OVERFLOWN:
                self._forget_some()
            row = self._overflown[tag] = Row.alone()
        return row

    def _forget_some(self) -> None:
        """Forget the rows of full buckets; if that is not enough, the older half of those without slots."""
        now_ns, rows = self._now_ns(), self._overflown
        unused = [tag for tag, row in rows.items() if row.tat.load() <= now_ns and not row.slots[0]]
        if not unused:
            unused = [tag for tag, row in rows.items() if not row.slots[0]][: _MOST_OVERFLOWN // 2]
        for tag in unused:
            del rows[tag]


def _index(window: Window, position: int) -> int:
    """Return which row stands at a position of what _read() returned."""
    return window.homes[position // PROBES] + position % PROBES


def _raise(tat: AtomicU64, least: int) -> None:
    """Have the state of a bucket be at least this."""
    seen = tat.load()
    while seen < least and (found := tat.cas(seen, least)) != seen:
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

    __slots__ = ("_half", "_memory", "_next", "_overflowed", "_tags", "_urgent")

    def __init__(self, memory: QuotaMemory) -> None:
        self._memory: Final = memory
        self._tags = memory.tags()
        self._overflowed = 0
        self._urgent = 0  # parts to look at, however much is free
        self._half = 0  # which is looked at next, and from which row on
        self._next = 0

    def __repr__(self) -> str:
        return f"<QuotaSweeper {self._memory!r}>"

    def reclaim(self, block: int) -> int:
        """Take back what a dead process had; return the nanoseconds of permits given back.

        After it was reaped, and before the next process starts in that block. Permits that were charged and used stay
        charged: nobody knows what came of their requests.
        """
        memory = self._memory
        given_back_ns = 0
        taken = [
            row for first, end in memory.parts() for row, tag in enumerate(self._tags[first:end].tolist(), first) if tag
        ]
        for row in taken:
            if not memory.has_own(row, block):
                continue
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
        memory, parts = self._memory, self._memory.parts()
        n_rows = sum(end - first for first, end in parts)
        part = max(_PART, n_rows // _MOST_PARTS)
        tags = [(row, tag) for first, end in self._turn(parts, part) for row, tag in self._tags_of(first, end)]
        # An overflow is an overflow until all parts were looked at once more.
        overflowed = memory.overflowed()
        if overflowed != self._overflowed:
            self._overflowed, self._urgent = overflowed, -(-n_rows // part) + 1
        taken = [row for row, tag in tags if tag]
        if 2 * len(taken) <= len(tags) and not self._urgent:
            return 0
        self._urgent -= self._urgent > 0
        fence()
        unused = [row for row in taken if self._is_unused(row, now_ns)]
        freed = sum(self._free(unused[i : i + _BATCH], now_ns) for i in range(0, len(unused), _BATCH))
        memory.count_freed(freed)
        return freed

    def _turn(self, parts: tuple[tuple[int, int], ...], n: int) -> Iterator[tuple[int, int]]:
        """Yield which rows are next, `n` in all: from, and up to. Each is looked at once before the first again."""
        for _ in parts:
            begin, end = parts[self._half]
            first = begin + self._next
            upto = min(end, first + n)
            n -= upto - first
            self._next = upto - begin
            if upto == end:
                self._half, self._next = (self._half + 1) % len(parts), 0
            yield first, upto
            if not n:
                return

    def _tags_of(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        return enumerate(self._tags[first:end].tolist(), first)

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
