"""Faults that a request asks for by its model's name, as the SDKs of all dialects see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors, types

from tests.sim.harness import FAST, with_sim
from velox_sim.server import SimServer

TALK: Final = replace(FAST, tokens=5)
ASKED: Final[Any] = [{"role": "user", "content": "Hi"}]


def test_errors_have_their_status_and_shape() -> None:
    """A rate limit says when to come back."""

    async def talk(sim: SimServer) -> None:
        chat: Any = openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="x", max_retries=0)
        claude: Any = anthropic.AsyncAnthropic(base_url=sim.url, api_key="x", max_retries=0)
        gemini: Any = genai.Client(api_key="x", http_options=types.HttpOptions(base_url=sim.url)).aio
        async with chat, claude, gemini:
            with pytest.raises(openai.RateLimitError) as limited:
                await chat.chat.completions.create(model="gpt-sim-error-429", messages=ASKED)
            assert limited.value.response.headers["retry-after"] == "1"
            with pytest.raises(anthropic.APIStatusError) as overloaded:
                await claude.messages.create(model="sim-error-529-x", max_tokens=9, messages=ASKED)
            assert overloaded.value.status_code == 529
            assert isinstance(overloaded.value.body, dict)
            assert overloaded.value.body["error"]["type"] == "overloaded_error"
            with pytest.raises(errors.ServerError) as unavailable:
                await gemini.models.generate_content(model="sim-error-503", contents="Hi")
            assert unavailable.value.status == "UNAVAILABLE"

    with_sim(TALK, talk)


@pytest.mark.parametrize("n", [0, 2])
def test_errors_in_streams(n: int) -> None:
    """After so many tokens; the SDKs raise them, but for those of Responses, which are events."""

    async def talk(sim: SimServer) -> None:
        chat: Any = openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="x", max_retries=0)
        claude: Any = anthropic.AsyncAnthropic(base_url=sim.url, api_key="x", max_retries=0)
        texts: list[str] = []
        async with chat, claude:
            with pytest.raises(openai.APIError):
                stream = await chat.chat.completions.create(model=f"sim-fail-{n}", messages=ASKED, stream=True)
                texts += [chunk.choices[0].delta.content async for chunk in stream]
            stream = await chat.responses.create(model=f"sim-fail-{n}", input="Hi", stream=True)
            kinds = [event.type async for event in stream]
            assert kinds[-1] == "error"
            assert kinds.count("response.output_text.delta") == n
            with pytest.raises(anthropic.APIError):
                async with claude.messages.stream(model=f"sim-fail-{n}", max_tokens=9, messages=ASKED) as told:
                    texts += [text async for text in told.text_stream]

    with_sim(TALK, talk)


def test_cut_streams_have_no_finish_and_cut_answers_are_reset() -> None:
    """What came before the cut is whole."""

    async def talk(sim: SimServer) -> None:
        chat: Any = openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="x", max_retries=0)
        async with chat:
            stream = await chat.chat.completions.create(model="sim-cut-2", messages=ASKED, stream=True)
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello! This "
            assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
            with pytest.raises(openai.APIConnectionError):
                await chat.chat.completions.create(model="sim-cut-2", messages=ASKED)

    with_sim(TALK, talk)
