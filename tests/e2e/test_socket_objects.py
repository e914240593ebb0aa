"""What is made over a WebSocket, or joined by one: it has an owner, and goes back to where it was made."""

from __future__ import annotations

import contextlib
import http
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import websockets.sync.server
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request, Response

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.websocket_upstreams import WebSocketUpstream, connect

CREATED = json.dumps({"type": "response.created", "response": {"id": "ID"}})


@dataclass
class Vendor:
    """One place of a provider: it keeps the responses that were made over its WebSockets, and no other's."""

    name: str
    made: set[str] = field(default_factory=set)

    def talk(self, ws: websockets.sync.server.ServerConnection) -> None:
        """Answer each message with a new response."""
        while True:
            ws.recv()
            object_id = f"resp_{self.name}{len(self.made)}"
            self.made.add(object_id)
            ws.send(CREATED.replace("ID", object_id))

    def answer(self, _: websockets.sync.server.ServerConnection, request: Request) -> Response | None:
        """Answer a plain GET for a response."""
        path = request.path.partition("?")[0]
        if "upgrade" in request.headers:
            return None
        is_there = path.rpartition("/")[2] in self.made
        status = http.HTTPStatus.OK if is_there or path == "/" else http.HTTPStatus.NOT_FOUND
        body = b'{"object":"response","output":[]}' if is_there else b'{"error":{"message":"none"}}'
        headers = Headers([("content-type", "application/json"), ("content-length", str(len(body)))])
        return Response(status.value, status.phrase, headers, body)


@pytest.mark.parametrize("has_keys", [True, False])
def test_response_of_a_websocket_goes_back_to_where_it_was_made(has_keys: bool, tmp_path: Path) -> None:
    """K6: of two upstreams of one API; with keys of two callers it is the maker's alone."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    vendors = [Vendor("left"), Vendor("right")]
    with contextlib.ExitStack() as running:
        upstreams = []
        for vendor in vendors:
            server = running.enter_context(WebSocketUpstream(vendor.talk, process_request=vendor.answer))
            upstreams.append({"name": vendor.name, "origin": server.url})
        config = {"upstreams": upstreams, "routes": [{"name": "all", "to": ["left", "right"]}]}
        more = {"VELOX_API_KEYS_FILE": str(keys)} if has_keys else {}
        velox = running.enter_context(routed(config, **more))
        made = []
        for _ in range(6):
            with connect(velox, "/v1/responses", authorization="Bearer vk-a" if has_keys else None) as ws:
                ws.send('{"type":"response.create","model":"m","input":"x"}')
                made.append(json.loads(ws.recv())["response"]["id"])
        assert all(vendor.made for vendor in vendors), "both were used"
        for object_id in made[::2] + made[1::2]:
            for key, wanted in (("vk-a", 200), ("vk-b", 404 if has_keys else 200)):
                fields = {"authorization": f"Bearer {key}"} if has_keys else {}
                assert velox.request("GET", f"/v1/responses/{object_id}", b"", fields).status == wanted


async def telephony(call: Call) -> None:
    """Make a call."""
    await call.reply(201, [("content-type", "application/sdp"), ("location", "/v1/realtime/calls/rtc_1")], b"v=0")


@contextlib.contextmanager
def two_keys(upstream: RecordingUpstream, tmp_path: Path) -> Iterator[VeloxProcess]:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    with VeloxProcess({**upstream.env(), "VELOX_API_KEYS_FILE": str(keys), "VELOX_WORKERS": "1"}) as velox:
        yield velox


def test_call_of_another_caller_can_not_be_joined(tmp_path: Path) -> None:
    """X5: by a WebSocket whose query names it: 404, and nothing goes up."""
    with RecordingUpstream(script=telephony) as upstream, two_keys(upstream, tmp_path) as velox:
        fields = {"authorization": "Bearer vk-a", "content-type": "application/sdp"}
        assert velox.request("POST", "/v1/realtime/calls", b"v=0", fields).status == 201
        upstream.forget()
        with pytest.raises(InvalidStatus) as refused:
            connect(velox, "/v1/realtime?call_id=rtc_1", authorization="Bearer vk-b")
        assert refused.value.response.status_code == 404
        assert upstream.calls == []
