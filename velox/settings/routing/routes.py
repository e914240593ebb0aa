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
from dataclasses import replace
from types import MappingProxyType
from typing import Final, get_args

from velox.outcomes import Refusal
from velox.policy.cache.rules import CacheRule, CacheScope
from velox.policy.join.rules import JoinRule
from velox.policy.routes.entries import (
    ANYTHING,
    FAILURE,
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
from velox.policy.routes.match import TAG_HEADERS
from velox.settings import parse
from velox.settings.problems import Problem
from velox.settings.routing.header_rules import CREDENTIALS, header_rules
from velox.settings.yaml.tree import ListForm, Section, Tree

__all__ = ["FIELDS", "implicit_route", "parse_routes"]

_MOST_TARGETS: Final = 64
FIELDS: Final = (
    *("name", "match", "to", "balance", "hash_on", "model", "fallback", "hedge", "mirror", "canary"),
    *("request_headers", "response_headers", "strict", "cache", "join"),
)
_LIST: Final = ListForm(
    *("routes", "a route", FIELDS, 10_000, "{name: chat, match: {models: [gpt-4o*]}, to: [openai]}", "`name: chat`"),
    MappingProxyType(
        {
            **{name: f"expected it inside `match`, such as `match: {{{name}: [...]}}`" for name in ("models", "paths")},
            **{name: f"expected it inside `match`, such as `match: {{{name}: [...]}}`" for name in ("keys", "tags")},
            "headers": "expected it inside `match`, or `request_headers`, or `response_headers`",
            **dict.fromkeys(("upstream", "upstreams", "target", "targets"), "expected `to`, with names of upstreams"),
            "fallbacks": "expected `fallback`, with names of upstreams",
            "retries": "expected it as a field of the file: it is the same for all routes",
            **dict.fromkeys(("timeout", "timeouts", "weight", "concurrency"), "expected it at the upstream"),
            "weights": "expected `weight` at each upstream",
        }
    ),
)
_OF_TARGETS: Final = MappingProxyType(
    dict.fromkeys(("weight", "timeouts", "keys", "concurrency", "origin"), "expected it at the upstream")
)
# What a fallback is for beside failures, where it does not say so: another model may have room for a longer prompt.
_OF_ANOTHER_MODEL: Final = frozenset({Refusal.CONTEXT_LENGTH})
_LONGEST_TTL_S: Final = 31 * 86_400.0
# What is kept for a retry costs memory, and what goes on for one that never comes costs tokens.
_LONGEST_KEEP_S: Final = 600.0


def implicit_route(upstreams: Sequence[UpstreamEntry], *, in_order: bool) -> RouteEntry:
    """Return the one route that takes everything. in_order: to the first upstream while it works; else to any."""
    names = [Target(upstream.name) for upstream in upstreams]
    if in_order:
        return RouteEntry("*", ANYTHING, tuple(names[:1]), fallback=tuple(names[1:]))
    return RouteEntry("*", ANYTHING, tuple(names))


def parse_routes(tree: Tree) -> tuple[tuple[RouteEntry, ...], list[Problem]]:
    """Return the routes of the list, and everything that is wrong with it by itself."""
    problems: list[Problem] = []
    return _LIST.read(tree, _route, problems), problems


def _route(section: Section) -> RouteEntry:
    section.needs(name="chat", to="[openai]")
    model = section.one("model", parse.model_name, None, shown=False)
    balance: Balance = section.one("balance", parse.one_of(*get_args(Balance)), "round_robin")
    hash_on = section.one("hash_on", parse.hash_on, None)
    if "hash_on" in section and balance != "hash":
        section.refuse("hash_on", "expected `balance: hash` with it: nothing else looks at it")
    elif hash_on is None and balance == "hash":
        hash_on = HashOn("user")
    mirror = _share(section, "mirror", model)
    canary = _share(section, "canary", model)
    to = _targets(section, "to", model)
    return RouteEntry(
        section.one("name", parse.name, "", shown=False),
        _match(section),
        to,
        balance,
        hash_on,
        model,
        _with_reasons(_targets(section, "fallback", model), to),
        _hedge(section),
        None if mirror is None else Mirror(*mirror),
        None if canary is None else Canary(*canary),
        header_rules(section, "request_headers"),
        header_rules(section, "response_headers"),
        section.where,
        section.one("strict", parse.switch, False),
        _cache(section),
        _join(section),
    )


def _with_reasons(fallbacks: Sequence[Target], to: Sequence[Target]) -> tuple[Target, ...]:
    """Say what each fallback is for that does not say so itself: with another model, also for too long a prompt.

    Not where one of them says that it is for these: then it is known whom to ask.
    """
    if any(Refusal.CONTEXT_LENGTH in each.refusals for each in fallbacks):
        return tuple(fallbacks)
    asked = {target.naming for target in to}
    return tuple(
        each if each.says_reasons or each.naming in asked else replace(each, refusals=_OF_ANOTHER_MODEL)
        for each in fallbacks
    )


def _match(section: Section) -> Match:
    inner = section.section("match", ("models", "paths", "headers", "keys", "tags"), "models: [gpt-4o*]")
    if inner is None:
        return ANYTHING
    headers: dict[str, str] = {}
    for key, text, where in inner.pairs("headers", "x-tenant: acme"):
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
    if name.encode() in TAG_HEADERS:
        raise ValueError(f"expected `tags` instead, which {name} carries")
    return name


def _targets(section: Section, name: str, model: str | None) -> tuple[Target, ...]:
    found: list[Target] = []
    items = section.items(name)
    for item in items:
        target = _target(section, name, item, model)
        if target is not None and target in found:
            section.refuse(name, "expected each upstream once, or with different models", where=item.where)
        elif target is not None:
            found.append(target)
    if len(items) > _MOST_TARGETS:
        section.refuse(name, f"expected at most {_MOST_TARGETS} upstreams")
    return tuple(found)


def _target(section: Section, name: str, item: Tree, model: str | None) -> Target | None:
    """Return one item of `to` or `fallback`: the name of an upstream, or that with a model, or what it is for."""
    if item.fields is not None:
        is_fallback = name == "fallback"
        inner = section.item_section(
            name, item, ("upstream", "model", "strip", *(("for",) if is_fallback else ())), _OF_TARGETS
        )
        inner.needs(upstream="openai")
        upstream = inner.one("upstream", parse.name, "", shown=False)
        own = inner.one("model", parse.model_name, None, shown=False)
        strip = inner.one("strip", parse.model_name, "", shown=False)
        if strip and own is not None:
            inner.refuse("strip", "expected this or `model`, not both: `model` replaces the whole name")
        reasons = inner.many("for", parse.one_of(FAILURE, *Refusal)) if is_fallback else ()
        refusals = frozenset(Refusal(each) for each in reasons if each != FAILURE)
        more = (inner.where_is("upstream"), not refusals or FAILURE in reasons, refusals, strip, bool(reasons))
        return Target(upstream, own or (None if strip else model), *more) if upstream else None
    try:
        if item.text is None:
            raise ValueError("expected names of upstreams")
        return Target(parse.name(item.text), model, item.where)
    except ValueError as exc:
        section.refuse(name, str(exc), where=item.where)
        return None


def _share(section: Section, name: str, model: str | None) -> tuple[Target, float] | None:
    """Return what `mirror` and `canary` have: where to, and how many percent."""
    inner = section.section(name, ("to", "model", "percent"), "to: next, percent: 5")
    if inner is None:
        return None
    inner.needs(to="next", percent="5")
    to = inner.one("to", parse.name, "", shown=False)
    own = inner.one("model", parse.model_name, None, shown=False)
    share = inner.one("percent", parse.percent(0.0, 100.0), 0.0)
    return (Target(to, own or model, inner.where_is("to")), share) if to else None


def _cache(section: Section) -> CacheRule | None:
    inner = section.section("cache", ("ttl", "scope", "sampled"), "ttl: 10m, scope: key")
    if inner is None:
        return None
    inner.needs(ttl="10m")
    ttl_s = inner.one("ttl", parse.duration(1.0, _LONGEST_TTL_S), 1.0)
    scope = CacheScope(inner.one("scope", parse.one_of(*CacheScope), CacheScope.KEY))
    return CacheRule(ttl_s, scope, inner.one("sampled", parse.switch, False))


def _join(section: Section) -> JoinRule | None:
    if section.is_text("join"):
        return JoinRule() if section.one("join", parse.switch, False) else None
    inner = section.section("join", ("equal", "sampled", "retries", "keep"), "retries: true, keep: 30s")
    if inner is None:
        return None
    equal = inner.one("equal", parse.switch, True)
    retries = inner.one("retries", parse.switch, False)
    if not (equal or retries):
        inner.refuse("equal", "expected `retries: true` beside `equal: false`: else nothing is joined")
    if "sampled" in inner and not equal:
        inner.refuse("sampled", "expected no `equal: false` beside it: it is about equal requests")
    if "keep" in inner and not retries:
        inner.refuse("keep", "expected `retries: true` with it: a call is kept for a retry alone")
    sampled = inner.one("sampled", parse.switch, False)
    keep_s = inner.one("keep", parse.duration(1.0, _LONGEST_KEEP_S), 30.0)
    return JoinRule(equal, sampled, retries, keep_s)


def _hedge(section: Section) -> Hedge | None:
    inner = section.section("hedge", ("after", "at_most"), "after: p95, at_most: 5%")
    if inner is None:
        return None
    after = inner.one("after", parse.delay, Delay(percentile=95.0))
    return Hedge(after, inner.one("at_most", parse.percent(0.001, 100.0), 5.0))
