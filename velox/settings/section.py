"""The fields of one entry of a list in the file, asked for one by one.

Knows: how a field that is missing, unknown or of another shape is told. Does not know: what any field means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from velox.settings.problems import Problem, quoted, unknown
from velox.settings.tree import Tree

__all__ = ["Section", "choice"]

T = TypeVar("T")


def choice(words: Mapping[str, T]) -> Callable[[str], T]:
    """Return a parser of one of these words, which gives what the word stands for."""

    def parse(text: str) -> T:
        if text not in words:
            *others, last = words
            raise ValueError(f"expected {', '.join(others)} or {last}")
        return words[text]

    return parse


class Section:
    """The fields of a value that has some. What is wrong with them is added to `problems`.

    kind: as a problem calls it, "an upstream". known: the fields that there may be. name: the field that holds it, for
    those inside another.
    """

    def __init__(self, tree: Tree, kind: str, known: Sequence[str], problems: list[Problem], name: str = "") -> None:
        assert tree.fields is not None, "made of values with fields only"
        self.where: Final = tree.where
        self._given: Final = {entry.key: entry for entry in tree.fields}
        self._kind: Final = kind
        self._prefix: Final = f"{name}." if name else ""
        self._problems: Final = problems
        for entry in tree.fields:
            if entry.key not in known:
                expected = unknown(f"field of {kind}", entry.key, known)
                problems.append(Problem(self._prefix + entry.key, "", expected, where=entry.where))

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def where_is(self, name: str) -> str:
        """Return where a field stands; of one that is not there, where the section does."""
        return self._given[name].where if name in self._given else self.where

    def refuse(self, name: str, expected: str, value: str = "", where: str = "") -> None:
        """Add a problem with a field. value: as `quoted` gives it."""
        self._problems.append(Problem(self._prefix + name, value, expected, where=where or self.where_is(name)))

    def lacks(self, expected: str) -> None:
        """Add a problem with what is not there."""
        self._problems.append(Problem(self._kind, "", expected, where=self.where))

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
        return tuple(value for value, _ in self.placed(name, parse, shown=shown))

    def placed(self, name: str, parse: Callable[[str], T], *, shown: bool = True) -> list[tuple[T, str]]:
        """Return the same, each with where it stands."""
        found = []
        for tree in self.items(name):
            if tree.text is None:
                self.refuse(name, "expected a list of values", where=tree.where)
                continue
            try:
                found.append((parse(tree.text), tree.where))
            except ValueError as exc:
                self.refuse(name, str(exc), quoted(tree.text) if shown else "", tree.where)
        if len({value for value, _ in found}) < len(found):
            self.refuse(name, "expected each value once")
        return found

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

    def section(self, name: str, kind: str, known: Sequence[str]) -> Section | None:
        """Return the fields inside a field; None where it is not given."""
        tree = self._fields_of(name)
        return None if tree is None else Section(tree, kind, known, self._problems, self._prefix + name)

    def pairs(self, name: str) -> Iterator[tuple[str, str, str]]:
        """Yield name, text and place of each field inside a field that may have any."""
        tree = self._fields_of(name)
        for entry in (tree.fields or ()) if tree is not None else ():
            if entry.value.text is None:
                self.refuse(name, "expected one value for each name", where=entry.where)
            else:
                yield entry.key, entry.value.text, entry.where

    def _fields_of(self, name: str) -> Tree | None:
        if name not in self._given:
            return None
        tree = self._given[name].value
        if tree.fields is None:
            self.refuse(name, "expected fields, such as `name: value`")
            return None
        return tree
