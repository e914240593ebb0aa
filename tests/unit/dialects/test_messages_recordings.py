"""Messages: every recorded request, answer and stream of Anthropic."""

from __future__ import annotations

import json
import random
from typing import Any, cast

import pytest
from anthropic._models import construct_type_unchecked
from anthropic.types import Message
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.recorded import Exchange, recorded
from tests.unit.dialects.assembling import assembled, events_of, normal
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError, ReplyError
from velox.dialects.canonical.model import Answer, ClientCall, End, ErrorKind, StreamReader, Text
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.protocol.sse_events import SseEvents

_ALL = [each for each in recorded("anthropic", "/v1/messages", status=None) if "count" not in each.path]
_ANSWERS = [each for each in _ALL if each.status == 200 and not each.is_stream]
_STREAMS = [each for each in _ALL if each.status == 200 and each.is_stream]
_CALL = ClientCall("0123abcd", 1_700_000_000)
# What no other dialect has, and what says nothing.
_DROPPED_FIELDS = {"mcp_servers", "stream"}
_DROPPED_BLOCKS = {
    "server_tool_use",
    "tool_search_tool_result",
    "bash_code_execution_tool_result",
    "advisor_tool_result",
    "web_fetch_tool_result",
    "tool_addition",
}
_KINDS = ("text", "thinking", "redacted_thinking", "tool_use")
_PIECES = [b"null", b"[]", b"{}", b'"', b"1", b"\\ud83d", b"\xff", b",", b"}"]
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def _facts(each: Exchange) -> ModelFacts:
    is_budget = (each.json.get("thinking") or {}).get("type") == "enabled"
    return ModelFacts(thinking="budget" if is_budget else "adaptive")


