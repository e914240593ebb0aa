"""What goes in and out of the API, as JSON Schema says it (draft 2020-12, as OpenAPI 3.1 uses it).

Knows: shapes. Does not know: who checks a value (accounts/fields.py does, and says what was expected).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from velox.accounts.fields import RATES
from velox.accounts.model import TEAM_ADMIN, Kind
from velox.admin.api.routes import Schema
from velox.ledger.report import CALL_NAMES
from velox.ledger.store import DIMENSIONS
from velox.policy.budget import BUDGET_FIELDS, MOST_TOKENS, MOST_USD
from velox.policy.spellings import MOST_TAGS

__all__ = [
    "BUDGET_STATE",
    "CALL",
    "CHANGE",
    "COMPONENTS",
    "DELETED",
    "ERROR",
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
_TEXTS: Final[Schema] = {"type": ["array", "null"], "items": _TEXT}
_USD: Final[Schema] = {"type": ["string", "null"], "pattern": r"^-?[0-9]+\.[0-9]{9}$"}


def ref(name: str) -> Schema:
    """Return a reference to one of COMPONENTS."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Mapping[str, Schema], *, required: bool = True) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others. required: all of them are there."""
    more = {"required": list(properties)} if required else {}
    return {"type": "object", "properties": dict(properties), "additionalProperties": False, **more}


_BUDGET: Final[Mapping[str, Schema]] = {
    "usd": {"type": ["number", "string", "null"], "description": f"dollars, from 0 to {MOST_USD}; or tokens"},
    "tokens": {"type": ["integer", "string", "null"], "description": f"at most {MOST_TOKENS}; or usd"},
    "window": {"type": ["string", "integer"], "description": "24h, 30d; minute, hour, day, week, month, year; total"},
    "zone": {**_TEXT_OR_NULL, "description": "of the calendar, such as Europe/Berlin; UTC if not given"},
    "starts": {**_TEXT_OR_NULL, "description": "when a window of a given length begins"},
    "soft": {
        "type": ["array", "integer", "string", "null"],
        "items": {"type": ["integer", "string"]},
        "description": "percent at which to alert",
    },
    "strict": {
        "type": ["boolean", "string", "null"],
        "description": "hold the most that a call may cost before it is sent",
    },
    "unpriced": {"enum": ["refuse", "allow", None], "description": "what becomes of models without a price"},
}
assert set(_BUDGET) == set(BUDGET_FIELDS), "each field of a budget is described"

_LIMITS: Final[Mapping[str, Schema]] = {
    "models": {**_TEXTS, "description": "models that may be asked for, `*` for any text; none: all"},
    "endpoints": {**_TEXTS, "description": "groups of endpoints, or patterns of paths; none: the default"},
    "tags": {**_TEXTS, "maxItems": MOST_TAGS, "description": "what spend is also counted by"},
    **{name: {"type": ["integer", "null"], "minimum": 1, "maximum": most} for name, most in RATES.items()},
    "priority": {"enum": ["high", "normal", "low", None]},
    "budgets": {"type": ["array", "null"], "items": ref("Budget")},
    "metadata": {"type": ["object", "null"], "description": "yours; Velox reads none of it"},
}
_NAME: Final[Schema] = {**_TEXT_OR_NULL, "description": "for people"}
_GIVEN: Final[Mapping[Kind, Mapping[str, Schema]]] = {
    "key": {
        "name": _NAME,
        "team": {**_TEXT_OR_NULL, "description": "id of its team"},
        "user": {**_TEXT_OR_NULL, "description": "id of its user"},
        "role": {"enum": [TEAM_ADMIN, None], "description": "team_admin: it manages the keys of its team"},
        "expires": {**_TEXT_OR_NULL, "description": "2027-01-31, or 2027-01-31T12:00:00Z"},
        **_LIMITS,
    },
    "team": {"name": _NAME, **_LIMITS},
    "user": {"name": _NAME, "email": _TEXT_OR_NULL, **_LIMITS},
}
_ID: Final[Schema] = {**_TEXT_OR_NULL, "description": "yours; one is made if none is given"}
_CREDENTIALS: Final[Mapping[str, Schema]] = {
    "key": {**_TEXT_OR_NULL, "description": "what the client presents; one is made if neither is given"},
    "digest": {**_TEXT_OR_NULL, "description": "in place of key: its SHA-256 in hexadecimal"},
}
_SET_BY_ADMIN: Final[Schema] = {
    "type": ["object", "null"],
    "properties": {
        **{name: schema for name, schema in _LIMITS.items() if name != "metadata"},
        "expires": _TIME,
        "blocked": {"const": True},
    },
    "additionalProperties": False,
    "description": "what the gateway's admin has set: the team's own token only narrows it; null: the audit has it",
}
_SHOWN: Final[Mapping[str, Schema]] = {"blocked": {"type": "boolean"}, "created": _TIME, "updated": _TIME}

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
_NUMBERS: Final = ("attempt", "started_us", "status", "first_byte_ms", "duration_ms", "web_searches")
_CALL_TEXTS: Final[Mapping[str, Schema]] = {
    "key_id": {**_TEXT, "description": "as /api/v1/keys has it; of a key of the settings, the start of its digest"},
    "tier": {**_TEXT, "description": "service tier that the reply tells"},
    "cost_usd": _USD,
    "cost_state": {"enum": ["exact", "estimated", "unknown"]},
    "price": {**_TEXT, "description": "where the price stands, in the table or file of the version `prices`"},
}
CALL: Final[Schema] = _object(
    {
        name: {"type": ["integer", "null"]}
        if name in _NUMBERS or name.endswith("_tokens")
        else _CALL_TEXTS.get(name, _TEXT)
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
    more = {"id": _ID, **(_CREDENTIALS if kind == "key" else {})} if is_new else {}
    return _object({**more, **_GIVEN[kind]}, required=False)


def account(kind: Kind) -> Schema:
    """Return the schema of one as it is shown."""
    hint = {"hint": {"type": "string", "description": "its first and last characters"}} if kind == "key" else {}
    bounds = {"set_by_admin": _SET_BY_ADMIN} if kind == "key" else {}
    return _object({"id": _TEXT, **hint, **_GIVEN[kind], **bounds, **_SHOWN})


def made() -> Schema:
    """Return the schema of a key that was made or rotated: with what its client presents, this once."""
    shown = account("key")
    secret = {"key": {**_TEXT_OR_NULL, "description": "what the client presents; it is never shown again"}}
    return _object({**shown["properties"], **secret})


def listed(item: Schema) -> Schema:
    """Return the schema of a page of a list."""
    cursor = {**_TEXT_OR_NULL, "description": "for the next page; null: this is the last one"}
    return _object({"data": {"type": "array", "items": item}, "cursor": cursor})


COMPONENTS: Final[Mapping[str, Schema]] = {
    "Budget": _object(_BUDGET, required=False),
    "Key": account("key"),
    "MadeKey": made(),
    "Team": account("team"),
    "User": account("user"),
    "Change": CHANGE,
    "Usage": USAGE,
    "Call": CALL,
    "BudgetState": BUDGET_STATE,
    "Deleted": DELETED,
    "Error": ERROR,
}
