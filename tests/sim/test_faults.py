"""The simulator's settings as the real OpenAI SDK meets them: errors at a rate, refusals, pace."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from tests.sim.harness import FAST, with_sdk

MESSAGES: Final[list[ChatCompletionUserMessageParam]] = [{"role": "user", "content": "Say something about gateways."}]


def test_error_rate_one_fails_each_request_but_listings() -> None:
    """With error rate 1 the SDK raises InternalServerError for work, and the model list still answers."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="any", messages=MESSAGES, stream=stream)
            assert caught.value.status_code == 500 and caught.value.type == "server_error"
            assert (caught.value.request_id or "").startswith("req_")
        with pytest.raises(openai.InternalServerError):
            await client.embeddings.create(model="any", input="x")
        assert (await client.models.list()).data

    with_sdk(replace(FAST, error_rate=1.0), talk)


def test_error_rate_half_repeats_with_the_seed() -> None:
    """The same seed fails the same requests in every run, and about the share that was asked for."""
    outcomes: list[list[bool]] = []

    async def talk(client: openai.AsyncOpenAI) -> None:
        outcome = []
        for _ in range(60):
            try:
                await client.chat.completions.create(model="any", messages=MESSAGES)
                outcome.append(True)
            except openai.InternalServerError:
                outcome.append(False)
        outcomes.append(outcome)

    for _ in range(2):
        with_sdk(replace(FAST, error_rate=0.5), talk)

    assert outcomes[0] == outcomes[1]
    assert 15 < sum(outcomes[0]) < 45


def test_bad_requests_raise_the_sdk_classes() -> None:
    """What is no request gets OpenAI's error shape, which the SDK turns into its own exceptions."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="", messages=MESSAGES)
        assert caught.value.param == "model"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=0)
        assert caught.value.param == "max_tokens"
        with pytest.raises(openai.NotFoundError, match="Invalid URL"):
            await client.files.list()
        with pytest.raises(openai.APIStatusError) as refused:
            await client.get("/chat/completions", cast_to=object)
        assert refused.value.status_code == 405 and refused.value.response.headers["allow"] == "POST"

    with_sdk(FAST, talk)


def test_pace_is_kept_by_streams_and_plain_answers() -> None:
    """11 tokens at 50 a second after 100 ms take 300 ms, streamed or not, and the first comes at 100 ms."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        loop = asyncio.get_running_loop()
        await client.models.list()  # connect
        begin = loop.time()
        stream = await client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
        arrivals = [loop.time() - begin async for chunk in stream if chunk.choices[0].delta.content]
        begin = loop.time()
        await client.chat.completions.create(model="any", messages=MESSAGES)
        plain_s = loop.time() - begin

        assert len(arrivals) == 11
        assert arrivals[0] > 0.095 and arrivals[-1] > 0.295 and plain_s > 0.295
        assert arrivals[-1] - arrivals[5] > 0.05  # they come one by one, not all at the end

    with_sdk(replace(FAST, ttft_s=0.1, token_rate=50, tokens=11), talk)
