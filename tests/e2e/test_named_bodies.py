"""Bodies that name a model at other places than a chat's: forms, rerank, videos, and those that name none.

Each is routed, renamed, limited, paid for and recorded by its model.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import routed
from tests.vendors import groq
from tests.vendors.vendor import playing
from velox.cli import main

Entry = dict[str, Any]
FORM = {"content-type": "multipart/form-data; boundary=b0undary"}
AUDIO = b"\0" * 1_500_000  # over a MiB: read in steps
USAGE = {"prompt_tokens": 15, "total_tokens": 20}


def form(*parts: tuple[str, bytes]) -> bytes:
    """Return a form of these, by the names of their fields; a `file` is one."""
    found = b""
    for name, text in parts:
        told = f'name="{name}"' + ('; filename="a.wav"' if name in ("file", "image", "input_reference") else "")
        found += f"--b0undary\r\nContent-Disposition: form-data; {told}\r\n\r\n".encode() + text + b"\r\n"
    return found + b"--b0undary--\r\n"


async def answer(call: Call) -> None:
    usage = {"type": "tokens", "input_tokens": 15, "output_tokens": 5, "total_tokens": 20}
    told = {"text": "hi", "usage": usage} if "audio" in call.target else {"results": [], "usage": USAGE}
    await call.reply(200, JSON, json.dumps(told).encode())


@contextlib.contextmanager
def two_upstreams(config: Mapping[str, object], **settings: str) -> Iterator[tuple[VeloxProcess, Entry]]:
    """Run a gateway with the upstreams `chat` and `other`, and this file."""
    with RecordingUpstream() as chat, RecordingUpstream() as other, chat.playing(answer), other.playing(answer):
        entries = [
            {"name": "chat", "origin": chat.upstream.url, "key": "env:MODEL_KEY"},
            {"name": "other", "origin": other.upstream.url, "key": "env:MODEL_KEY"},
        ]
        with routed({"upstreams": entries, **config}, MODEL_KEY="sk-model-0123456789", **settings) as velox:
            yield velox, {"chat": chat, "other": other}


ROUTES = [
    {"name": "alias", "match": {"models": ["whisper-1", "bge-*"]}, "to": "other", "model": "own-model"},
    {"name": "chat", "match": {"models": ["llama-*"]}, "to": "chat"},
]
FORMS = [
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/videos",
]
BODIES = [
    *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/v1/classify", "/v1/pooling", "/pooling", "/tokenize"),
    *("/v1/tokenize", "/detokenize", "/v1/ocr", "/v1/videos", "/v1/fine_tuning/jobs", "/v1/assistants"),
    *("/v1/threads/runs", "/v1/threads/thread_1/runs", "/v2/embed", "/v1/videos/generations"),
]


def test_form_takes_the_route_of_its_model_and_is_renamed() -> None:
    """C4: at each endpoint with forms, in either order, of any size."""
    with two_upstreams({"routes": ROUTES}) as (velox, upstreams):
        for path in FORMS:
            for parts in ((("model", b"whisper-1"), ("file", AUDIO)), (("file", AUDIO), ("model", b"whisper-1"))):
                assert velox.request("POST", path, form(*parts), FORM).status == 200
                renamed = [(name, b"own-model" if name == "model" else text) for name, text in parts]
                assert upstreams["other"].calls[-1].body == form(*renamed)
        assert upstreams["chat"].calls == []


def test_body_takes_the_route_of_its_model_and_is_renamed() -> None:
    """C5: at each endpoint that the table knows."""
    asked = {"model": "bge-reranker", "query": "q", "documents": ["a"], "own": 1}
    with two_upstreams({"routes": ROUTES}) as (velox, upstreams):
        for path in BODIES:
            assert velox.request("POST", path, json.dumps(asked).encode()).status == 200, path
            assert json.loads(upstreams["other"].calls[-1].body) == {**asked, "model": "own-model"}
        assert upstreams["chat"].calls == []


@pytest.mark.parametrize("names_model", [True, False])
def test_sdk_transcribes_at_a_strict_vendor(tmp_path: Path, names_model: bool) -> None:
    """C4, C38: OpenAI's SDK asks for OpenAI's model, or httpx for none, at Groq, which knows neither."""
    with RecordingUpstream(script=playing(groq.VENDOR)) as upstream:
        entry = {"name": "one", "provider": "groq", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        routes = [{"name": "sound", "to": "one", "model": "whisper-large-v3"}]
        with routed({"upstreams": [entry], "routes": routes}, MODEL_KEY="sk-model-0123456789") as velox:
            sound = ("a.wav", io.BytesIO(AUDIO), "audio/wav")
            if names_model:
                told = velox.openai().audio.transcriptions.create(
                    model="whisper-1", file=sound, response_format="verbose_json"
                )
                assert (told.text, told.duration) == ("Hello", 3.1)
            else:
                reply = httpx.post(f"{velox.base_url}/v1/audio/transcriptions", files={"file": sound})
                assert (reply.status_code, reply.json()["text"]) == (200, "Hello")


def test_models_of_upstreams_choose_where_a_form_goes() -> None:
    """C4: without routes no file is sent to an upstream that does not have the model."""
    with RecordingUpstream() as chat, RecordingUpstream() as sound, chat.playing(answer), sound.playing(answer):
        entries = [
            {"name": "chat", "origin": chat.upstream.url, "models": ["llama-*"]},
            {"name": "sound", "origin": sound.upstream.url, "models": ["whisper-1"]},
        ]
        with routed({"upstreams": entries}) as velox:
            for _ in range(4):
                body = form(("file", b"x"), ("model", b"whisper-1"))
                assert velox.request("POST", "/v1/audio/transcriptions", body, FORM).status == 200
        assert (len(chat.calls), len(sound.calls)) == (0, 4)


def test_budgets_and_records_have_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C5, C4: tokens of a rerank and of a transcription count under their model, before their budget is used up."""
    budgets = [{"per": "model", "models": ["bge-*", "whisper-1"], "tokens": 40, "window": "month"}]
    ledger = tmp_path / "ledger"
    with two_upstreams({"routes": ROUTES, "budgets": budgets}, ledger=str(ledger)) as (velox, _):
        rerank = json.dumps({"model": "bge-x", "query": "q", "documents": ["a"]}).encode()
        sound = form(("file", b"x"), ("model", b"whisper-1"))
        reranks = [velox.request("POST", "/v1/rerank", rerank).status for _ in range(4)]
        sounds = [velox.request("POST", "/v1/audio/transcriptions", sound, FORM).status for _ in range(3)]
    assert (reranks, sounds) == ([200, 200, 429, 429], [200, 200, 429])
    capsys.readouterr()
    environ = {"VELOX_LEDGER": str(ledger), "VELOX_API_KEYS": KEY}
    assert main(["usage", "--format", "jsonl", "--by", "model"], environ) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["model"]: row["calls"] for row in rows} == {"bge-x": 2, "whisper-1": 2}


