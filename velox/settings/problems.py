"""What is wrong with the settings: one value a problem, one error for them all.

Knows: how a problem reads, and that a value may hold a secret. Does not know: who found it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Problem", "SettingsError", "quoted"]

_SHOWN_CHARS: Final = 120
_USERINFO: Final = re.compile(r"//.*@", re.DOTALL)
_QUERY: Final = re.compile(r"\?.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to put right.

    name: a variable, or a field of the file.  value: as `quoted` gives it, "" when there is none to show.
    expected: what would have been right.  where: "FILE:LINE" when it came from the file, else "".
    """

    name: str
    value: str
    expected: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        value = f" is {self.value}" if self.value else ""
        return f"{place}{self.name}{value}: {self.expected}"


class SettingsError(Exception):
    """The settings can't be used; `problems` holds everything that is wrong with them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def quoted(text: str, *, secret: bool = False) -> str:
    """Return `text` as a problem may show it: on one line, short, without a URL's user info and query."""
    if secret:
        return "hidden"
    if "//" in text:
        text = _QUERY.sub("?hidden", _USERINFO.sub("//hidden@", text))
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
