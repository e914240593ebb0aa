"""The limits as configured: what one rule is, and which rules apply to a caller.

Knows: scopes, callers and rates. Does not know: how a rule is written (settings/callers/limits.py), or what has been
used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from velox.policy.patterns import is_exact
from velox.types import NO_RATES, Caller, KeyEntry, Rates, Scope

__all__ = ["SCOPES", "Buckets", "LimitRule", "buckets_needed", "called", "rules_of"]

# As `per` has them.
SCOPES: Final = {
    "gateway": Scope.GATEWAY,
    "team": Scope.TEAM,
    "user": Scope.USER,
    "key": Scope.KEY,
    "model": Scope.MODEL,
    "key+model": Scope.KEY_MODEL,
}
_OF_MODEL: Final = frozenset({Scope.MODEL, Scope.KEY_MODEL})
_WORDS: Final = {scope: word for word, scope in SCOPES.items()}


@dataclass(frozen=True, slots=True)
class LimitRule:
    """One rule. scope: what has a quota of its own. keys, models: which requests are counted at all, with any scope.

    name: as messages call it: "VELOX_RATE_LIMIT", "VELOX_KEY", "limits[2]" (see `called`). rates: bursts filled in.
    keys: names of callers; none: every one. models: patterns, as a key's; none: every model, and requests without one.
    of_key: every key may have its own rates instead of these (VELOX_KEY_RPM and the like). own: those that it has.
    """

    name: str
    scope: Scope
    rates: Rates
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    of_key: bool = False
    own: Rates = field(default=NO_RATES, compare=False)
    where: str = field(default="", compare=False)
    # Where `keys` stands, for a problem.
    keys_where: str = field(default="", compare=False)

    @property
    def per(self) -> str:
        """Return the scope as it is written."""
        return _WORDS[self.scope]

    @property
    def is_open_ended(self) -> bool:
        """True if clients' words decide how many buckets there are: models that the rule does not name."""
        return self.scope in _OF_MODEL and not (self.models and all(map(is_exact, self.models)))


def called(rule: LimitRule, rate: str) -> str:
    """Return what a message calls one rate of a rule: a field of Rates.

    "VELOX_KEY_RPM"; "rpm of the key" where it has its own; "limits[2].tpm".
    """
    if getattr(rule.own, rate):
        return f"{rate} of the key"
    return f"{rule.name}_{rate.upper()}" if rule.name.startswith("VELOX_") else f"{rule.name}.{rate}"


def rules_of(caller: Caller, rules: Iterable[LimitRule]) -> tuple[LimitRule, ...]:
    """Return the rules that count a caller's requests, with its own key's rates in the one for every key.

    Those that its team and its user have are among them.
    """
    found = [LimitRule(name, scope, rates) for name, scope, rates in _own(caller) if rates != NO_RATES]
    for rule in rules:
        if rule.of_key and caller.terms.rates != NO_RATES:
            rule = replace(rule, rates=caller.terms.rates.over(rule.rates), own=caller.terms.rates)
        if (rule.scope is Scope.TEAM and not caller.terms.team) or (rule.scope is Scope.USER and not caller.terms.user):
            continue
        if rule.rates != NO_RATES and (not rule.keys or caller.name in rule.keys):
            found.append(rule)
    return tuple(found)


def _own(caller: Caller) -> tuple[tuple[str, Scope, Rates], ...]:
    return ("team", Scope.TEAM, caller.terms.team_rates), ("user", Scope.USER, caller.terms.user_rates)


# Where a rule does not name its models: so many of a key, and of all. What is needed above that comes as it is used.
_MODELS_OF_KEY: Final = 8
_MODELS: Final = 256
# Rows that are set aside from the start for models that nobody has named yet.
_MOST_ASSUMED: Final = 262_144


class Buckets(NamedTuple):
    """How many buckets limits need. named: by what the configuration says. open_ended: for models of clients."""

    named: int
    open_ended: int


def buckets_needed(rules: Iterable[LimitRule], keys: Iterable[KeyEntry]) -> Buckets:
    """Return how many buckets there are if each key uses each of its limits. No keys: there is one caller."""
    found = list(keys)
    rates = Counter(key.terms.rates for key in found) or Counter([NO_RATES])
    names = Counter(key.caller_name for key in found)
    n_callers = max(1, len(found))
    teams = {key.terms.team: key.terms.team_rates for key in found if key.terms.team}
    users = {key.terms.user: key.terms.user_rates for key in found if key.terms.user}
    named = sum(_n_limits(own) for own in (*teams.values(), *users.values()))
    open_ended = 0
    for rule in rules:
        if rule.of_key:
            named += sum(n * _n_limits(own.over(rule.rates)) for own, n in rates.items())
            continue
        n_keys = sum(names[name] for name in set(rule.keys)) if rule.keys else n_callers
        n = _n_limits(rule.rates)
        if rule.scope in (Scope.KEY, Scope.KEY_MODEL):
            n *= n_keys
        elif rule.scope in (Scope.TEAM, Scope.USER):
            n *= len(teams if rule.scope is Scope.TEAM else users)
        if rule.is_open_ended:
            open_ended += n * (_MODELS if rule.scope is Scope.MODEL else _MODELS_OF_KEY)
        else:
            named += n * (len(rule.models) if rule.scope in _OF_MODEL else 1)
    return Buckets(named, min(open_ended, _MOST_ASSUMED))


def _n_limits(rates: Rates) -> int:
    return bool(rates.rpm) + bool(rates.tpm) + bool(rates.concurrency)
