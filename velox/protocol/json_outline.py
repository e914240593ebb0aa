"""The outline of a JSON object of any length: the few members that are asked for, read as it comes, in bounded memory.

Knows: where a string ends, how deep a value stands. Does not know: whether what it leaves out is right, or what a
member means.

Values that nobody asks for are passed over without a step of Python for each of their tokens: quotes and brackets are
all that is left of a piece (bytes.translate), strings and pairs of brackets cancel out (bytes.replace), and what
remains says how much deeper the piece ends than it began. Where a value ends inside a piece is found by halving it.
However the bytes are cut, the outline is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

__all__ = ["MOST_MEMBERS", "Outline"]

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")
_BRACE: Final = ord("{")
_BRACE_END: Final = ord("}")
_OPENS: Final = b"{["
_CLOSES: Final = b"]}"
_BLANKS: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"
_NO_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'"{}[]')
# Ends a number or a word: all else is part of it.
_NO_END: Final = bytes(byte for byte in range(256) if byte not in b",}] \t\r\n")
# The longest name that is asked for has 13 letters, each at most 6 bytes long (\uXXXX).
_NAME_BYTES: Final = 128
# A usage has 600 bytes, one of Anthropic's with `iterations` 250 more for each. A longer value is null here.
_VALUE_BYTES: Final = 16 * 1024
_OUTLINE_BYTES: Final = 32 * 1024
# No reply has so many: each takes some microseconds.
MOST_MEMBERS: Final = 512
# A value is looked at in pieces: the first one is as long as this, each other twice as long as the one before.
_FIRST_PIECE: Final = 256
# Shorter pieces are not halved.
_SMALL_PIECE: Final = 32

# What comes next.
_ROOT, _NAME, _VALUE, _STRING, _NESTED, _WORD, _END, _BROKEN = range(8)


class Outline:
    """Reads one object. names: of the members that are asked for, at the top and in the objects named `inside`.

    in_array: reads each object of an array. take() gives the outlines of those that are whole.
    """

    __slots__ = (
        "_data",
        "_depth",
        "_in_array",
        "_in_string",
        "_inside",
        "_is_clean",
        "_is_cut",
        "_is_first",
        "_is_inner",
        "_is_name",
        "_is_wanted",
        "_n_members",
        "_name",
        "_names",
        "_out",
        "_state",
        "_text",
        "_whole",
    )

    def __init__(self, names: Iterable[bytes], inside: Iterable[bytes] = (), *, in_array: bool = False) -> None:
        self._in_array: Final = in_array
        self._whole: Final[list[bytes]] = []  # of objects of an array
        self._names: Final = frozenset(names)
        self._inside: Final = frozenset(inside)
        self._out = bytearray()
        self._text = bytearray()  # of the name or value that has begun
        self._data = b""  # the piece that is read; escapes in it may be blanked out
        self._is_clean = False  # they are
        self._state = _ROOT
        self._name = b""
        self._depth = 0  # within a value that is passed over
        self._n_members = 0
        self._in_string = False  # of such a value
        self._is_cut = False  # the last byte was a backslash that escapes the next one
        self._is_first = True  # no member of this object is in the outline yet
        self._is_inner = False  # in an object of those `inside`
        self._is_name = False  # the string that has begun is one
        self._is_wanted = False  # the value that has begun

    def __repr__(self) -> str:
        return f"<Outline kept={self.n_kept}>"

    @property
    def n_kept(self) -> int:
        """Return how many bytes are kept."""
        return len(self._out) + len(self._text)

    def text(self) -> bytes | None:
        """Return the members that were found, as one JSON object; None: the document is not whole, or no object."""
        return bytes(self._out) if self._state == _END else None

    @property
    def is_broken(self) -> bool:
        """True once what came is nothing that can be read."""
        return self._state == _BROKEN

    def take(self) -> list[bytes]:
        """Return the outlines of the objects of an array that have become whole since it was last asked."""
        found = self._whole.copy()
        self._whole.clear()
        return found

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._is_cut and data:
            self._is_cut = False
            self._data = b"_" + data[1:]
        else:
            self._data = data
        self._is_clean = False
        at, n_bytes = 0, len(data)
        while at < n_bytes:
            state = self._state
            if state == _STRING:
                at = self._pass_string(data, at)
            elif state == _NESTED:
                at = self._pass_nested(data, at)
            elif state == _WORD:
                at = self._pass_word(data, at)
            elif state == _BROKEN:
                break
            else:
                at = self._step(data, at)
        self._data = b""
        if self.n_kept > _OUTLINE_BYTES + _VALUE_BYTES:
            self._give_up()

    # -- inside: between values -----------------------------------------------------------------------

    def _step(self, data: bytes, at: int) -> int:
        """Read one byte between values; return where to go on."""
        byte = data[at]
        if byte in _BLANKS:
            rest = data[at : at + _FIRST_PIECE]
            return at + len(rest) - len(rest.lstrip(_BLANKS))
        state = self._state
        if state == _NAME:
            if byte == _QUOTE:
                self._begin_string(is_name=True)
            elif byte == _BRACE_END:
                self._close()
            elif byte != _COMMA:
                self._give_up()
        elif state == _VALUE:
            return self._begin_value(byte, at)
        elif state == _ROOT:
            at = self._begin(byte, at)
        else:
            self._give_up()  # something follows the end
        return at + 1

    def _begin(self, byte: int, at: int) -> int:
        if self._in_array and byte in b"[,]":
            return at
        if byte == _BRACE and bytes(self._text) in (b"", _BOM):
            self._state = _NAME
            self._out += b"{"
            self._text.clear()
        else:  # nothing but a byte order mark may stand before it
            self._text.append(byte)
            if not _BOM.startswith(bytes(self._text)):
                self._give_up()
        return at

    def _begin_value(self, byte: int, at: int) -> int:
        if byte == ord(":"):
            return at + 1
        self._n_members += 1
        if self._n_members > MOST_MEMBERS:
            self._give_up()
            return at
        name = self._name
        self._is_wanted = name in self._names
        if name in self._inside and not self._is_inner:
            self._write_name()
            if byte == _BRACE:
                self._out += b"{"
                self._is_inner = self._is_first = True
                self._state = _NAME
                return at + 1
            self._out += b"null"  # it replaces an object of that name
        if byte == _QUOTE:
            self._begin_string(is_name=False)
            return at + 1
        self._text.clear()
        if byte in _OPENS:
            self._state, self._depth, self._in_string = _NESTED, 1, False
            self._text.append(byte)
            return at + 1
        if byte in b",}]":
            self._give_up()
        else:
            self._state = _WORD
        return at

    def _begin_string(self, *, is_name: bool) -> None:
        self._state = _STRING
        self._is_name = is_name
        self._text.clear()
        if not is_name:
            self._text += b'"'

    def _close(self) -> None:
        """Close the object that is read."""
        self._out += b"}"
        self._text.clear()
        if self._is_inner:
            self._is_inner = self._is_first = False
        elif self._in_array:
            self._whole.append(bytes(self._out))
            self._out.clear()
            self._state, self._is_first, self._n_members = _ROOT, True, 0
        else:
            self._state = _END

    def _write_name(self) -> None:
        self._out += b'"%b":' % self._name if self._is_first else b',"%b":' % self._name
        self._is_first = False

    def _write(self) -> None:
        """Note the value that is whole now."""
        if self._is_wanted:
            self._write_name()
            self._out += self._text if len(self._text) <= _VALUE_BYTES else b"null"
        self._text.clear()
        self._state = _NAME

    def _give_up(self) -> None:
        self._state = _BROKEN
        self._out.clear()
        self._text.clear()

    def _keep(self, piece: bytes, most: int) -> None:
        """Keep a piece of a name or value, unless that is too long already."""
        if len(self._text) <= most:
            self._text += piece[: most + 1]

    # -- inside: values -------------------------------------------------------------------------------

    def _clean(self) -> None:
        """Blank out escapes, so that each quote that is left begins or ends a string."""
        if not self._is_clean:
            self._is_clean = True
            self._data = self._data.replace(b"\\\\", b"__").replace(b'\\"', b"__")

    def _note_cut(self) -> None:
        """Note whether the end of the piece cuts an escape, inside a string."""
        data = self._data
        self._is_cut = (len(data) - len(data.rstrip(b"\\"))) % 2 == 1

    def _pass_string(self, data: bytes, at: int) -> int:
        quote = self._data.find(b'"', at)
        if quote > at and self._data[quote - 1] == _BACKSLASH:
            self._clean()
            quote = self._data.find(b'"', at)
        end = len(data) if quote < 0 else quote
        if self._is_name:
            self._keep(data[at:end], _NAME_BYTES)
        elif self._is_wanted:
            self._keep(data[at:end], _VALUE_BYTES)
        if quote < 0:
            self._note_cut()
            return end
        if self._is_name:
            self._name = _plain_name(bytes(self._text))
            self._state = _VALUE
        else:
            self._text += b'"'
            self._write()
        return end + 1

    def _pass_word(self, data: bytes, at: int) -> int:
        while at < len(data):
            piece = data[at : at + _FIRST_PIECE]
            rest = piece.lstrip(_NO_END)
            n = len(piece) - len(rest)
            if self._is_wanted:
                self._keep(piece[:n], _VALUE_BYTES)
            at += n
            if rest:
                self._write()
                break
        return at

    def _pass_nested(self, data: bytes, at: int) -> int:
        begin, size = at, _FIRST_PIECE
        if self._in_string:
            quote = self._data.find(b'"', at)
            if quote > at and self._data[quote - 1] == _BACKSLASH:
                self._clean()
                quote = self._data.find(b'"', at)
            if quote < 0:
                at = len(data)  # a long string goes on
        if self._data.find(b"\\", at) >= 0:
            self._clean()
        is_over = False
        while at < len(data) and not is_over:
            end = min(len(data), at + size)
            if self._pass_piece(at, end):
                at = end
            else:
                at = self._find_end(at, end)
                is_over = True
            size *= 2
            if self._state == _BROKEN:
                return at
        if self._is_wanted:
            self._keep(data[begin:at], _VALUE_BYTES)
        if is_over:
            self._write()
        elif self._in_string:
            self._note_cut()
        return at

    def _pass_piece(self, begin: int, end: int) -> bool:
        """Pass over a piece of a value, unless the value ends in it: then False, and nothing is changed."""
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
        opened = left.lstrip(_CLOSES)
        n_closed = len(left) - len(opened)
        if n_closed >= self._depth:
            return False
        if opened.rstrip(_OPENS):
            self._give_up()  # brackets that are no pairs
        self._depth += len(opened) - n_closed
        self._in_string = in_string
        return True

    def _find_end(self, begin: int, end: int) -> int:
        """Return where the value ends that does so in this piece: behind its last bracket."""
        while end - begin > _SMALL_PIECE:
            middle = (begin + end) // 2
            if self._pass_piece(begin, middle):
                begin = middle
            else:
                end = middle
        for at in range(begin, end):
            byte = self._data[at]
            if byte == _QUOTE:
                self._in_string = not self._in_string
            elif not self._in_string:
                if byte in _OPENS:
                    self._depth += 1
                elif byte in _CLOSES:
                    self._depth -= 1
                    if not self._depth:
                        return at + 1
        self._give_up()
        return end


def _plain_name(text: bytes) -> bytes:
    """Return a name without its escapes; one that is too long, or can't be read, is nobody's: empty."""
    if b"\\" not in text:
        return text
    try:
        found: object = json.loads(b'"%b"' % text)
    except ValueError:
        return b""
    return found.encode("utf-8", "surrogatepass") if isinstance(found, str) else b""
