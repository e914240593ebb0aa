"""Makes a large JSON body small before it is parsed: the contents of long strings are left out.

Knows: how a JSON string is written (RFC 8259 §7), and what was left out where. Does not know: objects and arrays (the
parser of what remains checks those), or what a field means (body.py).

Why: a parse can't be interrupted. 10 MB of text hold the loop for 4 ms and 64 MB for 25, while every other request
waits. A body of that size is mostly a few long strings (an image, a document), so it is walked in slices, the loop
runs in between, and what is parsed in one go are the kilobytes around them. The strings' contents are checked by the
same parser, a slice at a time. A body of many short strings gains nothing and is left as it is: 0.4 ms for each MB
(text_free.py leaves out shorter ones, for one who has to parse all of it).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from velox.protocol.slices import json_cut

__all__ = ["LONG_BYTES", "Check", "Skimmed", "check_slices", "skim"]

# About 0.05 ms of work between two yields.
_SLICE_BYTES: Final = 64 * 1024
# No value that Velox acts on is longer: a model's name has 256 characters, each at most 12 bytes long (\uXXXX\uXXXX).
LONG_BYTES: Final = 3072
# Looking at a string costs as much as parsing 1,000 bytes: where they are shorter than this on average, stop looking.
_WORTHWHILE_BYTES: Final = 1024
_LOOKS: Final = 128  # between two looks at the average, and two yields
_BACKSLASH: Final = 0x5C

# Takes what stands between two quotes, or a part of it, and where in the body it begins; raises if it is no content.
Check: TypeAlias = Callable[[bytes, int], None]


@dataclass(slots=True)
class Skimmed:
    """What remains of a body. `cuts`: where in `data` something was left out, and how many bytes up to there."""

    data: bytes | bytearray
    cuts: list[tuple[int, int]] = field(default_factory=list)

    def origin(self, offset: int) -> int:
        """Return where in the body the byte `offset` of `data` stood."""
        index = bisect_left(self.cuts, (offset + 1, 0))
        return offset + (self.cuts[index - 1][1] if index else 0)


def skim(body: bytes | bytearray, check: Check, long_bytes: int = LONG_BYTES) -> Generator[None, None, Skimmed]:
    """Shrink `body`, which is not changed; yields between slices of the work. Raises what `check` raises.

    long_bytes: strings that are longer are left out.
    """
    cuts: list[tuple[int, int]] = []
    kept: list[bytes | bytearray] = []
    at = copied = left_out = n_strings = 0
    while True:
        opening = yield from _find_quote(body, at)
        closing = (yield from _string_end(body, opening + 1)) if opening >= 0 else -1
        if closing < 0:
            break
        n_strings += 1
        if closing - opening - 1 > long_bytes:
            yield from check_slices(body, opening + 1, closing, check)
            kept.append(body[copied : opening + 1])
            left_out += closing - opening - 1
            cuts.append((closing - left_out, left_out))
            copied = closing
        elif n_strings % _LOOKS == 0:
            if closing < n_strings * _WORTHWHILE_BYTES:
                break
            yield
        at = closing + 1
    if 2 * left_out < len(body):
        return Skimmed(body)  # joining what remains would take as long as parsing it
    kept.append(body[copied:])
    return Skimmed(b"".join(kept), cuts)


def _find_quote(body: bytes | bytearray, at: int) -> Generator[None, None, int]:
    """Return where the next quote stands, or -1. memchr passes a megabyte in less than a slice's time."""
    while True:
        end = at + 16 * _SLICE_BYTES
        found = body.find(b'"', at, end)
        if found >= 0 or end >= len(body):
            return found
        at = end
        yield


def _string_end(body: bytes | bytearray, content: int) -> Generator[None, None, int]:
    """Return where the string whose content begins at `content` has its closing quote; -1: give up."""
    at, n_quotes = content, 0
    while (quote := (yield from _find_quote(body, at))) >= 0:
        if quote == content or body[quote - 1] != _BACKSLASH:
            return quote
        if (yield from _backslashes(body, content, quote)) % 2 == 0:
            return quote
        at = quote + 1  # escaped
        n_quotes += 1
        if n_quotes % _LOOKS == 0:
            if at - content < n_quotes * _WORTHWHILE_BYTES:
                return (yield from _end_of_quotes(body, content))
            yield
    return -1


def _end_of_quotes(body: bytes | bytearray, content: int) -> Generator[None, None, int]:
    """Return where a string has its closing quote that is full of escaped ones; -1: nowhere."""
    at = content
    while at < len(body):
        end = len(body) if len(body) - at <= _SLICE_BYTES else json_cut(body, at, at + _SLICE_BYTES)
        plain = body[at:end].replace(rb"\\", b"  ").replace(rb"\"", b"  ")
        if (found := plain.find(b'"')) >= 0:
            return at + found
        at = end
        yield
    return -1


def _backslashes(body: bytes | bytearray, start: int, end: int) -> Generator[None, None, int]:
    """Return how many backslashes stand right before `end`, down to `start`. Mostly few: a short piece is enough."""
    at, most = end, 64
    while at > start:
        piece = body[max(start, at - most) : at]
        left = len(piece.rstrip(b"\\"))
        at -= len(piece) - left
        if left:
            break
        most = min(8 * most, _SLICE_BYTES)
        yield
    return end - at


def check_slices(body: bytes | bytearray, start: int, end: int, check: Check) -> Generator[None, None, None]:
    """Check a string's content, a slice at a time, in which no escape and no character is cut."""
    while start < end:
        stop = end if end - start <= _SLICE_BYTES else json_cut(body, start, start + _SLICE_BYTES)
        check(bytes(body[start:stop]), start)
        start = stop
        yield
