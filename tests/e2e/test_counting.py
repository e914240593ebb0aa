"""Counting tokens, and Claude in the wire wrappers of Vertex and Bedrock: real SDKs and gateway, recorded answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import anthropic
import httpx
import pytest
from google import genai

from tests.e2e.bedrock_frames import FRAMES, frame, frames
from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.test_claude import PLAIN, STREAM
from tests.e2e.test_translation import replays
from tests.unit.dialects.converse_shapes import faults
from tests.untrusting import NO_TRUST


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway with Claude at three places, Gemini, and a server that has Chat only."""
    origin = upstream.upstream.url
    keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret-example", "ANY_KEY": "key-0123456789"}
    names = {"vertex": {"project": "p1", "location": "eu"}, "bedrock": {"region": "eu-central-1"}}
    upstreams = [
        {"name": "vertex", "provider": "vertex", "origin": origin, "key": "env:ANY_KEY", **names["vertex"]},
        {"name": "bedrock", "provider": "bedrock", "origin": origin, **names["bedrock"]},
        {"name": "anthropic", "provider": "anthropic", "origin": origin, "key": "env:ANY_KEY"},
        {"name": "gemini", "provider": "gemini", "origin": origin, "key": "env:ANY_KEY"},
        {"name": "mistral", "provider": "mistral", "origin": origin, "key": "env:ANY_KEY"},
    ]
    routes = [
        {"name": name, "match": {"models": [f"{name}-*"]}, "to": name, "model": model}
        for name, model in {
            "vertex": "claude-sonnet-5",
            "bedrock": "eu.anthropic.claude-sonnet-5-v1:0",
            "anthropic": "claude-sonnet-5",
            "gemini": "gemini-3-pro",
            "mistral": "mistral-large",
        }.items()
    ]
    routes.append({"name": "v", "match": {"models": ["vertexai-*"]}, "to": "vertex", "model": "gemini-3-pro"})
    routes.append({"name": "ids", "match": {"models": ["eu.anthropic.*"]}, "to": "bedrock"})
    with routed({"upstreams": upstreams, "routes": routes}, **keys) as running:
        upstream.forget()
        yield running


@pytest.fixture
def client(velox: VeloxProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=velox.base_url,
        api_key="sk-ant-client",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0),
    ) as made:
        yield made


def say(client: anthropic.Anthropic, model: str) -> anthropic.types.Message:
    with client.messages.stream(
        model=model,
        max_tokens=99,
        messages=[{"role": "user", "content": "hi"}],
        extra_headers={"anthropic-beta": "context-1m-2025-08-07,unknown-beta"},
    ) as stream:
        return stream.get_final_message()


