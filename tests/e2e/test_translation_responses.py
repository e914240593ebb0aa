"""Clients of OpenAI's Responses on models of other APIs: the real SDK, and what Codex sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream, Script
from tests.e2e.routed import routed
from tests.recorded import Exchange, recorded

TOOLS = next(e for e in recorded("gemini", ":generateContent", stream=False) if b'"thoughtSignature"' in e.reply)
STREAM = next(e for e in recorded("gemini", ":streamGenerateContent", stream=True) if e.name.endswith("model_stream#0"))
CHAT = next(e for e in recorded("openai", "/chat/completions", stream=True) if b'"tool_calls"' in e.reply)
CODEX = Path(__file__).parents[1] / "unit/dialects/codex_request.json"


def replays(exchange: Exchange) -> Script:
    """Answer as the recorded upstream did."""

    async def answer(call: Call) -> None:
        await call.reply(200, SSE if exchange.is_stream else JSON, exchange.reply)

    return answer


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway with a Gemini upstream, and one that has Chat Completions only."""
    config = {
        "upstreams": [
            {"name": "gemini", "provider": "gemini", "origin": upstream.upstream.url, "key": "env:GEMINI_KEY"},
            {"name": "mistral", "provider": "mistral", "origin": upstream.upstream.url, "key": "env:OTHER_KEY"},
        ],
        "routes": [
            {"name": "chat", "match": {"models": ["gpt-*"]}, "to": "mistral", "model": "devstral"},
            {"name": "rest", "to": "gemini"},
        ],
    }
    with routed(config, GEMINI_KEY="gk-0123456789", OTHER_KEY="sk-other-0123") as running:
        yield running


def test_answer_comes_back_with_its_signatures(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """The SDK's loop sends the output as it got it; Gemini gets its signature where it was."""
    client = velox.openai()
    history: list[Any] = [{"role": "user", "content": "Go."}]
    with upstream.playing(replays(TOOLS)):
        answer = client.responses.create(model="gemini-3-pro", input=history)
        history += [item.model_dump(exclude_none=True) for item in answer.output]
        for item in answer.output:
            if item.type == "function_call":
                history.append({"type": "function_call_output", "call_id": item.call_id, "output": "42"})
        history.append({"role": "user", "content": "And?"})
        client.responses.create(model="gemini-3-pro", input=history)

    assert answer.status == "completed"
    assert answer.id.startswith("resp_")
    signatures = [
        part["thoughtSignature"]
        for part in json.loads(TOOLS.reply)["candidates"][0]["content"]["parts"]
        if "thoughtSignature" in part
    ]
    parts = [part for content in json.loads(upstream.calls[-1].body)["contents"] for part in content["parts"]]
    assert [part["thoughtSignature"] for part in parts if "thoughtSignature" in part] == signatures


def test_stream_is_accumulated_by_the_sdk(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """The text of the deltas is that of the last event."""
    with upstream.playing(replays(STREAM)), velox.openai().responses.stream(model="gemini-3", input="Hi") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()

    assert text
    assert final.output_text == text
    assert final.usage is not None and final.usage.input_tokens > 0


def test_codex_request_is_answered_by_a_model_of_chat_completions(
    velox: VeloxProcess, upstream: RecordingUpstream
) -> None:
    """Its tools are functions there, and all of its calls have their results."""
    body = {**json.loads(CODEX.read_bytes()), "model": "gpt-5.1-codex"}
    with upstream.playing(replays(CHAT)):
        reply = httpx.post(f"{velox.base_url}/v1/responses", json=body, timeout=20)

    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "tools.hosted" in reply.headers["x-velox-dropped"]
    events = [line[7:] for line in reply.text.splitlines() if line.startswith("event: ")]
    assert (events[0], events[-1]) == ("response.created", "response.completed")
    assert "response.function_call_arguments.done" in events
    sent = json.loads(upstream.calls[-1].body)
    assert {tool["type"] for tool in sent["tools"]} == {"function"}
    assert sent["model"] == "devstral"


def test_refusals_have_the_field(velox: VeloxProcess) -> None:
    """In OpenAI's shape."""
    with pytest.raises(openai.BadRequestError) as caught:
        velox.openai().responses.create(model="gemini-3", input="Hi", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
