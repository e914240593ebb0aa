"""The budgets of a gateway: what one rule is, and which of a request's names have a budget of their own by it.

Knows: scopes, filters, and what makes two rules the same budget. Does not know: how a rule is written
(settings/callers/budgets.py), amounts and windows (budget.py), or what has been spent (shm/budget_table.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from velox.policy.budgets.budget import same_windows
from velox.policy.patterns import is_exact, matches
from velox.types import Budget, BudgetPeriod, Caller, KeyEntry

__all__ = [
    "BUDGET_SCOPES",
    "BudgetLabel",
    "BudgetRule",
    "BudgetScope",
    "Spender",
    "by_identity",
    "has_budgets",
    "own_budgets",
    "own_rules",
    "rules_of",
    "spender_of",
    "subjects",
]

BudgetScope: TypeAlias = Literal["gateway", "key", "team", "user", "tag", "model"]
BUDGET_SCOPES: Final[tuple[BudgetScope, ...]] = get_args(BudgetScope)
_WHO_CHARS: Final = 64


class Spender(NamedTuple):
    """Who and what is billed for a call. key_id: as in records: hexadecimal; "" where no key is asked for."""

    key_id: str = ""
    key_name: str = ""
    team: str = ""
    user: str = ""
    tags: tuple[str, ...] = ()
    model: str = ""


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """One rule. scope: what has such a budget for itself. keys, teams, users, tags, models: which calls count at all.

    name: as messages call it: "budgets[2]", or "budgets[0] of a key". keys, teams, users, tags: names; none: every one.
    models: patterns, as a key's. owner: the one subject whose own budget it is: the id of a key, team or user.
    """

    name: str
    scope: BudgetScope
    budget: Budget
    keys: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    owner: str = ""
    where: str = field(default="", compare=False)

    @property
    def identity(self) -> str:
        """Return what two rules have in common that are one budget: a change of its limit keeps what was spent."""
        filters = (self.keys, self.teams, self.users, self.tags, self.models)
        return json.dumps([self.scope, self.owner, same_windows(self.budget), *map(sorted, filters)])

    @property
    def is_open_ended(self) -> bool:
        """True if clients' words decide how many budgets there are: models that the rule does not name."""
        return self.scope == "model" and not (self.models and all(map(is_exact, self.models)))


def spender_of(caller: Caller, model: str) -> Spender:
    """Return who is billed for a caller's call."""
    return Spender(caller.id.hex(), caller.name, caller.terms.team, caller.terms.user, caller.terms.tags, model)


def subjects(rule: BudgetRule, spender: Spender) -> Sequence[str]:
    """Return whose budgets count a call by a rule: the names that have one each; none: it is not counted."""
    if not _counts(rule, spender):
        return ()
    match rule.scope:
        case "gateway":
            return ("",)
        case "key":
            return (spender.key_id,)
        case "team":
            return (spender.team,) if spender.team else ()
        case "user":
            return (spender.user,) if spender.user else ()
        case "model":
            return (spender.model,) if spender.model else ()
        case "tag":
            return tuple(tag for tag in spender.tags if not rule.tags or tag in rule.tags)


def _counts(rule: BudgetRule, spender: Spender) -> bool:
    if rule.owner and rule.owner != {"team": spender.team, "user": spender.user}.get(rule.scope, spender.key_id):
        return False
    if rule.keys and spender.key_name not in rule.keys:
        return False
    if rule.teams and spender.team not in rule.teams:
        return False
    if rule.users and spender.user not in rule.users:
        return False
    if rule.tags and not set(rule.tags) & set(spender.tags):
        return False
    return not rule.models or any(matches(pattern, spender.model) for pattern in rule.models)


def own_rules(caller: Caller) -> Iterator[BudgetRule]:
    """Yield the rules that the budgets of a caller's key, team and user are."""
    for scope, owner, budgets in own_budgets(caller):
        yield from rules_of(scope, owner, budgets)


def own_budgets(caller: Caller) -> Iterator[tuple[BudgetScope, str, tuple[Budget, ...]]]:
    """Yield what a caller's key, team and user have, each with its scope and whose it is."""
    terms = caller.terms
    if terms.budgets:
        yield "key", caller.id.hex(), terms.budgets
    if terms.team and terms.team_budgets:
        yield "team", terms.team, terms.team_budgets
    if terms.user and terms.user_budgets:
        yield "user", terms.user, terms.user_budgets


def rules_of(scope: BudgetScope, owner: str, budgets: Iterable[Budget]) -> Iterator[BudgetRule]:
    """Yield the rules that the budgets of one owner are."""
    for n, each in enumerate(budgets):
        yield BudgetRule(f"budgets[{n}] of the {scope}", scope, each, owner=owner)


def by_identity(rules: Iterable[BudgetRule]) -> dict[str, BudgetRule]:
    """Return rules by what identifies their budgets: of two limits of one window the lower one holds."""
    found: dict[str, BudgetRule] = {}
    for rule in rules:
        first = found.setdefault(rule.identity, rule)
        if rule.budget.limit < first.budget.limit:
            found[rule.identity] = rule
    return found


def has_budgets(caller: Caller | KeyEntry) -> bool:
    """Say whether a caller, or a key, has budgets that no rule of the settings is."""
    terms = caller.terms
    return bool(terms.budgets or terms.team_budgets or terms.user_budgets)


class BudgetLabel(NamedTuple):
    """What a row of the shared table says of itself, for those who read it: metrics, alerts, the admin listener.

    who: the name that has this budget; of a key `ID NAME`.
    """

    name: str
    scope: str
    who: str
    is_tokens: bool
    window: BudgetPeriod
    zone: str
    start_s: int
    soft: tuple[int, ...]

    @classmethod
    def of(cls, rule: BudgetRule, who: str) -> BudgetLabel:
        """Return that of one row."""
        budget = rule.budget
        more = (budget.is_tokens, budget.window, budget.zone, budget.start_s, budget.soft)
        return cls(rule.name, rule.scope, who[:_WHO_CHARS], *more)

    @classmethod
    def read(cls, text: bytes) -> BudgetLabel | None:
        """Return that of a row's text; None: it is none, or not whole yet."""
        try:
            name, scope, who, is_tokens, window, zone, start_s, soft = json.loads(text)
            return cls(name, scope, who, is_tokens, window, zone, start_s, tuple(soft))
        except (ValueError, TypeError):
            return None

    def packed(self, most_bytes: int) -> bytes:
        """Return the text of a row, with a name that is cut until it fits."""
        label = self
        while len(text := json.dumps(label, ensure_ascii=True, separators=(",", ":")).encode()) > most_bytes:
            label = (
                label._replace(who=label.who[: len(label.who) // 2]) if label.who else label._replace(name="", soft=())
            )
        return text

    def budget(self, limit: int) -> Budget:
        """Return the budget, with a limit as it is now."""
        nano, tokens = (None, limit) if self.is_tokens else (limit, None)
        budget = Budget(nano, tokens, self.window, self.zone, self.soft)
        return replace(budget, start_s=self.start_s)
