"""Codex's tools at a server with Responses that has functions only, which is the fallback."""

from __future__ import annotations

import json
from typing import Any

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
