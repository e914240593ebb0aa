"""Long runs of blanks in a JSON text: a pattern or a parser passes over them in one call, 60 MB in 100 ms.

    blanks_end()             where such a run ends, looked for in slices
    without_long_blanks()    a text without them

Knows: blanks, quotes, escapes. Does not know: whether the JSON is right.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final

from velox.protocol.slices import concatenated

__all__ = ["blanks_end", "without_long_blanks"]

_SLICE_BYTES: Final = 64 * 1024
# Indented text has fewer in a row. They take some microseconds.
_MANY: Final = 4096
# So many blanks in a row have blanks at three places that are so far apart, one after the other.
_STEP: Final = 1024
_SAMPLED: Final = re.compile(rb"(?=[ \t\r\n]{3})")
_SAMPLED_BYTES: Final = 1024 * 1024  # at one go
_RUN: Final = b" " * _MANY
_WHITE: Final = b" \t\r\n"
_AS_SPACES: Final = bytes.maketrans(b"\t\r\n", b"   ")
_BLANKS: Final = re.compile(rb"[ \t\r\n]{2,}+")
_ANY_BLANKS: Final = re.compile(rb"[ \t\r\n]*+")


def blanks_end(body: bytes | bytearray, at: int) -> Generator[None, None, int]:
    """Return where the first byte from `at` on stands that is no blank; yields between slices of the work."""
    while True:
        found = _ANY_BLANKS.match(body, at, at + _SLICE_BYTES)
        assert found is not None, "there may be none"
        if found.end() < at + _SLICE_BYTES:
            return found.end()
        at = found.end()
        yield


def without_long_blanks(text: bytes) -> bytes:
    """Return a JSON text without them; itself, if it has none outside of its strings."""
    if not _may_have(text):
        return text
    pieces: list[bytes] = []
    at = 0
    is_inside = is_changed = False
    while at < len(text):
        piece = text[at : at + _SLICE_BYTES]
        if b"\\" in piece and (len(piece) - len(piece.rstrip(b"\\"))) % 2 and at + len(piece) < len(text):
            piece = piece[:-1]  # the backslash belongs to what follows
        at += len(piece)
        kept, is_inside = _shortened(piece, is_inside)
        is_changed = is_changed or len(kept) < len(piece)
        pieces.append(kept)
    return concatenated(pieces) if is_changed else text


def _may_have(text: bytes) -> bool:
    """Say whether there is a run of over 2,048 blanks: there is none where none is longer than `_MANY`."""
    samples = b"".join([text[at : at + _SAMPLED_BYTES : _STEP] for at in range(0, len(text), _SAMPLED_BYTES)])
    for found in _SAMPLED.finditer(samples):
        begin = found.start() * _STEP
        if not text[begin : begin + 2 * _STEP].strip(_WHITE):
            return True
    return False


def _shortened(piece: bytes, is_inside: bool) -> tuple[bytes, bool]:
    """Return a slice with one blank in the place of a long run. is_inside: a string is open where it begins; ends."""
    plain = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in piece else piece
    ends_inside = is_inside ^ (plain.count(b'"') % 2 == 1)
    if (is_inside and b'"' not in plain) or _RUN not in piece.translate(_AS_SPACES):
        return piece, ends_inside
    found: list[bytes] = []
    at = 0
    for n, part in enumerate(plain.split(b'"')):
        whole = piece[at : at + len(part)]
        is_text = is_inside ^ (n % 2 == 1)
        found.append(whole if is_text or len(part) < _MANY else _BLANKS.sub(b" ", whole))
        at += len(part) + 1
    return b'"'.join(found), ends_inside