def test_claude_on_vertex_stays_messages(client: anthropic.Anthropic, upstream: RecordingUpstream) -> None:
    """Pitfall 43: the body changes at its top level, the path names the model, the stream passes as it came."""
    with upstream.playing(replays(PLAIN, STREAM)):
        message = client.messages.create(model="vertex-c", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
        streamed = say(client, "vertex-c")

    assert message.content and streamed.stop_reason == "end_turn"
    plain, stream = upstream.calls[-2:]
    place = "/v1/projects/p1/locations/eu/publishers/anthropic/models/claude-sonnet-5"
    assert (plain.target, stream.target) == (f"{place}:rawPredict", f"{place}:streamRawPredict")
    sent = json.loads(plain.body)
    assert "model" not in sent and sent["anthropic_version"] == "vertex-2023-10-16"
    assert plain.header("authorization") == "Bearer key-0123456789" and plain.header("x-api-key") is None
    # Vertex answers 400 to a beta that it does not know, and Claude Code sends many.
    assert (plain.header("anthropic-beta"), stream.header("anthropic-beta")) == (None, "context-1m-2025-08-07")


def test_claude_on_bedrock_is_taken_out_of_its_frames(client: anthropic.Anthropic, upstream: RecordingUpstream) -> None:
    """The SDK reads the events as Anthropic sent them; an unknown beta is left out, as Bedrock refuses it."""

    async def invoke(call: Call) -> None:
        await call.reply(200, FRAMES, frames(STREAM.reply))

    with upstream.playing(invoke):
        message = say(client, "bedrock-c")

    assert message.stop_reason == "end_turn" and message.usage.output_tokens
    call = upstream.calls[-1]
    assert call.target == "/model/eu.anthropic.claude-sonnet-5-v1%3A0/invoke-with-response-stream"
    sent = json.loads(call.body)
    assert "model" not in sent and "stream" not in sent
    assert (sent["anthropic_version"], sent["anthropic_beta"]) == ("bedrock-2023-05-31", ["context-1m-2025-08-07"])
    assert (call.header("authorization") or "").startswith("AWS4-HMAC-SHA256 ")


def test_exception_among_the_frames_is_an_error(client: anthropic.Anthropic, upstream: RecordingUpstream) -> None:
    """Before the first event it has a status of its own."""

    async def throttle(call: Call) -> None:
        await call.reply(200, FRAMES, frame("exception", "throttlingException", b'{"message":"Too many tokens"}'))

    with upstream.playing(throttle), pytest.raises(anthropic.RateLimitError) as raised:
        client.with_options(max_retries=0).messages.create(
            model="bedrock-c",
            max_tokens=9,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            extra_headers={"x-request-timeout-ms": "3000"},
        )
    assert "Too many tokens" in str(raised.value)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_cut_frames_are_never_a_message(client: anthropic.Anthropic, upstream: RecordingUpstream, share: float) -> None:
    """The SDK raises, wherever it was cut."""
    whole = frames(STREAM.reply)

    async def cut(call: Call) -> None:
        await call.head(200, FRAMES)
        await call.data(whole[: int(len(whole) * share)])
        await call.drain()
        call.cut()

    with upstream.playing(cut), pytest.raises((anthropic.APIError, AssertionError)):
        say(client, "bedrock-c")


@pytest.mark.parametrize(
    ("model", "target", "reply"),
    [
        ("anthropic-c", "/v1/messages/count_tokens", b'{"input_tokens":12}'),
        ("gemini-c", "/v1beta/models/gemini-3-pro:countTokens", b'{"totalTokens":12}'),
    ],
)
def test_anthropic_client_counts_everywhere(
    client: anthropic.Anthropic, upstream: RecordingUpstream, model: str, target: str, reply: bytes
) -> None:
    """By the API of whoever has the model."""

    async def count(call: Call) -> None:
        await call.reply(200, JSON, reply)

    with upstream.playing(count):
        found = client.messages.count_tokens(model=model, messages=[{"role": "user", "content": "hi"}])
    assert found.input_tokens == 12
    assert upstream.calls[-1].target == target


def test_bedrock_counts_what_invoke_would_take(client: anthropic.Anthropic, upstream: RecordingUpstream) -> None:
    """The client's own body, by the model's own id: for inference profiles Bedrock does not count."""

    async def count(call: Call) -> None:
        await call.reply(200, JSON, b'{"inputTokens":12}')

    with upstream.playing(count):
        raw = client.messages.with_raw_response.count_tokens(
            model="bedrock-c",
            messages=[{"role": "user", "content": "hi"}],
            extra_headers={"anthropic-beta": "context-1m-2025-08-07,unknown-beta"},
        )
    assert raw.parse().input_tokens == 12
    assert "x-velox-estimated" not in raw.headers
    call = upstream.calls[-1]
    assert call.target == "/model/anthropic.claude-sonnet-5-v1%3A0/count-tokens"
    assert (call.header("authorization") or "").startswith("AWS4-HMAC-SHA256 ")
    assert json.loads(base64.b64decode(json.loads(call.body)["input"]["invokeModel"]["body"])) == {
        "anthropic_version": "bedrock-2023-05-31",
        "anthropic_beta": ["context-1m-2025-08-07"],
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": "hi"}],
    }
    assert raw.headers["x-velox-dropped"] == "anthropic-beta"


def test_google_client_counts_on_bedrock(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """By Converse's form of the request, which has the shape that botocore gives it."""

    async def count(call: Call) -> None:
        await call.reply(200, JSON, b'{"inputTokens":21}')

    google = genai.Client(api_key="gk", http_options=genai.types.HttpOptions(base_url=velox.base_url, timeout=20_000))
    with upstream.playing(count):
        found = google.models.count_tokens(model="bedrock-g", contents="hi")
    assert found.total_tokens == 21
    sent = json.loads(upstream.calls[-1].body)
    assert not faults({**sent, "modelId": "anthropic.claude-sonnet-5-v1:0"}, "CountTokensRequest")
    assert sent["input"]["converse"]["messages"] == [{"role": "user", "content": [{"text": "hi"}]}]


@pytest.mark.parametrize(
    ("model", "status", "name", "message"),
    [
        ("eu.anthropic.claude-a", 400, "ValidationException", "The provided model doesn't support counting tokens."),
        (
            "eu.anthropic.claude-b",
            403,
            "AccessDeniedException",
            "not authorized to perform: bedrock:CountTokens",
        ),
        ("eu.anthropic.claude-d", 404, "ResourceNotFoundException", "Not here"),
    ],
)
def test_where_bedrock_can_not_count_it_is_an_estimate(
    velox: VeloxProcess, upstream: RecordingUpstream, model: str, status: int, name: str, message: str
) -> None:
    """Marked so; and it is not asked again for that model for a while."""

    async def refuse(call: Call) -> None:
        await call.reply(status, (*JSON, ("x-amzn-errortype", name)), json.dumps({"message": message}).encode())

    body = {"model": model, "messages": [{"role": "user", "content": "hi there " * 40}]}
    with (
        upstream.playing(refuse),
        httpx.Client(verify=NO_TRUST, base_url=velox.base_url, trust_env=False, timeout=30.0) as http,
    ):
        replies = [http.post("/v1/messages/count_tokens", json=body) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 200]
    assert len({reply.text for reply in replies}) == 1 and 60 < replies[0].json()["input_tokens"] < 200
    assert {reply.headers.get("x-velox-estimated") for reply in replies} == {"input_tokens"}
    assert len([call for call in upstream.calls if f"/{model.removeprefix('eu.')}/" in call.target]) == 1


def test_bad_request_to_count_on_bedrock_stays_one(client: anthropic.Anthropic, upstream: RecordingUpstream) -> None:
    """An estimate would hide what is wrong with it."""

    async def refuse(call: Call) -> None:
        headers = (*JSON, ("x-amzn-errortype", "ValidationException"))
        await call.reply(400, headers, b'{"message":"tools.0: Input tag \'x\' found"}')

    with upstream.playing(refuse), pytest.raises(anthropic.BadRequestError, match="Input tag"):
        client.messages.count_tokens(model="eu.anthropic.claude-e", messages=[{"role": "user", "content": "hi"}])


def test_count_that_nobody_can_give_is_an_estimate(client: anthropic.Anthropic, upstream: RecordingUpstream) -> None:
    """Marked so, and nobody is asked; the next request passes."""
    n_calls = len(upstream.calls)
    text = "Hello, how are you? " * 40
    raw = client.messages.with_raw_response.count_tokens(
        model="mistral-x", messages=[{"role": "user", "content": text}]
    )

    assert raw.headers["x-velox-estimated"] == "input_tokens"
    assert 100 < raw.parse().input_tokens < 400
    assert len(upstream.calls) == n_calls


def test_google_client_counts_on_claude(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """In its own words."""

    async def count(call: Call) -> None:
        await call.reply(200, JSON, b'{"input_tokens":34}')

    options = genai.types.HttpOptions(base_url=velox.base_url, timeout=20_000)
    google = genai.Client(api_key="gk", http_options=options)
    with upstream.playing(count):
        found = google.models.count_tokens(model="anthropic-c", contents="hi")
    assert found.total_tokens == 34


@pytest.mark.parametrize(
    ("model", "target", "reply", "tokens"),
    [
        ("anthropic-c", "/v1/messages/count_tokens", b'{"input_tokens":34}', 34),
        ("gemini-c", "/v1beta/models/gemini-3-pro:countTokens", b'{"totalTokens":35}', 35),
        ("bedrock-c", "/model/anthropic.claude-sonnet-5-v1%3A0/count-tokens", b'{"inputTokens":36}', 36),
    ],
)
def test_openai_client_counts_everywhere(
    velox: VeloxProcess, upstream: RecordingUpstream, model: str, target: str, reply: bytes, tokens: int
) -> None:
    """Its path is routed by the model of its body, as that of its answers."""

    async def count(call: Call) -> None:
        await call.reply(200, JSON, reply)

    with upstream.playing(count):
        found = velox.openai().responses.input_tokens.count(model=model, input="hi")
    assert found.input_tokens == tokens
    assert upstream.calls[-1].target == target


def test_whole_request_of_google_names_the_model_that_is_asked(
    velox: VeloxProcess, upstream: RecordingUpstream
) -> None:
    """It repeats that of the path, which is an alias here. On Vertex there is no such field."""

    async def count(call: Call) -> None:
        await call.reply(200, JSON, b'{"totalTokens":5}')

    whole = {"contents": [{"parts": [{"text": "hi"}]}], "tools": [{"functionDeclarations": [{"name": "f"}]}]}
    with (
        upstream.playing(count),
        httpx.Client(verify=NO_TRUST, base_url=velox.base_url, trust_env=False, timeout=30.0) as http,
    ):
        for model in ("gemini-c", "vertexai-c"):
            body = {"generateContentRequest": {"model": f"models/{model}", **whole}}
            assert http.post(f"/v1beta/models/{model}:countTokens", json=body).json() == {"totalTokens": 5}
    studio, vertex = (json.loads(call.body) for call in upstream.calls[-2:])
    assert studio == {"generateContentRequest": {"model": "models/gemini-3-pro", **whole}}
    assert vertex == whole


def test_count_on_vertex_has_its_version(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """From whichever API it comes."""

    async def count(call: Call) -> None:
        await call.reply(200, JSON, b'{"input_tokens":5}')

    with upstream.playing(count):
        velox.openai().responses.input_tokens.count(model="vertex-c", input="hi")
    sent = json.loads(upstream.calls[-1].body)
    assert (sent["anthropic_version"], sent["model"]) == ("vertex-2023-10-16", "claude-sonnet-5")


def test_what_is_counted_is_not_spent(upstream: RecordingUpstream) -> None:
    """No tokens of a limit, in any API: agents count the whole conversation again and again."""

    async def count(call: Call) -> None:
        await call.reply(200, JSON, b'{"input_tokens":5000,"totalTokens":5000}')

    text = "hello there " * 500
    asked: dict[str, object] = {
        "/v1/messages/count_tokens": {"model": "anthropic-c", "messages": [{"role": "user", "content": text}]},
        "/v1/responses/input_tokens": {"model": "anthropic-c", "input": text},
        "/v1beta/models/anthropic-c:countTokens": {"contents": [{"parts": [{"text": text}]}]},
    }
    entry = {"name": "one", "provider": "anthropic", "origin": upstream.upstream.url, "key": "env:ANY_KEY"}
    with upstream.playing(count), routed({"upstreams": [entry]}, rate_limit_tpm="10000", ANY_KEY="k-0123") as velox:
        for path, body in asked.items():
            for _ in range(4):
                reply = httpx.post(velox.base_url + path, json=body, trust_env=False, timeout=30.0)
                assert (reply.status_code, reply.headers["x-ratelimit-remaining-tokens"]) == (200, "10000"), path
