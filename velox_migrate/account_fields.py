"""What LiteLLM's fields of keys, teams and users are here.

    take_fields()   fields as LiteLLM names them, as Accounts takes them; what limits something that nothing here limits
    window_fields() a duration of LiteLLM as the window of a budget

Knows: the names, what each means, and which of them can't be left out without loosening a limit. Does not know: who
gives them (a call of the API, a database), or where accounts are kept.

A field that means nothing here stays with its account, in `metadata` under LITELLM, and is given back as it came.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from decimal import ROUND_FLOOR, Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from velox.accounts.fields import FieldError, time_text
from velox.accounts.model import Kind
from velox.policy import spellings
from velox.policy.budgets.budget import MOST_USD, TOTAL, Budget, parse_budget, period_text, window_at

__all__ = [
    "ALL_MODELS",
    "DURATION_S",
    "LITELLM",
    "OUR_NAMES",
    "Taken",
    "duration_s",
    "duration_text",
    "name_here",
    "stands_for_all",
    "take_fields",
    "time_s",
    "window_fields",
]

LITELLM: Final = "litellm"
DURATION_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "mo": 30 * 86_400}
_NEVER: Final = "-1"  # of a duration of a key: it has no end
_MOST_DIGITS: Final = 18  # of an amount of dollars
_MOST_S: Final = 3500 * 86_400  # the longest window of a budget, also in months of 31 days
_LAST_S: Final = 253_370_764_800  # begin of the year 9999
_DURATION: Final = re.compile(r"([0-9]{1,9})(mo|[smhdw])")
# What these lengths are since LiteLLM resets at the begin of a day, of a Monday, or of a month.
_CALENDAR: Final = {"1d": "day", "7d": "week", "1w": "week", "30d": "month", "1mo": "month"}
_LENGTHS: Final = {"day": "1d", "week": "7d", "month": "30d"}
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,128}").fullmatch
_DIRTY: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LEAST_USD: Final = Decimal("0.000000001")

_RATES: Final = {
    "rpm_limit": ("rpm", spellings.MOST_RPM),
    "tpm_limit": ("tpm", spellings.MOST_TPM),
    "max_parallel_requests": ("concurrency", spellings.MOST_CONCURRENCY),
}
_SAME: Final[Mapping[Kind, Mapping[str, str]]] = {
    "key": {"key_alias": "name", "team_id": "team", "user_id": "user"},
    "team": {"team_alias": "name"},
    "user": {"user_alias": "name", "user_email": "email"},
}
_BUDGET: Final = ("max_budget", "budget_duration", "soft_budget", "budget_limits", "budget_reset_at")
# Ours by LiteLLM's, for messages.
OUR_NAMES: Final[Mapping[Kind, Mapping[str, str]]] = {
    kind: {
        **{ours: theirs for theirs, ours in same.items()},
        **{ours: theirs for theirs, (ours, _) in _RATES.items()},
        "burst": "rpm_limit",
        "budgets": "max_budget",
        "endpoints": "allowed_routes",
        "id": f"{kind}_id",
    }
    for kind, same in _SAME.items()
}
# They limit something that nothing here does: who leaves one out loosens a limit. Also inside of `metadata`.
_LIMITING: Final = frozenset(
    {
        "allowed_model_region",
        "allowed_passthrough_routes",
        "allowed_vector_store_indexes",
        "budget_id",
        "enforced_params",
        "guardrails",
        "max_iterations",
        "max_budget_per_session",
        "model_max_budget",
        "model_rpm_limit",
        "model_tpm_limit",
        "object_permission",
        "permissions",
        "policies",
        "team_member_budget",
        "team_member_rpm_limit",
        "team_member_tpm_limit",
    }
)
_KEY_TYPES: Final = frozenset({"default", "llm_api"})
# Among `models` they stand for all that the team, or the proxy, has.
ALL_MODELS: Final = frozenset({"all-team-models", "all-proxy-models", "*"})
_ALL_ROUTES: Final = frozenset({"llm_api_routes", "openai_routes", "*", "/*"})


class Taken(NamedTuple):
    """What fields are here.

    fields: for Accounts. limiting: names of those that would loosen a limit. unused: names of those that are only kept.
    changed: sentences on what is now otherwise.
    """

    fields: dict[str, object]
    limiting: tuple[str, ...]
    unused: tuple[str, ...]
    changed: tuple[str, ...]


def take_fields(kind: Kind, given: Mapping[str, object], now_s: int, zone: str = "UTC") -> Taken:
    """Return what fields are here. given: all of an account, values as of JSON. zone: in which LiteLLM resets budgets.

    Raises FieldError with LiteLLM's name of the first one that is wrong.
    """
    return _Reading(kind, given, now_s, zone).taken()


class _Reading:
    def __init__(self, kind: Kind, given: Mapping[str, object], now_s: int, zone: str) -> None:
        self._kind: Final = kind
        self._given: Final = {name: value for name, value in given.items() if not _is_nothing(value)}
        self._now_s: Final = now_s
        self._zone: Final = zone
        self._fields: Final[dict[str, object]] = {}
        self._kept: Final[dict[str, object]] = {}
        self._limiting: Final[list[str]] = []
        self._changed: Final[list[str]] = []

    def taken(self) -> Taken:
        given = self._given
        self._metadata(given.pop("metadata", None))
        for theirs, ours in _SAME[self._kind].items():
            if theirs in given:
                self._fields[ours] = given.pop(theirs)
                if ours == "name":
                    self._name(theirs)
        for theirs, (ours, most) in _RATES.items():
            if theirs in given:
                self._rate(theirs, ours, given.pop(theirs), most)
        self._models()
        self._routes()
        self._end()
        self._budgets()
        key_type = given.get("key_type")
        if isinstance(key_type, str) and key_type in _KEY_TYPES:
            del given["key_type"]
        elif "key_type" in given:
            self._limiting.append("key_type")
        self._limiting.extend(sorted(_LIMITING & given.keys()))
        unused = sorted(given)
        self._kept.update(given)
        if self._kept:
            metadata = self._fields.setdefault("metadata", {})
            assert isinstance(metadata, dict), "made by _metadata"
            metadata[LITELLM] = dict(self._kept)
        return Taken(self._fields, tuple(self._limiting), tuple(unused), tuple(self._changed))

    def _metadata(self, value: object) -> None:
        if value is None:
            return
        if not isinstance(value, dict):
            raise FieldError("metadata", "expected an object")
        own = dict(value)
        kept = own.pop(LITELLM, None)
        if isinstance(kept, dict):
            # What was kept before, unless it is given anew.
            for name, each in kept.items():
                self._given.setdefault(name, each)
        tags = own.pop("tags", None)
        if tags and "tags" not in self._given:
            self._given["tags"] = tags
        self._limiting.extend(
            f"metadata.{name}" for name in sorted(_LIMITING & own.keys()) if not _is_nothing(own[name])
        )
        if own:
            self._fields["metadata"] = own

    def _name(self, theirs: str) -> None:
        """Have the name be one that Velox takes, and keep the other one."""
        name = self._fields["name"]
        if isinstance(name, str) and (here := name_here(self._kind, name)) != name:
            self._fields["name"] = here
            self._kept[theirs] = name
            self._changed.append("characters of a name that Velox has not in names are dashes")

    def _rate(self, theirs: str, ours: str, value: object, most: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise FieldError(theirs, "expected a whole number, or null for no such limit")
        rate = min(max(value, 1), most)
        if rate != value:
            self._changed.append(f"{theirs}: {ours} is from 1 to {most}: it is the nearest of these")
        self._fields[ours] = rate
        if ours == "rpm":
            # LiteLLM lets all requests of a minute come at once.
            self._fields["burst"] = min(rate, spellings.MOST_BURST)

    def _models(self) -> None:
        if "tags" in self._given:
            self._fields["tags"] = self._given.pop("tags")
        models = self._given.pop("models", None)
        if stands_for_all(models):
            self._kept["models"] = models
            models = None
        if models is not None:
            self._fields["models"] = models

    def _routes(self) -> None:
        routes = self._given.get("allowed_routes")
        if routes is None:
            return
        if not isinstance(routes, list) or not all(isinstance(each, str) for each in routes):
            raise FieldError("allowed_routes", "expected a list of paths")
        if not _ALL_ROUTES.isdisjoint(routes):
            return  # kept as it is
        paths = [each if each.startswith("/v1") else f"/v1{each}" for each in routes if each.startswith("/")]
        if len(paths) != len(routes):
            # Groups of paths of LiteLLM's own administration: such a key must not become one for models.
            self._limiting.append("allowed_routes")
            return
        del self._given["allowed_routes"]
        self._fields["endpoints"] = [
            path.replace("{", "*").partition("*")[0] + "*" if "{" in path else path for path in paths
        ]

    def _end(self) -> None:
        if self._kind != "key":
            return
        duration, expires = self._given.pop("duration", None), self._given.pop("expires", None)
        if duration == _NEVER:
            return
        if duration is not None:
            self._fields["expires"] = time_text(self._now_s + duration_s("duration", duration))
        elif isinstance(expires, str):
            self._fields["expires"] = expires

    def _budgets(self) -> None:
        given = {name: self._given.pop(name) for name in _BUDGET if name in self._given}
        budgets: list[dict[str, Any]] = []
        if "max_budget" in given:
            window, changed = window_fields(given.get("budget_duration"), given.get("budget_reset_at"), self._zone)
            budgets.append({"usd": self._usd("max_budget", given["max_budget"]), **window})
            duration = given.get("budget_duration")
            if duration is not None and duration != duration_text(parse_budget(budgets[0])):
                self._kept["budget_duration"] = duration
            self._changed.extend(f"budget_duration: {each}" for each in changed)
            if "soft_budget" in given:
                self._soft(budgets[0], given["soft_budget"])
        else:
            # They mean something again with the next max_budget.
            duration = given.get("budget_duration")
            if isinstance(duration, str) and _DURATION.fullmatch(duration):
                self._kept["budget_duration"] = duration
            soft = _decimal(given.get("soft_budget", 0))
            if soft is None:
                raise FieldError("soft_budget", "expected dollars, 0 or more, or null for none")
            if "soft_budget" in given:
                self._kept["soft_budget"] = float(soft)
        limits = given.get("budget_limits", [])
        if not isinstance(limits, list) or not all(isinstance(each, dict) and "max_budget" in each for each in limits):
            self._limiting.append("budget_limits")
            self._kept["budget_limits"] = limits
            limits = []
        for each in limits:
            window, changed = window_fields(each.get("budget_duration"), each.get("reset_at"), self._zone)
            budgets.append({"usd": self._usd("budget_limits", each["max_budget"]), **window})
            self._changed.extend(f"budget_limits: {line}" for line in changed)
        if budgets:
            self._fields["budgets"] = budgets

    def _usd(self, name: str, value: object) -> str:
        dollars = _decimal(value)
        if dollars is None or dollars < 0:
            raise FieldError(name, "expected dollars, 0 or more, or null for no budget")
        if dollars > MOST_USD:
            self._changed.append(f"{name}: it is {MOST_USD} dollars, the most that a budget may be")
        return f"{min(dollars, Decimal(MOST_USD)).quantize(_LEAST_USD, ROUND_FLOOR):f}"

    def _soft(self, budget: dict[str, Any], value: object) -> None:
        soft, most = _decimal(value), Decimal(budget["usd"])
        if soft is None or soft < 0:
            raise FieldError("soft_budget", "expected dollars, 0 or more, or null for none")
        percent = max(int(min(soft, most) * 100 / most), 1) if most else 100
        if soft != most * percent / 100:
            self._kept["soft_budget"] = float(soft)
            self._changed.append("soft_budget: it is a whole part of a hundred of max_budget")
        budget["soft"] = [percent]


def stands_for_all(models: object) -> bool:
    """Tell whether a list of models names all that there are."""
    return isinstance(models, list) and not ALL_MODELS.isdisjoint(each for each in models if isinstance(each, str))


def name_here(kind: Kind, name: str) -> str:
    """Return a name as Velox takes it: what it has not in names is a dash."""
    fits = spellings.KEY_NAME.matches if kind == "key" else _NAME
    return name if fits(name) else _DIRTY.sub("-", name).strip("-._")[:64] or kind


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value) or value is False


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return found if found.is_finite() and found.adjusted() <= _MOST_DIGITS else None


def duration_s(name: str, value: object) -> int:
    """Return the seconds of a duration such as `30d`. Raises FieldError."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    seconds = int(match[1]) * DURATION_S[match[2]] if match else 0
    if not 1 <= seconds <= _MOST_S:
        raise FieldError(name, "expected a duration such as 30s, 15m, 24h, 30d or 1mo, of ten years at most")
    return seconds


