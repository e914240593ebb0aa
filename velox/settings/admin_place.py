"""Where the admin listener is and what it asks for, also when nothing else of the settings can be used.

Knows: which variables say it. Does not know: who asks there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from velox.settings.doors import add_token_file
from velox.settings.file import read_file
from velox.settings.problems import Problem, quoted
from velox.settings.routing import NESTED
from velox.settings.variables_access import ADMIN_VARIABLES
from velox.types import Address, Secret

__all__ = ["admin_place"]

_WANTED: Final = ("VELOX_ADMIN_LISTEN", "VELOX_ADMIN_TOKEN", "VELOX_ADMIN_TOKEN_FILE")


def admin_place(
    environ: Mapping[str, str], overrides: Mapping[str, str]
) -> tuple[Address | None, Secret | None, list[Problem]]:
    """Return its address, None if there is none, its token, and what is wrong with what says so.

    A file that is no YAML says nothing: environment and command line, or the defaults, hold.
    """
    path = overrides.get("VELOX_CONFIG") or environ.get("VELOX_CONFIG")
    fields = {} if not path else {field.key: field.text for field in read_file(path, NESTED)[0] if not field.is_list}
    values: dict[str, Any] = {}
    problems = []
    for variable in ADMIN_VARIABLES:
        name = variable.name
        if name in _WANTED:
            text = overrides.get(name) or environ.get(name) or fields.get(variable.key) or variable.default
            try:
                values[variable.field] = variable.parse(text) if text else None
            except ValueError as exc:
                problems.append(Problem(name, quoted(text, secret=variable.secret), str(exc)))
    problems += add_token_file(values)
    return values.get("admin_listen"), values.get("admin_token"), problems
