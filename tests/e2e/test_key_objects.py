"""What a caller made in a shared account is nobody else's: by path, by body, in lists, over all workers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as open_websocket

from tests.e2e.harness import RawReply, VeloxProcess
from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.tools import Client, covers
from tests.e2e.websocket_upstreams import WebSocketUpstream

CHATS = "/v1/chat/completions"
_JSON = [("content-type", "application/json")]


async def account(call: Call) -> None:
    """Make objects, and list those of everybody."""
    made = {"/v1/files": "file-aaaaaaaa", "/v1/responses": "resp_aaaaaaaa", "/v1/batches": "batch_aaaaaaaa"}
    made[CHATS] = "chatcmpl-aaaaaaaa"
    path = call.target.partition("?")[0]
    if call.method == "POST" and path in made:
        body: dict[str, object] = {"id": made[path], "object": "x"}
    elif path in made:
        body = {"object": "list", "data": [{"id": made[path]}, {"id": "other-1"}], "has_more": False}
    else:
        body = {"id": path}
    await call.reply(200, _JSON, json.dumps(body).encode())


def test_objects_belong_to_the_caller_that_made_them(tmp_path: Path) -> None:
    """Another caller gets 404 and an empty list; the one that made them, through any worker, has them."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    with RecordingUpstream() as upstream:
        env = {**upstream.env(), "VELOX_API_KEYS_FILE": str(keys), "VELOX_WORKERS": "2"}
        with VeloxProcess(env) as velox, upstream.playing(account):

            def ask(key: str, method: str, path: str, body: bytes = b"") -> RawReply:
                return velox.request(method, path, body, {"authorization": f"Bearer {key}"})

            assert ask("vk-a", "POST", "/v1/responses", b'{"model":"m","input":"x"}').status == 200
            assert ask("vk-a", "POST", "/v1/files", b"{}").status == 200
            for _ in range(6):  # through both workers
                theirs = [
                    ask("vk-b", "GET", "/v1/files/file-aaaaaaaa"),
                    ask("vk-b", "GET", "/v1/files/file-aaaaaaaa/content"),
                    ask("vk-b", "DELETE", "/v1/responses/resp_aaaaaaaa"),
                    ask("vk-b", "POST", "/v1/responses", b'{"model":"m","previous_response_id":"resp_aaaaaaaa"}'),
                    ask("vk-b", "POST", "/v1/batches", b'{"input_file_id":"file-aaaaaaaa"}'),
                ]
                for reply in theirs:
                    assert (reply.status, reply.error()["code"]) == (404, "unknown_object")
                assert json.loads(ask("vk-b", "GET", "/v1/files").body)["data"] == []
                assert json.loads(ask("vk-a", "GET", "/v1/files").body)["data"] == [{"id": "file-aaaaaaaa"}]
                assert ask("vk-a", "GET", "/v1/files/file-aaaaaaaa").status == 200
            assert ask("vk-b", "GET", "/v1/%66iles/file-aaaaaaaa").status == 403
            assert ask("vk-b", "GET", "/v1/Files/file-aaaaaaaa").status == 403


def test_object_that_a_body_names_belongs_to_its_caller(tmp_path: Path) -> None:
    """Nested in a chat's messages, which name no object as a rule; a stored chat is an object itself."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    part = {"type": "file", "file": {"file_id": "file-aaaaaaaa"}}
    with_file = json.dumps({"model": "m", "messages": [{"role": "user", "content": [part]}]}).encode()
    stored = json.dumps({"model": "m", "store": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
    with RecordingUpstream() as upstream:
        env = {**upstream.env(), "VELOX_API_KEYS_FILE": str(keys), "VELOX_WORKERS": "2"}
        with VeloxProcess(env) as velox, upstream.playing(account):

            def ask(key: str, method: str, path: str, body: bytes = b"") -> RawReply:
                return velox.request(method, path, body, {"authorization": f"Bearer {key}"})

            assert ask("vk-a", "POST", "/v1/files", b"{}").status == 200
            assert ask("vk-a", "POST", CHATS, stored).status == 200
            for _ in range(4):  # through both workers
                refused = ask("vk-b", "POST", CHATS, with_file)
                assert (refused.status, refused.error()["code"]) == (404, "unknown_object")
                assert refused.error()["param"] == "file_id"
                assert ask("vk-a", "POST", CHATS, with_file).status == 200
                for method in ("GET", "DELETE"):
                    assert ask("vk-b", method, f"{CHATS}/chatcmpl-aaaaaaaa").status == 404
                assert ask("vk-a", "GET", f"{CHATS}/chatcmpl-aaaaaaaa").status == 200
                assert json.loads(ask("vk-a", "GET", CHATS).body)["data"] == [{"id": "chatcmpl-aaaaaaaa"}]
                assert json.loads(ask("vk-b", "GET", CHATS).body)["data"] == []


def test_response_over_a_websocket_belongs_to_its_caller(tmp_path: Path) -> None:
    """Its id is read as it passes; a message of another caller that names it closes both sides with 1008."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    created = json.dumps({"type": "response.created", "response": {"id": "resp_bbbbbbbb"}})
    follow = json.dumps({"type": "response.create", "model": "m", "previous_response_id": "resp_bbbbbbbb"})
    with WebSocketUpstream() as echo:
        env = {**echo.env(), "VELOX_API_KEYS_FILE": str(keys), "VELOX_WORKERS": "1"}
        with VeloxProcess(env) as velox:

            def session(key: str) -> ClientConnection:
                url = f"ws://127.0.0.1:{velox.port}/v1/responses"
                return open_websocket(url, additional_headers={"authorization": f"Bearer {key}"}, proxy=None)

            with session("vk-a") as ws:
                for message in (created, follow):
                    ws.send(message)
                    assert ws.recv() == message
            theirs = velox.request("GET", "/v1/responses/resp_bbbbbbbb", b"", {"authorization": "Bearer vk-b"})
            assert (theirs.status, theirs.error()["code"]) == (404, "unknown_object")
            with session("vk-b") as ws:
                ws.send(follow)
                with pytest.raises(ConnectionClosed) as closed:
                    ws.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
            assert closed.value.rcvd.reason == "there is no such object, or it was made by another caller"


