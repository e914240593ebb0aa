"""Claude on Vertex and Bedrock: the body's top level changes and nothing else; frames become events."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorded import Exchange, recorded
from tests.unit.dialects.assembling import events_of
from velox.dialects.as_sent.claude_wrapper import (
    ClaudeOnBedrock,
    ClaudeOnVertex,
    InvokeStream,
    bedrock_body,
    bedrock_error,
    vertex_body,
    without_billing,
    without_scopes,
)
from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BrokenReplyError
from velox.dialects.canonical.model import ClientCall, End, ErrorKind, Failed
from velox.dialects.facts.model_facts import ModelFacts
from velox.dialects.messages.read_reply import MessagesModel
from velox.dialects.messages.write_reply import MessagesClient
from velox.protocol.sse_events import SseEvents

_ALL = [each for each in recorded("anthropic", "/v1/messages", status=200) if "count" not in each.path]
_STREAMS = [each for each in _ALL if each.is_stream]
_MARK = {"type": "ephemeral"}


@pytest.mark.parametrize("each", _ALL, ids=str)
def test_pitfall_43_body_for_vertex_stays_messages(each: Exchange) -> None:
    """No model, and the version; all else is as it was, in its bytes too."""
    found = vertex_body(each.body)

    expected = {name: value for name, value in each.json.items() if name != "model"}
    assert json.loads(found) == {**expected, "anthropic_version": "vertex-2023-10-16"}
    messages = each.body[each.body.index(b'"messages"') :].partition(b'"model"')[0]
    assert messages.rstrip(b', "') in found


@pytest.mark.parametrize("each", _ALL, ids=str)
def test_body_for_bedrock_has_neither_model_nor_stream(each: Exchange) -> None:
    """No model and no stream, the version, the betas as a list."""
    found = json.loads(bedrock_body(each.body, ("effort-2025-11-24",)))

    expected = {name: value for name, value in each.json.items() if name not in ("model", "stream")}
    assert found == {
        **expected,
        "anthropic_version": "bedrock-2023-05-31",
        "anthropic_beta": ["effort-2025-11-24"],
    }


@given(
    st.permutations(["model", "stream", "messages", "anthropic_version", "temperature"]),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
)
def test_fields_go_wherever_they_stand(names: list[str], indent: int | None, has_version: bool) -> None:
    """First, last, between others, with any white space."""
    values: dict[str, Any] = {
        "model": 'a "model": b',
        "stream": True,
        "messages": [{"role": "user", "content": '"model": {"stream": [1'}],
        "anthropic_version": "old",
        "temperature": 0.5,
    }
    body = {name: values[name] for name in names if has_version or name != "anthropic_version"}
    text = json.dumps(body, indent=indent).encode()

    found = json.loads(bedrock_body(text))

    expected = {name: value for name, value in body.items() if name not in ("model", "stream")}
    assert found == {**expected, "anthropic_version": "bedrock-2023-05-31"}
    assert json.loads(vertex_body(text)) == {
        **{name: value for name, value in body.items() if name != "model"},
        "anthropic_version": "vertex-2023-10-16",
    }


def test_escaped_key_is_found() -> None:
    """A client may write a key as it likes."""
    assert (
        vertex_body(b'{"mod\\u0065l":"m","messages":[]}') == b'{"anthropic_version":"vertex-2023-10-16","messages":[]}'
    )
    assert vertex_body(b"{}") == b'{"anthropic_version":"vertex-2023-10-16"}'


def test_marks_lose_their_scope_and_nothing_else() -> None:
    """Claude Code sets it, and only Anthropic's own API takes it."""
    text = json.dumps('{"cache_control":{"type":"ephemeral","scope":"global"}}')
    body = (
        b'{"scope":1,"system":[{"type":"text","text":%b,"cache_control": {"type":"ephemeral","scope":"global"}}],'
        b'"tools":[{"name":"a","input_schema":{"properties":{"scope":{"type":"string"}}},'
        b'"cache_control":{"scope":"global","ttl":"1h","type":"ephemeral"}}],"n":1.0e2}'
    ) % text.encode()

    changed = without_scopes(body)

    assert (
        changed
        == (
            b'{"scope":1,"system":[{"type":"text","text":%b,"cache_control": {"type":"ephemeral"}}],'
            b'"tools":[{"name":"a","input_schema":{"properties":{"scope":{"type":"string"}}},'
            b'"cache_control":{"ttl":"1h","type":"ephemeral"}}],"n":1.0e2}'
        )
        % text.encode()
    )
    assert without_scopes(changed) == changed
    plain = bytearray(b'{"cache_control":{"type":"ephemeral"}}')
    assert without_scopes(plain) is plain
    assert without_scopes(b'{"cache_control":{"scope"}}') == b'{"cache_control":{"scope"}}'


BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;"}


