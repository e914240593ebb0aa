"""A key that may use one model, on a running gateway: no other spelling of another one reaches the upstream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as open_websocket

from tests.e2e.harness import RawReply, VeloxProcess
from tests.e2e.recording import Call, RecordingUpstream, healthy
from tests.e2e.tools import reason
from tests.e2e.websocket_upstreams import WebSocketUpstream
from tests.lenient_server import models_run

KEY = "vk-limited"
KEYS = f"- {{name: shop, key: {KEY}, models: [gpt-4o-mini]}}\n- {{name: free, key: vk-free}}\n"
MINI = json.dumps({"model": "gpt-4o-mini", "messages": []}).encode()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file of keys."""
    file = tmp_path / "keys.yaml"
    file.write_text(KEYS)
    return file


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    """An upstream that records; healthy."""
    with RecordingUpstream() as running:
        yield running


def test_no_spelling_of_another_model_reaches_the_upstream(upstream: RecordingUpstream, keys: Path) -> None:
    """X11: a deployment in upper case, an engine, a `;` in the query, a second field in upper case."""
    env = {**upstream.env(), "VELOX_API_KEYS_FILE": str(keys), "VELOX_WORKERS": "1"}
    with VeloxProcess(env) as velox, upstream.playing(healthy):

        def post(path: str, body: bytes = MINI, key: str = KEY) -> RawReply:
            return velox.request("POST", path, body, {"authorization": f"Bearer {key}"})

        tried = [
            ("/openai/Deployments/gpt-4o/chat/completions", MINI),
            ("/v1/engines/davinci/completions", MINI),
            ("/v1/chat/completions?x=1;model=gpt-4o&model=gpt-4o-mini", MINI),
            ("/v1/chat/completions", b'{"model":"gpt-4o-mini","Model":"gpt-4o"}'),
        ]
        for path, body in tried:
            assert "gpt-4o" in models_run(b"POST", path.encode(), [(b"content-type", b"application/json")], body) or (
                "davinci" in path
            ), "the reference would run another model"
            reply = post(path, body)
            assert (reply.status, reason(reply), reply.error()["type"]) == (403, "forbidden", "permission_error")
            assert b"gpt-4o" not in reply.body
        assert upstream.calls == []
        assert [post(path, body, "vk-free").status for path, body in tried] == [200] * len(tried)
        assert post("/v1/chat/completions").status == 200
        assert post("/openai/deployments/gpt-4o-mini/chat/completions?api-version=1").status == 200
        assert velox.request("GET", "/v1/models", headers={"authorization": f"Bearer {KEY}"}).status == 200


