"""Where a value of JSON ends, in a text that comes in pieces of any length.

Knows: quotes, escapes, brackets. Does not know: whether what stands inside is right, or what it means.

A value is passed over without a step of Python for each of its tokens: quotes and brackets are all that is left of a
piece (bytes.translate), strings and pairs of brackets cancel out (bytes.replace), and what remains says how much deeper
the piece ends than it began. Where the value ends inside a piece is found by halving it.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CLOSES", "OPENS", "QUOTE", "ValueEnd"]

QUOTE: Final = ord('"')
OPENS: Final = b"{["
CLOSES: Final = b"]}"
_BACKSLASH: Final = ord("\\")
_NO_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'"{}[]')
# A value is looked at in pieces: the first one is as long as this, each other twice as long as the one before.
_FIRST_PIECE: Final = 256
# Shorter pieces are not halved.
_SMALL_PIECE: Final = 32


class ValueEnd:
    """Finds the ends of strings, objects and arrays, one value after the other.

    is_broken: the last value has brackets that are no pairs.
    """

    __slots__ = ("_data", "_depth", "_in_string", "_is_clean", "_is_cut", "is_broken")

    def __init__(self) -> None:
        self._data = b""  # the piece that is read; escapes in it may be blanked out
        self._is_clean = False  # they are
        self._depth = 0  # of brackets
        self._in_string = False
        self._is_cut = False  # the last byte was a backslash that escapes the next one
        self.is_broken = False

    def take(self, data: bytes) -> None:
        """Take the next piece, which find() looks at. A value may go on in it."""
        if self._is_cut and data:
            self._is_cut = False
            data = b"_" + data[1:]
        self._data, self._is_clean = data, False

    def begin(self, first: int) -> None:
        """Begin a value with its first byte: a quote or a bracket."""
        self._in_string = first == QUOTE
        self._depth = 0 if self._in_string else 1
        self._is_cut = self.is_broken = False

    @property
    def is_between(self) -> bool:
        """True while no string is open inside the value, and no bracket but its own."""
        return self._depth == 1 and not self._in_string

    def rise(self) -> None:
        """Look for the end of what is open inside the value, and not for its own."""
        self._depth -= 1

    def find(self, at: int) -> int:
        """Return where the value ends that is open at `at`, behind its last byte; -1: not in this piece, or broken."""
        data = self._data
        if self._in_string:
            quote = self._quote(at)
            if quote < 0:
                self._note_cut()
                return -1
            if not self._depth:
                return quote + 1
        if data.find(b"\\", at) >= 0:
            self._clean()
        size = _FIRST_PIECE
        while at < len(data):
            end = min(len(data), at + size)
            if not self._pass(at, end):
                return self._find_end(at, end)
            at = end
            size *= 2
            if self.is_broken:
                return -1
        if self._in_string:
            self._note_cut()
        return -1

    # -- inside -------------------------------------------------------------------------------------

    def _clean(self) -> None:
        """Blank out escapes, so that each quote that is left begins or ends a string."""
        if not self._is_clean:
            self._is_clean = True
            self._data = self._data.replace(b"\\\\", b"__").replace(b'\\"', b"__")

    def _quote(self, at: int) -> int:
        """Return where the quote stands that ends a string; -1: not in this piece."""
        quote = self._data.find(b'"', at)
        if quote > at and self._data[quote - 1] == _BACKSLASH:
            self._clean()
            quote = self._data.find(b'"', at)
        return quote

    def _note_cut(self) -> None:
        """Note whether the end of the piece cuts an escape, inside a string."""
        data = self._data
        self._is_cut = (len(data) - len(data.rstrip(b"\\"))) % 2 == 1

    def _pass(self, begin: int, end: int) -> bool:
        """Pass over a part of the piece, unless the value ends in it: then False, and nothing is changed."""
        left = self._data[begin:end].translate(None, _NO_STRUCTURE)
        if self._in_string:
            left = b'"' + left
        left = left.replace(b'""', b"")
        in_string = False
        if b'"' in left:
            parts = left.split(b'"')
            in_string = not len(parts) % 2
            left = b"".join(parts[::2])
        while (shorter := left.replace(b"{}", b"").replace(b"[]", b"")) != left:
            left = shorter
        opened = left.lstrip(CLOSES)
        n_closed = len(left) - len(opened)
        if n_closed >= self._depth:
            return False
        if opened.rstrip(OPENS):
            self.is_broken = True
        self._depth += len(opened) - n_closed
        self._in_string = in_string
        return True

    def _find_end(self, begin: int, end: int) -> int:
        """Return where the value ends that does so in this part: behind its last bracket."""
        while end - begin > _SMALL_PIECE:
            middle = (begin + end) // 2
            if self._pass(begin, middle):
                begin = middle
            else:
                end = middle
        for at in range(begin, end):
            byte = self._data[at]
            if byte == QUOTE:
                self._in_string = not self._in_string
            elif not self._in_string:
                if byte in OPENS:
                    self._depth += 1
                elif byte in CLOSES:
                    self._depth -= 1
                    if not self._depth:
                        return at + 1
        self.is_broken = True
        return -1
