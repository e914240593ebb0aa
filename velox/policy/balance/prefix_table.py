"""Which member was lately sent a prompt that begins like this one: a table of hashes in one fixed piece of memory.

Knows: hashes of beginnings, and who got them when. Does not know: prompts, what a member really keeps, or who owns the
memory (all workers may share it).

Theory. SGLang's router keeps a radix tree of prompts for each worker, llm-d's scheduler a map of hashes of blocks. Here
a prompt is a few *marks*: CRC-32 of its first 256, 384, 512, 768 ... 8,192 bytes. Two that begin alike have the first
marks in common, as far as they are alike, to within a third of the length. So a prompt costs at most 11 entries however
long it is, and an insertion is a write at a place that the hash tells: no tree, nothing to allocate, nothing to lock.

    cell, 64 bits:   mark 32 | 1 + member 12 | when 20, seconds, modulo 12 days

Four cells are a set, as in a processor's cache; the oldest of a set goes when another comes. Several members may hold
the same mark, a cell each. What two workers write into one set at a time may be lost, and two prompts in four billion
have the same mark: either is one request that finds no cache, no error.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

__all__ = ["CELLS", "LENGTHS", "MOST_MEMBERS", "PREFIX_BYTES", "PrefixTable", "marks"]

PREFIX_BYTES: Final = 8_192  # 5 µs of hashing; what comes behind it seldom tells two members apart
CELLS: Final = 1 << 17  # 1 MiB: some 20,000 conversations at a time
MOST_MEMBERS: Final = (1 << 12) - 1
_WAYS: Final = 4
LENGTHS: Final = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, PREFIX_BYTES)
_MEMBER: Final = 0xFFF
_WHEN: Final = 0xFFFFF
# A mark that was written so lately needs no new time: nothing is evicted as fast in a table of a useful size.
_FRESH_S: Final = 15


def marks(prompt: bytes | memoryview) -> list[int]:
    """Return the marks, the shortest beginning first; none for less than 256 bytes."""
    view = memoryview(prompt)
    found = []
    n_bytes = len(view)
    mark = start = 0
    for length in LENGTHS:
        if length > n_bytes:
            break
        mark = zlib.crc32(view[start:length], mark)
        found.append(mark)
        start = length
    return found


class PrefixTable:
    """The table of one group."""

    __slots__ = ("_cells", "_sets")

    def __init__(self, cells: memoryview) -> None:
        """cells: of format "Q", all 0 at first; a power of two of them, at least 8."""
        if cells.format != "Q" or len(cells) < 2 * _WAYS or len(cells) & (len(cells) - 1):
            raise ValueError(f"{len(cells)} cells of format {cells.format!r}: not a power of two of 64 bits")
        self._cells: Final = cells
        self._sets: Final = (len(cells) - 1) & ~(_WAYS - 1)

    def __repr__(self) -> str:
        return f"<PrefixTable of {len(self._cells)} cells>"

    def holders(self, mark: int) -> list[int]:
        """Return the members that were sent it, four at most."""
        at = self._set(mark)
        return [(cell >> 20 & _MEMBER) - 1 for cell in self._cells[at : at + _WAYS] if cell >> 32 == mark and cell]

    def deepest(self, found: Sequence[int]) -> int:
        """Return how many of a prompt's marks are known, from the first on; some member has the last of these.

        By halves: whoever was sent a mark was sent those before it, too, and they are not older. One that was evicted
        out of order makes the match look shorter.
        """
        cells = self._cells
        low, high = 0, len(found)
        while low < high:
            middle = (low + high + 1) >> 1
            mark = found[middle - 1]
            at = self._set(mark)
            for cell in cells[at : at + _WAYS]:
                if cell >> 32 == mark and cell:
                    low = middle
                    break
            else:
                high = middle - 1
        return low

    def sent(self, member: int, found: Sequence[int], now_s: float) -> None:
        """Write that `member`, less than MOST_MEMBERS, gets a prompt with these marks.

        The longest first: once one is met that was written just now, so were all before it.
        """
        when = int(now_s) & _WHEN
        for mark in reversed(found):
            if self._write(mark, member, when):
                return

    def _set(self, mark: int) -> int:
        # By the upper bits of a product: CRCs of like texts differ in few bits.
        return (mark * 0x9E3779B1 >> 13) & self._sets

    def _write(self, mark: int, member: int, when: int) -> bool:
        """Write one cell; return True if it was fresh."""
        cells = self._cells
        own = mark << 12 | (member + 1)
        at = oldest = self._set(mark)
        most = -1
        for cell in cells[at : at + _WAYS]:
            age = (when - cell) & _WHEN if cell else _WHEN + 1
            if cell >> 20 == own:
                if age <= _FRESH_S:
                    return True
                oldest = at
                break
            if age > most:
                most = age
                oldest = at
            at += 1
        cells[oldest] = own << 20 | when
        return False
