"""What a caller made in a shared account is nobody else's: by path, by body, in lists, over all workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.harness import RawReply, VeloxProcess
from tests.e2e.recording import Call, RecordingUpstream
from tests.e2e.tools import covers

_JSON = [("content-type", "application/json")]


async def account(call: Call) -> None:
    """Make objects, and list those of everybody."""
    made = {"/v1/files": "file-aaaaaaaa", "/v1/responses": "resp_aaaaaaaa", "/v1/batches": "batch_aaaaaaaa"}
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
