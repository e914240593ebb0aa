"""What all workers know of upstreams: how many requests each member has in flight, and what was counted of it.

Knows: the layout, which row a member has, and how rows change hands at a reload. Does not know: what is done with a
count, or when a configuration is taken over.

LAYOUT. Two memfds. Everything is an 8-byte cell with one writer, as in segment.py. Untouched pages take no memory, so
there is room for all that a configuration may name, twice.

    head        1 line            FOLDING, by the supervisor; odd while it moves counts
    used        1 cell a block    1: a process has written there
    in flight   each row:         1 cell a block: requests that have begun and not ended; written by that process
    slabs       each block, and one of the supervisor: ROW_CELLS a row, counters and gauges; written by that process

    prefixes    a memfd of its own: policy.balance.prefix.CELLS a group; written by all, any loss is harmless

The cells in flight of one row are adjacent, for they are added up for each choice; what a process counts is adjacent
for the process.

ROWS. A member is one origin of an upstream, and has a row as long as a configuration names it. The table of rows is
a SharedSnapshot, so that running processes see members that are added later. Only the supervisor writes it, before the
workers get the configuration.

A member that is no longer named leaves: it keeps its row for LEAVING_S, in which all workers have taken over the
new configuration or were found stuck, and then until no request is in flight there and each worker that had the member
has released it (forget): a request that runs elsewhere may still be retried there. Counters of the row
go to another member of the upstream, if there is one: the upstream's sums never fall while the upstream is there.

Nothing here is taken under a lock. A worker that is killed leaves cells in flight behind; the supervisor zeroes them
when it has reaped it (reclaim), as it does with slots. That is exact, because each cell has one writer.
"""

from __future__ import annotations

import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, overload

from atomicshm import AtomicView

from velox.policy.balance.prefix import CELLS as PREFIX_CELLS
from velox.shm.problems import CredentialProblems
from velox.shm.segment import CELL_BYTES, LINE_CELLS, shared_memory, whole_lines
from velox.shm.snapshot import SharedSnapshot

__all__ = [
    "ATTEMPTS",
    "COST_NANO",
    "EJECTIONS",
    "FIRST_BYTE_NS",
    "KEYS_OUT",
    "KEYS_RESTING",
    "LEAVING_S",
    "MOST_GROUPS",
    "MOST_ROWS",
    "N_OUTCOMES",
    "N_STATES",
    "ROW_CELLS",
    "STATES",
    "TOKENS",
    "TOKEN_KINDS",
    "TTFB",
    "UNPRICED",
    "InflightOf",
    "Label",
    "RowTotals",
    "TableFullError",
    "UpstreamCells",
    "UpstreamMemory",
    "UpstreamTable",
]


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
# Of calls that are recorded: those without a price, what the others cost, tokens by kind.
UNPRICED: Final = TTFB + len(FIRST_BYTE_NS) + 2
COST_NANO: Final = UNPRICED + 1
TOKENS: Final = COST_NANO + 1
TOKEN_KINDS: Final = ("input", "output", "cached", "cache_written", "reasoning")
STATES: Final = TOKENS + len(TOKEN_KINDS)
KEYS_OUT: Final = STATES + N_STATES
KEYS_RESTING: Final = KEYS_OUT + 1
ROW_CELLS: Final = whole_lines(KEYS_RESTING + 1)
_GAUGES: Final = slice(STATES, ROW_CELLS)

_NO_GAUGES: Final = memoryview(bytes((ROW_CELLS - STATES) * CELL_BYTES)).cast("Q")
_NO_CELLS: Final = memoryview(bytes(ROW_CELLS * CELL_BYTES)).cast("Q")