def test_limits_count_by_the_model_of_a_form() -> None:
    """C4: requests of a form count where those of its model do."""
    limits = [{"per": "model", "models": ["whisper-1"], "rpm": 60, "burst": 2}]
    with two_upstreams({"routes": ROUTES, "limits": limits}, rate_limit_max_wait="0") as (velox, _):
        body = form(("file", b"x"), ("model", b"whisper-1"))
        assert [velox.request("POST", FORMS[0], body, FORM).status for _ in range(3)] == [200, 200, 429]


def test_body_without_model_gets_that_of_its_route(tmp_path: Path) -> None:
    """C38: at each endpoint that needs one, in a form, too; its calls count under it. A moderation keeps its own."""
    routes = [{"name": "all", "to": "chat", "model": "gpt-5.2"}]
    budgets = [{"per": "model", "models": ["gpt-5.2"], "tokens": 60, "window": "month"}]
    with two_upstreams({"routes": routes, "budgets": budgets}, ledger=str(tmp_path)) as (velox, upstreams):
        calls = upstreams["chat"].calls
        assert velox.request("POST", "/v1/moderations", b'{"input": "x"}').status == 200
        assert velox.request("POST", "/v1/threads/t/messages", b'{"role": "user"}').status == 200
        assert velox.request("POST", "/v1/videos", form(("prompt", b"x")), FORM).status == 200
        assert velox.request("POST", "/v1/embeddings", b' { "input": "x"}').status == 200
        assert velox.request("POST", "/v1/embeddings", b"{}").status == 200
        assert velox.request("POST", "/v1/embeddings", b'{"input": "x"}').status == 429
        assert [call.body for call in calls] == [
            b'{"input": "x"}',
            b'{"role": "user"}',
            form(("model", b"gpt-5.2"), ("prompt", b"x")),
            b' {"model":"gpt-5.2", "input": "x"}',
            b'{"model":"gpt-5.2"}',
        ]


@pytest.mark.parametrize(
    ("path", "body", "headers", "text"),
    [
        ("/v1/rerank", b"{}", {}, "names no model"),
        (FORMS[0], form(("file", b"x")), FORM, "names no model"),
        ("/v1/things", b"{}", {}, "no model is read from its requests"),
    ],
)
def test_refusal_says_why_there_is_no_route(path: str, body: bytes, headers: dict[str, str], text: str) -> None:
    """N5: it does not say of a body that was not read that it names no model."""
    with two_upstreams({"routes": ROUTES}) as (velox, _):
        reply = velox.request("POST", path, body, headers)

        assert (reply.status, text in json.loads(reply.body)["error"]["message"]) == (404, True)


