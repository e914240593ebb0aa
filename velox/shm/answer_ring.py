"""Texts that all workers keep together for a while: a ring of bytes, and a table of where each text stands.

Knows: ids and owners as numbers, what is overwritten, how old a text is. Does not know: what a text is.

The ring has one head, which each process moves on by an atomic addition: what it passes is the process' own to write.
The newest text takes the place of the oldest. A row of the table says where the text of an id stands; each process
writes only the rows of its own block and reads all of them, as in object_table.py. A reader copies a text, and takes it
for whole only if nothing has come near its place meanwhile and its checksum is right: a process that stood still for a
whole turn of the ring may write into another one's text.

Who purges texts leaves the time in a mark, and then takes out the rows. A text that was asked for before that time is
not kept any more: its row is written so that nobody finds it, then the marks are looked at, and only then may it be
found, unless who purges has been at the row meanwhile. So a process that is killed at any moment brings nothing back.

A text is changed by writing another one, under a lock that the kernel takes from a process that ends. Otherwise
processes lock nothing, and one that is killed leaves at most a place that nobody reads. The memory is bounded in bytes
and in rows; age is the reader's to ask for.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import mmap
import os
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from atomicshm import AtomicView, fence

from velox.shm.segment import CELL_BYTES, shared_memory

__all__ = ["ANSWER_LAYOUT", "AnswerMemory", "AnswerRing", "Found", "ring_bytes"]

# Another number whenever memory of before would be read wrongly: an upgrade then begins with a new ring.
ANSWER_LAYOUT: Final = 3

_MARKS: Final = 1016  # of purges; two that share one are taken for each other, and then a late text is not kept in vain
_FIRST_MARK: Final = 8  # the first cell is the ring's head: bytes that were ever taken
_HEAD_CELLS: Final = _FIRST_MARK + _MARKS
_ROW: Final = 8  # cells
_TAG, _OWNER, _POSITION, _LENGTH, _CHECK, _WRITTEN_NS, _GONE, _LABEL = range(8)
_WAYS: Final = 8  # rows of a set
_ROWS_EACH: Final = 4  # of a text: it has some ids beside its own
_SLICE_BYTES: Final = 256 * 1024
_PLACES: Final = 1 << 16  # of changes at a time
_PATIENCE_S: Final = 0.005
_TRY_S: Final = 0.0002
_MOST_PART: Final = 4  # one text may take a fourth of the ring


class Found(NamedTuple):
    """A text. age_s: since it was written. is_old: half of the ring was written since then. position: of no other."""

    text: bytes | bytearray
    age_s: float
    is_old: bool
    position: int


def _sets(entries: int, writers: int) -> int:
    """Return the sets of rows of one block."""
    return max(1, -(-entries * _ROWS_EACH // (writers * _WAYS)))


def ring_bytes(size: int, entries: int, writers: int, blocks: int) -> int:
    """Return what all takes, once every byte was written. As for AnswerMemory."""
    return size + (_sets(entries, writers) * _WAYS * _ROW * blocks + _HEAD_CELLS) * CELL_BYTES


class AnswerMemory:
    """Made by the supervisor before it forks.

    size: bytes of the ring. entries: texts whose rows the processes of all worker slots have room for together.
    writers: those slots. blocks: of all of them, spares included. Untouched pages take no memory.

    name: of the memory, where the kernel lists it.

    make, key, changes: of a ring that the version before has used (runtime/processes/memories.py); none: of a new one.
    """

    __slots__ = ("blocks", "cells", "changes", "key", "mapped", "ring", "sets", "size")

    def __init__(
        self,
        size: int,
        entries: int,
        writers: int,
        blocks: int,
        *,
        make: Callable[[str, int], mmap.mmap] = shared_memory,
        key: bytes = b"",
        changes: int = -1,
        name: str = "velox-answers",
    ) -> None:
        self.size: Final = size - size % CELL_BYTES
        self.blocks: Final = blocks
        self.sets: Final = _sets(entries, writers)
        self.key: Final = key or os.urandom(16)  # clients must not choose which ids share a set
        n_cells = _HEAD_CELLS + self.sets * _WAYS * _ROW * blocks
        # Which processes lock places of.
        self.changes: Final = changes if changes >= 0 else os.memfd_create("velox-answer-changes", os.MFD_CLOEXEC)
        self.mapped: Final = make(name, n_cells * CELL_BYTES + self.size)
        memory = memoryview(self.mapped)
        self.cells: Final[memoryview[int]] = memory[: n_cells * CELL_BYTES].cast("Q")
        self.ring: Final = memory[n_cells * CELL_BYTES :]

    def __repr__(self) -> str:
        return f"<AnswerMemory {self.size} bytes, sets={self.sets} blocks={self.blocks}>"


class AnswerRing:
    """The texts as one process sees them, which writes the rows of `block`.

    patience_s: how long a change waits for another process that is in a change of the same text.
    """

    __slots__ = ("_atomic", "_block", "_change_lock", "_lock", "_memory", "_n_tries")

    def __init__(self, memory: AnswerMemory, block: int, patience_s: float = _PATIENCE_S) -> None:
        self._memory: Final = memory
        self._n_tries: Final = round(patience_s / _TRY_S)
        self._block: Final = block
        self._lock: Final = threading.Lock()
        self._change_lock: Final = threading.Lock()  # a process has a lock of a file for all of its threads
        self._atomic: Final = AtomicView(memory.mapped)

    def __repr__(self) -> str:
        return f"<AnswerRing block={self._block} {self._memory!r}>"

    @property
    def is_used(self) -> bool:
        """True once anything was kept."""
        return self._memory.cells[0] != 0

    @property
    def most_bytes(self) -> int:
        """The longest text that is kept."""
        return self._memory.size // _MOST_PART

    @property
    def written_bytes(self) -> int:
        """How many bytes were ever taken; what is over the ring's size has taken the place of others."""
        return self._memory.cells[0]

    @property
    def size(self) -> int:
        """The bytes of the ring."""
        return self._memory.size

    def put(self, owner: str, ids: Iterable[str], text: bytes | bytearray, label: str = "", asked_ns: int = 0) -> bool:
        """Keep a text under ids; False: it is too long. Who has it under one of them already keeps it in vain.

        label: what forget_where() finds it by, beside its owner. asked_ns: when it was asked for, of the monotonic
        clock: it is not kept, and False, if such texts were purged since; 0: it is kept in any case.
        """
        n_bytes = len(text)
        if not n_bytes or n_bytes > self.most_bytes:
            return False
        memory = self._memory
        owner_number, label_number = self._number(owner), self._number(label) if label else 0
        if asked_ns and self._is_purged(owner_number, label_number, asked_ns):
            return False
        position = self._take(n_bytes)
        at = position % memory.size
        # In a thread, others have the interpreter between two slices.
        for n in range(0, n_bytes, _SLICE_BYTES):
            piece = text[n : n + _SLICE_BYTES]
            memory.ring[at + n : at + n + len(piece)] = piece
        row = owner_number, position, n_bytes, zlib.crc32(text), time.monotonic_ns()
        is_kept = True
        with self._lock:  # large answers are translated in a thread of the worker
            for each in ids:
                tag = self._number(each)
                at = self._write(tag, row, label_number, _hidden(tag) if asked_ns else 0)
                if asked_ns and not self._show(at, tag, row[0], label_number, asked_ns):
                    is_kept = False
        return is_kept

    def _show(self, at: int, tag: int, owner: int, label: int, asked_ns: int) -> bool:
        """Let a row be found that was written hidden; False: what it stands for was purged."""
        fence()
        if self._is_purged(owner, label, asked_ns):
            return False
        hidden = _hidden(tag)
        return bool(self._atomic.cas_u64((at + _GONE) * CELL_BYTES, hidden, 0) == hidden)

    def _is_purged(self, owner: int, label: int, asked_ns: int) -> bool:
        cells = self._memory.cells
        return any(cells[_mark(number)] >= asked_ns for number in (0, owner, label, owner ^ label))

    def swap(self, owner: str, object_id: str, found: Found, text: bytes) -> bool:
        """Keep a text in the place of the one that was found; False: another one has taken its place meanwhile.

        A process that is stopped in the middle of it does not stop the others for long: they have a patience (5 ms).
        """
        with self._changing(self._number(object_id)):
            now = self.get(owner, object_id, math.inf)
            return now is not None and now.position == found.position and self.put(owner, (object_id,), text)

    @contextlib.contextmanager
    def _changing(self, tag: int) -> Iterator[None]:
        """Keep other processes, and other threads, from a change of the same text."""
        file, place = self._memory.changes, tag % _PLACES
        with self._change_lock:
            is_held = False
            for _ in range(self._n_tries):
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                except BlockingIOError:
                    time.sleep(_TRY_S)
                else:
                    is_held = True
                    break
            try:
                yield
            finally:
                if is_held:
                    fcntl.lockf(file, fcntl.LOCK_UN, 1, place)

    def get(self, owner: str, object_id: str, most_age_s: float) -> Found | None:
        """Return the text that an owner has under an id; None: there is none any more."""
        memory, now_ns = self._memory, time.monotonic_ns()
        at = self._newest(self._number(owner), self._number(object_id))
        if at is None:
            return None
        cells = memory.cells
        position, n_bytes, check, written_ns = cells[at + _POSITION : at + _GONE]
        age_s = (now_ns - written_ns) / 1e9
        start = position % memory.size
        if age_s > most_age_s or start + n_bytes > memory.size:
            return None
        text = self._copied(start, n_bytes)
        fence()
        passed = cells[0] - position
        if passed > memory.size or zlib.crc32(text) != check:
            return None
        return Found(text, age_s, passed > memory.size // 2, position)

    def _copied(self, start: int, n_bytes: int) -> bytes | bytearray:
        ring = self._memory.ring
        if n_bytes <= _SLICE_BYTES:
            return bytes(ring[start : start + n_bytes])
        text = bytearray(n_bytes)
        for n in range(0, n_bytes, _SLICE_BYTES):  # as in put()
            end = min(n_bytes, n + _SLICE_BYTES)
            text[n:end] = ring[start + n : start + end]
        return text

    def length(self, owner: str, object_id: str) -> int:
        """Return how long the text is that an owner may have under an id; 0: there is none."""
        at = self._newest(self._number(owner), self._number(object_id))
        return 0 if at is None else self._memory.cells[at + _LENGTH]

    def forget(self, owner: str, object_id: str) -> None:
        """Let nobody find the text of an id any more."""
        owner_number, tag, cells = self._number(owner), self._number(object_id), self._memory.cells
        for at in self._rows_of(owner_number, tag):
            # Of the id and not of the row, which its process may have given to another one meanwhile.
            cells[at + _GONE] = tag

    def forget_where(self, owners: Collection[str] = (), label: str = "", least_age_s: float = 0.0) -> int:
        """Let nobody find any more what all of these are true of; return how many ids that were. None: of any.

        Without an age, what was asked for until now is not kept later either. It looks at all rows: some 0.5 us each.
        """
        memory, cells = self._memory, self._memory.cells
        owner_numbers, label_number = frozenset(map(self._number, owners)), self._number(label) if label else 0
        if not least_age_s:
            with self._lock:  # no time goes back
                now_ns = time.monotonic_ns()
                for number in owner_numbers or (0,):
                    cells[_mark(number ^ label_number)] = now_ns
        fence()
        # Read after the marks are there: whoever writes a row later sees them.
        latest_ns, oldest = time.monotonic_ns() - round(least_age_s * 1e9), cells[0] - memory.size
        n_found = 0
        for at in range(_HEAD_CELLS, _HEAD_CELLS + memory.sets * _WAYS * _ROW * memory.blocks, _ROW):
            if not cells[at]:
                continue
            tag, row_owner, position, _, _, written_ns, gone, row_label = cells[at : at + _ROW]
            if not tag or gone == tag or position < oldest or written_ns > latest_ns:
                continue
            if (not owners or row_owner in owner_numbers) and (not label or row_label == label_number):
                cells[at + _GONE] = tag  # as in forget(); of a hidden row too, which is then never shown
                n_found += gone != _hidden(tag)
        return n_found

    # -- inside -------------------------------------------------------------------------------------

    def _number(self, text: str) -> int:
        """Return what stands for an id or an owner: never 0."""
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), key=self._memory.key, digest_size=8).digest()
        return int.from_bytes(digest) | 1

    def _take(self, n_bytes: int) -> int:
        """Return the place of so many bytes in one piece, as the ring counts them."""
        size = self._memory.size
        while True:  # what would go over the ring's end stays unused, once in each turn of the ring
            position = self._atomic.fetch_add_u64(0, n_bytes)
            if position % size + n_bytes <= size:
                return position

    def _rows(self, tag: int, block: int) -> range:
        memory = self._memory
        first = _HEAD_CELLS + (block * memory.sets + (tag >> 8) % memory.sets) * _WAYS * _ROW
        return range(first, first + _WAYS * _ROW, _ROW)

    def _rows_of(self, owner: int, tag: int) -> list[int]:
        """Return the rows of all blocks that an owner's text has under an id."""
        cells, found = self._memory.cells, []
        fence()
        for block in range(self._memory.blocks):
            for at in self._rows(tag, block):
                if cells[at] == tag and cells[at + _OWNER] == owner and cells[at + _GONE] | 1 != tag:
                    found.append(at)
        return found

    def _newest(self, owner: int, tag: int) -> int | None:
        cells = self._memory.cells
        return max(self._rows_of(owner, tag), key=lambda at: cells[at + _POSITION], default=None)

    def _write(self, tag: int, row: tuple[int, int, int, int, int], label: int, gone: int) -> int:
        """Note where a text stands: in the row of the id, an empty one, or the one whose text is the oldest.

        Return that row. gone: 0, or that it is hidden.
        """
        cells = self._memory.cells
        rows = self._rows(tag, self._block)
        same = (at for at in rows if cells[at] == tag and cells[at + _OWNER] == row[0])
        at = next(same, None)
        if at is None:
            at = min(rows, key=lambda each: cells[each + _POSITION] + 1 if cells[each] else 0)
        cells[at] = 0
        fence()
        for n, value in enumerate(row, _OWNER):
            cells[at + n] = value
        cells[at + _GONE] = gone
        cells[at + _LABEL] = label
        fence()
        cells[at] = tag
        return at


def _hidden(tag: int) -> int:
    """Return what a row has as _GONE that nobody finds yet. Tags are odd, so `| 1` makes one of both."""
    return tag - 1


def _mark(number: int) -> int:
    """Return the cell with the time of the last purge by an owner, a label, both (XOR) or neither (0)."""
    return _FIRST_MARK + (number >> 8) % _MARKS
