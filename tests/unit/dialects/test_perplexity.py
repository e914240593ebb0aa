"""Perplexity's Agent API: OpenAI Responses, but for what it refuses, and for how its own tools stand in a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.dialects.assembling import assembled, events_of
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    ClientCall,
    Document,
    Failed,
    Image,
    Lost,
    Media,
    MediaKind,
    Message,
    Reasoning,
    Request,
    Role,
    Signature,
    StopReason,
    Text,
    ToolResult,
    ToolUse,
)
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.responses.read_reply import ResponsesModel
from velox.providers.model_facts import facts_of
from velox.providers.rows import PROVIDERS

SONAR = "perplexity/sonar"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
PICTURE = Image(Media(MediaKind.URL, "https://a.example/a.png"), "high")


def model_side(model: str = SONAR, dropped: DroppedFields | None = None) -> ResponsesModel:
    return ResponsesModel(facts_of(PROVIDERS["perplexity"], model), dropped or DroppedFields(), "perplexity")


def asked(model: str = SONAR, dropped: DroppedFields | None = None, **fields: Any) -> Any:
    """Return what Perplexity is asked for a client of Chat Completions."""
    found = dropped or DroppedFields()
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], **fields}
    request = ChatClient(ClientCall("abc", 7), found).read(json.dumps(body).encode())
    return json.loads(model_side(model, found).write(request, model).body)


def written(*messages: Message, model: str = SONAR, dropped: DroppedFields | None = None) -> Any:
    return json.loads(model_side(model, dropped).write(Request(model, list(messages)), model).body)["input"]


# -- requests ---------------------------------------------------------------------------------------


def test_fields_that_it_does_not_know_are_left_out() -> None:
    """It answers 400 to each: "unknown field"."""
    dropped = DroppedFields()
    body = asked(
        "openai/gpt-6",
        dropped,
        user="u",
        service_tier="flex",
        prompt_cache_key="k",
        verbosity="low",
        reasoning_effort="none",
        temperature=0.5,
        max_tokens=100,
        tools=[WEATHER],
        parallel_tool_calls=False,
    )

    assert body == {
        "model": "openai/gpt-6",
        "input": [{"type": "message", "role": "user", "content": "Hi"}],
        "tools": [
            {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
        ],
        "parallel_tool_calls": False,
        "max_output_tokens": 100,
        "temperature": 0.5,
        "reasoning": {"effort": "minimal"},
        "store": False,
    }
    assert set(dropped.names) == {"user", "service_tier", "prompt_cache_key", "verbosity", "reasoning"}


def test_sonar_does_not_reason_and_summaries_are_not_asked_for() -> None:
    wanted = Reasoning(effort="high", summary="auto")

    def fields(model: str, dropped: DroppedFields) -> Any:
        return json.loads(model_side(model, dropped).write(Request(model, [], reasoning=wanted), model).body)

    for model, sent in ((SONAR, None), ("google/gemini-3-pro", {"effort": "high"}), ("preset/low", {"effort": "high"})):
        dropped = DroppedFields()
        assert fields(model, dropped).get("reasoning") == sent
        assert dropped.names == ("reasoning",)


def test_format_stands_where_chat_has_it() -> None:
    """In `text` it is a 400, and so is an object without a schema: its prompt asks for that."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": False}}
    body = asked(response_format=form)

    assert body["response_format"] == form and "text" not in body
    body = asked(response_format={"type": "json_object"})
    assert "response_format" not in body and "text" not in body
    assert [item["role"] for item in body["input"]] == ["system", "user"]
    assert "JSON object" in body["input"][0]["content"]


@pytest.mark.parametrize(
    ("model", "max_tokens", "sent"),
    [
        ("anthropic/claude-sonnet-4-6", None, 32_000),
        ("anthropic/claude-sonnet-4-6", 50, 50),
        ("openai/gpt-6", None, None),
        (SONAR, None, None),
    ],
)
def test_models_of_anthropic_need_a_token_limit(model: str, max_tokens: int | None, sent: int | None) -> None:
    body = asked(model, **({} if max_tokens is None else {"max_tokens": max_tokens}))

    assert body.get("max_output_tokens") == sent
    assert "include" not in body, "the facts of Claude elsewhere do not count here"


def test_texts_of_one_message_are_one_text() -> None:
    """It has no part for what the assistant said, and results of tools are strings."""
    result = ToolResult("c1", [Text(b'"a"'), PICTURE, Text(b'"b"')])
    dropped = DroppedFields()
    items = written(
        Message(Role.USER, [Text(b'"a"'), Text(b'"b"')]),
        Message(Role.ASSISTANT, [Text(b'"c"'), Text(b'"d"'), ToolUse("c1", "weather", b"{}")]),
        Message(Role.USER, [result, ToolResult("c2", [PICTURE]), Text(b'"e"')]),
        dropped=dropped,
    )

    assert [item.get("content", item.get("output")) for item in items] == [
        "a\n\nb",
        "cd",
        None,
        "a\nb",
        "The files of this result are in the next message.",
        [
            {"type": "input_image", "image_url": "https://a.example/a.png"},
            {"type": "input_image", "image_url": "https://a.example/a.png"},
            {"type": "input_text", "text": "e"},
        ],
    ]
    assert dropped.names == ("detail",)


