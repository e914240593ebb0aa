"""Anthropic's clients on any model, and any client on Claude: real SDKs, recorded answers of the real providers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import MESSAGES, routed
from tests.e2e.test_translation import CHAT, CHAT_STREAM, replays
from tests.recorded import recorded
from tests.untrusting import NO_TRUST

KEY = "sk-ant-0123456789"
PLAIN = next(e for e in recorded("anthropic", "/v1/messages", stream=False) if b'"tool_use"' not in e.reply)
STREAM = next(e for e in recorded("anthropic", "/v1/messages", stream=True) if b"thinking_delta" in e.reply)
OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","content":[],'
    b'"role":"assistant","model":"claude-x","stop_reason":null,"usage":{"input_tokens":3,"output_tokens":1}}}\n\n'
)


@pytest.fixture(scope="module")
def claude() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def gpt() -> Iterator[RecordingUpstream]:
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(claude: RecordingUpstream, gpt: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway with Claude and an OpenAI model behind it, each the other's fallback, and keys of its own."""
    config = {
        "upstreams": [
            {"name": "claude", "provider": "anthropic", "origin": claude.upstream.url, "key": "env:CLAUDE_KEY"},
            {"name": "gpt", "provider": "openai", "origin": gpt.upstream.url, "key": "env:GPT_KEY"},
        ],
        "routes": [
            {
                "name": "claude",
                "match": {"models": ["claude-*"]},
                "to": "claude",
                "fallback": [{"upstream": "gpt", "model": "gpt-4o"}],
            },
            {"name": "gpt", "to": "gpt"},
        ],
    }
    more = {"VELOX_API_KEYS": "vk-client-0123456789", "VELOX_RETRY_BEFORE_FALLBACK": "0s"}
    with routed(config, CLAUDE_KEY=KEY, GPT_KEY="sk-gpt-0123456", **more) as running:
        claude.forget()
        gpt.forget()
        yield running


@pytest.fixture
def client(velox: VeloxProcess) -> Iterator[anthropic.Anthropic]:
    """Anthropic's SDK, pointed at the gateway."""
    with anthropic.Anthropic(
        base_url=velox.base_url,
        api_key="vk-client-0123456789",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(verify=NO_TRUST, trust_env=False, timeout=20.0),
    ) as made:
        yield made


def openai_client(velox: VeloxProcess) -> openai.OpenAI:
    return velox.openai(api_key="vk-client-0123456789")


def ask(client: anthropic.Anthropic, model: str) -> anthropic.types.Message:
    return client.messages.create(model=model, max_tokens=99, messages=[{"role": "user", "content": "hi"}])


def test_anthropic_client_on_claude_passes_as_it_came(
    client: anthropic.Anthropic, velox: VeloxProcess, claude: RecordingUpstream
) -> None:
    """Bytes up and bytes down; only the key is ours. Betas and the version pass."""
    body = b'{"model":"claude-x","max_tokens":9, "messages":[{"role":"user","content":"hi"}],"future":{"a":1.50}}'
    fields = {"x-api-key": "vk-client-0123456789", "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    with claude.playing(replays(PLAIN, STREAM)):
        reply = velox.request("POST", "/v1/messages", body, fields)

    call = claude.calls[-1]
    assert (reply.status, reply.body, call.body) == (200, PLAIN.reply, body)
    assert (call.header("x-api-key"), call.header("anthropic-beta")) == (KEY, "a,b")


def test_openai_client_on_claude(velox: VeloxProcess, claude: RecordingUpstream) -> None:
    """The version header is there, max_tokens too, and the key stands where Anthropic wants it."""
    with claude.playing(replays(PLAIN, STREAM)):
        answer = openai_client(velox).chat.completions.create(model="claude-x", messages=MESSAGES)

    said = json.loads(PLAIN.reply)
    assert answer.choices[0].message.content == "".join(b["text"] for b in said["content"] if b["type"] == "text")
    assert answer.usage is not None and answer.usage.completion_tokens == said["usage"]["output_tokens"]
    call = claude.calls[-1]
    assert (call.target, call.header("x-api-key")) == ("/v1/messages", KEY)
    assert (call.header("anthropic-version"), call.header("authorization")) == ("2023-06-01", None)
    assert json.loads(call.body)["max_tokens"] > 0


def test_openai_client_sees_the_reasoning_of_claude(velox: VeloxProcess, claude: RecordingUpstream) -> None:
    """Streamed as reasoning_content, before the answer."""
    with claude.playing(replays(PLAIN, STREAM)):
        chunks = list(openai_client(velox).chat.completions.create(model="claude-x", messages=MESSAGES, stream=True))

    thought = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks if c.choices)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert thought and text and chunks[-1].choices[0].finish_reason == "stop"


