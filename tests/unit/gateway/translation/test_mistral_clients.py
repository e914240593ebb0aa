"""What goes up for Mistral's SDK, which reads a streamed call of a tool in one piece only."""

from __future__ import annotations

import json

import pytest

from tests.unit.gateway.translation.test_provider_adapter import client_request_of, prepared
from velox.gateway.translation.adapter import ProviderAdapter
from velox.heads import RequestHead
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS
from velox.runtime.upstreams.dialects import dialect_table
from velox.types import ApiKind, BodyFields

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
AGENTS = (b"mistral-client-python/3.7.0", b"mistral-client-typescript/2.2.0")


def is_translated(provider: str, agent: bytes, *, has_tools: bool = True, stream: bool = True) -> bool:
    """Say whether a reply is put into chunks of our own."""
    body = json.dumps({**ASKED, "stream": stream, **({"tools": [TOOL]} if has_tools else {})}).encode()
    row = PROVIDERS[provider]
    found = ProviderAdapter(dialect_table(), row, {}, lambda model: facts_of(row, model), (ApiKind.CHAT,))
    call = found.target_call(ApiKind.CHAT, "m", stream=stream, query=b"")
    assert call is not None
    head = RequestHead.of(b"POST", b"/v1/chat/completions", headers=[(b"user-agent", agent)])
    request = client_request_of(ApiKind.CHAT, head, "m")
    request = request._replace(fields=BodyFields(model="m", stream=stream), body=body)
    sent = prepared(found, call, request, provider)
    tools = json.loads(sent.request.body or b"").get("tools", [])
    assert [tool["function"]["name"] for tool in tools] == (["look"] if has_tools else [])
    return sent.translation is not None


@pytest.mark.parametrize("agent", AGENTS)
def test_calls_are_put_together_where_they_come_in_pieces(agent: bytes) -> None:
    """At Mistral's own models they come whole; a server that nobody knows is asked as the client does."""
    assert is_translated("openai", agent) and is_translated("vllm", agent)
    assert not is_translated("mistral", agent) and not is_translated("openai-compatible", agent)


def test_all_else_passes_as_it_comes() -> None:
    """Without tools, without a stream, and to all other clients."""
    assert not is_translated("openai", AGENTS[0], has_tools=False)
    assert not is_translated("openai", AGENTS[0], stream=False)
    assert not is_translated("openai", b"OpenAI/Python 3.54.0")
