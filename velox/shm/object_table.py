"""Which caller made which object of the shared account, and where it is kept: a table over all workers.

Knows: ids, owners and places as numbers, where each stands, which row gives way when a set is full. Does not know:
requests.

Each process writes only its own block and reads all of them, so no lock is needed. A row is taken out before it is
changed: who reads it meanwhile finds nothing, and the owner of another id never. The memory is bounded: of a full set
of rows the oldest one of the caller that has most of them gives way, so that nobody can drive out others' rows alone.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from atomicshm import fence

from velox.shm.segment import CELL_BYTES, shared_memory

__all__ = ["OBJECT_LAYOUT", "UNKNOWN", "ObjectMemory", "ObjectTable", "object_bytes"]

# Another number whenever memory of before would be read wrongly: an upgrade then begins with a new table.
OBJECT_LAYOUT: Final = 1
_WAYS: Final = 16  # rows of a set
_ROWS: Final = struct.Struct("<4Q")
_ROW: Final = 4  # cells: the id, its owner, when it was written, where the object is kept
# Replies that are kept: only the endpoints that make them name them.
_OF_REPLIES: Final = ("resp_", "chatcmpl-")
UNKNOWN: Final = 0  # the owner of an object that is not in the table


def _sets(rows: int, writers: int) -> int:
    """Return the sets of rows of one block."""
    return max(1, -(-rows // (writers * _WAYS)))


def object_bytes(rows: int, writers: int, blocks: int) -> int:
    """Return what a table takes, once every row of every block was written. As for ObjectMemory."""
    return _sets(rows, writers) * _WAYS * _ROW * CELL_BYTES * blocks


class ObjectMemory:
    """Made by the supervisor before it forks.

    rows: that the processes of all worker slots have together. writers: those slots. blocks: of all of them, spares
    included, so that a process that replaces another one has rows of its own. Untouched pages take no memory.
    """

    __slots__ = ("blocks", "cells", "key", "named", "sets")

    def __init__(
        self, rows: int, writers: int, blocks: int, *, memory: memoryview | None = None, key: bytes = b""
    ) -> None:
        """memory, key: of a table that outlives its processes (object_file.py); none: it ends with them."""
        self.blocks: Final = blocks
        self.sets: Final = _sets(rows, writers)
        self.key: Final = key or os.urandom(16)  # clients must not choose which ids share a set
        if memory is None:
            size = object_bytes(rows, writers, blocks)
            memory = memoryview(shared_memory("velox-objects", size + CELL_BYTES))
        cells = memory.cast("Q")
        self.cells: Final[memoryview[int]] = cells[:-1]
        # As ObjectTable.named. Whoever writes it writes 1.
        self.named: Final[memoryview[int]] = cells[-1:]

    def take(self, pieces: Iterable[bytes]) -> None:
        """Take over the rows of a table of another shape, before anybody uses this one. pieces: of whole rows."""
        tables = [ObjectTable(self, block) for block in range(self.blocks)]
        n = 0
        for piece in pieces:
            for tag, owner, noted_ns, place in _ROWS.iter_unpack(piece[: len(piece) // _ROWS.size * _ROWS.size]):
                if tag:
                    tables[n % len(tables)].write(tag, owner, place, noted_ns)
                    n += 1
        self.named[0] = 1 if n else 0

    def __repr__(self) -> str:
        return f"<ObjectMemory sets={self.sets} blocks={self.blocks}>"


class ObjectTable:
    """The table as one process sees it, which writes `block`.

    named: its first is 0 until somebody has made an object that bodies of any endpoint may name, as a file. tell:
    called with the numbers of each new object, of its owner and its place; None: nobody else is to know.
    """

    __slots__ = ("_block", "_memory", "named", "tell")

    def __init__(self, memory: ObjectMemory, block: int) -> None:
        self.tell: Callable[[int, int, int], None] | None = None
        self._memory: Final = memory
        self._block: Final = block
        self.named: Final = memory.named

    def __repr__(self) -> str:
        return f"<ObjectTable block={self._block} {self._memory!r}>"

    def number(self, text: str) -> int:
        """Return what stands for an id or an owner: never 0."""
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), key=self._memory.key, digest_size=8).digest()
        return int.from_bytes(digest) | 1

    def owner_of(self, object_id: str) -> int:
        """Return the number of the owner, or UNKNOWN."""
        found = self.find(object_id)
        return UNKNOWN if found is None else found[0]

    def place_of(self, object_id: str) -> int:
        """Return the number of where an object is kept, or UNKNOWN."""
        found = self.find(object_id)
        return UNKNOWN if found is None else found[1]

    def find(self, object_id: str) -> tuple[int, int] | None:
        """Return the owner of an object and where it is kept, each may be UNKNOWN; None: nothing is known of it."""
        tag, cells = self.number(object_id), self._memory.cells
        fence()
        for block in range(self._memory.blocks):
            for at in self._rows(tag, block):
                if cells[at] == tag:
                    owner, place = cells[at + 1], cells[at + 3]
                    fence()
                    if cells[at] == tag:
                        return owner, place
        return None

    def remember(self, object_id: str, owner: int, place: int = UNKNOWN) -> None:
        """Note who made an object, and where it is kept. What is known of it stays so."""
        if self.find(object_id) is not None:
            return
        if not object_id.startswith(_OF_REPLIES):
            self.named[0] = 1
        self._write(object_id, owner, place)
        if self.tell is not None:
            self.tell(self.number(object_id), owner, place)

    def learn(self, object_id: str, owner: int, place: int) -> None:
        """Note what another gateway knows of an object."""
        if self.find(object_id) is None:
            self.named[0] = 1
            self._write(object_id, owner, place)

    def keep(self, text: str, owner: int, place: int) -> None:
        """Note where something is now, in the place of what this process has noted before."""
        self._write(text, owner, place)

    def latest(self, text: str) -> tuple[int, int] | None:
        """Return where something is that moves, and when that was noted (Unix time, ns); None: not known."""
        tag, cells = self.number(text), self._memory.cells
        found: tuple[int, int] | None = None
        fence()
        for block in range(self._memory.blocks):
            for at in self._rows(tag, block):
                if cells[at] == tag:
                    place, noted_ns = cells[at + 3], cells[at + 2]
                    fence()
                    if cells[at] == tag and (found is None or noted_ns > found[1]):
                        found = place, noted_ns
        return found

    def _write(self, text: str, owner: int, place: int) -> None:
        self.write(self.number(text), owner, place, time.time_ns())

    def write(self, tag: int, owner: int, place: int, noted_ns: int) -> None:
        """Write a row. tag: the number of an id; noted_ns: when, by Unix time: the clock of the next start, too."""
        cells = self._memory.cells
        rows = self._rows(tag, self._block)
        at = next((at for at in rows if cells[at] == tag), None)
        if at is None:
            at = next((at for at in rows if not cells[at]), None)
        if at is None:
            counts = Counter(cells[at + 1] for at in rows)
            counts[owner] += 1
            most = max(counts.values())
            at = min(
                (at for at in rows if counts[cells[at + 1]] == most), key=lambda at: cells[at + 2], default=rows[0]
            )
        cells[at] = 0
        fence()
        cells[at + 1], cells[at + 2], cells[at + 3] = owner, noted_ns, place
        fence()
        cells[at] = tag

    def _rows(self, tag: int, block: int) -> range:
        first = (block * self._memory.sets + (tag >> 8) % self._memory.sets) * _WAYS * _ROW
        return range(first, first + _WAYS * _ROW, _ROW)
