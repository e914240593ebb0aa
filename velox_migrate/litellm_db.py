"""Keys, teams, users, budgets and spend out of LiteLLM's database: what each row becomes, and what to tell of it.

    read_tables()   rows of a dump or a database, as far as they matter
    plan()          which accounts and which sums they become; what can't be carried over

Knows: LiteLLM's tables. Does not know: where rows come from (pg_dump.py), or where accounts are kept.

LiteLLM keeps the SHA-256 of a key, as Velox does: clients keep theirs. Ids stay, so that a second run finds what the
first one made.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, Final

import orjson

from velox.accounts.active import caller_id_of
from velox.accounts.fields import FieldError, time_text
from velox.accounts.model import Kind
from velox.accounts.service import Adopted
from velox.ledger.record import recorded_key
from velox.ledger.store import Carried, Sums
from velox.policy import spellings
from velox.policy.budgets.budget import parse_budget, window_at
from velox.policy.patterns import covers
from velox_migrate.account_fields import ALL_MODELS, take_fields, time_s, window_fields
from velox_migrate.pg_dump import Row, parse_array

__all__ = ["TABLES", "Plan", "Tables", "plan", "read_tables"]

_PREFIX: Final = "LiteLLM_"
_KEYS: Final = "VerificationToken"
_OLD: Final = "DeprecatedVerificationToken"
_GONE: Final = "DeletedVerificationToken"
_TEAMS: Final = "TeamTable"
_USERS: Final = "UserTable"
_DAILY: Final = "DailyUserSpend"
_LOGS: Final = "SpendLogs"
_OWN: Final = ("BudgetTable", "OrganizationTable", "ProjectTable", "TeamMembership", "TagTable", "EndUserTable")
_KEPT: Final = (_KEYS, _OLD, _GONE, _TEAMS, _USERS, *_OWN, "ObjectPermissionTable")
TABLES: Final = frozenset(f"{_PREFIX}{name}" for name in (*_KEPT, _DAILY, _LOGS))

_NUMBERS: Final = frozenset({"tpm_limit", "rpm_limit", "max_parallel_requests"})
_AMOUNTS: Final = frozenset({"max_budget", "soft_budget", "spend"})
_ARRAYS: Final = frozenset(
    {"models", "allowed_routes", "policies", "access_group_ids", "allowed_cache_controls", "teams"}
)
_JSON: Final = frozenset(
    {"metadata", "aliases", "config", "permissions", "model_max_budget", "budget_limits", "router_settings"}
)
# What a row has of its own and LiteLLM's clients see; the rest is for LiteLLM alone.
_COMMON: Final = ("models", "max_budget", "budget_duration", "budget_reset_at", "soft_budget", "tpm_limit", "rpm_limit")
_MORE: Final = ("max_parallel_requests", "metadata", "policies", "model_max_budget", "budget_limits", "organization_id")
_FIELDS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "key": (*_COMMON, *_MORE, "key_alias", "team_id", "user_id", "expires", "aliases", "permissions", "allowed_routes"),
    "team": (*_COMMON, *_MORE, "team_alias"),
    "user": (*_COMMON, *_MORE, "user_alias", "user_email", "user_role"),
}
_FROM_BUDGET: Final = (
    "max_budget",
    "budget_duration",
    "soft_budget",
    "tpm_limit",
    "rpm_limit",
    "max_parallel_requests",
)
_LIMITS: Final = ("max_budget", "tpm_limit", "rpm_limit", "max_parallel_requests")
_TABLE_OF: Final[Mapping[Kind, str]] = {"team": _TEAMS, "user": _USERS, "key": _KEYS}
_ID_OF: Final[Mapping[Kind, str]] = {"team": "team_id", "user": "user_id", "key": "token"}
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_DIRTY: Final = re.compile(r"[^A-Za-z0-9@._+:-]+")
_DIRTY_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_TRUE: Final = ("t", "true")  # as COPY and as INSERT write it
_SESSIONS: Final = "litellm-dashboard"  # the team of keys that LiteLLM's pages make for whoever signs in
_UNKNOWN: Final = "(not itemised)"
_DAY_S: Final = 86_400
_NANO: Final = 10**9


@dataclass(slots=True)
class Plan:
    """What an import does. notes, limiting: sentences to names of what they hold for."""

    accounts: list[Adopted] = field(default_factory=list)
    spend: list[Carried] = field(default_factory=list)
    limiting: dict[str, list[str]] = field(default_factory=dict)
    changed: dict[str, list[str]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Tables:
    """Rows by table, and sums by day of calls. by_day, by_log: sums by day, digest, team, user and model."""

    rows: dict[str, list[Row]]
    by_day: dict[tuple[str, str, str, str, str], Sums]
    by_log: dict[tuple[str, str, str, str, str], Sums]


def read_tables(rows: Iterable[tuple[str, Row]]) -> Tables:
    """Sort rows. Raises ValueError: an amount of spend is none."""
    tables = Tables({name: [] for name in _KEPT}, {}, {})
    for table, row in rows:
        name = table.removeprefix(_PREFIX)
        if name == _DAILY:
            at = (row.get("date") or "", row.get("api_key") or "", "", row.get("user_id") or "", _model(row))
            _add(tables.by_day, at, _day_sums(row))
        elif name == _LOGS:
            day = (row.get("startTime") or "")[:10]
            _add(
                tables.by_log,
                (day, row.get("api_key") or "", row.get("team_id") or "", row.get("user") or "", _model(row)),
                _log_sums(row),
            )
        else:
            tables.rows[name].append(row)
    return tables


def _add(sums: dict[tuple[str, str, str, str, str], Sums], at: tuple[str, str, str, str, str], more: Sums) -> None:
    before = sums.get(at)
    sums[at] = more if before is None else before.plus(more)


def _model(row: Row) -> str:
    return row.get("model_group") or row.get("model") or ""


def _day_sums(row: Row) -> Sums:
    return Sums(
        n=_int(row, "api_requests"),
        n_errors=_int(row, "failed_requests"),
        input=_int(row, "prompt_tokens"),
        output=_int(row, "completion_tokens"),
        cached=_int(row, "cache_read_input_tokens"),
        cache_written=_int(row, "cache_creation_input_tokens"),
        cost_nano=_nano(row.get("spend")),
    )


def _log_sums(row: Row) -> Sums:
    return Sums(
        n=1,
        n_errors=int(row.get("status") == "failure"),
        input=_int(row, "prompt_tokens"),
        output=_int(row, "completion_tokens"),
        cost_nano=_nano(row.get("spend")),
    )


def _int(row: Row, name: str) -> int:
    return int(row.get(name) or 0)


def _nano(text: str | None) -> int:
    try:
        amount = Decimal(text or 0)
        return int((amount * _NANO).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError, OverflowError):
        raise ValueError("an amount of spend is no number") from None


def plan(tables: Tables, now_s: int, zone: str = "UTC") -> Plan:
    """Return what becomes of it. now_s: Unix time. zone: in which LiteLLM resets budgets."""
    return _Planning(tables, now_s, zone).plan()


class _Planning:
    def __init__(self, tables: Tables, now_s: int, zone: str) -> None:
        self._tables: Final = tables
        self._rows: Final = tables.rows
        self._now_s: Final = now_s
        self._zone: Final = zone
        self._plan: Final = Plan()
        self._budgets: Final = {row.get("budget_id") or "": row for row in tables.rows["BudgetTable"]}
        self._given: Final[dict[Kind, dict[str, dict[str, object]]]] = {"team": {}, "user": {}, "key": {}}
        self._ids: Final[dict[tuple[Kind, str], str]] = {}
        # Of each key, gone ones too: its label in the ledger, its team and its user.
        self._labels: Final[dict[str, tuple[str, str, str]]] = {}
        # By what it is of: when, and nano-dollars.
        self._spent: Final[dict[tuple[str, str], list[tuple[int, int]]]] = {}

    def plan(self) -> Plan:
        for kind in ("team", "user", "key"):
            for row in self._rows[_TABLE_OF[kind]]:
                self._read(kind, row)
        self._others()
        self._members()
        for theirs, given in self._given["team"].items():
            self._account("team", theirs, given)
        for theirs, given in self._given["user"].items():
            self._account("user", theirs, given)
        for theirs, given in self._given["key"].items():
            self._key(theirs, given)
        self._gone()
        self._carry()
        return self._plan

    # -- rows as values ---------------------------------------------------------------------------

    def _read(self, kind: Kind, row: Row) -> None:
        theirs = row.get(_ID_OF[kind]) or ""
        if kind == "key" and row.get("team_id") == _SESSIONS:
            self._tell(self._plan.left_out, "keys of sessions of LiteLLM's own pages", theirs[:8])
            return
        try:
            given = {name: _value(name, row[name]) for name in row}
        except ValueError as exc:
            self._tell(self._plan.left_out, f"a {kind} whose row can't be read: {exc}", theirs[:8])
            return
        budget = self._budgets.get(str(given.pop("budget_id", None) or ""))
        if budget is not None:
            for name in _FROM_BUDGET:
                if given.get(name) is None and budget.get(name) is not None:
                    given[name] = _value(name, budget[name])
            if budget.get("model_max_budget") not in (None, "{}", "null"):
                self._tell(
                    self._plan.limiting, f"model_max_budget of a {kind}'s budget", self._shown(kind, theirs, given)
                )
        self._given[kind][theirs] = given

    def _others(self) -> None:
        """Tell of limits of what Velox has no accounts for."""
        for name, id_, what in (
            ("OrganizationTable", "organization_id", "limits of an organization"),
            ("ProjectTable", "project_id", "limits of a project"),
            ("TagTable", "tag_name", "the budget of a tag: write it into `budgets` of the file, `per: tag`"),
            ("EndUserTable", "user_id", "limits of an end user (customer)"),
        ):
            for row in self._rows[name]:
                budget = self._budgets.get(row.get("budget_id") or "")
                has_limit = budget is not None and any(budget.get(each) is not None for each in _LIMITS)
                models = row.get("models") not in (None, "{}") and name != "TagTable"
                if has_limit or models or row.get("blocked") in _TRUE or row.get("allowed_model_region"):
                    self._tell(self._plan.limiting, what, row.get(id_) or "")
        permitted = {row.get("object_permission_id"): row for row in self._rows["ObjectPermissionTable"]}
        for kind in ("team", "user", "key"):
            for theirs, given in self._given[kind].items():
                found = permitted.get(_text(given.get("object_permission_id")))
                if found is not None and any(
                    found.get(each) not in (None, "{}") for each in ("vector_stores", "models")
                ):
                    self._tell(self._plan.limiting, f"object_permission of a {kind}", self._shown(kind, theirs, given))

    def _members(self) -> None:
        """Give the budget of a member of a team to the key that the member has there, if it is one."""
        for row in self._rows["TeamMembership"]:
            budget = self._budgets.get(row.get("budget_id") or "")
            limits = {} if budget is None else {name: budget[name] for name in _LIMITS if budget.get(name) is not None}
            if budget is None or not limits:
                continue
            member = (row.get("team_id"), row.get("user_id"))
            keys = [
                each for each in self._given["key"].values() if (each.get("team_id"), each.get("user_id")) == member
            ]
            if len(keys) == 1 and all(keys[0].get(name) is None for name in limits):
                # The period is that of the amount: without one, that of the key's own budget stays.
                for name in (*limits, "budget_duration") if "max_budget" in limits else limits:
                    keys[0][name] = _value(name, budget.get(name))
                self._tell(self._plan.changed, "the budget of a member of a team is that of its key", member[1] or "")
            elif keys:
                self._tell(self._plan.limiting, "limits of a member of a team, over several keys", member[1] or "")

    # -- accounts ---------------------------------------------------------------------------------

    def _account(self, kind: Kind, theirs: str, given: dict[str, object], **more: Any) -> bool:
        shown = self._shown(kind, theirs, given)
        fields = {name: given[name] for name in _FIELDS[kind] if given.get(name) is not None}
        expires_s = time_s(fields.get("expires"))
        if expires_s is not None:
            fields["expires"] = time_text(expires_s)
        if kind == "user" and "models" in fields:
            # In LiteLLM they hold for the user's own keys alone: those have them.
            del fields["models"]
        try:
            taken = take_fields(kind, fields, self._now_s, self._zone)
        except FieldError as exc:
            self._tell(self._plan.left_out, f"a {kind} with a wrong {exc}", shown)
            return False
        ours = taken.fields
        for name in taken.limiting:
            self._tell(self._plan.limiting, f"{name} of a {kind}", shown)
        for line in taken.changed:
            self._tell(self._plan.changed, line, shown)
        if "team" in ours:
            ours["team"] = self._id("team", str(ours["team"]))
        if "user" in ours:
            ours["user"] = self._id("user", str(ours["user"]))
        if kind == "user" and (ours.get("budgets") or not ours.keys().isdisjoint(("rpm", "tpm", "concurrency"))):
            self._tell(
                self._plan.changed, "limits of a user hold for keys of teams, too, not only for the user's own", shown
            )
        self._plan.accounts.append(
            Adopted(
                kind,
                self._id(kind, theirs),
                ours,
                given.get("blocked") is True,
                time_s(given.get("created_at")),
                **more,
            )
        )
        return True

    def _key(self, theirs: str, given: dict[str, object]) -> None:
        shown = self._shown("key", theirs, given)
        digest = hashlib.sha256(theirs.encode()).hexdigest() if theirs.startswith("sk-") else theirs
        if not _HEX.fullmatch(digest):
            self._tell(self._plan.left_out, "a key whose token is no SHA-256", shown)
            return
        id_ = self._ids["key", theirs] = f"key_{digest[:32]}"
        expires_s = time_s(given.get("expires"))
        if expires_s is not None and expires_s <= self._now_s:
            self._tell(self._plan.left_out, "keys that have expired", shown)
            self._label(digest, id_, given)
            return
        if not self._owners(given, shown):
            return
        given["models"] = self._models(given)
        if given["models"] == []:
            del given["models"]
        old = [
            (bytes.fromhex(row["token"] or ""), time_s(row.get("revoke_at")))
            for row in self._rows[_OLD]
            if row.get("active_token_id") == theirs and _HEX.fullmatch(row.get("token") or "")
        ]
        valid = [(each, until_s) for each, until_s in old if until_s is not None and until_s > self._now_s]
        hint = _text(given.get("key_name"))
        if self._account("key", theirs, given, digests=((bytes.fromhex(digest), None), *valid), hint=hint[:16]):
            self._label(digest, id_, given, _text(self._plan.accounts[-1].fields.get("name")))

    def _owners(self, given: dict[str, object], shown: str) -> bool:
        """See that the team and the user of a key are there."""
        team, user = _text(given.get("team_id")), _text(given.get("user_id"))
        if team and team not in self._given["team"]:
            self._tell(self._plan.left_out, "a key whose team is not in the database", shown)
            return False
        if user and user not in self._given["user"]:
            self._given["user"][user] = {}
            self._account("user", user, {})
            self._tell(self._plan.changed, "a user who is only named by a key is one", user)
        return True

    def _models(self, given: dict[str, object]) -> list[str]:
        """Return the models of a key: those that its team and, for a key without a team, its user may use, too."""
        own = _texts(given.get("models"))
        has_all = not own or not ALL_MODELS.isdisjoint(own)
        team, user = _text(given.get("team_id")), _text(given.get("user_id"))
        owner = self._given["team"].get(team) if team else self._given["user"].get(user)
        most = _texts(owner.get("models")) if owner is not None else []
        if not most or not ALL_MODELS.isdisjoint(most):
            return own
        if has_all:
            return [] if team else most  # the team's hold for its keys anyway
        return _within(own, most)

    # -- spend ------------------------------------------------------------------------------------

    def _label(self, digest: str, id_: str, given: Mapping[str, object], name: str = "") -> None:
        alias = _text(given.get("key_alias"))
        called = name or (_DIRTY_NAME.sub("-", alias).strip("-._")[:64] if alias else "") or id_
        owners = [self._ids.get((kind, theirs), theirs) for kind, theirs in self._owner_ids(given)]
        self._labels[digest] = (recorded_key(caller_id_of(id_), called), owners[0], owners[1])

    def _owner_ids(self, given: Mapping[str, object]) -> list[tuple[Kind, str]]:
        return [("team", _text(given.get("team_id"))), ("user", _text(given.get("user_id")))]

    def _gone(self) -> None:
        for row in self._rows[_GONE]:
            digest = row.get("token") or ""
            if _HEX.fullmatch(digest) and digest not in self._labels:
                self._label(digest, f"key_{digest[:32]}", row)

    def _carry(self) -> None:
        """Carry sums by day, and what an account has spent beyond them."""
        days = {at[0] for at in self._tables.by_day}
        sums = {**self._tables.by_day, **{at: each for at, each in self._tables.by_log.items() if at[0] not in days}}
        found: dict[tuple[int, str, str, str, str], Sums] = {}
        for (day, api_key, team, user, model), each in sorted(sums.items()):
            start_s = time_s(day)
            if start_s is None:
                self._tell(self._plan.left_out, "spend without a day", api_key[:8])
                continue
            digest = api_key if _HEX.fullmatch(api_key) else hashlib.sha256(api_key.encode()).hexdigest()
            if digest not in self._labels:
                self._label(digest, f"key_{digest[:32]}", {"team_id": team, "user_id": user})
            label, its_team, its_user = self._labels[digest]
            at = (start_s // _DAY_S * _DAY_S, label, its_team or team, its_user or user, model)
            before = found.get(at)
            found[at] = each if before is None else before.plus(each)
        for at, each in found.items():
            self._spend(Carried(*at, each))
        for kind in ("key", "team", "user"):
            for theirs, given in self._given[kind].items():
                self._rest(kind, theirs, given)

    def _spend(self, row: Carried) -> None:
        self._plan.spend.append(row)
        for kind, id_ in (("key", row.key), ("team", row.team), ("user", row.user)):
            if id_:
                self._spent.setdefault((kind, id_), []).append((row.start_s, row.sums.cost_nano))

    def _rest(self, kind: Kind, theirs: str, given: Mapping[str, object]) -> None:
        """Carry what an account has spent in its period beyond the sums by day, so that its budget goes on."""
        spent = _nano(str(given.get("spend") or 0))
        reset_s, duration = time_s(given.get("budget_reset_at")), given.get("budget_duration")
        if not spent or (kind, theirs) not in self._ids or (reset_s is not None and reset_s <= self._now_s):
            return
        since_s = 0
        if duration is not None and given.get("max_budget") is not None:
            if reset_s is None:
                return  # since when it was spent is not known
            try:
                window, _ = window_fields(duration, given.get("budget_reset_at"), self._zone)
            except FieldError:
                return
            since_s = window_at(parse_budget({"usd": 0, **window}), self._now_s).start_s
        id_ = self._ids[kind, theirs]
        label, team, user = "", "", ""
        if kind == "key":
            digest = hashlib.sha256(theirs.encode()).hexdigest() if theirs.startswith("sk-") else theirs
            if digest not in self._labels:
                return
            label, team, user = self._labels[digest]
        else:
            team, user = (id_, "") if kind == "team" else ("", id_)
        rows = self._spent.get((kind, label or id_), ())
        known = sum(nano for start_s, nano in rows if start_s >= since_s // _DAY_S * _DAY_S)
        if spent > known:
            created_s = time_s(given.get("created_at")) or self._now_s
            start_s = max(since_s, min(created_s, self._now_s)) // 60 * 60
            self._spend(Carried(start_s, label, team, user, _UNKNOWN, Sums(cost_nano=spent - known)))

    # -- names ------------------------------------------------------------------------------------

    def _id(self, kind: Kind, theirs: str) -> str:
        found = self._ids.get((kind, theirs))
        if found is None:
            found = theirs
            if not spellings.OWNER.matches(theirs):
                mark = hashlib.sha256(theirs.encode()).hexdigest()[:8]
                found = f"{_DIRTY.sub('-', theirs).strip('-._+:@')[:100] or kind}-{mark}"
                self._tell(self._plan.changed, f"an id of a {kind} has other characters: it is {found}", theirs)
            self._ids[kind, theirs] = found
        return found

    def _shown(self, kind: Kind, theirs: str, given: Mapping[str, object]) -> str:
        """Return what a message calls an account. A key's token opens nothing, but is long."""
        alias = _text(given.get(f"{kind}_alias"))
        return alias or (theirs[:8] if kind == "key" else theirs)

    def _tell(self, notes: dict[str, list[str]], text: str, name: str) -> None:
        notes.setdefault(text, []).append(name)


def _value(name: str, text: str | None) -> object:
    """Return a value as JSON would have it. Raises ValueError, which never shows it."""
    if text is None:
        return None
    try:
        if name in _NUMBERS:
            return int(text)
        if name in _AMOUNTS:
            return Decimal(text)
        if name in _ARRAYS:
            return parse_array(text)
        if name in _JSON:
            return orjson.loads(text)
    except (ValueError, InvalidOperation):
        raise ValueError(f"{name} is not what it should be") from None
    if name == "blocked":
        return text in _TRUE
    return text


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _within(own: Collection[str], most: Collection[str]) -> list[str]:
    """Return what is in both, of `gpt-*` and `gpt-4o` the latter; if nothing is, a name that no model has.

    An empty list would mean all.
    """
    found = [each for each in own if any(covers(wide, each) for wide in most)]
    found += [each for each in most if each not in found and any(covers(wide, each) for wide in own)]
    return found or ["no-default-models"]