def _normal(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request as it is written: lists of blocks, turns merged, nothing that has no counterpart."""
    body = {name: value for name, value in body.items() if name not in _DROPPED_FIELDS}
    turns: list[dict[str, Any]] = []
    for message in body["messages"]:
        blocks = _blocks(message["content"])
        role = "user" if message["role"] == "system" else message["role"]
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": "."}]})
    body["messages"] = turns
    if "system" in body:
        body["system"] = _blocks(body["system"])
    tools = [
        {name: value for name, value in tool.items() if name != "defer_loading" and value != ""}
        for tool in body.pop("tools", [])
        if tool.get("type") in (None, "custom")
    ]
    if tools:
        body["tools"] = tools
    else:
        body.pop("tool_choice", None)
    if "task_budget" in body.get("output_config", {}):
        del body["output_config"]["task_budget"]
    return body


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    found = []
    for block in content:
        if block["type"] in _DROPPED_BLOCKS or not block.get("text", "x").strip():
            continue
        if block["type"] == "tool_reference":
            found.append({"type": "text", "text": block["tool_name"]})
            continue
        block = {name: value for name, value in block.items() if not (name == "is_error" and not value)}
        if "content" in block:
            block["content"] = _blocks(block["content"])
            if not block["content"]:
                del block["content"]
        found.append(block)
    return found


@pytest.mark.parametrize("each", _ALL, ids=str)
def test_request_comes_back_as_it_was(each: Exchange) -> None:
    """Read, and written again: equal but for what is listed."""
    dropped = DroppedFields()
    try:
        request = MessagesClient(_CALL, dropped).read(each.body)
    except BadRequestError as exc:
        assert b"container" in each.body
        assert "container" in str(exc)
        return

    written = MessagesModel(_facts(each), dropped).write(request, request.model)

    found, expected = json.loads(written.body), _normal(each.json)
    found.pop("stream", None)
    if "thinking" in found and "thinking" not in expected:
        del found["thinking"]  # an effort asks other models to reason; this one would not without it
    if "tools" in found and "tools" not in expected:
        assert found.pop("tool_choice") == {"type": "none"}  # of a conversation that had calls of tools
        del found["tools"]
    assert found == expected


@pytest.mark.parametrize("each", _ANSWERS, ids=str)
def test_answer_comes_back_as_it_was(each: Exchange) -> None:
    """Read, written, and validated by Anthropic's own types."""
    answer = MessagesModel(ModelFacts(), DroppedFields()).answer(each.reply)

    found = json.loads(MessagesClient(_CALL, DroppedFields()).answer(answer))

    message = Message.model_validate(found)
    expected = json.loads(each.reply)
    content = [block for block in expected["content"] if block["type"] in _KINDS]
    assert found["id"] == expected["id"]
    assert found["model"] == expected["model"]
    assert found["stop_reason"] == expected["stop_reason"]
    for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert found["usage"][name] == (expected["usage"].get(name) or 0)
    own = [block for block in found["content"] if block["type"] in _KINDS]
    for block, one in zip(own, [block for block in content if block.get("text") != ""], strict=True):
        one = {name: value for name, value in one.items() if name != "caller" and value is not None}
        assert _pages(block.pop("citations", [])) == _pages(one.pop("citations", []))
        assert block == one
    assert message.role == "assistant"


def _sdk_message(data: bytes, *, is_strict: bool = False) -> dict[str, Any]:
    """Put a stream together as Anthropic's SDK does."""
    from anthropic.lib.streaming._messages import accumulate_event

    snapshot, buffers = None, {}  # type: ignore[var-annotated] # as there
    events = SseEvents()
    for name, text in events.feed(data):
        if name == b"ping":
            continue
        event: Any = construct_type_unchecked(type_=cast(Any, RawMessageStreamEvent), value=json.loads(text))
        assert event.type.encode() == name
        if is_strict:
            _EVENT.validate_json(text)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    return dict(snapshot.model_dump(warnings=False))


def _written(events: list[Any]) -> bytes:
    writer = MessagesClient(_CALL, DroppedFields()).stream()
    return b"".join(writer.write(event) for event in events)


@pytest.mark.parametrize("each", _STREAMS, ids=str)
def test_stream_comes_back_as_it_was(each: Exchange) -> None:
    """The SDK puts together the same from the stream that came and from the one that was written."""
    events = events_of(MessagesModel(ModelFacts(), DroppedFields()).stream(), each.reply)

    found, expected = _sdk_message(_written(events), is_strict=True), _sdk_message(each.reply)

    content = [block for block in expected["content"] if block["type"] in _KINDS]
    own = [block for block in found["content"] if block["type"] in _KINDS]
    assert [_said(block) for block in own] == [_said(block) for block in content]
    assert [_pages(block.get("citations")) for block in own] == [_pages(block.get("citations")) for block in content]
    for name in ("id", "model", "stop_reason", "stop_sequence"):
        assert found[name] == expected[name]
    for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert found["usage"][name] == expected["usage"][name]
    plain = json.loads(MessagesClient(_CALL, DroppedFields()).answer(assembled(events)))
    own = [block for block in plain["content"] if block["type"] in _KINDS]
    assert [_said(block) for block in own] == [_said(block) for block in content]


def _pages(citations: list[dict[str, Any]] | None) -> list[tuple[Any, ...]]:
    """Return what citations of pages say: what is encrypted in them is Anthropic's alone, and not carried over."""
    return [(each["url"], each["title"], each["cited_text"]) for each in citations or () if each.get("url")]


def _said(block: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in block.items()
        if value is not None and name not in ("caller", "parsed", "citations")
    }


@pytest.mark.parametrize("each", _STREAMS, ids=str)
def test_pitfall_45_any_cut_gives_the_same_stream(each: Exchange) -> None:
    """However the bytes come, the events are the same, and so are the bytes that are written."""
    expected = events_of(_reader(), each.reply)
    chooser = random.Random(45)

    single = events_of(_reader(), each.reply, [1] * len(each.reply))
    random_cuts = events_of(_reader(), each.reply, [chooser.randint(1, 300) for _ in range(len(each.reply))])

    assert single == expected
    assert random_cuts == expected
    assert _written(single) == _written(expected)
    assert normal(expected)


@pytest.mark.slow
@pytest.mark.parametrize("each", _STREAMS[:4], ids=str)
def test_pitfall_37_a_cut_stream_has_no_end(each: Exchange) -> None:
    """Only message_stop ends a stream."""
    whole = each.reply.rstrip()
    ends_at = whole.rindex(b"}")
    for at in range(0, ends_at, 7):
        events = events_of(_reader(), each.reply[:at])
        assert not any(isinstance(event, End) for event in events)
        assert b"message_stop" not in _written(events)
        assert b'stop_reason":"' not in _written(events)


def _reader() -> StreamReader:
    return MessagesModel(ModelFacts(), DroppedFields()).stream()


@pytest.mark.more
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_garbage_raises_nothing_else(data: bytes) -> None:
    """Bytes of any kind are a bad request, or a broken reply."""
    _try_all(data)


@settings(deadline=None)  # a busy machine may take seconds
@given(st.sampled_from(_ALL), st.data())
def test_pitfall_44_mutated_bodies_raise_nothing_else(each: Exchange, draw: st.DataObject) -> None:
    """A body in which something else stands is read, or refused."""
    body = bytearray(each.body if draw.draw(st.booleans()) else each.reply)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(body) - 1))
        body[at : at + draw.draw(st.integers(0, 9))] = draw.draw(
            st.binary(max_size=3)
            | st.sampled_from([b"null", b"[]", b"{}", b'"', b"1", b"\\ud83d", b"\xff", b",", b"}"])
        )
    _try_all(bytes(body))


