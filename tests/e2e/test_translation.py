"""Clients of one API on models of another: real SDKs, a real gateway, upstreams that replay recorded answers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from google import genai
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from tests.e2e.harness import KEY, VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream, Script
from tests.e2e.routed import MESSAGES, routed
from tests.e2e.upstreams import chat_chunk
from tests.recorded import Exchange, recorded
from tests.untrusting import NO_TRUST

GEMINI_KEY = "gk-0123456789"
PLAIN = next(e for e in recorded("gemini", ":generateContent", stream=False) if "text" in e.reply.decode())
TOOLS = next(e for e in recorded("gemini", ":generateContent", stream=False) if b'"functionCall"' in e.reply)
STREAM = next(e for e in recorded("gemini", ":streamGenerateContent", stream=True) if e.name.endswith("model_stream#0"))
CHAT = next(e for e in recorded("openai", "/chat/completions", stream=False) if b'"tool_calls"' not in e.reply)
CHAT_STREAM = next(e for e in recorded("openai", "/chat/completions", stream=True) if b'"content":"' in e.reply)
ERROR = b'data: {"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}\n\n'


def replays(plain: Exchange, stream: Exchange) -> Script:
    """Answer as the recorded upstream did."""

    async def answer(call: Call) -> None:
        if "stream" in call.target or b'"stream":true' in call.body.replace(b" ", b""):
            await call.reply(200, SSE, stream.reply)
        else:
            await call.reply(200, JSON, plain.reply)

    return answer


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def other() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream, other: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway with a Gemini upstream, and one with OpenAI's API that stands in for it."""
    config = {
        "upstreams": [
            {"name": "gemini", "provider": "gemini", "origin": upstream.upstream.url, "key": "env:GEMINI_KEY"},
            {"name": "openai", "provider": "openai", "origin": other.upstream.url, "key": "env:OTHER_KEY"},
        ],
        "routes": [
            {"name": "strict", "match": {"models": ["strict"]}, "to": "gemini", "model": "gemini-x", "strict": True},
            {"name": "gpt", "match": {"models": ["gpt-*"]}, "to": "openai"},
            {"name": "rest", "to": "gemini", "fallback": [{"upstream": "openai", "model": "gpt-4o"}]},
        ],
    }
    with routed(config, GEMINI_KEY=GEMINI_KEY, OTHER_KEY="sk-other-0123") as running:
        upstream.forget()
        other.forget()
        yield running


@pytest.fixture
def google(velox: VeloxProcess) -> genai.Client:
    """Google's SDK, pointed at the gateway."""
    options = genai.types.HttpOptions(base_url=velox.base_url, timeout=20_000)
    return genai.Client(api_key="gk-client", http_options=options)


def text_of(exchange: Exchange) -> str:
    """Return the text of a recorded Gemini reply."""
    bodies = [exchange.reply]
    if exchange.is_stream:
        bodies = [line[6:] for line in exchange.reply.splitlines() if line.startswith(b"data: ")]
    parts = [
        part
        for body in bodies
        for candidate in json.loads(body).get("candidates", ())
        for part in candidate.get("content", {}).get("parts", ())
    ]
    return "".join(part.get("text", "") for part in parts if not part.get("thought"))


