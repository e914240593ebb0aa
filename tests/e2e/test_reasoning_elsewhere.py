"""Conversations whose reasoning was made at another resource, or by another server of the same API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import JSON, Call, RecordingUpstream, Script
from tests.e2e.routed import routed
from tests.vendors import reasoning
from tests.vendors.vendor import as_request


def responses(maker: str) -> Script:
    """A resource of OpenAI's API that reads its own reasoning alone."""

    async def answers(call: Call) -> None:
        refused = reasoning.refuse_encrypted(as_request(call.method, call.target, (), call.body), maker)
        if refused is not None:
            await call.reply(refused.status, JSON, refused.body)
            return
        output = [
            {"type": "reasoning", "id": f"rs_{maker}", "summary": [], "encrypted_content": f"{maker}-sealed"},
            {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
        ]
        body = {"id": f"resp_{maker}", "object": "response", "status": "completed", "model": "gpt-5", "output": output}
        await call.reply(200, JSON, json.dumps(body).encode())

    return answers


def messages(maker: str, *, busy: int = 0) -> Script:
    """A server of Anthropic's API that takes its own signatures alone. busy: so many requests get 529 first."""
    left = [busy]

    async def answers(call: Call) -> None:
        refused = reasoning.refuse_signature(as_request(call.method, call.target, (), call.body), maker)
        if left[0]:
            left[0] -= 1
            await call.reply(529, JSON, b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}')
        elif refused is not None:
            await call.reply(refused.status, JSON, refused.body)
        else:
            content = [
                {"type": "thinking", "thinking": "so", "signature": f"{maker}-signed"},
                {"type": "text", "text": "hello"},
            ]
            body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-8"}
            usage = {"input_tokens": 1, "output_tokens": 1}
            told = {**body, "content": content, "stop_reason": "end_turn", "usage": usage}
            await call.reply(200, JSON, json.dumps(told).encode())

    return answers


@contextmanager
def gateway(route: dict[str, object], **scripts: tuple[str, Script]) -> Iterator[VeloxProcess]:
    """Run a gateway. scripts: by the upstream's name, with the provider's."""
    with ExitStack() as running:
        upstreams = []
        for name, (provider, script) in scripts.items():
            made = running.enter_context(RecordingUpstream(script=script))
            upstreams.append({"name": name, "provider": provider, "origin": made.upstream.url})
        yield running.enter_context(routed({"upstreams": upstreams, "routes": [{"name": "all", **route}]}))


def asked(velox: VeloxProcess, path: str, body: dict[str, Any]) -> Any:
    reply = velox.request("POST", path, json.dumps(body).encode(), {"authorization": "Bearer k"})
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


def test_second_turn_goes_on_at_any_resource() -> None:
    """C28: two resources by turns; all of ten conversations go on for three turns."""
    with gateway({"to": ["a", "b"]}, a=("openai", responses("a")), b=("openai", responses("b"))) as velox:
        for _ in range(10):
            history: list[Any] = [{"role": "user", "content": "x"}]
            for _ in range(3):
                told = asked(velox, "/v1/responses", {"model": "gpt-5", "store": False, "input": history})
                history += [*told["output"], {"role": "user", "content": "y"}]


@pytest.mark.parametrize("provider", ["zai", "deepseek", "openrouter"])
def test_session_outlives_a_turn_at_another_server_of_the_same_api(provider: str) -> None:
    """C29: Anthropic was busy once, and another server signed a turn; all later turns are Anthropic's again."""
    route: dict[str, object] = {"to": "a", "fallback": ["b"]}
    with gateway(route, a=("anthropic", messages("claude", busy=1)), b=(provider, messages(provider))) as velox:
        history: list[Any] = [{"role": "user", "content": "x"}]
        signed = []
        for _ in range(4):
            body = {"model": "claude-opus-4-8", "max_tokens": 9, "messages": history}
            told = asked(velox, "/v1/messages", body)
            signed.append(told["content"][0]["signature"])
            history += [{"role": "assistant", "content": told["content"]}, {"role": "user", "content": "y"}]
        assert signed == [f"{provider}-signed", *["claude-signed"] * 3]
