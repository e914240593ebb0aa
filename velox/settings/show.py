"""The settings as people read them: the rows of `velox check`, and README's table.

Knows: the table of variables and how each kind of value is written. Does not know: who prints it.
"""

from __future__ import annotations

from typing import Final

from velox.settings.model import Settings
from velox.settings.problems import on_one_line
from velox.settings.variables import VARIABLES
from velox.types import Secret

__all__ = ["effective", "markdown"]


# What None means to these.
_OFF: Final = frozenset({"admin_listen", "memory_soft_bytes", "memory_hard_bytes"})


def effective(settings: Settings) -> list[tuple[str, str, str]]:
    """Return (variable, value in use, where it came from) for each variable; secrets are hidden."""
    rows = []
    for variable in VARIABLES:
        origin = settings.origins[variable.name]
        if variable.field == "upstream_origins" and settings.upstreams[0].where:
            shown = "see below"
        elif variable.secret:
            # The field may hold what came from a file: the row tells of this variable only.
            shown = "none" if origin == "default" else "hidden"
        else:
            shown = _shown(variable.field, getattr(settings, variable.field))
        if shown == "none" and variable.shown_default:
            shown = variable.shown_default
        rows.append((variable.name, on_one_line(shown), origin))
    return rows


def markdown() -> str:
    """Return the table of all variables in Markdown, ending with a line end."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{v.name}` | {v.shown_default or v.default or 'none'} | {v.meaning} |" for v in VARIABLES]
    return "\n".join(lines) + "\n"


def _shown(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None and field in _OFF:
        return "off"
    if value is None:
        return "none"
    if isinstance(value, Secret):
        return "hidden"
    if field == "limits" and isinstance(value, tuple) and value:
        return f"{len(value)}, see below"
    if isinstance(value, tuple):
        return "*" if value == ("/",) else ",".join(map(str, value)) or "none"
    if isinstance(value, frozenset):
        return ",".join(map(str, sorted(value))) or "none"
    if isinstance(value, float):
        return f"{value:g}s" if value >= 1 or value == 0 else f"{value * 1000:g}ms"
    if isinstance(value, int) and field == "upstream_concurrency":
        return str(value or "off")
    if isinstance(value, int) and field == "listen_mode":
        return f"{value:04o}"
    if isinstance(value, int) and field.endswith("_bytes"):
        return _shown_size(value)
    return str(value)


def _shown_size(n_bytes: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n_bytes % 2**power == 0:
            return f"{n_bytes >> power}{unit}"
    return str(n_bytes)
