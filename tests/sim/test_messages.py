"""The simulator answers the real Anthropic SDK: texts, tools, structured output, thinking, counts, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import anthropic
import pytest

from tests.sim.harness import FAST, with_sim
from velox_sim.options import SimOptions
from velox_sim.server import SimServer

TALK: Final = replace(FAST, tokens=5)
ASKED: Final[Any] = [{"role": "user", "content": "What is the weather?"}]
SCHEMA: Final = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Final[Any] = [
    {"name": "get_weather", "input_schema": SCHEMA},
    {"type": "web_search_20250305", "name": "web_search"},
    {"name": "other", "input_schema": {"type": "object"}},
]
FITTING: Final = {"city": "simulated", "days": 2}


def with_anthropic(options: SimOptions, talk: Callable[[Any], Awaitable[None]]) -> None:
    """Run `talk` with an SDK client of a simulator; nothing is retried."""

    async def connected(sim: SimServer) -> None:
        async with anthropic.AsyncAnthropic(base_url=sim.url, api_key="sk-x", max_retries=0) as client:
            await talk(client)

    with_sim(options, connected)


def test_text_plain_and_streamed() -> None:
    """The same text, with a stop reason and counts; ping events are skipped by the SDK."""

    async def talk(sdk: Any) -> None:
        plain = await sdk.messages.create(model="m", max_tokens=100, messages=ASKED, system="Be brief.")
        async with sdk.messages.stream(model="m", max_tokens=100, messages=ASKED, system="Be brief.") as stream:
            texts = [text async for text in stream.text_stream]
            streamed = await stream.get_final_message()
        assert plain.stop_reason == streamed.stop_reason == "end_turn"
        assert plain.content[0].type == "text"
        assert plain.content[0].text == "".join(texts)
        assert len(texts) == 5
        assert streamed.content[0].type == "text"
        assert streamed.content[0].text == "".join(texts)
        assert (plain.usage.input_tokens, plain.usage.output_tokens) == (8, 5)
        assert (streamed.usage.input_tokens, streamed.usage.output_tokens) == (8, 5)
        assert streamed.id.startswith("msg_") and streamed.id != plain.id
        cut = await sdk.messages.create(model="m", max_tokens=2, messages=ASKED)
        assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)

    with_anthropic(TALK, talk)


def test_tool_loop_with_thinking() -> None:
    """Thinking comes first, signed; it and the call go back unchanged; after the result comes a text."""

    async def talk(sdk: Any) -> None:
        asked: Any = {
            "model": "m",
            "max_tokens": 4000,
            "tools": TOOLS,
            "thinking": {"type": "enabled", "budget_tokens": 2000},
        }
        plain = await sdk.messages.create(messages=ASKED, **asked)
        async with sdk.messages.stream(messages=ASKED, **asked) as stream:
            kinds = {event.type async for event in stream}
            first = await stream.get_final_message()
        assert {"thinking", "signature", "input_json"} <= kinds
        for message in (plain, first):
            thinking, call = message.content
            assert thinking.type == "thinking" and thinking.thinking and thinking.signature
            assert call.type == "tool_use" and call.name == "get_weather" and call.input == FITTING
            assert message.stop_reason == "tool_use"
        assert first.usage.output_tokens > 10

        call = first.content[1]
        assert call.type == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        history: Any = [
            *ASKED,
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
            {"role": "user", "content": [result]},
        ]
        last = await sdk.messages.create(messages=history, **asked)
        assert last.stop_reason == "end_turn"
        assert [block.type for block in last.content] == ["thinking", "text"]
        asked["thinking"]["display"] = "omitted"
        block = (await sdk.messages.create(messages=ASKED, **asked)).content[0]
        assert block.type == "thinking" and block.thinking == "" and block.signature

    with_anthropic(TALK, talk)


def test_tool_choice() -> None:
    """A tool by its name; none; one that is not there is refused."""

    async def talk(sdk: Any) -> None:
        asked: Any = {"model": "m", "max_tokens": 100, "messages": ASKED, "tools": TOOLS}
        named = await sdk.messages.create(**asked, tool_choice={"type": "tool", "name": "other"})
        assert named.content[0].type == "tool_use"
        assert (named.content[0].name, named.content[0].input) == ("other", {})
        text = await sdk.messages.create(**asked, tool_choice={"type": "none"})
        assert text.content[0].type == "text"
        with pytest.raises(anthropic.BadRequestError):
            await sdk.messages.create(**asked, tool_choice={"type": "tool", "name": "not_there"})

    with_anthropic(TALK, talk)


def test_structured_output_fits_its_schema() -> None:
    """Plain and streamed."""

    async def talk(sdk: Any) -> None:
        config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
        asked: Any = {"model": "m", "max_tokens": 100, "messages": ASKED, "output_config": config}
        plain = await sdk.messages.create(**asked)
        async with sdk.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        for message in (plain, streamed):
            assert message.content[0].type == "text"
            assert json.loads(message.content[0].text) == FITTING

    with_anthropic(TALK, talk)


def test_cache_counts() -> None:
    """With marks, what is not read from the prefix cache is written; without, there are none."""
    system: Any = [{"type": "text", "text": "x" * 4000, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]

    async def talk(sdk: Any) -> None:
        first = await sdk.messages.create(model="m", max_tokens=100, messages=ASKED, system=system)
        async with sdk.messages.stream(model="m", max_tokens=100, messages=ASKED, system=system) as stream:
            second = await stream.get_final_message()
        assert (first.usage.cache_read_input_tokens, first.usage.cache_creation_input_tokens) == (0, 1004)
        assert first.usage.cache_creation is not None
        assert first.usage.cache_creation.ephemeral_1h_input_tokens == 1004
        assert (second.usage.cache_read_input_tokens, second.usage.input_tokens) == (992, 1)
        plain = await sdk.messages.create(model="m", max_tokens=100, messages=ASKED)
        assert (plain.usage.cache_read_input_tokens, plain.usage.cache_creation_input_tokens) == (0, 0)

    with_anthropic(replace(TALK, prefix_cache=100_000), talk)


def test_count_tokens_are_those_of_the_answer() -> None:
    """With a bearer token, too."""

    async def talk(sim: SimServer) -> None:
        client: Any = anthropic.AsyncAnthropic(base_url=sim.url, auth_token="t", max_retries=0)
        async with client as sdk:
            counted = await sdk.messages.count_tokens(model="m", messages=ASKED, system="Be brief.")
            answer = await sdk.messages.create(model="m", max_tokens=10, messages=ASKED, system="Be brief.")
            assert counted.input_tokens == answer.usage.input_tokens

    with_sim(TALK, talk)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "at least one"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [" "]}, "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "must be greater"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}, "non-empty"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        (
            {"messages": [*ASKED, {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "x", "signature": "other"}, {"type": "text", "text": "y"}]}, *ASKED]},
            "Invalid `signature`",
        ),
        (
            {"messages": [*ASKED, {"role": "assistant", "content": [
                {"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}, *ASKED]},
            "without `tool_result`",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]}]},
            "unexpected `tool_use_id`",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": [], "content": "x"}]}]},
            "not of its type",
        ),
    ],
)  # fmt: skip
def test_what_anthropic_refuses_is_refused(fields: dict[str, Any], told: str) -> None:
    """In Anthropic's shape, with the field."""

    async def talk(sdk: Any) -> None:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await sdk.messages.create(model="m", max_tokens=1000, messages=ASKED, extra_body=fields)
        body: Any = caught.value.body
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
        assert told in body["error"]["message"]
        assert body["request_id"] == caught.value.response.headers["request-id"]

    with_anthropic(TALK, talk)


