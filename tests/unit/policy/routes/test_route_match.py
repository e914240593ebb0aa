"""Which route a request takes: the first that is for it, however many there are, and why none before it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from velox.heads import Header, Headers
from velox.policy.patterns import covers, matches, overlap
from velox.policy.routes.entries import ANYTHING, Match, RouteEntry, Target, UpstreamEntry
from velox.policy.routes.index import indexing
from velox.policy.routes.match import RouteTable, usable
from velox.settings import load

CHAT = b"/v1/chat/completions"
USUAL: Headers = [(b"content-type", b"application/json"), (b"accept", b"*/*")]


def route(name: str, match: Match = ANYTHING, to: str = "a") -> RouteEntry:
    """Return a route that leads to one upstream."""
    return RouteEntry(name, match, (Target(to),))


def taken(table: RouteTable, model: str | None = "m", path: bytes = CHAT, key: str = "", *headers: Header) -> str:
    """Return the name of the route that a request takes, "" for none."""
    found = table.match(model, path, [*USUAL, *headers], key)
    return "" if found is None else found.name


MATCHES: dict[str, Any] = {
    "models": (Match(models=("gpt-4o", "o1*")), ("gpt-4o", CHAT, ""), ("gpt-4", CHAT, "")),
    "no model": (Match(models=("*",)), ("", CHAT, ""), (None, CHAT, "")),
    "paths": (Match(paths=("/v1/chat/*",)), ("m", CHAT, ""), ("m", b"/v1/chat", "")),
    "one path": (Match(paths=("/v1/models",)), (None, b"/v1/models", ""), (None, b"/v1/models/x", "")),
    "keys": (Match(keys=("team-a", "team-b")), ("m", CHAT, "team-b"), ("m", CHAT, "")),
    "header": (
        Match(headers=(("x-tenant", "acme"),)),
        ("m", CHAT, "", (b"x-tenant", b"acme")),
        ("m", CHAT, "", (b"x-tenant", b"Acme")),
    ),
    "header's pattern": (
        Match(headers=(("x-tenant", "*"),)),
        ("m", CHAT, "", (b"x-tenant", b"\xff")),
        ("m", CHAT, "", (b"x-tenants", b"a")),
    ),
    "all headers": (
        Match(headers=(("x-a", "1"), ("x-b", "2"))),
        ("m", CHAT, "", (b"x-b", b"2"), (b"x-a", b"1")),
        ("m", CHAT, "", (b"x-a", b"1")),
    ),
    "header twice": (
        Match(headers=(("x-a", "1"),)),
        ("m", CHAT, "", (b"x-a", b"1")),
        ("m", CHAT, "", (b"x-a", b"1"), (b"x-a", b"2")),
    ),
    "one tag of several": (
        Match(tags=("fast", "eu")),
        ("m", CHAT, "", (b"x-velox-tag", b"us, eu")),
        ("m", CHAT, "", (b"x-velox-tag", b"e,u")),
    ),
    "tags in two fields": (
        Match(tags=("eu",)),
        ("m", CHAT, "", (b"x-velox-tag", b"a"), (b"x-velox-tag", b"eu")),
        ("m", CHAT, "", (b"x-velox-tag", b"")),
    ),
    "tags in fields of both names": (
        Match(tags=("eu",)),
        ("m", CHAT, "", (b"x-velox-tag", b"a"), (b"x-velox-tags", b"b, eu")),
        ("m", CHAT, "", (b"x-velox-tags", b"a")),
    ),
    "all of it": (Match(models=("m",), keys=("k",), paths=("/v1/*",)), ("m", CHAT, "k"), ("m", CHAT, "other")),
}


@pytest.mark.parametrize("name", MATCHES)
def test_route_is_for_what_meets_all_that_it_asks_for(name: str) -> None:
    """Of a list one is enough; headers must all be there."""
    match, met, unmet = MATCHES[name]
    table = RouteTable([route("x", match)])

    assert taken(table, *met) == "x"
    assert taken(table, *unmet) == ""


def test_header_that_comes_twice_is_met_by_neither_value() -> None:
    """Whichever comes first: an upstream might take the other one."""
    table = RouteTable([route("x", Match(headers=(("x-a", "1"),))), route("both", Match(headers=(("x-a", "1, 2"),)))])

    assert taken(table, "m", CHAT, "", (b"x-a", b"2"), (b"x-a", b"1")) == ""
    assert taken(table, "m", CHAT, "", (b"x-a", b"1"), (b"x-a", b"2")) == "both"


def test_first_route_wins() -> None:
    """Their order counts, and not which of them says more."""
    table = RouteTable(
        [route("wide", Match(models=("gpt*",))), route("narrow", Match(models=("gpt-4",))), route("rest")]
    )

    assert [taken(table, model) for model in ("gpt-4", "gpt-5", "o1", None)] == ["wide", "wide", "rest", "rest"]


def test_no_route_takes_what_none_is_for() -> None:
    """None, and nothing is made up."""
    assert taken(RouteTable([route("x", Match(models=("a",)))]), "b") == ""
    assert taken(RouteTable([]), "b") == ""


def test_gateway_of_one_upstream_has_one_route_for_everything() -> None:
    """What VELOX_UPSTREAM_ORIGIN makes."""
    assert taken(RouteTable(load({}, cores=2).routes), None, b"/anything") == "*"


def test_headers_that_routes_look_at_are_known() -> None:
    """So that who keeps results knows what they depend on."""
    assert RouteTable([route("x")]).header_names == frozenset()
    table = RouteTable([route("x", Match(headers=(("x-a", "1"),))), route("y", Match(tags=("t",)))])
    assert table.header_names == {b"x-a", b"x-velox-tag", b"x-velox-tags"}


def test_what_else_routes_look_at_is_known() -> None:
    """A choice that depends on neither path nor key is kept once for all of them."""
    by_model = RouteTable([route("x", Match(models=("a",))), route("y")])
    by_path = RouteTable([route("x", Match(paths=("/v1/*",))), route("y")])
    by_key = RouteTable([route("x", Match(keys=("k",))), route("y")])
    behind_all = RouteTable([route("y"), route("x", Match(paths=("/v1/*",), keys=("k",)))])

    found = [(table.asks_path, table.asks_key) for table in (by_model, by_path, by_key, behind_all)]
    assert found == [(False, False), (True, False), (False, True), (False, False)]


def any_match(rng: random.Random) -> Match:
    """Return what a route may ask for, from few names, so that many routes ask for the same."""
    names = ("a", "ab", "b*", "*b", "a*b", "*", "*a*")
    some = {
        "models": tuple(rng.sample(names, rng.randint(0, 2))),
        "paths": tuple(f"/{name}" for name in rng.sample(names, rng.choice((0, 0, 1)))),
        "keys": tuple(rng.sample(("k1", "k2", "k3"), rng.choice((0, 0, 1, 2)))),
        "tags": tuple(rng.sample(("t1", "t2"), rng.choice((0, 0, 1)))),
    }
    headers = tuple(
        (name, rng.choice(("1", "2", "*"))) for name in rng.sample(("x-a", "x-b"), rng.choice((0, 0, 1, 2)))
    )
    return Match(headers=headers, **some)


@pytest.mark.parametrize("seed", range(40))
def test_index_finds_what_looking_at_each_in_turn_finds(seed: int) -> None:
    """The same route for any request: with one route at a time the index has nothing to leave out."""
    rng = random.Random(seed)
    routes = [route(str(n), any_match(rng)) for n in range(30)]
    table, alone = RouteTable(routes), [RouteTable([each]) for each in routes]
    for _ in range(60):
        headers = [(b"x-a", rng.choice((b"1", b"2"))), (b"x-b", b"1"), (b"x-velox-tag", rng.choice((b"t1", b"t1,t2")))]
        model, path = rng.choice(("a", "ab", "bb", "aab", "c", None)), rng.choice((b"/a", b"/ab", b"/bab", b"/"))
        request = (model, path, rng.sample(headers, rng.randint(0, 3)), rng.choice(("", "k1", "k2")))
        first = next((found for each in alone if (found := each.match(*request))), None)

        assert table.match(*request) is first


@pytest.mark.slow
def test_few_of_ten_thousand_routes_are_looked_at() -> None:
    """Whatever tells them apart: models, keys, tenants, how patterns begin or end. Not one request looks at more."""
    kinds = [
        lambda n: Match(models=(f"m-{n}",)),
        lambda n: Match(models=(f"m{n}-*",)),
        lambda n: Match(models=(f"*-{n}",)),
        lambda n: Match(models=("gpt-4",), keys=(f"k{n}",)),
        lambda n: Match(models=("gpt-*",), headers=(("x-tenant", f"t{n}"),)),
        lambda n: Match(paths=(f"/{n}/*",)),
        lambda n: Match(models=("*",), tags=(f"t{n}",)),
    ]
    for kind in kinds:
        table = RouteTable([*(route(str(n), kind(n)) for n in range(10_000)), route("rest")])
        headers = [*USUAL, (b"x-tenant", b"t77"), (b"x-velox-tag", b"t77")]
        for model, path, key in (
            ("m-77", CHAT, "k77"),
            ("gpt-4", b"/77/x", "k77"),
            ("m77-x", CHAT, ""),
            ("x", b"/", ""),
        ):
            assert table.n_candidates(model, path, headers, key) < 20
        assert len(table) == 10_001


def upstream(name: str, *models: str) -> UpstreamEntry:
    """Return an upstream that has these models."""
    return replace(load({}, cores=2).upstreams[0], name=name, models=models)


def test_targets_without_the_model_are_left_out() -> None:
    """By the model that each is asked for: its own name for it, or the client's."""
    upstreams = {each.name: each for each in (upstream("any"), upstream("gpt", "gpt-*"), upstream("llama", "llama-3"))}
    targets = [Target("any"), Target("gpt"), Target("llama"), Target("llama", "llama-3"), Target("gone")]

    assert usable(targets, upstreams, "gpt-4") == (targets[0], targets[1], targets[3])
    assert usable(targets, upstreams, None) == tuple(targets[:4])
    # A client's star is a name like any other.
    assert usable(targets, upstreams, "*") == (targets[0], targets[3])


