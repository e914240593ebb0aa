"""Bedrock: signed requests that botocore would sign in the same way, Converse in both directions, frames."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.auth
import botocore.awsrequest
import botocore.config
import botocore.credentials
import botocore.exceptions
import openai
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream, Script
from tests.e2e.routed import MESSAGES, routed
from tests.recorded import Exchange, recorded

ACCESS, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI-example", "session-token-example"
MODEL = "us.amazon.nova-micro-v1:0"
FRAMES = (("content-type", "application/vnd.amazon.eventstream"),)
PLAIN = next(e for e in recorded("bedrock", "/converse", stream=False) if b'"text"' in e.reply)
STREAM = next(e for e in recorded("bedrock", "/converse-stream", stream=True))


def replays(plain: Exchange, stream: Exchange) -> Script:
    async def answer(call: Call) -> None:
        if call.target.endswith("/converse-stream"):
            await call.reply(200, FRAMES, stream.reply)
        else:
            await call.reply(200, JSON, plain.reply)

    return answer


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway with AWS credentials in its environment."""
    entry = {"name": "bedrock", "provider": "bedrock", "region": "eu-central-1", "origin": upstream.upstream.url}
    keys = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    with routed({"upstreams": [entry]}, **keys) as running:
        upstream.forget()
        yield running


def signature_of(call: Call) -> str:
    """Return the signature that botocore makes for the fields which this request has signed."""
    given = call.header("authorization") or ""
    signed = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    fields = {name: call.header(name) or "" for name in signed}
    request = botocore.awsrequest.AWSRequest(
        method=call.method, url=f"http://{call.header('host')}{call.target}", data=call.body, headers=fields
    )
    request.context["timestamp"] = call.header("x-amz-date")
    credentials = botocore.credentials.Credentials(ACCESS, SECRET, TOKEN)
    signer = botocore.auth.SigV4Auth(credentials, "bedrock", "eu-central-1")
    canonical = signer.canonical_request(request)
    return str(signer.signature(signer.string_to_sign(request, canonical), request))


