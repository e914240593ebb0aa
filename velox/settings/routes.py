"""The routes: what one is, how the list of them is written, and the one that there is without a list.

Knows: each field of a route. Does not know: whether the upstreams that it names are there (see routing.py), or how
one of them is chosen.

    routes:
      - name: chat
        match: {models: [gpt-4o*]}
        to: [openai, azure]
        fallback: [backup]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, get_args

from velox.policy.routes import (
    ANYTHING,
    Balance,
    Canary,
    Delay,
    HashOn,
    Hedge,
    Match,
    Mirror,
    RouteEntry,
    Target,
    UpstreamEntry,
)
from velox.settings import parse
from velox.settings.header_rules import CREDENTIALS, header_rules
from velox.settings.problems import Problem, quoted
from velox.settings.tree import Section, Tree

__all__ = ["FIELDS", "implicit_route", "parse_routes"]

_MOST_ROUTES: Final = 10_000
_MOST_TARGETS: Final = 64
FIELDS: Final = (
    *("name", "match", "to", "balance", "hash_on", "model", "fallback", "hedge", "mirror", "canary"),
    *("request_headers", "response_headers"),
)
_TAG_HEADER: Final = "x-velox-tag"


def implicit_route(upstreams: Sequence[UpstreamEntry], *, in_order: bool) -> RouteEntry:
    """Return the one route that takes everything. in_order: to the first upstream while it works; else to any."""
    names = [Target(upstream.name) for upstream in upstreams]
    if in_order:
        return RouteEntry("*", ANYTHING, tuple(names[:1]), fallback=tuple(names[1:]))
    return RouteEntry("*", ANYTHING, tuple(names))


def parse_routes(tree: Tree) -> tuple[tuple[RouteEntry, ...], list[Problem]]:
    """Return the routes of the list, and everything that is wrong with it by itself."""
    problems: list[Problem] = []
    if not tree.items:
        expected = "expected a list of routes, such as `- {name: chat, match: {models: [gpt-4o*]}, to: [openai]}`"
        return (), [Problem("routes", "", expected, where=tree.where)]
    if len(tree.items) > _MOST_ROUTES:
        where = tree.items[_MOST_ROUTES].where
        return (), [Problem("routes", "", f"expected at most {_MOST_ROUTES}", where=where)]
    routes: list[RouteEntry] = []
    by_name: dict[str, RouteEntry] = {}
    for item in tree.items:
        if item.fields is None:
            problems.append(Problem("a route", "", "expected fields such as `name: chat`", where=item.where))
            continue
        section = Section(item, "a route", FIELDS, problems)
        route = _route(section, problems)
        routes.append(route)
        first = by_name.setdefault(route.name, route)
        if first is not route and route.name:
            section.refuse("name", f"expected each name once; the route at {first.where} has it", quoted(route.name))
    return tuple(routes), problems


def _route(section: Section, problems: list[Problem]) -> RouteEntry:
    for name, example in (("name", "name: chat"), ("to", "to: [openai]")):
        if name not in section:
            section.lacks(f"expected `{name}`, such as `{example}`")
    model = section.one("model", parse.model_name, None, shown=False)
    balance: Balance = section.one("balance", parse.one_of(*get_args(Balance)), "round_robin")
    hash_on = section.one("hash_on", parse.hash_on, None)
    if "hash_on" in section and balance != "hash":
        section.refuse("hash_on", "expected `balance: hash` with it: nothing else looks at it")
    elif hash_on is None and balance == "hash":
        hash_on = HashOn("user")
    mirror = _share(section, "mirror", model, problems)
    canary = _share(section, "canary", model, problems)
    return RouteEntry(
        section.one("name", parse.name, "", shown=False),
        _match(section),
        _targets(section, "to", model, problems),
        balance,
        hash_on,
        model,
        _targets(section, "fallback", model, problems),
        _hedge(section),
        None if mirror is None else Mirror(*mirror),
        None if canary is None else Canary(*canary),
        header_rules(section, "request_headers"),
        header_rules(section, "response_headers"),
        section.where,
    )


def _match(section: Section) -> Match:
    inner = section.section("match", "`match`", ("models", "paths", "headers", "keys", "tags"))
    if inner is None:
        return ANYTHING
    headers: dict[str, str] = {}
    for key, text, where in inner.pairs("headers"):
        try:
            headers[_matched_name(key, headers)] = parse.header_value(text)
        except ValueError as exc:
            inner.refuse("headers", str(exc), where=where)
    return Match(
        inner.many("models", parse.model_pattern, shown=False),
        inner.many("paths", parse.path),
        tuple(headers.items()),
        inner.many("keys", parse.key_name, shown=False),
        inner.many("tags", parse.tag, shown=False),
        inner.where_is("keys"),
    )


def _matched_name(text: str, known: Mapping[str, str]) -> str:
    name = parse.header_name(text)
    if name in known:
        raise ValueError("expected each name once; upper and lower case are the same")
    if name in CREDENTIALS:  # a credential is no name: `keys` is for the caller that it stands for
        raise ValueError("expected `keys` instead, with names of keys: no key belongs into this file")
    if name == _TAG_HEADER:
        raise ValueError(f"expected `tags` instead, which {_TAG_HEADER} carries")
    return name


def _targets(section: Section, name: str, model: str | None, problems: list[Problem]) -> tuple[Target, ...]:
    found: list[Target] = []
    items = section.items(name)
    for item in items:
        target = _target(section, name, item, model, problems)
        if target is not None and target in found:
            section.refuse(name, "expected each upstream once, or with different models", where=item.where)
        elif target is not None:
            found.append(target)
    if len(items) > _MOST_TARGETS:
        section.refuse(name, f"expected at most {_MOST_TARGETS} upstreams")
    return tuple(found)


def _target(section: Section, name: str, item: Tree, model: str | None, problems: list[Problem]) -> Target | None:
    """Return one item of `to` or `fallback`: the name of an upstream, or that with a model."""
    if item.fields is not None:
        inner = Section(item, f"an item of `{name}`", ("upstream", "model"), problems, name)
        if "upstream" not in inner:
            inner.lacks("expected `upstream`, such as `upstream: openai`")
        upstream = inner.one("upstream", parse.name, "", shown=False)
        own = inner.one("model", parse.model_name, None, shown=False)
        return Target(upstream, own or model, inner.where_is("upstream")) if upstream else None
    try:
        if item.text is None:
            raise ValueError("expected names of upstreams")
        return Target(parse.name(item.text), model, item.where)
    except ValueError as exc:
        section.refuse(name, str(exc), where=item.where)
        return None


def _share(section: Section, name: str, model: str | None, problems: list[Problem]) -> tuple[Target, float] | None:
    """Return what `mirror` and `canary` have: where to, and how many percent."""
    inner = section.section(name, f"`{name}`", ("to", "model", "percent"))
    if inner is None:
        return None
    for each, example in (("to", "to: next"), ("percent", "percent: 5")):
        if each not in inner:
            inner.lacks(f"expected `{each}`, such as `{example}`")
    to = inner.one("to", parse.name, "", shown=False)
    own = inner.one("model", parse.model_name, None, shown=False)
    share = inner.one("percent", parse.percent(0.0, 100.0), 0.0)
    return (Target(to, own or model, inner.where_is("to")), share) if to else None


def _hedge(section: Section) -> Hedge | None:
    inner = section.section("hedge", "`hedge`", ("after", "at_most"))
    if inner is None:
        return None
    after = inner.one("after", parse.delay, Delay(percentile=95.0))
    return Hedge(after, inner.one("at_most", parse.percent(0.001, 100.0), 5.0))
