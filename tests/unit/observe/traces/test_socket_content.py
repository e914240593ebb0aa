"""What is said over a WebSocket becomes the messages of a trace: texts, calls and transcripts, and no sound."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from velox.observe.traces.redaction import Redaction
from velox.observe.traces.socket_capture import SocketCapture
from velox.observe.traces.socket_content import socket_attributes

SOUND = "c291bmQ" * 50


def text(role: str, said: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": said}]}


def item(said: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]}


def told(up: list[object], down: list[object], *, most: int = 4000, kept: int = 4000) -> dict[str, Any]:
    """Return the attributes of what both sides have sent."""
    capture = SocketCapture(kept)
    for tap, events, masked in ((capture.up, up, True), (capture.down, down, False)):
        for event in events:
            data = event if isinstance(event, bytes) else json.dumps(event, indent=1).encode()
            tap.feed(Frame(Opcode.TEXT, data).serialize(mask=masked))
    record = capture.record()
    if record is None:
        return {}
    assert record.is_socket
    found = socket_attributes(record.asked, record.answered, most=most, redact=Redaction().of)
    return {name.removeprefix("gen_ai."): json.loads(value) for name, value in found.items()}


def test_realtime_session_is_its_items_transcripts_and_answers() -> None:
    called = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"x"}'}
    spoken = {"type": "message", "role": "assistant", "content": [{"type": "output_audio", "transcript": "Yes."}]}
    found = told(
        [
            {"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}},
            {"type": "conversation.item.create", "item": item("My key is sk-proj-abcdefghijklmnopqrstuvwxyz012345.")},
            {"type": "input_audio_buffer.append", "audio": SOUND},
            {
                "type": "conversation.item.create",
                "item": {"type": "function_call_output", "call_id": "c1", "output": "o"},
            },
            {"type": "response.create"},
        ],
        [
            {"type": "conversation.item.input_audio_transcription.completed", "transcript": "Is it there?"},
            {"type": "response.output_audio.delta", "delta": SOUND},
            {"type": "response.done", "response": {"status": "completed", "output": [called]}},
            {"type": "response.done", "response": {"status": "completed", "output": [spoken]}},
        ],
    )
    assert found["system_instructions"] == [{"type": "text", "content": "Be brief."}]
    asked = found["input.messages"]
    assert asked[0] == text("user", "My key is [redacted].")
    assert asked[1]["parts"] == [{"type": "tool_call_response", "id": "c1", "response": "o"}]
    assert asked[2] == text("user", "Is it there?")
    (answer,) = found["output.messages"]
    call = {"type": "tool_call", "id": "c1", "name": "look", "arguments": '{"at":"x"}'}
    assert answer["parts"] == [call, {"type": "text", "content": "Yes."}] and answer["finish_reason"] == "completed"
    assert SOUND not in json.dumps(found)


def test_responses_socket_is_its_inputs_and_outputs() -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
    found = told(
        [
            {"type": "response.create", "model": "m", "instructions": "Be kind.", "input": "Hi."},
            {"type": "response.create", "model": "m", "input": [item("Again.")]},
        ],
        [{"type": "response.completed", "response": {"status": "completed", "output": [said]}}],
    )
    assert found["system_instructions"] == [{"type": "text", "content": "Be kind."}]
    assert found["input.messages"] == [text("user", "Hi."), text("user", "Again.")]
    assert found["output.messages"][0]["parts"] == [{"type": "text", "content": "Hello."}]


def test_last_messages_are_kept_and_no_more_than_there_is_room_for() -> None:
    up = [{"type": "conversation.item.create", "item": item(f"{n} " + "word " * 40)} for n in range(50)]
    answers = [
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": f"{n} yes"}]} for n in range(50)
    ]
    down = [{"type": "response.done", "response": {"output": [each]}} for each in answers]
    found = told([*up, item("x" * 9000)], list(down), most=500, kept=3000)
    assert found["input.messages"][-1]["parts"][0]["content"].startswith("49 ")
    assert len(json.dumps(found["input.messages"])) < 1000
    shown = [part["content"] for part in found["output.messages"][0]["parts"]]
    assert shown[-1] == "49 yes" and 1 < len(shown) < 10


@pytest.mark.parametrize("message", [b"", b"[1]", b'{"type":1}', b'{"type":"response.done"', b"\xff", b"[" * 5000])
def test_what_is_no_event_is_nothing(message: bytes) -> None:
    assert told([message], [message]) == {}


NAMES = st.sampled_from(
    ["item", "session", "response", "output", "input", "content", "transcript", "instructions", "type"]
)
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda of: st.lists(of) | st.dictionaries(NAMES, of)
)


@given(JSON, JSON)
def test_no_event_breaks_it(one: object, other: object) -> None:
    asked = [{"type": "response.create", "response": one, "item": other, "input": one, "transcript": other}, one]
    answered = [{"type": "response.done", "response": {"output": one, "status": other}}, {"response": other}]
    encoded = (json.dumps(each).encode() for each in (asked, answered))
    found = socket_attributes(*encoded, most=100, redact=Redaction().of)
    assert all(isinstance(json.loads(value), list) for value in found.values())
