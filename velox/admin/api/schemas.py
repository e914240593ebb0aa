"""What goes in and out of the API, as JSON Schema says it (draft 2020-12, as OpenAPI 3.1 uses it).

Knows: shapes, and what goes together. Does not know: the fields of keys, teams and users: accounts/objects.py has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from velox.accounts.fields import ALL_FIELDS, OBJECTS, RATE_OF
from velox.accounts.model import Kind
from velox.accounts.objects import NEW
from velox.admin.api.routes import Schema
from velox.ledger.report import CALL_NAMES, TOKEN_NAMES
from velox.ledger.store import DIMENSIONS
from velox.policy.budgets.budget import CALENDAR, TOTAL

__all__ = [
    "BUDGET_STATE",
    "CALL",
    "CHANGE",
    "COMPONENTS",
    "CONFIGURATION",
    "DELETED",
    "ERROR",
    "RUNNING",
    "USAGE",
    "WHOSE",
    "account",
    "given",
    "listed",
    "made",
    "ref",
]

_TEXT: Final[Schema] = {"type": "string"}
_TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
# A field that is not set: null, and "" where an empty text says the same.
_NULL: Final[Schema] = {"type": "null"}
_USD: Final[Schema] = {"type": ["string", "null"], "pattern": r"^-?[0-9]+\.[0-9]{9}$"}


def ref(name: str) -> Schema:
    """Return a reference to one of COMPONENTS."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Mapping[str, Schema], *, required: bool = True) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others. required: all of them are there."""
    more = {"required": list(properties)} if required else {}
    return {"type": "object", "properties": dict(properties), "additionalProperties": False, **more}


def _unless(first: str, second: Schema) -> Schema:
    """Return what holds where a property is not set, or the second schema does."""
    return {"anyOf": [{"properties": {first: {"enum": [None, ""]}}}, second]}


def _has(name: str, schema: Schema) -> Schema:
    return {"required": [name], "properties": {name: schema}}


# Of usd and tokens one; a zone and a start where the window may have one.
_BUDGET_RULES: Final[Sequence[Schema]] = (
    {
        "oneOf": [
            {"required": ["usd"], "properties": {"usd": {"not": _NULL}}},
            {"required": ["tokens"], "properties": {"tokens": {"not": _NULL}}},
        ]
    },
    _unless("unpriced", {"properties": {"tokens": _NULL}}),
    _unless("zone", {"properties": {"window": {"enum": [each for each in CALENDAR if each != TOTAL]}}}),
    _unless("starts", {"properties": {"window": {"not": {"enum": list(CALENDAR)}}}}),
)
_OBJECTS: Final = tuple(OBJECTS.values())
# What the structs say of themselves (velox/accounts/objects.py).
_OWN: Final[Mapping[str, Any]] = msgspec.json.schema_components(_OBJECTS, ref_template="#/components/schemas/{name}")[1]


def _properties(kind: Kind, which: Callable[[str], bool]) -> dict[str, Schema]:
    """Return the properties of a struct. which: takes what `only` says of a field (accounts/objects.py)."""
    fields = ALL_FIELDS[kind]
    return {name: schema for name, schema in _OWN[kind.title()]["properties"].items() if which(fields[name].only)}


ERROR: Final[Schema] = _object(
    {"error": _object({"code": _TEXT, "message": _TEXT, "field": {**_TEXT_OR_NULL, "description": "that is wrong"}})}
)
DELETED: Final[Schema] = _object({"id": _TEXT, "deleted": {"const": True}})
_SUMS: Final[Mapping[str, Schema]] = {
    **dict.fromkeys(("calls", "errors", "estimated", "input_tokens", "output_tokens", "cached_tokens"), _COUNT),
    **dict.fromkeys(("cache_written_tokens", "reasoning_tokens"), _COUNT),
    "unpriced": {**_COUNT, "description": "calls without a price, which are in no cost"},
    "cost_usd": _USD,
}
USAGE: Final[Schema] = {
    **_object({**dict.fromkeys(DIMENSIONS, _TEXT), **_SUMS}, required=False),
    "required": list(_SUMS),
}
_NUMBERS: Final = ("attempt", "started_us", "status", "first_byte_ms", "duration_ms")
_CALL_TEXTS: Final[Mapping[str, Schema]] = {
    "key_id": {**_TEXT, "description": "as /api/v1/keys has it; of a key of the settings, the start of its digest"},
    "tier": {**_TEXT, "description": "service tier that the reply tells; of pictures and videos quality and size"},
    "cost_usd": _USD,
    "cost_state": {"enum": ["exact", "estimated", "unknown"]},
    "price": {**_TEXT, "description": "where the price stands, in the table or file of the version `prices`"},
}
CALL: Final[Schema] = _object(
    {
        name: {"type": ["integer", "null"]} if name in _NUMBERS or name in TOKEN_NAMES else _CALL_TEXTS.get(name, _TEXT)
        for name in CALL_NAMES
    }
)
_AMOUNT: Final[Schema] = {"type": ["integer", "string"], "description": "tokens, or dollars with nine places"}
BUDGET_STATE: Final[Schema] = _object(
    {
        "scope": {"enum": ["gateway", "key", "team", "user", "tag", "model"]},
        "id": _TEXT,
        "name": _TEXT,
        "budget": {**_TEXT, "description": "which one, as refusals and `velox check` call it"},
        "window": _TEXT,
        "zone": _TEXT,
        "window_start": _TIME,
        "window_end": {"type": ["string", "null"], "format": "date-time"},
        "unit": {"enum": ["usd", "tokens"]},
        "limit": _AMOUNT,
        "spent": {**_AMOUNT, "description": "by all gateways, as far as this one knows"},
        "held": {**_AMOUNT, "description": "by requests that run"},
        "left": {**_AMOUNT, "description": "while `state` is redis_down: what this gateway surely may still spend"},
        "state": {
            "enum": ["known", "redis_down", "unread"],
            "description": "redis_down: what others have spent since is not known; unread: nor what was spent before",
        },
    }
)
CHANGE: Final[Schema] = _object(
    {
        "number": _COUNT,
        "time": _TIME,
        "actor": _TEXT,
        "action": _TEXT,
        "kind": {"enum": ["key", "team", "user"]},
        "object_id": _TEXT,
        "before": {"type": ["object", "null"]},
        "after": {"type": ["object", "null"]},
    }
)


