"""Clients with credentials of their own, on upstreams without: how they go up in another API than the client's."""

from __future__ import annotations

import json

import anthropic
import openai
from google import genai

from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import MESSAGES, routed
from tests.recorded import Exchange, recorded

OWN = "sk-own-0123456789"
CHAT = next(e for e in recorded("openai", "/chat/completions", stream=False) if b'"tool_calls"' not in e.reply)
CLAUDE = next(e for e in recorded("anthropic", "/messages", stream=False) if b'"text"' in e.reply)


def answering(exchange: Exchange) -> RecordingUpstream:
    """Return an upstream that answers as a provider did."""

    async def answer(call: Call) -> None:
        await call.reply(200, JSON, exchange.reply)

    return RecordingUpstream(script=answer)


def test_key_of_an_anthropic_or_gemini_client_is_openais_bearer() -> None:
    """Each SDK presents it in a header of its own, which OpenAI does not read."""
    with answering(CHAT) as upstream:
        entry = {"name": "openai", "provider": "openai", "origin": upstream.upstream.url, "key": "none"}
        with routed({"upstreams": [entry]}) as velox:
            upstream.forget()
            options = genai.types.HttpOptions(base_url=velox.base_url, timeout=20_000)
            with anthropic.Anthropic(base_url=velox.base_url, api_key=OWN, max_retries=0) as claude:
                question: anthropic.types.MessageParam = {"role": "user", "content": "Hi"}
                said = claude.messages.create(model="gpt-4o", max_tokens=64, messages=[question])
            google = genai.Client(api_key=OWN, http_options=options)
            answer = google.models.generate_content(model="gpt-4o", contents="Hi")
            asked = velox.openai(api_key=OWN).chat.completions.create(model="gpt-4o", messages=MESSAGES)

            text = json.loads(CHAT.reply)["choices"][0]["message"]["content"]
            (block,) = said.content
            assert isinstance(block, anthropic.types.TextBlock)
            assert block.text == answer.text == asked.choices[0].message.content == text
            assert [call.header("authorization") for call in upstream.calls] == [f"Bearer {OWN}"] * 3
            assert {call.header(name) for call in upstream.calls for name in ("x-api-key", "x-goog-api-key")} == {None}


def test_key_of_an_openai_client_is_anthropics() -> None:
    """And a gateway that asks for keys of its own passes none of them on."""
    with answering(CLAUDE) as upstream:
        entry = {"name": "claude", "provider": "anthropic", "origin": upstream.upstream.url, "key": "none"}
        for more in ({}, {"api_keys": OWN}):
            with routed({"upstreams": [entry]}, **more) as velox:
                upstream.forget()
                velox.openai(api_key=OWN).chat.completions.create(model="claude-x", messages=MESSAGES)

                (call,) = upstream.calls
                assert call.header("x-api-key") == (None if more else OWN)
                assert call.header("authorization") is None


def test_two_keys_are_refused() -> None:
    """Velox can't know which of them is meant for the provider."""
    with answering(CLAUDE) as upstream:
        entry = {"name": "claude", "provider": "anthropic", "origin": upstream.upstream.url, "key": "none"}
        with routed({"upstreams": [entry]}) as velox:
            upstream.forget()
            client = velox.openai(api_key=OWN).with_options(default_headers={"x-api-key": "another"})
            try:
                client.chat.completions.create(model="claude-x", messages=MESSAGES)
            except openai.BadRequestError as exc:
                refused = str(exc)

            assert "two different credentials were given" in refused
            assert not upstream.calls
