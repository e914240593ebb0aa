"""Which upstream a WebSocket goes to: the one that its model's route leads to, by the name that the model has there."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator

import pytest
import websockets.sync.server
from websockets.exceptions import InvalidStatus

from tests.e2e.harness import VeloxProcess
from tests.e2e.routed import Entry, nobody, routed
from tests.e2e.websocket_upstreams import WebSocketUpstream, connect

KEYS = {"KEY_OF_LEFT": "sk-key-of-left-0001", "KEY_OF_RIGHT": "sk-key-of-right-0002"}


def says_who(name: str) -> WebSocketUpstream:
    """Return a server that tells its name, the model it was asked for, and the key that came with it."""

    def session(ws: websockets.sync.server.ServerConnection) -> None:
        assert ws.request is not None
        query = urllib.parse.parse_qs(ws.request.path.partition("?")[2])
        ws.send(f"{name} {query['model'][0]} {ws.request.headers['authorization']}")

    return WebSocketUpstream(session)


@pytest.fixture(scope="module")
def velox() -> Iterator[VeloxProcess]:
    """Two servers, and a third place where nobody listens."""
    with says_who("left") as left, says_who("right") as right, nobody() as gone:
        upstreams: list[Entry] = [
            {"name": "left", "origin": left.url, "keys": ["env:KEY_OF_LEFT"]},
            {"name": "right", "origin": right.url, "keys": ["env:KEY_OF_RIGHT"]},
            {"name": "gone", "origin": gone},
        ]
        routes: list[Entry] = [
            {"name": "left", "match": {"models": ["gpt-*"]}, "to": "left"},
            {"name": "alias", "match": {"models": ["voice"]}, "to": "right", "model": "gpt-realtime-2"},
            {"name": "stripped", "match": {"models": ["right/*"]}, "to": [{"upstream": "right", "strip": "right/"}]},
            {"name": "falls", "match": {"models": ["falls"]}, "to": "gone", "fallback": ["right"]},
        ]
        with routed({"upstreams": upstreams, "routes": routes}, **KEYS) as running:
            yield running


@pytest.mark.parametrize(
    ("model", "answer"),
    [
        ("gpt-realtime", "left gpt-realtime Bearer sk-key-of-left-0001"),
        ("voice", "right gpt-realtime-2 Bearer sk-key-of-right-0002"),
        ("right/gpt-realtime", "right gpt-realtime Bearer sk-key-of-right-0002"),
        ("falls", "right falls Bearer sk-key-of-right-0002"),
    ],
)
def test_websocket_goes_where_its_model_leads(velox: VeloxProcess, model: str, answer: str) -> None:
    """Each with its own key; the alias is in the query. Where nobody listens the fallback is dialed."""
    for _ in range(3):
        with connect(velox, f"/v1/realtime?a=%20b&model={model}&z") as ws:
            assert ws.recv() == answer


def test_websocket_of_an_unknown_model_is_refused(velox: VeloxProcess) -> None:
    """With a status and a body, before anybody is dialed."""
    with pytest.raises(InvalidStatus) as caught, connect(velox, "/v1/realtime?model=claude"):
        pass

    assert caught.value.response.status_code == 404
    assert b'"unknown_model"' in caught.value.response.body
