"""The Responses API over a WebSocket on models of every dialect, with the real SDK."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest
import websockets.sync.client
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.routed import named, nobody, routed
from velox_sim.shapes import Text

# The SDK's own use of the library, which will do so for now.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")

N_TOKENS: Final = 12
TEXT: Final = Text(N_TOKENS).first(N_TOKENS)
# Of Chat Completions, Responses, Messages, Gemini.
MODELS: Final = ("qwen3-sim-tools-2", "gpt-5-codex-sim-tools-2", "claude-sim-tools-2", "gemini-3-sim-tools-2")
SOME: Final = "sk-of-some-models"
TOOL: Final = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
LAST: Final = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """A gateway whose models speak four dialects, one is slow, and one is not there."""
    options = {
        "models": f"--ttft 0 --token-rate 0 --tokens {N_TOKENS}",
        "slow": "--ttft 0 --token-rate 20 --tokens 2000",
    }
    with named("models", "slow", **options) as sims, nobody() as gone:
        origins = {name: sim["origin"] for name, sim in sims.items()} | {"gone": gone}
        rows = {
            "local": ("vllm", "models"),
            "openai": ("openai", "models"),
            "anthropic": ("anthropic", "models"),
            "gemini": ("gemini", "models"),
            "slow": ("anthropic", "slow"),
            "gone": ("anthropic", "gone"),
        }
        config = {
            "api_keys": [
                {"name": "all", "key": KEY},
                {"name": "some", "key": SOME, "models": ["gemini-sim"]},
            ],
            "upstreams": [
                {"name": name, "provider": provider, "origin": origins[origin], "key": "env:MODEL_KEY"}
                for name, (provider, origin) in rows.items()
            ],
            "routes": [
                {"name": name, "match": {"models": [pattern]}, "to": name}
                for name, pattern in (
                    *(("local", "qwen3-*"), ("anthropic", "claude-*"), ("gemini", "gemini-*")),
                    *(("slow", "slow-*"), ("gone", "gone-*"), ("openai", "gpt-*")),
                )
            ],
        }
        with routed(config, MODEL_KEY="sk-model-0123456789", access_log="all") as running:
            yield running


def told(connection: Any) -> list[Any]:
    """Return the events up to the last one of an answer."""
    events = [connection.recv()]
    while events[-1].type not in LAST:
        events.append(connection.recv())
    return events


@pytest.mark.parametrize("model", MODELS)
def test_calls_and_their_results_on_any_model(velox: VeloxProcess, model: str) -> None:
    """Only what is new is sent: the connection knows the calls before. Each turn is a request, with its usage."""
    with velox.openai().responses.connect() as connection:
        connection.response.create(model=model, input="Weather?", tools=[TOOL], store=False)
        events = told(connection)
        first = events[-1].response
        calls = [item for item in first.output if item.type == "function_call"]
        assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
        assert len(calls) == 2
        assert first.usage is not None and first.usage.input_tokens > 0

        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
        more: Any = {"model": model, "input": results, "tools": [TOOL], "store": False}
        connection.response.create(previous_response_id=first.id, **more)
        events = told(connection)
    assert events[-1].type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    assert events[-1].response.output_text == TEXT
    lines = [velox.wait_access(lambda line: line["model"] == model and line["status"] == 200) for _ in range(2)]
    assert {line["endpoint"] for line in lines} == {"responses"}


def test_key_in_the_protocols_counts_beside_a_login(velox: VeloxProcess) -> None:
    """C3: one of the two credentials of a handshake is known, and its messages are that caller's."""
    url = velox.base_url.replace("http://", "ws://") + "/v1/responses"
    protocols = [websockets.Subprotocol(each) for each in ("realtime", f"openai-insecure-api-key.{KEY}")]
    headers = {"authorization": "Bearer sk-of-a-login"}
    with websockets.sync.client.connect(url, additional_headers=headers, subprotocols=protocols) as ws:
        assert answered(ws, asked("claude-sim"))[-1]["type"] == "response.completed"


def test_unknown_answer_is_refused_and_the_connection_stays(velox: VeloxProcess) -> None:
    """With the code that clients know: they send the whole conversation then."""
    with velox.openai().responses.connect() as connection:
        connection.send_raw(json.dumps(asked("claude-sim", previous_response_id="resp_1")))
        refused = json.loads(connection.recv_bytes())
        assert (refused["type"], refused["status"]) == ("error", 400)
        assert (refused["error"]["code"], refused["error"]["param"]) == (
            "previous_response_not_found",
            "previous_response_id",
        )
        connection.send_raw(json.dumps(asked("claude-sim")))
        assert told(connection)[-1].response.output_text == TEXT


def asked(model: str, **more: Any) -> dict[str, Any]:
    """Return a message that asks for an answer."""
    return {"type": "response.create", "model": model, "input": "Hi", **more}


def raw(velox: VeloxProcess, key: str = KEY) -> websockets.sync.client.ClientConnection:
    """Open a connection without the SDK."""
    url = velox.base_url.replace("http://", "ws://") + "/v1/responses"
    return websockets.sync.client.connect(url, additional_headers={"authorization": f"Bearer {key}"})


def answered(ws: websockets.sync.client.ClientConnection, message: dict[str, Any] | str) -> list[dict[str, Any]]:
    """Send a message; return the events up to the last one of the answer."""
    ws.send(message if isinstance(message, str) else json.dumps(message))
    events = [json.loads(ws.recv(timeout=20))]
    while events[-1]["type"] not in LAST:
        events.append(json.loads(ws.recv(timeout=20)))
    return events


