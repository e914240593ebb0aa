"""The simulator answers what the OpenAI SDK's examples ask for: tools, structured outputs, n, log probabilities."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final, Literal

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel, Field

from tests.sim.harness import FAST, with_sdk
from velox_sim.apis.schema import sample

TALK: Final = replace(FAST, tokens=5)
WEATHER: Final[dict[str, object]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 2, "maximum": 7},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
TOOLS: Final[list[ChatCompletionToolParam]] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "no_arguments"}},
]
ASKED: Final[list[ChatCompletionMessageParam]] = [{"role": "user", "content": "What is the weather?"}]
FITTING: Final = {"city": "simulated", "unit": "celsius", "days": 2}


class Step(BaseModel):
    explanation: str
    output: float


class Answer(BaseModel):
    """What a structured output is parsed into: nested, with lists, choices and nulls."""

    steps: list[Step]
    kind: Literal["exact", "guess"]
    confidence: float = Field(ge=0.5, le=1)
    note: str | None
    next: Answer | None


def test_chat_tool_loop() -> None:
    """The first tool is called with arguments that fit; after its result comes a text."""

    async def talk(sdk: openai.AsyncOpenAI) -> None:
        first = (await sdk.chat.completions.create(model="m", messages=ASKED, tools=TOOLS)).choices[0]
        assert first.finish_reason == "tool_calls" and first.message.content is None
        assert first.message.tool_calls is not None
        (call,) = first.message.tool_calls
        assert call.type == "function" and call.function.name == "get_weather"
        assert json.loads(call.function.arguments) == FITTING

        messages: Any = [*ASKED, first.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        last = (await sdk.chat.completions.create(model="m", messages=messages, tools=TOOLS)).choices[0]
        assert last.finish_reason == "stop" and last.message.content and not last.message.tool_calls

    with_sdk(TALK, talk)


def test_chat_tool_choice() -> None:
    """`none` is a text; a function by its name is that one; one that is not there is refused."""

    async def talk(sdk: openai.AsyncOpenAI) -> None:
        plain = await sdk.chat.completions.create(model="m", messages=ASKED, tools=TOOLS, tool_choice="none")
        assert plain.choices[0].message.content
        named: Any = {"type": "function", "function": {"name": "no_arguments"}}
        called = await sdk.chat.completions.create(model="m", messages=ASKED, tools=TOOLS, tool_choice=named)
        calls: Any = called.choices[0].message.tool_calls
        assert (calls[0].function.name, calls[0].function.arguments) == ("no_arguments", "{}")
        named["function"]["name"] = "not_there"
        with pytest.raises(openai.BadRequestError):
            await sdk.chat.completions.create(model="m", messages=ASKED, tools=TOOLS, tool_choice=named)

    with_sdk(TALK, talk)


def test_chat_stream_of_a_tool_call() -> None:
    """The SDK's own accumulator makes a whole call of the pieces."""

    async def talk(sdk: openai.AsyncOpenAI) -> None:
        async with sdk.chat.completions.stream(model="m", messages=ASKED, tools=TOOLS) as stream:
            events = [event async for event in stream]
            done = (await stream.get_final_completion()).choices[0]
        assert any(event.type == "tool_calls.function.arguments.delta" for event in events)
        assert done.finish_reason == "tool_calls" and done.message.tool_calls is not None
        assert json.loads(done.message.tool_calls[0].function.arguments) == FITTING

    with_sdk(TALK, talk)


def test_structured_outputs_fit_their_schema() -> None:
    """Chat and Responses, plain and streamed, parsed by the SDK; and plain JSON mode."""

    async def talk(sdk: openai.AsyncOpenAI) -> None:
        chat = await sdk.chat.completions.parse(model="m", messages=ASKED, response_format=Answer)
        assert isinstance(chat.choices[0].message.parsed, Answer)
        async with sdk.chat.completions.stream(model="m", messages=ASKED, response_format=Answer) as stream:
            assert isinstance((await stream.get_final_completion()).choices[0].message.parsed, Answer)
        response = await sdk.responses.parse(model="m", input="x", text_format=Answer)
        assert isinstance(response.output_parsed, Answer)
        async with sdk.responses.stream(model="m", input="x", text_format=Answer) as events:
            assert isinstance((await events.get_final_response()).output_parsed, Answer)
        mode = await sdk.chat.completions.create(model="m", messages=ASKED, response_format={"type": "json_object"})
        assert isinstance(json.loads(mode.choices[0].message.content or ""), dict)

    with_sdk(TALK, talk)


def test_several_answers_with_log_probabilities() -> None:
    """`n` and `logprobs`, plain and streamed; the usage counts all answers."""

    async def talk(sdk: openai.AsyncOpenAI) -> None:
        plain = await sdk.chat.completions.create(model="m", messages=ASKED, n=3, logprobs=True, top_logprobs=2)
        assert [choice.index for choice in plain.choices] == [0, 1, 2]
        assert plain.usage is not None and plain.usage.completion_tokens == 15
        for choice in plain.choices:
            assert choice.logprobs is not None and choice.logprobs.content is not None
            assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
            assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
        texts = {0: "", 1: ""}
        stream = await sdk.chat.completions.create(model="m", messages=ASKED, n=2, logprobs=True, stream=True)
        async for chunk in stream:
            for piece in chunk.choices:
                texts[piece.index] += piece.delta.content or ""
        assert texts[0] == texts[1] == plain.choices[0].message.content
        with pytest.raises(openai.BadRequestError):
            await sdk.chat.completions.create(model="m", messages=ASKED, n=0)

    with_sdk(TALK, talk)