@pytest.mark.parametrize(("rows", "status"), [("1048576", 404), ("1024", 200)])
@covers("VELOX_OBJECT_ROWS")
@pytest.mark.more
def test_table_of_objects_is_as_large_as_was_said(rows: str, status: int, tmp_path: Path) -> None:
    """Of a small one the first objects are forgotten, and are open to those who know their ids."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    n_made = 0

    async def make(call: Call) -> None:
        nonlocal n_made
        n_made += call.method == "POST"
        await call.reply(200, _JSON, json.dumps({"id": f"file-{n_made}"}).encode())

    with RecordingUpstream() as upstream:
        env = {**upstream.env(), "VELOX_API_KEYS_FILE": str(keys), "VELOX_OBJECT_ROWS": rows, "VELOX_WORKERS": "1"}
        with VeloxProcess(env) as velox, upstream.playing(make), Client(velox) as client:
            for _ in range(2048):
                client.send("POST", "/v1/files", b"{}", {"authorization": "Bearer vk-a"})
                assert client.read().status == 200
            known = velox.request("GET", "/v1/files/file-1", b"", {"authorization": "Bearer vk-b"})
            assert known.status == status


@pytest.mark.parametrize(("setting", "status"), [("pass", 200), ("refuse", 404)])
@covers("VELOX_UNKNOWN_OBJECTS")
def test_object_that_nobody_is_known_to_have_made_passes_unless_refused(
    setting: str, status: int, tmp_path: Path
) -> None:
    """It was made before the gateway started, or elsewhere; what a caller makes now is its own all the same."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    with RecordingUpstream() as upstream:
        env = {**upstream.env(), "VELOX_API_KEYS_FILE": str(keys), "VELOX_UNKNOWN_OBJECTS": setting}
        with VeloxProcess({**env, "VELOX_WORKERS": "1"}) as velox, upstream.playing(account):
            key = {"authorization": "Bearer vk-a"}
            assert velox.request("GET", "/v1/files/file-of-yesterday", b"", key).status == status
            assert velox.request("POST", "/v1/files", b"{}", key).status == 200
            assert velox.request("GET", "/v1/files/file-aaaaaaaa", b"", key).status == 200


def test_restart_with_a_ledger_forgets_neither_owner_nor_place(tmp_path: Path) -> None:
    """W2: what was made before goes back to its upstream, and is nobody else's, also with another number of workers."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: a, key: vk-a}\n- {name: b, key: vk-b}\n")
    made: dict[str, str] = {}

    def keeper(name: str) -> Callable[[Call], Awaitable[None]]:
        async def keeps(call: Call) -> None:
            if call.method == "POST":
                object_id = f"resp_{name}{len(made)}"
                made[object_id] = name
            else:
                object_id = call.target.rpartition("/")[2]
            is_there = made.get(object_id) == name
            await call.reply(200 if is_there else 404, _JSON, json.dumps({"id": object_id}).encode())

        return keeps

    more = {"VELOX_API_KEYS_FILE": str(keys), "VELOX_LEDGER": str(tmp_path / "ledger")}
    with RecordingUpstream() as left, RecordingUpstream() as right:
        config = {
            "upstreams": [{"name": each.upstream.url[-5:], "origin": each.upstream.url} for each in (left, right)],
            "routes": [{"name": "all", "to": [each.upstream.url[-5:] for each in (left, right)]}],
        }
        with left.playing(keeper("left")), right.playing(keeper("right")):
            for workers in ("1", "2"):
                with routed(config, workers=workers, **more) as velox:

                    def ask(key: str, method: str, path: str, body: bytes = b"", velox: VeloxProcess = velox) -> int:
                        return velox.request(method, path, body, {"authorization": f"Bearer {key}"}).status

                    for object_id in tuple(made):
                        assert ask("vk-a", "GET", f"/v1/responses/{object_id}") == 200
                        assert ask("vk-b", "GET", f"/v1/responses/{object_id}") == 404
                    for _ in range(8):
                        assert ask("vk-a", "POST", "/v1/responses", b'{"model":"m","input":"x"}') == 200
    assert set(made.values()) == {"left", "right"} and len(made) == 16