def test_files_are_refused() -> None:
    with pytest.raises(BadRequestError, match="takes no files"):
        written(Message(Role.USER, [Document(Media(MediaKind.DATA, "AA==", "application/pdf"))]))


def test_choice_among_some_tools_sends_those_alone() -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]},
    }
    body = asked(tools=[WEATHER, other], tool_choice=allowed)

    assert [tool["name"] for tool in body["tools"]] == ["weather"]
    assert body["tool_choice"] == "required"


# -- answers ----------------------------------------------------------------------------------------

REPLY: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "model": "openai/gpt-6-luna",
    "status": "completed",
    "error": None,
    "output": [
        {"type": "search_results", "queries": ["a"], "results": [{"id": 1, "url": "https://a.example", "title": "A"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "A.[1]", "annotations": []}],
        },
    ],
    "usage": {
        "input_tokens": 3007,
        "input_tokens_details": {
            "cache_creation_input_tokens": 1224,
            "cache_read_input_tokens": 1780,
            "cached_tokens": 1780,
        },
        "output_tokens": 36,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 3043,
    },
}
CALL = {
    "type": "function_call",
    "id": "fc_2",
    "call_id": "call_2",
    "name": "weather",
    "arguments": '{"city":"Rome"}',
    "status": "completed",
    "thought_signature": "c2ln",
}


def sse(*events: dict[str, Any]) -> bytes:
    """Write events as Perplexity does: without names, and without a last [DONE]."""
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


def search_events() -> list[dict[str, Any]]:
    """Return the events of a search that Perplexity runs: it begins as a call, and ends as its results."""
    call = {**CALL, "name": "search_web", "arguments": '{"queries":["a"]}', "thought_signature": None}
    return [
        {"type": "response.created", "response": {**REPLY, "model": "fast", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": call},
        {"type": "response.reasoning.search_queries", "queries": ["a"], "thought": "Searching the web..."},
        {"type": "response.reasoning.search_results", "results": [], "thought": "Found 1 result"},
        {"type": "response.output_item.done", "output_index": 0, "item": REPLY["output"][0]},
    ]


def test_its_own_search_is_no_call_of_the_client() -> None:
    """A client would be told to run a tool that it does not have."""
    message = REPLY["output"][1]
    events = [
        *search_events(),
        {"type": "response.output_item.added", "output_index": 1, "item": {**message, "content": None}},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "A."},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "[1]"},
        {"type": "response.output_text.done", "output_index": 1, "content_index": 0, "text": "A.[1]"},
        {"type": "response.output_item.done", "output_index": 1, "item": message},
        {"type": "response.completed", "response": REPLY},
    ]
    found = events_of(model_side().stream(), sse(*events))

    answer, whole = assembled(found), model_side().answer(json.dumps(REPLY).encode())
    assert answer.blocks == whole.blocks == [Text(b'"A.[1]"')]
    assert answer.stop.reason is StopReason.END
    assert answer.usage == whole.usage
    assert (answer.usage.input, answer.usage.cached, answer.usage.cache_written) == (3007, 1780, 1224)
    assert [event.field for event in found if isinstance(event, Lost)] == ["answer.tools.hosted"]


def test_call_of_the_clients_tool_comes_whole_and_its_signature_goes_back() -> None:
    """Gemini's models refuse a call of their own without it."""
    events = [
        *search_events(),
        {"type": "response.output_item.added", "output_index": 1, "item": CALL},
        {"type": "response.output_item.done", "output_index": 1, "item": CALL},
        {"type": "response.completed", "response": {**REPLY, "output": [REPLY["output"][0], CALL]}},
    ]
    answer = assembled(events_of(model_side().stream(), sse(*events)))
    whole = model_side().answer(json.dumps({**REPLY, "output": [REPLY["output"][0], CALL]}).encode())

    signature = Signature("perplexity", "thought_signature:c2ln")
    call = ToolUse("call_2", "weather", b'{"city":"Rome"}', signature)
    assert answer.blocks == whole.blocks == [call]
    assert answer.stop.reason is whole.stop.reason is StopReason.TOOLS
    assert written(Message(Role.ASSISTANT, [call]))[0]["thought_signature"] == "c2ln"
    dropped = DroppedFields()
    foreign = ToolUse("c", "weather", b"{}", Signature("openai", "thought_signature:c2ln"))
    assert "thought_signature" not in written(Message(Role.ASSISTANT, [foreign]), dropped=dropped)[0]
    assert dropped.names == ("reasoning_signature",)


@pytest.mark.parametrize(
    "last",
    [
        {"type": "response.failed", "error": {"message": "it broke", "type": "internal_error", "code": 500}},
        {"type": "response.failed", "response": {**REPLY, "status": "failed", "error": {"message": "it broke"}}},
        {"type": "response.cancelled", "response": {**REPLY, "status": "cancelled", "error": {"message": "it broke"}}},
    ],
)
def test_stream_that_fails_says_why(last: dict[str, Any]) -> None:
    """One that only ends would be told as a connection that broke."""
    found = events_of(model_side().stream(), sse(*search_events(), last))

    assert isinstance(found[-1], Failed)
    assert found[-1].error.message == "it broke"
