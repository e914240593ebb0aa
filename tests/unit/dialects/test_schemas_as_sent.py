"""Schemas of tools in requests that pass as they came, to a provider that is not the API's own."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.vendors import schemas
from velox.dialects.as_sent.tool_schemas import with_fitted_schemas
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.types import ApiKind

_UNION: Final = {
    "anyOf": [
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        {"type": "object", "properties": {"zip": {"type": "string"}}, "required": ["zip"]},
    ]
}
_PLAIN: Final = {"type": "object", "properties": {"city": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}


def _body(client_api: ApiKind, *parameters: Any) -> bytes:
    tools: list[Any] = []
    for n, schema in enumerate(parameters):
        named = {"name": f"f{n}", "description": "Looks up."}
        if client_api is ApiKind.CHAT:
            tools.append({"type": "function", "function": {**named, "parameters": schema}})
        elif client_api is ApiKind.RESPONSES:
            tools.append({"type": "function", **named, "parameters": schema})
        else:
            tools.append({**named, "input_schema": schema})
    return json.dumps({"model": "m", "tools": tools, "text": " spaced  "}, indent=1).encode()


def _sent(client_api: ApiKind, provider: str, model: str, *parameters: Any) -> tuple[bool, list[Any], list[str]]:
    """Return whether the body is as it came, and the schemas and descriptions that go up."""
    body = _body(client_api, *parameters)
    found = with_fitted_schemas(body, client_api, facts_of(PROVIDERS[provider], model), PROVIDERS[provider].traits)
    tools = [tool.get("function", tool) for tool in json.loads(found)["tools"]]
    schemas_sent = [tool.get("parameters", tool.get("input_schema")) for tool in tools]
    return found is body, schemas_sent, [tool["description"] for tool in tools]


@pytest.mark.parametrize(
    ("client_api", "provider", "model"),
    [
        (ApiKind.CHAT, "openrouter", "anthropic/claude-opus-4.8"),
        (ApiKind.CHAT, "openai-compatible", "claude-sonnet-4-5"),
        (ApiKind.CHAT, "openrouter", "google/gemini-3-pro-preview"),
        (ApiKind.RESPONSES, "openrouter", "anthropic/claude-opus-4.8"),
        (ApiKind.MESSAGES, "bedrock", "eu.anthropic.claude-sonnet-4-5"),
        (ApiKind.MESSAGES, "vertex", "claude-sonnet-4-5@20250929"),
    ],
)
def test_schema_that_another_provider_refuses_is_made_to_fit(client_api: ApiKind, provider: str, model: str) -> None:
    """K1: as in a translated request: one object at the top, and the rest in the tool's words."""
    is_same, (schema, plain), (told, untold) = _sent(client_api, provider, model, _UNION, _PLAIN)

    assert not is_same
    assert schemas.claude_problem(schema) is None
    assert set(schema["properties"]) == {"city", "zip"}
    assert told.startswith("Looks up.\n\n") and "anyOf" in told
    assert (plain, untold) == (_PLAIN, "Looks up.")


@pytest.mark.parametrize(
    ("client_api", "provider", "model", "schema"),
    [
        (ApiKind.CHAT, "openai", "gpt-5.2", _UNION),
        (ApiKind.CHAT, "vllm", "qwen3", _UNION),
        (ApiKind.MESSAGES, "anthropic", "claude-opus-4-8", _UNION),
        (ApiKind.CHAT, "openrouter", "anthropic/claude-opus-4.8", _PLAIN),
        (ApiKind.MESSAGES, "bedrock", "eu.anthropic.claude-sonnet-4-5", _PLAIN),
        (ApiKind.MESSAGES, "bedrock", "eu.anthropic.claude-sonnet-4-5", {"type": "object", "properties": {"$top": {}}}),
        (ApiKind.MESSAGES, "vertex", "claude-opus-4-8", {"type": "wat"}),
        (ApiKind.CHAT, "openrouter", "anthropic/claude-opus-4.8", "none"),
    ],
)
def test_body_without_such_a_schema_passes_byte_for_byte(
    client_api: ApiKind, provider: str, model: str, schema: Any
) -> None:
    """At the API's own maker, where the model takes it, and where calls could not be given back: nothing is changed."""
    assert _sent(client_api, provider, model, schema)[0]


def test_body_that_is_broken_passes() -> None:
    """Who answers says what is wrong with it."""
    facts = facts_of(PROVIDERS["openrouter"], "anthropic/claude-opus-4.8")
    for body in (b'{"tools": [', b'{"tools": {}}', b'{"tools": [1]}', b'{"tools": [{"function": 1}]}', b'["tools"]'):
        assert with_fitted_schemas(body, ApiKind.CHAT, facts, PROVIDERS["openrouter"].traits) is body
