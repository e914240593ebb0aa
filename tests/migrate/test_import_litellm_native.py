"""Deployments at providers that Velox knows by name: which upstream each becomes, and what the report says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.migrate.imported import deployment, imported, loaded, report, targets

SECRET = "sk-very-secret-0123456789"

# litellm_params -> provider, origin, parameters, the model that is asked for, references to keys
CASES: list[tuple[dict[str, Any], str, str, dict[str, str], str, list[str]]] = [
    (
        {"model": "anthropic/claude-sonnet-5"},
        *("anthropic", "https://api.anthropic.com", {}, "claude-sonnet-5", ["env:ANTHROPIC_API_KEY"]),
    ),
    (
        {"model": "claude-opus-5", "api_base": "https://proxy.test/anthropic/v1/messages"},
        *("anthropic", "https://proxy.test/anthropic", {}, "claude-opus-5", ["env:ANTHROPIC_API_KEY"]),
    ),
    (
        {"model": "gemini/gemini-3-pro", "api_key": "os.environ/MY_GEMINI"},
        *("gemini", "https://generativelanguage.googleapis.com", {}, "gemini-3-pro", ["env:MY_GEMINI"]),
    ),
    (
        {"model": "vertex_ai/gemini-2.5-pro", "vertex_project": "p", "vertex_location": "europe-west4"},
        *("vertex", "https://europe-west4-aiplatform.googleapis.com", {"project": "p", "location": "europe-west4"}),
        *("gemini-2.5-pro", []),
    ),
    (
        {"model": "vertex_ai/claude-sonnet-5", "vertex_project": "p", "vertex_location": "global"},
        *("vertex", "https://aiplatform.googleapis.com", {"project": "p", "location": "global"}),
        *("claude-sonnet-5", []),
    ),
    (
        {"model": "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", "aws_region_name": "us-east-1"},
        *("bedrock", "https://bedrock-runtime.us-east-1.amazonaws.com", {"region": "us-east-1"}),
        *("us.anthropic.claude-sonnet-4-5-20250929-v1:0", []),
    ),
    (
        {"model": "bedrock/converse/us-west-2/amazon.nova-pro-v1:0"},
        *("bedrock", "https://bedrock-runtime.us-west-2.amazonaws.com", {"region": "us-west-2"}),
        *("amazon.nova-pro-v1:0", []),
    ),
    (
        {
            "model": "bedrock/amazon.nova-pro-v1:0",
            "aws_region_name": "eu-west-1",
            "aws_bedrock_runtime_endpoint": "http://b",
        },
        *("bedrock", "http://b", {"region": "eu-west-1"}, "amazon.nova-pro-v1:0", []),
    ),
    (
        {"model": "azure/dep", "api_base": "https://Res.openai.azure.com/", "api_version": "2024-10-21"},
        *("azure", "https://res.openai.azure.com", {"resource": "res", "api_version": "2024-10-21"}, "dep"),
        ["env:AZURE_API_KEY"],
    ),
    (
        {"model": "azure/dep", "api_base": "https://gw.test/azure/openai", "client_secret": SECRET, "tenant_id": "t"},
        *("azure", "https://gw.test/azure", {}, "dep", []),
    ),
    (
        {"model": "azure_ai/claude-opus-5", "api_base": "https://res.services.ai.azure.com/anthropic"},
        *(
            "foundry",
            "https://res.services.ai.azure.com",
            {"resource": "res"},
            "claude-opus-5",
            ["env:AZURE_AI_API_KEY"],
        ),
    ),
    (
        {"model": "groq/llama-3.3-70b"},
        *("groq", "https://api.groq.com/openai", {}, "llama-3.3-70b", ["env:GROQ_API_KEY"]),
    ),
    (
        {"model": "perplexity/sonar"},
        "perplexity",
        "https://api.perplexity.ai",
        {},
        "sonar",
        ["env:PERPLEXITYAI_API_KEY"],
    ),
    (
        {"model": "perplexity/preset/low", "api_base": "https://api.perplexity.ai/v1"},
        *("perplexity", "https://api.perplexity.ai", {}, "preset/low", ["env:PERPLEXITYAI_API_KEY"]),
    ),
    ({"model": "zai/glm-5"}, "zai", "https://api.z.ai/api", {}, "glm-5", ["env:ZAI_API_KEY"]),
    ({"model": "hosted_vllm/q", "api_base": "http://v:8000/v1"}, "vllm", "http://v:8000", {}, "q", []),
    ({"model": "groq/q", "api_key": "none"}, "groq", "https://api.groq.com/openai", {}, "q", []),
    (
        {"model": "openai/q", "api_base": "https://h.test/v1"},
        "openai-compatible",
        "https://h.test",
        {},
        "q",
        ["env:OPENAI_API_KEY"],
    ),
]


@pytest.mark.parametrize(
    ("params", "provider", "origin", "parameters", "model", "keys"), CASES, ids=[each[0]["model"] for each in CASES]
)
def test_deployment_becomes_an_upstream_of_its_provider(
    params: dict[str, Any],
    provider: str,
    origin: str,
    parameters: dict[str, str],
    model: str,
    keys: list[str],
    tmp_path: Path,
) -> None:
    """With the region, project or resource that LiteLLM would use, and the key where it stands."""
    result = imported({"model_list": [{"model_name": "a", "litellm_params": params}]})
    made = loaded(result, tmp_path)

    (entry,) = made.upstreams
    assert (entry.provider, [str(each).lower() for each in entry.origins]) == (provider, [origin])
    assert {name: value.lower() for name, value in entry.parameters} == parameters
    assert [str(key) for key in entry.keys] == keys
    assert made.routes[0].to[0].model == model
    assert SECRET not in (result.text or "") + report(result)


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"model": "vertex_ai/gemini-3-pro"}, "it has no vertex_project"),
        ({"model": "vertex_ai/1234567890", "vertex_project": "p"}, "it is an endpoint of a user's own"),
        ({"model": "azure/x"}, "it has no api_base that is known here, nor is AZURE_API_BASE set"),
        ({"model": "azure_ai/x", "api_base": "https://x.eastus.models.ai.azure.com"}, "its URL differs with the model"),
        ({"model": "bedrock/x", "aws_region_name": "a b"}, "its region is no name of one"),
        ({"model": "anthropic/x", "api_base": "ftp://h"}, "its api_base can't be taken"),
        ({"model": "anthropic/x", "api_base": "os.environ/NOT_THERE"}, "its api_base is in a variable that is not set"),
    ],
    ids=range(7),
)
def test_deployment_that_lacks_something_is_named(params: dict[str, Any], why: str) -> None:
    """With what is missing; nothing of it is carried over."""
    result = imported({"model_list": [{"model_name": "a", "litellm_params": params}]})

    assert result.text is None
    assert why in report(result)


def test_credentials_of_clouds_are_named_and_not_copied() -> None:
    """Each with where Velox looks for it."""
    result = imported(
        {
            "model_list": [
                deployment("a", "bedrock/a", aws_access_key_id=SECRET, aws_secret_access_key=SECRET),
                deployment("b", "vertex_ai/b", vertex_project="p", vertex_credentials=SECRET),
                deployment("c", "azure/c", api_base="https://r.openai.azure.com", azure_ad_token=SECRET),
            ]
        }
    )

    text = report(result)
    assert SECRET not in text + (result.text or "")
    assert "litellm_params.aws_secret_access_key: Velox reads AWS credentials where it runs" in text
    assert "litellm_params.vertex_credentials: Velox reads Google's credentials where it runs" in text
    assert "litellm_params.azure_ad_token: Velox fetches tokens of Entra by itself" in text
    assert "no region is given: LiteLLM asks us-west-2 then" in text


def test_wildcard_of_a_provider_is_a_route_that_takes_the_prefix_off(tmp_path: Path) -> None:
    """As names with it are asked for in LiteLLM."""
    config = {
        "model_list": [deployment("anthropic/*", "anthropic/*"), deployment("team/gpt-*", "openai/gpt-*")],
    }
    made = loaded(imported(config), tmp_path)

    assert [route.match.models for route in made.routes] == [("anthropic/*",), ("team/gpt-*",)]
    assert targets(made, "anthropic")[0] == ["anthropic without anthropic/"]
    assert made.routes[1].to[0].strip == "team/"
