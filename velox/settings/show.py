"""The settings as people read them: the lines of `velox check`, and README's table.

Knows: how each kind of value is written, every rule, upstream and route, and where each was written. Does not know: who
prints them. No secret is shown, no value of a header that is set, and no name of a key that no key has: either may be a
secret by mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Final

from velox.policy.limit_rules import LimitRule, called
from velox.policy.routes import HeaderRules, Match, RouteEntry, Target, UpstreamEntry
from velox.settings.model import VARIABLES, Settings
from velox.settings.problems import on_one_line
from velox.types import NO_RATES, KeyEntry, Rates, Secret

__all__ = ["effective", "limit_lines", "markdown", "match_text", "route_lines", "shown_keys", "upstream_lines"]

# What None means to these.
_OFF: Final = frozenset({"admin_listen", "memory_soft_bytes", "memory_hard_bytes"})
# More would push everything else out of sight.
_MOST_KEYS: Final = 20
_MOST_ROUTES: Final = 100
_WIDEST: Final = 60  # a longer text moves what follows in its own line only


def effective(settings: Settings) -> list[tuple[str, str, str]]:
    """Return (variable, value in use, where it came from) for each variable; secrets are hidden."""
    rows = []
    for variable in VARIABLES:
        origin = settings.origins[variable.name]
        if variable.field == "upstream_origins" and settings.upstreams[0].where:
            shown = "see below"
        elif variable.secret:
            # The field may hold what came from a file: the row tells of this variable only.
            shown = "none" if origin == "default" else "hidden"
        else:
            shown = _shown(variable.field, getattr(settings, variable.field))
        if shown == "none" and variable.shown_default:
            shown = variable.shown_default
        rows.append((variable.name, on_one_line(shown), origin))
    return rows


def markdown() -> str:
    """Return the table of all variables in Markdown, ending with a line end."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{v.name}` | {v.shown_default or v.default or 'none'} | {v.meaning} |" for v in VARIABLES]
    return "\n".join(lines) + "\n"


