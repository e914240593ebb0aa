"""`velox check --model ...`: which route a request would take, to which upstreams in which order, and why.

Knows: the settings, and what a request is given by on the command line. Does not know: which upstream works now, or has
room: nothing is asked of any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from velox.policy.route_match import Explanation, Passed, RouteTable
from velox.policy.routes import RouteEntry, Target
from velox.settings import Settings
from velox.settings.parse import header_name, header_value
from velox.settings.problems import on_one_line
from velox.settings.show import shown_keys
from velox.types import Headers

__all__ = ["explain", "read_headers"]

_MOST_PASSED: Final = 20
_HOW: Final = {
    "round_robin": "in turn, by weight",
    "least_inflight": "the one with the fewest requests running",
    "peak_ewma": "the faster and less busy one of two",
    "prefix": "the one that has seen the prompt's beginning",
}


def read_headers(texts: Iterable[str]) -> Headers:
    """Return the headers that are given as `NAME: VALUE`. Raises ValueError."""
    found: Headers = []
    for text in texts:
        name, _, value = text.partition(":")
        found.append((header_name(name.strip()).encode("ascii"), header_value(value.strip()).encode("ascii")))
    return found


def explain(settings: Settings, model: str | None, path: str, headers: Headers, key: str) -> tuple[bool, list[str]]:
    """Return whether a request would take some route, and the lines that say so.

    model: None: it names none. key: the name of the caller's key, "" for none.
    """
    table = RouteTable(settings.routes)
    found = table.explain(model, path.encode("utf-8", "surrogateescape"), headers, key, upstreams=settings.upstreams)
    names = {entry.caller_name for entry in settings.api_keys}
    lines = [*_passed(found.passed, names), *_taken(found)]
    return found.route is not None, [on_one_line(line) for line in lines]


def _passed(passed: Sequence[Passed], names: set[str]) -> Iterator[str]:
    for each in passed[:_MOST_PASSED]:
        wanted = shown_keys(each.route.match.keys, names) if each.field == "keys" else each.wanted
        yield f"not {_called(each.route)}: it is for {each.field} {wanted}; here {each.was}"
    if len(passed) > _MOST_PASSED:
        yield f"not {len(passed) - _MOST_PASSED} more"


def _taken(found: Explanation) -> Iterator[str]:
    route = found.route
    if route is None:
        yield "no route is for this request: it would be refused"
        return
    yield f"route {_called(route)}: the first that is for this request"
    shares = [f"{route.canary.percent:g}% to {route.canary.to}"] if route.canary is not None else []
    if found.targets:
        how = f", {_how(route)}" if len(found.targets) > 1 else ""
        yield f"  first {_targets(found.targets)}{how}"
    for target in found.fallbacks:
        yield f"  then {target}"
    for share in shares:
        yield f"  but {share}"
    if route.mirror is not None:
        yield f"  and a copy of {route.mirror.percent:g}% to {route.mirror.to}"
    if found.unusable:
        yield f"  never {_targets(found.unusable)}: not among its models"
    if not found.targets and not found.fallbacks:
        yield "  no upstream of this route has the model: it would be refused"


def _how(route: RouteEntry) -> str:
    return f"always the same one for the same {route.hash_on}" if route.balance == "hash" else _HOW[route.balance]


def _called(route: RouteEntry) -> str:
    return f"{route.name} ({route.where})" if route.where else route.name


def _targets(targets: Iterable[Target]) -> str:
    return ", ".join(map(str, targets))
