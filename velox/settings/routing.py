"""Upstreams and routes together: from the file's two lists, or from the variables alone; and routes that can't hold.

Knows: all upstreams, all routes and all keys; what is taken where one of the lists is not given, so that all else sees
one shape; routes to upstreams that are not there, in circles, never reached. Does not know: how an entry is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from velox.policy.patterns import is_exact, overlap
from velox.policy.route_match import shadowed
from velox.policy.routes import RouteEntry, Target, UpstreamEntry
from velox.settings.problems import Problem, quoted, unknown
from velox.settings.routes import implicit_route, parse_routes
from velox.settings.tree import Tree
from velox.settings.upstreams import implicit_upstreams, parse_upstreams

__all__ = ["NESTED", "add_routing", "route_problems"]

# The fields of the file that are no variables.
NESTED: Final = ("upstreams", "routes")


def add_routing(values: dict[str, object], trees: Mapping[str, Tree], environ: Mapping[str, str]) -> list[Problem]:
    """Add `upstreams` and `routes` to the values; return what is wrong with them.

    values: of the variables, by field; those that were wrong are missing. trees: what the file has under NESTED.
    """
    problems: list[Problem] = []
    upstreams: tuple[UpstreamEntry, ...]
    routes: tuple[RouteEntry, ...]
    if "upstreams" in trees:
        upstreams, problems = parse_upstreams(trees["upstreams"], values, environ)
    else:
        upstreams = implicit_upstreams(values)
    if "routes" in trees:
        routes, wrong = parse_routes(trees["routes"])
        problems += wrong
    else:
        routes = (implicit_route(upstreams, in_order="upstreams" not in trees),)
    # An upstream without a usable name is told of as such, and not as one that is missing.
    if all(upstream.name for upstream in upstreams) and upstreams:
        problems += _dangling(routes, [upstream.name for upstream in upstreams])
    problems += _key_problems(routes, _key_names(values))
    if not problems and upstreams:
        problems += route_problems(routes, upstreams)
    values["upstreams"], values["routes"] = upstreams, routes
    return problems


def route_problems(routes: Sequence[RouteEntry], upstreams: Iterable[UpstreamEntry]) -> Iterator[Problem]:
    """Say which routes go in circles, lead to nobody, or are never reached. Every upstream that they name is there."""
    by_name = {upstream.name: upstream for upstream in upstreams}
    for route in routes:
        yield from _circles(route)
        yield from _to_nobody(route, by_name)
    yield from _unreachable(routes)


def _key_names(values: Mapping[str, Any]) -> set[str] | None:
    """Return the names of all keys; None if they may change, or could not be read."""
    if "api_keys" not in values or values.get("api_keys_file", "") is not None:
        return None
    return {key.caller_name for key in values["api_keys"]}


def _dangling(routes: Iterable[RouteEntry], names: Collection[str]) -> Iterator[Problem]:
    """Say which upstreams are named and not there. names: of those that are."""
    for route in routes:
        for target in route.targets:
            if target.upstream not in names:
                expected = unknown("upstream", target.upstream, names)
                yield Problem(_field_of(route, target), quoted(target.upstream), expected, where=target.where)


def _key_problems(routes: Iterable[RouteEntry], names: Collection[str] | None) -> Iterator[Problem]:
    """Say which routes are for keys that nobody has. names: of all; None: VELOX_API_KEYS_FILE may change them."""
    for route in routes:
        if not route.match.keys or names is None:
            continue
        if not names:
            expected = "expected VELOX_API_KEYS or VELOX_API_KEYS_FILE with it: without keys all callers are one"
            yield Problem("match.keys", "", expected, where=route.match.keys_where)
        for n, name in enumerate(route.match.keys if names else (), 1):
            if name not in names:
                # Not by its name: it may be the key itself.
                expected = f"expected names of keys; name {n} of this route is no key's"
                yield Problem("match.keys", "", expected, where=route.match.keys_where)


def _circles(route: RouteEntry) -> Iterator[Problem]:
    """A fallback, or a share of the requests, that leads to where they were meant to go without it."""
    for target in route.fallback:
        if target in route.to:
            expected = (
                "expected an upstream, or a model of it, that is not in `to`: this one was tried already (a cycle)"
            )
            yield Problem("fallback", quoted(str(target)), expected, where=target.where)
    for name, share in (("mirror.to", route.mirror), ("canary.to", route.canary)):
        if share is not None and share.to in route.to:
            expected = "expected an upstream, or a model of it, that is not in `to`"
            yield Problem(name, quoted(str(share.to)), expected, where=share.to.where)


def _to_nobody(route: RouteEntry, upstreams: dict[str, UpstreamEntry]) -> Iterator[Problem]:
    """Say which target has not the model that it is asked for, and which model of a route none of `to` has."""
    for target in route.targets:
        if target.model is not None and not upstreams[target.upstream].has_model(target.model):
            expected = f"expected a model that the upstream has; its `models` are at {upstreams[target.upstream].where}"
            yield Problem(_field_of(route, target), quoted(str(target)), expected, where=target.where)
    unnamed = [upstreams[target.upstream] for target in route.to if target.model is None]
    if len(unnamed) < len(route.to):
        return
    for pattern in route.match.models:
        if not any(_may_have(upstream, pattern) for upstream in unnamed):
            kind = "model" if is_exact(pattern) else "any such model"
            expected = f"expected an upstream in `to` that has this {kind}; all of them have `models` without it"
            yield Problem("match.models", quoted(pattern), expected, where=route.where)


def _may_have(upstream: UpstreamEntry, pattern: str) -> bool:
    """True if an upstream has one of the models that a pattern is for."""
    return not upstream.models or any(overlap(each, pattern) for each in upstream.models)


def _unreachable(routes: Sequence[RouteEntry]) -> Iterator[Problem]:
    """Say which routes stand after one that takes all their requests.

    An error and not a warning: nobody writes a route that nothing reaches on purpose, and a reload that is refused
    leaves everything as it was.
    """
    for route, before in shadowed(routes):
        place = f"expected before {before.name} ({before.where})"
        expected = f"{place}, which takes all that it is for: nothing reaches it here"
        yield Problem("a route", quoted(route.name), expected, where=route.where)


def _field_of(route: RouteEntry, target: Target) -> str:
    """Return where a target stands in its route. By identity: two that are equal may stand in two places."""
    if any(each is target for each in route.to):
        return "to"
    if any(each is target for each in route.fallback):
        return "fallback"
    return "mirror.to" if route.mirror is not None and route.mirror.to is target else "canary.to"
