"""The realtime API through the gateway, with the real SDK against a real WebSocket server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import openai
import pytest
import websockets.sync.server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.upstreams import Certificates
from tests.e2e.websocket_upstreams import WebSocketUpstream

# The SDK's own use of the library, which will do so for now.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")

OURS = "sk-of-the-gateway-itself"


def session(ws: websockets.sync.server.ServerConnection) -> None:
    """A session of the realtime API: it begins by itself, and answers each response.create with three events."""
    ws.send(json.dumps({"type": "session.created", "event_id": "e1", "session": {"type": "realtime", "id": "s1"}}))
    while True:
        event = json.loads(ws.recv())
        if event["type"] == "response.create":
            for number, delta in enumerate(("Hello ", "from ", "afar.")):
                ws.send(
                    json.dumps(
                        {
                            "type": "response.output_text.delta",
                            "event_id": f"d{number}",
                            "response_id": "r1",
                            "item_id": "i1",
                            "output_index": 0,
                            "content_index": 0,
                            "delta": delta,
                        }
                    )
                )
            ws.send(json.dumps({"type": "response.done", "event_id": "e9", "response": {"id": "r1"}}))
        elif event["type"] == "response.cancel":
            ws.close(1011, "the model is gone")


@pytest.fixture(scope="module")
def upstream() -> Iterator[WebSocketUpstream]:
    """A server of realtime sessions."""
    with WebSocketUpstream(session) as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: WebSocketUpstream) -> Iterator[VeloxProcess]:
    """A gateway that has a key of its own for it."""
    with VeloxProcess({**upstream.env(), "OPENAI_API_KEY": OURS}) as running:
        yield running


def test_realtime_session_with_the_sdk(upstream: WebSocketUpstream, velox: VeloxProcess) -> None:
    """Events pass both ways as they come; our key goes up, the client's doesn't; one line and one count at the end."""
    sdk = velox.openai()
    with sdk.realtime.connect(model="gpt-realtime") as connection:
        assert connection.recv().type == "session.created"
        connection.response.create()
        events = [connection.recv() for _ in range(4)]

    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == "Hello from afar."
    request = upstream.wait_session().request
    assert request.path == "/v1/realtime?model=gpt-realtime"
    assert request.headers.get_all("Authorization") == [f"Bearer {OURS}"]
    line = velox.wait_access(lambda line: line["model"] == "gpt-realtime")
    assert (line["endpoint"], line["status"], line["reason"], line["close_code"]) == ("realtime", 101, "ok", 1000)
    assert isinstance(line["bytes_in"], int) and line["bytes_in"] > 0
    assert isinstance(line["bytes_out"], int) and line["bytes_out"] > line["bytes_in"]
    ended = 'velox_requests_total{class="2xx",reason="ok",route="realtime"}'
    assert velox.wait_metric(ended, lambda n: n > 0) == 1


def test_responses_over_a_websocket_with_the_sdk() -> None:
    """`client.responses.connect()`: its path takes a WebSocket, with our key; the model is in each message."""

    def responses(ws: websockets.sync.server.ServerConnection) -> None:
        while True:
            asked = json.loads(ws.recv())
            answer = {"id": "resp_1", "object": "response", "model": asked["model"], "output": []}
            ws.send(json.dumps({"type": "response.completed", "sequence_number": 0, "response": answer}))

    with (
        WebSocketUpstream(responses) as upstream,
        VeloxProcess({**upstream.env(), "OPENAI_API_KEY": OURS}) as velox,
    ):
        with velox.openai().responses.connect() as connection:
            for model in ("gpt-a", "gpt-b"):
                connection.response.create(model=model, input="hi")
                event = connection.recv()
                assert event.type == "response.completed" and event.response.model == model
        request = upstream.wait_session().request
        line = velox.wait_access(lambda line: line["endpoint"] == "responses")
    assert request.path == "/v1/responses"
    assert request.headers.get_all("Authorization") == [f"Bearer {OURS}"]
    assert (line["status"], line["reason"], line["close_code"]) == (101, "ok", 1000)


def test_live_sessions_with_the_sdk() -> None:
    """`client.live.connect()`, and what is attached to a session or forked from one."""

    def live(ws: websockets.sync.server.ServerConnection) -> None:
        while True:
            ws.recv()
            ws.send(json.dumps({"type": "session.started", "event_id": "e1", "session": {"id": "live_1"}}))

    with WebSocketUpstream(live) as upstream, VeloxProcess(upstream.env()) as velox:
        sdk = velox.openai()
        with sdk.live.connect() as live_session:
            live_session.send_raw('{"type": "session.start"}')
            assert live_session.recv().type == "session.started"
        with sdk.live.sideband.connect(session_id="live_1") as attached:
            attached.send_raw('{"type": "session.start"}')
            assert attached.recv().type == "session.started"
        with sdk.live.forks.connect(session_id="live_1") as fork:
            fork.send_raw('{"type": "session.start"}')
            assert fork.recv().type == "session.started"
        paths = [upstream.wait_session().request.path.partition("?")[0] for _ in range(3)]
    assert paths == ["/v1/live/sessions", "/v1/live/sessions/live_1/attach", "/v1/live/sessions/live_1/fork"]


def test_async_sdk_below_another_prefix(upstream: WebSocketUpstream, velox: VeloxProcess) -> None:
    """The SDK's async client; a base_url with a prefix before /v1."""

    async def talk() -> str:
        async with (
            openai.AsyncOpenAI(base_url=f"{velox.base_url}/openai/v1", api_key=KEY) as sdk,
            sdk.realtime.connect(model="gpt-realtime") as connection,
        ):
            assert (await connection.recv()).type == "session.created"
            await connection.response.create()
            text = ""
            async for event in connection:
                if event.type == "response.done":
                    return text
                if event.type == "response.output_text.delta":
                    text += event.delta
        raise AssertionError("the session ended early")

    assert asyncio.run(talk()) == "Hello from afar."
    assert upstream.wait_session().request.path == "/openai/v1/realtime?model=gpt-realtime"


