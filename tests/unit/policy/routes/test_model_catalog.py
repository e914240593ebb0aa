"""Which models a caller may name: by its routes, by the settings of upstreams, and by what these say themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pytest

from velox.heads import Header
from velox.policy.routes.catalog import ModelCatalog, Offer
from velox.policy.routes.entries import Match, RouteEntry, Target
from velox.policy.routes.match import RouteTable, usable
from velox.protocol.slices import finished
from velox.settings import load

UPSTREAMS = """
upstreams:
  - {name: openai, origin: http://127.0.0.1:1, models: [gpt-4o, "gpt-5*"]}
  - {name: vllm, origin: http://127.0.0.1:2}
  - {name: azure, origin: http://127.0.0.1:3, models: [gpt-4o-eu]}
api_keys: [{name: a, key: 1234567890123456}, {name: b, key: 2234567890123456}]
routes:
"""
OWN = {"openai": ["gpt-4o", "gpt-5", "gpt-5-mini", "dall-e"], "vllm": ["llama", "qwen"]}


class Asker:
    """Asks for the models, by some routes."""

    def __init__(self, file: Path, routes: str) -> None:
        file.write_text(UPSTREAMS + routes)
        settings = load({"VELOX_CONFIG": str(file)}, cores=2)
        self.upstreams = {upstream.name: upstream for upstream in settings.upstreams}
        self.table = RouteTable(settings.routes)

    def catalog(self, key: str = "a", *headers: Header, prefix: str = "/v1") -> ModelCatalog:
        """Return what a caller can reach."""
        routes = self.table.reachable(f"{prefix}/*", list(headers), key)
        return prepared(ModelCatalog(routes, self.upstreams, f"{prefix}/*"))


def prepared(catalog: ModelCatalog) -> ModelCatalog:
    finished(catalog.prepare())
    return catalog


Make = Callable[[str], Asker]


@pytest.fixture
def asker(tmp_path: Path) -> Make:
    return lambda routes: Asker(tmp_path / "velox.yaml", routes)


def offers(
    catalog: ModelCatalog, told: Mapping[str, Collection[str]] = OWN, allowed: Sequence[str] = ()
) -> dict[str, Offer]:
    return finished(catalog.offers(told, allowed))


def names(catalog: ModelCatalog, told: Mapping[str, Collection[str]] = OWN, allowed: Sequence[str] = ()) -> str:
    return " ".join(offers(catalog, told, allowed))


def test_names_come_from_routes_settings_and_upstreams(asker: Make) -> None:
    """Exact names and aliases as they are; what a pattern lets through as far as it is known; in order, each once."""
    made = asker("""
  - {name: alias, match: {models: [fast, gpt-5]}, to: vllm, model: llama}
  - {name: eu, match: {models: ["gpt-*-eu", "gpt-4*"]}, to: azure, fallback: [openai]}
  - {name: rest, to: [openai, vllm]}
""")

    assert offers(made.catalog()) == {
        "fast": Offer("vllm", "llama"),
        "gpt-4o": Offer("openai", "gpt-4o"),
        "gpt-4o-eu": Offer("azure", "gpt-4o-eu"),
        "gpt-5": Offer("vllm", "llama"),
        "gpt-5-mini": Offer("openai", "gpt-5-mini"),
        "llama": Offer("vllm", "llama"),
        "qwen": Offer("vllm", "qwen"),
    }
    assert list(offers(made.catalog())) == sorted(offers(made.catalog()))


def test_what_upstreams_have_not_told_is_known_from_the_settings_only(asker: Make) -> None:
    """An upstream that does not answer takes away its own models, and no others."""
    made = asker("""
  - {name: alias, match: {models: [fast]}, to: vllm, model: llama}
  - {name: rest, to: [openai, vllm]}
""")

    assert names(made.catalog(), {}) == "fast gpt-4o"
    assert names(made.catalog(), {"vllm": ["qwen"]}) == "fast gpt-4o qwen"
    assert names(made.catalog(), {"openai": ["gpt-5"]}) == "fast gpt-4o gpt-5"


def test_model_of_the_settings_is_there_whatever_its_upstream_says(asker: Make) -> None:
    """Who has written a name knows it; some servers list half of what they serve."""
    made = asker("""
  - {name: named, match: {models: [mine]}, to: vllm}
  - {name: rest, to: openai}
""")

    assert names(made.catalog(), {"vllm": [], "openai": []}) == "gpt-4o mine"


def test_model_that_its_route_leads_away_from_is_not_listed(asker: Make) -> None:
    """Another upstream has it, but the first route that is for it does not go there."""
    made = asker(
        """
  - {name: llama, match: {models: ["llama*", "gpt-5*"]}, to: azure}
  - {name: rest, to: [vllm, openai]}
""".replace("azure}", "vllm}")
    )

    assert names(made.catalog()) == "gpt-4o llama qwen"
    assert made.catalog().offer("gpt-5", OWN, ()) is None
    # vllm has told nothing: it may have it.
    assert names(made.catalog(), {"openai": OWN["openai"]}) == "gpt-4o gpt-5 gpt-5-mini"


def test_caller_sees_what_its_key_and_headers_lead_to(asker: Make) -> None:
    made = asker("""
  - {name: keyed, match: {keys: [a], models: [of-a]}, to: vllm}
  - {name: tenant, match: {headers: {x-tenant: acme}, models: [of-acme]}, to: vllm}
  - {name: tagged, match: {tags: [eu], models: [of-eu]}, to: vllm}
  - {name: rest, match: {models: [all]}, to: vllm}
""")

    assert names(made.catalog("a")) == "all of-a"
    assert names(made.catalog("b")) == "all"
    assert names(made.catalog("b", (b"x-tenant", b"acme"), (b"x-velox-tag", b"us, eu"))) == "all of-acme of-eu"


def test_key_that_is_limited_to_models_sees_these(asker: Make) -> None:
    made = asker("  - {name: rest, to: [openai, vllm]}")

    assert names(made.catalog(), OWN, ["gpt-5*", "llama"]) == "gpt-5 gpt-5-mini llama"
    assert made.catalog().offer("qwen", OWN, ["gpt-5*"]) is None


def test_routes_count_that_are_for_some_path_below_the_prefix(asker: Make) -> None:
    """One for chats only leaves what else there is to the next one."""
    made = asker("""
  - {name: chat, match: {paths: [/v1/chat/*], models: ["gpt-5*", mine]}, to: vllm}
  - {name: elsewhere, match: {paths: [/other/v1/*], models: [other]}, to: vllm}
  - {name: rest, match: {paths: ["/v1/*"]}, to: openai}
""")

    assert names(made.catalog()) == "gpt-4o gpt-5 gpt-5-mini mine"
    assert names(made.catalog(prefix="/other/v1")) == "other"
    # For chats the route is vllm's, which has it not; for embeddings it is the next one.
    assert made.catalog().offer("gpt-5", OWN, ()) == Offer("openai", "gpt-5")


def test_route_that_takes_everything_is_the_last(asker: Make) -> None:
    """What it does not have, no later one gives."""
    made = asker("""
  - {name: chat, match: {paths: ["/v1*"], models: ["llama*"]}, to: vllm}
  - {name: rest, to: openai}
""")

    assert made.catalog().offer("llama-2", {**OWN, "openai": ["llama-2"]}, ()) is None


def test_route_for_paths_that_another_has_taken_gives_nothing(asker: Make) -> None:
    made = asker("""
  - {name: chat, match: {paths: [/v1/chat/*], keys: [a]}, to: vllm}
  - {name: more, match: {paths: [/v1/chat/*, /v1/embeddings], keys: [a]}, to: openai}
  - {name: others, match: {paths: [/v1/chat/completions]}, to: azure}
""")

    assert names(made.catalog("a")) == "gpt-4o gpt-5 gpt-5-mini llama qwen"
    assert names(made.catalog("b")) == "gpt-4o-eu"


def test_offer_is_of_the_upstream_that_says_that_it_has_it(asker: Make) -> None:
    """It has the most to say of it."""
    made = asker("  - {name: any, match: {models: [llama]}, to: [{upstream: azure, model: gpt-4o-eu}, vllm]}")

    assert made.catalog().offer("llama", OWN, ()) == Offer("vllm", "llama")
    assert made.catalog().offer("llama", {}, ()) == Offer("azure", "gpt-4o-eu")


def test_any_name_of_an_alias_can_be_had_but_is_not_listed(asker: Make) -> None:
    """Whatever the client calls it, one model is asked for."""
    made = asker("""
  - {name: alias, match: {models: ["gpt-3*"]}, to: vllm, model: llama}
  - {name: rest, match: {models: [qwen]}, to: vllm}
""")

    assert names(made.catalog(), {"vllm": ["gpt-3.5", "llama"]}) == "qwen"
    assert made.catalog().offer("gpt-3.5-turbo", OWN, ()) == Offer("vllm", "llama")


def test_upstreams_that_are_asked_are_those_of_the_routes(asker: Make) -> None:
    """In order; not those that only get copies, or some percent."""
    made = asker("""
  - {name: one, match: {models: [x], keys: [a]}, to: vllm, fallback: [openai], mirror: {to: azure, percent: 1}}
  - {name: two, match: {keys: [b]}, to: azure}
""")

    assert made.catalog("a").upstreams == ("vllm", "openai")
    assert made.catalog("b").upstreams == ("azure",)


@pytest.mark.slow
def test_list_is_what_requests_find(asker: Make) -> None:
    """For many tables of random routes: a model is listed when a request for it has a route with an upstream for it."""
    rng = random.Random(6)
    made = asker("  - {name: rest, to: openai}")
    for _ in range(300):
        routes = [_a_route(f"r{n}", rng) for n in range(rng.randint(1, 6))]
        table, told = RouteTable(routes), {"openai": ["m1", "n1"], "vllm": ["m1", "m2", "n2"], "azure": ["gpt-4o-eu"]}
        catalog = prepared(ModelCatalog(table.reachable("/v1/*", [], "a"), made.upstreams, "/v1/*"))

        listed = offers(catalog, told)

        for name in ("m1", "m2", "n1", "n2", "gpt-4o", "gpt-4o-eu", "fast"):
            found = [table.match(name, path, [], "a") for path in (b"/v1/chat", b"/v1/embeddings", b"/v1/x")]
            targets = [
                target
                for route in found
                if route is not None
                for target in usable((*route.to, *route.fallback), made.upstreams, name)
                if target.model
                or name in route.match.models
                or name in told[target.upstream]
                or name in made.upstreams[target.upstream].models
            ]
            assert (catalog.offer(name, told, ()) is not None) == bool(targets), (name, routes)
            if name in listed:
                offer = listed[name]
                assert offer in [Offer(target.upstream, target.model or name) for target in targets]


def _a_route(name: str, rng: random.Random) -> RouteEntry:
    models = rng.sample(["m*", "n*", "*1", "m1", "fast", "gpt-4o", "gpt-*"], rng.randint(0, 2))
    paths = rng.choice([(), (), ("/v1/chat",), ("/v1/emb*",), ("/v1*",)])
    keys = rng.choice([(), (), ("a",), ("b",)])
    upstreams = rng.choices(["openai", "vllm", "azure"], k=rng.randint(1, 3))
    to = [Target(upstream, rng.choice([None, None, "m1"])) for upstream in upstreams]
    return RouteEntry(name, Match(tuple(models), paths, (), keys), tuple(to[:1]), fallback=tuple(to[1:]))


@pytest.mark.slow
def test_many_routes_are_walked_in_steps(asker: Make) -> None:
    """Nothing holds the loop for long."""
    made = asker("  - {name: rest, to: openai}")
    routes = [RouteEntry(f"r{n}", Match(models=(f"m{n}",)), (Target("vllm"),)) for n in range(2000)]
    catalog = ModelCatalog(routes, made.upstreams, "/v1/*")

    assert len(list(catalog.prepare())) > 10

    assert len(list(catalog.offers({}, ()))) > 40
    assert len(offers(catalog, {})) == 2000


def test_model_has_each_of_its_names_that_the_route_takes(asker: Make) -> None:
    """With what is stripped of it before it goes up, and without."""
    catalog = asker('  - {name: a, match: {models: [az/*, "gpt-5*"]}, to: {upstream: openai, strip: az/}}').catalog()

    assert names(catalog) == "az/gpt-4o az/gpt-5 az/gpt-5-mini gpt-5 gpt-5-mini"
    assert catalog.offer("gpt-5", OWN, ()) == Offer("openai", "gpt-5")


def test_names_of_an_upstream_carry_what_its_target_takes_off(asker: Make) -> None:
    """Clients ask for `az/gpt-5`; the upstream lists, and is asked for, `gpt-5`."""
    catalog = asker("  - {name: a, match: {models: [az/*]}, to: {upstream: openai, strip: az/}}").catalog()

    assert names(catalog) == "az/gpt-4o az/gpt-5 az/gpt-5-mini"
    assert catalog.offer("az/gpt-5", OWN, ()) == Offer("openai", "gpt-5")
