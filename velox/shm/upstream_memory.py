"""The memory of what all workers know of upstreams: memfds of their own, and where everything in them lies.

Knows: the layout. Does not know: which member has which row (upstream_table.py), or what a number means.

Everything is an 8-byte cell with one writer, as in segment.py. Pages that nobody touched take no memory, so there is
room for all that a configuration may name, twice.

    head        1 line            FOLDING, by the supervisor; odd while it moves counts
    used        1 cell a block    1: a process has written there
    in flight   each row:         1 cell a block: requests that have begun and not ended; written by that process
    slabs       each block, and one of the supervisor: ROW_CELLS a row, counters and gauges; written by that process

    prefixes    a memfd of its own: policy.balance.prefix_table.CELLS a group; written by all, any loss is harmless

The cells in flight of one row lie side by side, for they are added up for each choice; what a process counts lies side
by side for the process.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct
from typing import Final

from velox.policy.balance.prefix_table import CELLS as PREFIX_CELLS

__all__ = [
    "ATTEMPTS",
    "EJECTIONS",
    "FIRST_BYTE_NS",
    "KEYS_OUT",
    "KEYS_RESTING",
    "MOST_GROUPS",
    "MOST_ROWS",
    "N_OUTCOMES",
    "N_STATES",
    "ROW_CELLS",
    "STATES",
    "TTFB",
    "UpstreamMemory",
]

_CELL_BYTES: Final = 8
_LINE_CELLS: Final = 8  # 64-byte cache lines

# 256 upstreams of 64 origins, and as many of the configuration before that have not gone yet.
MOST_ROWS: Final = 2 * 256 * 64
# 1 MiB of addresses each, of memory only what is written. Groups beyond it share tables, and hit less.
MOST_GROUPS: Final = 512

# Upper bounds of a histogram of times to a first byte: those of gen_ai.server.time_to_first_token in OpenTelemetry's
# conventions, continued to 60 s, because models that reason think that long.
FIRST_BYTE_NS: Final = tuple(
    ms * 1_000_000
    for ms in (
        *(1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750),
        *(1_000, 2_500, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 45_000, 60_000),
    )
)

# The cells of a row in a slab: first what is counted, then what is now.
N_OUTCOMES: Final = 16  # more than there are (velox.outcomes.AttemptOutcome)
N_STATES: Final = 3  # policy.health.member.State
ATTEMPTS: Final = 0
EJECTIONS: Final = ATTEMPTS + N_OUTCOMES
TTFB: Final = EJECTIONS + 1  # its buckets, +Inf last, and its sum in nanoseconds
STATES: Final = TTFB + len(FIRST_BYTE_NS) + 2
KEYS_OUT: Final = STATES + N_STATES
KEYS_RESTING: Final = KEYS_OUT + 1
ROW_CELLS: Final = -(-(KEYS_RESTING + 1) // _LINE_CELLS) * _LINE_CELLS
_GAUGES: Final = slice(STATES, ROW_CELLS)

_NO_GAUGES: Final = memoryview(bytes((ROW_CELLS - STATES) * _CELL_BYTES)).cast("Q")
_NO_CELLS: Final = memoryview(bytes(ROW_CELLS * _CELL_BYTES)).cast("Q")


class UpstreamMemory:
    """Made by the supervisor before it forks; children inherit it. It is in no file system.

    blocks: how many processes may count, Segment.blocks.
    """

    __slots__ = (
        "_cells",
        "_inflight_first",
        "_memory",
        "_prefix_cells",
        "_prefix_memory",
        "_slab_cells",
        "_slabs_first",
        "blocks",
    )

    def __init__(self, blocks: int) -> None:
        self.blocks: Final = blocks
        self._inflight_first = _lines(_LINE_CELLS + blocks)
        self._slabs_first = self._inflight_first + _lines(MOST_ROWS * blocks)
        self._slab_cells = MOST_ROWS * ROW_CELLS
        self._memory = _anonymous("velox-upstreams", self._slabs_first + (blocks + 1) * self._slab_cells)
        self._cells: memoryview[int] = memoryview(self._memory).cast("Q")
        self._prefix_memory = _anonymous("velox-prefixes", MOST_GROUPS * PREFIX_CELLS)
        self._prefix_cells: memoryview[int] = memoryview(self._prefix_memory).cast("Q")

    def __repr__(self) -> str:
        return f"<UpstreamMemory blocks={self.blocks}>"

    @property
    def n_folding(self) -> int:
        """Odd while the supervisor moves counts from one row to another; another number after each time."""
        return self._cells[0]

    def fold(self) -> None:
        """Say that counts begin to move, or have moved. For the supervisor."""
        self._cells[0] += 1

    def use(self, block: int) -> None:
        """Say that a process writes to the block from now on."""
        self._cells[_LINE_CELLS + self._checked(block)] = 1

    def is_used(self, block: int) -> bool:
        """True once a process has written to the block: others are not looked at, for that would take memory."""
        return bool(self._cells[_LINE_CELLS + self._checked(block)])

    def inflight(self, row: int) -> memoryview[int]:
        """Return the cells in flight of a row, one a block."""
        first = self._inflight_first + row * self.blocks
        return self._cells[first : first + self.blocks]

    def inflight_of_block(self, block: int) -> memoryview[int]:
        """Return the cells in flight of a block, one a row."""
        first = self._inflight_first + self._checked(block)
        return self._cells[first : self._inflight_first + MOST_ROWS * self.blocks : self.blocks]

    def inflight_bytes(self) -> tuple[mmap.mmap, int, Struct]:
        """Return the memory, where row 0 begins in it, and what reads one row there: the fastest way to add it up."""
        return self._memory, self._inflight_first * _CELL_BYTES, Struct(f"={self.blocks}Q")

    def slab(self, block: int) -> memoryview[int]:
        """Return what a block counts, ROW_CELLS a row; `blocks` is the supervisor's own."""
        first = self._slabs_first + (block if block == self.blocks else self._checked(block)) * self._slab_cells
        return self._cells[first : first + self._slab_cells]

    def totals(self, row: int) -> list[int]:
        """Return the cells of a row, added up over all blocks."""
        first = self._slabs_first + row * ROW_CELLS
        starts = (first + block * self._slab_cells for block in self._slabs())
        cells = self._cells
        return [sum(column) for column in zip(*(cells[at : at + ROW_CELLS].tolist() for at in starts), strict=True)]

    def has_state(self, row: int) -> bool:
        """True while a block has a state in the row."""
        first = self._slabs_first + row * ROW_CELLS + STATES
        starts = (first + block * self._slab_cells for block in self._slabs())
        return any(any(self._cells[at : at + N_STATES]) for at in starts)

    def clear(self, row: int) -> None:
        """Zero all cells of a row. For the supervisor, of a row that nobody has."""
        self.inflight(row)[:] = memoryview(bytes(self.blocks * _CELL_BYTES)).cast("Q")
        for block in self._slabs():
            first = self._slabs_first + block * self._slab_cells + row * ROW_CELLS
            self._cells[first : first + ROW_CELLS] = _NO_CELLS

    def clear_block(self, block: int, n_rows: int) -> None:
        """Zero what a block says of now, in its first rows: nothing is in flight, no gauge is set."""
        inflight, slab = self.inflight_of_block(block), self.slab(block)
        for row in range(n_rows):
            if inflight[row]:
                inflight[row] = 0
            slab[row * ROW_CELLS :][_GAUGES] = _NO_GAUGES

    def prefixes(self, slot: int) -> memoryview[int]:
        """Return the table of a group's prompts (0 <= slot < MOST_GROUPS)."""
        return self._prefix_cells[slot * PREFIX_CELLS : (slot + 1) * PREFIX_CELLS]

    def clear_prefixes(self, slot: int) -> None:
        """Zero the table of a group, and give its memory back."""
        n_bytes = PREFIX_CELLS * _CELL_BYTES
        self._prefix_memory.madvise(mmap.MADV_REMOVE, slot * n_bytes, n_bytes)

    def _slabs(self) -> list[int]:
        """Return the slabs that somebody has written to; the supervisor's is always one."""
        return [*(block for block in range(self.blocks) if self.is_used(block)), self.blocks]

    def _checked(self, block: int) -> int:
        if not 0 <= block < self.blocks:
            raise IndexError(f"no block {block} of {self.blocks}")
        return block


def _lines(n_cells: int) -> int:
    """Return the cells of as many whole lines as hold `n_cells`."""
    return -(-n_cells // _LINE_CELLS) * _LINE_CELLS


def _anonymous(name: str, n_cells: int) -> mmap.mmap:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, n_cells * _CELL_BYTES)
        return mmap.mmap(fd, n_cells * _CELL_BYTES)  # keeps a descriptor of its own
    finally:
        os.close(fd)
