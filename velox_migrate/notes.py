"""What an import has to tell: what it left out, what is now otherwise, and which variables must be set.

Knows: how a note reads. Does not know: any setting. A note never holds a value of the file: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from velox.settings.problems import on_one_line

__all__ = ["Kind", "Note", "Notes", "shown_name"]

Kind: TypeAlias = Literal["left out", "changed"]
_TITLES: Final[tuple[tuple[Kind, str], ...]] = (
    ("left out", "not carried over:"),
    ("changed", "not quite as it was:"),
)
# Words, and a number or two inside ("s3_bucket_name"). No key of an API is.
_WORD: Final = re.compile(r"[A-Za-z_]{1,60}(?:[0-9]{1,4}[A-Za-z_]{0,40}){0,2}")


def shown_name(name: str) -> str:
    """Return a field's name as a note may show it: somebody may have put a key before the colon."""
    return name if _WORD.fullmatch(name) else "a field"


@dataclass(slots=True)
class Note:
    """One thing to tell. subject: a setting, "litellm_settings.cache". lines: where it stands, in the file."""

    kind: Kind
    subject: str
    text: str
    lines: list[int] = field(default_factory=list)


class Notes:
    """All notes of one import. path: the file that was read. variables: name to what must be in it."""

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.variables: Final[dict[str, str]] = {}
        self._notes: Final[dict[tuple[Kind, str, str], Note]] = {}

    def left_out(self, subject: str, text: str, where: str) -> None:
        """Tell that a setting was not carried over: what that means, and what to do. where: "FILE:LINE"."""
        self._add("left out", subject, text, where)

    def changed(self, subject: str, text: str, where: str) -> None:
        """Tell that a setting means something else than before."""
        self._add("changed", subject, text, where)

    def of(self, kind: Kind) -> list[Note]:
        """Return the notes of one kind, by line."""
        return sorted((note for note in self._notes.values() if note.kind == kind), key=lambda note: note.lines[0])

    def keep_variables(self, names: Collection[str]) -> None:
        """Forget the variables that nothing refers to in the end."""
        for name in self.variables.keys() - names:
            del self.variables[name]

    def lines(self) -> Iterator[str]:
        """Yield the report: each line is one to read."""
        if self.variables:
            yield "set these variables:"
            yield from (f"  {name}: {meaning}" for name, meaning in sorted(self.variables.items()))
        for kind, title in _TITLES:
            notes = self.of(kind)
            if notes:
                yield title
            # What is said of several is said once.
            for text in dict.fromkeys(note.text for note in notes):
                alike = [note for note in notes if note.text == text]
                places = ", ".join(map(str, sorted({line for note in alike for line in note.lines})))
                subjects = ", ".join(note.subject for note in alike)
                yield on_one_line(f"  {self.path}:{places}: {subjects}: {text}")

    def _add(self, kind: Kind, subject: str, text: str, where: str) -> None:
        note = self._notes.setdefault((kind, subject, text), Note(kind, subject, text))
        note.lines.append(int(where.rpartition(":")[2]))
