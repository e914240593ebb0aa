"""The YAML file: its fields as text, each with its line.

Knows: YAML's nodes and where they stand. Does not know: what a text means. Values are taken as they are
written (`off` stays `off`, `010` stays `010`): a field reads the same in the file and in the environment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from velox.settings.problems import Problem
from velox.settings.tree import Tree, place, tree_of

__all__ = ["Field", "Item", "compose", "list_items", "read_file"]

_LONGEST_FILE_BYTES: Final = 2**20
_NULL: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the file. is_list: its items, with commas between them, are the text.

    items: those of a list that holds mappings; it has no text. tree: of a field that may hold anything; no text either.
    """

    key: str
    text: str
    where: str
    is_list: bool
    items: tuple[Item, ...] = ()
    tree: Tree | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a list: a text, or the fields of a mapping."""

    text: str
    where: str
    fields: tuple[Field, ...] = ()


def read_file(path: str, nested: Collection[str] = ()) -> tuple[list[Field], list[Problem]]:
    """Return the file's fields in order, and what is wrong with its shape. nested: those that may hold anything."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LONGEST_FILE_BYTES + 1)
    except OSError as exc:
        return [], [Problem("VELOX_CONFIG", repr(path), f"expected a file that can be read ({exc.strerror})")]
    if len(content) > _LONGEST_FILE_BYTES:
        return [], [Problem("VELOX_CONFIG", repr(path), f"expected at most {_LONGEST_FILE_BYTES} bytes")]
    root, problems = compose(content, path)
    if problems or root is None:
        return [], problems
    if not isinstance(root, yaml.MappingNode):
        where = place(path, root)
        return [], [Problem("the file", "", "expected fields such as `rate_limit_rpm: 600`", where=where)]
    fields: list[Field] = []
    first_seen: dict[str, str] = {}
    for item in _fields(path, root, nested=nested):
        if isinstance(item, Problem):
            problems.append(item)
        elif item.key in first_seen:
            expected = f"expected once, but it stands at {first_seen[item.key]} too"
            problems.append(Problem(item.key, "", expected, where=item.where))
        else:
            first_seen[item.key] = item.where
            fields.append(item)
    return fields, problems


def compose(content: bytes, path: str) -> tuple[yaml.Node | None, list[Problem]]:
    """Return the document's root, None if it is empty, and why it is no YAML."""
    try:
        root: yaml.Node | None = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        return None, [_not_yaml(path, exc)]
    except RecursionError:
        return None, [Problem("the file", "", "expected one field a line, found nesting without end", where=path)]
    return root, []


def list_items(path: str, root: yaml.Node) -> tuple[Item, ...] | None:
    """Return the items of a list of texts and plain mappings; None for anything else."""
    if not isinstance(root, yaml.SequenceNode):
        return None
    items = []
    for node in root.value:
        where = place(path, node)
        if isinstance(node, yaml.ScalarNode):
            items.append(Item(node.value, where))
        elif isinstance(node, yaml.MappingNode):
            fields = list(_fields(path, node, inner=True))
            plain = tuple(each for each in fields if isinstance(each, Field))
            if not fields or len(plain) < len(fields):
                return None
            items.append(Item("", where, plain))
        else:
            return None
    return tuple(items)


def _fields(
    path: str, root: yaml.MappingNode, *, inner: bool = False, nested: Collection[str] = ()
) -> Iterator[Field | Problem]:
    """Yield the fields. inner: of an item, which can't hold other items; an alias could nest them without end."""
    for key, value in root.value:
        where = place(path, key)
        if not isinstance(key, yaml.ScalarNode):
            yield Problem("a field's name", "", "expected a word", where=where)
        elif key.value in nested:
            tree, problems = tree_of(path, key.value, value)
            yield from problems
            yield Field(key.value, "", where, is_list=False, tree=tree)
        elif isinstance(value, yaml.ScalarNode):
            yield Field(key.value, "" if value.tag == _NULL else value.value, where, is_list=False)
        elif isinstance(value, yaml.SequenceNode) and _is_plain(value):
            yield Field(key.value, ",".join(item.value for item in value.value), where, is_list=True)
        elif not inner and (items := list_items(path, value)) and any(item.fields for item in items):
            yield Field(key.value, "", where, is_list=True, items=items)
        else:
            yield Problem(key.value, "", "expected one value, or a list of values without commas", where=where)


def _is_plain(node: yaml.SequenceNode) -> bool:
    """True for texts without commas. An alias can repeat a long one: together they are no longer than a file."""
    if not all(isinstance(item, yaml.ScalarNode) and "," not in item.value for item in node.value):
        return False
    return sum(len(item.value) for item in node.value) <= _LONGEST_FILE_BYTES


def _not_yaml(path: str, exc: yaml.YAMLError) -> Problem:
    where = path
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        where = f"{path}:{exc.problem_mark.line + 1}"
    # The library's own words may quote the file, and with it a key.
    return Problem("the file", "", "expected YAML", where=where)
