"""The fields of keys, teams and users as callers give them (JSON), and as they are shown.

    read_fields()   what was given, checked, as attributes of model.py. An error names the field; nothing is taken then
    view()          an account as JSON

Knows: each field, its values, and how a message says what was expected. Does not know: who asks, or what follows.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import orjson

from velox.accounts.model import TEAM_ADMIN, Account, Bounds, Key, Kind, User
from velox.policy import spellings
from velox.policy.budget import NANO_PER_USD, TOTAL, BudgetError, parse_budget, period_text
from velox.policy.spellings import Spelling, filled, is_endpoint, whole
from velox.types import Budget, Priority, Rates

__all__ = [
    "EMAIL",
    "FIELDS",
    "MOST_BUDGETS",
    "MOST_LISTED",
    "NAME",
    "RATES",
    "RATE_OF",
    "FieldError",
    "read_fields",
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


Reader: TypeAlias = Callable[[object], object]


def _text(spelling: Spelling) -> Reader:
    def read(value: object) -> str:
        if not isinstance(value, str) or not spelling.matches(value):
            raise ValueError(f"expected {spelling.expected}")
        return value

    return read


def _optional(read: Reader, none: object) -> Reader:
    """Return a reader that takes null, and an empty text, for a field that is not set."""
    return lambda value: none if value is None or value == "" else read(value)


def _texts(spelling: Spelling, most: int) -> Reader:
    def read(value: object) -> tuple[str, ...]:
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, str) and spelling.matches(each) for each in value):
            raise ValueError(f"expected a list: {spelling.expected}")
        if len(value) > most:
            raise ValueError(f"expected at most {most}")
        return tuple(dict.fromkeys(value))

    return read


def _endpoints(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) and is_endpoint(each) for each in value):
        raise ValueError("expected a list of groups of endpoints, or of paths with * for any text, as /v1/files*")
    if len(value) > MOST_LISTED:
        raise ValueError(f"expected at most {MOST_LISTED}")
    return tuple(dict.fromkeys(value))


def _count(most: int) -> Reader:
    def read(value: object) -> int:
        if value is None:
            return 0
        value = whole(value)
        # True is an int of Python, and no number of JSON.
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ValueError(f"expected a whole number from 1 to {most}, or null for no such limit")
        return value

    return read


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


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


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


_COMMON: Final[Mapping[str, Reader]] = {
    "models": _texts(spellings.MODEL_PATTERN, MOST_LISTED),
    "endpoints": _endpoints,
    "tags": _texts(spellings.TAG, spellings.MOST_TAGS),
    "priority": _priority,
    "budgets": _budgets,
    "metadata": _metadata,
    **{name: _count(most) for name, most in RATES.items()},
}
FIELDS: Final[Mapping[Kind, Mapping[str, Reader]]] = {
    "key": {
        "name": _optional(_text(spellings.KEY_NAME), ""),
        "team": _optional(_text(spellings.OWNER), ""),
        "user": _optional(_text(spellings.OWNER), ""),
        "role": _role,
        "expires": _moment,
        **_COMMON,
    },
    "team": {"name": _optional(_text(NAME), ""), **_COMMON},
    "user": {"name": _optional(_text(NAME), ""), "email": _optional(_text(EMAIL), ""), **_COMMON},
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
        read = known.get(name)
        if read is None:
            raise FieldError(str(name)[:64], f"there is no such field of a {kind}; there are {', '.join(known)}")
        try:
            values[_ATTRIBUTES.get(name, name)] = read(value)
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
