"""The simulator's WebSockets, as the real SDK uses them, through the gateway and without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.e2e.harness import VeloxProcess
from tests.e2e.websocket_upstreams import connect
from velox.protocol.websocket.frames import FrameReader, frame

# The SDK's own use of the library, which will do so for now.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """`velox serve --sim`."""
    with VeloxProcess({"VELOX_WORKERS": "1"}, args=("serve", "--sim")) as process:
        yield process


def test_responses_over_a_websocket(velox: VeloxProcess) -> None:
    """One response after the other on one connection; a tool's call, and an error that leaves it open."""
    with velox.openai().responses.connect() as connection:
        for n in range(2):
            connection.response.create(model=f"m{n}", input="hi")
            text = ""
            while (event := connection.recv()).type != "response.completed":
                if event.type == "response.output_text.delta":
                    text += event.delta
            assert event.response.model == f"m{n}"
            assert event.response.output_text == text != ""
        connection.response.create(model="m", input="weather?", tools=[TOOL])  # type: ignore[list-item]
        while (event := connection.recv()).type != "response.completed":
            pass
        call: Any = event.response.output[0]
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "simulated"})
        connection.response.create(input="no model")
        assert connection.recv().type == "error"
        connection.response.create(model="m", input="hi")
        assert connection.recv().type == "response.created"


def test_realtime(velox: VeloxProcess) -> None:
    """A session, its update, an item, a response in text, a tool's call, a text after its output."""
    with velox.openai().realtime.connect(model="gpt-realtime") as connection:
        created: Any = connection.recv()
        assert (created.type, created.session.model) == ("session.created", "gpt-realtime")

        def respond() -> tuple[str, Any]:
            text, event = "", connection.recv()
            assert event.type == "response.created"
            while event.type != "response.done":
                event = connection.recv()
                if event.type == "response.output_text.delta":
                    text += event.delta
            return text, event.response

        def add(item: Any) -> None:
            connection.conversation.item.create(item=item)
            assert connection.recv().type == "conversation.item.added"
            assert connection.recv().type == "conversation.item.done"

        add({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello!"}]})
        connection.response.create()
        text, response = respond()
        assert text.startswith("Hello!") and response.status == "completed"
        assert response.output[0].content[0].text == text

        connection.session.update(session={"type": "realtime", "tools": [TOOL]})  # type: ignore[typeddict-item]
        assert connection.recv().type == "session.updated"
        connection.response.create()
        _, response = respond()
        call = response.output[0]
        assert (call.type, call.name, json.loads(call.arguments)) == (
            *("function_call", "get_weather"),
            {"city": "simulated"},
        )
        add({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
        connection.response.create()
        assert respond()[0].startswith("Hello!")


def test_pings_pieces_and_nonsense(velox: VeloxProcess) -> None:
    """RFC 6455: a ping is answered, a message in pieces is one, and no JSON ends it with 1002."""
    with connect(velox, "/v1/responses") as ws:
        assert ws.ping().wait(10)
        ws.send(iter(['{"type": "response.create",', ' "model": "m", "input": "x"}']))
        assert json.loads(ws.recv())["type"] == "response.created"
        ws.send("nonsense")
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                ws.recv()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1002


@pytest.mark.parametrize("n_bytes", [0, 1, 125, 126, 65535, 65536, 100_000])
def test_frames_of_every_length(n_bytes: int) -> None:
    """Torn anywhere; what is not masked, or goes on before it began, is refused."""
    payload = bytes(n % 251 for n in range(n_bytes))
    head = frame(payload)[: -n_bytes or None]
    mask = b"\x01\x02\x03\x04"
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    wire = bytes((head[0], head[1] | 0x80)) + head[2:] + mask + masked
    for step in (1, 7, len(wire)) if n_bytes < 1000 else (1000, len(wire)):
        reader = FrameReader()
        found = [each for at in range(0, len(wire), step) for each in reader.feed(wire[at : at + step])]
        assert found == [(1, payload)]
    for bad in (frame(payload), bytes((0x80, 0x80)) + mask, bytes((0xC1, 0x80)) + mask):
        with pytest.raises(ValueError):
            FrameReader().feed(bad)
