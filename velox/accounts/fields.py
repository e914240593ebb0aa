"""Keys, teams and users as callers give them (JSON), checked, and as they are shown.

    FIELDS          the fields that may be given, by kind (objects.py)
    read_object()   what was given, checked. An error names the field; nothing is taken then
    attributes()    the same as attributes of model.py
    view()          an account as JSON

Knows: how a message says what was expected, and what the types of objects.py can't say. Does not know: who asks, or
what follows.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import orjson
from msgspec import UNSET

from velox.accounts import objects
from velox.accounts.model import Account, Bounds, Key, Kind, User
from velox.accounts.objects import EXPECTED, NEW, ONLY
from velox.policy.budgets.budget import NANO_PER_USD, TOTAL, BudgetError, parse_budget, period_text
from velox.policy.spellings import filled, whole
from velox.types import NO_RATES, Budget, Priority, Rates

__all__ = [
    "ALL_FIELDS",
    "FIELDS",
    "OBJECTS",
    "RATES",
    "RATE_OF",
    "AccountObject",
    "Field",
    "FieldError",
    "attributes",
    "read_fields",
    "read_object",
    "time_text",
    "view",
]

AccountObject: TypeAlias = objects.Key | objects.Team | objects.User

OBJECTS: Final[Mapping[Kind, type[AccountObject]]] = {
    "key": objects.Key,
    "team": objects.Team,
    "user": objects.User,
}
RATES: Final = ("rpm", "burst", "tpm", "tpm_burst", "concurrency")
# Of which rate each burst is a part.
RATE_OF: Final = {"burst": "rpm", "tpm_burst": "tpm"}
_PRIORITY_NAMES: Final[Mapping[Priority, Literal["high", "normal", "low"]]] = {
    Priority.HIGH: "high",
    Priority.NORMAL: "normal",
    Priority.LOW: "low",
}
_PRIORITIES: Final = {name: priority for priority, name in _PRIORITY_NAMES.items()}
_LISTS: Final = frozenset({"models", "endpoints", "tags"})
# Of a new one; it is no attribute, or not for whoever gives it to say.
_NO_ATTRIBUTES: Final = frozenset({"id", "key", "digest"})
_METADATA_BYTES: Final = 16 * 1024
# Lists and objects in each other. An encoder of JSON has a limit too, and lists of accounts are deeper than one.
_METADATA_DEPTH: Final = 32
_FAR_S: Final = 253_370_764_800  # the year 9999
_PLACE: Final = re.compile(r" - at `\$\.([a-z_]+)")
_MOST: Final = re.compile(r"of length <= ([0-9]+)")


class Field(NamedTuple):
    """A field of an object. about: what it is. expected: what a message says of it. only: "new", "shown", or ""."""

    about: str
    expected: str
    only: str
    is_list: bool


def _fields(made: type[AccountObject]) -> dict[str, Field]:
    """Return the fields of an object."""
    found = {}
    for each in msgspec.structs.fields(made):
        (told,) = (meta for meta in each.type.__metadata__ if meta.description)
        extra = told.extra or {}
        found[each.name] = Field(told.description, extra.get(EXPECTED, ""), extra.get(ONLY, ""), each.name in _LISTS)
    return found


ALL_FIELDS: Final[Mapping[Kind, Mapping[str, Field]]] = {kind: _fields(made) for kind, made in OBJECTS.items()}
# Those that may be given, also to change one.
FIELDS: Final[Mapping[Kind, Mapping[str, Field]]] = {
    kind: {name: field for name, field in fields.items() if not field.only} for kind, fields in ALL_FIELDS.items()
}


class FieldError(ValueError):
    """A field can't be taken. field: its name. The message says what was expected, and never shows the value."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: {expected}")
        self.field: Final = field
        self.expected: Final = expected


def read_object(kind: Kind, fields: Mapping[str, object], *, is_new: bool = False) -> AccountObject:
    """Return what fields give. is_new: also its id, and of a key what its client presents.

    Raises FieldError with the first field that is wrong, or that there is not.
    """
    for name in fields:
        field = ALL_FIELDS[kind].get(name)
        if field is None or (field.only and not (is_new and field.only == NEW)):
            raise FieldError(str(name)[:64], f"there is no such field of a {kind}; there are {', '.join(FIELDS[kind])}")
    given = {name: whole(value) if name in RATES else value for name, value in fields.items()}
    # Before the types are asked: how deep it is, and the messages of whoever reads budgets.
    _check_metadata(given.get("metadata"))
    if isinstance(budgets := given.get("budgets"), list):
        given["budgets"] = [_checked_budget(each) if isinstance(each, dict) else each for each in budgets]
    try:
        found = msgspec.convert(given, OBJECTS[kind])
    except msgspec.ValidationError as exc:
        raise _refused(kind, str(exc)) from None
    if isinstance(found, objects.Key) and isinstance(found.expires, str):
        _moment_s(found.expires)
    return found


def _refused(kind: Kind, message: str) -> FieldError:
    """Return what msgspec refuses, in our words: it shows the pattern of a text, and may show a value."""
    place, most = _PLACE.search(message), _MOST.search(message)
    name = place[1] if place else ""
    return FieldError(name, f"expected at most {most[1]}" if most else ALL_FIELDS[kind][name].expected)


