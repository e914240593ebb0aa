"""Codex's tools at a server with Responses that has functions only, which is the fallback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import routed
from tests.vendors.responses_servers import VENDORS
from tests.vendors.vendor import playing

KEYS = {"OPENAI_API_KEY": "sk-openai-0123456789", "XAI_API_KEY": "sk-xai-0123456789"}


async def overloaded(call: Call) -> None:
    await call.reply(503, JSON, b'{"error":{"message":"overloaded","type":"server_error"}}')


def test_c1_fallback_without_codex_tools_answers() -> None:
    """C1: what a fallback can't take is no refusal of it: the client gets an answer, and its own kind of call."""
    with RecordingUpstream(script=overloaded) as openai, RecordingUpstream(script=playing(VENDORS["xai"])) as xai:
        config = {
            "upstreams": [
                {"name": "openai", "provider": "openai", "origin": openai.upstream.url},
                {"name": "xai", "provider": "xai", "origin": xai.upstream.url},
            ],
            "routes": [{"name": "all", "to": "openai", "fallback": [{"upstream": "xai", "model": "grok-4"}]}],
        }
        with routed(config, **KEYS) as velox:
            body = {"model": "gpt-5.2", "input": "Hi", "tools": [{"type": "custom", "name": "apply_patch"}]}
            reply = velox.request("POST", "/v1/responses", json.dumps(body).encode())

    answer: Any = reply.json()
    assert (reply.status, answer["output"][0]["content"][0]["text"]) == (200, "Hello")
    assert (reply.header("x-velox-tried") or "").startswith("openai=503")
    assert answer["tools"] == [{"type": "custom", "name": "apply_patch"}]


@pytest.mark.parametrize("is_stream", [False, True])
def test_c2_server_without_a_memory_is_asked_with_the_whole_conversation(is_stream: bool) -> None:
    """C2: its Responses passes as sent, and Velox keeps what it answers; `store: false` keeps nothing."""
    with RecordingUpstream(script=playing(VENDORS["groq"])) as groq:
        config = {"upstreams": [{"name": "groq", "provider": "groq", "origin": groq.upstream.url}]}
        with routed(config, GROQ_API_KEY="gsk-0123456789") as velox:

            def ask(**fields: Any) -> Any:
                body = json.dumps({"model": "gpt-oss", "stream": is_stream, **fields}).encode()
                reply = velox.request("POST", "/v1/responses", body)
                assert reply.status == 200, reply.body
                text = reply.body.partition(b"data: ")[2].partition(b"\n")[0] if is_stream else reply.body
                return json.loads(text)["response"] if is_stream else json.loads(text)

            first = ask(input="Hi")
            ask(input="And?", previous_response_id=first["id"])
            sent = json.loads(groq.calls[-1].body)
            assert groq.calls[-1].target.endswith("/responses")
            assert [item["content"] for item in sent["input"]] == ["Hi", first["output"][0]["content"], "And?"]
            ask(input=[{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": "msg_1"}])
            assert [item["type"] for item in json.loads(groq.calls[-1].body)["input"][1:]] == ["message"]

            assert velox.request("GET", "/v1/responses/resp_1").json() == first
            assert velox.request("DELETE", "/v1/responses/resp_1").json()["deleted"] is True
            assert ask(input="Hi", store=False)["id"] == "resp_1"
            n_calls = len(groq.calls)
            body = {"model": "gpt-oss", "input": "And?", "previous_response_id": "resp_1"}
            assert velox.request("POST", "/v1/responses", json.dumps(body).encode()).status == 400
            assert len(groq.calls) == n_calls + 1  # the server's own refusal
