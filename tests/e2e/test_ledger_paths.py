"""Which requests are recorded: each at which a model may work, whatever its path and form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import named, routed
from tests.e2e.test_ledger import n_kept, usage
from tests.e2e.websocket_upstreams import WebSocketUpstream, connect

FORM = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--x--\r\n'
CHAT = {"usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}}
INPUT_OUTPUT = {"usage": {"input_tokens": 5, "output_tokens": 7}}
GOOGLE = {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 7}}
# Of each API that a path is of: the answer, and the model that the record names.
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (CHAT, "m"),
    "/v1/completions": (CHAT, "m"),
    "/v1/responses": (INPUT_OUTPUT, "m"),
    "/v1/messages": (INPUT_OUTPUT, "m"),
    "/v1beta/models/m:generateContent": (GOOGLE, "m"),
    "/v1/images/generations": (INPUT_OUTPUT, "m"),
    "/v1/moderations": (CHAT, "m"),
    "/v1/embeddings": (CHAT, "m"),
    "/v1/audio/speech": (INPUT_OUTPUT, "m"),
    "/v1/audio/transcriptions": (INPUT_OUTPUT, "whisper-1"),
    "/v1/images/edits": (INPUT_OUTPUT, "whisper-1"),
    "/v1/rerank": (INPUT_OUTPUT, "m"),
    "/v1beta/models/imagen:predict": (INPUT_OUTPUT, "imagen"),
    "/v1/models/m/infer": (INPUT_OUTPUT, ""),
}
FORMS = ("/v1/audio/transcriptions", "/v1/images/edits")
IDLE = (
    "/v1/files",
    "/v1/batches",
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
    "/v1beta/models/m:countTokens",
)


def test_case_11_every_path_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the tokens that its reply tells, also where the request is not read. What no model works for is not."""
    folder = tmp_path / "ledger"

    async def answer(call: Call) -> None:
        told, _ = ASKED.get(call.target.partition("?")[0], (CHAT, ""))
        await call.reply(200, JSON, json.dumps(told).encode())

    with RecordingUpstream() as upstream, upstream.playing(answer):
        entry = {"name": "one", "origin": upstream.upstream.url}
        with routed({"upstreams": [entry]}, ledger=str(folder), paths="/v1,/v1beta") as velox:
            for path in (*ASKED, *IDLE):
                form = {"content-type": "multipart/form-data; boundary=x"} if path in FORMS else {}
                body = FORM if path in FORMS else b'{"model":"m","messages":[],"input":"x"}'
                assert velox.request("POST", path, body, form).status == 200, path
            assert velox.request("GET", "/v1/responses/resp_1").status == 200

    rows = usage(folder, capsys, "--calls")
    assert [(row["model"], row["input_tokens"], row["output_tokens"], row["flags"]) for row in rows] == [
        (model, 5, 7, "") for _, model in ASKED.values()
    ]


def test_case_11_websocket_is_recorded_with_what_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row for its whole time: its messages pass unread, so its tokens and cost are unknown, and not 0."""
    folder = tmp_path / "ledger"
    with WebSocketUpstream() as echo:
        entry = {"name": "one", "origin": echo.url}
        with routed({"upstreams": [entry]}, ledger=str(folder)) as velox:
            with connect(velox, "/v1/realtime?model=gpt-realtime") as ws:
                ws.send("hello")
                assert ws.recv() == "hello"
            until(lambda: n_kept(folder) == 1, "it is kept")

    (row,) = usage(folder, capsys, "--calls")
    assert (row["model"], row["upstream"], row["status"]) == ("gpt-realtime", "one", 101)
    assert (row["input_tokens"], row["output_tokens"], row["cost_usd"]) == (None, None, None)
    assert row["flags"] == "stream|estimated"
    (day,) = usage(folder, capsys)
    assert (day["calls"], day["unpriced"]) == (1, 1)


def test_case_11_copy_of_a_mirror_is_recorded_beside_its_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As attempt 0 of the same request, with its own tokens."""
    folder = tmp_path / "ledger"

    async def answer(call: Call) -> None:
        await call.reply(200, JSON, b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}}')

    with named("one", one="--ttft 0 --token-rate 0") as sims, RecordingUpstream() as shadow, shadow.playing(answer):
        upstreams = [sims["one"], {"name": "shadow", "origin": shadow.upstream.url}]
        route = {"name": "all", "to": "one", "mirror": {"to": "shadow", "percent": 100}}
        with routed({"upstreams": upstreams, "routes": [route]}, ledger=str(folder)) as velox:
            assert velox.request("POST", "/v1/chat/completions", b'{"model":"m","messages":[]}').status == 200
            until(lambda: n_kept(folder) == 2, "both are kept")

    copied, own = sorted(usage(folder, capsys, "--calls"), key=lambda row: row["attempt"])
    assert (copied["id"], copied["attempt"], copied["upstream"], copied["flags"]) == (own["id"], 0, "shadow", "mirror")
    assert copied["key"] == "(mirror)" and copied["team"] == ""
    assert (copied["input_tokens"], copied["output_tokens"]) == (5, 9)
    assert (own["attempt"], own["upstream"], own["flags"]) == (1, "one", "")


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")
def test_case_11_each_turn_of_a_responses_socket_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where Velox answers the WebSocket itself each message is a request, with its own row and tokens."""
    folder = tmp_path / "ledger"
    with named("one", one="--ttft 0 --token-rate 0 --tokens 6") as sims:
        entry = {"name": "one", "provider": "anthropic", "origin": sims["one"]["origin"], "key": "env:MODEL_KEY"}
        config = {"upstreams": [entry]}
        with routed(config, MODEL_KEY="sk-model-0123456789", ledger=str(folder)) as velox:
            told = []
            with velox.openai().responses.connect() as connection:
                for _ in range(2):
                    connection.response.create(model="claude-sim", input="hi", store=False)
                    while (event := connection.recv()).type != "response.completed":
                        pass
                    told.append(event.response.usage)

    rows = usage(folder, capsys, "--calls")
    assert [(row["model"], row["status"], row["flags"]) for row in rows] == [("claude-sim", 200, "stream")] * 2
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [
        (each.input_tokens, each.output_tokens) for each in told if each is not None
    ]
