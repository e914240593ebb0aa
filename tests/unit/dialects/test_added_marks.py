"""Cache marks for Claude, where a client of another dialect sends none: an agent would pay all of it each turn."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gateway.translation.test_provider_adapter import client_request_of, prepared
from tests.vendors import foundry, mantle, vertex
from tests.vendors.vendor import Vendor, VendorRequest
from velox.gateway.translation.adapter import ProviderAdapter
from velox.heads import RequestHead
from velox.policy.routes.model_rule import ModelRule
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind, BodyFields

MODEL = "anthropic.claude-opus-4-8"
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
BEGIN: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent"}, {"role": "user", "content": "Hi"}]
LOOP: list[dict[str, Any]] = [
    *BEGIN,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "found"},
]


def sent(row: str, client_api: ApiKind, body: dict[str, Any], *rules: ModelRule, model: str = MODEL) -> dict[str, Any]:
    """Return what goes up."""
    parameters = {"project": "p", "location": "eu", "region": "eu-west-1"}
    adapter = ProviderAdapter(
        dialect_table(), PROVIDERS[row], parameters, lambda name: facts_of(PROVIDERS[row], name, rules)
    )
    call = adapter.target_call(client_api, model, stream=False, query=b"")
    assert call is not None
    request = client_request_of(client_api, RequestHead.of(b"POST", b"/v1/x"), model)._replace(
        fields=BodyFields(model), body=json.dumps({"model": model, **body}).encode()
    )
    found = prepared(adapter, call, request, row).request.body
    assert found is not None
    return cast(dict[str, Any], json.loads(found))


def marked(body: dict[str, Any]) -> list[str]:
    """Return where marks stand: in the tools, the system, or a message by its number."""
    places = [("tools", body.get("tools") or body.get("toolConfig")), ("system", body.get("system"))]
    places += [(str(at), message) for at, message in enumerate(body["messages"])]
    return [
        name
        for name, value in places
        for _ in range(json.dumps(value).count('"cache_control"') + json.dumps(value).count('"cachePoint"'))
    ]


@pytest.mark.parametrize("row", ["anthropic", "vertex", "bedrock", "bedrock-mantle", "foundry"])
def test_agent_gets_marks(row: str) -> None:
    """The prefix and the user's last two messages, in each API that Claude has."""
    body = sent(row, ApiKind.CHAT, {"messages": LOOP, "tools": TOOLS})

    assert marked(body) == ["system", "0", "2"]


@pytest.mark.parametrize("vendor", [vertex.VENDOR, mantle.VENDOR, foundry.VENDOR], ids=lambda each: each.row)
def test_marks_are_taken_by_each_service(vendor: Vendor) -> None:
    """As a client of Chat that marks the whole request sends them, too: on the last block, where the top takes none."""
    for more in ({}, {"cache_control": {"type": "ephemeral"}}):
        body = sent(vendor.row, ApiKind.CHAT, {"messages": LOOP, "tools": TOOLS, **more})
        paths = {"vertex": "/v1/projects/p/locations/eu/publishers/anthropic/models/claude-opus-4-8:rawPredict"}
        path = paths.get(vendor.row, "/anthropic/v1/messages")
        headers = {"anthropic-version": "2023-06-01"}
        refused = vendor.refuse(VendorRequest("POST", path, json.dumps(body).encode(), headers))

        assert refused is None, refused
        assert marked(body) == (["2"] if more else ["system", "0", "2"])


def test_codex_and_gemini_cli_get_marks() -> None:
    """Clients of Responses and Gemini, as those two send their loops; without a system prompt the tools are marked."""
    codex = {
        "instructions": "You are Codex",
        "tools": [{"type": "function", "name": "shell", "parameters": {"type": "object"}}],
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        ],
    }
    gemini = {
        "tools": [{"functionDeclarations": [{"name": "look", "parameters": {"type": "OBJECT"}}]}],
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"a": 1}}}]},
        ],
    }

    assert marked(sent("anthropic", ApiKind.RESPONSES, codex)) == ["system", "0", "2"]
    assert marked(sent("anthropic", ApiKind.GENERATE, gemini)) == ["tools", "0", "2"]