# A new key has one of these: a call that says nothing would make a key of nobody, without any limit.
WHOSE: Final = ("name", "id", "team", "user")


def given(kind: Kind, *, is_new: bool) -> Schema:
    """Return the schema of what is given to make one, or to change it."""
    found = _object(_properties(kind, lambda only: not only or (is_new and only == NEW)), required=False)
    if not is_new:  # a rate that it has already counts, too
        return {
            **found,
            "allOf": [_unless(burst, {"properties": {rate: {"type": "integer"}}}) for burst, rate in RATE_OF.items()],
        }
    rules = [_unless(burst, _has(rate, {"type": "integer"})) for burst, rate in RATE_OF.items()]
    if kind == "key":
        said = {"type": "string", "minLength": 1}
        rules += [
            {"anyOf": [_has(name, said) for name in WHOSE]},
            _unless("role", _has("team", said)),
            _unless("key", {"properties": {"digest": _NULL}}),
        ]
    return {**found, "allOf": rules}


def account(kind: Kind) -> Schema:
    """Return the schema of one as it is shown."""
    return _object({"id": _TEXT, **_properties(kind, lambda only: only != NEW)})


def made() -> Schema:
    """Return the schema of a key that was made or rotated: with what its client presents, this once."""
    shown = account("key")
    secret = {"key": {**_TEXT_OR_NULL, "description": "what the client presents; it is never shown again"}}
    return _object({**shown["properties"], **secret})


def listed(item: Schema) -> Schema:
    """Return the schema of a page of a list."""
    cursor = {**_TEXT_OR_NULL, "description": "for the next page; null: this is the last one"}
    return _object({"data": {"type": "array", "items": item}, "cursor": cursor})


# A request that has not ended, as profiling/running.py has it.
_REQUEST: Final = _object(
    {
        "id": _TEXT,
        "phase": _TEXT,
        "age_s": {"type": "number"},
        "route": _TEXT,
        "route_name": _TEXT,
        "upstream": _TEXT,
        "model": _TEXT,
        "key": _TEXT,
        "key_id": _TEXT,
        "attempts": _COUNT,
        "tried": {"type": "array", "items": _TEXT},
        "stream": {"type": "boolean"},
        "websocket": {"type": "boolean"},
        "bytes_in": _COUNT,
        "bytes_out": _COUNT,
        "address": _TEXT,
        "worker": _COUNT,
    }
)
RUNNING: Final = _object(
    {
        "data": {"type": "array", "items": _REQUEST},
        "total": _COUNT,
        "missing": {"type": "array", "items": _COUNT, "description": "workers that did not answer"},
    }
)
_LINES: Final[Schema] = {"type": "array", "items": _TEXT}
CONFIGURATION: Final = _object(
    {
        "settings": {"type": "array", "items": _object({"name": _TEXT, "value": _TEXT, "origin": _TEXT})},
        "upstreams": _LINES,
        "routes": _LINES,
        "limits": _LINES,
        "budgets": _LINES,
    }
)

COMPONENTS: Final[Mapping[str, Schema]] = {
    "Budget": {**_OWN["Budget"], "allOf": list(_BUDGET_RULES)},
    "SetByAdmin": _OWN["SetByAdmin"],
    "Key": account("key"),
    "MadeKey": made(),
    "Team": account("team"),
    "User": account("user"),
    "Change": CHANGE,
    "Usage": USAGE,
    "Call": CALL,
    "BudgetState": BUDGET_STATE,
    "Deleted": DELETED,
    "Running": RUNNING,
    "Ended": _object({"id": _TEXT, "ended": {"const": True}}),
    "Configuration": CONFIGURATION,
    "Purged": _object({"purged": {**_COUNT, "description": "answers that nobody finds any more"}}),
    "Error": ERROR,
}