@pytest.mark.parametrize("provider", ["anthropic", "gemini", "vertex", "bedrock"])
def test_provider_without_completions_is_not_asked(provider: str) -> None:
    """C50, C57: the same clear 404 for all, in OpenAI's shape; nor for the management of LiteLLM."""
    own: Entry = {"vertex": {"project": "p", "location": "l"}, "bedrock": {"region": "us-east-1"}}.get(provider, {})
    with RecordingUpstream() as upstream:
        entry = {"name": "one", "provider": provider, "origin": upstream.upstream.url, "key": "env:MODEL_KEY", **own}
        with routed({"upstreams": [entry]}, MODEL_KEY="sk-model-0123456789") as velox:
            upstream.forget()
            completions = velox.request("POST", "/v1/completions", b'{"model": "m", "prompt": "x"}')
            management = velox.request("GET", "/key/info")
            assert (completions.status, management.status) == (404, 404)
            assert "has no API for this path" in json.loads(completions.body)["error"]["message"]
        assert upstream.calls == []


def test_tokens_of_a_conversation_are_counted_without_a_model() -> None:
    """RS4: what is counted has its model already."""
    with RecordingUpstream() as upstream, upstream.playing(answer):
        entry = {"name": "one", "provider": "openai", "origin": upstream.upstream.url, "key": "env:MODEL_KEY"}
        with routed({"upstreams": [entry]}, MODEL_KEY="sk-model-0123456789") as velox:
            body = b'{"previous_response_id": "resp_1", "input": "x"}'
            assert velox.request("POST", "/v1/responses/input_tokens", body).status == 200
            (call,) = upstream.calls
            assert (call.target, call.body) == ("/v1/responses/input_tokens", body)


