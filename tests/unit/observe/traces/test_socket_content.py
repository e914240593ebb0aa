"""What is said over a WebSocket becomes the messages of a trace: texts, calls and transcripts, and no sound."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from velox.observe.traces.redaction import Redaction
from velox.observe.traces.socket_capture import ROOM_BYTES, CaptureRoom, SocketCapture
from velox.observe.traces.socket_content import socket_attributes

SOUND = "c291bmQ" * 50
CUT = "velox.content_cut"


def text(role: str, said: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": said}]}


def item(said: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]}


def sent(event: object, *, masked: bool) -> bytes:
    data = event if isinstance(event, bytes) else json.dumps(event, indent=1).encode()
    return Frame(Opcode.TEXT, data).serialize(mask=masked)


def captured(kept: int = 4000, room: CaptureRoom | None = None) -> SocketCapture:
    capture = SocketCapture(kept, CaptureRoom() if room is None else room)
    capture.begin()
    return capture


def attributes(capture: SocketCapture, *, most: int = 4000) -> dict[str, Any]:
    """Return the attributes of what was captured, JSON of them as values."""
    record = capture.record()
    if record is None:
        return {}
    assert record.is_socket
    found = socket_attributes(record.asked, record.answered, is_cut=record.is_cut, most=most, redact=Redaction().of)
    return {
        name.removeprefix("gen_ai."): json.loads(value) if isinstance(value, str) else value
        for name, value in found.items()
    }


def told(up: list[object], down: list[object], *, most: int = 4000, kept: int = 4000) -> dict[str, Any]:
    """Return the attributes of what both sides have sent."""
    room = CaptureRoom()
    capture = captured(kept, room)
    for tap, events, masked in ((capture.up, up, True), (capture.down, down, False)):
        for event in events:
            tap.feed(sent(event, masked=masked))
    found = attributes(capture, most=most)
    capture.end()
    assert room.n_bytes == 0
    return found


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
    assert SOUND not in json.dumps(found) and CUT not in found


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
    assert shown[-1] == "49 yes" and 1 < len(shown) < 10 and found[CUT] is True


@pytest.mark.parametrize("message", [b"", b"[1]", b'{"type":1}', b'{"type":"response.done"', b"\xff", b"[" * 5000])
def test_what_is_no_event_is_nothing(message: bytes) -> None:
    assert told([message], [message]).keys() <= {CUT}


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
    encoded = (msgspec.msgpack.encode([json.dumps(each).encode() for each in side]) for side in (asked, answered))
    found = socket_attributes(*encoded, is_cut=False, most=100, redact=Redaction().of)
    assert all(isinstance(json.loads(str(value)), list) for name, value in found.items() if name != CUT)


@given(JSON, JSON)
def test_no_event_breaks_its_capture(one: object, other: object) -> None:
    asked = {"type": "response.create", "response": one, "item": other, "input": one, "transcript": other}
    told([asked, one], [{"type": "response.done", "response": {"output": one, "status": other}}, {"response": other}])


DEEP = b"[" * 700 + b"]" * 700
BAD = [
    b'{"type":"response.create","instructions":1e999}',
    b'{"type":"response.create","input":[{"role":"user","content":[{"type":"input_text","text":"\xff"}]}]}',
    b'{"type":"response.create","instructions":%b}' % DEEP,
    b'{"type":"response.create","x":%b}' % (b"[" * 20000 + b"]" * 20000),
    b'{"type":"response.create","session":3}',
    b'{"type":"response.create","input":"cut',
]


@pytest.mark.parametrize("bad", BAD)
def test_message_that_is_bad_takes_no_other_with_it(bad: bytes) -> None:
    """It is left out, and the span says that something is."""
    found = told(
        [{"type": "response.create", "input": "Hi."}, bad, {"type": "response.create", "input": "Yes."}],
        [],
        kept=100_000,
    )
    assert found["input.messages"] == [text("user", "Hi."), text("user", "Yes.")] and found[CUT] is True


@pytest.mark.parametrize("wrong", [b"1e999", b'"\xff"', DEEP, b'"' + b"x" * 3000 + b'"'])
def test_what_is_not_exported_is_not_kept(wrong: bytes) -> None:
    """So it can't be wrong, and takes no room."""
    up: list[object] = [
        b'{"type":"response.create","x":%b,"input":[{"content":"%d","y":%b}]}' % (wrong, n, wrong) for n in range(3)
    ]
    answer = b'{"type":"response.done","response":{"tools":%b,"output":[{"content":[{"text":"Yes.","z":%b}]}]}}'
    found = told(up, [answer % (wrong, wrong)], kept=10_000)
    assert found["input.messages"] == [text("user", f"{n}") for n in range(3)]
    assert found["output.messages"][0]["parts"] == [{"type": "text", "content": "Yes."}] and CUT not in found