def test_anthropic_client_on_an_openai_model(client: anthropic.Anthropic, gpt: RecordingUpstream) -> None:
    """Plain and streamed; usage of the prompt and the answer."""
    with gpt.playing(replays(CHAT, CHAT_STREAM)):
        message = ask(client, "gpt-4o")
        with client.messages.stream(
            model="gpt-4o", max_tokens=99, messages=[{"role": "user", "content": "hi"}]
        ) as stream:
            text = stream.get_final_text()
            final = stream.get_final_message()

    said = json.loads(CHAT.reply)
    (block,) = message.content
    assert block.type == "text" and block.text == said["choices"][0]["message"]["content"]
    assert message.usage.output_tokens == said["usage"]["completion_tokens"]
    assert text and final.stop_reason == "end_turn" and final.usage.output_tokens > 0
    call = gpt.calls[-1]
    assert call.header("authorization") == "Bearer sk-gpt-0123456" and call.header("x-api-key") is None
    assert call.header("anthropic-version") is None


def test_overload_inside_a_stream_leads_to_the_other_dialect(
    client: anthropic.Anthropic, claude: RecordingUpstream, gpt: RecordingUpstream
) -> None:
    """The fallback crosses though the first choice did not; the client sees one whole answer, and why."""

    async def overloaded(call: Call) -> None:
        await call.reply(529, JSON, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}')

    with claude.playing(overloaded), gpt.playing(replays(CHAT, CHAT_STREAM)):
        raw = client.messages.with_raw_response.create(
            model="claude-x", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )

    assert raw.headers["x-velox-upstream"] == "gpt"
    assert raw.headers["x-velox-tried"] == "claude=529"
    assert raw.parse().stop_reason == "end_turn"


def test_error_event_first_is_an_error_of_its_own_status(velox: VeloxProcess, claude: RecordingUpstream) -> None:
    """After message_start too: that tells of no work. Here the fallback answers in place of it."""

    async def late(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(START + OVERLOADED)
        await call.end()

    with claude.playing(late):
        raw = openai_client(velox).chat.completions.with_raw_response.create(
            model="claude-x", messages=MESSAGES, stream=True
        )
        list(raw.parse())
    assert raw.headers["x-velox-tried"] == "claude=529"


def test_errors_have_the_shape_of_an_anthropic_client(client: anthropic.Anthropic, gpt: RecordingUpstream) -> None:
    """An upstream's, and Velox's own."""

    async def refuse(call: Call) -> None:
        body = b'{"error":{"message":"no such tool","type":"invalid_request_error","param":"tools","code":null}}'
        await call.reply(400, JSON, body)

    with gpt.playing(refuse), pytest.raises(anthropic.BadRequestError) as raised:
        ask(client, "gpt-4o")
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["error"]["message"] == "no such tool" and raised.value.body["type"] == "error"

    with pytest.raises(anthropic.AuthenticationError) as refused:
        ask(client.with_options(api_key="vk-wrong"), "gpt-4o")
    assert isinstance(refused.value.body, dict) and refused.value.body["error"]["type"] == "authentication_error"


def test_wrong_field_is_named(client: anthropic.Anthropic, velox: VeloxProcess, gpt: RecordingUpstream) -> None:
    """With its path, in the client's shape; nothing is sent."""
    n_calls = len(gpt.calls)
    body = {
        "model": "gpt-4o",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}],
    }
    reply = httpx.post(f"{velox.base_url}/v1/messages", json=body, headers={"x-api-key": "vk-client-0123456789"})

    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == "messages[0].content[0].text"
    assert len(gpt.calls) == n_calls


def test_models_are_listed_for_both(client: anthropic.Anthropic, velox: VeloxProcess, gpt: RecordingUpstream) -> None:
    """Each SDK reads its own list."""
    ours = {model.id for model in openai_client(velox).models.list()}
    theirs = {model.id for model in client.models.list()}

    assert ours == theirs