def test_request_is_signed_as_botocore_signs_it(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """The model is one segment of the path, with its colon encoded."""
    with upstream.playing(replays(PLAIN, STREAM)):
        answer = velox.openai().chat.completions.create(model=MODEL, messages=MESSAGES)

    call = upstream.calls[-1]
    assert call.target == f"/model/{urllib.parse.quote(MODEL, safe='')}/converse"
    assert call.header("x-amz-security-token") == TOKEN
    assert (call.header("authorization") or "").endswith(f"Signature={signature_of(call)}")
    said = json.loads(PLAIN.reply)["output"]["message"]["content"]
    assert answer.choices[0].message.content == "".join(part.get("text", "") for part in said)


def test_stream_of_frames_is_a_stream_of_chunks(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """An OpenAI client sees an event stream, with the usage that it asked for."""
    options = openai.types.chat.ChatCompletionStreamOptionsParam(include_usage=True)
    with upstream.playing(replays(PLAIN, STREAM)):
        create = velox.openai().chat.completions.create
        raw = velox.openai().chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, stream=True)
        chunks = list(create(model=MODEL, messages=MESSAGES, stream=True, stream_options=options))

    assert raw.headers["content-type"].startswith("text/event-stream")
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("stop", "tool_calls", "length")
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_frames_that_are_cut_are_no_answer(velox: VeloxProcess, upstream: RecordingUpstream, share: float) -> None:
    """Wherever it is cut, the client sees an error and no finish."""

    async def cut(call: Call) -> None:
        await call.head(200, FRAMES)
        await call.data(STREAM.reply[: int(len(STREAM.reply) * share)])
        await call.drain()
        call.cut()

    with upstream.playing(cut), pytest.raises(openai.APIError):
        stream = velox.openai().chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        assert not [c for c in stream if c.choices and c.choices[0].finish_reason]


def test_error_of_bedrock_is_one_of_the_client(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Its type stands in a header."""

    async def throttle(call: Call) -> None:
        await call.reply(429, (*JSON, ("x-amzn-errortype", "ThrottlingException:x")), b'{"message":"Too many"}')

    with upstream.playing(throttle), pytest.raises(openai.RateLimitError) as raised:
        velox.openai().chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_headers={"x-request-timeout-ms": "100"}
        )
    assert "Too many" in raised.value.message


def test_quota_that_comes_with_400_is_429(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """As in its stream, and as every client takes it: one that may be tried again."""

    async def exceed(call: Call) -> None:
        headers = (*JSON, ("x-amzn-errortype", "ServiceQuotaExceededException"))
        await call.reply(400, headers, b'{"message":"Too much"}')

    with upstream.playing(exceed), pytest.raises(openai.RateLimitError) as raised:
        velox.openai().chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_headers={"x-request-timeout-ms": "100"}
        )
    assert "Too much" in raised.value.message


def test_without_credentials_nothing_is_sent(upstream: RecordingUpstream) -> None:
    """The error says why, and holds no secret."""
    entry = {"name": "bedrock", "provider": "bedrock", "region": "eu-central-1", "origin": upstream.upstream.url}
    keys = {"AWS_ACCESS_KEY_ID": ACCESS}
    with routed({"upstreams": [entry]}, **keys) as running:
        upstream.forget()
        with pytest.raises(openai.InternalServerError) as raised:
            running.openai().chat.completions.create(model=MODEL, messages=MESSAGES)
    assert raised.value.status_code == 502 and raised.value.code == "upstream_credentials"
    assert "AWS_SECRET_ACCESS_KEY is not" in raised.value.message
    assert not upstream.calls


def test_boto3_passes_where_the_upstream_names_no_provider(
    velox: VeloxProcess, upstream: RecordingUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls go up as they came, with the upstream's bearer key in place of its signature; else they are 404."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    said: Any = [{"role": "user", "content": [{"text": "hi"}]}]

    def client(gateway: VeloxProcess) -> Any:
        config = botocore.config.Config(retries={"max_attempts": 1, "mode": "standard"}, read_timeout=20)
        keys = {"aws_access_key_id": "AKCLIENT", "aws_secret_access_key": "client"}
        place = {"region_name": "eu-central-1", "endpoint_url": gateway.base_url}
        return boto3.client("bedrock-runtime", config=config, **place, **keys)

    entry = {"name": "aws", "origin": upstream.upstream.url, "key": "env:BEDROCK_KEY"}
    with routed({"upstreams": [entry]}, BEDROCK_KEY="bedrock-key-0123") as plain:
        upstream.forget()
        sdk = client(plain)
        with upstream.playing(replays(PLAIN, STREAM)):
            whole = sdk.converse(modelId=MODEL, messages=said)
            events = list(sdk.converse_stream(modelId=MODEL, messages=said)["stream"])
    assert whole["output"] == json.loads(PLAIN.reply)["output"]
    assert "messageStop" in [name for event in events for name in event]
    segment = urllib.parse.quote(MODEL, safe="")
    assert [call.target for call in upstream.calls] == [
        f"/model/{segment}/{x}" for x in ("converse", "converse-stream")
    ]
    assert {call.header("authorization") for call in upstream.calls} == {"Bearer bedrock-key-0123"}

    with pytest.raises(botocore.exceptions.ClientError) as raised:
        client(velox).converse(modelId=MODEL, messages=said)
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_embeddings_with_the_sdk(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """The SDK asks for base64, and gets its floats."""

    async def embed(call: Call) -> None:
        await call.reply(200, JSON, b'{"embedding":[0.5,-0.25],"inputTextTokenCount":7}')

    embeddings = velox.openai().embeddings
    with upstream.playing(embed):
        answer = embeddings.create(model="amazon.titan-embed-text-v2:0", input=["a"], dimensions=256)
    call = upstream.calls[-1]

    assert (answer.data[0].embedding, answer.usage.prompt_tokens) == ([0.5, -0.25], 7)
    assert json.loads(call.body) == {"inputText": "a", "dimensions": 256}
    assert call.target == "/model/amazon.titan-embed-text-v2%3A0/invoke"
    assert (call.header("authorization") or "").endswith(f"Signature={signature_of(call)}")


def test_texts_for_a_model_of_one_text_are_several_calls(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """Each signed; vectors in the order of the texts, tokens added up; the first error is the answer."""

    async def embed(call: Call) -> None:
        number = float(json.loads(call.body)["inputText"])
        if number == 33:
            await call.reply(400, (*JSON, ("x-amzn-errortype", "ValidationException")), b'{"message":"No 33 here"}')
        else:
            await call.reply(200, JSON, b'{"embedding":[%f],"inputTextTokenCount":2}' % number)

    embeddings = velox.openai().embeddings
    with upstream.playing(embed):
        begin = len(upstream.calls)
        raw = embeddings.with_raw_response.create(
            model="amazon.titan-embed-text-v2:0", input=[str(n) for n in range(30)]
        )
        calls = upstream.calls[begin:]
        with pytest.raises(openai.BadRequestError, match="No 33 here"):
            embeddings.create(model="amazon.titan-embed-text-v2:0", input=[str(n) for n in range(40)])

    answer = raw.parse()
    assert [each.embedding for each in answer.data] == [[float(n)] for n in range(30)]
    assert answer.usage.prompt_tokens == 60
    assert raw.headers["x-velox-upstream"] == "bedrock"
    assert sorted(int(json.loads(call.body)["inputText"]) for call in calls) == list(range(30))
    for call in calls:
        assert (call.header("authorization") or "").endswith(f"Signature={signature_of(call)}")


def test_retry_of_several_calls_repeats_them_all(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """They are one attempt: what one of them fails with is its end."""
    refused: list[str] = []

    async def embed(call: Call) -> None:
        number = json.loads(call.body)["inputText"]
        if number == "2" and not refused:
            refused.append(number)
            headers = (*JSON, ("x-amzn-errortype", "ServiceUnavailableException"), ("retry-after-ms", "1"))
            await call.reply(503, headers, b'{"message":"Not now"}')
        else:
            await call.reply(200, JSON, b'{"embedding":[%b],"inputTextTokenCount":2}' % number.encode())

    with upstream.playing(embed):
        answer = velox.openai().embeddings.create(model="amazon.titan-embed-text-v2:0", input=["0", "1", "2"])
    assert refused == ["2"]
    assert [each.embedding for each in answer.data] == [[0.0], [1.0], [2.0]]


def test_error_of_an_embedding_is_one_of_openai(velox: VeloxProcess, upstream: RecordingUpstream) -> None:
    """With its own status."""

    async def fail(call: Call) -> None:
        headers = (*JSON, ("x-amzn-errortype", "ValidationException"))
        await call.reply(400, headers, b'{"message":"400 Bad Request: Too many input tokens."}')

    with upstream.playing(fail), pytest.raises(openai.BadRequestError) as refused:
        velox.openai().embeddings.create(model="cohere.embed-multilingual-v3", input=["a", "b"])
    assert "Too many input tokens" in str(refused.value)