class UpstreamMemory:
    """Made by the supervisor before it forks; children inherit it. It is in no file system.

    blocks: how many processes may count, Segment.blocks.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks: Final = blocks
        self._inflight_first = whole_lines(LINE_CELLS + blocks)
        self._slabs_first = self._inflight_first + whole_lines(MOST_ROWS * blocks)
        self._slab_cells = MOST_ROWS * ROW_CELLS
        self._memory = shared_memory(
            "velox-upstreams", (self._slabs_first + (blocks + 1) * self._slab_cells) * CELL_BYTES
        )
        self._cells: memoryview[int] = memoryview(self._memory).cast("Q")
        self._prefix_memory = shared_memory("velox-prefixes", MOST_GROUPS * PREFIX_CELLS * CELL_BYTES)
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
        self._cells[LINE_CELLS + self._checked(block)] = 1

    def is_used(self, block: int) -> bool:
        """True once a process has written to the block: others are not looked at, for that would take memory."""
        return bool(self._cells[LINE_CELLS + self._checked(block)])

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
        return self._memory, self._inflight_first * CELL_BYTES, Struct(f"={self.blocks}Q")

    def slab(self, block: int) -> memoryview[int]:
        """Return what a block counts, ROW_CELLS a row; `blocks` is the supervisor's own."""
        first = self.slab_at(block) // CELL_BYTES
        return self._cells[first : first + self._slab_cells]

    def slab_at(self, block: int) -> int:
        """Return where the slab of a block begins, in bytes of the memory that inflight_bytes() returns."""
        n = block if block == self.blocks else self._checked(block)
        return (self._slabs_first + n * self._slab_cells) * CELL_BYTES

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
        self.inflight(row)[:] = memoryview(bytes(self.blocks * CELL_BYTES)).cast("Q")
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
        n_bytes = PREFIX_CELLS * CELL_BYTES
        self._prefix_memory.madvise(mmap.MADV_REMOVE, slot * n_bytes, n_bytes)

    def _slabs(self) -> list[int]:
        """Return the slabs that were written to; the supervisor's is always one."""
        return [*(block for block in range(self.blocks) if self.is_used(block)), self.blocks]

    def _checked(self, block: int) -> int:
        if not 0 <= block < self.blocks:
            raise IndexError(f"no block {block} of {self.blocks}")
        return block


# The name of an upstream, and one of its origins.
Label: TypeAlias = tuple[str, str]

# A worker looks for another configuration every 0.25 s; one that has not moved for 10 s is replaced.
LEAVING_S: Final = 30.0
# Names and origins come from a file of 1 MiB; a name stands there once for each origin, and two files' may be here.
_LABELS_BYTES: Final = 1 << 25
# A snapshot is written in milliseconds; who reads just then tries again.
_LOOKS: Final = 10_000
# In bytes from where a row begins in a slab.
_TTFB_AT: Final = TTFB * CELL_BYTES
_SUM_AT: Final = _TTFB_AT + (len(FIRST_BYTE_NS) + 1) * CELL_BYTES
_ROW_BYTES: Final = ROW_CELLS * CELL_BYTES


class TableFullError(Exception):
    """There are no rows left: too many members have not gone yet."""


class RowTotals(NamedTuple):
    """One member, over all workers. cells: as upstream_table.py has them."""

    upstream: str
    origin: str
    inflight: int
    cells: list[int]

    @property
    def has_attempts(self) -> bool:
        """True if a request was sent there."""
        return self.inflight > 0 or any(self.cells[ATTEMPTS : ATTEMPTS + N_OUTCOMES])


