"""What the fuzzed parsers have in common: the same bytes cut in several ways, always the same ways for the same bytes.

Knows: pieces. Does not know: what they mean.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator

__all__ = ["Pieces", "cuttings", "dice"]

Pieces = list[bytes]

# Byte by byte is the hardest way, and takes as many calls as there are bytes.
_DRIPPED_BYTES = 300
_RANDOM_WAYS = 2


def dice(data: bytes) -> random.Random:
    """Return dice that always fall alike for these bytes: an input that fails is a file, and nothing else."""
    return random.Random(zlib.crc32(data))


def cuttings(data: bytes, dripped_bytes: int = _DRIPPED_BYTES) -> Iterator[Pieces]:
    """Yield ways in which these bytes may come, none of them in one piece; no piece is empty.

    dripped_bytes: up to this size they also come byte by byte.
    """
    if len(data) < 2:
        return
    chance = dice(data)
    for _ in range(_RANDOM_WAYS):
        marks = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(chance.randint(1, 6)))})
        yield [data[begin:end] for begin, end in itertools.pairwise(marks)]
    if len(data) <= dripped_bytes:
        yield [data[at : at + 1] for at in range(len(data))]
