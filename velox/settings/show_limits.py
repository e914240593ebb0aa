"""The limits as people read them: the lines of `velox check`.

Knows: every rule, the keys' own rates, and where each was written. Does not know: who prints them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from velox.policy.limit_rules import LimitRule, called
from velox.settings.model import Settings
from velox.settings.problems import on_one_line
from velox.types import NO_RATES, KeyEntry, Rates

__all__ = ["limit_lines"]

# The keys of a large file would push everything else out of sight.
_MOST_KEYS: Final = 20
_VARIABLES: Final = ("RPM", "BURST", "TPM", "TPM_BURST", "CONCURRENCY")


def limit_lines(settings: Settings) -> list[str]:
    """Return a line for each limit: what it is called, whom it is for, how much it is, where it was written."""
    names = {key.caller_name for key in settings.api_keys}
    rows = [
        (_name(rule), f"per {rule.per}{_filter(rule, names)}", _amounts(rule.rates), _origin(settings, rule))
        for rule in settings.limit_rules
        if rule.rates != NO_RATES
    ]
    own = [key for key in settings.api_keys if key.rates != NO_RATES or key.priority is not None]
    rows += [(f"key {key.caller_name}", "its own", _own(key), key.where) for key in own[:_MOST_KEYS]]
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    lines = [
        on_one_line(f"limit: {name:{widths[0]}}  {whom:{widths[1]}}  {amounts:{widths[2]}}  {origin}")
        for name, whom, amounts, origin in rows
    ]
    if len(own) > _MOST_KEYS:
        lines.append(f"limit: and {len(own) - _MOST_KEYS} more keys that have their own")
    return lines or ["limit: none"]


def _name(rule: LimitRule) -> str:
    """Return the rule's name; of those of variables the first one that limits something."""
    if rule.where:
        return rule.name
    return next(called(rule, each.name) for each in fields(Rates) if getattr(rule.rates, each.name))


def _filter(rule: LimitRule, names: set[str]) -> str:
    """Say which requests a rule counts. A name that no key has is not shown: it may be a key by mistake."""
    parts = []
    if rule.keys:
        known = [name for name in rule.keys if name in names]
        n_unknown = len(rule.keys) - len(known)
        missing = [f"{n_unknown} that no key has now"] if n_unknown else []
        parts.append(f"keys {', '.join(known + missing)}")
    if rule.models:
        parts.append(f"models {', '.join(rule.models)}")
    return f": {'; '.join(parts)}" if parts else ""


def _amounts(rates: Rates) -> str:
    parts = []
    if rates.rpm:
        parts.append(f"{rates.rpm:,} requests a minute, {rates.burst:,} at once")
    if rates.tpm:
        parts.append(f"{rates.tpm:,} tokens a minute, {rates.tpm_burst:,} at once")
    if rates.concurrency:
        parts.append(f"{rates.concurrency:,} running")
    return "; ".join(parts)


def _own(key: KeyEntry) -> str:
    parts = [_amounts(key.rates)] if key.rates != NO_RATES else []
    if key.priority is not None:
        parts.append(f"priority {key.priority.name.lower()}")
    return "; ".join(parts)


def _origin(settings: Settings, rule: LimitRule) -> str:
    if rule.where:
        return rule.where
    origins = {settings.origins[f"{rule.name}_{variable}"] for variable in _VARIABLES}
    return ", ".join(sorted(origins - {"default"})) or "default"
