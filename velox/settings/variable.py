"""One row of the table of variables.

Knows: what a variable has. Does not know: which variables there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from velox.settings import parse
from velox.settings.file import Item
from velox.settings.problems import Problem

__all__ = ["CORES", "DAY_S", "MEMORY_HARD", "MEMORY_SOFT", "TIMEOUT", "Variable"]

# A default that stands for the number of cores this process may use.
CORES: Final = "number of cores"
# Defaults that stand for a part of the container's memory, shared by the workers.
MEMORY_SOFT: Final = "75% of the worker's share of the container's memory, or off"
MEMORY_HARD: Final = "90% of the worker's share of the container's memory, or off"

DAY_S: Final = 86_400.0
_SHORTEST_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable.

    default: text for `parse`; "" is none, the field is then None (or empty).  shown_default: what the table
    says instead of it.  plural: the file may give a list.  secret: the value is never shown.
    parse_items: where the list may hold mappings too; what it returns is added to the problems.
    """

    name: str
    field: str
    parse: Callable[[str], object]
    default: str
    meaning: str
    shown_default: str = ""
    plural: bool = False
    secret: bool = False
    parse_items: Callable[[Sequence[Item]], tuple[object, list[Problem]]] | None = None

    @property
    def key(self) -> str:
        """The variable's name in the YAML file."""
        return self.name.removeprefix("VELOX_").lower()


TIMEOUT: Final = parse.duration(_SHORTEST_S, DAY_S)
