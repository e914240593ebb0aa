"""What a setting is beside its type: its variable, its default, how its text is read and what it means.

Knows: what follows from the field's name and type. Does not know: which settings there are (model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from velox.settings import parse
from velox.settings.problems import Problem
from velox.settings.yaml.tree import Tree
from velox.types import Secret

__all__ = ["CORES", "MEMORY_HARD", "MEMORY_SOFT", "Variable", "live_setting", "setting", "variables_of"]

# A default that stands for the number of cores this process may use.
CORES: Final = "number of cores"
# Defaults that stand for a part of the container's memory, shared by the workers.
MEMORY_SOFT: Final = "75% of the worker's share of the container's memory, or off"
MEMORY_HARD: Final = "90% of the worker's share of the container's memory, or off"

_UNITS: Final = ("_s", "_bytes", "_percent")


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """One variable of the environment; the YAML file has it by its key.

    default: text for `parse`; "" is none, the field is then `empty`.  shown_default: what the table says instead.
    plural: the file may give a list.  secret: the value is never shown.  is_live: a reload changes it; else a restart.
    parse_items: where the list may hold mappings too; what it returns is added to the problems.
    """

    name: str
    default: str
    meaning: str
    parse: Callable[[str], object]
    field: str = ""
    shown_default: str = ""
    plural: bool = False
    secret: bool = False
    is_live: bool = False
    empty: object = None
    parse_items: Callable[[Sequence[Tree]], tuple[object, list[Problem]]] | None = None

    @property
    def key(self) -> str:
        """The variable's name in the YAML file."""
        return self.name.removeprefix("VELOX_").lower()


def setting(
    default: str,
    meaning: str,
    parse: Callable[[str], object] | None = None,
    *,
    name: str = "",
    shown_default: str = "",
    secret: bool = False,
    is_live: bool = False,
    parse_items: Callable[[Sequence[Tree]], tuple[object, list[Problem]]] | None = None,
) -> Any:
    """Return the default of a field that has a variable; `variables_of` completes it from the field's name and type.

    parse: None where the type says it: bool, a Literal, Secret, or str for the path of a file. name: "" for VELOX_ and
    the field's name in upper case without its unit.
    """
    return Variable(
        name=name,
        default=default,
        meaning=meaning,
        parse=parse or _unread,
        shown_default=shown_default,
        secret=secret,
        is_live=is_live,
        parse_items=parse_items,
    )


# Of a field that a reload changes.
live_setting: Final = partial(setting, is_live=True)


def variables_of(struct: type[msgspec.Struct]) -> tuple[Variable, ...]:
    """Return the variables of a struct's fields, in order."""
    return tuple(
        _completed(field.default, field.name, field.type)
        for field in msgspec.structs.fields(struct)
        if isinstance(field.default, Variable)
    )


def _completed(variable: Variable, field: str, declared: Any) -> Variable:
    kinds = [kind for kind in get_args(declared) if kind is not NoneType]
    kind = kinds[0] if len(kinds) == 1 else declared
    container = get_origin(declared)
    plural = container in (tuple, frozenset)
    unit = next((unit for unit in _UNITS if field.endswith(unit)), "")
    return msgspec.structs.replace(
        variable,
        field=field,
        name=variable.name or f"VELOX_{field.removesuffix(unit).upper()}",
        parse=_reader(kind) if variable.parse is _unread else variable.parse,
        plural=plural,
        secret=variable.secret or kind is Secret,
        empty=container() if plural else None,
    )


def _reader(kind: Any) -> Callable[[str], object]:
    """Return the parser of a type that has only one."""
    if get_origin(kind) is Literal:
        return parse.one_of(*get_args(kind))
    readers: dict[Any, Callable[[str], object]] = {bool: parse.switch, Secret: parse.secret, str: parse.file_path}
    return readers[kind]


def _unread(text: str) -> object:
    raise AssertionError(f"completed by variables_of: {text}")