class UpstreamTable:
    """Made by the supervisor before it forks; children inherit it, and see what is enrolled later.

    blocks: how many processes may count, Segment.blocks. now_s: monotonic; only the supervisor asks for it.
    credentials: what is wrong with theirs.
    """

    __slots__ = ("_groups", "_labels", "_leaving", "_now_s", "_rows", "credentials", "memory")

    def __init__(self, blocks: int, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.memory: Final = UpstreamMemory(blocks)
        self.credentials: Final = CredentialProblems(blocks)
        self._labels: Final[SharedSnapshot[tuple[dict[Label, int], dict[str, int]]]] = SharedSnapshot(_LABELS_BYTES)
        self._now_s: Final = now_s
        self._rows: dict[Label, int] = {}
        self._groups: dict[str, int] = {}
        self._leaving: Final[dict[Label, float]] = {}  # since when; known to the supervisor only

    def __repr__(self) -> str:
        return f"<UpstreamTable rows={len(self._rows)} leaving={len(self._leaving)} {self.memory!r}>"

    # -- for the supervisor ---------------------------------------------------------------------

    def enroll(self, members: Iterable[Label], *, groups: Iterable[str] = ()) -> None:
        """Give a row to each member, and a table of prompts to each of the groups; all others leave.

        Raises TableFullError, and nothing has changed.
        """
        self.sweep()
        wanted, now_s = dict.fromkeys(members), self._now_s()
        new = [label for label in wanted if label not in self._rows]
        if len(self._rows) + len(new) > MOST_ROWS:
            raise TableFullError(f"{len(new)} members are new, and {MOST_ROWS - len(self._rows)} rows are free")
        taken = {*self._rows.values()}
        free = (row for row in range(MOST_ROWS) if row not in taken)
        self._rows.update(zip(new, free, strict=False))
        for label in self._rows:
            if label in wanted:
                self._leaving.pop(label, None)
            else:
                self._leaving.setdefault(label, now_s)
        self._enroll_groups(dict.fromkeys(groups))
        self._publish()

    def sweep(self) -> int:
        """Free the rows of members that have left; return how many. Mostly there is none."""
        freed = self._free() if self._leaving else 0
        if freed:
            self._publish()
        return freed

    def reclaim(self, block: int) -> int:
        """Take back what a dead process had in flight; return how many requests. Its gauges are zeroed, too.

        After it was reaped, and before the next process starts in that block.
        """
        self.credentials.forget(block)
        if not self.memory.is_used(block):
            return 0
        self._look()
        own = self.memory.inflight_of_block(block)
        n_rows = max(self._rows.values(), default=-1) + 1
        n_requests = sum(own[:n_rows])
        self.memory.clear_block(block, n_rows)
        return n_requests

    # -- for any process ------------------------------------------------------------------------

    def row(self, upstream: str, origin: str) -> int:
        """Return the row of a member. Raises KeyError if it was not enrolled."""
        self._look()
        return self._rows[upstream, origin]

    def labels(self) -> list[tuple[int, str, str]]:
        """Return row, upstream and origin of each member, also of those that leave."""
        self._look()
        return [(row, *label) for label, row in self._rows.items()]

    def prefixes(self, group: str) -> memoryview[int]:
        """Return the table of prompts of a group (policy.balance.prefix). Raises KeyError."""
        self._look()
        return self.memory.prefixes(self._groups[group])

    def inflight(self, row: int) -> int:
        """Return the requests in flight in a row, over all blocks."""
        return sum(self.memory.inflight(row))

    def totals(self) -> list[RowTotals]:
        """Return what was counted of each member: no count is in two rows, or in none, as it moves."""
        memory, totals = self.memory, list[RowTotals]()
        for _ in range(_LOOKS):
            n_folding = memory.n_folding
            if not n_folding & 1:
                totals = [
                    RowTotals(upstream, origin, self.inflight(row), memory.totals(row))
                    for row, upstream, origin in self.labels()
                ]
                if memory.n_folding == n_folding:
                    break
            os.sched_yield()
        return totals

    def _look(self) -> None:
        """Read the rows if they have changed."""
        for _ in range(_LOOKS):
            found = self._labels.read_new()
            if found is not None:
                self._rows, self._groups = found
            if not self._labels.is_new:
                return
            os.sched_yield()  # the next one is just being written

    def _publish(self) -> None:
        self._labels.publish((self._rows, self._groups))

    def _enroll_groups(self, wanted: dict[str, None]) -> None:
        """Give tables of prompts. They hold hints: what those write who knew the last owner does no harm."""
        kept = {name: slot for name, slot in self._groups.items() if name in wanted}
        taken = {*kept.values()}
        for slot in {*self._groups.values()} - taken:
            self.memory.clear_prefixes(slot)
        free = [slot for slot in range(MOST_GROUPS) if slot not in taken] or [*range(MOST_GROUPS)]
        new = [name for name in wanted if name not in kept]
        self._groups = kept | {name: free[n % len(free)] for n, name in enumerate(new)}

    def _free(self) -> int:
        """Free the rows of those that have left."""
        now_s = self._now_s()
        gone = [
            label
            for label, since_s in self._leaving.items()
            if now_s - since_s >= LEAVING_S and not self._is_needed(self._rows[label])
        ]
        if gone:
            self.memory.fold()
            for label in gone:
                del self._leaving[label]
                self._give_up(label, self._rows.pop(label))
            self.memory.fold()
        return len(gone)

    def _is_needed(self, row: int) -> bool:
        """True while a worker has the row's member, or a request in flight there."""
        return bool(self.inflight(row)) or self.memory.has_state(row)

    def _give_up(self, label: Label, row: int) -> None:
        """Zero a row; what it counted goes to another member of its upstream."""
        successor = next((other for (name, _), other in self._rows.items() if name == label[0]), None)
        counts = self.memory.totals(row)[:STATES]
        self.memory.clear(row)
        if successor is not None:
            slab = self.memory.slab(self.memory.blocks)
            for cell, n in enumerate(counts, successor * ROW_CELLS):
                slab[cell] += n


class UpstreamCells:
    """What one worker writes of members, by row; a new one has nothing in flight. block: of this process.

    Each count is one call of C or two, and no system call: an atomic add takes half of what it takes to read a cell of
    a memoryview and write it again, though nobody else writes there.
    """

    __slots__ = ("_add", "_cells", "_first", "_memory", "_own", "_row_bytes", "_slab", "_sub", "_unpack")

    def __init__(self, table: UpstreamTable, block: int) -> None:
        memory = table.memory
        memory.use(block)
        table.reclaim(block)
        self._cells: Final = memory.slab(block)
        self._memory, self._first, row = memory.inflight_bytes()
        self._row_bytes: Final = row.size
        self._unpack: Final = row.unpack_from
        # Where this block's cells begin, in bytes of the memory: of row 0, in flight and in its slab.
        self._own: Final = self._first + block * CELL_BYTES
        self._slab: Final = memory.slab_at(block)
        view = AtomicView(self._memory)
        self._add: Final = view.fetch_add_u64
        self._sub: Final = view.fetch_sub_u64

    def __repr__(self) -> str:
        return f"<UpstreamCells of {self._row_bytes >> 3} blocks>"

    def began(self, row: int) -> None:
        """A request begins there."""
        self._add(self._own + row * self._row_bytes, 1)

    def counts_begun(self, row: int) -> Callable[[], object]:
        """Return what does as began() for one row, without a Python frame."""
        return partial(self._add, self._own + row * self._row_bytes, 1)

    def counts_attempts(self, row: int, outcome: int) -> Callable[[], object]:
        """Return what does as count_attempt() for one row and outcome, without a Python frame."""
        return partial(self._add, self._slab + row * _ROW_BYTES + CELL_BYTES * (ATTEMPTS + outcome), 1)

    def ended(self, row: int) -> None:
        """A request has ended there. Raises ValueError if none had begun. The last word on it: counts come before."""
        at = self._own + row * self._row_bytes
        if not self._sub(at, 1):
            self._add(at, 1)
            raise ValueError(f"no request had begun in row {row}")

    def inflight(self, row: int) -> int:
        """Return the requests that have begun and not ended there, over all workers."""
        return sum(self._unpack(self._memory, self._first + row * self._row_bytes))

    def inflight_of(self, rows: Iterable[int]) -> InflightOf:
        """Return the requests in flight of several rows, as they are whenever they are looked at."""
        return InflightOf(self._memory, self._unpack, [self._first + row * self._row_bytes for row in rows])

    def count_attempt(self, row: int, outcome: int) -> None:
        """Count one attempt. outcome: velox.outcomes.AttemptOutcome."""
        self._add(self._slab + row * _ROW_BYTES + CELL_BYTES * (ATTEMPTS + outcome), 1)

    def count_ejection(self, row: int) -> None:
        """Count that the member was put out."""
        self._add(self._slab + row * _ROW_BYTES + CELL_BYTES * EJECTIONS, 1)

    def count_call(self, row: int, tokens: Sequence[int | None], cost_nano: int | None) -> None:
        """Count what a call took. tokens: by TOKEN_KINDS. None: not known."""
        cells, first = self._cells, row * ROW_CELLS
        if cost_nano is None:
            cells[first + UNPRICED] += 1
        elif cost_nano > 0:
            cells[first + COST_NANO] += cost_nano
        for kind, n in enumerate(tokens, first + TOKENS):
            if n:
                cells[kind] += n

    def observe_ttfb(self, row: int, ns: int) -> None:
        """Record the time to the first byte of a reply."""
        add, first = self._add, self._slab + row * _ROW_BYTES
        add(first + _TTFB_AT + CELL_BYTES * bisect_left(FIRST_BYTE_NS, ns), 1)
        add(first + _SUM_AT, ns)

    def set_state(self, row: int, state: int) -> None:
        """Set the state in which this worker has the member. state: policy.health.member.State."""
        cells, first = self._cells, row * ROW_CELLS + STATES
        for other in range(N_STATES):
            cells[first + other] = other == state

    def set_keys(self, row: int, out: int, resting: int) -> None:
        """Set how many of the member's keys are out, and rest."""
        cells, first = self._cells, row * ROW_CELLS
        cells[first + KEYS_OUT] = out
        cells[first + KEYS_RESTING] = resting

    def forget(self, row: int) -> None:
        """Say that this worker is done with the member, and writes no more there: it has no state."""
        self.set_state(row, -1)
        self.set_keys(row, 0, 0)


class InflightOf(Sequence[int]):
    """The requests in flight of some rows. Nothing is kept: each look reads the memory."""

    __slots__ = ("_at", "_memory", "_unpack")

    def __init__(
        self, memory: mmap.mmap, unpack: Callable[[mmap.mmap, int], tuple[int, ...]], at: Sequence[int]
    ) -> None:
        self._memory: Final = memory
        self._unpack: Final = unpack
        self._at: Final = at  # where the rows begin

    def __repr__(self) -> str:
        return f"<InflightOf {list(self)}>"

    def __len__(self) -> int:
        return len(self._at)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> InflightOf: ...
    def __getitem__(self, index: int | slice) -> int | InflightOf:
        if isinstance(index, slice):
            return InflightOf(self._memory, self._unpack, self._at[index])
        return sum(self._unpack(self._memory, self._at[index]))

    def __iter__(self) -> Iterator[int]:
        memory, unpack = self._memory, self._unpack
        return iter([sum(unpack(memory, at)) for at in self._at])
