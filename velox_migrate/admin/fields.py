"""Keys, teams and users as LiteLLM's clients give and see them.

    created()   a body that makes one, as Accounts takes it
    changed()   a body that changes one: the fields of ours that it changes
    shown()     one as its fields there

Knows: which fields of ours a field of theirs changes. Does not know: paths, or where spend is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from velox.accounts.fields import FieldError, time_text
from velox.accounts.model import Account, Key, Kind, User
from velox.admin.api.call import ApiError
from velox.policy.budgets.budget import NANO_PER_USD, TOTAL, parse_budget
from velox.types import Budget
from velox_migrate.account_fields import LITELLM, duration_text, name_here, stands_for_all, take_fields, window_fields
from velox_migrate.admin.known import check_known

__all__ = ["alias_of", "changed", "created", "first_budget", "shown"]

_ID: Final[Mapping[Kind, str]] = {"key": "key", "team": "team_id", "user": "user_id"}
_RATES: Final = {"rpm_limit": "rpm", "tpm_limit": "tpm", "max_parallel_requests": "concurrency"}
_BUDGET: Final = frozenset({"max_budget", "budget_duration", "soft_budget", "budget_limits"})
# What of ours a field of theirs changes; any other changes only what is kept in `metadata`.
_CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "key_alias": ("name",),
    "team_alias": ("name",),
    "user_alias": ("name",),
    "user_email": ("email",),
    "team_id": ("team",),
    "user_id": ("user",),
    "models": ("models",),
    "tags": ("tags",),
    "metadata": ("tags",),
    "allowed_routes": ("endpoints",),
    "duration": ("expires",),
    "expires": ("expires",),
    "rpm_limit": ("rpm", "burst"),
    "tpm_limit": ("tpm",),
    "max_parallel_requests": ("concurrency",),
    **dict.fromkeys(_BUDGET, ("budgets",)),
}
# They ask for something to be done, not kept.
_DONE: Final = frozenset(
    {"blocked", "spend", "auto_create_key", "send_invite_email", "litellm_changed_by", "grace_period"}
)
# When a budget begins anew follows from its windows: LiteLLM shows it, and changes it by no call.
_NOT_CHANGED: Final = _DONE | {"budget_reset_at"}
_OF_TEAMS: Final = frozenset({"members_with_roles", "members", "admins"})


def created(kind: Kind, body: Mapping[str, Any], now_s: int, tell: Callable[[str], None]) -> dict[str, object]:
    """Return the fields of a new one. tell: takes the name of each field that means nothing. Raises ApiError."""
    check_known(kind, body)
    check_blocked(body)
    if body.get("spend"):
        raise ApiError(400, "invalid", "spend: expected 0 or nothing: what was spent is what is recorded", "spend")
    return _taken(kind, {name: value for name, value in body.items() if name not in _DONE}, now_s, tell)


def changed(
    account: Account, body: Mapping[str, Any], now_s: int, tell: Callable[[str], None], kind: Kind
) -> dict[str, object]:
    """Return the fields that a body changes; None: it takes one away. As created().

    What is not changed is not read either: it may be something that could not be given here.
    """
    check_known(kind, body)
    check_blocked(body)
    given = {name: value for name, value in body.items() if name not in _NOT_CHANGED and name != _ID[kind]}
    names = {ours for name in given for ours in _CHANGES.get(name, ())}
    all_before = _settable(account)
    before = {name: value for name, value in all_before.items() if not names.isdisjoint(_CHANGES.get(name, ()))}
    own = {**all_before["metadata"]}
    before.pop("metadata", None)
    if isinstance(given.get("metadata"), dict):
        own = given["metadata"]
        if "tags" in own:
            before.pop("tags", None)
    keeps_window = _keeps_window(account, {**before, **given})
    if keeps_window:
        before.pop("budget_duration")
        given.pop("budget_duration", None)
    metadata = {**own, LITELLM: {name: value for name, value in _kept(account).items() if name not in given}}
    had = {**_kept(account), **{f"metadata.{name}": value for name, value in account.metadata.items()}}
    taken = _taken(kind, {**before, **given, "metadata": metadata}, now_s, tell, had)
    fields = {name: taken.get(name) for name in names}
    if "budgets" in names:
        budgets = taken.get("budgets") or []
        assert isinstance(budgets, list), "made by take_fields()"
        first = first_budget(account)
        if first is not None and _has_max({**before, **given}):
            budgets[0] = _changed_budget(first, budgets[0], keeps_window=keeps_window, sets_soft="soft_budget" in given)
        # Those that have no name there: of tokens, and further ones.
        if "budget_limits" not in given:
            budgets = [*budgets, *(_budget_fields(each) for each in account.budgets if each is not first)]
        fields["budgets"] = budgets
    fields["metadata"] = taken.get("metadata")
    return fields


def _has_max(merged: Mapping[str, Any]) -> bool:
    value = merged.get("max_budget")
    return value is not None and value is not False and value != ""


def _keeps_window(account: Account, merged: Mapping[str, Any]) -> bool:
    """Tell whether the budget of `max_budget` has the same windows after a change. merged: fields as they are then."""
    has_it = first_budget(account) is not None and _has_max(merged)
    return has_it and merged.get("budget_duration") == _budget_shown(account)["budget_duration"]


def _changed_budget(
    before: Budget, now: Mapping[str, object], *, keeps_window: bool, sets_soft: bool
) -> dict[str, object]:
    """Return the fields of a budget after a change. now: what LiteLLM's words say of it; they don't say all.

    With other windows it would be another budget, of which nothing is spent.
    """
    had = _budget_fields(before)
    soft = had["soft"] if len(before.soft) > 1 and not sets_soft else now.get("soft")
    if keeps_window:
        return {**had, "usd": now["usd"], "soft": soft}
    has_zone = isinstance(before.window, str) and isinstance(parse_budget(now).window, str) and now["window"] != TOTAL
    more = {"zone": before.zone} if has_zone else {}
    return {**now, **more, "strict": before.strict, "unpriced": had["unpriced"], "soft": soft}


def check_blocked(body: Mapping[str, Any]) -> None:
    """Refuse what neither blocks nor unblocks. Raises ApiError."""
    # 1 and 0 are no truth values here: they would be equal to them, and do nothing.
    if not isinstance(body.get("blocked"), bool | None):
        raise ApiError(400, "invalid", "blocked: expected true or false", "blocked")


def _taken(
    kind: Kind,
    given: Mapping[str, object],
    now_s: int,
    tell: Callable[[str], None],
    had: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """had: what it had before: an import may have left a limit out, which the operator was told and agreed to."""
    for name in _RATES:
        if given.get(name) == 0 and given[name] is not False:
            message = f"{name}: expected 1 or more, or null for no such limit; to let nothing pass, block it"
            raise ApiError(400, "invalid", message, name)
    try:
        taken = take_fields(kind, given, now_s)
    except FieldError as exc:
        raise ApiError(400, "invalid", str(exc), exc.field) from None
    metadata = given.get("metadata")
    inner = metadata if isinstance(metadata, dict) else {}
    asked = {**given, **{f"metadata.{name}": value for name, value in inner.items()}}
    for name in taken.limiting:
        if had is not None and name in had and asked.get(name, had[name]) == had[name]:
            continue
        message = (
            f"{name}: Velox has no such limit; without it more would be allowed than asked for, so nothing was done"
        )
        raise ApiError(400, "invalid", message, name)
    for name in taken.unused:
        tell(name)
    return taken.fields


def first_budget(account: Account) -> Budget | None:
    """Return the budget that `max_budget` stands for."""
    return next((each for each in account.budgets if each.limit_nano is not None), None)


def _budget_fields(budget: Budget) -> dict[str, object]:
    found: dict[str, object] = {"window": budget.window, "soft": list(budget.soft) or None, "strict": budget.strict}
    if budget.limit_nano is None:
        found["tokens"] = budget.limit_tokens
    else:
        found["usd"] = f"{budget.limit_nano // NANO_PER_USD}.{budget.limit_nano % NANO_PER_USD:09d}"
        found["unpriced"] = "refuse" if budget.refuses_unpriced else "allow"
    if isinstance(budget.window, str) and budget.window != TOTAL:
        found["zone"] = budget.zone
    if budget.start_s:
        found["starts"] = time_text(budget.start_s)
    return found


def _kept(account: Account) -> dict[str, Any]:
    kept = account.metadata.get(LITELLM)
    return dict(kept) if isinstance(kept, dict) else {}


def _settable(account: Account) -> dict[str, Any]:
    """Return the fields that a client may give, as it would give them."""
    rates = {theirs: getattr(account.rates, ours) or None for theirs, ours in _RATES.items()}
    kept = _kept(account).get("models")
    # So that tools which compare what they gave with what they read see no change.
    models = kept if not account.models and stands_for_all(kept) else list(account.models)
    found: dict[str, Any] = {
        "models": models,
        "metadata": {name: value for name, value in account.metadata.items() if name != LITELLM},
        "tags": list(account.tags),
        **rates,
        **_budget_shown(account),
    }
    if isinstance(account, Key):
        expires = None if account.expires_s is None else time_text(account.expires_s)
        owners = {"team_id": account.team or None, "user_id": account.user or None}
        found |= {
            "key_alias": alias_of("key", account),
            **owners,
            "expires": expires,
            # Names of LiteLLM that stand for all paths are kept, and there are no endpoints then.
            "allowed_routes": list(account.endpoints) or _kept(account).get("allowed_routes", []),
        }
    elif isinstance(account, User):
        found |= {"user_alias": alias_of("user", account), "user_email": account.email or None}
    else:
        found["team_alias"] = alias_of("team", account)
    return found


def alias_of(kind: Kind, account: Account) -> str | None:
    """Return the name as LiteLLM's client gave it, if it has not been changed since by other means."""
    given = _kept(account).get(f"{kind}_alias")
    is_its = isinstance(given, str) and name_here(kind, given) == account.name
    return given if is_its else account.name or None


