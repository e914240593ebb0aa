"""A file of keys that is read again and again: what has not changed since the last time is not read again.

Knows: that of 100,000 keys mostly one has changed. Does not know: how a key is written (keys.py), or when a file is
read.

Only of a plain list (plain_items.py): an item of it begins where a line begins with a dash, and nowhere else. So what
stands between two such lines says what it said before. Where anything is wrong, or not plain, all of it is read, so
that each problem has its line.
"""

from __future__ import annotations

from typing import Final

from velox.settings.callers.keys import parse_key_file, parse_plain_items
from velox.settings.callers.plain_items import plain_items
from velox.settings.problems import Problem
from velox.types import KeyEntry

__all__ = ["KeyFile"]

_START: Final = b"\n- "


class KeyFile:
    """One file. path: for the problems. Lines of entries that have only moved are those of their first reading."""

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._known: dict[bytes, KeyEntry] = {}  # by what stands from one start to the next

    def __repr__(self) -> str:
        return f"<KeyFile {self._path} {len(self._known)}>"

    def read(self, content: bytes) -> tuple[tuple[KeyEntry, ...], list[Problem]]:
        """Return its keys, and everything that is wrong with it."""
        head, *parts = (b"\n" + content).split(_START)
        entries = self._again(head, parts) if self._known and b"\r" not in content else None
        problems: list[Problem] = []
        if entries is None:
            entries, problems = parse_key_file(content, self._path)
        is_plain = len(parts) == len(entries) and not problems and b"\r" not in content
        if is_plain and not self._known:
            is_plain = plain_items(content) is not None
        self._known = dict(zip(parts, entries, strict=True)) if is_plain else {}
        return entries, problems

    def _again(self, head: bytes, parts: list[bytes]) -> tuple[KeyEntry, ...] | None:
        """Return the keys by what is known of the parts; None: all of it must be read."""
        if plain_items(head + b"\n- x\n") is None:
            return None
        known = self._known
        found = [known.get(part) for part in parts]
        for at, entry in enumerate(found):
            if entry is None:
                items = plain_items(b"- " + parts[at] + b"\n")
                entries, problems = parse_plain_items(items or (), self._path)
                if problems or len(entries) != 1:
                    return None
                found[at] = entries[0]
        return tuple(entry for entry in found if entry is not None) or None
