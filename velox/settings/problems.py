"""What is wrong with the settings: one value a problem, one error for them all.

Knows: how a problem is written, and that a value may contain a secret. Does not know: who found it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Problem", "SettingsError", "is_close", "on_one_line", "quoted", "unknown"]

_SHOWN_CHARS: Final = 120
# What a field's name can be: words, and a digit or two ("http2_engine"), inside others ("timeouts.connect"). No key of
# an API is.
_WORD: Final = re.compile(r"[A-Za-z_'` ]{1,40}(?:[0-9]{1,2}[A-Za-z_]{0,40})?(?:\.[A-Za-z_]{1,20}){0,2}")
# A word with dashes in place of underscores: short parts, and none of the prefixes of keys.
_DASHED: Final = re.compile(r"(?!(?:sk|vk|pk|rk|key|token)-)[A-Za-z]{1,14}(?:-[A-Za-z]{1,14}){1,4}")
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
        name = self.name if len(self.name) <= _SHOWN_CHARS else self.name[:_SHOWN_CHARS] + "..."
        if self.where and not (_WORD.fullmatch(name) or _DASHED.fullmatch(name)):
            name = "a field"  # it may be an API key by mistake; the line number identifies the field
        return on_one_line(f"{place}{name}{value}: {self.expected}")


class SettingsError(Exception):
    """The settings are invalid; `problems` has everything that is wrong with them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def on_one_line(text: str) -> str:
    """Escape unprintable characters: a path, or a name in a YAML file, may contain any."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def quoted(text: str, *, secret: bool = False) -> str:
    """Return `text` as a problem may show it: on one line, short, without a URL's user info and query."""
    if secret:
        return "hidden"
    if "//" in text:
        text = _QUERY.sub("?hidden", _USERINFO.sub("//hidden@", text))
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")


_CLOSE: Final = 0.65


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return what a problem says of a name that is none of `known`, with the nearest one."""
    if name == "<<":
        return "expected each field written out: `*name` may stand for a whole value, but nothing is merged (`<<`)"
    by_rest = {_compared(other): other for other in known}
    close = _close_matches(_compared(name), by_rest)
    return f"there is no such {kind}" + (f"; did you mean {by_rest[close[0]]}?" if close else "")


def is_close(name: str, known: Iterable[str]) -> bool:
    """Say whether a name is surely meant to be one of `known`: nearer than unknown() asks for."""
    others = [_compared(other) for other in known]
    return bool(_close_matches(_compared(name), others, _CLOSE))


def _close_matches(name: str, others: Iterable[str], cutoff: float = 0.6) -> list[str]:
    # Here, not above: only what is wrong needs it.
    import difflib

    return difflib.get_close_matches(name, list(others), n=1, cutoff=cutoff)


def _compared(name: str) -> str:
    """Return what two names are compared by: case and dashes apart. The prefix would make any two look alike."""
    return name.lower().replace("-", "_").removeprefix("velox_")
