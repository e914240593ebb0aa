"""What has been spent of each budget, by all workers: the table, and one worker's way to a row of it.

Knows: the layout, who writes which cell, and in which order. Does not know: what a call costs, or whose budget counts
it (gateway/limits/budgets.py).

LAYOUT. A memfd; everything is an 8-byte cell.

    gateway    2 lines        how many budgets found no row; how many alerts there were, and what became of them;
                              how often a budget went back to a window before; of how many rules nobody knows what
                              was spent before, ALL of all; since when Redis can't be asked (monotonic ns), 0: it can;
                              1: what was spent before is not read from the ledger
    lacking    1 cell a rule  which rules these are: digests of their identities
    tags       1 cell a row   0: the row is free; else a keyed digest of the budget that has it, for ever
    rows       each row:
      shared   LIMIT, NUMBER, END   of the window that is open; SINCE; BASE_NUMBER, BASE; GRANT_NUMBER, GRANT,
               ELSEWHERE_SPENT, ELSEWHERE_GRANTED, TOLD; REFUSED_NUMBER, REFUSALS; a name and a text; RULE, the
               digest of its rule's identity
      numbers  1 cell a block       the window that the next four are of
      held     1 cell a block       for requests that run in this process, or that ask whether they may
      spent    1 cell a block       by calls that ended in this process
      open     1 cell a block       what calls that run now count as if this process dies
      taken    1 cell a block       the part of `held` for which there was room: it is not taken back

Each cell of a block has one writer, the process of that block, and sums are made by reading. So no process can be
killed between two steps of anything that another one needs whole; what a dead process held is given back, and its open
calls are counted as spent, by whoever reaped it (`reclaim`).

A hold is noted first, and only then counted with all others: of all that do so at once, at most as many pass as there
is room for. Two that meet at the last amount both stand back, and try again. So `held` has amounts that were never
taken. Who tells others what is used (the lease manager) reads `taken`, which counts a hold when it has passed.

A hold becomes spend: SPENT grows before HELD shrinks, and a reader reads HELD first. So it may count a call twice, and
never misses one.

WINDOWS. A window has a number, which grows. A process that comes with a higher number than its cells have sets them to
0 first, with the number 0 meanwhile: a reader counts only cells of the number that it asks for. What was held in a
window is settled in that window; when that is over, nowhere. NUMBER is the highest one that anybody came with: a
process whose clock is behind by some minutes counts in that window, too. Where it is further behind, one of the two
clocks is or was wrong, and nobody can say which: it goes back to the window of its own time. What its cells had counted
there is lost then, and read from the ledger as BASE (runtime/ledger/budget_backfill.py, by `n_came_back`).

BASE is what was spent before this gateway began to count, or elsewhere: its one writer reads it from the ledger. GRANT
is how much of the limit this gateway may hold and spend, where several share it; ELSEWHERE is what the others spent and
may spend. The one writer of these is the lease manager.
"""

from __future__ import annotations

import enum
import math
import mmap
import os
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b, sha256
from itertools import compress
from typing import Final, NamedTuple

from atomicshm import AtomicView, fence

from velox.policy.budgets.budget import BudgetWindow, window_at
from velox.policy.budgets.rules import BudgetLabel, BudgetRule
from velox.shm.segment import CELL_BYTES, LINE_CELLS, shared_memory, whole_lines
from velox.types import Budget

__all__ = [
    "BUDGET_LAYOUT",
    "MOST_AHEAD_S",
    "AlertCount",
    "BudgetMemory",
    "BudgetState",
    "BudgetTable",
    "Lack",
    "SharedBudget",
    "Told",
    "rule_digest",
]

# Another number whenever memory of before would be read wrongly: an upgrade then begins with a new table.
BUDGET_LAYOUT: Final = 1

# Cells of the gateway's line.
_OVERFLOWED: Final = 0
_ALERTS: Final = 1  # and the next ones, by AlertCount
_CAME_BACK: Final = 5
_LACKING: Final = 6
_MOST_LACKING: Final = 512
_ALL: Final = 1 << 63
_AWAY: Final = 7
_UNREAD: Final = 8
_HEAD_CELLS: Final = 2 * LINE_CELLS

