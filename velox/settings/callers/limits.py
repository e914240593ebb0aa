"""What limits are made of, and the list of them in the file or in VELOX_LIMITS.

Knows: the fields rpm, burst, tpm, tpm_burst and concurrency, which a key may have too, their bounds, and bursts that
are not given; the fields of a rule. Does not know: which requests a rule counts (policy/limits/limit_rules.py).

    limits:
      - per: key
        keys: [team-a]
        models: [gpt-4o*]
        rpm: 600
        tpm: 200k
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from velox.policy.limits.limit_rules import SCOPES, LimitRule
from velox.policy.spellings import MOST_BURST, MOST_CONCURRENCY, MOST_RPM, MOST_TPM, filled
from velox.settings import parse
from velox.settings.problems import Problem, quoted
from velox.settings.yaml.file import compose, list_items
from velox.settings.yaml.tree import Entry, Tree, fields_of
from velox.types import Rates, Scope

__all__ = ["RATE_FIELDS", "parse_limits", "parse_list", "parse_names", "parse_rates", "rules_in"]

T = TypeVar("T")

_VARIABLE: Final = "VELOX_LIMITS"

_MOST: Final = {
    "rpm": MOST_RPM,
    "burst": MOST_BURST,
    "tpm": MOST_TPM,
    "tpm_burst": MOST_TPM,
    "concurrency": MOST_CONCURRENCY,
}
RATE_FIELDS: Final = tuple(_MOST)
_RATE_OF: Final = {"burst": "rpm", "tpm_burst": "tpm"}
_FIELDS: Final = ("per", "keys", "models", *RATE_FIELDS)
# Each is looked at once for every caller and model.
_MOST_RULES: Final = 256
_MOST_NAMES: Final = 10_000


def parse_rates(given: Mapping[str, Entry], problems: list[Problem], *, secret: bool = False) -> Rates:
    """Return the rates that the fields of a mapping give, bursts filled in; what is wrong is added to `problems`.

    secret: no value is shown, because the mapping contains a key too.
    """
    found: dict[str, int] = {}
    for name in RATE_FIELDS:
        if name not in given:
            continue
        text = given[name].value.text
        try:
            if text is None:
                raise ValueError("expected one number, not a list")
            found[name] = parse.count(1, _MOST[name])(text)
        except ValueError as exc:
            shown = "" if secret or text is None else quoted(text)
            problems.append(Problem(name, shown, str(exc), where=given[name].where))
    for name, rate in _RATE_OF.items():
        if name in given and rate not in given:
            expected = f"expected {rate} with it: a burst is how much of a rate may come at once"
            problems.append(Problem(name, "", expected, where=given[name].where))
    return filled(Rates(**found))


def parse_names(given: Entry, read: Callable[[str], str], problems: list[Problem]) -> tuple[str, ...]:
    """Return the names or patterns in a field, without duplicates; what is wrong with them is added to `problems`."""
    names = tuple(dict.fromkeys(name.strip() for name in given.value.joined.split(",")))
    try:
        # An empty list is refused too: it could mean none, or all.
        for name in names:
            read(name)
    except ValueError as exc:
        problems.append(Problem(given.key, "", str(exc), where=given.where))
    return names


def parse_limits(items: Sequence[Tree]) -> tuple[tuple[LimitRule, ...], list[Problem]]:
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
    return rules_in(text, _VARIABLE, parse_limits, example="[{per: key, rpm: 600}]")


def rules_in(
    text: str, variable: str, parse_items: Callable[[Sequence[Tree]], tuple[tuple[T, ...], list[Problem]]], example: str
) -> tuple[T, ...]:
    """Return the rules of a YAML list that is one text. Raises ValueError with all that is wrong with it."""
    root, problems = compose(text.encode("utf-8", "surrogateescape"), variable)
    items = None if problems or root is None else list_items(variable, root)
    if items is None:
        raise ValueError(f"expected a YAML list such as {example}")
    rules, problems = parse_items(items)
    if problems:
        raise ValueError("; ".join(f"{problem.name}: {problem.expected}" for problem in problems))
    return rules


def _rule(n: int, item: Tree, problems: list[Problem]) -> LimitRule:
    given = fields_of(item, "a limit", _FIELDS, problems)
    scope = _scope(item, given, problems)
    rates = parse_rates(given, problems)
    if not set(RATE_FIELDS) & set(given):
        problems.append(Problem("a limit", "", "expected rpm, tpm or concurrency: it limits nothing", where=item.where))
    keys = parse_names(given["keys"], parse.key_name, problems) if "keys" in given else ()
    models = parse_names(given["models"], parse.model_pattern, problems) if "models" in given else ()
    keys_where = given["keys"].where if "keys" in given else ""
    if len(keys) > _MOST_NAMES:
        problems.append(Problem("keys", "", "expected names of keys, and never a key itself", where=keys_where))
    return LimitRule(f"limits[{n}]", scope, rates, keys, models, where=item.where, keys_where=keys_where)


def _scope(item: Tree, given: dict[str, Entry], problems: list[Problem]) -> Scope:
    words = "gateway, team, user, key, model or key+model"
    if "per" not in given:
        expected = f"expected `per`, which is {words}: what has the limit for itself"
        problems.append(Problem("a limit", "", expected, where=item.where))
        return Scope.GATEWAY
    per = given["per"]
    if per.value.text not in SCOPES:
        problems.append(Problem("per", quoted(per.value.joined), f"expected {words}", where=per.where))
        return Scope.GATEWAY
    return SCOPES[per.value.text]