def test_openai_client_gets_a_gemini_answer(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """The SDK sees a chat completion; the upstream a request of its own API with its own key, and nothing else."""
    with upstream.playing(replays(PLAIN, STREAM)):
        raw = velox.openai().chat.completions.with_raw_response.create(
            model="gemini-2.5-flash", messages=MESSAGES, seed=3, logit_bias={"7": 1}, temperature=0.5
        )

    answer, call = raw.parse(), upstream.calls[-1]
    assert answer.choices[0].message.content == text_of(PLAIN)
    assert answer.usage is not None and answer.usage.prompt_tokens > 0
    assert raw.headers["x-velox-dropped"] == "logit_bias"
    assert raw.headers["x-velox-upstream"] == "gemini"
    assert call.target == "/v1beta/models/gemini-2.5-flash:generateContent"
    assert (call.header("x-goog-api-key"), call.header("authorization")) == (GEMINI_KEY, None)
    assert not any(name.startswith("x-stainless") for name, _ in call.headers)
    sent = json.loads(call.body)
    assert sent["contents"] == [{"role": "user", "parts": [{"text": MESSAGES[0]["content"]}]}]
    assert sent["generationConfig"] == {"temperature": 0.5, "seed": 3}


def test_openai_client_gets_a_gemini_stream(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Event by event, with usage only where it is asked for."""
    with upstream.playing(replays(PLAIN, STREAM)):
        create = velox.openai().chat.completions.create
        chunks = list(create(model="gemini-2.5-flash", messages=MESSAGES, stream=True))
        options = openai.types.chat.ChatCompletionStreamOptionsParam(include_usage=True)
        with_usage = list(create(model="gemini-2.5-flash", messages=MESSAGES, stream=True, stream_options=options))

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text_of(STREAM)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [chunk.usage is not None for chunk in with_usage] == [False] * (len(with_usage) - 1) + [True]
    assert upstream.calls[-1].target.endswith(":streamGenerateContent?alt=sse")


def test_openai_client_calls_a_tool_of_a_gemini_model(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Arguments are text, as OpenAI's are; a stop with a call is a call."""
    with upstream.playing(replays(TOOLS, STREAM)):
        answer = velox.openai().chat.completions.create(model="gemini-2.5-flash", messages=MESSAGES)

    calls = [
        part["functionCall"]
        for part in json.loads(TOOLS.reply)["candidates"][0]["content"]["parts"]
        if "functionCall" in part
    ]
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
    for call, theirs in zip(choice.message.tool_calls, calls, strict=True):
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        assert (call.function.name, json.loads(call.function.arguments)) == (theirs["name"], theirs["args"])


def test_gemini_client_on_an_openai_model(google: genai.Client, other: RecordingUpstream) -> None:
    """Google's SDK reads what an OpenAI upstream has said."""
    with other.playing(replays(CHAT, CHAT_STREAM)):
        answer = google.models.generate_content(model="gpt-4o", contents="hi")
        parts = list(google.models.generate_content_stream(model="gpt-4o", contents="hi"))

    assert answer.text == json.loads(CHAT.reply)["choices"][0]["message"]["content"]
    assert answer.usage_metadata is not None and answer.usage_metadata.prompt_token_count
    said = [
        chunk["choices"][0]["delta"].get("content") or ""
        for line in CHAT_STREAM.reply.splitlines()
        if line.startswith(b"data: {") and (chunk := json.loads(line[6:]))["choices"]
    ]
    assert "".join(part.text or "" for part in parts) == "".join(said)
    call = other.calls[-1]
    assert call.target == "/v1/chat/completions"
    assert call.header("authorization") == "Bearer sk-other-0123" and call.header("x-goog-api-key") is None


def test_stream_that_asks_for_no_events_is_an_array(velox: VeloxProcess, other: RecordingUpstream) -> None:
    """As Google's own, in pieces; one that is cut is no JSON."""

    async def says(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(chat_chunk("first") + chat_chunk("last") + chat_chunk("", "stop"))
        await call.data(b"data: [DONE]\n\n")
        await call.end()

    async def cut(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(chat_chunk("first"))
        await call.drain()
        call.cut()

    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    url = f"{velox.base_url}/v1beta/models/gpt-4o:streamGenerateContent"
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(verify=NO_TRUST, timeout=20, headers=headers) as client:
        with other.playing(says):
            reply = client.post(url, json=body)
        with other.playing(cut), client.stream("POST", url, json=body) as broken:
            received = b""
            with contextlib.suppress(httpx.RemoteProtocolError):
                for piece in broken.iter_raw():
                    received += piece

    assert reply.headers["content-type"] == "application/json"
    items = reply.json()
    texts = [part.get("text", "") for item in items for part in item["candidates"][0]["content"]["parts"]]
    assert "".join(texts) == "firstlast"
    assert [item["candidates"][0].get("finishReason") for item in items][-1] == "STOP"
    assert b"first" in received and b'"error"' in received and b"finishReason" not in received
    with pytest.raises(ValueError):
        json.loads(received)


def test_gemini_client_on_a_gemini_model_passes_as_it_came(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """The same API: bytes up and bytes down, with our key for the client's."""
    body = b'{"contents":[{"role":"user","parts":[{"text":"hi"}]}], "unknownField": {"a": 1.50}}'
    with upstream.playing(replays(PLAIN, STREAM)):
        reply = velox.request(
            "POST", "/v1beta/models/gemini-2.5-flash:generateContent", body, {"x-goog-api-key": "gk-client"}
        )

    assert (reply.status, reply.body) == (200, PLAIN.reply)
    assert upstream.calls[-1].body == body
    assert upstream.calls[-1].header("x-goog-api-key") == GEMINI_KEY


def test_error_inside_a_stream_of_200_leads_to_the_fallback(
    velox: VeloxProcess, upstream: RecordingUpstream, other: RecordingUpstream
) -> None:
    """The head was held: the client gets the whole answer of another provider, and learns why."""

    async def overloaded(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(ERROR)
        await call.end()

    with upstream.playing(overloaded), other.playing(replays(CHAT, CHAT_STREAM)):
        raw = velox.openai().chat.completions.with_raw_response.create(
            model="gemini-2.5-flash", messages=MESSAGES, stream=True
        )
        chunks = list(raw.parse())

    assert raw.headers["x-velox-upstream"] == "openai"
    assert "gemini=503" in raw.headers["x-velox-tried"]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert json.loads(other.calls[-1].body)["model"] == "gpt-4o"


def test_stream_that_ends_before_its_first_event_leads_to_the_fallback(
    velox: VeloxProcess, upstream: RecordingUpstream, other: RecordingUpstream
) -> None:
    """The client has seen nothing of it."""

    async def empty(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(b": nothing\n\n")
        await call.end()

    with upstream.playing(empty), other.playing(replays(CHAT, CHAT_STREAM)):
        create = velox.openai().chat.completions.with_raw_response.create
        raw = create(model="gemini-2.5-flash", messages=MESSAGES, stream=True)
        list(raw.parse())

    assert "gemini=upstream_truncated" in raw.headers["x-velox-tried"]


def test_error_of_the_upstream_is_one_of_the_client(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Its status and words, in OpenAI's shape."""

    async def refuse(call: Call) -> None:
        body = b'{"error":{"code":400,"message":"bad schema","status":"INVALID_ARGUMENT"}}'
        await call.reply(400, JSON, body)

    with upstream.playing(refuse), pytest.raises(openai.BadRequestError) as raised:
        velox.openai().chat.completions.create(model="gemini-2.5-flash", messages=MESSAGES)

    assert "bad schema" in raised.value.message
    assert raised.value.type == "invalid_request_error"


def test_error_of_velox_has_the_shape_of_a_gemini_client(google: genai.Client, other: RecordingUpstream) -> None:
    """Google's SDK raises its own class, with our words; nothing is sent."""
    n_calls = len(other.calls)
    config = genai.types.GenerateContentConfig(candidate_count=3)
    with pytest.raises(genai.errors.ClientError) as raised:
        google.models.generate_content(model="gpt-4o", contents="hi", config=config)

    assert raised.value.code == 400 and raised.value.status == "INVALID_ARGUMENT"
    assert len(other.calls) == n_calls


@pytest.mark.parametrize("cut_after", ["prelude", "event"])
def test_cut_stream_is_never_a_finish(velox: VeloxProcess, upstream: RecordingUpstream, cut_after: str) -> None:
    """Before the first event it is an error with a status; after it the SDK raises, and sees no finish reason."""
    events = STREAM.reply.replace(b"\r\n", b"\n").split(b"\n\n")

    async def cut(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(b": wait\n\n" if cut_after == "prelude" else events[0] + b"\n\n")
        await call.drain()
        call.cut()

    with upstream.playing(cut):
        create = velox.openai().chat.completions.create
        with pytest.raises(openai.APIError) as raised:
            for chunk in create(model="strict", messages=MESSAGES, stream=True):
                assert not chunk.choices or chunk.choices[0].finish_reason is None
    assert (getattr(raised.value, "status_code", None) == 502) is (cut_after == "prelude")


def test_strict_route_refuses_what_would_be_dropped(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Nothing is sent, and the field is named."""
    n_calls = len(upstream.calls)
    with pytest.raises(openai.BadRequestError) as raised:
        velox.openai().chat.completions.create(model="strict", messages=MESSAGES, logit_bias={"7": 1})

    assert raised.value.param == "logit_bias"
    assert len(upstream.calls) == n_calls


def test_next_request_passes_after_a_client_left_mid_stream(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """The upstream's stream is closed, and nothing is left over."""
    first = STREAM.reply.replace(b"\r\n", b"\n").split(b"\n\n")[0] + b"\n\n"

    async def slow(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(first)
        await call.silence()

    with upstream.playing(slow):
        stream = velox.openai().chat.completions.create(model="strict", messages=MESSAGES, stream=True)
        next(iter(stream))
        stream.close()
        upstream.wait_left(upstream.wait_call())
    with upstream.playing(replays(PLAIN, STREAM)), contextlib.closing(velox.openai()) as client:
        answer = client.chat.completions.create(model="strict", messages=MESSAGES)
    assert answer.choices[0].message.content == text_of(PLAIN)


def test_translations_are_counted(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """By the two APIs, with the fields that were left out."""
    labels = '{client="chat",upstream="generate"}'
    before = velox.metrics()
    with upstream.playing(replays(PLAIN, STREAM)):
        velox.openai().chat.completions.create(model="gemini-x", messages=MESSAGES, logit_bias={"7": 1})

    for name in ("velox_translations_total", "velox_translation_dropped_fields_total"):
        wanted = before.get(name + labels, 0) + 1
        velox.wait_metric(name + labels, lambda n, wanted=wanted: n == wanted)


def test_gemini_client_embeds_with_an_openai_model(google: genai.Client, other: RecordingUpstream) -> None:
    """Google's SDK sends a batch, and reads the vectors."""

    async def embed(call: Call) -> None:
        vectors = [{"index": n, "embedding": [n, 0.5]} for n in range(len(json.loads(call.body)["input"]))]
        await call.reply(200, JSON, json.dumps({"object": "list", "data": vectors, "model": "m"}).encode())

    with other.playing(embed):
        found = google.models.embed_content(model="gpt-embed", contents=["a", "b"])

    assert found.embeddings is not None and [each.values for each in found.embeddings] == [[0.0, 0.5], [1.0, 0.5]]
    call = other.calls[-1]
    assert call.target == "/v1/embeddings"
    assert json.loads(call.body) == {"model": "gpt-embed", "input": ["a", "b"], "encoding_format": "float"}


def test_one_text_is_embedded_as_several_are(
    velox: VeloxProcess, upstream: RecordingUpstream, other: RecordingUpstream
) -> None:
    """`embedContent`, which other SDKs of Google's send: by an OpenAI model, and by an alias of Gemini's own."""

    async def embed(call: Call) -> None:
        told = (
            b'{"data":[{"index":0,"embedding":[0.5]}]}' if "v1/emb" in call.target else b'{"embedding":{"values":[2]}}'
        )
        await call.reply(200, JSON, told)

    body = {"content": {"parts": [{"text": "a"}]}, "outputDimensionality": 256}
    client = httpx.Client(
        verify=NO_TRUST, base_url=velox.base_url, headers={"x-goog-api-key": KEY}, trust_env=False, timeout=30.0
    )
    with upstream.playing(embed), other.playing(embed), client as http:
        translated = http.post("/v1beta/models/gpt-embed:embedContent", json=body)
        passed = http.post("/v1beta/models/strict:embedContent", json={"model": "models/strict", **body})

    assert translated.json() == {"embedding": {"values": [0.5]}}
    sent = {"model": "gpt-embed", "input": ["a"], "encoding_format": "float", "dimensions": 256}
    assert json.loads(other.calls[-1].body) == sent
    assert passed.json() == {"embedding": {"values": [2]}}
    assert upstream.calls[-1].target == "/v1beta/models/gemini-x:embedContent"
    assert json.loads(upstream.calls[-1].body) == {"model": "models/gemini-x", **body}


def test_alias_of_an_embedding_model_is_in_each_text(google: genai.Client, upstream: RecordingUpstream) -> None:
    """The path and the texts name the model that the upstream knows."""

    async def embed(call: Call) -> None:
        await call.reply(200, JSON, b'{"embeddings":[{"values":[0.5]}]}')

    with upstream.playing(embed):
        answer = google.models.embed_content(model="strict", contents="a")
    call = upstream.calls[-1]
    assert answer.embeddings is not None and answer.embeddings[0].values == [0.5]
    assert call.target == "/v1beta/models/gemini-x:batchEmbedContents"
    assert [each["model"] for each in json.loads(call.body)["requests"]] == ["models/gemini-x"]
    assert "model" not in json.loads(call.body)