# Shared cells of a row.
_LIMIT: Final = 0
_NUMBER: Final = 1
_END: Final = 2  # Unix seconds; 0: the window has no end
_SINCE: Final = 3  # Unix microseconds: when the row was claimed
_BASE_NUMBER: Final = 4
_BASE: Final = 5
_GRANT_NUMBER: Final = 6
_GRANT: Final = 7
_NAME: Final = 8  # two cells
_TEXT_BYTES: Final = 10
_ELSEWHERE_SPENT: Final = 11
_ELSEWHERE_GRANTED: Final = 12
_TOLD_NS: Final = 13
_REFUSED_NUMBER: Final = 14  # the window in which a request was refused last
_REFUSALS: Final = 15
_RULE: Final = 16
_TEXT: Final = 17
_TEXT_CELLS: Final = 47
_N_SHARED: Final = _TEXT + _TEXT_CELLS
_N_ARRAYS: Final = 5
# Of a block, in so many times the number of blocks; in the order in which a reader must read them.
_HELD: Final = 1
_SPENT: Final = 2
_OPEN: Final = 3
_TAKEN: Final = 4

_PROBES: Final = 64
_MOST: Final = 1 << 61  # no sum of blocks wraps around
_TRIES: Final = 4
# What stands for the subject of the one budget that further models of clients have together.
_OTHERS: Final = ("", "(others)")
# A window may begin so much later than it is now: the clock was set back a little, or a request that is slow comes at
# midnight with the time of before.
MOST_AHEAD_S: Final = 300


class BudgetState(NamedTuple):
    """One budget at one moment, in tokens or nano-dollars. window: the open one.

    spent: by all gateways, as far as this one knows. held: by requests that run in this one. n_refused: requests of
    this one for which too little was left, in all windows. has_refused: one of them was in the open window. room: what
    this one has left of its part, while Redis can't be asked for more; None: it can, or nobody has to. is_lacking:
    nobody knows what was spent before the start.
    """

    label: BudgetLabel
    limit: int
    spent: int
    held: int
    window: BudgetWindow
    n_refused: int = 0
    has_refused: bool = False
    room: int | None = None
    is_lacking: bool = False

    @property
    def left(self) -> int:
        """Return what may still be spent: while nobody knows what others have spent since, by this gateway, surely."""
        left = self.limit - self.spent - self.held
        return max(0, left if self.room is None else min(left, self.room))


class Told(NamedTuple):
    """What Redis said of a budget's window. spent, granted: by and to all other gateways. at_ns: monotonic time."""

    grant: int
    spent: int
    granted: int
    at_ns: int


class Lack(enum.Enum):
    """Why nothing could be held: there is no room left, holds are in the way, Redis must be asked, or can't be.

    UNKNOWN: what this gateway has of it is used up, and whether there is more nobody can say.
    """

    SPENT = enum.auto()
    HELD = enum.auto()
    NOT_GRANTED = enum.auto()
    UNKNOWN = enum.auto()


class AlertCount(enum.IntEnum):
    """Thresholds that were reached; and alerts that a webhook took, did not take, or that were too many for it."""

    REACHED = 0
    SENT = 1
    FAILED = 2
    DROPPED = 3


