"""Series of metrics that begin while the gateway runs: rows of numbers, each with its labels, in shared memory.

Knows: how rows lie in the memory, and how a process finds its own. Does not know: what a number or a label means.

Each process has a block of its own, with rows that only it adds and writes, so there is no lock, and a reader in
another process stops nobody. Rows of several blocks with the same labels are one series: the reader adds them up. A
process that takes a dead one's place goes on with its rows.

    block    a line whose first cell says how many rows are whole; then the rows
    row      the length of its labels and their text, as JSON; then its numbers
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import add
from typing import Final, TypeAlias

import orjson

from velox.shm.segment import CELL_BYTES, LINE_CELLS, atomic_view, shared_memory, whole_lines

__all__ = ["Labels", "SeriesBlock", "SeriesTable"]

# The values of a series' labels.
Labels: TypeAlias = tuple[str, ...]

_LABEL_CELLS: Final = 64
_MOST_BYTES: Final = (_LABEL_CELLS - 1) * CELL_BYTES


class SeriesTable:
    """The rows of all processes. Made by the supervisor before it forks.

    row_cells: numbers of a row. n_rows: that a block has room for; untouched ones take no memory.
    """

    __slots__ = ("_bytes", "_cells", "_row_cells", "blocks", "n_rows", "row_cells")

    def __init__(self, blocks: int, row_cells: int, n_rows: int) -> None:
        self.blocks: Final = blocks
        self.row_cells: Final = row_cells
        self.n_rows: Final = n_rows
        self._row_cells: Final = _LABEL_CELLS + whole_lines(row_cells)
        n_cells = blocks * (LINE_CELLS + n_rows * self._row_cells)
        whole = memoryview(shared_memory("velox-series", n_cells * CELL_BYTES))
        self._bytes: Final = whole
        self._cells: Final = whole.cast("Q")

    def __repr__(self) -> str:
        return f"<SeriesTable blocks={self.blocks} rows={[self.n_used(block) for block in range(self.blocks)]}>"

    def n_used(self, block: int) -> int:
        """Return how many rows of a block are whole."""
        return self._cells[self._block_at(block)]

    def labels(self, block: int, row: int) -> Labels:
        """Return the labels of a whole row."""
        at = self._row_at(block, row)
        begin = (at + 1) * CELL_BYTES
        return tuple(orjson.loads(self._bytes[begin : begin + self._cells[at]]))

    def totals(self) -> dict[Labels, list[int]]:
        """Return the numbers of each series, over all blocks."""
        found: dict[Labels, list[int]] = {}
        for block in range(self.blocks):
            for row in range(self.n_used(block)):
                at = self._row_at(block, row) + _LABEL_CELLS
                numbers, labels = self._cells[at : at + self.row_cells].tolist(), self.labels(block, row)
                before = found.get(labels)
                found[labels] = numbers if before is None else list(map(add, before, numbers))
        return found

    def block(self, block: int) -> SeriesBlock:
        """Return a block for the process that writes it."""
        first = self._block_at(block)
        return SeriesBlock(self, block, self._cells[first : first + LINE_CELLS + self.n_rows * self._row_cells])

    def _block_at(self, block: int) -> int:
        return block * (LINE_CELLS + self.n_rows * self._row_cells)

    def _row_at(self, block: int, row: int) -> int:
        return self._block_at(block) + LINE_CELLS + row * self._row_cells


class SeriesBlock:
    """The rows of one process, which adds to them.

    add: adds to a number; of a row it is given where the number is, in bytes: what row() returns, and CELL_BYTES for
    each number before it.
    """

    __slots__ = ("_at", "_cells", "_index", "_row_bytes", "_rows", "add", "table")

    def __init__(self, table: SeriesTable, block: int, cells: memoryview[int]) -> None:
        self.table: Final = table
        self._index: Final = block
        self._cells: Final = cells
        memory, at = atomic_view(cells)
        self._at: Final = at
        self._row_bytes: Final = (_LABEL_CELLS + whole_lines(table.row_cells)) * CELL_BYTES
        self.add: Final[Callable[[int, int], object]] = memory.fetch_add_u64
        # What a process before this one has begun is gone on with.
        self._rows: Final[dict[Labels, int]] = {
            table.labels(block, row): self._numbers_at(row) for row in range(table.n_used(block))
        }

    def __repr__(self) -> str:
        return f"<SeriesBlock {self._index} rows={len(self._rows)}>"

    def row(self, labels: Labels) -> int | None:
        """Return where the numbers of a series are; a new one is zero. None: there is no room for another one."""
        found = self._rows.get(labels)
        if found is None:
            found = self._begun(labels)
        return found

    def others(self, seen: Sequence[int]) -> Iterator[tuple[int, Labels]]:
        """Yield the labels of rows that were not seen yet, of all blocks. seen: how many of each block were."""
        for block, n_seen in enumerate(seen):
            for row in range(n_seen, self.table.n_used(block)):
                yield block, self.table.labels(block, row)

    def _begun(self, labels: Labels) -> int | None:
        text, row = orjson.dumps(labels), len(self._rows)
        if len(text) > _MOST_BYTES or row >= self.table.n_rows:
            return None
        first = LINE_CELLS + row * (self._row_bytes // CELL_BYTES)
        self._cells[first : first + _LABEL_CELLS] = _label_cells(text)
        self.add(self._at, 1)  # from now on it is whole; what was written before it is seen before it
        found = self._rows[labels] = self._numbers_at(row)
        return found

    def _numbers_at(self, row: int) -> int:
        return self._at + LINE_CELLS * CELL_BYTES + row * self._row_bytes + _LABEL_CELLS * CELL_BYTES


def _label_cells(text: bytes) -> memoryview[int]:
    padded = len(text).to_bytes(CELL_BYTES, "little") + text.ljust(_MOST_BYTES, b"\0")
    return memoryview(padded).cast("Q")
