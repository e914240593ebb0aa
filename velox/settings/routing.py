"""Upstreams and routes together: from the file's two lists, or from the variables alone.

Knows: what is taken where one of the lists is not given, so that all else sees one shape. Does not know: how an entry
of either is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from velox.policy.routes import RouteEntry, UpstreamEntry
from velox.settings.problems import Problem
from velox.settings.route_checks import dangling, key_problems, route_problems
from velox.settings.routes import implicit_route, parse_routes
from velox.settings.tree import Tree
from velox.settings.upstreams import implicit_upstreams, parse_upstreams

__all__ = ["NESTED", "add_routing"]

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
        problems += dangling(routes, [upstream.name for upstream in upstreams])
    problems += key_problems(routes, _key_names(values))
    if not problems and upstreams:
        problems += route_problems(routes, upstreams)
    values["upstreams"], values["routes"] = upstreams, routes
    return problems


def _key_names(values: Mapping[str, Any]) -> set[str] | None:
    """Return the names of all keys; None if they may change, or could not be read."""
    if "api_keys" not in values or values.get("api_keys_file", "") is not None:
        return None
    return {key.caller_name for key in values["api_keys"]}