def test_gemini_clients_may_leave_models_out_of_the_path() -> None:
    """RC7: `/v1beta/NAME:generateContent`, as Google's SDK for JavaScript and the AI SDK write names with a slash."""
    with RecordingUpstream() as upstream:

        async def said(call: Call) -> None:
            told = {"choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
            await call.reply(200, JSON, json.dumps({"id": "c", "model": "qwen3", **told}).encode())

        entry = {"name": "vllm", "provider": "vllm", "origin": upstream.upstream.url}
        route = {"name": "r", "match": {"models": ["vllm/*"]}, "to": {"upstream": "vllm", "strip": "vllm/"}}
        with routed({"upstreams": [entry], "routes": [route]}) as velox, upstream.playing(said):
            asked = json.dumps({"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}).encode()
            reply = velox.request("POST", "/v1beta/vllm/qwen3:generateContent", asked)
            assert json.loads(reply.body)["candidates"][0]["content"]["parts"] == [{"text": "Hi"}]
            assert json.loads(upstream.calls[0].body)["model"] == "qwen3"


WHISPER = """
model_list:
  - model_name: whisper
    litellm_params: {model: groq/whisper-large-v3, api_key: os.environ/GROQ_API_KEY}
    model_info: {mode: audio_transcription}
"""


def test_imported_model_of_a_form_is_served_and_check_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U2: what the import makes of a transcription works, and `velox check` tells the truth of it."""
    old, new = tmp_path / "litellm.yaml", tmp_path / "velox.yaml"
    old.write_text(WHISPER)
    assert main(["import", "litellm", str(old), "-o", str(new)], {}) == 0
    config = yaml.safe_load(new.read_text())
    with RecordingUpstream() as groq, groq.playing(answer):
        config["upstreams"][0]["origin"] = groq.upstream.url
        new.write_text(yaml.safe_dump(config))
        environ = {"VELOX_CONFIG": str(new), "GROQ_API_KEY": "sk-groq-0123456789", "VELOX_API_KEYS": KEY}
        capsys.readouterr()
        told = {}
        for path in (FORMS[0], "/v1/files"):
            code = main(["check", "--config", str(new), "--model", "whisper", "--path", path], environ)
            told[path] = (code, capsys.readouterr().out)
        assert told[FORMS[0]][0] == 0 and told[FORMS[0]][1].endswith("forwarded\n")
        assert told["/v1/files"][0] == 1 and "none is read from requests of this path" in told["/v1/files"][1]
        assert "refused with 404 unknown_route" in told["/v1/files"][1]
        with VeloxProcess({**environ, "VELOX_WORKERS": "1"}) as velox:
            body = form(("file", b"x"), ("model", b"whisper"))
            assert velox.request("POST", FORMS[0], body, {**FORM, "authorization": f"Bearer {KEY}"}).status == 200
        assert groq.calls[-1].body == form(("file", b"x"), ("model", b"whisper-large-v3"))


def test_check_knows_which_paths_a_provider_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C50, U2: it says of a path what the gateway would."""
    path = tmp_path / "velox.yaml"
    path.write_text(yaml.safe_dump({"upstreams": [{"name": "one", "provider": "anthropic", "key": "env:MODEL_KEY"}]}))
    environ = {"MODEL_KEY": "sk-model-0123456789"}
    codes = {
        each: main(["check", "--config", str(path), "--model", "m", "--path", each], environ)
        for each in ("/v1/completions", "/v1/rerank", "/v1/messages", "/v1/chat/completions", "/v1/messages/batches")
    }
    capsys.readouterr()
    assert list(codes.values()) == [1, 1, 0, 0, 0]


def test_check_shows_the_model_that_a_route_puts_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C38, U2: and the limits that count it."""
    path = tmp_path / "velox.yaml"
    config = {
        "upstreams": [{"name": "one", "origin": "http://127.0.0.1:9"}],
        "routes": [{"name": "all", "to": "one", "model": "gpt-5.2"}],
        "limits": [{"per": "model", "models": ["gpt-5.2"], "rpm": 60}],
    }
    path.write_text(yaml.safe_dump(config))
    capsys.readouterr()
    assert main(["check", "--config", str(path), "--path", "/v1/embeddings"], {}) == 0
    told = capsys.readouterr().out
    assert "model gpt-5.2: that of the route" in told and "limits[0]" in told


def line(model: str, url: str = "/v1/chat/completions") -> bytes:
    return json.dumps(
        {"custom_id": "1", "method": "POST", "url": url, "body": {"model": model, "messages": []}}
    ).encode()


def test_line_of_a_batch_whose_model_is_mapped_is_refused() -> None:
    """C54: it would run as the client calls it, and not as the route has it. What goes elsewhere, or by its own name,
    passes."""
    routes = [
        {"name": "mini", "match": {"models": ["gpt-4o"]}, "to": {"upstream": "chat", "model": "gpt-4o-mini"}},
        {"name": "other", "match": {"models": ["far"]}, "to": {"upstream": "other", "model": "near"}},
        {"name": "files", "match": {"paths": ["/v1/files", "/v1/messages/batches"]}, "to": "chat"},
    ]
    with two_upstreams({"routes": routes}) as (velox, upstreams):

        def upload(purpose: bytes, *lines: bytes) -> int:
            body = form(("purpose", purpose), ("file", b"\n".join(lines)))
            return velox.request("POST", "/v1/files", body, FORM).status

        assert upload(b"batch", line("gpt-4o-mini"), line("far"), b"", b"no JSON") == 200
        assert upload(b"assistants", line("gpt-4o")) == 200
        n_sent = len(upstreams["chat"].calls)
        assert upload(b"batch", line("gpt-4o-mini"), line("gpt-4o")) == 400
        assert upload(b"batch", *[line("gpt-4o-mini")] * 15_000, line("gpt-4o")) == 400
        long = json.loads(line("gpt-4o")) | {"text": "a word " * 60_000}
        assert upload(b"batch", line("gpt-4o-mini"), json.dumps(long).encode()) == 400
        each = {"custom_id": "1", "params": {"model": "gpt-4o-mini", "metadata": {"x": "y"}}}
        other = {"custom_id": "1", "params": {"model": "gpt-4o"}}
        many = json.dumps({"requests": [each] * 20_000 + [other]}).encode()
        reply = velox.request("POST", "/v1/messages/batches", many)
        assert reply.status == 400 and b"line 20001 names gpt-4o" in reply.body
        crowd = {f"k{n}": n for n in range(600)}
        for hidden in (
            b'{"x":{"requests":[]},' + many[1:],
            b'{"requests":[],' + many[1:],
            many.replace(b'"requests"', b'"\\u0072equests"', 1),
            json.dumps({**crowd, "requests": [each] * 20_000 + [other]}).encode(),
            json.dumps({"requests": [{**each, **crowd}, *[each] * 20_000, other]}).encode(),
        ):
            assert velox.request("POST", "/v1/messages/batches", hidden).status == 400
        batch = {"requests": [{"custom_id": "1", "params": {"model": "gpt-4o"}}]}
        reply = velox.request("POST", "/v1/messages/batches", json.dumps(batch).encode())
        assert (reply.status, "name gpt-4o-mini in it" in json.loads(reply.body)["error"]["message"]) == (400, True)
        assert len(upstreams["chat"].calls) == n_sent
        good = json.dumps({"x": ["]"], "requests": [each] * 20_000, "y": [other]}).encode()
        assert velox.request("POST", "/v1/messages/batches", good).status == 200
