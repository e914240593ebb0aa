"""Whether a document of JSON has more values than can be read in a short time.

Knows: that each value but the first stands behind a comma, and each object behind its bracket, outside of texts. Does
not know: whether the JSON is right, or what it says.

To make Python objects of a megabyte of text takes a millisecond, and of a megabyte of small objects hundreds of times
as long, in which no other request moves.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

__all__ = ["MOST_VALUES", "has_over", "has_over_in_steps"]

# Of a request, a reply or a message that is put into another API.
MOST_VALUES: Final = 200_000

_SLICE_BYTES: Final = 64 * 1024
_COUNTED_BYTES: Final = 256 * 1024
_OTHERS: Final = bytes(set(range(256)) - set(b'",{'))


def has_over(body: bytes | bytearray, most: int) -> bool:
    """Say whether a body has more commas and objects than `most`, outside of texts."""
    steps = has_over_in_steps(body, most)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def has_over_in_steps(body: bytes | bytearray, most: int) -> Generator[None, None, bool]:
    """Do what has_over() does; yields between slices of the work."""
    # Mostly there are not so many, wherever they stand.
    if len(body) <= most:
        return False
    n = 0
    for at in range(0, len(body), _COUNTED_BYTES):
        n += body.count(b",", at, at + _COUNTED_BYTES) + body.count(b"{", at, at + _COUNTED_BYTES)
        if n > most:
            break
        yield
    else:
        return False
    n, at, is_inside = 0, 0, False
    while at < len(body):
        piece = bytes(body[at : at + _SLICE_BYTES])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and at + len(piece) < len(body):
            piece = piece[:-1]  # it belongs to what follows
        at += len(piece)
        marks = piece.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
        texts = marks.split(b'"')
        n += sum(map(len, texts[is_inside::2]))
        if n > most:
            return True
        is_inside ^= len(texts) % 2 == 0
        yield
    return False