def _moment_s(text: str) -> int:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is not None and (found.tzinfo is not None or len(text) == len("2027-01-31")):
        if found.tzinfo is None:
            found = found.replace(tzinfo=datetime.UTC)
        seconds = found.timestamp()
        if 0 < seconds < _FAR_S:
            return -int(-seconds // 1)
    raise FieldError("expires", ALL_FIELDS["key"]["expires"].expected)


def _check_metadata(value: object) -> None:
    if not isinstance(value, dict):
        return
    try:
        size = len(orjson.dumps(value))
    except (TypeError, ValueError, RecursionError):
        raise FieldError("metadata", "expected an object of JSON") from None
    if size > _METADATA_BYTES:
        raise FieldError("metadata", f"expected at most {_METADATA_BYTES} bytes of JSON")
    if _depth(value) > _METADATA_DEPTH:
        raise FieldError("metadata", f"expected objects and lists at most {_METADATA_DEPTH} deep in each other")


def _depth(value: object) -> int:
    """Return how many objects and lists are in each other, of what an encoder of JSON has taken: not too many."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _checked_budget(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a budget that can be read. Raises FieldError."""
    try:
        parse_budget(fields)
    except BudgetError as exc:
        raise FieldError(f"budgets.{exc.field}", exc.expected) from None
    soft = fields.get("soft")
    return {
        **{name: whole(value) for name, value in fields.items()},
        "soft": [whole(each) for each in soft] if isinstance(soft, list) else whole(soft),
    }


def read_fields(kind: Kind, fields: Mapping[str, object], now: Rates) -> dict[str, Any]:
    """Return the attributes that fields give: see read_object() and attributes(). Raises FieldError."""
    return attributes(read_object(kind, fields), now)


def attributes(given: AccountObject, now: Rates = NO_RATES) -> dict[str, Any]:
    """Return what an object gives as attributes of model.py.

    now: the rates that it has, which those given are put into. Raises FieldError for a burst without its rate.
    """
    values: dict[str, Any] = {}
    rates: dict[str, int] = {}
    for name in given.__struct_fields__:
        value = getattr(given, name)
        if value is UNSET or name in _NO_ATTRIBUTES:
            continue
        if name in RATES:
            rates[name] = value or 0
        elif name in _LISTS:
            values[name] = tuple(dict.fromkeys(value or ()))
        elif name == "budgets":
            values[name] = tuple(parse_budget(msgspec.to_builtins(each)) for each in value or ())
        elif name == "priority":
            values[name] = _PRIORITIES.get(value)
        elif name == "metadata":
            values[name] = value or {}
        elif name == "expires":
            values["expires_s"] = None if value is None else _moment_s(value)
        else:
            values[name] = value or ""
    if rates:
        values["rates"] = _rates(rates, now)
    return values


def _rates(given: Mapping[str, int], now: Rates) -> Rates:
    before = {name: getattr(now, name) for name in RATES}
    for burst, rate in RATE_OF.items():
        if rate in given and burst not in given:
            before[burst] = 0  # it was a part of the rate before
    rates = {**before, **given}
    for burst, rate in RATE_OF.items():
        if given.get(burst) and not rates[rate]:
            raise FieldError(burst, f"expected {rate} with it: a burst is how much of a rate may come at once")
    return filled(Rates(**rates))


def view(account: Account) -> dict[str, Any]:
    """Return an account as it is shown. Nothing of it is secret."""
    found: dict[str, Any] = msgspec.to_builtins(_shown(account))
    return found


def _shown(account: Account) -> AccountObject:
    common: dict[str, Any] = {
        **{name: getattr(account.rates, name) or None for name in RATES},
        "id": account.id,
        "name": account.name or None,
        "models": list(account.models),
        "endpoints": list(account.endpoints),
        "tags": list(account.tags),
        "priority": None if account.priority is None else _PRIORITY_NAMES[account.priority],
        "budgets": [*map(_budget, account.budgets)],
        "metadata": dict(account.metadata),
        "blocked": account.is_blocked,
        "created": time_text(account.created_s),
        "updated": time_text(account.updated_s),
    }
    if isinstance(account, Key):
        return objects.Key(
            **common,
            hint=account.hint,
            team=account.team or None,
            user=account.user or None,
            role="team_admin" if account.role else None,
            expires=None if account.expires_s is None else time_text(account.expires_s),
            set_by_admin=None if account.bounds is None else _bounds(account.bounds),
        )
    return objects.User(**common, email=account.email or None) if isinstance(account, User) else objects.Team(**common)


def _bounds(bounds: Bounds) -> objects.SetByAdmin:
    """Return what is set of the bounds of a key."""
    rates = {name: getattr(bounds.rates, name) or UNSET for name in RATES}
    return objects.SetByAdmin(
        **rates,
        models=list(bounds.models) or UNSET,
        endpoints=list(bounds.endpoints) or UNSET,
        tags=list(bounds.tags) or UNSET,
        priority=UNSET if bounds.priority is None else _PRIORITY_NAMES[bounds.priority],
        budgets=[*map(_budget, bounds.budgets)] or UNSET,
        expires=UNSET if bounds.expires_s is None else time_text(bounds.expires_s),
        blocked=bounds.is_blocked or UNSET,
    )


def _budget(budget: Budget) -> objects.Budget:
    """Return a budget as parse_budget() takes it."""
    has_zone = isinstance(budget.window, str) and budget.window != TOTAL
    found = objects.Budget(
        window=period_text(budget),
        zone=budget.zone if has_zone else UNSET,
        starts=time_text(budget.start_s) if budget.start_s else UNSET,
        soft=list(budget.soft) or UNSET,
        strict=budget.strict,
    )
    if budget.limit_nano is None:
        found.tokens = budget.limit_tokens
    else:
        dollars, part = divmod(budget.limit_nano, NANO_PER_USD)
        found.usd = f"{dollars}.{part:09d}".rstrip("0").removesuffix(".")
        found.unpriced = "refuse" if budget.refuses_unpriced else "allow"
    return found


def time_text(time_s: int) -> str:
    """Return a Unix time as RFC 3339 has it."""
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