def _budget_shown(account: Account) -> dict[str, Any]:
    budget = first_budget(account)
    if budget is None:
        return {"max_budget": None, **{name: _kept(account).get(name) for name in ("budget_duration", "soft_budget")}}
    assert budget.limit_nano is not None, "it is one of dollars"
    usd = budget.limit_nano / NANO_PER_USD
    duration = duration_text(budget)
    kept = _kept(account).get("budget_duration")
    if kept is not None:
        try:
            window, _ = window_fields(kept, None, "UTC")
            # Somebody may have changed the budget since, by other means.
            duration = kept if parse_budget({"usd": 0, **window}).window == budget.window else duration
        except FieldError:
            pass
    soft = budget.limit_nano * budget.soft[0] // 100 / NANO_PER_USD if budget.soft else None
    soft = soft if soft is None else _kept(account).get("soft_budget", soft)  # it is a whole percent here
    return {"max_budget": usd, "budget_duration": duration, "soft_budget": soft}


def shown(account: Account) -> dict[str, Any]:
    """Return an account as its fields there, but for its id and its spend."""
    own = _settable(account)
    kept = {name: value for name, value in _kept(account).items() if name not in ("budget_duration", "soft_budget")}
    metadata = {**own["metadata"], "tags": own["tags"]} if own["tags"] else own["metadata"]
    teams: dict[str, Any] = {} if isinstance(account, Key | User) else {name: [] for name in _OF_TEAMS}
    return {
        **teams,
        **kept,
        **own,  # whatever stands in metadata
        "metadata": metadata,
        "blocked": account.is_blocked,
        "created_at": time_text(account.created_s),
        "updated_at": time_text(account.updated_s),
    }
