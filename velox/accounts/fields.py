"""The fields of keys, teams and users as callers give them (JSON), and as they are shown.

    FIELDS          each field once: how it is checked, its JSON Schema for OpenAPI, and what --help says of it
    read_fields()   what was given, checked, as attributes of model.py. An error names the field; nothing is taken then
    view()          an account as JSON

Knows: each field, its values, and how a message says what was expected. Does not know: who asks, or what follows.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from velox.accounts.model import TEAM_ADMIN, Account, Bounds, Key, Kind, User
from velox.policy import spellings
from velox.policy.budgets.budget import NANO_PER_USD, TOTAL, BudgetError, parse_budget, period_text
from velox.policy.spellings import Spelling, filled, is_endpoint, whole
from velox.types import Budget, Priority, Rates

__all__ = [
    "EMAIL",
    "FIELDS",
    "LIMITS",
    "MOST_BUDGETS",
    "MOST_LISTED",
    "NAME",
    "RATES",
    "RATE_OF",
    "Field",
    "FieldError",
    "Schema",
    "read_fields",
    "spelled",
    "time_text",
    "view",
]

RATES: Final[Mapping[str, int]] = {
    "rpm": spellings.MOST_RPM,
    "burst": spellings.MOST_BURST,
    "tpm": spellings.MOST_TPM,
    "tpm_burst": spellings.MOST_TPM,
    "concurrency": spellings.MOST_CONCURRENCY,
}
# Of which rate each burst is a part.
RATE_OF: Final = {"burst": "rpm", "tpm_burst": "tpm"}
_PRIORITIES: Final = {priority.name.lower(): priority for priority in Priority}
NAME: Final = Spelling(r"[^\x00-\x1f\x7f]{1,128}", "1 to 128 characters of text without control characters")
EMAIL: Final = Spelling(r"[^\s@\x00-\x1f\x7f]{1,64}@[^\s@\x00-\x1f\x7f]{1,190}", "an address of mail")
MOST_LISTED: Final = 1000
MOST_BUDGETS: Final = 16
_METADATA_BYTES: Final = 16 * 1024
# Lists and objects in each other. An encoder of JSON has a limit too, and lists of accounts are deeper than one.
_METADATA_DEPTH: Final = 32
_FAR_S: Final = 253_370_764_800  # the year 9999


class FieldError(ValueError):
    """A field can't be taken. field: its name. The message says what was expected, and never shows the value."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: {expected}")
        self.field: Final = field
        self.expected: Final = expected


Schema: TypeAlias = Mapping[str, object]
Reader: TypeAlias = Callable[[object], object]


class Field(NamedTuple):
    """One field: how it is checked, how OpenAPI and --help describe it.

    read: returns the value as model.py has it; raises ValueError, which says what was expected. schema: JSON Schema
    (draft 2020-12) of all that `read` takes. about: what it is, in a few words.
    """

    read: Reader
    schema: Schema
    about: str


def spelled(spelling: Spelling, *, optional: bool = False) -> Schema:
    """Return the schema of a text. optional: it may be empty, or null."""
    if optional:
        return {"type": ["string", "null"], "pattern": f"^(?:{spelling.pattern})?$"}
    return {"type": "string", "pattern": f"^(?:{spelling.pattern})$"}


def _text(spelling: Spelling, about: str) -> Field:
    """Return the field of a text; null, and an empty text, is a field that is not set."""

    def read(value: object) -> str:
        if value is None or value == "":
            return ""
        if not isinstance(value, str) or not spelling.matches(value):
            raise ValueError(f"expected {spelling.expected}")
        return value

    return Field(read, spelled(spelling, optional=True), about)


def _list(is_one: Callable[[str], object], item: Schema, expected: str, most: int, about: str) -> Field:
    """Return the field of a list of texts, each of them once. is_one: true of what an item may be; item: its schema."""

    def read(value: object) -> tuple[str, ...]:
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, str) and is_one(each) for each in value):
            raise ValueError(f"expected a list{expected}")
        if len(value) > most:
            raise ValueError(f"expected at most {most}")
        return tuple(dict.fromkeys(value))

    return Field(read, {"type": ["array", "null"], "items": item, "maxItems": most}, about)


