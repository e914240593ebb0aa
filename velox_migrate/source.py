"""The file of LiteLLM, part by part: what is asked for is taken, and what nobody asked for is told at the end.

Knows: YAML's merge keys, `os.environ/NAME`, and that each setting is either taken or named. Does not know: what a
setting means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from velox.settings.yaml.tree import Entry, Tree
from velox_migrate.notes import Notes, shown_name

__all__ = ["Part", "items_of", "variable_of"]

_VARIABLE: Final = re.compile(r"os\.environ/(.+)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")


def variable_of(text: str) -> str | None:
    """Return NAME of `os.environ/NAME`; "" for a name that no variable can have; None for any other text."""
    match = _VARIABLE.fullmatch(text.strip())
    if match is None:
        return None
    return match[1] if _NAME.fullmatch(match[1]) else ""


def items_of(tree: Tree | None) -> Sequence[Tree]:
    """Return the items of a list; a text is a list of one."""
    if tree is None:
        return ()
    if tree.text is not None:
        return (tree,) if tree.text else ()
    return tree.items or ()


class Part:
    """The fields of a mapping. name: as notes call it. environ: where os.environ/NAME is looked up, but for secrets."""

    def __init__(self, tree: Tree | None, name: str, notes: Notes, environ: Mapping[str, str]) -> None:
        self.where: Final = tree.where if tree is not None else f"{notes.path}:1"
        self.name: Final = name
        self._notes: Final = notes
        self._environ: Final = environ
        self._left: Final = _fields(tree)

    def __contains__(self, key: str) -> bool:
        """True for a field that is given, and not empty."""
        entry = self._left.get(key)
        return entry is not None and entry.value.text not in ("", "null", "None")

    def take(self, key: str) -> Tree | None:
        """Return a field's value; None where there is none, or an empty one."""
        entry = self._left.pop(key, None)
        if entry is None or entry.value.text in ("", "null", "None"):
            return None
        return Tree(entry.where, entry.value.text, entry.value.items, entry.value.fields)

    def put(self, entries: Sequence[Entry]) -> None:
        """Add fields that stand elsewhere, if they do not stand here."""
        for entry in entries:
            self._left.setdefault(entry.key, entry)

    def part(self, key: str, name: str = "") -> Part:
        """Return the fields inside a field; none where it is not given. name: as notes call it."""
        tree = self.take(key)
        if tree is not None and tree.fields is None and (tree.text or tree.items):
            self.leave(key, "it has no fields", tree.where)
        return Part(tree, name or (f"{self.name}.{key}" if self.name else key), self._notes, self._environ)

    def text(self, *keys: str) -> tuple[str, str]:
        """Return the first of these fields that is given, and where; "" for none.

        A variable stands for what is in it. One that is not set is told.
        """
        found = ("", self.where)
        for key in keys:
            tree = self.take(key)
            if tree is None or found[0]:
                continue
            if tree.text is None:
                self.leave(key, "it is no single value", tree.where)
                continue
            name = variable_of(tree.text)
            text = tree.text if name is None else self._environ.get(name, "")
            if not text:
                self.leave(key, f"its value is in the variable {name}: set that, and import again", tree.where)
            found = (text.strip(), tree.where)
        return found

    def number(self, key: str) -> tuple[float | None, str]:
        """Return a field that is a number, not below 0, and where it is."""
        text, where = self.text(key)
        text = re.sub(r"(?<=[0-9])_(?=[0-9])", "", text)  # as YAML's numbers may be written: 80_000
        if text and not _NUMBER.fullmatch(text):
            self.leave(key, "it is no number that Velox can take", where)
            return None, where
        return (float(text) if text else None), where

    def leave(self, key: str, text: str, where: str) -> None:
        """Tell that a field is not carried over."""
        self._notes.left_out(f"{self.name}.{shown_name(key)}" if self.name else shown_name(key), text, where)

    def leave_rest(self, meaning: Callable[[str], str]) -> None:
        """Tell of every field that nobody took."""
        for entry in self._left.values():
            if entry.value.text != "" and entry.value.items != () and entry.value.fields != ():
                self.leave(entry.key, meaning(entry.key), entry.where)
        self._left.clear()

    def rest(self) -> Sequence[Entry]:
        """Return and take every field that nobody took."""
        entries = tuple(self._left.values())
        self._left.clear()
        return entries


def _fields(tree: Tree | None) -> dict[str, Entry]:
    """Return the fields by name. `<<: *anchor` stands for those of another mapping, or of several."""
    found: dict[str, Entry] = {}
    merged: dict[str, Entry] = {}
    for entry in (tree.fields or ()) if tree is not None else ():
        if entry.key == "<<":
            for other in (entry.value, *(entry.value.items or ())):
                for key, value in _fields(other).items():
                    merged.setdefault(key, value)
        else:
            found[entry.key] = entry
    return {**merged, **found}
