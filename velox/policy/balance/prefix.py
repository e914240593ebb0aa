"""The member that has most of the prompt in its cache, unless it has too much to do already.

Knows: how a match is weighed against load. Does not know: what the members' caches really hold: it remembers what they
were sent, and what is sent often is kept there as well as here.

For servers that keep the keys and values of prompts (vLLM's automatic prefix caching, SGLang's RadixAttention): what
begins like an earlier prompt needs no computing up to where they part. In order:

1. who was sent the longest beginning, at least `worth` of the prompt, is below the bound of its load
   (load_per_weight()); the least loaded of several;
2. else the least loaded of all, by weight. A cache that is nearly full lowers the weight (scraped.py), so prompts that
   are new to all go to where there is room for them.

SGLang's router switches between match and load by two thresholds for the whole fleet, llm-d's adds up scores. A bound
per member needs no scale on which bytes and requests compare, and holds whatever is asked.

PrefixTable: SGLang's router keeps a radix tree of prompts for each worker, llm-d's scheduler a map of hashes of blocks.
Here a prompt is a few *marks*: CRC-32 of its first 256, 384, 512, 768 ... 8,192 bytes. Two that begin alike have the
first marks in common, as far as they are alike, to within a third of the length. So a prompt costs at most 11 entries
however long it is, and an insertion is a write at a place that the hash tells: no tree, nothing to allocate, nothing to
lock.

    cell, 64 bits:   mark 32 | 1 + id of the member 16 | when 16, in 16 s, modulo 12 days

A member's id follows from its name, so what the table knows of it stays true when others come and go at a reload. Four
cells are a set, as in a processor's cache; the oldest of a set goes when another comes. Several members may hold
the same mark, a cell each. What two workers write into one set at a time may be lost, and two prompts in four billion
have the same mark: either is one request that finds no cache, no error.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Final

from velox.policy.balance.candidates import (
    SPARE,
    Balancer,
    Candidates,
    Key,
    Tried,
    least_loaded,
    load_per_weight,
    usable,
)

__all__ = [
    "CELLS",
    "HASHED_BYTES",
    "LENGTHS",
    "PREFIX_BYTES",
    "PrefixAffinity",
    "PrefixTable",
    "marks",
    "member_ids",
    "prompt_of",
]

# Of the prompt, for a hash: turns of a conversation must have the same, so not all of it. Measured with 1, 2 and 3 kB,
# which are alike (78, 79, 78 % of the prompts' tokens found in the cache); with 8 kB, where each turn differs, 59 %.
HASHED_BYTES: Final = 2_048
_FACTOR: Final = 1.5  # a hit saves more than a somewhat longer line costs
_WORTH: Final = 0.3  # SGLang's default; a beginning that all prompts share is no reason to go anywhere
# Where the prompt begins in a request of each kind: what stands before it (temperature, a user) would make two
# conversations of the same beginning look different. Looked for in the first kilobytes, and it may be found inside a
# string: then the request goes where it has no cache, no worse.
_FIELDS: Final = (b'"messages"', b'"prompt"', b'"input"')
_FIELD_WITHIN: Final = 4_096
PREFIX_BYTES: Final = 8_192  # 5 µs of hashing; what comes behind it seldom tells two members apart
CELLS: Final = 1 << 17  # 1 MiB: some 20,000 conversations at a time
_WAYS: Final = 4
LENGTHS: Final = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, PREFIX_BYTES)
_MEMBER: Final = 0xFFFF
_MOST_IDS: Final = _MEMBER  # 0 is an empty cell
_WHEN: Final = 0xFFFF
# A mark that was written in the same 16 s needs no new time: nothing is evicted as fast in a table of a useful size.
_WHEN_BITS: Final = 4


class PrefixAffinity(Balancer):
    """The choice by prompt; its key is the request from where the prompt begins."""

    __slots__ = ("_factor", "_ids", "_members", "_spare", "_table", "_worth")

    def __init__(
        self,
        table: PrefixTable,
        ids: Sequence[int],
        *,
        factor: float = _FACTOR,
        spare: float = SPARE,
        worth: float = _WORTH,
    ) -> None:
        """ids: in the table, by member (member_ids()). factor, spare: the bound of a member's load.

        worth: the part of a prompt, 0 to 1, that is the shortest match that counts.
        """
        self._table: Final = table
        self._ids: Final = ids
        self._members: Final = {each: member for member, each in enumerate(ids)}
        self._factor: Final = factor
        self._spare: Final = spare
        self._worth: Final = worth

    def __repr__(self) -> str:
        return f"<PrefixAffinity {self._table} factor={self._factor} spare={self._spare} worth={self._worth}>"

    def pick(
        self, candidates: Candidates, now_s: float, random: float, key: Key = b"", tried: Tried = ()
    ) -> int | None:
        """Choose, and remember that the prompt goes there."""
        weights = usable(candidates.weights, tried)
        found = marks(key)
        if not found:
            return least_loaded(candidates, weights, random)
        table = self._table
        depth = table.deepest(found)
        if depth:
            per_weight = load_per_weight(candidates, weights, self._factor, self._spare)
            least_bytes = self._worth * LENGTHS[len(found) - 1]
            while depth and LENGTHS[depth - 1] >= least_bytes:
                chosen = self._with_room(table.holders(found[depth - 1]), candidates, weights, per_weight)
                if chosen is not None:
                    table.sent(self._ids[chosen], found, now_s)
                    return chosen
                depth -= 1
        member = least_loaded(candidates, weights, random)
        if member is not None:
            table.sent(self._ids[member], found, now_s)
        return member

    def _with_room(
        self, ids: Sequence[int], candidates: Candidates, weights: Sequence[float], per_weight: float
    ) -> int | None:
        """Return the least loaded member with one of `ids`, of those that may be chosen and have room."""
        chosen: int | None = None
        least = 0.0
        for each in ids:
            member = self._members.get(each)
            if member is None:
                continue  # the table still has it, the group no longer
            weight = weights[member]
            if weight > 0.0:
                load = candidates.inflight[member] + candidates.extra[member]
                if load < math.ceil(per_weight * weight) and (chosen is None or load / weight < least):
                    chosen = member
                    least = load / weight
        return chosen


def prompt_of(body: bytes | bytearray, n_bytes: int = PREFIX_BYTES) -> memoryview:
    """Return the body of a request from where its prompt begins, so much of it; of all where none is found."""
    start = min((at for at in (body.find(field, 0, _FIELD_WITHIN) for field in _FIELDS) if at >= 0), default=0)
    return memoryview(body)[start : start + n_bytes]


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


def member_ids(names: Sequence[str]) -> list[int]:
    """Return an id for each of a group's members, whose names differ: the same in every worker and configuration.

    Where two names come to the same id the later one gets the next that is free.
    """
    found: dict[int, None] = {}  # in order
    for name in names:
        each = zlib.crc32(name.encode()) % _MOST_IDS
        while each in found:
            each = (each + 1) % _MOST_IDS
        found[each] = None
    return list(found)


class PrefixTable:
    """The table of one group. A member is known by its id, 0 to 65,534 (member_ids())."""

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
        """Return the ids of members that were sent it, four at most."""
        at = self._set(mark)
        return [(cell >> 16 & _MEMBER) - 1 for cell in self._cells[at : at + _WAYS] if cell >> 32 == mark and cell]

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
        """Write that `member` gets a prompt with these marks.

        The longest first: once one is met that was written just now, so were all before it.
        """
        when = int(now_s) >> _WHEN_BITS & _WHEN
        for mark in reversed(found):
            if self._write(mark, member, when):
                return

    def _set(self, mark: int) -> int:
        # By the upper bits of a product: CRCs of like texts differ in few bits.
        return (mark * 0x9E3779B1 >> 13) & self._sets

    def _write(self, mark: int, member: int, when: int) -> bool:
        """Write one cell; return True if it was fresh."""
        cells = self._cells
        own = mark << 16 | (member + 1)
        at = oldest = self._set(mark)
        most = -1
        for cell in cells[at : at + _WAYS]:
            age = (when - cell) & _WHEN if cell else _WHEN + 1
            if cell >> 16 == own:
                if not age:
                    return True
                oldest = at
                break
            if age > most:
                most = age
                oldest = at
            at += 1
        cells[oldest] = own << 16 | when
        return False
