"""The outline of a JSON object of any length: the few members that are asked for, read as it comes, in bounded memory.

Replies repeat what their request said (metadata, schemas of tools), at some depth, so what an object says of itself is
told by where it stands, never by how it looks. However the bytes are cut, the outline is the same. Values that nobody
asks for are passed over (value_end.py).

Knows: names and values of an object, and of the objects inside that it is asked for. Does not know: whether what it
leaves out is right, or what a member means.
"""

from __future__ import annotations

import json
from typing import Final

from velox.protocol.json.value_end import OPENS, QUOTE, ValueEnd

__all__ = ["MOST_MEMBERS", "Outline"]

_BRACE: Final = ord("{")
_BRACE_END: Final = ord("}")
_BLANKS: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"
# Ends a number or a word: all else is part of it.
_NO_END: Final = bytes(byte for byte in range(256) if byte not in b",}] \t\r\n")
# The longest name that is asked for has 23 letters, each at most 6 bytes long (\uXXXX).
_NAME_BYTES: Final = 256
# A usage has 600 bytes, one of Anthropic's with `iterations` 250 more for each. A longer value is null here.
_VALUE_BYTES: Final = 16 * 1024
_OUTLINE_BYTES: Final = 32 * 1024
# No reply has so many: each takes some microseconds.
MOST_MEMBERS: Final = 512
# Of blanks, words and numbers looked at in one step.
_PIECE: Final = 256

# What comes next.
_ROOT, _NAME, _VALUE, _INSIDE, _WORD, _END, _BROKEN = range(7)
# What is passed over before it, also if it is there more than once.
_PASSED: Final = (_BLANKS, _BLANKS + b",", _BLANKS + b":", _BLANKS, _BLANKS, _BLANKS, _BLANKS)