def test_responses_tool_loop() -> None:
    """A function call, plain and streamed, and a text after its output; log probabilities where they are asked for."""

    async def talk(sdk: openai.AsyncOpenAI) -> None:
        tools: Any = [{"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}]
        (call,) = (await sdk.responses.create(model="m", input="weather?", tools=tools)).output
        assert call.type == "function_call" and json.loads(call.arguments) == FITTING
        async with sdk.responses.stream(model="m", input="weather?", tools=tools) as stream:
            events = [event async for event in stream]
            streamed: Any = (await stream.get_final_response()).output[0]
        assert streamed.type == "function_call" and json.loads(streamed.arguments) == FITTING
        assert [event.sequence_number for event in events if hasattr(event, "sequence_number")] == sorted(
            event.sequence_number for event in events if hasattr(event, "sequence_number")
        )
        given: Any = [call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        include: Any = ["message.output_text.logprobs"]
        last = await sdk.responses.create(model="m", input=given, tools=tools, include=include, top_logprobs=1)
        assert last.output_text
        part: Any = last.output[0]
        assert "".join(entry.token for entry in part.content[0].logprobs) == last.output_text

    with_sdk(TALK, talk)


@given(
    least=st.integers(-1000, 1000),
    width=st.integers(0, 1000),
    whole=st.booleans(),
    length=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    items=st.integers(0, 5),
)
def test_samples_keep_their_bounds(least: int, width: int, whole: bool, length: tuple[int, int], items: int) -> None:
    """Numbers, lengths and counts are within what the schema says."""
    kind = "integer" if whole else "number"
    number: Any = sample({"type": kind, "minimum": least, "maximum": least + width})
    assert least <= number <= least + width
    text: Any = sample({"type": "string", "minLength": min(length), "maxLength": max(length)})
    assert min(length) <= len(text) <= max(length)
    assert len(sample({"type": "array", "items": {"type": "null"}, "minItems": items})) >= items  # type: ignore[arg-type]


def test_schema_without_an_end_has_a_sample() -> None:
    """One that contains itself with no way out, one that refers to nothing, one that is none."""
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    assert isinstance(sample(endless), dict)
    assert sample({"$ref": "#/nowhere"}) == "simulated"
    assert sample({"allOf": [{"type": "object", "properties": {"a": {"const": 1}}}, {"required": ["b"]}]}) == {
        "a": 1,
        "b": "simulated",
    }
    for odd in (None, [], 7, True, {"type": 7}, {"enum": []}, {"type": []}, {"anyOf": [None]}):
        json.dumps(sample(odd))


def test_chat_reasoning() -> None:
    """Before the answer where an effort is asked for, plain as streamed, and counted."""

    async def talk(sdk: openai.AsyncOpenAI) -> None:
        create: Any = sdk.chat.completions.create
        plain = await create(model="m", messages=ASKED, reasoning_effort="low")
        chunks = [
            chunk
            async for chunk in await create(
                model="m", messages=ASKED, reasoning_effort="low", stream=True, stream_options={"include_usage": True}
            )
        ]
        deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
        thought = plain.choices[0].message.reasoning_content
        assert thought and "".join(each.get("reasoning_content") or "" for each in deltas) == thought
        assert "".join(each.get("content") or "" for each in deltas) == plain.choices[0].message.content
        assert [each["role"] for each in deltas if each.get("role")] == ["assistant"]
        assert plain.usage.completion_tokens_details.reasoning_tokens > 0
        assert chunks[-1].usage == plain.usage
        other = await create(model="m", messages=ASKED, reasoning_effort="none")
        assert not hasattr(other.choices[0].message, "reasoning_content")

    with_sdk(TALK, talk)


def test_response_reasoning() -> None:
    """An item of its own; sealed, it may come back only as it was."""

    async def talk(sdk: openai.AsyncOpenAI) -> None:
        asked: Any = {
            "model": "m",
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
        }
        plain = await sdk.responses.create(**asked, input="Hi")
        async with sdk.responses.stream(**asked, input="Hi") as stream:
            told = [event async for event in stream]
            streamed = await stream.get_final_response()
        item: Any = plain.output[0]
        assert item.type == "reasoning" and item.encrypted_content
        other: Any = streamed.output[0]
        assert [each.text for each in other.summary] == [each.text for each in item.summary]
        said = [event.delta for event in told if event.type == "response.reasoning_summary_text.delta"]
        assert "".join(said) == item.summary[0].text
        assert [event.sequence_number for event in told] == list(range(len(told)))
        assert plain.output_text == streamed.output_text and plain.output_text
        assert plain.usage and plain.usage.output_tokens_details.reasoning_tokens > 0

        back: Any = [item.model_dump(exclude_none=True), {"role": "user", "content": "And?"}]
        assert (await sdk.responses.create(**asked, input=back)).output_text
        back[0]["id"] = "rs_other"
        with pytest.raises(openai.BadRequestError) as raised:
            await sdk.responses.create(**asked, input=back)
        assert raised.value.code == "invalid_encrypted_content"
        bare = await sdk.responses.create(model="m", input="Hi", reasoning={"effort": "low"})
        hidden: Any = bare.output[0]
        assert (hidden.type, hidden.summary, hidden.encrypted_content) == ("reasoning", [], None)

    with_sdk(TALK, talk)
