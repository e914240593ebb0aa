"""Answers of the simulator that come late or never end, and what its prefix cache makes of that."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Final

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.sim.harness import FAST, Peer, wait_until, with_sdk, with_sim
from velox_sim.server import SimServer

HTTP2_CANCEL: Final = 8


def messages(*texts: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text} for text in texts]


LONG: Final = " ".join(f"word{n}" for n in range(100))


def completion(*, stream: bool) -> bytes:
    body = json.dumps({"model": "m", "prompt": "", "stream": stream}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def test_usage_says_how_much_of_the_prompt_was_cached() -> None:
    """Every kind of answer that has a usage has it: whole, streamed, and as a response."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        first = await client.chat.completions.create(model="m", messages=messages(LONG))
        again = await client.chat.completions.create(model="m", messages=messages(LONG, "And now?"))
        assert first.usage is not None and first.usage.prompt_tokens_details is not None
        assert again.usage is not None and again.usage.prompt_tokens_details is not None
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        n_cached = again.usage.prompt_tokens_details.cached_tokens
        assert n_cached == len(LONG) // 64 * 16

        stream = await client.chat.completions.create(
            model="m", messages=messages(LONG, "And then?"), stream=True, stream_options={"include_usage": True}
        )
        usages = [chunk.usage async for chunk in stream if chunk.usage is not None]
        assert [usage.prompt_tokens_details.cached_tokens for usage in usages if usage.prompt_tokens_details] == [
            n_cached
        ]
        response = await client.responses.create(model="m", input=LONG + " more")
        assert response.usage is not None and response.usage.input_tokens_details.cached_tokens == n_cached
        other = await client.chat.completions.create(model="other", messages=messages(LONG))
        assert other.usage is not None and other.usage.prompt_tokens_details is not None
        assert other.usage.prompt_tokens_details.cached_tokens == 0

    with_sdk(replace(FAST, prefix_cache=4096), talk)


def test_prompt_takes_its_time_but_for_what_is_cached() -> None:
    """10,001 tokens at 20 a second take 500 s; who asks again needs only the last of them."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        loop = asyncio.get_running_loop()
        prompt = "word" * 10_000 + "!"
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.1).completions.create(model="m", prompt=prompt)
        begin_s = loop.time()

        answer = await client.completions.create(model="m", prompt=prompt)

        assert loop.time() - begin_s >= 0.049
        assert answer.usage is not None and answer.usage.prompt_tokens == 10_001

    with_sdk(replace(FAST, prefix_cache=16_384, prefill_rate=20), talk)


def test_prompt_takes_its_time_without_a_cache_too() -> None:
    """Then all of it does, each time."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            begin_s = loop.time()
            answer = await client.completions.create(model="m", prompt=LONG[:400])
            assert loop.time() - begin_s >= 0.099
            assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
            assert answer.usage.prompt_tokens_details.cached_tokens == 0
        begin_s = loop.time()
        await client.embeddings.create(model="m", input=LONG[:400])
        assert loop.time() - begin_s >= 0.099

    with_sdk(replace(FAST, prefill_rate=1000), talk)


@pytest.mark.parametrize("stream", [True, False])
def test_slow_answer_comes_later(stream: bool) -> None:
    """By as much as was asked for, streamed or not; a listing is no answer."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        loop = asyncio.get_running_loop()
        await client.models.list()
        begin_s = loop.time()
        await client.chat.completions.create(model="m", messages=messages("x"), stream=stream)
        assert loop.time() - begin_s >= 0.199

    with_sdk(replace(FAST, ttft_s=0.05, slow_rate=1.0, slow_by_s=0.15), talk)


@pytest.mark.parametrize(("stream", "after"), [(True, 0), (False, 0), (False, 2)])
def test_stalled_answer_never_begins(stream: bool, after: int) -> None:
    """It holds its place until its client leaves: who waits behind it is next only then, and stalls, too."""

    async def talk(sim: SimServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
        writer.write(completion(stream=stream))
        await wait_until(lambda: sim.statistics().n_requests == 1)
        waits, other = await asyncio.open_connection("127.0.0.1", sim.port)
        other.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" + completion(stream=stream))
        page = await waits.readuntil(b"sglang:cache_hit_rate{")
        assert b'vllm:num_requests_running{engine="0",model_name="velox-sim"} 1.0\n' in page
        await wait_until(lambda: sim.statistics().n_requests == 3)
        assert sim.statistics().n_running == 2

        writer.close()
        await wait_until(lambda: sim.statistics().n_running == 1)
        other.close()
        await wait_until(lambda: sim.statistics().n_running == 0)
        assert await reader.read() == b""  # it got nothing, not even a head

    with_sim(replace(FAST, stall_rate=1.0, stall_after=after, capacity=1), talk)


def test_stalled_stream_stops_after_its_first_tokens() -> None:
    """Two events, and then silence; an answer that is no longer than that ends."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        stream = await client.completions.create(model="m", prompt="", stream=True)
        chunks = aiter(stream)
        assert [(await anext(chunks)).choices[0].text for _ in range(2)] == ["Hello! ", "This "]
        rest = asyncio.ensure_future(anext(chunks))
        # Whatever the simulator had to say by now would come before the answer to a later question.
        short = await client.completions.create(model="m", prompt="", stream=True, max_tokens=2)
        assert [chunk.choices[0].finish_reason async for chunk in short] == [None, None, "length"]
        assert not rest.done()
        rest.cancel()

    with_sdk(replace(FAST, stall_rate=1.0, stall_after=2), talk)


def test_stalled_stream_stops_over_http2_and_lets_the_others_go_on() -> None:
    """A stream that stalls is one stream of many; its reset frees its place."""

    async def talk(sim: SimServer) -> None:
        peer = await Peer.connect(sim)
        first, second = peer.ask(), peer.ask()
        await peer.read_until(lambda: peer.bodies.keys() >= {first, second})
        assert [peer.bodies[stream_id].count(b"data: ") for stream_id in (first, second)] == [1, 1]
        third = peer.ask()
        await wait_until(lambda: sim.statistics().n_requests == 3)

        peer.h2.reset_stream(first, HTTP2_CANCEL)
        peer.flush()

        await peer.read_until(lambda: third in peer.bodies)
        assert not peer.ended
        peer.close()
        await wait_until(lambda: not sim.statistics().n_connections)

    with_sim(replace(FAST, stall_rate=1.0, stall_after=1, capacity=2), talk)


def test_half_of_the_answers_stall() -> None:
    """About the share that was asked for, and the others are whole."""

    async def talk(sim: SimServer) -> None:
        peer = await Peer.connect(sim)
        asked = [peer.ask() for _ in range(60)]
        await peer.read_until(lambda: len(peer.bodies) == 60 and len(peer.ended) > 15)
        await wait_until(lambda: sim.statistics().n_requests == 60)
        assert 15 < sim.statistics().n_running < 45
        assert all(peer.bodies[stream_id].endswith(b"[DONE]\n\n") for stream_id in peer.ended & set(asked))
        peer.close()
        await wait_until(lambda: not sim.statistics().n_connections)

    with_sim(replace(FAST, stall_rate=0.5, stall_after=1), talk)
