"""What a file says: values, lists and fields inside each other, as text, each with its line; the fields of one entry.

Knows: how a field that is missing, unknown or of another shape is reported. Does not know: how it was read
(yaml/nodes.py), or what a text means. Values are taken as they are written (`off` stays `off`, `010` stays `010`): a
field reads the same in the file and in the environment.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from velox.settings.problems import Problem, is_close, quoted, unknown

__all__ = [
    "NO_END",
    "ConfigFile",
    "Entry",
    "FileEnd",
    "ListForm",
    "Section",
    "Tree",
    "fields_of",
    "read_regular_file",
]

_WORD: Final = re.compile(r"[a-z_]{2,12}")

NO_HINTS: Final[Mapping[str, str]] = MappingProxyType({})

T = TypeVar("T")
N = TypeVar("N", bound="_Named")


@dataclass(frozen=True, slots=True)
class Tree:
    """A value: a text, a list of values, or fields. The other two are None. where: "FILE:LINE"."""

    where: str
    text: str | None = None
    items: tuple[Tree, ...] | None = None
    fields: tuple[Entry, ...] | None = None

    @property
    def joined(self) -> str:
        """Return the text; of a list its texts with commas between them."""
        return self.text or ",".join(item.text or "" for item in self.items or ())


@dataclass(frozen=True, slots=True)
class Entry:
    """One of a value's fields. where: that of its name."""

    key: str
    where: str
    value: Tree


@dataclass(frozen=True, slots=True)
class FileEnd:
    """How a file ends, by which one that was cut off is known. has_mark: with `end: true`. is_line: with a line end."""

    has_mark: bool = False
    is_line: bool = False


NO_END: Final = FileEnd()


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file holds: its fields in order, but for the end mark. problems: what is wrong with its shape."""

    entries: tuple[Entry, ...] = ()
    problems: tuple[Problem, ...] = ()
    end: FileEnd = NO_END


def read_regular_file(path: str, most_bytes: int) -> bytes:
    """Return what a file holds, one byte more than `most_bytes` at most. Raises OSError.

    A pipe or a device is refused: it could block the caller, and gives its content only once.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes + 1)
    finally:
        os.close(descriptor)


def fields_of(
    item: Tree, kind: str, known: Collection[str], problems: list[Problem], *, hidden: bool = False
) -> dict[str, Entry]:
    """Return an item's fields by name; unknown ones and repeated ones are added to `problems`.

    kind: as a problem calls the item, "a limit". hidden: no name is shown that is not much like a field's: it may be a
    key, with the two exchanged.
    """
    found: dict[str, Entry] = {}
    for entry in item.fields or ():
        expected = ""
        if entry.key in found:
            expected = "expected each field once" if hidden else f"expected each field of {kind} once"
        elif entry.key not in known:
            expected = unknown(f"field of {kind}", entry.key, known)
        if expected:
            is_shown = not hidden or (_WORD.fullmatch(entry.key) is not None and is_close(entry.key, known))
            problems.append(Problem(entry.key if is_shown else kind, "", expected, where=entry.where))
        found[entry.key] = entry
    return found


