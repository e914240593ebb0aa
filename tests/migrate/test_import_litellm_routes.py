"""`velox import litellm`: which way a request goes: strategies, aliases, fallbacks, names with `*`, and tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.migrate.imported import deployment, imported, loaded, report, targets
from velox.settings import load


def test_order_and_fallbacks_are_one_list(tmp_path: Path) -> None:
    """First the lowest order, then the others, then other models, and each once."""
    config = {
        "model_list": [
            deployment("a", "openai/a", order=2),
            deployment("a", "groq/a", order=1),
            deployment("a", "mistral/a"),
            deployment("b", "openai/b"),
            deployment("c", "groq/a"),
        ],
        "router_settings": {
            "fallbacks": [{"a": ["b", "c", "gone"]}, {"*": ["c"]}],
            "default_fallbacks": ["b"],
            "model_group_alias": {"big": "a"},
        },
    }

    result = imported(config)
    made = loaded(result, tmp_path)

    assert targets(made, "a") == (["groq (a)"], ["openai (a)", "mistral (a)", "openai (b)"])
    assert targets(made, "b") == (["openai"], [])
    assert targets(made, "c") == (["groq (a)"], ["openai (b)"])
    assert made.routes[0].match.models == ("a", "big")
    assert "gone is no model that is carried over" in report(result)
    assert "default_fallbacks count before those of `*`" in report(result)
    assert "VELOX_RETRY_STATUSES" in report(result)
    assert made.retries == 1, "each fallback is asked besides"


def test_deployment_with_a_weight_of_zero_gets_no_part_of_the_requests(tmp_path: Path) -> None:
    """It is how one is taken out of use; only a fallback that names it leads there."""
    for weights in ((0, 2, 1), (2, 0, 1)):
        models = ["openai/a", "groq/a"] if weights[0] else ["groq/a", "openai/a"]
        items = [deployment("a", each, weight=n) for each, n in zip([*models, "mistral/a"], weights, strict=True)]
        items[weights.index(0)]["model_info"] = {"id": "spare"}
        config = {
            "model_list": [*items, deployment("b", "openai/b")],
            "router_settings": {"fallbacks": [{"b": ["spare"]}]},
        }

        result = imported(config)
        made = loaded(result, tmp_path)

        assert targets(made, "a") == (["openai", "mistral"], [])
        assert [each.weight for each in made.upstreams if each.name in ("openai", "mistral")] == [2, 1]
        assert targets(made, "b") == (["openai"], ["groq (a)"])
        assert "model_name a: its weight is 0" in report(result)


@pytest.mark.parametrize("group", ["a", "*"])
def test_deployment_without_the_weight_that_others_have_is_a_fallback(group: str, tmp_path: Path) -> None:
    models = [f"{provider}/{group}" for provider in ("openai", "groq", "mistral")]
    items = [
        deployment(group, models[0], weight=3),
        deployment(group, models[1]),
        deployment(group, models[2], weight=1),
    ]

    result = imported({"model_list": items})
    made = loaded(result, tmp_path)

    assert targets(made, "any" if group == "*" else "a") == (
        ["openai", "mistral"],
        ["groq" if group == "*" else "groq (a)"],
    )
    assert {each.name: each.weight for each in made.upstreams} == {"openai": 3, "mistral": 1, "groq": 1}
    assert f"model_name {group}: it has no weight" in report(result)


def test_all_weights_of_zero_are_none(tmp_path: Path) -> None:
    result = imported({"model_list": [deployment("a", f"{each}/a", weight=0) for each in ("openai", "groq")]})

    assert targets(loaded(result, tmp_path), "a") == (["openai", "groq"], [])


def chain(*, most: int | None = None, **fallbacks: list[str]) -> dict[str, Any]:
    """Return a configuration of five models with these fallbacks."""
    router: dict[str, Any] = {"fallbacks": [{name: others} for name, others in fallbacks.items()]}
    if most is not None:
        router["max_fallbacks"] = most
    return {"model_list": [deployment(name, f"openai/{name}") for name in "abcde"], "router_settings": router}


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (chain(a=["b", "c"], b=["d"], d=["a", "e"]), "bdec"),
        (chain(a=["b"], b=["c"], c=["d"], most=2), "bc"),
        (chain(a=["b", "c"], b=["d"], c=["e"], most=2), "bdc"),
        (chain(a=["b"], most=0), ""),
    ],
)
def test_a_fallback_has_its_own_fallbacks(config: dict[str, Any], found: str, tmp_path: Path) -> None:
    """In the order in which LiteLLM asks them, each once, as deep as max_fallbacks says."""
    made = loaded(imported(config), tmp_path)

    assert targets(made, "a")[1] == [f"openai ({name})" for name in found]


@pytest.mark.parametrize(
    ("given", "fallback", "retries", "said"),
    [
        (None, True, 1, ""),
        (0, False, 0, ""),
        (0, True, 1, "with 0 Velox would ask no fallback either"),
        (3, True, 3, ""),
        (9, True, 5, "Velox tries again 5 times at most"),
    ],
)
def test_retries_are_those_of_the_file(
    given: int | None, fallback: bool, retries: int, said: str, tmp_path: Path
) -> None:
    """A fallback needs none of them, but there must be one; what is otherwise is told."""
    config = chain(a=["b"]) if fallback else chain()
    if given is not None:
        config["router_settings"]["num_retries"] = given

    result = imported(config)

    assert loaded(result, tmp_path).retries == retries
    assert ("num_retries" in report(result)) == bool(said)
    assert said in report(result)


@pytest.mark.parametrize(
    ("strategy", "balance", "weights"),
    [
        ("simple-shuffle", "round_robin", [9, 1]),
        ("least-busy", "least_inflight", [1, 1]),
        ("latency-based-routing", "peak_ewma", [1, 1]),
        ("usage-based-routing-v2", "round_robin", [9, 1]),
        ("cost-based-routing", "round_robin", [9, 1]),
    ],
)
def test_strategy_is_a_balance(strategy: str, balance: str, weights: list[int], tmp_path: Path) -> None:
    """For all models, or for those of a routing group; one that Velox has not is told."""
    models = [deployment("a", "openai/a", rpm=900), deployment("a", "groq/a", rpm=100)]
    others = [deployment("b", "mistral/b", weight=2), deployment("b", "xai/b", weight=1)]
    group = {"group_name": "one", "models": ["a"], "routing_strategy": strategy, "routing_strategy_args": {"ttl": 1}}
    everywhere = imported({"model_list": models, "router_settings": {"routing_strategy": strategy}})
    grouped = imported({"model_list": models + others, "router_settings": {"routing_groups": [group]}})

    for result in (everywhere, grouped):
        made = loaded(result, tmp_path)
        assert made.routes[0].balance == balance
        assert [upstream.weight for upstream in made.upstreams[:2]] == weights
        told = f"routing_strategy {strategy}: Velox has no such balance" in report(result)
        assert told == (strategy not in ("simple-shuffle", "least-busy", "latency-based-routing"))
    assert (made.routes[1].balance, [each.weight for each in made.upstreams[2:]]) == ("round_robin", [2, 1])
    assert "routing_groups.group_name" in report(grouped) and "routing_groups.routing_strategy_args" in report(grouped)


REFUSALS = {"context_window_fallbacks": "context_length", "content_policy_fallbacks": "content_filter"}


@pytest.mark.parametrize("section", ["router_settings", "litellm_settings"])
@pytest.mark.parametrize(("setting", "reason"), REFUSALS.items())
def test_fallbacks_for_a_refusal_are_for_that_only(section: str, setting: str, reason: str, tmp_path: Path) -> None:
    """After those for failures, each with its reason, in LiteLLM's order; they need no retries."""
    config = chain(a=["b"])
    config.setdefault(section, {})[setting] = [{"a": ["c", "b"]}, {"c": ["d", "a"]}]
    config["router_settings"]["num_retries"] = 0

    result = imported(config)
    made = loaded(result, tmp_path)

    wanted = ["openai (b)", *(f"openai ({name}) for {reason}" for name in "cdb")]
    assert targets(made, "a") == (["openai"], wanted)
    assert targets(made, "c") == (["openai"], [f"openai ({name}) for {reason}" for name in "dab"])
    assert setting not in report(result)
    del config["router_settings"]["fallbacks"]
    assert loaded(imported(config), tmp_path).retries == 0