def _texts(spelling: Spelling, most: int, about: str) -> Field:
    return _list(spelling.matches, spelled(spelling), f": {spelling.expected}", most, about)


def _endpoints(about: str) -> Field:
    item = {"anyOf": [{"enum": sorted(spellings.ENDPOINT_GROUPS)}, spelled(spellings.ENDPOINT_PATH)]}
    expected = " of groups of endpoints, or of paths with * for any text, as /v1/files*"
    return _list(is_endpoint, item, expected, MOST_LISTED, about)


def _count(most: int, about: str) -> Field:
    def read(value: object) -> int:
        if value is None:
            return 0
        value = whole(value)
        # True is an int of Python, and no number of JSON.
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ValueError(f"expected a whole number from 1 to {most}, or null for no such limit")
        return value

    return Field(read, {"type": ["integer", "null"], "minimum": 1, "maximum": most}, about)


def _priority(value: object) -> Priority | None:
    if value is None:
        return None
    found = _PRIORITIES.get(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("expected high, normal or low")
    return found


def _role(value: object) -> str:
    if value is None or value == "":
        return ""
    if value != TEAM_ADMIN:
        raise ValueError(f"expected {TEAM_ADMIN}, or null")
    return TEAM_ADMIN


def _moment(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            found = datetime.datetime.fromisoformat(value)
        except ValueError:
            found = None
        if found is not None and (found.tzinfo is not None or len(value) == len("2027-01-31")):
            if found.tzinfo is None:
                found = found.replace(tzinfo=datetime.UTC)
            seconds = found.timestamp()
            if 0 < seconds < _FAR_S:
                return -int(-seconds // 1)
    raise ValueError("expected a date such as 2027-01-31, or 2027-01-31T12:00:00Z, or null")


def _metadata(value: object) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    try:
        size = len(orjson.dumps(value))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("expected an object of JSON") from None
    if size > _METADATA_BYTES:
        raise ValueError(f"expected at most {_METADATA_BYTES} bytes of JSON")
    if _depth(value) > _METADATA_DEPTH:
        raise ValueError(f"expected objects and lists at most {_METADATA_DEPTH} deep in each other")
    return value


def _depth(value: object) -> int:
    """Return how many objects and lists are in each other, of what an encoder of JSON has taken: not too many."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _budgets(value: object) -> tuple[Budget, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError('expected a list of budgets such as {"usd": 20, "window": "month"}')
    if len(value) > MOST_BUDGETS:
        raise ValueError(f"expected at most {MOST_BUDGETS}")
    return tuple(map(parse_budget, value))


_EXPIRES: Final[Schema] = {
    "anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}, {"type": "null"}]
}
_BUDGETS: Final[Schema] = {
    "type": ["array", "null"],
    "items": {"$ref": "#/components/schemas/Budget"},  # velox.admin.api.schemas
    "maxItems": MOST_BUDGETS,
}
_ABOUT_RATES: Final[Mapping[str, str]] = {
    "rpm": "requests a minute",
    "burst": "requests at once",
    "tpm": "tokens a minute",
    "tpm_burst": "tokens at once",
    "concurrency": "requests at a time",
}
# Of keys, teams and users.
LIMITS: Final[Mapping[str, Field]] = {
    "models": _texts(spellings.MODEL_PATTERN, MOST_LISTED, "models that may be asked for, `*` for any text; none: all"),
    "endpoints": _endpoints("groups of endpoints, or patterns of paths; none: the default"),
    "tags": _texts(spellings.TAG, spellings.MOST_TAGS, "what spend is also counted by"),
    "priority": Field(_priority, {"enum": [*_PRIORITIES, None]}, "high, normal or low"),
    "budgets": Field(_budgets, _BUDGETS, "how much may be spent; all of them hold"),
    "metadata": Field(_metadata, {"type": ["object", "null"]}, "an object of JSON; yours, Velox reads none of it"),
    **{name: _count(most, _ABOUT_RATES[name]) for name, most in RATES.items()},
}
FIELDS: Final[Mapping[Kind, Mapping[str, Field]]] = {
    "key": {
        "name": _text(spellings.KEY_NAME, "for people and rules, in logs and records"),
        "team": _text(spellings.OWNER, "id of its team"),
        "user": _text(spellings.OWNER, "id of its user"),
        "role": Field(
            _role, {"enum": [TEAM_ADMIN, "", None]}, "team_admin: it manages the keys of its team by the API"
        ),
        "expires": Field(_moment, _EXPIRES, "when it ends: 2027-01-31, or 2027-01-31T12:00:00Z; from 1970"),
        **LIMITS,
    },
    "team": {"name": _text(NAME, "for people"), **LIMITS},
    "user": {"name": _text(NAME, "for people"), "email": _text(EMAIL, "address of mail"), **LIMITS},
}
# What an attribute is called where that differs.
_ATTRIBUTES: Final = {"expires": "expires_s"}


def read_fields(kind: Kind, fields: Mapping[str, object], now: Rates) -> dict[str, Any]:
    """Return the attributes that fields give. now: the rates that it has, which those given are put into.

    Raises FieldError with the first field that is wrong, or that there is not.
    """
    known = FIELDS[kind]
    values: dict[str, Any] = {}
    for name, value in fields.items():
        field = known.get(name)
        if field is None:
            raise FieldError(str(name)[:64], f"there is no such field of a {kind}; there are {', '.join(known)}")
        try:
            values[_ATTRIBUTES.get(name, name)] = field.read(value)
        except BudgetError as exc:
            raise FieldError(f"budgets.{exc.field}", exc.expected) from None
        except ValueError as exc:
            raise FieldError(name, str(exc)) from None
    given = {name: values.pop(name) for name in RATES if name in values}
    if given:
        values["rates"] = _rates(given, now)
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


def view(account: Account) -> dict[str, object]:
    """Return an account as it is shown. Nothing of it is secret."""
    rates = {name: getattr(account.rates, name) or None for name in RATES}
    shown: dict[str, object] = {"id": account.id, "name": account.name or None}
    if isinstance(account, Key):
        shown |= {
            "hint": account.hint,
            "team": account.team or None,
            "user": account.user or None,
            "role": account.role or None,
            "expires": None if account.expires_s is None else time_text(account.expires_s),
            "set_by_admin": None if account.bounds is None else _bounds(account.bounds),
        }
    if isinstance(account, User):
        shown["email"] = account.email or None
    return {
        **shown,
        "models": list(account.models),
        "endpoints": list(account.endpoints),
        "tags": list(account.tags),
        **rates,
        "priority": None if account.priority is None else account.priority.name.lower(),
        "budgets": [_budget(each) for each in account.budgets],
        "metadata": dict(account.metadata),
        "blocked": account.is_blocked,
        "created": time_text(account.created_s),
        "updated": time_text(account.updated_s),
    }


def _bounds(bounds: Bounds) -> dict[str, object]:
    """Return what is set of the bounds of a key, as view() shows the same of the key."""
    shown = {
        "models": list(bounds.models),
        "endpoints": list(bounds.endpoints),
        "tags": list(bounds.tags),
        **{name: getattr(bounds.rates, name) for name in RATES},
        "priority": None if bounds.priority is None else bounds.priority.name.lower(),
        "budgets": [_budget(each) for each in bounds.budgets],
        "expires": None if bounds.expires_s is None else time_text(bounds.expires_s),
        "blocked": bounds.is_blocked,
    }
    return {name: value for name, value in shown.items() if value}


def _budget(budget: Budget) -> dict[str, object]:
    """Return a budget as parse_budget() takes it."""
    limit: dict[str, object] = {"tokens": budget.limit_tokens}
    if budget.limit_nano is not None:
        whole, part = divmod(budget.limit_nano, NANO_PER_USD)
        limit = {"usd": f"{whole}.{part:09d}".rstrip("0").removesuffix(".")}
    has_zone = isinstance(budget.window, str) and budget.window != TOTAL
    more: dict[str, object] = {"zone": budget.zone} if has_zone else {}
    if budget.start_s:
        more["starts"] = time_text(budget.start_s)
    if budget.limit_nano is not None:
        more["unpriced"] = "refuse" if budget.refuses_unpriced else "allow"
    if budget.soft:
        more["soft"] = list(budget.soft)
    return {**limit, "window": period_text(budget), **more, "strict": budget.strict}


def time_text(time_s: int) -> str:
    """Return a Unix time as RFC 3339 has it."""
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
