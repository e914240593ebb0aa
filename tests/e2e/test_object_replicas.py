"""Owners and places of objects of two gateways with one Redis or PostgreSQL: the same for both, or away."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as open_websocket

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recording import JSON, Call, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.shared_stores import STORES, SharedStore, shared_store
from tests.e2e.websocket_upstreams import WebSocketUpstream
from velox.protocol.json.body import LARGE_BYTES

MADE: dict[str, str] = {}
BEGINNINGS = {"/v1/files": "file-", "/v1/vector_stores": "vs_"}
CHATS = "/v1/chat/completions"


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    with shared_store(request.param, tmp_path_factory.mktemp("store")) as running:
        yield running


def keeper(name: str) -> Callable[[Call], Awaitable[None]]:
    """A provider that has what was made there, and nothing else."""

    async def keeps(call: Call) -> None:
        begin = BEGINNINGS.get(call.target, "resp_")
        object_id = f"{begin}{name}{len(MADE)}" if call.method == "POST" else call.target.rpartition("/")[2]
        if call.method == "POST":
            named = json.loads(call.body).get("previous_response_id")
            if named is not None and MADE.get(named) != name:
                await call.reply(404, JSON, b'{"error":{"message":"none"}}')
                return
            MADE[object_id] = name
        status = 200 if MADE.get(object_id) == name else 404
        await call.reply(status, JSON, json.dumps({"id": object_id, "object": "response", "output": []}).encode())

    return keeps


Starting = Callable[[], AbstractContextManager[VeloxProcess]]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("keys"), "keys.yaml")
    path.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    return path


@pytest.fixture(scope="module")
def one_more(store: SharedStore, keys: Path) -> Iterator[Starting]:
    """What starts a gateway of this store: with the same keys and the same two providers."""
    with ExitStack() as running:
        upstreams = []
        for name in ("left", "right"):
            made = running.enter_context(RecordingUpstream(script=keeper(name)))
            upstreams.append({"name": name, "origin": made.upstream.url})
        config = {"upstreams": upstreams, "routes": [{"name": "all", "to": ["left", "right"]}]}
        more = {"VELOX_API_KEYS_FILE": str(keys)}
        yield lambda: routed(config, **more, **store.settings())


@pytest.fixture(scope="module")
def gateways(store: SharedStore, one_more: Starting) -> Iterator[list[VeloxProcess]]:
    with one_more() as one, one_more() as other:
        until(store.is_ready, "its tables are made")
        yield [one, other]


def ask(velox: VeloxProcess, key: str, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    reply = velox.request(method, path, body, {"authorization": f"Bearer {key}"})
    return reply.status, json.loads(reply.body)


def test_gateways_know_the_same_owners_and_places(gateways: list[VeloxProcess], store: SharedStore) -> None:
    """W2: made by one, read and gone on with by the other, at the upstream that keeps it; nobody else's."""
    one, other = gateways
    created = [ask(one, "vk-a", "POST", "/v1/responses", b'{"model":"m","input":"x"}') for _ in range(6)]
    assert {MADE[told["id"]] for _, told in created} == {"left", "right"}
    until(lambda: store.n_objects() >= 6, "the store knows all of them")
    assert 0 < store.longest_s("object") <= 30 * 86_400
    for n, (_, told) in enumerate(created):
        path = f"/v1/responses/{told['id']}"
        if n % 2:  # whoever asks first
            assert ask(other, "vk-b", "GET", path)[0] == 404
        assert ask(other, "vk-a", "GET", path)[0] == 200
        assert ask(other, "vk-b", "GET", path)[0] == 404
        follow = json.dumps({"model": "m", "input": "y", "previous_response_id": told["id"]}).encode()
        assert ask(other, "vk-b", "POST", "/v1/responses", follow)[0] == 404
        assert ask(other, "vk-a", "POST", "/v1/responses", follow)[0] == 200