def test_code_of_the_upstreams_close_reaches_the_sdk(upstream: WebSocketUpstream, velox: VeloxProcess) -> None:
    """The upstream's Close frame passes unchanged, its code is in the log, and the end is a good one."""
    with velox.openai().realtime.connect(model="closes") as connection:
        connection.recv()
        connection.send({"type": "response.cancel"})
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv()

    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "the model is gone")
    line = velox.wait_access(lambda line: line["model"] == "closes")
    assert (line["reason"], line["close_code"]) == ("ok", 1011)
    upstream.wait_session()


def test_clients_own_key_passes_where_the_gateway_has_none(upstream: WebSocketUpstream) -> None:
    """As for any request."""
    with VeloxProcess(upstream.env()) as velox:
        with velox.openai(api_key="sk-of-the-client").realtime.connect(model="m") as connection:
            connection.recv()

        assert upstream.wait_session().request.headers["Authorization"] == "Bearer sk-of-the-client"


def test_refusal_of_the_upstream_reaches_the_sdk() -> None:
    """The upstream's own answer passes as it is: status, body, request id."""

    def refuse(ws: websockets.sync.server.ServerConnection, request: Request) -> Response:
        response = ws.respond(401, '{"error": {"message": "no such key"}}')
        response.headers["x-request-id"] = "req-1"
        return response

    with (
        WebSocketUpstream(process_request=refuse) as upstream,
        VeloxProcess(upstream.env()) as velox,
        pytest.raises(InvalidStatus) as refused,
        velox.openai().realtime.connect(model="m"),
    ):
        pass

    response = refused.value.response
    assert (response.status_code, response.body) == (401, b'{"error": {"message": "no such key"}}')
    assert response.headers["x-request-id"] == "req-1"


def test_upstream_over_tls(certificates: Certificates) -> None:
    """The certificate is verified; ALPN asks for HTTP/1.1 only, though requests may go over HTTP/2."""
    with WebSocketUpstream(session, certificates=certificates) as upstream, VeloxProcess(upstream.env()) as velox:
        with velox.openai().realtime.connect(model="m") as connection:
            assert connection.recv().type == "session.created"
            connection.response.create()
            assert [connection.recv().type for _ in range(4)][-1] == "response.done"
        assert upstream.wait_session().wait_closed() == (1000, "")

    with WebSocketUpstream(session, certificates=certificates) as upstream:
        untrusted = {name: value for name, value in upstream.env().items() if name != "VELOX_UPSTREAM_CA_FILE"}
        with VeloxProcess(untrusted) as velox:
            with pytest.raises(InvalidStatus) as refused, velox.openai().realtime.connect(model="m"):
                pass
            assert refused.value.response.status_code == 502
            assert refused.value.response.headers["x-velox-reason"] == "upstream_tls"
        assert upstream.requests == []