def test_note_of_claude_code_for_anthropic_is_left_out_and_nothing_else() -> None:
    """Bedrock answers 400: "x-anthropic-billing-header is a reserved keyword"."""
    said = {"type": "text", "text": 'You say "x-anthropic-billing-header: a"', "cache_control": _MARK}
    user = {"role": "user", "content": [BILLING]}
    body = {"model": "m", "n": 1, "system": [BILLING, said], "messages": [user]}

    assert json.loads(without_billing(json.dumps(body).encode())) == {**body, "system": [said]}
    alone = {"system": [BILLING], "messages": [user]}
    assert json.loads(without_billing(json.dumps(alone).encode())) == {"messages": [user]}
    for text in (
        json.dumps({"system": [said], "messages": [user]}).encode(),
        json.dumps({"messages": [user]}).encode(),
        b'{"system":"x","a":"x-anthropic-billing-header:"}',
        b'{"system":1,"a":"x-anthropic-billing-header:"}',
        b'{"system":[1],"a":"x-anthropic-billing-header:',
        b'{"system":[]}',
    ):
        assert without_billing(text) is text


# -- frames ----------------------------------------------------------------------------------------


def _frame(payload: bytes, kind: str = "event", name: str = "chunk") -> bytes:
    headers = b""
    for key, value in ((":message-type", kind), (f":{kind}-type", name), (":content-type", "application/json")):
        headers += bytes([len(key)]) + key.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    text = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return text + struct.pack(">I", zlib.crc32(text))


def bedrock_framed(reply: bytes) -> bytes:
    """Return a stream of Anthropic's as Bedrock frames it."""
    frames = []
    for name, text in SseEvents().feed(reply):
        if name != b"ping":
            payload = {"bytes": base64.b64encode(text).decode(), "p": "abcdefgh"[: len(text) % 8]}
            frames.append(_frame(json.dumps(payload).encode()))
    return b"".join(frames)


@pytest.mark.parametrize("each", _STREAMS, ids=str)
def test_pitfall_33_frames_become_the_events_of_anthropic(each: Exchange) -> None:
    """The same events with the same names, whatever the cuts."""
    framed, chooser = bedrock_framed(each.reply), random.Random(33)
    whole, cut = InvokeStream(), InvokeStream()
    found = whole.feed(framed)
    pieces, at = [], 0
    while at < len(framed):
        size = chooser.randint(1, 200)
        pieces.append(cut.feed(framed[at : at + size]))
        at += size

    assert b"".join(pieces) == found
    expected = [event for event in SseEvents().feed(each.reply) if event[0] != b"ping"]
    assert [(name, text.rstrip()) for name, text in SseEvents().feed(found)] == [
        (name, text.rstrip()) for name, text in expected
    ]
    assert whole.is_between
    reader = ClaudeOnBedrock(MessagesModel(ModelFacts(), DroppedFields())).stream()
    assert events_of(reader, framed) == events_of(MessagesModel(ModelFacts(), DroppedFields()).stream(), each.reply)


def test_pitfall_33_exception_in_a_stream_is_an_error() -> None:
    """It ends the stream, in Anthropic's shape, with the meaning that it has."""
    start = _frame(json.dumps({"bytes": base64.b64encode(b'{"type":"message_start","message":{}}').decode()}).encode())
    broken = _frame(b'{"message":"Too many requests"}', "exception", "throttlingException")
    stream = InvokeStream()

    found = SseEvents().feed(stream.feed(start + broken + start))

    assert [name for name, _ in found] == [b"message_start", b"error"]
    assert json.loads(found[1][1]) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "Too many requests"},
    }
    assert stream.feed(start) == b""
    events = events_of(ClaudeOnBedrock(MessagesModel(ModelFacts(), DroppedFields())).stream(), start + broken)
    assert isinstance(events[-1], Failed)
    assert (events[-1].error.kind, events[-1].error.status) == (ErrorKind.RATE_LIMIT, 429)
    assert not any(isinstance(event, End) for event in events)


@pytest.mark.parametrize("payload", [b"{}", b"[]", b'{"bytes":"%%%"}', b'{"bytes":"bm90IGpzb24="}', b"\xff"])
def test_frame_without_an_event_is_a_broken_reply(payload: bytes) -> None:
    """Nothing else is raised."""
    with pytest.raises(BrokenReplyError):
        InvokeStream().feed(_frame(payload))


def test_pitfall_42_errors_of_bedrock_have_their_meaning() -> None:
    """The type stands in a header; one of 400 is about a quota."""
    quota = bedrock_error(400, b'{"message":"over it"}', {"x-amzn-errortype": "ServiceQuotaExceededException:http://x"})
    plain = bedrock_error(400, b'{"message":"no such model"}')

    assert (quota.kind, quota.status, quota.message) == (ErrorKind.RATE_LIMIT, 429, "over it")
    assert (plain.kind, plain.status) == (ErrorKind.INVALID, 400)


def test_translated_requests_are_put_into_the_wire_wrapper() -> None:
    """A request of another dialect has the same wire wrapper as one that came in Messages."""
    request = MessagesClient(ClientCall("1", 1), DroppedFields()).read(
        b'{"model":"m","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hi"}]}'
    )
    expected = {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}

    bedrock = ClaudeOnBedrock(MessagesModel(ModelFacts(), DroppedFields())).write(request, "claude")
    vertex = ClaudeOnVertex(MessagesModel(ModelFacts(), DroppedFields())).write(request, "claude")

    assert json.loads(bedrock.body) == {**expected, "anthropic_version": "bedrock-2023-05-31"}
    assert json.loads(vertex.body) == {**expected, "anthropic_version": "vertex-2023-10-16", "stream": True}