def test_fallbacks_of_both_refusals_and_of_failures_are_one_list(tmp_path: Path) -> None:
    """An alias has those of its group, and each tag's route has them."""
    config = chain(a=["b"])
    config["router_settings"] |= {setting: [{"a": ["c"]}] for setting in REFUSALS}
    config["router_settings"] |= {"model_group_alias": {"x": "a"}, "enable_tag_filtering": True}
    config["model_list"][0]["litellm_params"]["tags"] = ["eu"]

    made = loaded(imported(config), tmp_path)

    wanted = ["openai (b)", "openai (c) for context_length", "openai (c) for content_filter"]
    assert [route.match.models for route in made.routes[:2]] == [("a", "x"), ("a", "x")]
    assert made.routes[0].match.tags == ("eu",)
    assert all([str(target) for target in route.fallback] == wanted for route in made.routes[:2])


def test_fallback_for_a_refusal_may_be_of_a_name_that_a_wildcard_serves(tmp_path: Path) -> None:
    """That name gets a route of its own."""
    config = {
        "model_list": [deployment("*", "openai/*"), deployment("large", "groq/large")],
        "router_settings": {"context_window_fallbacks": [{"small": ["large"]}]},
    }

    made = loaded(imported(config), tmp_path)

    assert targets(made, "small") == (["openai"], ["groq (large) for context_length"])
    assert targets(made, "any")[1] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"a": ["gone"]}], "gone is no model that is carried over"),
        ([{"gone": ["a"]}], "of a name that no deployment here is for"),
        ([{"*": ["b"]}], "those of `*` are not for every name here: name the models"),
        ([{"a": ["same"]}], "a deployment of same is one of a, which refused the request"),
        ([{"a": [{"model": "b"}]}], "a fallback is a model's name"),
        (["a"], "it is not NAME: [OTHER, ...]"),
    ],
)
@pytest.mark.parametrize("setting", REFUSALS)
def test_fallback_for_a_refusal_that_has_no_place_is_told(
    setting: str, given: list[object], said: str, tmp_path: Path
) -> None:
    """It is left out, and nothing else is."""
    config = chain(a=["c"])
    config["model_list"].append(deployment("same", "openai/a"))
    config["router_settings"][setting] = given

    result = imported(config)

    assert targets(loaded(result, tmp_path), "a") == (["openai"], ["openai (c)"])
    (line,) = [line for line in report(result).splitlines() if setting in line]
    assert said in line