def test_first_turn_marks_the_prefix_alone() -> None:
    """What all conversations of an agent share; a single question pays no more for its own words."""
    assert marked(sent("anthropic", ApiKind.CHAT, {"messages": BEGIN, "tools": TOOLS})) == ["system"]


def test_plain_conversation_gets_none() -> None:
    """Without tools it is no agent's: each turn may be the last."""
    plain = [*BEGIN, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "More"}]

    assert marked(sent("anthropic", ApiKind.CHAT, {"messages": plain})) == []
    always = ModelRule(("*claude*",), (("added_marks", "always"),))
    assert marked(sent("anthropic", ApiKind.CHAT, {"messages": plain}, always)) == ["system", "0", "2"]


def test_client_that_sends_marks_keeps_its_own() -> None:
    own = [*LOOP[:-1], {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "found"}]}]
    own[0] = {
        "role": "system",
        "content": [{"type": "text", "text": "You", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    }
    body = sent("anthropic", ApiKind.CHAT, {"messages": own, "tools": TOOLS})

    assert marked(body) == ["system"] and body["system"][0]["cache_control"]["ttl"] == "1h"


def test_operator_may_say_never() -> None:
    never = ModelRule(("*claude*",), (("added_marks", "never"),))

    assert marked(sent("anthropic", ApiKind.CHAT, {"messages": LOOP, "tools": TOOLS}, never)) == []


def test_other_models_and_clients_of_messages_get_none() -> None:
    """Nova takes marks, and nothing says that it gains; a client of Messages could have sent them."""
    nova = sent("bedrock", ApiKind.CHAT, {"messages": LOOP, "tools": TOOLS}, model="amazon.nova-pro-v1:0")
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    asked = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "tools": tools}

    assert marked(nova) == []
    assert marked(sent("vertex", ApiKind.MESSAGES, asked)) == []


def test_claude_at_openrouter_gets_marks_from_clients_of_other_apis() -> None:
    """It takes Anthropic's marks in Chat, and its pages ask for them."""
    gemini = {
        "systemInstruction": {"parts": [{"text": "You"}]},
        "tools": [{"functionDeclarations": [{"name": "look", "parameters": {"type": "OBJECT"}}]}],
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    }

    assert marked(sent("openrouter", ApiKind.GENERATE, gemini, model="anthropic/claude-opus-4.8")) == ["0"]


@given(st.lists(st.sampled_from(["user", "assistant", "system"]), max_size=12), st.booleans())
def test_there_are_never_more_than_four_and_prefixes_stay(roles: list[str], has_tools: bool) -> None:
    """Whatever the order of messages; the next turn's marks do not change what stands before."""
    messages = [{"role": "user", "content": "Hi"}, *({"role": role, "content": "a"} for role in roles)]
    messages.append({"role": "user", "content": "end"})
    more = {"tools": TOOLS} if has_tools else {}
    body = sent("anthropic", ApiKind.CHAT, {"messages": messages, **more})
    plain = sent(
        "anthropic", ApiKind.CHAT, {"messages": messages, **more}, ModelRule(("*",), (("added_marks", "never"),))
    )

    assert len(marked(body)) <= 3
    assert _without_marks(body) == _without_marks(plain)


def _without_marks(value: Any) -> Any:
    """Return a body without marks, and with plain contents as blocks."""
    if isinstance(value, dict):
        return {
            name: _without_marks(
                [{"type": "text", "text": inner}] if name == "content" and isinstance(inner, str) else inner
            )
            for name, inner in value.items()
            if name != "cache_control"
        }
    return [_without_marks(each) for each in value] if isinstance(value, list) else value
