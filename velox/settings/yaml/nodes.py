"""YAML's nodes as trees (tree.py).

Knows: where nodes stand, and how much of them is accepted: an alias can stand for any number of others. Does not know:
what a text means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import yaml

from velox.settings.problems import Problem
from velox.settings.yaml.errors import yaml_problem
from velox.settings.yaml.tree import ConfigFile, Entry, FileEnd, Tree, read_regular_file

__all__ = ["compose", "list_items", "place", "read_file", "tree_of"]

_LONGEST_FILE_BYTES: Final = 2**20
# Routes have four levels: the list, its fields, `request_headers`, `set`.
_DEEPEST: Final = 8
# 10,000 routes with some 20 values each; a file of the longest size has not many more that mean anything.
_MOST_VALUES: Final = 250_000
_MOST_CHARS: Final = 2**21
# The field that says: up to here the file is whole.
_END: Final = "end"
_NULL: Final = "tag:yaml.org,2002:null"


def read_file(path: str, nested: Collection[str] = ()) -> ConfigFile:
    """Return the file's fields.

    nested: those that may have any structure; the others are a text, or a list of texts and of mappings of such values.
    Another one that has any other structure has no fields, which is not None.
    """
    try:
        content = read_regular_file(path, _LONGEST_FILE_BYTES)
    except OSError as exc:
        return _bad(Problem("VELOX_CONFIG", repr(path), f"expected a file that can be read ({exc.strerror})"))
    if len(content) > _LONGEST_FILE_BYTES:
        return _bad(Problem("VELOX_CONFIG", repr(path), f"expected at most {_LONGEST_FILE_BYTES} bytes"))
    root, problems = compose(content, path)
    if problems:
        return _bad(*problems)
    if root is None or not root.value:
        # One that was emptied must not mean that all is as by default.
        return _bad(Problem("VELOX_CONFIG", repr(path), "expected at least one field in the file, it is empty"))
    if not isinstance(root, yaml.MappingNode):
        where = place(path, root)
        return _bad(Problem("the file", "", "expected fields such as `rate_limit_rpm: 600`", where=where))
    found: dict[str, Entry] = {}
    for item in _fields(path, root, nested=nested):
        if isinstance(item, Problem):
            problems.append(item)
        elif (first := found.setdefault(item.key, item)) is not item:
            expected = f"expected once, but it stands at {first.where} too"
            problems.append(Problem(item.key, "", expected, where=item.where))
    mark = found.get(_END)
    if mark is not None and (mark.value.text != "true" or list(found)[-1] != _END):
        problems.append(Problem(_END, "", "expected `end: true`, as the last field of the file", where=mark.where))
    entries = tuple(entry for key, entry in found.items() if key != _END)
    return ConfigFile(entries, tuple(problems), FileEnd(mark is not None, content.endswith(b"\n")))


def _bad(*problems: Problem) -> ConfigFile:
    return ConfigFile(problems=problems)


def compose(content: bytes, path: str) -> tuple[yaml.Node | None, list[Problem]]:
    """Return the document's root, None if it is empty, and why it is no YAML."""
    try:
        root: yaml.Node | None = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        return None, [yaml_problem(exc, content, path)]
    except RecursionError:
        return None, [Problem("the file", "", "expected one field a line, found nesting without end", where=path)]
    return root, []


def place(path: str, node: yaml.Node) -> str:
    """Return where a node stands, as "FILE:LINE"."""
    return f"{path}:{node.start_mark.line + 1}"


def list_items(path: str, root: yaml.Node) -> tuple[Tree, ...] | None:
    """Return the items of a list of texts and plain mappings; None for anything else."""
    if not isinstance(root, yaml.SequenceNode):
        return None
    items = []
    for node in root.value:
        where = place(path, node)
        if isinstance(node, yaml.ScalarNode):
            items.append(Tree(where, text=_text(node)))
            continue
        found = list(_fields(path, node, inner=True)) if isinstance(node, yaml.MappingNode) else []
        fields = tuple(each for each in found if isinstance(each, Entry))
        if not fields or len(fields) < len(found):
            return None
        items.append(Tree(where, fields=fields))
    return tuple(items)


def _fields(
    path: str, root: yaml.MappingNode, *, inner: bool = False, nested: Collection[str] = ()
) -> Iterator[Entry | Problem]:
    """Yield the fields. inner: of an item, which can't hold other items; an alias could nest them without end."""
    for key, node in root.value:
        where = place(path, key)
        if not isinstance(key, yaml.ScalarNode):
            yield Problem("a field's name", "", "expected a word", where=where)
            continue
        if key.value in nested:
            tree, problems = tree_of(path, key.value, node)
            yield from problems
            if tree is not None:
                yield Entry(key.value, where, tree)
        elif (tree := _plain(path, node, inner=inner)) is not None:
            yield Entry(key.value, where, tree)
        elif inner:
            yield Problem(key.value, "", "expected one value, or a list of values without commas", where=where)
        else:
            yield Entry(key.value, where, Tree(place(path, node), fields=()))  # it may be a name that is not known


def _plain(path: str, node: yaml.Node, *, inner: bool) -> Tree | None:
    """Return a text, a list of texts, or a list that holds mappings; None for anything else."""
    where = place(path, node)
    if isinstance(node, yaml.ScalarNode):
        return Tree(where, text=_text(node))
    if isinstance(node, yaml.SequenceNode) and _is_plain(node):
        return Tree(where, items=tuple(Tree(place(path, item), text=_text(item)) for item in node.value))
    items = None if inner else list_items(path, node)
    return Tree(where, items=items) if items and any(item.fields for item in items) else None


def _text(node: yaml.Node) -> str:
    """Return what a value says: nothing where it is null, as what a template writes for a variable that is not set."""
    return "" if node.tag == _NULL else str(node.value)


def _is_plain(node: yaml.SequenceNode) -> bool:
    """True for texts without commas. An alias can repeat a long one: together they are no longer than a file."""
    if not all(isinstance(item, yaml.ScalarNode) and "," not in item.value for item in node.value):
        return False
    return sum(len(item.value) for item in node.value) <= _LONGEST_FILE_BYTES


def tree_of(path: str, name: str, node: yaml.Node) -> tuple[Tree | None, list[Problem]]:
    """Return the value that stands under the field `name`, or why it can't be taken."""
    maker = _Maker(path)
    try:
        return maker.make(node, 1), maker.problems
    except _TooMuchError as exc:
        return None, [Problem(name, "", str(exc), where=place(path, node))]


class _TooMuchError(Exception):
    """The value is larger than any valid one."""


class _Maker:
    """Makes one tree. Each use of an alias counts."""

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
        text = _text(node)
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
