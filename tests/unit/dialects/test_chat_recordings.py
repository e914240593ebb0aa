"""Chat Completions: every recorded request, answer and stream of every server that speaks it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.recorded import Exchange, recorded
from tests.unit.dialects.assembling import assembled, events_of, normal
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import Answer, ClientCall, End, Failed, Request
from velox.dialects.chat.read_reply import ChatModel
from velox.dialects.chat.write_reply import ChatClient
from velox.dialects.facts.model_facts import ModelFacts

_PROVIDERS = [path.name.removesuffix(".jsonl.gz") for path in Path("tests/recordings").glob("*.jsonl.gz")]
_ALL = [
    each
    for provider in sorted(_PROVIDERS)
    for each in recorded(provider, "chat/completions", status=None)
    if each.json is not None
]
_ANSWERS = [each for each in _ALL if each.status == 200 and not each.is_stream]
_STREAMS = [each for each in _ALL if each.status == 200 and each.is_stream]
_FAILED = ("test_tool_use_failed_error_streaming#0", "test_openrouter_stream_error#0")
_WHOLE = [each for each in _STREAMS if not each.name.endswith(_FAILED)]
_ERRORS = [each for each in _ALL if each.status != 200]

_CALL = ClientCall("0123abcd", 1_700_000_000)
_REASONING = {"cerebras": "reasoning", "groq": "reasoning", "ollama": "reasoning", "openrouter": "reasoning"}
_REFUSED = {"moderation", "web_search_options", "messages[0].content[1].type"}
# What is gone after a round trip. Nulls, `n: 1` and `stream: false` say nothing.
_DROPPED = {
    "clear_thinking",
    "models",
    "provider",
    "prompt_cache_options",
    "search_settings",
    "transforms",
    "usage",
}

# Gemini took schemas as strict there that OpenAI would not.
_LOST = {f"models/test_openrouter/test_openrouter_google_nested_schema#{n}": ("strict",) for n in (0, 1)}


def _facts(each: Exchange) -> ModelFacts:
    mark = "cache_control" if each.provider == "openrouter" else "prompt_cache_breakpoint"
    return ModelFacts(
        max_tokens_name="max_tokens" if "max_tokens" in each.json else "max_completion_tokens",
        thinking="toggle" if each.provider == "zai" else "effort",
        reasoning_field=_REASONING.get(each.provider, "reasoning_content"),
        renamed=(("prompt_cache_breakpoint", mark),),
    )


def _client(each: Exchange) -> ChatClient:
    """Return the client of an exchange, which has read its request as far as it can."""
    client = ChatClient(_CALL, DroppedFields())
    body = {**each.json, "stream_options": {"include_usage": True}}
    for name in _REFUSED:
        body.pop(name, None)
    if "video_url" not in json.dumps(body):
        client.read(json.dumps(body).encode())
    return client


@pytest.mark.parametrize("each", _ALL, ids=str)
def test_request_comes_back_as_it_was(each: Exchange) -> None:
    """Read, and written again for the same server: equal but for what is listed."""
    dropped = DroppedFields()
    facts = _facts(each)
    try:
        request = ChatClient(_CALL, dropped).read(each.body)
    except BadRequestError as exc:
        assert exc.param in _REFUSED
        return

    written = ChatModel(facts, dropped, each.provider).write(request, request.model)

    theirs = each.json
    if each.name in _LOST:
        for tool in theirs["tools"]:
            tool["function"]["strict"] = False
    assert _without_defaults(json.loads(written.body), written.ids) == _without_defaults(theirs, {})
    assert set(dropped.names) <= {"unknown", "prompt_cache_options", "tools.hosted", *_LOST.get(each.name, ())}


def _without_defaults(body: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    body = {name: value for name, value in body.items() if value is not None and name not in _DROPPED}
    for name, default in (("n", 1), ("stream", False), ("stream_options", {"include_usage": True})):
        if body.get(name) == default:
            del body[name]
    if "reasoning" in body:
        effort = body.pop("reasoning").get("effort")
        if effort is not None:
            body["reasoning_effort"] = effort
    if body.get("thinking", {}).get("type") is None:
        body.pop("thinking", None)
    body.get("thinking", {}).pop("clear_thinking", None)
    body["tools"] = [tool for tool in body.get("tools", []) if tool["type"] == "function"]
    body["messages"] = [_message(message, ids) for message in body["messages"]]
    return body


def _message(message: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    message = {name: value for name, value in message.items() if value not in (None, [], False)}
    message.pop("prefix", None)
    if message.get("reasoning_content") == "":
        del message["reasoning_content"]
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and set(content[0]) == {"type", "text"}:
        message["content"] = content[0]["text"]
    for call in message.get("tool_calls", []):
        call["id"] = ids.get(call["id"], call["id"])
    if "tool_call_id" in message:
        message["tool_call_id"] = ids.get(message["tool_call_id"], message["tool_call_id"])
    return message


# -- answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", _ANSWERS, ids=str)
def test_answer_is_read_and_written_for_the_sdk(each: Exchange) -> None:
    """The SDK's own model takes it, strictly, and it says what the server said."""
    theirs = json.loads(each.reply)

    answer = ChatModel(_facts(each), DroppedFields(), each.provider).answer(each.reply)
    body = _client(each).answer(answer)

    ours = ChatCompletion.model_validate_json(body, strict=True)
    choice, message = theirs["choices"][0], theirs["choices"][0]["message"]
    assert ours.choices[0].message.content == _text(message)
    assert ours.choices[0].finish_reason == choice["finish_reason"]
    assert _calls(ours.model_dump()["choices"][0]["message"]) == _calls(message)
    reasoning = message.get("reasoning_content") or message.get("reasoning") or _thinking(message)
    assert (ours.choices[0].message.model_extra or {}).get("reasoning_content") == (reasoning or None)
    assert ours.usage is not None
    assert ours.usage.prompt_tokens == theirs["usage"]["prompt_tokens"]
    assert ours.usage.total_tokens == theirs["usage"]["total_tokens"]
    assert ours.model == theirs["model"]


