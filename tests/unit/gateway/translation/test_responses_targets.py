"""Codex's tools and items at servers with Responses that are not OpenAI's: what is sent there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gateway.translation.test_provider_adapter import client_request_of, prepared
from tests.vendors.responses_servers import TOOLS, VENDORS
from tests.vendors.vendor import VendorRequest
from velox.dialects.as_sent.types_taken import takes_types
from velox.dialects.facts.model_facts import ModelFacts
from velox.gateway.translation.adapter import ProviderAdapter
from velox.heads import RequestHead
from velox.net.upstream.interface import UpstreamRequest
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind, BodyFields

CODEX = Path(__file__).parents[2].joinpath("dialects", "codex_request.json").read_bytes()
# Servers of one's own say that they have it.
APIS = {
    "vllm": (ApiKind.CHAT, ApiKind.RESPONSES),
    "openai-compatible": (ApiKind.CHAT, ApiKind.RESPONSES),
}
MODELS = {"bedrock-mantle": "openai.gpt-oss-120b"}
PATCH = {"type": "custom", "name": "apply_patch"}
SAID = {"role": "user", "content": "Hi"}
CALL = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"}
RESULT = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
EACH: list[dict[str, Any]] = [
    {"tools": [PATCH]},
    {"tools": [{"type": "namespace", "name": "mcp__docs", "tools": [FUNCTION]}]},
    {"tools": [{"type": "tool_search", "execution": "client"}]},
    {"tools": [{"type": "local_shell"}]},
    {"tools": [{"type": "shell"}]},
    {"tools": [{"type": "apply_patch"}]},
    {"tools": [FUNCTION, {"type": "image_generation"}, {"type": "no_such_tool"}]},
    {"input": [SAID, CALL, RESULT]},
    {"input": [SAID, {"type": "additional_tools", "tools": [PATCH]}]},
    {"input": [SAID, {"type": "compaction_trigger"}]},
]


def sent_to(row: str, body: bytes, apis: tuple[ApiKind, ...] = (), model: str = "") -> UpstreamRequest:
    """Return what goes up for a client's request in Responses."""
    name = model or MODELS.get(row, "m")
    parameters = {"region": "us-east-1", "resource": "r"}
    found = ProviderAdapter(
        dialect_table(), PROVIDERS[row], parameters, lambda model: facts_of(PROVIDERS[row], model), apis
    )
    call = found.target_call(ApiKind.RESPONSES, name, stream=False, query=b"")
    assert call is not None
    request = client_request_of(ApiKind.RESPONSES, RequestHead.of(b"POST", b"/v1/responses"), name)
    request = request._replace(fields=BodyFields(model=name), body=body)
    return prepared(found, call, request, row).request


@pytest.mark.parametrize("row", TOOLS)
@pytest.mark.parametrize("fields", [{}, *EACH])
def test_c1_types_that_a_server_has_not_do_not_go_there(row: str, fields: dict[str, Any]) -> None:
    """C1: Codex's tools and items reach servers that have functions only as functions."""
    body = json.dumps({"model": "m", "input": "Hi", **fields}).encode() if fields else CODEX

    sent = sent_to(row, body, APIS.get(row, ()))

    request = VendorRequest("POST", sent.target.decode().partition("?")[0], bytes(sent.body or b""))
    assert VENDORS[row].refuse(request) is None
    assert sent.target.endswith(b"/chat/completions")


@pytest.mark.parametrize("row", TOOLS)
def test_c1_what_a_server_takes_goes_there_as_it_came(row: str) -> None:
    """C1: only a request with another type is written anew."""
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    body = json.dumps({"model": MODELS.get(row, "m"), "input": [SAID, call, result], "tools": [FUNCTION]}).encode()

    sent = sent_to(row, body, APIS.get(row, ()))

    assert (sent.target.endswith(b"/responses"), sent.body) == (True, body)


@pytest.mark.parametrize("row", ["openai", "azure", "foundry"])
def test_c1_openais_own_responses_takes_all(row: str) -> None:
    """C1: there Codex's request passes byte for byte, at whatever model."""
    body = CODEX.replace(b"velox.anthropic..", b"")
    assert sent_to(row, body, model="gpt-5.2").body in (body, body.replace(b'"model": "m"', b'"model": "gpt-5.2"'))


def test_c1_model_that_has_only_responses_gets_functions_by_it() -> None:
    """C1: there is no Chat at such a model; the same API has another form of the request."""
    body = json.dumps({"model": "m", "input": "Hi", "tools": [PATCH]}).encode()

    sent = sent_to("bedrock-mantle", body, model="openai.gpt-5.5")

    assert sent.target == b"/openai/v1/responses"
    assert [tool["type"] for tool in json.loads(sent.body or b"")["tools"]] == ["function"]


NAMES = st.sampled_from(("function", "custom", "mcp", "web_search", "web_search_preview", "message"))


@given(tools=st.lists(NAMES), items=st.lists(NAMES), known=st.sets(NAMES))
def test_c1_each_type_counts_wherever_it_stands(tools: list[str], items: list[str], known: set[str]) -> None:
    """C1: a request goes as it came exactly when all of its types are known."""
    facts = ModelFacts(tool_types=tuple(known), item_types=tuple(known))
    body = json.dumps({"tools": [{"type": t} for t in tools], "input": [{"type": t} for t in items]}).encode()
    assert takes_types(body, facts) is ({*tools, *items} <= known)


@pytest.mark.parametrize(
    ("body", "takes"),
    [
        (b'{"input":"Hi"}', True),
        (b'{"input":[{"role":"user","content":"Hi"}]}', True),
        (b'{"input":[{"id":"fc_1"}]}', False),
        (b'{"input":[{"role":"user","content":"Hi"},{"id":"fc_1"}]}', False),
        (b'{"input":', True),  # the server says what is wrong with it
        (b'{"tools":[{"type":5}]}', True),
    ],
)
def test_items_without_a_type_are_messages_or_references(body: bytes, takes: bool) -> None:
    assert takes_types(body, ModelFacts(tool_types=("function",), item_types=("message",))) is takes


@pytest.mark.parametrize("row", ["anthropic", "gemini", "bedrock", "vertex", "xai", "vllm"])
def test_c14_compaction_never_goes_to_who_has_it_not(row: str) -> None:
    """C14: it is asked of the model as any text is; OpenAI's own gets the request as it came."""
    body = json.dumps({"model": "m", "input": "Hi"}).encode()
    parameters = {"region": "r", "project": "p", "location": "eu"}
    for name, has_it in ((row, False), ("openai", True), ("azure", True)):
        found = ProviderAdapter(
            dialect_table(), PROVIDERS[name], {**parameters, "resource": "r"}, lambda _: ModelFacts(), ()
        )
        call = found.target_call(ApiKind.COMPACT, "claude-x", stream=False, query=b"")
        assert call is not None
        request = client_request_of(ApiKind.COMPACT, RequestHead.of(b"POST", b"/v1/responses/compact"), "claude-x")
        request = request._replace(fields=BodyFields(model="claude-x"), body=body)
        sent = prepared(found, call, request, name).request
        assert (b"/compact" in sent.target, b"Write a summary" in (sent.body or b"")) == (has_it, not has_it)
