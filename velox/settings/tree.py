"""A part of the YAML file that is more than a list: texts, lists and fields inside each other, each with its line.

Knows: YAML's nodes, and how much of them is taken: an alias can stand for any number of others. Does not know: what a
text means. As in `file`, values are taken as they are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import yaml

from velox.settings.problems import Problem

__all__ = ["Entry", "Tree", "place", "tree_of"]

# Routes have four levels: the list, its fields, `request_headers`, `set`.
_DEEPEST: Final = 8
# 10,000 routes with some 20 values each; a file of the longest size has not many more that mean anything.
_MOST_VALUES: Final = 250_000
_MOST_CHARS: Final = 2**21
_NULL: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Tree:
    """A value: a text, a list of values, or fields. The other two are None. where: "FILE:LINE"."""

    where: str
    text: str | None = None
    items: tuple[Tree, ...] | None = None
    fields: tuple[Entry, ...] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One of a value's fields. where: that of its name."""

    key: str
    where: str
    value: Tree


def place(path: str, node: yaml.Node) -> str:
    """Return where a node stands, as "FILE:LINE"."""
    return f"{path}:{node.start_mark.line + 1}"


def tree_of(path: str, name: str, node: yaml.Node) -> tuple[Tree | None, list[Problem]]:
    """Return the value that stands under the field `name`, or why it can't be taken."""
    maker = _Maker(path)
    try:
        return maker.make(node, 1), maker.problems
    except _TooMuchError as exc:
        return None, [Problem(name, "", str(exc), where=place(path, node))]


class _TooMuchError(Exception):
    """The value is larger than any that is meant."""


class _Maker:
    """Makes one tree. What an alias stands for is counted each time."""

    def __init__(self, path: str) -> None:
        self.problems: list[Problem] = []
        self._path: Final = path
        self._n_values = 0
        self._n_chars = 0

    def make(self, node: yaml.Node, depth: int) -> Tree:
        if depth > _DEEPEST:
            raise _TooMuchError(f"expected at most {_DEEPEST} levels of lists and fields")
        self._n_values += 1
        if self._n_values > _MOST_VALUES:
            raise _TooMuchError(f"expected at most {_MOST_VALUES} values, with those that aliases stand for")
        where = place(self._path, node)
        if isinstance(node, yaml.SequenceNode):
            return Tree(where, items=tuple(self.make(each, depth + 1) for each in node.value))
        if isinstance(node, yaml.MappingNode):
            return Tree(where, fields=self._fields(node, depth))
        text = "" if node.tag == _NULL else str(node.value)
        self._count_chars(text)
        return Tree(where, text=text)

    def _fields(self, node: yaml.MappingNode, depth: int) -> tuple[Entry, ...]:
        found: dict[str, Entry] = {}
        for key, value in node.value:
            where = place(self._path, key)
            if not isinstance(key, yaml.ScalarNode):
                self.problems.append(Problem("a field's name", "", "expected a word", where=where))
                continue
            self._count_chars(key.value)
            entry = Entry(key.value, where, self.make(value, depth + 1))
            first = found.setdefault(entry.key, entry)
            if first is not entry:
                expected = f"expected once, but it stands at {first.where} too"
                self.problems.append(Problem(entry.key, "", expected, where=where))
        return tuple(found.values())

    def _count_chars(self, text: str) -> None:
        self._n_chars += len(text)
        if self._n_chars > _MOST_CHARS:
            raise _TooMuchError(f"expected at most {_MOST_CHARS} characters, with those that aliases stand for")