def test_batch_runs_a_file_that_the_key_uploaded(upstream: RecordingUpstream, tmp_path: Path) -> None:
    """Its lines were read, by whichever worker; another file may name any model."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"- {{name: shop, key: {KEY}, models: [gpt-4o-mini], endpoints: [inference, files, batches]}}\n")

    async def account(call: Call) -> None:
        body = b'{"id":"file-in"}' if call.target == "/v1/files" else b'{"id":"batch_1","input_file_id":"file-in"}'
        await call.reply(200, [("content-type", "application/json")], body)

    lines = json.dumps(
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-4o-mini"}}
    )
    env = {**upstream.env(), "VELOX_API_KEYS_FILE": str(keys), "VELOX_WORKERS": "2"}
    with VeloxProcess(env) as velox, upstream.playing(account):
        client = velox.openai(api_key=KEY)
        made = client.files.create(file=("b.jsonl", lines.encode()), purpose="batch")
        for _ in range(4):
            client.batches.create(input_file_id=made.id, endpoint="/v1/chat/completions", completion_window="24h")
        with pytest.raises(openai.PermissionDeniedError, match="upload the file again with this key"):
            client.batches.create(input_file_id="file-2", endpoint="/v1/chat/completions", completion_window="24h")
        with pytest.raises(openai.PermissionDeniedError):
            client.files.create(file=("b.jsonl", lines.replace("4o-mini", "4o").encode()), purpose="batch")
        assert [call.target for call in upstream.calls] == ["/v1/files", *["/v1/batches"] * 4]


def test_responses_websocket_runs_the_models_of_the_key(keys: Path) -> None:
    """Each message names one; without, or with another, both sides are closed with 1008."""
    with WebSocketUpstream() as echo, VeloxProcess({**echo.env(), "VELOX_API_KEYS_FILE": str(keys)}) as velox:
        url, headers = f"ws://127.0.0.1:{velox.port}/v1/responses", {"authorization": f"Bearer {KEY}"}
        for more, text in (
            ({"model": "gpt-4o"}, "this key may not use this model"),
            (
                {},
                "this key is limited to some models, and the model could be read in two ways: a message names no model",
            ),
        ):
            with open_websocket(url, additional_headers=headers, proxy=None) as ws:
                plain = json.dumps({"type": "response.create", "model": "gpt-4o-mini", "input": "hi"})
                ws.send(plain)
                assert ws.recv() == plain
                ws.send(json.dumps({"type": "response.create", "input": "hi", **more}))
                with pytest.raises(ConnectionClosed) as closed:
                    ws.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, text)


def test_no_websocket_runs_another_model(keys: Path) -> None:
    """Not by its URL, and not by a message that changes its session: that closes both sides with 1008."""
    with WebSocketUpstream() as echo, VeloxProcess({**echo.env(), "VELOX_API_KEYS_FILE": str(keys)}) as velox:
        headers = {"authorization": f"Bearer {KEY}"}
        for query in ("deployment=gpt-4o&model=gpt-4o-mini", "x=1;model=gpt-4o&model=gpt-4o-mini", "Model=gpt-4o-mini"):
            url = f"ws://127.0.0.1:{velox.port}/openai/realtime?{query}"
            with pytest.raises(InvalidStatus) as refused, open_websocket(url, additional_headers=headers, proxy=None):
                pass
            response = refused.value.response
            assert (response.status_code, response.headers["x-velox-reason"]) == (403, "forbidden")
        url = f"ws://127.0.0.1:{velox.port}/v1/realtime?model=gpt-4o-mini"
        with open_websocket(url, additional_headers=headers, proxy=None) as ws:
            plain = json.dumps({"type": "session.update", "session": {"model": "gpt-4o-mini"}})
            ws.send(plain)
            assert ws.recv() == plain
            ws.send([plain[:5], plain[5:]])
            assert ws.recv() == plain
            ws.send(json.dumps({"type": "session.update", "session": {"model": "gpt-4o"}}))
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "this key may not use this model")


def test_gemini_paths_name_no_other_model_in_their_bodies(upstream: RecordingUpstream, keys: Path) -> None:
    """Google's bodies hold requests with models of their own. The path's own model may stand there, too."""
    paths = {"batchEmbedContents": "requests", "countTokens": "generateContentRequest", "embedContent": "model"}
    env = {**upstream.env(), "VELOX_API_KEYS_FILE": str(keys), "VELOX_WORKERS": "1"}
    with VeloxProcess(env) as velox, upstream.playing(healthy):
        for call, field in paths.items():
            for name, status in (("gpt-4o-mini", 200), ("gpt-4o", 403)):
                model = f"models/{name}"
                inner = {"model": model, "content": {"parts": [{"text": "x"}]}}
                value = {"requests": [inner, inner], "model": model}.get(field, inner)
                body = json.dumps({field: value}).encode()
                target = f"/v1beta/models/gpt-4o-mini:{call}"
                reply = velox.request("POST", target, body, {"authorization": f"Bearer {KEY}"})
                assert reply.status == status, (call, name, reply.body)
    assert all(b"models/gpt-4o-mini" in call.body for call in upstream.calls)