def window_fields(duration: object, reset_at: object, zone: str) -> tuple[dict[str, object], list[str]]:
    """Return the fields `window`, `zone` and `starts` of a budget, and what is otherwise. Raises FieldError.

    duration: as LiteLLM has it; None: the budget never begins anew. reset_at: when LiteLLM would begin a new one.
    """
    if duration is None:
        return {"window": "total"}, []
    seconds = duration_s("budget_duration", duration)
    assert isinstance(duration, str), "it is a duration"
    reset_s = time_s(reset_at)
    if reset_s is not None and not 0 <= reset_s < _LAST_S:
        reset_s = None
    calendar = _CALENDAR.get(duration)
    if calendar is not None:
        window: dict[str, object] = {"window": calendar, **({"zone": zone} if zone != "UTC" else {})}
        begins = reset_s is None or window_at(parse_budget({"usd": 0, **window}), reset_s).start_s == reset_s
        if begins:
            return window, []
        if duration == "1mo":
            return window, ["it begins with each month of the calendar, not on the day that LiteLLM would reset it"]
        duration = _LENGTHS[calendar]
    elif duration.endswith("mo"):
        # Months differ: the longest ones, so that it is never reset sooner.
        seconds = int(duration[:-2]) * 31 * DURATION_S["d"]
        duration = f"{seconds // DURATION_S['d']}d"
    start = {} if reset_s is None else {"starts": time_text(reset_s)}
    changed = (
        ["a month is 31 days"] if seconds % (31 * DURATION_S["d"]) == 0 and seconds != duration_s("", duration) else []
    )
    return {"window": duration, **start}, changed


def duration_text(budget: Budget) -> str | None:
    """Return the period of a budget as LiteLLM has it; None: it never begins anew."""
    if budget.window == TOTAL:
        return None
    return _LENGTHS.get(str(budget.window)) or period_text(budget)


def time_s(value: object) -> int | None:
    """Return the Unix time of a timestamp, which is UTC where it says nothing else; None: it is none."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.datetime.fromisoformat(value)
    except ValueError:
        return None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)).timestamp())