def test_alias_may_be_hidden() -> None:
    """Which it is not in Velox; one that is not hidden has nothing to tell."""
    aliases = {"x": {"model": "a", "hidden": True}, "w": {"model": "a", "hidden": False}, "z": "a"}
    result = imported({"model_list": [deployment("a", "openai/a")], "router_settings": {"model_group_alias": aliases}})

    assert "models: [a, x, w, z]" in (result.text or "")
    assert [note.subject for note in result.notes.of("left out")] == ["model_group_alias.hidden"]
    assert len(result.notes.of("left out")[0].lines) == 1


def test_what_is_to_be_written_manual_steps_is_right(tmp_path: Path) -> None:
    """The lines that the note on a part to be added tells, in the file as they are."""
    config = {"model_list": [deployment("a", "openai/a"), deployment("fast-*", "groq/llama-*")]}
    result = imported(config)

    assert result.text is not None
    (note,) = (note for note in result.notes.of("left out") if note.subject == "model_name fast-*")
    route, upstream = (line.replace("NAME", "8b") for line in note.text.split("`")[1::2])
    routes = result.text.replace("\nupstreams:\n", f"\nupstreams:\n  {upstream}\n") + f"  {route}\n"
    (tmp_path / "velox.yaml").write_text(routes)
    environ = {"OPENAI_API_KEY": "k1", "GROQ_API_KEY": "k2"}
    made = load(environ, {"VELOX_CONFIG": str(tmp_path / "velox.yaml")}, cores=1)

    assert made.routes[1].match.models == ("fast-8b",)
    assert targets(made, "ROUTE")[0] == ["groq (llama-8b)"]


def test_fallback_may_be_one_deployment_by_its_id(tmp_path: Path) -> None:
    """As LiteLLM takes it; its other ones of the same name are not meant. A number may have underscores, as in YAML."""
    text = """
model_list:
  - {model_name: a, litellm_params: {model: openai/a, tpm: 80_000}}
  - {model_name: b, litellm_params: {model: groq/b}, model_info: {id: the-one}}
  - {model_name: b, litellm_params: {model: mistral/b}, model_info: {id: the-other}}
litellm_settings: {fallbacks: [{a: [the-one]}]}
"""
    made = loaded(imported(text), tmp_path)

    assert targets(made, "a") == (["openai"], ["groq (b)"])
    assert made.limits[0].rates.tpm == 80_000


def test_names_with_wildcards(tmp_path: Path) -> None:
    """They are routes after the exact ones, the longer first; a prefix that the provider has not goes off."""
    config = {
        "model_list": [
            deployment("*", "openai/*"),
            deployment("groq/*", "groq/*"),
            deployment("gpt-*", "azure/gpt-*", api_base="https://a.openai.azure.com"),
            deployment("mini", "openai/gpt-4o-mini"),
        ],
        "router_settings": {"fallbacks": [{"mini": ["groq/llama"]}], "model_group_alias": {"fast": "groq/llama-8b"}},
    }

    result = imported(config)
    made = loaded(result, tmp_path)

    assert [route.match.models for route in made.routes] == [("mini",), ("fast",), ("groq/*",), ("gpt-*",), ("*",)]
    assert targets(made, "mini")[1] == ["groq (llama)"]
    assert targets(made, "fast")[0] == ["groq (llama-8b)"]
    assert targets(made, "any")[0] == ["openai"]
    assert targets(made, "groq")[0] == ["groq without groq/"]
    assert "model_name groq/*" not in report(result)


def test_tags_choose_where_filtering_is_on(tmp_path: Path) -> None:
    """One route a tag, then one for all other requests: to those with the tag `default`, if there are any."""
    config: dict[str, Any] = {
        "model_list": [
            deployment("a", "openai/a", tags=["paid", "eu"]),
            deployment("a", "groq/a", tags=["free"]),
            deployment("a", "mistral/a", tags=["default"]),
        ],
        "router_settings": {"enable_tag_filtering": True},
    }

    made = loaded(imported(config), tmp_path)

    found = {route.match.tags: [target.upstream for target in route.to] for route in made.routes}
    assert found == {("paid",): ["openai"], ("eu",): ["openai"], ("free",): ["groq"], (): ["mistral"]}
    del config["router_settings"]
    assert "without enable_tag_filtering" in report(imported(config))
