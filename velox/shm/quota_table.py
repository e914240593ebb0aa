"""Rows of the quota table, found by their tags: the hash table, and how a row changes hands.

Knows: where the row of a tag is, how a tag gets one, and when all that was seen is still so. Does not know: what is
in a row (quotas.py), or when one is freed (quota_sweep.py).

Theory. A tag may be in PROBES rows from its home on (open addressing, linear probing). Processes look and claim without
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
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from atomicshm import fence

from velox.shm.quota_memory import LEAVING, OVERFLOW_ROWS, PROBES, QuotaMemory

__all__ = ["Row", "RowTable", "Window"]


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
