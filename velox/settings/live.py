"""Which settings a reload changes, which need a restart, and how a difference is described.

Knows: which fields are live. Does not know: who reads the settings again, or what follows from a change.

Sizes (workers, shares, shared memory) and listeners can't change in a running gateway. A field that needs a restart
keeps its value, also in workers that start later: all workers use the same settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from velox.settings.model import VARIABLES, Settings
from velox.types import KeyEntry, Secret

__all__ = ["LIVE", "Changes", "changes", "taken"]

# Besides the keys of clients: see _keys_can_change.
_NESTED: Final = ("upstreams", "routes", "own_prices", "prices_version")
LIVE: Final = frozenset({*_NESTED, *(variable.field for variable in VARIABLES if variable.is_live)})
# api_keys: compared separately. origins: the source of a value is not the value.
_NOT_COMPARED: Final = frozenset({"api_keys", "origins", "config_file"})
_ACCESS_LOG: Final = ("access_log", "access_log_sample_percent", "access_log_slow_s")
_VARIABLE_OF: Final = {variable.field: variable for variable in VARIABLES}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new reading of the settings changes.

    live: one text each, such as "upstream azure: added"; none: nothing changes. summary: all of them in one.
    restart: fields, as the file calls them, that need a restart.
    """

    live: tuple[str, ...]
    summary: str
    restart: tuple[str, ...]


def taken(running: Settings, found: Settings) -> Settings:
    """Return the settings after a reload: live fields from `found`, all others from `running`."""
    values = {name: getattr(found, name) for name in LIVE}
    if _keys_can_change(running, found):
        values["api_keys"] = found.api_keys
    return replace(running, **values)


def changes(running: Settings, found: Settings) -> Changes:
    """Return what `taken` changes, and what it does not."""
    live: list[str] = []
    counts: list[str] = []
    restart = [
        variable.key
        for name, variable in _VARIABLE_OF.items()
        if name not in LIVE | _NOT_COMPARED
        # A default that follows from another field is as that one is.
        and not running.origins[variable.name] == found.origins[variable.name] == "default"
        and _differs(running, found, name)
    ]
    before, now = _fixed(running.api_keys), _fixed(found.api_keys)
    keys_can_change = _keys_can_change(running, found)
    if before != now and not keys_can_change:
        restart.append("api_keys")
    for kind, old, new in (
        ("upstream", {each.name: each for each in running.upstreams}, {each.name: each for each in found.upstreams}),
        ("route", {each.name: each for each in running.routes}, {each.name: each for each in found.routes}),
        ("limit", {each.name: each for each in running.limit_rules}, {each.name: each for each in found.limit_rules}),
        ("budget", {each.name: each for each in running.budgets}, {each.name: each for each in found.budgets}),
        ("key", before, now if keys_can_change else before),
    ):
        lines, count = _compared(kind, old, new)
        live += lines
        counts += [count] if count else []
    names = ([each.name for each in running.routes], [each.name for each in found.routes])
    if _order(*names) != _order(*reversed(names)):
        live.append("routes: another order")
        counts.append("another order of routes")
    for name in _ACCESS_LOG:
        if _differs(running, found, name):
            variable = _VARIABLE_OF[name]
            value = getattr(found, name)
            live.append(f"{variable.key}: {value if isinstance(value, str) else f'{value:g}'}")
            counts.append(variable.key)
    if (running.prices, running.own_prices) != (found.prices, found.own_prices):
        live.append(f"prices: {len(found.own_prices)} of the file")
        counts.append("prices")
    return Changes(tuple(live), "; ".join(counts), tuple(restart))


def _keys_can_change(running: Settings, found: Settings) -> bool:
    """True if clients need a key before and after: a reload never turns authentication on or off.

    The keys of VELOX_API_KEYS_FILE come and go by themselves (runtime/keys/credentials.py).
    """
    stay = running.managed_keys or any(key.in_file for key in running.api_keys)
    return running.requires_keys and bool(_fixed(found.api_keys) or stay)


def _fixed(keys: Iterable[KeyEntry]) -> dict[str, tuple[KeyEntry, ...]]:
    """Return the keys of the configuration itself, by what logs call them: several may share a name."""
    found: dict[str, tuple[KeyEntry, ...]] = {}
    for key in keys:
        if key.is_fixed:
            found[key.caller_name] = (*found.get(key.caller_name, ()), key)
    return found


def _compared(kind: str, before: Mapping[str, T], now: Mapping[str, T]) -> tuple[list[str], str]:
    """Return a line for each that is not as it was, and all of them counted."""
    lines: dict[str, list[str]] = {"added": [], "changed": [], "removed": []}
    for name, entry in now.items():
        if name not in before:
            lines["added"].append(f"{kind} {name}: added")
        elif before[name] != entry:
            lines["changed"].append(f"{kind} {name}: changed")
    lines["removed"] = [f"{kind} {name}: removed" for name in before if name not in now]
    counts = [f"{len(found)} {what}" for what, found in lines.items() if found]
    return [line for found in lines.values() for line in found], f"{kind}s: {', '.join(counts)}" if counts else ""


def _order(names: Sequence[str], others: Iterable[str]) -> list[str]:
    common = set(others)
    return [name for name in names if name in common]


def _differs(running: Settings, found: Settings, name: str) -> bool:
    before, now = getattr(running, name), getattr(found, name)
    if isinstance(before, Secret) and isinstance(now, Secret):
        return before.reveal() != now.reveal()
    return bool(before != now)