def limit_lines(settings: Settings) -> list[str]:
    """Return a line for each limit: what it is called, whom it is for, how much it is, where it was written."""
    names = {key.caller_name for key in settings.api_keys}
    rows = [
        (_rule_name(rule), f"per {rule.per}{_filter(rule, names)}", _amounts(rule.rates), _rule_origin(settings, rule))
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


def upstream_lines(settings: Settings) -> list[str]:
    """Return two lines for each upstream: its name, where it is, where it was written; what is said of it."""
    origin = settings.origins["VELOX_UPSTREAM_ORIGIN"]
    return _lines(
        "upstream",
        [
            (entry.name, ", ".join(map(str, entry.origins)), _of_upstream(entry), entry.where or origin)
            for entry in settings.upstreams
        ],
    )


def route_lines(settings: Settings) -> list[str]:
    """Return two lines for each route: its name, what it is for, where it was written; where it leads."""
    names = {key.caller_name for key in settings.api_keys}
    shown = settings.routes[:_MOST_ROUTES]
    rows = [(route.name, match_text(route.match, names), _of_route(route), route.where or "default") for route in shown]
    lines = _lines("route", rows)
    if len(settings.routes) > len(shown):
        lines.append(f"route: and {len(settings.routes) - len(shown)} more")
    return lines


def match_text(match: Match, names: Collection[str]) -> str:
    """Say which requests are meant. names: of all keys."""
    parts = []
    if match.models:
        parts.append(f"models {', '.join(match.models)}")
    if match.paths:
        parts.append(f"paths {', '.join(match.paths)}")
    if match.headers:
        parts.append(f"headers {', '.join(f'{name}: {value}' for name, value in match.headers)}")
    if match.keys:
        parts.append(f"keys {shown_keys(match.keys, names)}")
    if match.tags:
        parts.append(f"tags {', '.join(match.tags)}")
    return "; ".join(parts) or "everything"


def shown_keys(keys: Iterable[str], names: Collection[str]) -> str:
    """Return the names of keys that there are, and how many there are not."""
    given = list(keys)
    known = [name for name in given if name in names]
    n_unknown = len(given) - len(known)
    return ", ".join([*known, *([f"{n_unknown} that no key has now"] if n_unknown else [])])


def _shown(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None and field in _OFF:
        return "off"
    if value is None:
        return "none"
    if isinstance(value, Secret):
        return "hidden"
    if field == "limits" and isinstance(value, tuple) and value:
        return f"{len(value)}, see below"
    if isinstance(value, tuple):
        return "*" if value == ("/",) else ",".join(map(str, value)) or "none"
    if isinstance(value, frozenset):
        return ",".join(map(str, sorted(value))) or "none"
    if isinstance(value, float):
        return f"{value:g}s" if value >= 1 or value == 0 else f"{value * 1000:g}ms"
    if isinstance(value, int) and field == "upstream_concurrency":
        return str(value or "off")
    if isinstance(value, int) and field == "listen_mode":
        return f"{value:04o}"
    if isinstance(value, int) and field.endswith("_bytes"):
        return _shown_size(value)
    return str(value)


def _shown_size(n_bytes: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n_bytes % 2**power == 0:
            return f"{n_bytes >> power}{unit}"
    return str(n_bytes)


def _rule_name(rule: LimitRule) -> str:
    """Return the rule's name; of those of variables the first one that limits something."""
    if rule.where:
        return rule.name
    return next(called(rule, each.name) for each in fields(Rates) if getattr(rule.rates, each.name))


def _filter(rule: LimitRule, names: Collection[str]) -> str:
    """Say which requests a rule counts."""
    parts = [f"keys {shown_keys(rule.keys, names)}"] if rule.keys else []
    parts += [f"models {', '.join(rule.models)}"] if rule.models else []
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


def _rule_origin(settings: Settings, rule: LimitRule) -> str:
    if rule.where:
        return rule.where
    origins = {settings.origins[called(rule, each.name)] for each in fields(Rates)}
    return ", ".join(sorted(origins - {"default"})) or "default"


def _of_upstream(entry: UpstreamEntry) -> str:
    keys = ", ".join(map(str, entry.keys))
    parts = [f"keys {keys}" if keys else "the client's own key", f"http2 {entry.http2}"]
    if entry.weight != 1:
        parts.append(f"weight {entry.weight}")
    if entry.concurrency:
        parts.append(f"concurrency {entry.concurrency}")
    if entry.models:
        parts.append(f"models {', '.join(entry.models)}")
    if entry.headers:
        parts.append(f"sets {_names(name for name, _ in entry.headers)}")
    if entry.load != "off":
        parts.append(f"load {entry.load}")
    if entry.probe is not None:
        parts.append(f"probe {entry.probe.path} every {entry.probe.every_s:g}s")
    for name, path in (("ca", entry.ca_file), ("certificate", entry.cert_file)):
        if path is not None:
            parts.append(f"{name} {path}")
    return "; ".join(parts)


def _of_route(route: RouteEntry) -> str:
    parts = [f"to {_targets(route.to)}"]
    if len(route.to) > 1:
        parts[0] += f" by {route.balance}"
    if route.hash_on is not None:
        parts.append(f"hash on {route.hash_on}")
    if route.fallback:
        parts.append(f"then {_targets(route.fallback)}")
    if route.hedge is not None:
        parts.append(f"hedge after {route.hedge.after}, at most {route.hedge.at_most_percent:g}%")
    if route.canary is not None:
        parts.append(f"canary {route.canary.percent:g}% to {route.canary.to}")
    if route.mirror is not None:
        parts.append(f"mirror {route.mirror.percent:g}% to {route.mirror.to}")
    for name, rules in (("request", route.request_headers), ("response", route.response_headers)):
        if rules:
            parts.append(f"{name} {_rules(rules)}")
    return "; ".join(parts)


def _rules(rules: HeaderRules) -> str:
    parts = []
    if rules.set:
        parts.append(f"sets {_names(name for name, _ in rules.set)}")
    if rules.remove:
        parts.append(f"removes {_names(rules.remove)}")
    return ", ".join(parts)


def _targets(targets: Iterable[Target]) -> str:
    return ", ".join(map(str, targets))


def _names(names: Iterable[bytes]) -> str:
    return ", ".join(name.decode("ascii") for name in names)


def _lines(kind: str, rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Return two lines for each row: its name, its first text and its place; then the longer text."""
    widths = [min(_WIDEST, max(len(row[at]) for row in rows)) for at in range(2)]
    lines = []
    for name, first, more, where in rows:
        lines += [f"{kind}: {name:{widths[0]}}  {first:{widths[1]}}  {where}", f"    {more}"]
    return [on_one_line(line) for line in lines]
