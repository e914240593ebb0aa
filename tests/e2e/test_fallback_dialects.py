"""The first choice speaks another dialect than its fallback, and fails: before its answer, and inside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import MESSAGES, named, routed

SETTINGS = {"retry_before_fallback": "0s", "MODEL_KEY": "sk-model-0123456789"}


# What the client is told of the first choice, by how that fails: before its answer, or inside its 200.
IN_ANSWERS = {
    "claude-sim-error-529": "claude=529",
    "claude-sim-error-500": "claude=500",
    "claude-sim-cut-0": "claude=upstream_reset",
}
IN_STREAMS = {**IN_ANSWERS, "claude-sim-cut-0": "claude=upstream_truncated", "claude-sim-fail-0": "claude=500"}


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """A simulator that is each of the providers."""
    with named("models", models="--ttft 0 --token-rate 50 --tokens 6") as sims:
        yield sims["models"]["origin"]


@pytest.fixture
def velox(origin: str) -> Iterator[VeloxProcess]:
    """Claude, and after it Gemini. A new one for each test: after five failures Claude is asked no more."""
    config = {
        "upstreams": [
            {"name": "claude", "provider": "anthropic", "origin": origin, "key": "env:MODEL_KEY"},
            {"name": "gemini", "provider": "gemini", "origin": origin, "key": "env:MODEL_KEY"},
        ],
        "routes": [
            {"name": "all", "to": "claude", "fallback": [{"upstream": "gemini", "model": "gemini-sim"}]},
        ],
    }
    with routed(config, **SETTINGS) as running:
        yield running


@pytest.mark.parametrize("model", list(IN_ANSWERS))
def test_plain_answer_comes_from_the_fallback(velox: VeloxProcess, model: str) -> None:
    """Whole, and with the reason."""
    reply = velox.openai().chat.completions.with_raw_response.create(model=model, messages=MESSAGES)

    answer = reply.parse()
    assert answer.model == "gemini-sim"
    assert answer.choices[0].message.content == "Hello! This answer comes from the "
    assert answer.choices[0].finish_reason == "stop"
    # A connection that ends before an answer may have been an old one, which is tried once more.
    assert set(reply.headers["x-velox-tried"].split(", ")) == {IN_ANSWERS[model]}


@pytest.mark.parametrize("model", list(IN_STREAMS))
def test_stream_that_fails_before_its_first_text_comes_from_the_fallback(velox: VeloxProcess, model: str) -> None:
    """Nothing of the first reaches the client."""
    reply = velox.openai().chat.completions.with_raw_response.create(model=model, messages=MESSAGES, stream=True)

    chunks = list(reply.parse())
    assert reply.headers["x-velox-tried"] == IN_STREAMS[model]
    assert {chunk.model for chunk in chunks} == {"gemini-sim"}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello! This answer comes from the "
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("model", ["claude-sim-fail-3", "claude-sim-cut-3"])
def test_stream_that_fails_later_is_an_error_and_no_finish(velox: VeloxProcess, model: str) -> None:
    """The client has seen a part of it: there is no other way."""
    stream: Any = velox.openai().chat.completions.create(model=model, messages=MESSAGES, stream=True)

    chunks = []
    with pytest.raises(openai.APIError):
        for chunk in stream:
            chunks.append(chunk)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello! This answer "
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)


def test_fallback_gets_a_history_without_the_signatures_of_the_first() -> None:
    """The signature of a call at Gemini travels in its id, which is longer than OpenAI takes."""
    signature = base64.b64encode(b"x" * 600).decode()
    call = {"functionCall": {"name": "look", "args": {"at": 1}}, "thoughtSignature": signature}
    said = {"candidates": [{"content": {"role": "model", "parts": [call]}, "finishReason": "STOP"}]}
    answer = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Seen."}, "finish_reason": "stop"}],
    }
    is_down = False

    async def script(each: Call) -> None:
        if "generateContent" not in each.target:
            await each.reply(200, JSON, json.dumps(answer).encode())
        elif is_down:
            await each.reply(503, JSON, b'{"error":{"code":503,"message":"Overloaded.","status":"UNAVAILABLE"}}')
        else:
            await each.reply(200, JSON, json.dumps(said).encode())

    with RecordingUpstream(script=script) as upstream:
        more = {"origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        config = {
            "upstreams": [{"provider": "gemini", **more}, {"provider": "openai", **more}],
            "routes": [{"name": "all", "to": "gemini", "fallback": [{"upstream": "openai", "model": "gpt-4o"}]}],
        }
        tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        with routed(config, **SETTINGS) as velox:
            chat = velox.openai().chat.completions
            first = chat.create(model="gemini-x", messages=MESSAGES, tools=tools).choices[0].message
            assert first.tool_calls is not None
            called = first.tool_calls[0].id
            is_down = True
            history: Any = [*MESSAGES, first.to_dict(), {"role": "tool", "tool_call_id": called, "content": "42"}]
            second = chat.create(model="gemini-x", messages=history, tools=tools)

            assert second.choices[0].message.content == "Seen."
            _, message, result = json.loads(upstream.calls[-1].body)["messages"]
            assert signature in called and not {"reasoning_content", "reasoning_details"} & set(message)
            assert called.startswith(message["tool_calls"][0]["id"] + "__thought__")
            assert result["tool_call_id"] == message["tool_calls"][0]["id"]
