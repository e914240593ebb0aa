"""What an import can't carry over is left out with all that leads there: never the same name at another provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.migrate.imported import deployment, imported, loaded, report, targets

OPENAI = deployment("gpt-4o", "openai/gpt-4o", api_key="os.environ/OPENAI_API_KEY")
HEALTHY = deployment("llama", "hosted_vllm/llama-3", api_base="http://10.0.0.1:8000/v1")
BEDROCK = deployment("claude", "sagemaker/claude-3-sonnet")
EVERYTHING = deployment("*", "openai/*", api_key="os.environ/OPENAI_API_KEY")
WITH_ID = {**deployment("other", "sagemaker/x"), "model_info": {"id": "claude-id"}}
SHARED = deployment("sagemaker/*", "sagemaker/*")


@pytest.mark.parametrize("other", ["claude", "claude-id", "sagemaker/anything"])
@pytest.mark.parametrize("kind", ["fallbacks", "default_fallbacks", "of all others", "alias"])
@pytest.mark.parametrize("section", ["router_settings", "litellm_settings"])
def test_fallback_that_is_not_carried_over_is_left_out(tmp_path: Path, other: str, kind: str, section: str) -> None:
    """Though a group with `*` would take its name; the healthy one after it stays, and the report says so."""
    names = [other, "llama"]
    aliases: dict[str, object] = {"model_group_alias": {"nick": other}} if kind == "alias" else {}
    kinds: dict[str, dict[str, object]] = {
        "fallbacks": {"fallbacks": [{"gpt-4o": names}]},
        "default_fallbacks": {"default_fallbacks": names},
        "of all others": {"fallbacks": [{"*": names}]},
        "alias": {"fallbacks": [{"gpt-4o": ["nick", "llama"]}]},
    }
    sections = {
        "router_settings": aliases,
        section: {**(aliases if section == "router_settings" else {}), **kinds[kind]},
    }
    config = {"model_list": [OPENAI, HEALTHY, BEDROCK, WITH_ID, SHARED, EVERYTHING], **sections}

    result = imported(config)

    made = loaded(result, tmp_path)
    assert targets(made, "gpt-4o") == (["openai"], ["hosted_vllm-10.0.0.1 (llama-3)"])
    every = [str(target) for route in made.routes for target in route.targets]
    assert not [target for target in every if other in target or "nick" in target]
    left_out = report(result).partition("not carried over:")[2].partition("not quite as it was:")[0]
    wanted = "nick" if kind == "alias" else other
    assert f"fallbacks: {wanted} is no model that is carried over" in left_out


def test_alias_of_a_model_that_is_not_carried_over_is_left_out(tmp_path: Path) -> None:
    """It has no route of its own; the report says that, and where its requests go now."""
    config = {
        "model_list": [OPENAI, BEDROCK, EVERYTHING],
        "router_settings": {"model_group_alias": {"sonnet": "claude"}, "fallbacks": [{"sonnet": ["gpt-4o"]}]},
    }

    result = imported(config)

    made = loaded(result, tmp_path)
    assert [route.name for route in made.routes if "sonnet" in route.match.models] == []
    text = report(result)
    assert "model_group_alias: of a group that is not here any more" in text
    assert "model_name sonnet" in text and "model_name claude" in text


def test_fallback_of_a_group_with_a_star_is_told_too(tmp_path: Path) -> None:
    """As that of a name."""
    config = {
        "model_list": [HEALTHY, BEDROCK, EVERYTHING],
        "router_settings": {"fallbacks": [{"*": ["claude", "llama"]}]},
    }

    result = imported(config)

    made = loaded(result, tmp_path)
    (route,) = [route for route in made.routes if route.match.models == ("*",)]
    assert [str(target) for target in route.fallback] == ["hosted_vllm-10.0.0.1 (llama-3)"]
    assert "fallbacks: claude is no model that is carried over" in report(result)


def test_group_of_which_a_part_is_carried_over_stays(tmp_path: Path) -> None:
    """Its other deployments serve the name."""
    part = deployment("claude", "openrouter/anthropic/claude-3", api_key="os.environ/ROUTER_KEY")
    config = {"model_list": [OPENAI, BEDROCK, part], "router_settings": {"fallbacks": [{"gpt-4o": ["claude"]}]}}

    made = loaded(imported(config), tmp_path)

    assert targets(made, "gpt-4o")[1] == ["openrouter (anthropic/claude-3)"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("context_window_fallbacks", "context_length"), ("content_policy_fallbacks", "content_filter")],
)
def test_fallback_for_a_refusal_that_is_not_carried_over_is_left_out(tmp_path: Path, kind: str, reason: str) -> None:
    """And told; the same name at another provider is not asked instead."""
    config = {
        "model_list": [OPENAI, HEALTHY, BEDROCK, EVERYTHING],
        "litellm_settings": {kind: [{"gpt-4o": ["claude", "llama"]}]},
    }

    result = imported(config)

    assert targets(loaded(result, tmp_path), "gpt-4o") == (
        ["openai"],
        [f"hosted_vllm-10.0.0.1 (llama-3) for {reason}"],
    )
    assert f"{kind}: claude is no model that is carried over" in report(result)
