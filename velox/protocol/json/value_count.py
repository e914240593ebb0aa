"""Whether a document of JSON has more values than can be read in a short time.

Knows: that each value but the first stands behind a comma, and each object behind its bracket, outside of texts. Does
not know: whether the JSON is right, or what it says.

To make Python objects of a megabyte of text takes a millisecond, and of a megabyte of small objects hundreds of times
as long, in which no other request moves.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from velox.protocol.slices import finished

__all__ = ["MOST_VALUES", "brackets_open", "has_over", "has_over_in_steps"]

# Of a request, a reply or a message that is put into another API.
MOST_VALUES: Final = 200_000

_SLICE_BYTES: Final = 64 * 1024
_COUNTED_BYTES: Final = 256 * 1024
_OTHERS: Final = bytes(set(range(256)) - set(b'",{'))
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b'"{}[]'))


def has_over(body: bytes | bytearray, most: int) -> bool:
    """Say whether a body has more commas and objects than `most`, outside of texts."""
    return finished(has_over_in_steps(body, most))


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
    n = 0
    for marks in _outside_strings(body, 0, len(body), _OTHERS):
        n += len(marks)
        if n > most:
            return True
        yield
    return False


def brackets_open(body: bytes | bytearray, begin: int, end: int) -> Iterator[int]:
    """Yield how many more brackets are opened than closed, of each slice. begin: outside of a string."""
    for marks in _outside_strings(body, begin, end, _NO_BRACKETS):
        yield marks.count(b"{") + marks.count(b"[") - marks.count(b"}") - marks.count(b"]")


def _outside_strings(body: bytes | bytearray, begin: int, end: int, others: bytes) -> Iterator[bytes]:
    """Yield what stands outside of strings, a slice at a time, without the bytes of `others`.

    begin: outside of a string. others: without the quote.
    """
    is_inside = False
    while begin < end:
        piece = bytes(body[begin : min(end, begin + _SLICE_BYTES)])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and begin + len(piece) < end:
            piece = piece[:-1]  # the backslash belongs to what follows
        begin += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Of two quotes side by side both may go: they enclose nothing, or part two strings.
        texts = piece.translate(None, others).replace(b'""', b"").split(b'"')
        yield b"".join(texts[is_inside::2])
        is_inside ^= len(texts) % 2 == 0
