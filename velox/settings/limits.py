"""The list of limits: how it is written in the file or in VELOX_LIMITS.

Knows: the fields of a rule and their bounds. Does not know: which requests a rule counts (policy/limit_rules.py).

    limits:
      - per: key
        keys: [team-a]
        models: [gpt-4o*]
        rpm: 600
        tpm: 200k
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from velox.policy.limit_rules import SCOPES, LimitRule
from velox.settings.file import Field, Item, compose, list_items
from velox.settings.keys import KEY_NAME, parse_models
from velox.settings.problems import Problem, quoted, unknown
from velox.settings.rates import RATE_FIELDS, parse_rates
from velox.types import Scope

__all__ = ["parse_limits", "parse_list"]

_VARIABLE: Final = "VELOX_LIMITS"
_FIELDS: Final = ("per", "keys", "models", *RATE_FIELDS)
# Each is looked at once for every caller and model.
_MOST_RULES: Final = 256
_MOST_NAMES: Final = 10_000


def parse_limits(items: Sequence[Item]) -> tuple[tuple[LimitRule, ...], list[Problem]]:
    """Return the rules of a YAML list, and everything that is wrong with it."""
    problems: list[Problem] = []
    if len(items) > _MOST_RULES:
        problems.append(Problem("limits", "", f"expected at most {_MOST_RULES}", where=items[_MOST_RULES].where))
        return (), problems
    rules = []
    for n, item in enumerate(items):
        if item.fields:
            rules.append(_rule(n, item, problems))
        else:
            problems.append(
                Problem("a limit", "", "expected fields such as `per: key` and `rpm: 600`", where=item.where)
            )
    return tuple(rules), problems


def parse_list(text: str) -> tuple[LimitRule, ...]:
    """Parse the same list as one text: `[{per: key, rpm: 60}]`."""
    root, problems = compose(text.encode("utf-8", "surrogateescape"), _VARIABLE)
    items = None if problems or root is None else list_items(_VARIABLE, root)
    if items is None:
        raise ValueError("expected a YAML list such as [{per: key, rpm: 600}]")
    rules, problems = parse_limits(items)
    if problems:
        raise ValueError("; ".join(f"{problem.name}: {problem.expected}" for problem in problems))
    return rules


def _rule(n: int, item: Item, problems: list[Problem]) -> LimitRule:
    given: dict[str, Field] = {}
    for one in item.fields:
        if one.key in given:
            problems.append(Problem(one.key, "", "expected each field of a limit once", where=one.where))
        elif one.key not in _FIELDS:
            problems.append(Problem(one.key, "", unknown("field of a limit", one.key, _FIELDS), where=one.where))
        given[one.key] = one
    scope = _scope(item, given, problems)
    rates = parse_rates(given, problems)
    if not set(RATE_FIELDS) & set(given):
        problems.append(Problem("a limit", "", "expected rpm, tpm or concurrency: it limits nothing", where=item.where))
    keys = _keys(given["keys"], problems) if "keys" in given else ()
    models = parse_models(given["models"], problems) if "models" in given else ()
    keys_where = given["keys"].where if "keys" in given else ""
    return LimitRule(f"limits[{n}]", scope, rates, keys, models, where=item.where, keys_where=keys_where)


def _scope(item: Item, given: dict[str, Field], problems: list[Problem]) -> Scope:
    words = "gateway, key, model or key+model"
    if "per" not in given:
        expected = f"expected `per`, which is {words}: what has the limit for itself"
        problems.append(Problem("a limit", "", expected, where=item.where))
        return Scope.GATEWAY
    per = given["per"]
    if per.is_list or per.text not in SCOPES:
        problems.append(Problem("per", quoted(per.text), f"expected {words}", where=per.where))
        return Scope.GATEWAY
    return SCOPES[per.text]


def _keys(given: Field, problems: list[Problem]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in given.text.split(",")))
    if not all(KEY_NAME.fullmatch(name) for name in names) or len(names) > _MOST_NAMES:
        problems.append(Problem("keys", "", "expected names of keys, and never a key itself", where=given.where))
    return names