def test_results_of_one_turn_may_be_several_messages() -> None:
    """Anthropic joins messages of one role."""
    calls: Any = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {}} for n in range(2)]
    results: Any = [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "r"}]} for n in range(2)
    ]

    async def talk(sdk: Any) -> None:
        history: Any = [*ASKED, {"role": "assistant", "content": calls}, *results]
        assert (await sdk.messages.create(model="m", max_tokens=9, messages=history)).stop_reason == "end_turn"

    with_anthropic(TALK, talk)


def test_errors_on_request_and_stalls() -> None:
    """The options that make it fail hold here, too."""

    async def failing(sdk: Any) -> None:
        with pytest.raises(anthropic.InternalServerError) as caught:
            await sdk.messages.create(model="m", max_tokens=9, messages=ASKED)
        assert isinstance(caught.value.body, dict) and caught.value.body["error"]["type"] == "api_error"

    async def stalling(sdk: Any) -> None:
        async with sdk.messages.stream(model="m", max_tokens=9, messages=ASKED) as stream:
            texts = aiter(stream.text_stream)
            assert [await anext(texts) for _ in range(2)] == ["Hello! ", "This "]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(texts), 0.05)

    with_anthropic(replace(TALK, error_rate=1.0), failing)
    with_anthropic(replace(TALK, stall_rate=1.0, stall_after=2), stalling)