class Section:
    """The fields of a value that has some. What is wrong with them is added to `problems`.

    kind: as a problem calls it, "an upstream". known: the fields that there may be. name: the field that holds it, for
    those inside another. hints: what is expected instead of fields that people write by mistake.
    """

    def __init__(
        self,
        tree: Tree,
        kind: str,
        known: Sequence[str],
        problems: list[Problem],
        name: str = "",
        hints: Mapping[str, str] = NO_HINTS,
    ) -> None:
        assert tree.fields is not None, "made of values with fields only"
        self.where: Final = tree.where
        self._given: Final = {entry.key: entry for entry in tree.fields}
        self._kind: Final = kind
        self._prefix: Final = f"{name}." if name else ""
        self._problems: Final = problems
        for entry in tree.fields:
            if entry.key not in known:
                expected = hints.get(entry.key) or unknown(f"field of {kind}", entry.key, known)
                problems.append(Problem(self._prefix + entry.key, "", expected, where=entry.where))

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def is_text(self, name: str) -> bool:
        """Return True for a field that has one value, and no fields inside."""
        return name in self._given and self._given[name].value.text is not None

    def where_is(self, name: str) -> str:
        """Return the place of a field; of a missing one the place of the section."""
        return self._given[name].where if name in self._given else self.where

    def refuse(self, name: str, expected: str, value: str = "", where: str = "") -> None:
        """Add a problem with a field. value: as `quoted` gives it."""
        self._problems.append(Problem(self._prefix + name, value, expected, where=where or self.where_is(name)))

    def lacks(self, expected: str) -> None:
        """Add a problem with what is not there."""
        self._problems.append(Problem(self._kind, "", expected, where=self.where))

    def needs(self, **examples: str) -> None:
        """Add a problem for each field that is not there. examples: what it could be, by field."""
        for name, example in examples.items():
            if name not in self:
                self.lacks(f"expected `{name}`, such as `{name}: {example}`")

    def one(self, name: str, parse: Callable[[str], T], default: T, *, shown: bool = True) -> T:
        """Return the value of a field that has one; the default where it is not given, or wrong.

        shown: False: what stands there may be a secret.
        """
        if name not in self._given:
            return default
        text = self._given[name].value.text
        if text is None:
            self.refuse(name, "expected one value")
            return default
        try:
            return parse(text)
        except ValueError as exc:
            self.refuse(name, str(exc), quoted(text) if shown else "")
            return default

    def many(self, name: str, parse: Callable[[str], T], *, shown: bool = True) -> tuple[T, ...]:
        """Return the values of a list, or of one text with commas between them; () where it is not given.

        A list that is given and empty is a problem: it could mean none, or all.
        """
        found = []
        for tree in self.items(name):
            if tree.text is None:
                self.refuse(name, "expected a list of values", where=tree.where)
                continue
            try:
                found.append(parse(tree.text))
            except ValueError as exc:
                self.refuse(name, str(exc), quoted(tree.text) if shown else "", tree.where)
        if len(set(found)) < len(found):
            self.refuse(name, "expected each value once")
        return tuple(found)

    def items(self, name: str) -> Sequence[Tree]:
        """Return the items of a list; those of a text are what stands between its commas."""
        if name not in self._given:
            return ()
        tree = self._given[name].value
        if tree.fields is not None:
            return (tree,)
        items: Sequence[Tree] = tree.items or ()
        if tree.text:
            items = [Tree(tree.where, text=part.strip()) for part in tree.text.split(",")]
        if not items:
            self.refuse(name, "expected at least one value; leave the field out for none")
        return items

    def section(self, name: str, known: Sequence[str], example: str) -> Section | None:
        """Return the fields inside a field; None where it is not given. example: what they could be."""
        tree = self._fields_of(name, example)
        return None if tree is None else Section(tree, f"`{name}`", known, self._problems, self._prefix + name)

    def item_section(self, name: str, tree: Tree, known: Sequence[str], hints: Mapping[str, str] = NO_HINTS) -> Section:
        """Return the fields of an item of a list, which stands in a field."""
        return Section(tree, f"an item of `{name}`", known, self._problems, name, hints)

    def pairs(self, name: str, example: str) -> Iterator[tuple[str, str, str]]:
        """Yield name, text and place of each field inside a field that may have any. example: what they could be."""
        tree = self._fields_of(name, example)
        for entry in (tree.fields or ()) if tree is not None else ():
            if entry.value.text is None:
                self.refuse(name, "expected one value for each name", where=entry.where)
            else:
                yield entry.key, entry.value.text, entry.where

    def texts(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield name and text of each field inside a field that may have any, as far as they are right."""
        tree = self._given[name].value if name in self._given else None
        for entry in (tree.fields or ()) if tree is not None else ():
            yield entry.key, entry.value.text or ""

    def _fields_of(self, name: str, example: str) -> Tree | None:
        if name not in self._given:
            return None
        tree = self._given[name].value
        if tree.fields is None:
            self.refuse(name, f"expected fields, such as `{name}: {{{example}}}`")
            return None
        return tree


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ListForm:
    """How a list of entries, each with a name of its own, is written.

    name: the list's field, "routes". kind: what a problem calls an entry, "a route". example: of an entry.
    item_example: what fields it has at least. hints: as for Section.
    """

    name: str
    kind: str
    fields: Sequence[str]
    most: int
    example: str
    item_example: str
    hints: Mapping[str, str] | None = None

    def read(self, tree: Tree, read_entry: Callable[[Section], N], problems: list[Problem]) -> tuple[N, ...]:
        """Return the entries of a list; what is wrong with it is added to `problems`."""
        items = tree.items or ()
        expected, where = "", tree.where
        if not items:
            expected = f"expected a list of {self.name}, such as `- {self.example}`"
        elif len(items) > self.most:
            expected, where = f"expected at most {self.most}", items[self.most].where
        if expected:
            problems.append(Problem(self.name, "", expected, where=where))
            return ()
        entries = []
        by_name: dict[str, N] = {}
        for item in items:
            if item.fields is None:
                problems.append(
                    Problem(self.kind, "", f"expected fields such as {self.item_example}", where=item.where)
                )
                continue
            section = Section(item, self.kind, self.fields, problems, hints=self.hints or NO_HINTS)
            entry = read_entry(section)
            entries.append(entry)
            first = by_name.setdefault(entry.name, entry)
            if first is not entry and entry.name:
                noun = self.name.removesuffix("s")
                expected = f"expected each name once; the {noun} at {first.where} has it"
                section.refuse("name", expected, quoted(entry.name))
        return tuple(entries)
