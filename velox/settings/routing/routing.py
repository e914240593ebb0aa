"""Upstreams and routes together: from the file's two lists, or from the variables alone; and checks of routes.

Knows: all upstreams, routes and keys; the defaults where a list is not given; routes to unknown upstreams, cycles,
unreachable routes. Does not know: how an entry is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from velox.policy.patterns import is_exact, overlap
from velox.policy.routes.entries import RouteEntry, Target, UpstreamEntry
from velox.policy.routes.match import shadowed
from velox.policy.routes.model_rule import ModelRule
from velox.settings.problems import Problem, quoted, unknown
from velox.settings.routing.found import Found, find_providers
from velox.settings.routing.model_facts import parse_model_facts
from velox.settings.routing.routes import implicit_route, parse_routes
from velox.settings.routing.sdk_variables import OwnPlaces
from velox.settings.routing.upstreams import implicit_upstreams, parse_upstreams, with_tls_digests
from velox.settings.yaml.tree import Tree

__all__ = ["NESTED", "add_routing", "route_problems"]

# The fields of the file that are no variables.
NESTED: Final = ("upstreams", "routes", "model_facts")


def add_routing(
    values: dict[str, object],
    trees: Mapping[str, Tree],
    environ: Mapping[str, str],
    *,
    finds_providers: bool = True,
    needs_keys: bool = True,
) -> list[Problem]:
    """Add `upstreams` and `routes` to the values; return what is wrong with them.

    values: of the variables, by field; those that were wrong are missing. trees: what the file has under NESTED.
    finds_providers: variables of providers make upstreams (found.py). needs_keys: without a key that an upstream names,
    the settings are wrong; else it is told in `missing_keys`.
    """
    problems: list[Problem] = []
    upstreams: tuple[UpstreamEntry, ...]
    routes: tuple[RouteEntry, ...]
    found, missing = Found(), list[str]()
    rules: Sequence[ModelRule] = ()
    if "upstreams" in trees:
        upstreams, problems = parse_upstreams(trees["upstreams"], values, environ, None if needs_keys else missing)
    else:
        upstreams = implicit_upstreams(values)
        if finds_providers and "routes" not in trees and upstreams:
            found = find_providers(environ, upstreams[0], OwnPlaces.of(values))
    if "model_facts" in trees:
        rules, wrong = parse_model_facts(trees["model_facts"])
        problems += wrong
        upstreams = tuple(map(partial(_with_facts, rules), upstreams))
    if "routes" in trees:
        routes, wrong = parse_routes(trees["routes"])
        problems += wrong
    else:
        routes = (*found.routes, implicit_route(upstreams, in_order="upstreams" not in trees))
        upstreams += tuple(map(partial(_with_facts, rules), found.upstreams))
    # An upstream without a valid name is reported as such, not as missing.
    if all(upstream.name for upstream in upstreams) and upstreams:
        problems += _dangling(routes, [upstream.name for upstream in upstreams])
    problems += _key_problems(routes, _key_names(values))
    if not problems and upstreams:
        problems += route_problems(routes, upstreams)
    values["upstreams"], values["routes"] = with_tls_digests(upstreams), routes
    values["unused_variables"] = (*cast(tuple[str, ...], values.get("unused_variables", ())), *found.told)
    values["unusable_variables"], values["missing_keys"] = found.unusable, tuple(dict.fromkeys(missing))
    return problems


def _with_facts(rules: Sequence[ModelRule], entry: UpstreamEntry) -> UpstreamEntry:
    """Return an upstream with what the rules say of models of its provider."""
    return replace(entry, model_facts=tuple(rule for rule in rules if rule.concerns(entry.provider)))


def route_problems(routes: Sequence[RouteEntry], upstreams: Iterable[UpstreamEntry]) -> Iterator[Problem]:
    """Report cycles, targets without the model, and unreachable routes. Every upstream that they name exists."""
    by_name = {upstream.name: upstream for upstream in upstreams}
    for route in routes:
        yield from _cycles(route)
        yield from _without_model(route, by_name)
    yield from _unreachable(routes)


def _key_names(values: Mapping[str, Any]) -> set[str] | None:
    """Return the names of all keys; None if they may change, or could not be read."""
    if "api_keys" not in values or values.get("api_keys_file", "") is not None or values.get("managed_keys", True):
        return None
    return {key.caller_name for key in values["api_keys"]}


def _dangling(routes: Iterable[RouteEntry], names: Collection[str]) -> Iterator[Problem]:
    """Report targets whose upstream does not exist. names: of all upstreams."""
    for route in routes:
        for target in route.targets:
            if target.upstream not in names:
                expected = unknown("upstream", target.upstream, names)
                yield Problem(_field_of(route, target), quoted(target.upstream), expected, where=target.where)


def _key_problems(routes: Iterable[RouteEntry], names: Collection[str] | None) -> Iterator[Problem]:
    """Report routes for keys that do not exist. names: of all keys; None: VELOX_API_KEYS_FILE may change them."""
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


def _cycles(route: RouteEntry) -> Iterator[Problem]:
    """Report a fallback, mirror or canary that leads to a target of `to`."""
    places = {target.place for target in route.to}
    for target in route.fallback:
        if target.place in places:
            expected = (
                "expected an upstream, or a model of it, that is not in `to`: this one was tried already (a cycle)"
            )
            yield Problem("fallback", quoted(str(target)), expected, where=target.where)
    for name, share in (("mirror.to", route.mirror), ("canary.to", route.canary)):
        if share is not None and share.to in route.to:
            expected = "expected an upstream, or a model of it, that is not in `to`"
            yield Problem(name, quoted(str(share.to)), expected, where=share.to.where)


def _without_model(route: RouteEntry, upstreams: dict[str, UpstreamEntry]) -> Iterator[Problem]:
    """Report targets without the model they are asked for, and models of a route that no upstream of `to` has."""
    for target in route.targets:
        if target.model is not None and not upstreams[target.upstream].has_model(target.model):
            expected = f"expected a model that the upstream has; its `models` are at {upstreams[target.upstream].where}"
            yield Problem(_field_of(route, target), quoted(str(target)), expected, where=target.where)
    unnamed = [(upstreams[target.upstream], target.strip) for target in route.to if target.model is None]
    if len(unnamed) < len(route.to):
        return
    for pattern in route.match.models:
        if not any(_may_have(upstream, pattern.removeprefix(strip)) for upstream, strip in unnamed):
            kind = "this model" if is_exact(pattern) else "any such model"
            expected = f"expected an upstream in `to` that has {kind}; all of them have `models` without it"
            yield Problem("match.models", quoted(pattern), expected, where=route.where)


def _may_have(upstream: UpstreamEntry, pattern: str) -> bool:
    """True if an upstream has one of the models that a pattern is for."""
    return not upstream.models or any(overlap(each, pattern) for each in upstream.models)


def _unreachable(routes: Sequence[RouteEntry]) -> Iterator[Problem]:
    """Report routes after one that takes all their requests.

    An error, not a warning: an unreachable route is a mistake, and a refused reload changes nothing.
    """
    for route, before in shadowed(routes):
        first = f"{before.name} ({before.where}) matches all of its requests first"
        expected = f"it never matches: {first}; move it before {before.name}"
        yield Problem("a route", quoted(route.name), expected, where=route.where)


def _field_of(route: RouteEntry, target: Target) -> str:
    """Return the field of a route that contains a target. By identity: equal targets may be in two fields."""
    if any(each is target for each in route.to):
        return "to"
    if any(each is target for each in route.fallback):
        return "fallback"
    return "mirror.to" if route.mirror is not None and route.mirror.to is target else "canary.to"