class BudgetMemory:
    """Made by the supervisor before it forks; children inherit it. rows: of budgets. blocks: Segment.blocks.

    make, key: of a table that the version before has used (runtime/processes/memories.py); none: of a new one.
    """

    __slots__ = ("_atomic", "_lacking_first", "_row_cells", "_rows_first", "blocks", "cells", "key", "rows")

    def __init__(
        self, rows: int, blocks: int, *, make: Callable[[str, int], mmap.mmap] = shared_memory, key: bytes = b""
    ) -> None:
        self.rows: Final = max(rows, 4 * _PROBES)
        self.blocks: Final = blocks
        self.key: Final = key or os.urandom(16)
        self._lacking_first = _HEAD_CELLS + whole_lines(self.rows)
        self._rows_first = self._lacking_first + _MOST_LACKING
        self._row_cells = _N_SHARED + whole_lines(_N_ARRAYS * blocks)
        memory = make("velox-budgets", (self._rows_first + self.rows * self._row_cells) * CELL_BYTES)
        self._atomic = AtomicView(memory)
        self.cells: Final[memoryview[int]] = memoryview(memory).cast("Q")

    def __repr__(self) -> str:
        return f"<BudgetMemory rows={self.rows} blocks={self.blocks}>"

    def take(self, before: BudgetMemory) -> None:
        """Take over what was spent in a table of the same size and key, before anybody uses this one.

        Other blocks may use that one. What its processes still hold stays theirs.
        """
        assert before.rows == self.rows and before.key == self.key, "a row is where it was"
        self.cells[: self._rows_first] = before.cells[: before._rows_first]
        for row in before.used_rows():
            at, of = self.first_cell(row), before.first_cell(row)
            self.cells[at : at + _N_SHARED] = before.cells[of : of + _N_SHARED]
            number, arrays = before.cells[of + _NUMBER], of + _N_SHARED
            numbers = before.cells[arrays : arrays + before.blocks].tolist()
            spent = before.cells[arrays + _SPENT * before.blocks : arrays + (_SPENT + 1) * before.blocks].tolist()
            total = sum(n for n, of_window in zip(spent, numbers, strict=True) if of_window == number)
            self.cells[at + _N_SHARED] = number
            self.cells[at + _N_SHARED + _SPENT * self.blocks] = min(total, _MOST)

    @property
    def n_overflowed(self) -> int:
        """How many budgets found no row; each worker counts them for itself."""
        return self.cells[_OVERFLOWED]

    def count_overflow(self) -> None:
        """Count a budget without a row."""
        self._atomic.fetch_add_u64(_OVERFLOWED * CELL_BYTES, 1)

    def count_alert(self, what: AlertCount) -> None:
        """Count an alert, or what became of it."""
        self._atomic.fetch_add_u64((_ALERTS + what) * CELL_BYTES, 1)

    def n_alerts(self, what: AlertCount) -> int:
        """How many there were."""
        return self.cells[_ALERTS + what]

    @property
    def n_came_back(self) -> int:
        """How often a budget went back to a window before, because of a clock that was wrong."""
        return self.cells[_CAME_BACK]

    @property
    def is_unread(self) -> bool:
        """True while what some budgets have spent before is not read from the ledger, because that failed."""
        return bool(self.cells[_UNREAD])

    @is_unread.setter
    def is_unread(self, is_unread: bool) -> None:
        self.cells[_UNREAD] = is_unread

    @property
    def has_lacking(self) -> bool:
        """True while nobody knows what some budgets have spent before."""
        return bool(self.cells[_LACKING])

    def set_lacking(self, rules: Collection[int] | None) -> None:
        """Note the digests of all rules of which nobody knows what was spent before; None: all. For one at a time."""
        self.cells[_LACKING] = _ALL
        if rules is not None and len(rules) <= _MOST_LACKING:
            for at, digest in enumerate(rules, self._lacking_first):
                self.cells[at] = digest
            self.cells[_LACKING] = len(rules)

    def lacking(self) -> frozenset[int] | None:
        """Return the digests of these rules; None: all."""
        n = self.cells[_LACKING]
        return None if n == _ALL else frozenset(self.cells[self._lacking_first : self._lacking_first + n].tolist())

    def lacks(self, rule: int) -> bool:
        """Say whether nobody knows what was spent by a rule before. rule: rule_digest()."""
        found = self.lacking() if self.has_lacking else frozenset[int]()
        return found is None or rule in found

    @property
    def away_ns(self) -> int:
        """Since when Redis can't be asked for budgets (monotonic ns); 0: it can. Written by the lease manager."""
        return self.cells[_AWAY]

    @away_ns.setter
    def away_ns(self, since_ns: int) -> None:
        self.cells[_AWAY] = since_ns

    def tag(self, *parts: str) -> tuple[int, bytes]:
        """Return the tag of a row, and a name that is the same in all gateways."""
        text = b"".join(len(data).to_bytes(4, "big") + data for data in map(_bytes, parts))
        name = sha256(text).digest()[:16]
        return self.tag_of(name), name

    def tag_of(self, name: bytes) -> int:
        """Return the tag of the row that has this name. Keyed: nobody can make names that are in each other's way."""
        return int.from_bytes(blake2b(name, key=self.key, digest_size=8).digest(), "big") or 1

    def find(self, tag: int, *, open_ended: bool = False) -> int | None:
        """Return the row of a tag; None: it has none."""
        for row in self._probes(tag, open_ended=open_ended):
            found = self.cells[_HEAD_CELLS + row]
            if found == tag:
                return row
            if not found:
                return None
        return None

    def claim(self, tag: int, *, open_ended: bool = False) -> int | None:
        """Return the row of a tag, a new one if there is none; None: there is no room.

        open_ended: clients' words went into it. These have one half of the table, and are in nobody's way.
        """
        for row in self._probes(tag, open_ended=open_ended):
            at = (_HEAD_CELLS + row) * CELL_BYTES
            found = self.cells[_HEAD_CELLS + row] or self._atomic.cas_u64(at, 0, tag)
            if found in (0, tag):
                return row
        return None

    def first_cell(self, row: int) -> int:
        """Return where a row begins."""
        return self._rows_first + row * self._row_cells

    def used_rows(self) -> Iterator[int]:
        """Return the rows that budgets have."""
        fence()
        tags = self.cells[_HEAD_CELLS : _HEAD_CELLS + self.rows].tolist()
        return compress(range(self.rows), tags)

    def reclaim(self, block: int) -> None:
        """Give back what a dead process held; its open calls are spent. For the supervisor, after it has reaped it."""
        cells, blocks = self.cells, self.blocks
        for row in self.used_rows():
            first = self.first_cell(row) + _N_SHARED + block
            spent_at = first + _SPENT * blocks
            cells[spent_at] = min(cells[spent_at] + cells[first + _OPEN * blocks], _MOST)
            for array in (_OPEN, _TAKEN, _HELD):
                cells[first + array * blocks] = 0

    def set_base(self, row: int, number: int, amount: int) -> None:
        """Note what was spent in a window before the row was. For one process at a time."""
        first = self.first_cell(row)
        self.cells[first + _BASE_NUMBER] = 0
        self.cells[first + _BASE] = min(max(amount, 0), _MOST)
        self.cells[first + _BASE_NUMBER] = number

    def base(self, row: int, number: int) -> int:
        """Return what is noted as spent in a window before the row was."""
        first = self.first_cell(row)
        return self.cells[first + _BASE] if self.cells[first + _BASE_NUMBER] == number else 0

    def open_window(self, row: int, window: BudgetWindow) -> None:
        """Note a window as the open one, if it is later than that."""
        latest = self.cells[self.first_cell(row) + _NUMBER]
        if window.number > latest:
            self._set_window(row, latest, window)

    def come_back(self, row: int, seen: int, window: BudgetWindow) -> None:
        """Note an earlier window as the open one, if that is still what was seen."""
        if self._set_window(row, seen, window):
            self._atomic.fetch_add_u64(_CAME_BACK * CELL_BYTES, 1)

    def _set_window(self, row: int, seen: int, window: BudgetWindow) -> bool:
        first = self.first_cell(row)
        self.cells[first + _END] = window.end_s or 0
        return self._atomic.cas_u64((first + _NUMBER) * CELL_BYTES, seen, window.number) == seen

    def tell(self, row: int, number: int, told: Told) -> None:
        """Note what Redis said of a window. For the lease manager."""
        first, cells = self.first_cell(row), self.cells
        if cells[first + _GRANT_NUMBER] != number:
            cells[first + _GRANT_NUMBER] = 0
        cells[first + _GRANT] = told.grant
        cells[first + _ELSEWHERE_SPENT], cells[first + _ELSEWHERE_GRANTED] = told.spent, told.granted
        cells[first + _TOLD_NS] = told.at_ns
        cells[first + _GRANT_NUMBER] = number

    def lower(self, row: int, grant: int) -> None:
        """Have this gateway hold less of the window. Who reads the amounts afterwards sees all that was held before."""
        self.cells[self.first_cell(row) + _GRANT] = grant
        fence()

    def grant(self, row: int, number: int) -> int:
        """Return what Redis said that this gateway may hold of a window; 0: nothing yet."""
        first, cells = self.first_cell(row), self.cells
        return cells[first + _GRANT] if cells[first + _GRANT_NUMBER] == number else 0

    def told(self, row: int, number: int) -> Told | None:
        """Return what Redis said of a window; None: nothing yet."""
        first, cells = self.first_cell(row), self.cells
        if cells[first + _GRANT_NUMBER] != number:
            return None
        elsewhere = cells[first + _ELSEWHERE_SPENT], cells[first + _ELSEWHERE_GRANTED]
        return Told(cells[first + _GRANT], *elsewhere, cells[first + _TOLD_NS])

    def window_of(self, row: int) -> tuple[int, int, int]:
        """Return the limit, and of the open window the number (0: none) and end (0: never)."""
        first, cells = self.first_cell(row), self.cells
        return cells[first + _LIMIT], cells[first + _NUMBER], cells[first + _END]

    def since_us(self, row: int) -> int:
        """Return when a row was claimed, in Unix microseconds; 0: it has not been used."""
        return self.cells[self.first_cell(row) + _SINCE]

    def count_refusal(self, row: int, number: int) -> None:
        """Count a request for which too little is left in a window."""
        first = self.first_cell(row)
        self.cells[first + _REFUSED_NUMBER] = number
        self._atomic.fetch_add_u64((first + _REFUSALS) * CELL_BYTES, 1)

    def name(self, row: int) -> bytes:
        """Return what names the row's budget in all gateways."""
        first = self.first_cell(row) + _NAME
        return struct.pack("=2Q", *self.cells[first : first + 2])

    def settle_in(self, row: int, name: bytes, label: BudgetLabel, limit: int, now_us: int, rule: int) -> None:
        """Write what a row says of itself. Whoever uses a row may do so: all write the same. rule: rule_digest()."""
        first, cells = self.first_cell(row), self.cells
        cells[first + _RULE] = rule
        if cells[first + _LIMIT] != limit:
            cells[first + _LIMIT] = limit
        text = label.packed(_TEXT_CELLS * CELL_BYTES)
        if text != self.text(row):
            cells[first + _TEXT_BYTES] = 0
            padded = text.ljust(_TEXT_CELLS * CELL_BYTES, b" ")
            words = struct.unpack(f"={_TEXT_CELLS}Q", padded)
            for at, word in enumerate(words, first + _TEXT):
                cells[at] = word
            cells[first + _NAME], cells[first + _NAME + 1] = struct.unpack("=2Q", name)
            cells[first + _TEXT_BYTES] = len(text)
        if not cells[first + _SINCE]:
            cells[first + _SINCE] = now_us

    def rule(self, row: int) -> int:
        """Return the digest of its rule's identity."""
        return self.cells[self.first_cell(row) + _RULE]

    def text(self, row: int) -> bytes:
        """Return the text of a row's label; b"" while there is none."""
        first = self.first_cell(row)
        n = self.cells[first + _TEXT_BYTES]
        return self.cells[first + _TEXT : first + _TEXT + _TEXT_CELLS].tobytes()[:n]

    def label(self, row: int) -> BudgetLabel | None:
        """Return what a row says of itself; None: nobody has used it yet."""
        return BudgetLabel.read(self.text(row))

    def amounts(self, row: int, number: int) -> tuple[int, int]:
        """Return what is spent and held in a window, by all processes: also by requests that only ask."""
        return self.amounts_from(self.first_cell(row), number)

    def amounts_from(self, first: int, number: int) -> tuple[int, int]:
        """Return the same. first: where the row begins."""
        fence()
        cells, blocks, at = self.cells, self.blocks, first + _N_SHARED
        own = cells[at : at + 3 * blocks].tolist()
        spent = held = 0
        for block in range(blocks):
            if own[block] == number:
                held += own[blocks + block]
                spent += own[2 * blocks + block]
        if cells[first + _BASE_NUMBER] == number:
            spent += cells[first + _BASE]
        return spent, held

    def taken(self, row: int, number: int) -> tuple[int, int]:
        """Return what is spent in a window, and held by requests that have room: nothing that may be taken back."""
        held = self._sum(row, number, _TAKEN)
        return self.counted(row, number) + self.base(row, number), held

    def counted(self, row: int, number: int) -> int:
        """Return what is spent in a window, as far as this gateway has counted it: without what is noted as BASE."""
        return self._sum(row, number, _SPENT)

    def _sum(self, row: int, number: int, array: int) -> int:
        fence()
        first, blocks = self.first_cell(row) + _N_SHARED, self.blocks
        numbers = self.cells[first : first + blocks].tolist()
        values = self.cells[first + array * blocks : first + (array + 1) * blocks].tolist()
        return sum(value for value, each in zip(values, numbers, strict=True) if each == number)

    def states(self, now_s: float) -> Iterator[BudgetState]:
        """Return all budgets as they are now. For any process."""
        for row in self.used_rows():
            state = self.state(row, now_s)
            if state is not None:
                yield state

    def state(self, row: int, now_s: float) -> BudgetState | None:
        """Return one budget as it is now; None: nobody has used it yet."""
        label = self.label(row)
        if label is None:
            return None
        first = self.first_cell(row)
        limit, number, end_s = (self.cells[first + at] for at in (_LIMIT, _NUMBER, _END))
        window = window_at(label.budget(limit), now_s)
        if number > window.number and number - 1 - now_s <= MOST_AHEAD_S:  # as in SharedBudget.window()
            window = BudgetWindow(number - 1, end_s or None)
        spent, held = self.amounts(row, window.number)
        told = self.told(row, window.number)
        refused, n_refused = (self.cells[first + at] for at in (_REFUSED_NUMBER, _REFUSALS))
        room = None
        if self.away_ns:
            room = (0 if told is None else told.grant) - spent - held
        spent += 0 if told is None else told.spent
        return BudgetState(
            label, limit, spent, held, window, n_refused, refused == window.number, room, self.lacks(self.rule(row))
        )

    def _probes(self, tag: int, *, open_ended: bool) -> Iterator[int]:
        half = self.rows // 2
        first = half if open_ended else 0
        home = tag % (half - _PROBES)
        return iter(range(first + home, first + home + _PROBES))