def test_explanation_tells_why_not_the_routes_before() -> None:
    """Each with what it asks for and what the request has instead; then what can be chosen, in order."""
    table = RouteTable(
        [
            route("vision", Match(models=("gpt-4-v*", "x"))),
            route("acme", Match(models=("*",), headers=(("x-tenant", "acme"), ("x-b", "*")))),
            route("team", Match(keys=("team-a",))),
            route("tagged", Match(tags=("eu", "us"))),
            route("files", Match(paths=("/v1/files/*",))),
            RouteEntry("chat", ANYTHING, (Target("gpt"), Target("llama")), fallback=(Target("llama", "llama-3"),)),
            route("never"),
        ]
    )
    headers = [(b"x-tenant", b"other"), (b"x-velox-tag", b"de")]

    found = table.explain("gpt-4", CHAT, headers, upstreams=[upstream("gpt", "gpt-*"), upstream("llama", "llama-3")])

    assert [(each.route.name, each.field, each.wanted, each.was) for each in found.passed] == [
        ("vision", "models", "gpt-4-v*, x", "gpt-4"),
        ("acme", "headers", "x-tenant: acme, x-b: *", "x-tenant: other"),
        ("team", "keys", "team-a", "none"),
        ("tagged", "tags", "eu, us", "de"),
        ("files", "paths", "/v1/files/*", "/v1/chat/completions"),
    ]
    assert found.route is not None and found.route.name == "chat"
    assert (found.targets, found.unusable) == ((Target("gpt"),), (Target("llama"),))
    assert found.fallbacks == (Target("llama", "llama-3"),)
    assert RouteTable([route("x", Match(models=("a",)))]).explain(None, CHAT, []).route is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_patterns_that_cover_or_overlap_do_so_for_names(seed: int) -> None:
    """No name tells otherwise: one in both is an overlap, one of the narrow that the wide has not is no cover."""
    rng = random.Random(seed)
    names = ["".join(rng.choice("ab") for _ in range(rng.randint(0, 6))) for _ in range(200)]
    patterns = ["".join(rng.choice("ab*") for _ in range(rng.randint(1, 4))) for _ in range(25)]
    for one in patterns:
        for other in patterns:
            both = [name for name in names if matches(one, name) and matches(other, name)]
            assert overlap(one, other) or not both
            if covers(one, other):
                assert all(matches(one, name) for name in names if matches(other, name))
    assert overlap("a*c", "ab*") and not overlap("a*", "b*") and not overlap("*a", "*b") and not overlap("a*", "b")
    assert not overlap("a*c*b", "axb") and not overlap("axb", "a*c*b") and overlap("axb", "a*x*b")
    assert covers("a*", "ab*") and covers("*", "a*b") and not covers("ab*", "a*") and not covers("a", "a*")


def test_index_that_is_made_in_steps_is_the_same() -> None:
    """For a worker that serves while it takes over many routes."""
    routes = [route(f"r{n}", Match(models=(f"m-{n % 90}",), keys=(f"k-{n}",))) for n in range(250)]
    steps = indexing([each.match for each in routes])
    n_steps = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            index = end.value
            break
        n_steps += 1
    at_once, in_steps = RouteTable(routes), RouteTable(routes, index)

    assert n_steps >= 5
    for n in range(250):
        asked = (f"m-{n % 90}", CHAT, f"k-{n}")
        assert taken(in_steps, *asked) == taken(at_once, *asked) == f"r{n}"
        assert in_steps.n_candidates(asked[0], CHAT, [], asked[2]) == at_once.n_candidates(asked[0], CHAT, [], asked[2])
