"""The limits as configured: what one rule is, and which rules apply to a caller.

Knows: scopes, callers and rates. Does not know: how a rule is written (settings/limits.py), or what has been used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from velox.types import NO_RATES, Caller, Rates, Scope

__all__ = ["SCOPES", "LimitRule", "called", "rules_of"]

# As `per` has them.
SCOPES: Final = {"gateway": Scope.GATEWAY, "key": Scope.KEY, "model": Scope.MODEL, "key+model": Scope.KEY_MODEL}
_WORDS: Final = {scope: word for word, scope in SCOPES.items()}


@dataclass(frozen=True, slots=True)
class LimitRule:
    """One rule. scope: what has a quota of its own. keys, models: which requests are counted at all, with any scope.

    name: as messages call it: "VELOX_RATE_LIMIT", "VELOX_KEY", "limits[2]" (see `called`). rates: bursts filled in.
    keys: names of callers; none: every one. models: patterns, as a key's; none: every model, and requests without one.
    of_key: every key may have its own rates instead of these (VELOX_KEY_RPM and the like).
    """

    name: str
    scope: Scope
    rates: Rates
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    of_key: bool = False
    where: str = field(default="", compare=False)
    # Where `keys` stands, for a problem.
    keys_where: str = field(default="", compare=False)

    @property
    def per(self) -> str:
        """Return the scope as it is written."""
        return _WORDS[self.scope]


def called(rule: LimitRule, rate: str) -> str:
    """Return what a message calls one rate of a rule: "VELOX_KEY_RPM", "limits[2].tpm". rate: a field of Rates."""
    return f"{rule.name}_{rate.upper()}" if rule.name.startswith("VELOX_") else f"{rule.name}.{rate}"


def rules_of(caller: Caller, rules: Iterable[LimitRule]) -> tuple[LimitRule, ...]:
    """Return the rules that count a caller's requests, with its own key's rates in the one for every key."""
    found = []
    for rule in rules:
        if rule.of_key:
            rule = replace(rule, rates=caller.rates.over(rule.rates))
        if rule.rates != NO_RATES and (not rule.keys or caller.name in rule.keys):
            found.append(rule)
    return tuple(found)
