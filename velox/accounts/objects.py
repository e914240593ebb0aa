"""Keys, teams and users as callers give them and see them, in JSON: one struct each.

From a struct come the check of what is given and the answers (fields.py), the schemas of OpenAPI
(velox/admin/api/schemas.py), and the options of the commands (account_arguments.py). Of each field it says the type and
the bounds, what it is, what a message says was expected, and whether it is only given to a new one or only shown.

Knows: the fields. Does not know: what follows from them, or who asks.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from velox.policy import spellings
from velox.policy.budgets.budget import CALENDAR, MOST_SOFT, MOST_TOKENS, MOST_USD, MOST_WINDOW_S, WINDOW_UNITS_S
from velox.policy.spellings import Spelling

__all__ = [
    "EXPECTED",
    "NEW",
    "ONLY",
    "Budget",
    "Key",
    "SetByAdmin",
    "Team",
    "User",
]

_MOST_LISTED: Final = 1000
_MOST_BUDGETS: Final = 16
_LEAST_SECRET_CHARS: Final = 16

# Of a Meta's `extra`: what a message says was expected; whether a field is only given to a new one, or only shown.
EXPECTED: Final = "expected"
ONLY: Final = "only"
NEW: Final = "new"

_NAME: Final = Spelling(r"[^\x00-\x1f\x7f]{1,128}", "1 to 128 characters of text without control characters")
_EMAIL: Final = Spelling(r"[^\s@\x00-\x1f\x7f]{1,64}@[^\s@\x00-\x1f\x7f]{1,190}", "an address of mail")
_SECRET: Final = Spelling(
    f"[!-~]{{{_LEAST_SECRET_CHARS},{spellings.MOST_KEY_CHARS}}}",
    f"{_LEAST_SECRET_CHARS} to {spellings.MOST_KEY_CHARS} visible ASCII characters",
)
_DIGEST: Final = Spelling("(?:sha256:)?[0-9a-fA-F]{64}", "the SHA-256 of a key, 64 hexadecimal digits")
_ENDPOINT: Final = f"(?:{'|'.join(sorted(spellings.ENDPOINT_GROUPS))}|{spellings.ENDPOINT_PATH.pattern})"


def _like(pattern: str) -> Meta:
    """Return the bound of a text that is like this as a whole.

    Python's `$` stands before a line's end, too; that of JSON Schema (ECMA 262) does not.
    """
    return Meta(pattern=rf"^(?:{pattern})$(?!\n)")


def _up_to(most: int, digits: int) -> str:
    """Return the pattern of a number from 0 to `most`, in at most so many digits: zeros may lead."""
    text = str(most)
    less = [
        f"{text[:at]}[0-{int(digit) - 1}][0-9]{{{len(text) - at - 1}}}" for at, digit in enumerate(text) if digit != "0"
    ]
    shorter = f"[0-9]{{1,{len(text) - 1}}}|" if len(text) > 1 else ""
    return f"(?:{shorter}0{{0,{digits - len(text)}}}(?:{'|'.join((text, *less))}))"


def _told(about: str, expected: str) -> Meta:
    """Return what is said of a field that may be given: what it is, and what its values are."""
    return Meta(description=about, extra={EXPECTED: f"expected {expected}"})


def _of_new(about: str, expected: str) -> Meta:
    return Meta(description=about, extra={EXPECTED: f"expected {expected}", ONLY: NEW})


def _shown(about: str) -> Meta:
    return Meta(description=about, extra={ONLY: "shown"})


def _rate(most: int, about: str) -> Meta:
    return _told(about, f"a whole number from 1 to {most}, or null for no such limit")


_KeyName = Annotated[
    Annotated[str, _like(f"(?:{spellings.KEY_NAME.pattern})?")] | UnsetType | None,
    _told("for people and rules, in logs and records", spellings.KEY_NAME.expected),
]
_Owner = Annotated[str, _like(f"(?:{spellings.OWNER.pattern})?")]
_Models = Annotated[
    Annotated[list[Annotated[str, _like(spellings.MODEL_PATTERN.pattern)]], Meta(max_length=_MOST_LISTED)]
    | UnsetType
    | None,
    _told("models that may be asked for, `*` for any text; none: all", f"a list: {spellings.MODEL_PATTERN.expected}"),
]
_Endpoints = Annotated[
    Annotated[list[Annotated[str, _like(_ENDPOINT)]], Meta(max_length=_MOST_LISTED)] | UnsetType | None,
    _told(
        "groups of endpoints, or patterns of paths; none: the default",
        "a list of groups of endpoints, or of paths with * for any text, as /v1/files*",
    ),
]
_Tags = Annotated[
    Annotated[list[Annotated[str, _like(spellings.TAG.pattern)]], Meta(max_length=spellings.MOST_TAGS)]
    | UnsetType
    | None,
    _told("what spend is also counted by", f"a list: {spellings.TAG.expected}"),
]
_Priority = Annotated[
    Literal["high", "normal", "low"] | UnsetType | None, _told("high, normal or low", "high, normal or low")
]
_Rpm = Annotated[
    Annotated[int, Meta(ge=1, le=spellings.MOST_RPM)] | UnsetType | None, _rate(spellings.MOST_RPM, "requests a minute")
]
_Burst = Annotated[
    Annotated[int, Meta(ge=1, le=spellings.MOST_BURST)] | UnsetType | None,
    _rate(spellings.MOST_BURST, "requests at once"),
]
_Tpm = Annotated[
    Annotated[int, Meta(ge=1, le=spellings.MOST_TPM)] | UnsetType | None, _rate(spellings.MOST_TPM, "tokens a minute")
]
_TpmBurst = Annotated[
    Annotated[int, Meta(ge=1, le=spellings.MOST_TPM)] | UnsetType | None, _rate(spellings.MOST_TPM, "tokens at once")
]
_Concurrency = Annotated[
    Annotated[int, Meta(ge=1, le=spellings.MOST_CONCURRENCY)] | UnsetType | None,
    _rate(spellings.MOST_CONCURRENCY, "requests at a time"),
]
_Moment = Annotated[
    str,
    Meta(
        extra_json_schema={"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]}
    ),
]
_Expires = Annotated[
    _Moment | UnsetType | None,
    _told(
        "when it ends: 2027-01-31, or 2027-01-31T12:00:00Z; from 1970",
        "a date such as 2027-01-31, or 2027-01-31T12:00:00Z, or null",
    ),
]
_Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
_Percent = Annotated[int, Meta(ge=1, le=100)] | Annotated[str, _like("(?:0{0,2}[1-9]|0?[1-9][0-9]|100)%?")]
_WINDOW: Final = "|".join(
    (
        *CALENDAR,
        *(rf"(?!0+{unit}){_up_to(MOST_WINDOW_S // length, 9)}{unit}" for unit, length in WINDOW_UNITS_S.items()),
    )
)
_USD: Final = rf"(?:[0-9]{{1,9}}|0[0-9]{{9}})(?:\.[0-9]{{1,9}})?|{MOST_USD}(?:\.0{{1,9}})?"
_TOKENS: Final = "|".join(
    _up_to(MOST_TOKENS // times, 16) + unit for unit, times in (("", 1), ("k", 1000), ("M", 1_000_000))
)


class Budget(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much may be spent in each window of time."""

    usd: Annotated[
        Annotated[int, Meta(ge=0, le=MOST_USD)]
        | Annotated[float, Meta(ge=0, le=MOST_USD)]
        | Annotated[str, _like(_USD)]
        | UnsetType
        | None,
        Meta(description=f"dollars, from 0 to {MOST_USD}, with nine decimal places at most; or tokens"),
    ] = UNSET
    tokens: Annotated[
        Annotated[int, Meta(ge=0, le=MOST_TOKENS)] | Annotated[str, _like(_TOKENS)] | UnsetType | None,
        Meta(description=f"at most {MOST_TOKENS}; or usd"),
    ] = UNSET
    window: Annotated[
        Annotated[str, _like(_WINDOW)] | Annotated[int, Meta(ge=1, le=MOST_WINDOW_S)],
        Meta(description="24h, 30d; minute, hour, day, week, month, year; total"),
    ]
    zone: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType | None,
        Meta(description="of the calendar, such as Europe/Berlin; UTC if not given"),
    ] = UNSET
    starts: Annotated[
        _Moment | UnsetType | None, Meta(description="when a window of a given length begins, from 1970")
    ] = UNSET
    soft: Annotated[
        _Percent | Annotated[list[_Percent], Meta(min_length=1, max_length=MOST_SOFT)] | UnsetType | None,
        Meta(description="percent at which to alert"),
    ] = UNSET
    strict: Annotated[
        bool | Literal["true", "on", "yes", "false", "off", "no"] | UnsetType | None,
        Meta(description="hold the most that a call may cost before it is sent"),
    ] = UNSET
    unpriced: Annotated[
        Literal["refuse", "allow"] | UnsetType | None, Meta(description="what becomes of models without a price")
    ] = UNSET


