"""Finds a field of a JSON object in its bytes, so that its value can be replaced and nothing else written anew.

Knows: where strings begin and end, and how deep in the document a place is. Does not know: what a field is for.
For a document that was read (body.py): it is an object, whole, and has no two fields of that name.

simdjson does not tell where a value stands, and a walk through the bytes takes 5 ms for each MB in Python's regular
expressions. So the key is searched for as it is mostly written, at the speed of memchr. Outside strings there is no
backslash, and inside them each quote stands behind one: `"model"` with none before it is a string of its own, and with
a colon behind it a key. It is the document's own if there is one bracket open before it, which is told by counting
those on its shorter side. Where a document hides the key, by escapes or among many others of that name, it is walked
through, if it is short.
"""

from __future__ import annotations

import json
import re
from typing import Final

from velox.errors import Reason, VeloxError

__all__ = ["STRING", "Field"]

STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_COLON: Final = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+")
_TOKEN: Final = re.compile(rb"[{\[]|[}\]]|" + STRING, re.DOTALL)
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_OPENING: Final = (ord("{"), ord("["))

# What is kept to count brackets: quotes, and brackets of one kind.
_BRACES: Final = bytes.maketrans(b"[]", b"{}")
_OTHERS: Final = bytes(set(range(256)) - set(b'"{}[]'))

# Most often the key is among the first, and no other end of the document is looked for.
_NEAR_BYTES: Final = 1024
# Each costs 1 µs or two: a document full of them must not hold the loop.
_MOST_KEYS: Final = 4096
# A walk takes 0.14 µs a byte at worst, in which no other request moves.
_WALKED_BYTES: Final = 512 * 1024


class Field:
    """A field by its name, of letters, digits and underscores, in the document itself and not in an object inside."""

    __slots__ = ("_escaped", "_key", "_longest", "_name")

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._key: Final = b'"%b"' % name.encode("ascii")
        self._longest: Final = 2 + len("\\u0000") * len(name)
        # One of its characters, as it may be hidden.
        escapes = "|".join(f"{ord(char):04x}" for char in sorted(set(name)))
        self._escaped: Final = re.compile(rf"\\u(?:{escapes})".encode("ascii"), re.IGNORECASE)

    def __repr__(self) -> str:
        return f"<Field {self._name}>"

    def find(self, body: bytes | bytearray) -> int:
        """Return where the value begins; -1 if there is no such field.

        Raises VeloxError(BAD_REQUEST) if the document is over 512 KiB long and hides the key.
        """
        first = body.find(self._key, 0, _NEAR_BYTES)
        if first >= 0 and self._is_key(body, first) and _depth(body[:first]) == 1:
            return self._value(body, first)
        last = body.rfind(self._key)
        at, is_sure = -1, True
        if last >= 0:
            at, is_sure = self._search_back(body, last) if 2 * last > len(body) else self._search(body)
        if at >= 0:
            return self._value(body, at)
        if is_sure and self._escaped.search(body) is None:
            return -1
        return self._walk(body)

    # -- the usual spelling -------------------------------------------------------------------------

    def _search(self, body: bytes | bytearray) -> tuple[int, bool]:
        """Return where the key is, -1 if it was not found; and whether all that looks like it was looked at."""
        depth, begin = 0, 0
        at = body.find(self._key)
        for _ in range(_MOST_KEYS):
            if at < 0:
                return -1, True
            if self._is_key(body, at):
                depth += _depth(body[begin:at])
                if depth == 1:
                    return at, True
                begin = at
            at = body.find(self._key, at + 1)
        return -1, False

    def _search_back(self, body: bytes | bytearray, at: int) -> tuple[int, bool]:
        """Do what `_search` does, from the last place that looks like the key, which is `at`."""
        depth, end = 0, len(body)
        for _ in range(_MOST_KEYS):
            if at < 0:
                return -1, True
            if self._is_key(body, at):
                depth -= _depth(body[at:end])
                if depth == 1:
                    return at, True
                end = at
            at = body.rfind(self._key, 0, at)
        return -1, False

    def _is_key(self, body: bytes | bytearray, at: int) -> bool:
        """True for a key: neither the end of a string with quotes in it, nor a value."""
        return body[at - 1] != _BACKSLASH and _COLON.match(body, at + len(self._key)) is not None

    def _value(self, body: bytes | bytearray, at: int) -> int:
        colon = _COLON.match(body, at + len(self._key))
        assert colon is not None, "a key was found"
        return colon.end()

    # -- any spelling -------------------------------------------------------------------------------

    def _walk(self, body: bytes | bytearray) -> int:
        """Look at every string that stands in no object inside."""
        if len(body) > _WALKED_BYTES:
            message = f"{self._name} is not found in this body of over 512 KiB; write it first, and without escapes"
            raise VeloxError(Reason.BAD_REQUEST, message, param=self._name)
        depth = 0
        for token in _TOKEN.finditer(body):
            begin, end = token.span()
            first = body[begin]
            if first != _QUOTE:
                depth += 1 if first in _OPENING else -1
            elif depth == 1 and end - begin <= self._longest and json.loads(token[0]) == self._name:
                colon = _COLON.match(body, end)
                if colon is not None:
                    return colon.end()
        return -1


def _depth(text: bytes | bytearray) -> int:
    """Return how many more brackets are opened in `text` than closed. It begins and ends outside strings."""
    if _BACKSLASH in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(_BRACES, _OTHERS)
    if _QUOTE in marks:
        # Of two quotes side by side both may go: they enclose nothing, or part two strings.
        marks = marks.replace(b'""', b"")
    if _QUOTE in marks:
        marks = b"".join(marks.split(b'"')[::2])
    return marks.count(b"{") - marks.count(b"}")