def _text(message: dict[str, Any]) -> str | None:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if part["type"] == "text")
    return None if message.get("tool_calls") and not content else content or ""


def _thinking(message: dict[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return "".join(text["text"] for part in parts if part["type"] == "thinking" for text in part["thinking"])


def _calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"].get("arguments") or "{}"))
        for call in message.get("tool_calls") or []
    ]


# -- streams ----------------------------------------------------------------------------------------


def _accumulated(data: bytes) -> dict[str, Any]:
    """Return what the SDK makes of a stream."""
    state = ChatCompletionStreamState()
    events = data.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    chunks = [
        ChatCompletionChunk.model_validate_json(event.removeprefix(b"data: "), strict=True) for event in events[:-2]
    ]
    assert len({chunk.id for chunk in chunks}) == len({chunk.created for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    for chunk in chunks:
        state.handle_chunk(chunk)
    found = json.loads(state.current_completion_snapshot.model_dump_json())
    assert isinstance(found, dict)
    return found


def _plain(client: ChatClient, answer: Answer) -> dict[str, Any]:
    """Return the plain answer as the SDK reads it."""
    whole = ChatCompletion.model_validate_json(client.answer(answer), strict=True)
    found = json.loads(whole.model_dump_json())
    assert isinstance(found, dict)
    return found


def _same(whole: Any) -> Any:
    """Return it without what only one of the two has: the SDK's own additions, and the object's kind."""
    if isinstance(whole, list):
        return [_same(each) for each in whole]
    if isinstance(whole, dict):
        return {
            name: _same(value)
            for name, value in whole.items()
            if value not in (None, [], "") and name not in ("object", "parsed", "parsed_arguments", "index")
        }
    return whole


@pytest.mark.parametrize("each", _WHOLE, ids=str)
def test_stream_is_what_the_plain_answer_would_be(each: Exchange) -> None:
    """Read, written again, and put together by the SDK."""
    events = events_of(ChatModel(_facts(each), DroppedFields(), each.provider).stream(), each.reply)
    client = _client(each)
    writer = client.stream()

    data = b"".join(writer.write(event) for event in events)

    assert _same(_accumulated(data)) == _same(_plain(client, assembled(events)))


@pytest.mark.parametrize("each", _WHOLE, ids=str)
def test_stream_says_what_the_server_said(each: Exchange) -> None:
    """The texts, calls and usage of the recorded chunks, put together by hand."""
    chunks = [json.loads(line[6:]) for line in each.reply.splitlines() if line.startswith(b"data: {")]
    deltas = [choice.get("delta", {}) for chunk in chunks for choice in chunk["choices"]]
    text = "".join(delta["content"] for delta in deltas if isinstance(delta.get("content"), str))
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))

    answer = assembled(events_of(ChatModel(_facts(each), DroppedFields(), each.provider).stream(), each.reply))
    found = _plain(_client(each), answer)

    assert (found["choices"][0]["message"]["content"] or "") == text
    assert found["usage"]["total_tokens"] == usage["total_tokens"]
    assert found["choices"][0]["finish_reason"] == _last_finish(chunks)


def _last_finish(chunks: list[dict[str, Any]]) -> Any:
    words = [choice.get("finish_reason") for chunk in chunks for choice in chunk["choices"]]
    return [word for word in words if word][-1]


@pytest.mark.slow
@pytest.mark.parametrize("each", _STREAMS, ids=str)
def test_pitfall_45_any_cut_gives_the_same_events(each: Exchange) -> None:
    """Byte by byte, and in pieces of any size."""
    source = random.Random(each.name)
    model = ChatModel(_facts(each), DroppedFields(), each.provider)
    whole = events_of(model.stream(), each.reply)

    for sizes in ([1] * len(each.reply), [source.randint(1, 400) for _ in range(len(each.reply))]):
        assert events_of(model.stream(), each.reply, sizes) == whole


@pytest.mark.slow
@pytest.mark.parametrize("each", _WHOLE[::4], ids=str)
def test_pitfall_37_cut_stream_is_no_clean_end(each: Exchange) -> None:
    """Wherever it is cut before the finish reason is whole, there is no End."""
    model = ChatModel(_facts(each), DroppedFields(), each.provider)
    finish_at = next(
        at
        for word in (b'"stop"', b'"tool_calls"', b'"length"')
        if (at := each.reply.find(b'"finish_reason":' + word)) > 0
    )
    for cut in range(0, finish_at, max(1, finish_at // 200)):
        events = events_of(model.stream(), each.reply[:cut])
        assert not any(isinstance(event, End) for event in events)


def test_recorded_errors_in_streams_are_failures() -> None:
    """Groq's and OpenRouter's: after reasoning, and after finish reasons."""
    for each in _STREAMS:
        if each.name.endswith(_FAILED):
            events = events_of(ChatModel(_facts(each), DroppedFields(), each.provider).stream(), each.reply)
            assert isinstance(events[-1], Failed)
            assert events[-1].error.status == 400
            assert not any(isinstance(event, End) for event in events)
            assert normal(events)[0] == events[0]


@pytest.mark.parametrize("each", _ERRORS, ids=str)
def test_error_is_read(each: Exchange) -> None:
    """Its message, code and status."""
    theirs = json.loads(each.reply)["error"]

    error = ChatModel(_facts(each), DroppedFields(), each.provider).error(each.status, each.reply)

    assert (error.status, error.message, error.code) == (each.status, theirs["message"], theirs["code"])


def test_requests_are_many() -> None:
    """Guards the tests above against recordings that are not found."""
    assert (len(_ALL), len(_ANSWERS), len(_WHOLE)) >= (187, 141, 39)
    assert isinstance(ChatClient(_CALL, DroppedFields()).read(_ALL[0].body), Request)