def test_message_that_pushes_others_out_or_is_too_long_is_told() -> None:
    first, long = {"type": "response.create", "input": "first"}, {"type": "response.create", "input": "x" * 2900}
    found = told([first, long, long], [])
    assert "first" not in str(found["input.messages"]) and found[CUT] is True
    found = told([first, {"type": "response.create", "input": "x" * 3900}], [])
    assert found == {"input.messages": [text("user", "first")], CUT: True}
    assert told([first], [{"type": "x", "audio": "x" * 3900}])[CUT] is True


@pytest.mark.parametrize(
    ("kept", "said", "n_tunnels"), [(16 * 1024, "", 100), (64 * 1024, "x" * 9000, 100), (1024 * 1024, "x" * 9000, 12)]
)
def test_memory_of_tunnels_is_at_most_twice_what_is_kept(kept: int, said: str, n_tunnels: int) -> None:
    """Of both sides full, each with a message that never ends; and of all together, what a worker has room for."""
    room = CaptureRoom()
    wires = [
        [
            sent({"type": kind, "instructions": said}, masked=masked),
            Frame(Opcode.TEXT, b"x" * 3000, fin=False).serialize(mask=masked),
            Frame(Opcode.CONT, b"x" * 3000, fin=False).serialize(mask=masked),
        ]
        for kind, masked in (("response.create", True), ("response.done", False))
    ]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        captures = [captured(kept, room) for _ in range(n_tunnels)]
        for capture in captures:
            for tap, (whole, begin, more) in zip((capture.up, capture.down), wires, strict=True):
                for _ in range(kept // len(whole) + 1):
                    tap.feed(whole)
                tap.feed(begin)
                for _ in range(min(kept * 3 // 4, 96 * 1024) // 3000 - 1):
                    tap.feed(more)
        n_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    bound = 2 * kept * n_tunnels
    assert room.n_bytes <= ROOM_BYTES
    assert 0.5 * min(bound, ROOM_BYTES) < n_bytes < min(2 * bound + 4096 * n_tunnels, 1.1 * ROOM_BYTES)
    for capture in captures:
        capture.end()
    assert room.n_bytes == 0


def test_worker_without_room_leaves_out_what_is_new() -> None:
    """The tunnel that finds none reads nothing; one that was there before keeps what it has."""
    room = CaptureRoom(10_000)
    early = captured(64_000, room)
    for n in range(30):
        early.up.feed(sent({"type": "response.create", "input": f"{n} " + "x" * 1000}, masked=True))
    late = captured(64_000, room)
    late.up.feed(sent({"type": "response.create", "input": "Hi."}, masked=True))
    assert attributes(late) == {CUT: True} and room.n_bytes <= 10_000
    found = attributes(early, most=9000)
    assert found[CUT] is True and found["input.messages"][0]["parts"][0]["content"].startswith("0 ")
    early.end()
    assert room.n_bytes == 0 and early.record() is not None
    early.up.feed(sent({"type": "response.create", "input": "Hi."}, masked=True))
    late.end()
    assert room.n_bytes == 0


def test_tiny_frames_are_told() -> None:
    capture = captured()
    capture.up.feed(sent({"type": "response.create", "input": "Hi."}, masked=True))
    capture.up.feed(Frame(Opcode.PING, b"").serialize(mask=True) * 9000)
    capture.up.feed(sent({"type": "response.create", "input": "Yes."}, masked=True))
    assert attributes(capture) == {"input.messages": [text("user", "Hi.")], CUT: True}
