"""The upstreams and routes as people read them: the lines of `velox check`.

Knows: every field of both, and where each was written. Does not know: who prints them. No value of a header that is set
is shown, and no name of a key that no key has: either may be a secret by mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from velox.policy.routes import HeaderRules, Match, RouteEntry, Target, UpstreamEntry
from velox.settings.model import Settings
from velox.settings.problems import on_one_line

__all__ = ["match_text", "route_lines", "shown_keys", "upstream_lines"]

# More would push everything else out of sight.
_MOST_ROUTES: Final = 100
_WIDEST: Final = 60  # a longer text moves what follows in its own line only


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