_Budgets = Annotated[
    Annotated[list[Budget], Meta(max_length=_MOST_BUDGETS)] | UnsetType | None,
    _told("how much may be spent; all of them hold", 'a list of budgets such as {"usd": 20, "window": "month"}'),
]


class SetByAdmin(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the gateway's admin has set for a key, as it is shown."""

    models: _Models = UNSET
    endpoints: _Endpoints = UNSET
    tags: _Tags = UNSET
    rpm: _Rpm = UNSET
    burst: _Burst = UNSET
    tpm: _Tpm = UNSET
    tpm_burst: _TpmBurst = UNSET
    concurrency: _Concurrency = UNSET
    priority: _Priority = UNSET
    budgets: _Budgets = UNSET
    expires: Annotated[_Time | UnsetType, Meta(description="when it ends")] = UNSET
    blocked: bool | UnsetType = UNSET


class _Account(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What keys, teams and users have in common."""

    id: Annotated[
        Annotated[str, _like(spellings.OWNER.pattern)] | UnsetType | None,
        _of_new("yours; one is made if none is given", spellings.OWNER.expected),
    ] = UNSET
    name: Annotated[
        Annotated[str, _like(f"(?:{_NAME.pattern})?")] | UnsetType | None, _told("for people", _NAME.expected)
    ] = UNSET
    models: _Models = UNSET
    endpoints: _Endpoints = UNSET
    tags: _Tags = UNSET
    rpm: _Rpm = UNSET
    burst: _Burst = UNSET
    tpm: _Tpm = UNSET
    tpm_burst: _TpmBurst = UNSET
    concurrency: _Concurrency = UNSET
    priority: _Priority = UNSET
    budgets: _Budgets = UNSET
    metadata: Annotated[
        dict[str, Any] | UnsetType | None, _told("an object of JSON; yours, Velox reads none of it", "an object")
    ] = UNSET
    blocked: Annotated[bool | UnsetType, _shown("whether nothing of it may be used")] = UNSET
    created: Annotated[_Time | UnsetType, _shown("when it was made")] = UNSET
    updated: Annotated[_Time | UnsetType, _shown("when it was changed last")] = UNSET


class Key(_Account, kw_only=True, forbid_unknown_fields=True):
    """A key of a client."""

    name: _KeyName = UNSET
    key: Annotated[
        Annotated[str, _like(_SECRET.pattern)] | UnsetType | None,
        _of_new("what the client presents; one is made if neither is given", _SECRET.expected),
    ] = UNSET
    digest: Annotated[
        Annotated[str, _like(_DIGEST.pattern)] | UnsetType | None,
        _of_new("in place of key: its SHA-256 in hexadecimal", _DIGEST.expected),
    ] = UNSET
    hint: Annotated[str | UnsetType, _shown("its first and last characters")] = UNSET
    team: Annotated[_Owner | UnsetType | None, _told("id of its team", spellings.OWNER.expected)] = UNSET
    user: Annotated[_Owner | UnsetType | None, _told("id of its user", spellings.OWNER.expected)] = UNSET
    role: Annotated[
        Literal["team_admin", ""] | UnsetType | None,
        _told("team_admin: it manages the keys of its team by the API", "team_admin, or null"),
    ] = UNSET
    expires: _Expires = UNSET
    set_by_admin: Annotated[
        SetByAdmin | UnsetType | None,
        _shown("what the gateway's admin has set: the team's own token only narrows it; null: the audit has it"),
    ] = UNSET


class Team(_Account, kw_only=True, forbid_unknown_fields=True):
    """A team."""


class User(_Account, kw_only=True, forbid_unknown_fields=True):
    """A user."""

    email: Annotated[
        Annotated[str, _like(f"(?:{_EMAIL.pattern})?")] | UnsetType | None, _told("address of mail", _EMAIL.expected)
    ] = UNSET