def rule_digest(identity: str) -> int:
    """Return what stands for a rule where many are listed, in all gateways. identity: BudgetRule.identity."""
    return int.from_bytes(sha256(identity.encode("utf-8", "surrogatepass")).digest()[:8], "big")


def _bytes(part: str) -> bytes:
    # A surrogate that JSON let through: it has no UTF-8, but must have a budget.
    return part.encode("utf-8", "surrogatepass")


class BudgetTable:
    """One process's way to the rows. block: its own, as in Segment."""

    def __init__(self, memory: BudgetMemory, block: int) -> None:
        self._memory: Final = memory
        self._block: Final = block
        self._own: Final[list[BudgetMemory]] = []  # of budgets without a row: this process counts them for itself

    def __repr__(self) -> str:
        return f"<BudgetTable {self._block} of {self._memory!r}>"

    @property
    def has_lacking(self) -> bool:
        """True while nobody knows what some budgets have spent before."""
        return self._memory.has_lacking

    def budget(self, rule: BudgetRule, subject: str, who: str, now_s: float) -> SharedBudget:
        """Return the budget that a subject has by a rule. who: the subject as people know it."""
        row = self.row(rule, subject, who, now_s)
        if row is not None:
            return self.shared(self._memory, row, self._block, rule)
        self._memory.count_overflow()
        return self._own_budget(rule, subject, who, now_s)

    def _own_budget(self, rule: BudgetRule, subject: str, who: str, now_s: float) -> SharedBudget:
        """Return a budget that this process counts for itself: what it has counted before is in it."""
        subjects, who = (_OTHERS, _OTHERS[-1]) if rule.is_open_ended else ((subject,), who)
        for memory in self._own:
            row = _settled_row(memory, rule, subjects, who, now_s)
            if row is not None:
                return SharedBudget(memory, row, 0, rule)
        memory = BudgetMemory(self._memory.rows, 1)
        self._own.append(memory)
        row = _settled_row(memory, rule, subjects, who, now_s)
        assert row is not None, "a new table has room"
        return SharedBudget(memory, row, 0, rule)

    def shared(self, memory: BudgetMemory, row: int, block: int, rule: BudgetRule) -> SharedBudget:
        """Return what one process knows of a row."""
        return SharedBudget(memory, row, block, rule)

    def row(self, rule: BudgetRule, subject: str, who: str, now_s: float) -> int | None:
        """Return the row of a budget, which says what it is; None: there is no room for one."""
        row = _settled_row(self._memory, rule, (subject,), who, now_s, open_ended=rule.is_open_ended)
        if row is None and rule.is_open_ended:
            # What clients make up has one budget together, once it fills its half of the table.
            row = _settled_row(self._memory, rule, _OTHERS, _OTHERS[-1], now_s)
        return row


