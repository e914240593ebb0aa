"""Responses over a WebSocket: what a client's messages ask for, and the messages that it gets."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest

from velox.dialects.canonical.dropped_fields import DroppedFields
from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import (
    Answer,
    ApiError,
    ClientCall,
    ErrorKind,
    Message,
    Role,
    Stop,
    StopReason,
    Text,
    ToolUse,
)
from velox.dialects.responses.socket import SocketMessages, SocketRequest, check_prepared, parsed_message, prepared
from velox.dialects.responses.write_reply import ResponsesClient
from velox.dialects.streams.events import events_of


def _message(**fields: Any) -> bytes:
    return json.dumps({"type": "response.create", "model": "m", "input": "Hi", **fields}).encode()


def _answered(
    socket: SocketMessages, asked: SocketRequest, number: int, text: bytes = b'"Hello"'
) -> list[dict[str, Any]]:
    client = ResponsesClient(ClientCall(f"a{number}", 7), DroppedFields())
    client.read(asked.body)
    writer = client.events()
    found: list[bytes] = []
    answer = Answer("", "m", [Text(text), ToolUse("c", "f", b"{}")], Stop(StopReason.TOOLS))
    for event in events_of(answer):
        found += socket.messages(asked, writer.write(event))
    return [json.loads(each) for each in found]


def test_message_is_a_streamed_request() -> None:
    """What only a WebSocket has is left out; the rest is as it came."""
    asked = SocketMessages().asked(_message(instructions="Be kind.", stream_id="s"))

    request = ResponsesClient(ClientCall("a", 7), dropped := DroppedFields()).read(asked.body)
    assert request.stream
    assert [message.role for message in request.messages] == [Role.SYSTEM, Role.USER]
    assert request.messages[1] == Message(Role.USER, [Text(b'"Hi"')])
    assert dropped.names == ()


def test_next_message_goes_on_with_the_answer() -> None:
    """Only the result of the call is sent; the request has all of the conversation."""
    socket = SocketMessages()
    events = _answered(socket, socket.asked(_message()), 1)
    output = [{"type": "function_call_output", "call_id": "c", "output": "r"}]
    asked = socket.asked(_message(input=output, previous_response_id=events[-1]["response"]["id"]))

    request = ResponsesClient(ClientCall("a", 7), DroppedFields()).read(asked.body)
    assert [message.role for message in request.messages] == [Role.USER, Role.ASSISTANT, Role.USER]
    assert events[-1]["type"] == "response.completed"


def test_unknown_answer_is_refused() -> None:
    """Those of other connections, too."""
    with pytest.raises(BadRequestError) as caught:
        SocketMessages().asked(_message(previous_response_id="resp_1"))
    assert caught.value.param == "previous_response_id"


def test_conversations_are_kept_up_to_a_bound() -> None:
    """The oldest is forgotten first; one that is over the bound is not kept at all."""
    socket = SocketMessages(most_kept_bytes=1500)
    for number in (1, 2, 3):
        _answered(socket, socket.asked(_message()), number, b'"' + b"a" * 300 + b'"')
    with pytest.raises(BadRequestError):
        socket.asked(_message(previous_response_id="resp_a1"))
    assert socket.asked(_message(previous_response_id="resp_a3")).generate

    _answered(socket, socket.asked(_message()), 4, b'"' + b"a" * 2000 + b'"')
    with pytest.raises(BadRequestError):
        socket.asked(_message(previous_response_id="resp_a4"))


def test_message_of_too_many_values_is_refused() -> None:
    """Alone, or with the conversation before it, which `generate: false` has read as a whole."""
    many = [{"role": "user", "content": "a"}] * 40_000
    with pytest.raises(BadRequestError, match="200,000"):
        SocketMessages().asked(_message(metadata={f"k{n}": "" for n in range(200_001)}))
    with pytest.raises(BadRequestError, match="200,000"):
        SocketMessages().asked(_message(input=many * 2))

    asked = SocketMessages().asked(_message(input=many, generate=False))
    longer = SocketRequest(
        asked.body.replace(b'"input":[', b'"input":[' + asked.items + b","), 2 * asked.n_items_bytes + 1
    )
    with pytest.raises(BadRequestError, match="200,000"):
        check_prepared(longer)


def test_lanes_are_told_in_each_event() -> None:
    """And in errors."""
    socket = SocketMessages()
    events = _answered(socket, socket.asked(_message(stream_id="s1")), 1)
    assert {event["stream_id"] for event in events} == {"s1"}

    error = json.loads(socket.error(ApiError(ErrorKind.RATE_LIMIT, 429, "Slow"), "s1"))
    assert (error["type"], error["status"], error["stream_id"]) == ("error", 429, "s1")
    assert error["error"]["message"] == "Slow"


def test_prepared_conversation_has_an_answer_without_output() -> None:
    """It can be gone on with."""
    socket = SocketMessages()
    asked = socket.asked(_message(generate=False))
    assert not asked.generate
    client = ResponsesClient(ClientCall("w", 7), DroppedFields())
    client.read(asked.body)
    events = [json.loads(each) for each in socket.messages(asked, prepared(client.events()))]

    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert socket.asked(_message(previous_response_id="resp_w")).items.count(b'"Hi"') == 2


@pytest.mark.parametrize("message", [b"", b"[]", b"{}", b'{"type":"response.steer"}', b"\xff", _message(input=3)])
def test_other_messages_are_refused(message: bytes) -> None:
    """With what is wrong, never a crash."""
    with pytest.raises(BadRequestError):
        SocketMessages().asked(message)


def test_answer_of_another_connection_is_left_to_who_keeps_answers() -> None:
    """The request names it, and its conversation is not kept here: a part of one would be another."""
    socket = SocketMessages(passes_unknown=True)
    asked = socket.asked(_message(previous_response_id="resp_other"))
    assert json.loads(asked.body)["previous_response_id"] == "resp_other"
    whole = socket.asked(_message()).body  # as it becomes
    _answered(socket, SocketRequest(whole, 0, is_whole=asked.is_whole), 1)
    again = socket.asked(_message(previous_response_id="resp_a1"))
    assert (again.is_whole, json.loads(again.body)["previous_response_id"]) == (False, "resp_a1")

    told = socket.told(ApiError(ErrorKind.INVALID, 400, "no", "bad_request", "previous_response_id"))
    assert told.code == "previous_response_not_found"
    assert socket.told(ApiError(ErrorKind.INVALID, 400, "no", "bad_request", "input")).code == "bad_request"
    with pytest.raises(BadRequestError):
        socket.asked(_message(previous_response_id="resp_other", generate=False))


def test_large_message_is_walked_through_once() -> None:
    """A walk is one call, which holds the interpreter's lock for up to 3 ms a megabyte while the loop waits for it."""
    walks: list[object] = []

    def seen(frame: object, event: str, called: Any) -> None:
        decoder = getattr(called, "__self__", None)
        if event == "c_call" and isinstance(decoder, msgspec.json.Decoder) and decoder.type not in small:
            walks.append(decoder.type)

    small = (str, str | None, bool | None, msgspec.Raw)  # of one field, or of a slice of a long string
    message = _message(input="a" * (1 << 20), stream_id="lane", metadata={"a": [1]})
    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        parsed = parsed_message(SocketMessages(), message)
    finally:
        sys.setprofile(before)
    assert len(walks) <= 1, walks  # none is seen of compiled modules
    assert parsed.asked is not None and parsed.head.stream_id == "lane"
    body = json.loads(parsed.asked.body)
    assert body.pop("input")[0]["content"] == "a" * (1 << 20)
    assert body == {"stream": True, "model": "m", "metadata": {"a": [1]}}


@pytest.mark.parametrize(("name", "value"), [("type", None), ("type", 1), ("stream_id", 1), ("generate", "no")])
def test_field_of_another_kind_is_named(name: str, value: object) -> None:
    """Each field of a message that Velox acts on is checked."""
    with pytest.raises(BadRequestError) as caught:
        SocketMessages().asked(_message(**{name: value}))
    assert caught.value.param == name and "expected" in caught.value.message