class Outline:
    """Reads one object after the other.

    paths: the members that are asked for, a dot between the names of those in objects inside: `id`, `response.id`.
    lead: what stands before the object; a byte order mark may stand there as well. in_array: reads each object of an
    array; take() returns the outlines of those that are whole.
    """

    __slots__ = (
        "_at",
        "_holders",
        "_in_array",
        "_is_first",
        "_is_name",
        "_lead",
        "_n_bytes",
        "_n_members",
        "_name",
        "_out",
        "_path",
        "_paths",
        "_prefixes",
        "_state",
        "_text",
        "_value",
        "_whole",
        "value_at",
    )

    def __init__(self, *paths: str, lead: bytes = b"", in_array: bool = False) -> None:
        self._paths: Final = {path.encode(): path for path in paths}
        self._holders: Final = {path.encode()[:n] for path in paths for n, each in enumerate(path) if each == "."}
        self._lead: Final = lead
        self._in_array: Final = in_array
        self._whole: Final[list[bytes]] = []  # of objects of an array
        self._value: Final = ValueEnd()
        self._out = bytearray()
        self._text = bytearray()  # of the name or value that has begun
        self._prefixes: Final[list[bytes]] = []  # of the objects inside that are open, the innermost last: `response.`
        self._n_bytes = 0  # of the pieces before this one
        self.value_at = 0  # where the last value that is asked for began, in bytes from the start
        self.clear()

    def clear(self) -> None:
        """Begin with another object."""
        self._state = _ROOT
        self._name = b""
        self._path: str | None = None  # of the value that has begun; None: nobody asks for it
        self._n_members = 0
        self._is_first = True  # no member of this object is in the outline yet
        self._is_name = False  # the string that has begun is one
        self._out.clear()
        self._text.clear()
        self._prefixes.clear()

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

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """Take the next bytes. Return what was asked for and has become whole: path and value, as it stands there.

        A value of over 16 KiB is null. Of two of one path the last one counts: that is for who reads them.
        """
        found: list[tuple[str, bytes]] = []
        self._value.take(data)
        at, n_bytes = 0, len(data)
        while at < n_bytes:
            state = self._state
            if state == _INSIDE:
                at = self._pass_value(data, at, found)
            elif state == _WORD:
                at = self._pass_word(data, at, found)
            elif state == _BROKEN:
                break
            else:
                at = self._step(data, at)
        self._n_bytes += n_bytes
        if self.n_kept > _OUTLINE_BYTES + _VALUE_BYTES:
            self._give_up()
        return found

    # -- inside: between values -----------------------------------------------------------------------

    def _step(self, data: bytes, at: int) -> int:
        """Read one byte between values; return where to go on."""
        byte = data[at]
        state = self._state
        passed = _PASSED[state]
        if byte in passed:
            rest = data[at : at + _PIECE]
            return at + len(rest) - len(rest.lstrip(passed))
        if state == _NAME:
            if byte == QUOTE:
                self._text.clear()
                self._begin_inside(byte, is_name=True)
            elif byte == _BRACE_END:
                self._close()
            else:
                self._give_up()
        elif state == _VALUE:
            return self._begin_value(byte, at)
        elif state == _ROOT:
            self._begin(byte)
        else:
            self._give_up()  # something follows the end
        return at + 1

    def _begin(self, byte: int) -> None:
        """Take a byte of what stands before the object, or its bracket."""
        if self._in_array and byte in b"[,]":
            return
        before = bytes(self._text)
        if byte == _BRACE and before.removeprefix(_BOM) == self._lead:
            self._state = _NAME
            self._out.append(byte)
            self._text.clear()
            return
        self._text.append(byte)
        before = bytes(self._text)
        if not (self._lead.startswith(before) or (_BOM + self._lead).startswith(before)):
            self._give_up()

    def _begin_value(self, byte: int, at: int) -> int:
        self._n_members += 1
        if self._n_members > MOST_MEMBERS or byte in b",}]":
            self._give_up()
            return at
        # A dot in a name is none between names.
        path = self._name if not self._prefixes else self._prefixes[-1] + self._name
        self._path = None if b"." in self._name else self._paths.get(path)
        if self._path is not None:
            self.value_at = self._n_bytes + at
        if path in self._holders and b"." not in self._name:
            self._write_name()
            if byte == _BRACE:
                self._out.append(byte)
                self._prefixes.append(path + b".")
                self._is_first = True
                self._state = _NAME
                return at + 1
            self._out += b"null"  # it replaces an object of that name
            self._path = None
        self._text.clear()
        if byte == QUOTE or byte in OPENS:
            self._text.append(byte)
            self._begin_inside(byte, is_name=False)
            return at + 1
        self._state = _WORD
        return at

    def _begin_inside(self, first: int, *, is_name: bool) -> None:
        self._state = _INSIDE
        self._is_name = is_name
        self._value.begin(first)

    def _close(self) -> None:
        """Close the object that is read."""
        self._out.append(_BRACE_END)
        self._text.clear()
        if self._prefixes:
            self._prefixes.pop()
            self._is_first = False
        elif self._in_array:
            self._whole.append(bytes(self._out))
            self.clear()
        else:
            self._state = _END

    def _write_name(self) -> None:
        self._out += b'"%b":' % self._name if self._is_first else b',"%b":' % self._name
        self._is_first = False

    def _write(self, found: list[tuple[str, bytes]]) -> None:
        """Note the value that is whole now."""
        if self._path is not None:
            value = bytes(self._text) if len(self._text) <= _VALUE_BYTES else b"null"
            found.append((self._path, value))
            self._write_name()
            self._out += value
        self._text.clear()
        self._state = _NAME

    def _give_up(self) -> None:
        self.clear()
        self._state = _BROKEN

    def _keep(self, piece: bytes, most: int) -> None:
        """Keep a piece of a name or value, unless that is too long already."""
        if len(self._text) <= most:
            self._text += piece[: most + 1]

    # -- inside: values -------------------------------------------------------------------------------

    def _pass_value(self, data: bytes, at: int, found: list[tuple[str, bytes]]) -> int:
        """Go on in a string, an object or an array; return where it ends, or where the data do."""
        value = self._value
        end = value.find(at)
        if value.is_broken:
            self._give_up()
            return len(data)
        stop = len(data) if end < 0 else end
        if self._is_name:
            self._keep(data[at:stop], _NAME_BYTES)
        elif self._path is not None:
            self._keep(data[at:stop], _VALUE_BYTES)
        if end >= 0:
            if self._is_name:
                self._name = _plain_name(bytes(self._text[:-1]))
                self._state = _VALUE
            else:
                self._write(found)
        return stop

    def _pass_word(self, data: bytes, at: int, found: list[tuple[str, bytes]]) -> int:
        while at < len(data):
            piece = data[at : at + _PIECE]
            rest = piece.lstrip(_NO_END)
            n = len(piece) - len(rest)
            if self._path is not None:
                self._keep(piece[:n], _VALUE_BYTES)
            at += n
            if rest:
                self._write(found)
                break
        return at


def _plain_name(text: bytes) -> bytes:
    """Return a name without its escapes; one that is too long, or can't be read, is nobody's: empty."""
    if b"\\" not in text:
        return text
    try:
        found: object = json.loads(b'"%b"' % text)
    except ValueError:
        return b""
    return found.encode("utf-8", "surrogatepass") if isinstance(found, str) else b""