def _settled_row(
    memory: BudgetMemory, rule: BudgetRule, subjects: Sequence[str], who: str, now_s: float, *, open_ended: bool = False
) -> int | None:
    """Return the row of a budget, which says what it is; None: there is no room for one."""
    tag, name = memory.tag(rule.identity, *subjects)
    row = memory.claim(tag, open_ended=open_ended)
    if row is not None:
        label, now_us = BudgetLabel.of(rule, who), round(now_s * 1e6)
        memory.settle_in(row, name, label, rule.budget.limit, now_us, rule_digest(rule.identity))
    return row


class SharedBudget:
    """One budget, in one process. rule: that it is by. is_tokens: it counts tokens; else nano-dollars.

    is_strict: as its rule says. limit: of a window. What is held is noted by who asked for it: an amount, and the
    number of the window that it is held in, as hold() has returned it.
    """

    __slots__ = (
        "_at",
        "_begins_s",
        "_block",
        "_cells",
        "_ends_s",
        "_first",
        "_held_at",
        "_memory",
        "_number",
        "_number_at",
        "_open_at",
        "_row",
        "_spent_at",
        "_taken_at",
        "_window",
        "is_strict",
        "is_tokens",
        "limit",
        "rule",
    )

    def __init__(self, memory: BudgetMemory, row: int, block: int, rule: BudgetRule) -> None:
        self.rule: Final = rule
        self.is_tokens: Final = rule.budget.is_tokens
        self.is_strict: Final = rule.budget.strict
        self.limit: Final = rule.budget.limit
        self._memory: Final = memory
        self._row: Final = row
        self._block: Final = block
        self._cells: Final = memory.cells
        self._first: Final = memory.first_cell(row)
        self._at: Final = self._first + _N_SHARED + block
        self._held_at: Final = self._at + _HELD * memory.blocks
        self._spent_at: Final = self._at + _SPENT * memory.blocks
        self._open_at: Final = self._at + _OPEN * memory.blocks
        self._taken_at: Final = self._at + _TAKEN * memory.blocks
        self._number_at: Final = self._first + _NUMBER
        self._window = BudgetWindow(1, 0)  # none
        self._begins_s, self._ends_s, self._number = 1.0, 0.0, 0  # of this one, as each request looks at them

    def __repr__(self) -> str:
        return f"<SharedBudget {self._row} of {self.rule.name}>"

    @property
    def is_lacking(self) -> bool:
        """True while nobody knows what was spent of it before, because that could not be read."""
        return self._memory.has_lacking and self._memory.lacks(rule_digest(self.rule.identity))

    @property
    def budget(self) -> Budget:
        """The budget as it is configured."""
        return self.rule.budget

    def window(self, now_s: float) -> BudgetWindow:
        """Return the window that is open now."""
        window = self._window
        if now_s < window.start_s or (window.end_s is not None and now_s >= window.end_s):
            window = self._window = window_at(self.rule.budget, now_s)
            self._begins_s, self._number = float(window.start_s), window.number
            self._ends_s = math.inf if window.end_s is None else float(window.end_s)
        cells, first = self._cells, self._first
        number, latest = window.number, cells[first + _NUMBER]
        if number > latest:
            self._memory.open_window(self._row, window)
        elif number < latest:
            if latest - 1 - now_s <= MOST_AHEAD_S:
                return BudgetWindow(latest - 1, cells[first + _END] or None)
            self._memory.come_back(self._row, latest, window)
        return window

    def hold(self, amount: int, now_s: float) -> int | None:
        """Hold an amount; return the number of the window that it is held in. None: nothing is held, there is no room.

        What costs nothing needs no room.
        """
        cells, number = self._cells, self._number
        is_open = self._begins_s <= now_s < self._ends_s and cells[self._number_at] == number
        if not is_open or cells[self._at] != number:
            number = self._enter(self.window(now_s).number)
        if not amount:
            return number
        if amount > self.limit:
            return None  # it never fits, and is in nobody's way meanwhile
        held_at = self._held_at
        for _ in range(_TRIES):
            cells[held_at] += amount
            # Killed here, or anywhere until it is settled: reclaim() gives it back.
            spent, held = self._memory.amounts_from(self._first, number)
            limit = self._granted(number)  # after its hold can be seen: see BudgetMemory.lower()
            if spent + held <= limit:
                cells[self._taken_at] += amount
                return number
            cells[held_at] -= amount
            if spent + amount > limit:
                break
        return None

    def begin(self, number: int, amount: int) -> None:
        """A call is about to be sent. If this process dies before its end, it counts as what is held."""
        if self._cells[self._at] == number:
            self._cells[self._open_at] += amount

    def spend(self, number: int, amount: int) -> None:
        """Count what a call cost, in the window in which its request came."""
        cells, at = self._cells, self._spent_at
        if cells[self._at] == number:
            spent = cells[at] + amount
            cells[at] = spent if spent < _MOST else _MOST

    def release(self, number: int, amount: int, n_begun: int = 0) -> None:
        """Hold nothing more for a request. n_begun: how often it was begun: each call was counted, or did no work."""
        cells = self._cells
        if cells[self._at] != number:
            return
        if n_begun:
            left = cells[self._open_at] - n_begun * amount
            cells[self._open_at] = left if left > 0 else 0
        left = cells[self._taken_at] - amount
        cells[self._taken_at] = left if left > 0 else 0
        left = cells[self._held_at] - amount
        cells[self._held_at] = left if left > 0 else 0

    def amounts(self, now_s: float) -> tuple[int, int]:
        """Return what is spent and held in the open window."""
        return self._memory.amounts(self._row, self.window(now_s).number)

    def lack(self, amount: int, now_s: float) -> Lack:
        """Say why hold() gave nothing."""
        spent, _ = self.amounts(now_s)
        return Lack.SPENT if spent + amount > self.limit else Lack.HELD

    def spent(self, now_s: float) -> int:
        """Return what is spent in the open window, by all gateways, as far as is known."""
        return self.amounts(now_s)[0]

    @property
    def retry_s(self) -> float:
        """After how many seconds a request is worth another try that was refused because nobody can say."""
        return 1.0

    def count_refusal(self, now_s: float) -> None:
        """Count a request for which too little is left."""
        self._memory.count_refusal(self._row, self.window(now_s).number)

    def _granted(self, number: int) -> int:
        return self.limit

    def _enter(self, number: int) -> int:
        """Have this process's cells count for a window."""
        cells, at = self._cells, self._at
        if cells[at] != number:
            cells[at] = 0
            cells[self._held_at] = cells[self._spent_at] = cells[self._open_at] = cells[self._taken_at] = 0
            cells[at] = number
        return number