def test_errors_are_messages_and_the_connection_stays(velox: VeloxProcess) -> None:
    """Of what can't be read, of a field that no other API has, of a model that nobody has, of an upstream."""
    with raw(velox) as ws:
        for message, status, word in (
            ("{", 400, "JSON"),
            ({"type": "response.steer"}, 400, "response.create"),
            (asked("claude-sim", background=True), 400, "background"),
            (asked("nobody-has-it"), 404, "model"),
            (asked("gone-model"), 502, ""),
        ):
            last = answered(ws, message)[-1]  # type: ignore[arg-type]
            assert (last["type"], last["status"]) == ("error", status), last
            assert word in json.dumps(last["error"]), last
        assert answered(ws, asked("claude-sim"))[-1]["type"] == "response.completed"


def test_cut_upstream_is_no_answer(velox: VeloxProcess) -> None:
    """The last event says that it failed; nothing can go on from it."""
    with raw(velox) as ws:
        events = answered(ws, asked("slow-sim-cut-3"))
        assert events[-1]["type"] in ("response.failed", "error")
        begun = next(event["response"]["id"] for event in events if event["type"] == "response.created")
        assert answered(ws, asked("claude-sim", previous_response_id=begun))[-1]["status"] == 400


def test_client_that_leaves_ends_what_runs(velox: VeloxProcess) -> None:
    """The upstream is given up; the request is accounted as one whose client left."""
    with raw(velox) as ws:
        ws.send(json.dumps(asked("slow-model")))
        while json.loads(ws.recv(timeout=20))["type"] != "response.output_text.delta":
            pass
    line = velox.wait_access(lambda line: line["model"] == "slow-model")
    assert line["reason"] == "client_closed"


def test_lanes_run_beside_each_other_and_pings_are_answered(velox: VeloxProcess) -> None:
    """Another lane is answered while one is slow; each event tells its lane."""
    with raw(velox) as ws:
        ws.send(json.dumps(asked("slow-model", stream_id="slow")))
        ws.send(json.dumps(asked("gemini-sim", stream_id="fast")))
        assert ws.ping().wait(20)
        lanes: dict[str, list[str]] = {"slow": [], "fast": []}
        while "response.completed" not in lanes["fast"]:
            event = json.loads(ws.recv(timeout=20))
            lanes[event["stream_id"]].append(event["type"])
        assert "response.completed" not in lanes["slow"]


def test_prepared_conversation_goes_on(velox: VeloxProcess) -> None:
    """`generate: false` asks no model; what follows has its input."""
    with raw(velox) as ws:
        prepared = answered(ws, asked("claude-sim", generate=False))[-1]["response"]
        assert prepared["output"] == []
        more = asked("claude-sim", previous_response_id=prepared["id"])
        assert answered(ws, more)[-1]["type"] == "response.completed"


def test_wrong_key_is_refused_at_the_handshake(velox: VeloxProcess) -> None:
    """As for any request."""
    with pytest.raises(InvalidStatus) as refused:
        raw(velox, "vk-nobody")
    assert refused.value.response.status_code == 401


def test_key_of_some_models_asks_for_these(velox: VeloxProcess) -> None:
    """Each message is checked as a request is."""
    with raw(velox, SOME) as ws:
        assert answered(ws, asked("gemini-sim"))[-1]["type"] == "response.completed"
        assert answered(ws, asked("claude-sim"))[-1]["status"] in (403, 404)


def test_frames_that_no_client_may_send_close_it(velox: VeloxProcess) -> None:
    """1002, with why."""
    with raw(velox) as ws:
        ws.socket.sendall(b"\x81\x02hi")  # not masked
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=20)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1002


def test_drain_closes_what_is_idle() -> None:
    """1001, and no request is cut for it."""
    with named("models", models="--ttft 0 --token-rate 0") as sims:
        config = {
            "upstreams": [
                {
                    "name": "claude",
                    "provider": "anthropic",
                    "origin": sims["models"]["origin"],
                    "key": "env:MODEL_KEY",
                }
            ]
        }
        with routed(config, MODEL_KEY="sk-model-0123456789") as velox, raw(velox) as ws:
            assert answered(ws, asked("claude-sim"))[-1]["type"] == "response.completed"
            velox.signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv(timeout=20)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001


def test_end_of_a_drain_is_no_client_that_left() -> None:
    """What still runs then is the gateway's to end: it is recorded so, and the client does not pay for it."""
    with named("models", models="--ttft 60s") as sims:
        row = {"name": "claude", "provider": "anthropic", "origin": sims["models"]["origin"], "key": "env:MODEL_KEY"}
        settings = {"drain_timeout": "1s", "access_log": "all"}
        with routed({"upstreams": [row]}, MODEL_KEY="sk-model-0123456789", **settings) as velox, raw(velox) as ws:
            ws.send(json.dumps(asked("claude-sim")))
            velox.wait_metric("velox_inflight_requests", lambda n: n == 1)
            velox.signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv(timeout=20)
            line = velox.wait_access(lambda line: line["model"] == "claude-sim")
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
    assert (line["status"], line["reason"]) == (503, "draining")


def test_messages_that_wait_are_bounded(velox: VeloxProcess) -> None:
    """1008, and what runs is given up."""
    with raw(velox) as ws, pytest.raises(ConnectionClosed) as closed:  # while it sends, or later
        for _ in range(40):
            ws.send(json.dumps(asked("slow-model")))
        while True:
            ws.recv(timeout=20)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    velox.wait_metric("velox_inflight_requests", lambda n: n == 0)
