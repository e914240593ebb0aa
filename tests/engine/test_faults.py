"""What goes wrong at a real engine: refused requests, clients that leave, an engine that is killed."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types
from openai.types.chat import ChatCompletionUserMessageParam

from tests.e2e.harness import KEY, VeloxProcess, until
from tests.engine.conftest import Engine
from tests.engine.tiny_model import CONTEXT

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Say something."}]
LONG = 20_000  # tokens: many seconds


@pytest.mark.parametrize("is_streamed", [False, True])
def test_context_overflow_is_an_error_of_each_client(velox: VeloxProcess, is_streamed: bool) -> None:
    """Status 400 with the engine's words, in the shape that the client knows."""
    text = "x" * (CONTEXT + 100)
    messages: Any = [{"role": "user", "content": text}]
    http = anthropic.DefaultHttpxClient(trust_env=False, timeout=30.0)
    claude = anthropic.Anthropic(base_url=velox.base_url, api_key=KEY, max_retries=0, http_client=http)
    gemini = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=velox.base_url))

    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        velox.openai().chat.completions.create(model="tiny", messages=messages, stream=is_streamed)
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as refused:
        velox.openai().responses.create(model="tiny", input=text, stream=is_streamed)
    assert refused.value.code == "context_length_exceeded"  # the engine has a name of its own
    with claude, pytest.raises(anthropic.BadRequestError, match="exceeds the available context size"):
        claude.messages.create(model="tiny", messages=messages, max_tokens=9, stream=is_streamed)
    with pytest.raises(genai.errors.ClientError, match="exceeds the available context size") as raised:
        if is_streamed:
            list(gemini.models.generate_content_stream(model="tiny", contents=text))
        else:
            gemini.models.generate_content(model="tiny", contents=text)
    assert raised.value.code == 400


def test_model_that_the_engine_does_not_have(velox: VeloxProcess) -> None:
    """llama.cpp answers for any name when it serves one model, and says which answered."""
    reply = velox.openai().chat.completions.create(model="another", messages=MESSAGES, max_tokens=3)

    assert reply.model == "tiny"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_client_that_leaves_stops_the_engine(velox: VeloxProcess, engine: Engine, path: str) -> None:
    """The engine generates no more, long before it would have been done; and serves the next client."""
    body = {"model": "tiny", "messages": MESSAGES, "stream": True, "max_tokens": LONG, "temperature": 0}
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: v\r\nauthorization: Bearer k\r\nanthropic-version: 2023-06-01\r\n"
    n_before = engine.metric("tokens_predicted_total")

    with velox.connect(30.0) as client:
        client.sendall(f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        received = b""
        while b"data: " not in received:
            received += client.recv(65_536)
    until(lambda: engine.metric("requests_processing") == 0, "the engine stops", 20.0)

    assert engine.metric("tokens_predicted_total") - n_before < LONG / 2
    velox.wait_metric("velox_inflight_requests", lambda n: n == 0)
    assert velox.openai().chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=3).usage


@pytest.mark.parametrize("api", ["chat", "responses", "messages", "generate"])
def test_killed_engine_is_no_clean_end(velox: VeloxProcess, engine: Engine, api: str) -> None:
    """The SDK raises, or never sees a finish; once the engine is back the next request passes."""
    finishes: list[object] = []
    raised: Exception | None = None
    streams = {"chat": _chat, "responses": _responses, "messages": _messages, "generate": _generate}
    try:
        for n, finish in enumerate(streams[api](velox)):
            if n == 5:
                engine.kill()
            if finish is not None:
                finishes.append(finish)
    except Exception as error:  # each SDK has its own
        raised = error
    engine.kill()

    assert finishes == []
    assert raised is not None
    engine.start()
    body = json.dumps({"messages": MESSAGES, "max_tokens": 3}).encode()
    # The gateway may hold the engine to be away for a moment.
    until(lambda: velox.request("POST", "/v1/chat/completions", body).status == 200, "the engine is asked again", 20.0)


def _chat(velox: VeloxProcess) -> Any:
    sdk = velox.openai()
    for chunk in sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, max_tokens=LONG):
        yield chunk.choices[0].finish_reason


def _responses(velox: VeloxProcess) -> Any:
    for event in velox.openai().responses.create(model="tiny", input="hi", stream=True, max_output_tokens=LONG):
        yield event.type if event.type in ("response.completed", "response.incomplete") else None
        if event.type in ("error", "response.failed"):
            raise RuntimeError(event.type)


def _messages(velox: VeloxProcess) -> Any:
    http = anthropic.DefaultHttpxClient(trust_env=False, timeout=30.0)
    with anthropic.Anthropic(base_url=velox.base_url, api_key=KEY, max_retries=0, http_client=http) as claude:
        asked: Any = {"model": "tiny", "messages": MESSAGES, "max_tokens": LONG, "stream": True}
        for event in claude.messages.create(**asked):
            yield event.type if event.type in ("message_delta", "message_stop") else None


def _generate(velox: VeloxProcess) -> Any:
    client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=velox.base_url))
    config = types.GenerateContentConfig(max_output_tokens=LONG)
    for chunk in client.models.generate_content_stream(model="tiny", contents="hi", config=config):
        yield chunk.candidates[0].finish_reason if chunk.candidates else None