def test_gateway_that_knows_no_object_asks_for_what_a_request_names(
    gateways: list[VeloxProcess], store: SharedStore, one_more: Starting
) -> None:
    """Wherever it is named, also among many that nobody knows: others get 404, and it goes up for its caller alone.

    Chats come first, of a gateway of its own: no body can name an object that somebody has made, as far as it knows.
    """
    one, before = gateways[0], store.n_objects()

    def make(key: str, path: str) -> str:
        status, told = ask(one, key, "POST", path, b'{"model":"m"}')
        assert status == 200
        return str(told["id"])

    others = [f"file-of-nobody-{n}" for n in range(1000)]
    own = make("vk-b", "/v1/vector_stores")
    requests: list[tuple[str, str, Callable[[str], object]]] = [
        ("POST", CHATS, lambda file: [{"file": {"file_id": file}}]),
        ("POST", CHATS, lambda file: [{"text": "x" * LARGE_BYTES}, {"file": {"file_id": file}}]),
        ("POST", CHATS, lambda file: [{"file": {"file_id": each}} for each in (*others, file)]),
        ("GET", f"/v1/vector_stores/{own}/files/FILE", lambda file: None),
        ("GET", "/v1/responses?file_id=FILE", lambda file: None),
    ]
    files = [make("vk-a", "/v1/files") for _ in requests]
    until(lambda: store.n_objects() >= before + 1 + len(files), "the store knows all of them")
    with one_more() as other:
        for (method, path, content), file in zip(requests, files, strict=True):
            parts = content(file)
            body = b"" if parts is None else json.dumps({"model": "m", "messages": [{"content": parts}]}).encode()
            asked = method, path.replace("FILE", file), body
            status, told = ask(other, "vk-b", *asked)
            assert (status, told["error"].get("code")) == (404, "unknown_object"), asked[:2]
            if method == "POST":
                assert ask(other, "vk-a", *asked)[0] == 200, asked[:2]


def session(velox: VeloxProcess, key: str, path: str = "/v1/responses") -> ClientConnection:
    url = f"ws://127.0.0.1:{velox.port}{path}"
    return open_websocket(url, additional_headers={"authorization": f"Bearer {key}"}, proxy=None)


def test_message_of_a_websocket_waits_for_what_another_gateway_knows(store: SharedStore, keys: Path) -> None:
    """Another caller's is refused with 1008, its own passes, in order; what is not known to anybody passes, too."""
    created = json.dumps({"type": "response.created", "response": {"id": "resp_of_a"}})
    follow, fresh, of_nobody = (
        json.dumps({"type": "response.create", "model": "m", "previous_response_id": each})
        for each in ("resp_of_a", None, "resp_of_nobody")
    )
    before = store.n_objects()
    with WebSocketUpstream() as echo, ExitStack() as running:
        config = {"upstreams": [{"name": "echo", "origin": echo.url}]}
        more = {"VELOX_API_KEYS_FILE": str(keys)}
        one, other = (running.enter_context(routed(config, **more, **store.settings())) for _ in range(2))
        until(store.is_ready, "its tables are made")
        with session(one, "vk-a") as ws:
            ws.send(created)
            assert ws.recv() == created
        until(lambda: store.n_objects() > before, "the store knows it")

        with session(other, "vk-b") as ws:
            for each in (fresh, of_nobody):
                ws.send(each)
            assert [ws.recv(), ws.recv()] == [fresh, of_nobody]
            for each in (follow, fresh):
                ws.send(each)
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
            1008,
            "there is no such object, or it was made by another caller",
        )
        with session(other, "vk-a") as ws:
            for each in (of_nobody, follow, fresh):
                ws.send(each)
            assert [ws.recv() for _ in range(3)] == [of_nobody, follow, fresh]
        with pytest.raises(InvalidStatus) as refused:
            session(other, "vk-b", "/v1/realtime?model=m&call_id=resp_of_a")
        assert refused.value.response.status_code == 404

        store.pause()
        try:
            with session(other, "vk-a") as ws:
                for each in (of_nobody, follow, fresh):
                    ws.send(each)
                assert [ws.recv() for _ in range(3)] == [of_nobody, follow, fresh]
        finally:
            store.resume()


def test_gateway_serves_while_the_store_is_away(gateways: list[VeloxProcess], store: SharedStore) -> None:
    """It knows what it made itself; of an id that nobody knows it asks in vain, for a moment at most."""
    one, _ = gateways
    store.pause()
    try:
        _, told = ask(one, "vk-a", "POST", "/v1/responses", b'{"model":"m","input":"x"}')
        assert ask(one, "vk-a", "GET", f"/v1/responses/{told['id']}")[0] == 200
        assert ask(one, "vk-b", "GET", f"/v1/responses/{told['id']}")[0] == 404
        assert ask(one, "vk-a", "GET", "/v1/responses/resp_of_nobody")[0] == 404
    finally:
        store.resume()
