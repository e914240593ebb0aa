"""Some texts of one JSON object, read as it comes: those of its own fields, and of the objects that they lead to.

Replies repeat what their request said (metadata, schemas of tools), at some depth, so what an object says of itself is
told by where it stands, never by how it looks. However the bytes are cut into pieces, the answers are the same, and
each byte is looked at once. At most one text of the fields' level is kept.

Knows: where a text of JSON ends, and how deep it stands. Does not know: whether the JSON is right, or what an id is.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

__all__ = ["TopFields"]

_QUOTE: Final = ord('"')
_OBJECT: Final = ord("{")
_OPENS: Final = b"{["
_CLOSES: Final = b"}]"
_COMMA: Final = ord(",")
_MARK: Final = re.compile(rb'["{}\[\],]')
_DEEP_MARK: Final = re.compile(rb'["{}\[\]]')  # commas tell nothing there
# Up to the quote that ends it, a backslash at the very end, or the end.
_TEXT: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_MOST_BYTES: Final = 4096  # of a text; the longest ids carry other ids in them


class TopFields:
    """paths: the fields that are asked for, a dot between names: `id`, `response.id`. lead: what stands before `{`."""

    __slots__ = (
        "_at",
        "_depth",
        "_in_text",
        "_is_cut",
        "_is_over",
        "_lead",
        "_name",
        "_parents",
        "_paths",
        "_prefix",
        "_text",
    )

    def __init__(self, *paths: str, lead: bytes = b"") -> None:
        self._lead: Final = lead
        self._paths: Final = {path.encode(): path for path in paths}
        self._parents: Final = {path.encode()[:n] for path in paths for n, each in enumerate(path) if each == "."}
        self._text: Final = bytearray()
        self.clear()

    def clear(self) -> None:
        """Begin with another object."""
        self._is_over = False  # or it is no object
        self._depth = 0
        self._at = 0  # the depth at which fields are read
        self._prefix = b""  # of the fields there
        self._name: bytes | None = None  # the field whose value comes; None: a name comes
        self._in_text = False
        self._is_cut = False  # between a backslash and what it is for
        self._text.clear()

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        """Take the next bytes. Return what has come as a whole: path and text."""
        found: list[tuple[str, str]] = []
        at, n_bytes = 0, len(data)
        while at < n_bytes and not self._is_over:
            if not self._depth:
                at = self._begin(data)
                continue
            if self._in_text:
                at = self._read_text(data, at, found)
                continue
            match = (_MARK if self._depth == self._at else _DEEP_MARK).search(data, at)
            if match is None:
                break
            at = match.end()
            self._pass(data[at - 1])
        return found

    # -- inside -------------------------------------------------------------------------------------

    def _begin(self, data: bytes) -> int:
        """Return where the object has begun, or where the data ends."""
        at = data.find(_OBJECT)
        self._text.extend(data if at < 0 else data[:at])
        before = bytes(self._text).strip()
        if at < 0:
            self._is_over = not self._lead.startswith(before)
            return len(data)
        self._is_over = before != self._lead
        self._depth = self._at = 1
        return at + 1

    def _read_text(self, data: bytes, at: int, found: list[tuple[str, str]]) -> int:
        """Return where the text ends that is open at `at`, or where the data does."""
        start = at
        is_here = self._depth == self._at
        if self._is_cut:
            self._is_cut = False
            at += 1
        match = _TEXT.match(data, at)
        end = at if match is None else match.end()
        if end < len(data):
            self._in_text = self._is_cut = data[end] != _QUOTE
            end += 1
        if is_here and len(self._text) <= _MOST_BYTES:
            self._text.extend(data[start : end if self._in_text else end - 1])
        if is_here and not self._in_text:
            self._end_text(found)
        return end

    def _end_text(self, found: list[tuple[str, str]]) -> None:
        text = bytes(self._text)
        if self._name is None:
            self._name = text
            return
        path = self._paths.get(self._prefix + self._name)
        if path is None or len(text) > _MOST_BYTES:
            return
        try:
            found.append((path, orjson.loads(b'"%b"' % text)))
        except orjson.JSONDecodeError:
            return

    def _pass(self, mark: int) -> None:
        """Pass a mark that stands in no text."""
        is_here = self._depth == self._at
        if mark == _QUOTE:
            self._in_text = True
            self._text.clear()
        elif mark == _COMMA:
            self._name = None
        elif mark in _OPENS:
            self._depth += 1
            if is_here and mark == _OBJECT and self._is_way():
                self._at += 1
                self._name = None
        elif mark in _CLOSES:
            self._depth -= 1
            self._is_over = not self._depth
            if self._depth < self._at:
                self._at = self._depth
                self._prefix = self._prefix[: self._prefix[:-1].rfind(b".") + 1]
                self._name = b""  # its value is over

    def _is_way(self) -> bool:
        """Say whether fields of the object that begins here are asked for."""
        path = self._prefix + (self._name or b"")
        if path not in self._parents:
            return False
        self._prefix = path + b"."
        return True
