"""The simulator answers the real OpenAI SDK, in every shape that the SDK decodes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam
from openai.types.responses import ResponseTextDeltaEvent

from tests.sim.harness import FAST, with_sdk

TALK: Final = replace(FAST, tokens=40, models=("alpha", "org/beta"))
MESSAGES: Final[list[ChatCompletionUserMessageParam]] = [{"role": "user", "content": "Say something about gateways."}]


def test_chat_plain_has_text_and_usage() -> None:
    """A plain chat completion carries the answer, a finish reason and token counts that add up."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="any", messages=MESSAGES)

        assert answer.object == "chat.completion" and answer.model == "any"
        assert answer.choices[0].finish_reason == "stop"
        assert (answer.choices[0].message.content or "").startswith("Hello! This answer comes from")
        assert answer.usage is not None and answer.usage.completion_tokens == 40
        assert answer.usage.prompt_tokens == 8  # 29 characters, four a token
        assert answer.usage.total_tokens == 48

    with_sdk(TALK, talk)


def test_chat_stream_joins_to_the_plain_text() -> None:
    """The chunks of a streamed answer give the same text as the plain one, under one id, one token each."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        plain = await client.chat.completions.create(model="any", messages=MESSAGES)
        stream = await client.chat.completions.create(model="any", messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]

        assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].id != plain.id
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert all(chunk.usage is None for chunk in chunks)
        pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
        assert len(pieces) == 40
        assert "".join(pieces) == plain.choices[0].message.content

    with_sdk(TALK, talk)


def test_chat_stream_include_usage_ends_with_counts() -> None:
    """With include_usage the last chunk has no choice and the counts, and no other chunk has counts."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="any", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

        assert [chunk for chunk in chunks if chunk.usage is not None] == chunks[-1:]
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 40
        assert "usage" in chunks[0].model_fields_set

    with_sdk(TALK, talk)


def test_chat_stream_helper_accumulates_the_answer() -> None:
    """The SDK's own accumulator takes the stream for a whole completion."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        async with client.chat.completions.stream(model="any", messages=MESSAGES) as stream:
            async for _ in stream:
                pass
            answer = await stream.get_final_completion()

        assert (answer.choices[0].message.content or "").startswith("Hello! This answer comes from the Velox ")
        assert answer.choices[0].finish_reason == "stop"

    with_sdk(TALK, talk)


@pytest.mark.parametrize(("limit", "finish"), [(39, "length"), (40, "stop"), (41, "stop")])
def test_chat_limit_cuts_the_answer(limit: int, finish: str) -> None:
    """An answer is cut by max_completion_tokens only where the limit comes before the answer's own end."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="any", messages=MESSAGES, max_completion_tokens=limit)

        assert answer.choices[0].finish_reason == finish
        assert answer.usage is not None and answer.usage.completion_tokens == min(limit, 40)

    with_sdk(TALK, talk)


def test_response_plain_has_output_text() -> None:
    """A plain response is completed and holds one message."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(model="any", input="Say something.")

        assert response.status == "completed" and response.error is None
        assert response.output_text.startswith("Hello! This answer")
        assert response.usage is not None and response.usage.output_tokens == 40
        assert response.usage.input_tokens_details.cached_tokens == 0

    with_sdk(TALK, talk)


def test_response_tokens_are_counted_as_its_usage_does() -> None:
    """Before it is asked for."""

    async def talk(sdk: openai.AsyncOpenAI) -> None:
        counted = await sdk.responses.input_tokens.count(model="velox-sim", input="Why?", instructions="Be brief.")
        response = await sdk.responses.create(model="velox-sim", input="Why?", instructions="Be brief.")
        assert response.usage is not None
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", response.usage.input_tokens)

    with_sdk(FAST, talk)


def test_response_stream_has_every_event_in_order() -> None:
    """A streamed response has the events of the API in their order, numbered from 0 without a gap."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        stream = await client.responses.create(model="any", input="Say something.", stream=True)
        events = [event async for event in stream]

        types = [event.type for event in events]
        assert types[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert types[4:44] == ["response.output_text.delta"] * 40
        assert types[44:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(48))
        assert type(events[4]).__name__ == ResponseTextDeltaEvent.__name__

    with_sdk(TALK, talk)


def test_response_stream_helper_accumulates_the_answer() -> None:
    """The SDK's own state machine for response streams follows it to the end."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        async with client.responses.stream(model="any", input="Say something.") as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()

        assert "".join(deltas) == final.output_text != ""
        assert final.status == "completed"

    with_sdk(TALK, talk)


def test_response_stream_limit_ends_incomplete() -> None:
    """A response that max_output_tokens ended says so, in its event and in its status."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        stream = await client.responses.create(model="any", input="Say something.", stream=True, max_output_tokens=3)
        events = [event async for event in stream]

        last = events[-1]
        assert last.type == "response.incomplete"
        assert last.response.status == "incomplete" and last.response.max_output_tokens == 3
        assert last.response.incomplete_details is not None
        assert last.response.incomplete_details.reason == "max_output_tokens"
        assert last.response.output_text == "Hello! This answer "

    with_sdk(TALK, talk)


def test_completion_plain_and_stream_agree() -> None:
    """The older completions give the same text whole and in chunks."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        plain = await client.completions.create(model="any", prompt=["one", "two"], max_tokens=9)
        stream = await client.completions.create(
            model="any", prompt="one", max_tokens=9, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

        assert plain.choices[0].finish_reason == "length"
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        assert text == plain.choices[0].text != ""
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 9

    with_sdk(TALK, talk)


def test_embeddings_are_unit_vectors_of_their_input() -> None:
    """A vector has length 1 and depends on the input only, in both encodings."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        packed = await client.embeddings.create(model="any", input=["same", "other", "same"])
        plain = await client.embeddings.create(model="any", input="same", encoding_format="float", dimensions=8)
        ids = await client.embeddings.create(model="any", input=[1, 2, 3])

        first, other, same = (item.embedding for item in packed.data)
        assert first == same != other
        assert len(first) == 1536
        assert math.isclose(sum(x * x for x in first), 1, rel_tol=1e-5)
        assert len(plain.data[0].embedding) == 8
        assert [math.copysign(1, x) for x in plain.data[0].embedding] == [math.copysign(1, x) for x in first[:8]]
        assert len(ids.data) == 1 and ids.usage.prompt_tokens == 3

    with_sdk(TALK, talk)


def test_models_list_and_retrieve() -> None:
    """The configured models are listed and found, also one with a slash in its name; others are not."""

    async def talk(client: openai.AsyncOpenAI) -> None:
        listed = await client.models.list()
        found = await client.models.retrieve("org/beta")

        assert [model.id for model in listed.data] == ["alpha", "org/beta"]
        assert found.id == "org/beta" and found.object == "model"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("gamma")
        assert caught.value.code == "model_not_found"

    with_sdk(TALK, talk)
