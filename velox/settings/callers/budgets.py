"""The list of budgets in the file or in VELOX_BUDGETS.

Knows: the fields of a rule, and that no two rules may be one budget. Does not know: amounts and windows
(policy/budgets/budget.py, which reads those fields), or whose budgets count a call (policy/budgets/rules.py).

    budgets:
      - per: team
        usd: 500
        window: month
        zone: Europe/Berlin
        soft: [80, 100]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from velox.policy.budgets.budget import BUDGET_FIELDS, BudgetError, parse_budget
from velox.policy.budgets.rules import BUDGET_SCOPES, BudgetRule, BudgetScope
from velox.settings import parse
from velox.settings.callers.limits import parse_names, rules_in
from velox.settings.problems import Problem, quoted
from velox.settings.yaml.tree import Entry, Tree, fields_of

__all__ = ["parse_budget_list", "parse_budgets", "parse_scopes"]

_VARIABLE: Final = "VELOX_BUDGETS"
_FILTERS: Final[Mapping[str, Callable[[str], str]]] = {
    "keys": parse.key_name,
    "teams": parse.owner,
    "users": parse.owner,
    "tags": parse.tag,
    "models": parse.model_pattern,
}
_FIELDS: Final = ("per", *_FILTERS, *BUDGET_FIELDS)
# Each is looked at once for every caller and model.
_MOST_RULES: Final = 256


def parse_budgets(items: Sequence[Tree]) -> tuple[tuple[BudgetRule, ...], list[Problem]]:
    """Return the rules of a YAML list, and everything that is wrong with it."""
    problems: list[Problem] = []
    if len(items) > _MOST_RULES:
        problems.append(Problem("budgets", "", f"expected at most {_MOST_RULES}", where=items[_MOST_RULES].where))
        return (), problems
    found: dict[str, BudgetRule] = {}
    for n, item in enumerate(items):
        rule = _rule(n, item, problems)
        if rule is None:
            continue
        first = found.setdefault(rule.identity, rule)
        if first is not rule:
            expected = f"expected each budget once; {first.where} has the same scope, filters and window"
            problems.append(Problem("a budget", "", expected, where=item.where))
    return tuple(found.values()), problems


def parse_budget_list(text: str) -> tuple[BudgetRule, ...]:
    """Parse the same list as one text: `[{per: key, usd: 5, window: day}]`."""
    return rules_in(text, _VARIABLE, parse_budgets, example="[{per: key, usd: 5, window: day}]")


def parse_scopes(text: str) -> frozenset[str]:
    """Parse scopes with commas between them; `off` is none."""
    found = frozenset(word.strip() for word in text.split(","))
    if found == {"off"}:
        return frozenset()
    if not found <= set(BUDGET_SCOPES):
        raise ValueError(f"expected some of {', '.join(BUDGET_SCOPES)}, or off")
    return found


def _rule(n: int, item: Tree, problems: list[Problem]) -> BudgetRule | None:
    """Return a rule; None: it can't be used, and `problems` says why."""
    if not item.fields:
        expected = "expected fields such as `per: key`, `usd: 5` and `window: day`"
        problems.append(Problem("a budget", "", expected, where=item.where))
        return None
    n_before = len(problems)
    given = fields_of(item, "a budget", _FIELDS, problems)
    scope = _scope(item, given, problems)
    names = {name: parse_names(given[name], read, problems) if name in given else () for name, read in _FILTERS.items()}
    if len(problems) > n_before:
        return None
    fields: dict[str, object] = {name: _value(given[name].value) for name in BUDGET_FIELDS if name in given}
    try:
        budget = parse_budget(fields)
    except BudgetError as exc:
        entry = given.get(exc.field)
        shown, where = ("", item.where) if entry is None else (quoted(entry.value.joined), entry.where)
        problems.append(Problem(exc.field, shown, exc.expected, where=where))
        return None
    return BudgetRule(
        f"budgets[{n}]",
        scope,
        budget,
        names["keys"],
        names["teams"],
        names["users"],
        names["tags"],
        names["models"],
        where=item.where,
    )


def _scope(item: Tree, given: dict[str, Entry], problems: list[Problem]) -> BudgetScope:
    words = f"{', '.join(BUDGET_SCOPES[:-1])} or {BUDGET_SCOPES[-1]}"
    per = given.get("per")
    if per is None:
        expected = f"expected `per`, which is {words}: what has the budget for itself"
        problems.append(Problem("a budget", "", expected, where=item.where))
        return "gateway"
    scope: BudgetScope | None = next((word for word in BUDGET_SCOPES if word == per.value.text), None)
    if scope is None:
        problems.append(Problem("per", quoted(per.value.joined), f"expected {words}", where=per.where))
        return "gateway"
    return scope


def _value(tree: Tree) -> str | list[str]:
    if tree.items is not None:
        return [item.text or "" for item in tree.items]
    return tree.text or ""