def _try_all(data: bytes) -> None:
    dropped = DroppedFields()
    model = MessagesModel(ModelFacts(thinking="budget"), dropped)
    try:
        request = MessagesClient(_CALL, dropped).read(data)
        json.loads(model.write(request, "m").body)
    except BadRequestError:
        pass
    try:
        answer = model.answer(data)
        assert isinstance(answer, Answer)
        json.loads(MessagesClient(_CALL, dropped).answer(answer))
    except (BrokenReplyError, ReplyError):
        pass
    try:
        _written(events_of(model.stream(), data))
    except BrokenReplyError:
        pass
    assert model.error(500, data).kind is not None


def test_error_of_each_shape_is_read() -> None:
    """Anthropic's, and those of the platforms that run Claude."""
    model = MessagesModel(ModelFacts(), DroppedFields())

    overloaded = model.error(529, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}')
    google = model.error(429, b'{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED"}}')
    bedrock = model.error(400, b'{"message":"no such model"}')
    page = model.error(502, b"<html>Bad gateway</html>")
    nothing = model.error(500, b"")

    assert (overloaded.kind, overloaded.status, overloaded.message) == (ErrorKind.OVERLOADED, 529, "Overloaded")
    assert (google.kind, google.message) == (ErrorKind.RATE_LIMIT, "slow down")
    assert (bedrock.kind, bedrock.message) == (ErrorKind.INVALID, "no such model")
    assert (page.kind, page.message) == (ErrorKind.API, "<html>Bad gateway</html>")
    assert nothing.message


def test_pitfall_44_lone_surrogates_and_long_numbers_pass() -> None:
    """What the decoder refuses or rounds comes out as it came."""
    body = (
        b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a\\ud83d"}],'
        b'"tools":[{"name":"t","input_schema":{"type":"object","maximum":12345678901234567890}}]}'
    )
    request = MessagesClient(_CALL, DroppedFields()).read(body)

    written = MessagesModel(ModelFacts(), DroppedFields()).write(request, "m").body

    assert b'"a\\ud83d"' in written
    assert b"12345678901234567890" in written
    assert isinstance(request.messages[0].blocks[0], Text)


def test_pitfall_44_invalid_utf8_is_refused() -> None:
    """Everywhere, also in what is not decoded."""
    with pytest.raises(BadRequestError, match="UTF-8"):
        MessagesClient(_CALL, DroppedFields()).read(
            b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"\xff"}]}'
        )
