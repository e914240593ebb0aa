"""What one attempt in another dialect leaves behind for the next, and for the copy of a mirror."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import MESSAGES, routed
from tests.e2e.upstreams import chat_chunk

_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    b'"model":"claude-x","content":[],"stop_reason":null,"usage":{"input_tokens":777,"output_tokens":1}}}\n\n'
)
_OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
_TEXT = (
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"Hi"}}\n\n'
)
KEY = "sk-model/0123456789"
_USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":22,"total_tokens":33}}\n\n'


async def fails_inside(call: Call) -> None:
    """Tell of tokens, and in a read of its own of an error."""
    await call.head(200, SSE)
    await call.data(_START)
    await call.step()
    await call.data(_OVERLOADED)
    await call.end()


async def shows_key(call: Call) -> None:
    """Say in an error which key is wrong: inside a 200, and after the first text."""
    refusal = json.dumps({"type": "error", "error": {"type": "authentication_error", "message": f"wrong: {KEY}"}})
    slashed = refusal.replace("/", "\\/").encode()  # as PHP and some JSON libraries write it
    if b"before" in call.body:
        await call.reply(200, SSE, b"event: error\ndata: " + slashed + b"\n\n")
    elif b"after" in call.body:
        await call.reply(200, SSE, _START + _TEXT + b"event: error\ndata: " + slashed + b"\n\n")
    elif b"plain" in call.body:
        await call.reply(200, JSON, slashed)
    elif b"gzip" in call.body:
        await call.reply(401, (*JSON, ("content-encoding", "gzip")), gzip.compress(slashed))
    else:
        await call.reply(401, JSON, slashed)


async def compresses(call: Call) -> None:
    """Compress an error that tells of nothing secret, which nobody asked for."""
    error = b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}'
    await call.reply(400, (*JSON, ("content-encoding", "gzip")), gzip.compress(error))


async def tells_usage(call: Call) -> None:
    """Stream an answer that took 11 and 22 tokens."""
    await call.head(200, SSE)
    await call.data(chat_chunk("Hi") + chat_chunk("", "stop") + _USAGE + b"data: [DONE]\n\n")
    await call.end()


async def refuses(call: Call) -> None:
    """Have too much to do."""
    await call.reply(503, JSON, b'{"error":{"message":"busy"}}')


@pytest.fixture(scope="module")
def claude() -> Iterator[RecordingUpstream]:
    with RecordingUpstream(script=fails_inside) as running:
        yield running


@pytest.fixture(scope="module")
def gpt() -> Iterator[RecordingUpstream]:
    with RecordingUpstream(script=tells_usage) as running:
        yield running


@pytest.fixture(scope="module")
def busy() -> Iterator[RecordingUpstream]:
    with RecordingUpstream(script=refuses) as running:
        yield running


@pytest.fixture(scope="module")
def velox(claude: RecordingUpstream, gpt: RecordingUpstream, busy: RecordingUpstream) -> Iterator[VeloxProcess]:
    """Claude, and after it OpenAI's API; and OpenAI's API with a copy for Claude."""
    config = {
        "upstreams": [
            {"name": "claude", "provider": "anthropic", "origin": claude.upstream.url, "key": "env:MODEL_KEY"},
            {"name": "gpt", "provider": "openai", "origin": gpt.upstream.url, "key": "env:MODEL_KEY"},
            {"name": "busy", "provider": "openai", "origin": busy.upstream.url, "key": "env:MODEL_KEY"},
            {"name": "full", "provider": "openai", "origin": busy.upstream.url, "key": "env:MODEL_KEY"},
            {"name": "gemini", "provider": "gemini", "origin": gpt.upstream.url, "key": "env:MODEL_KEY"},
        ],
        "routes": [
            {
                "name": "copied",
                "match": {"models": ["copied"]},
                "to": "gpt",
                "mirror": {"to": "claude", "percent": "100%"},
            },
            {"name": "next", "match": {"models": ["next"]}, "to": "busy", "fallback": ["claude", "gpt"]},
            {"name": "last", "match": {"models": ["last"]}, "to": "busy", "fallback": ["claude"]},
            {"name": "group", "match": {"models": ["group"]}, "to": ["claude", "gpt"]},
            {
                "name": "hedged",
                "match": {"models": ["hedged"]},
                "to": "claude",
                "fallback": ["gpt"],
                "hedge": {"after": "10ms"},
            },
            {"name": "then", "match": {"models": ["then"]}, "to": "claude", "fallback": ["full"]},
            {"name": "none", "match": {"models": ["none"]}, "to": "claude", "fallback": ["gemini"]},
            {"name": "alone", "match": {"models": ["alone"]}, "to": "claude"},
            {"name": "all", "to": "claude", "fallback": ["gpt"]},
        ],
    }
    more = {"VELOX_RATE_LIMIT_TPM": "1000000", "retry_before_fallback": "0s"}
    with routed(config, MODEL_KEY=KEY, **more) as running:
        yield running


def test_tokens_are_those_of_the_answer_that_the_client_got(velox: VeloxProcess, claude: RecordingUpstream) -> None:
    """What a translated attempt told before it failed is not of the untranslated one after it."""
    body = json.dumps({"model": "m", "messages": MESSAGES, "stream": True}).encode()
    claude.step()

    reply = velox.request("POST", "/v1/chat/completions", body)

    assert reply.status == 200 and ("x-velox-tried", "claude=529") in reply.headers
    for kind, wanted in (("input", 11), ("output", 22)):
        velox.wait_metric(f'velox_tokens_total{{kind="{kind}"}}', lambda n, wanted=wanted: n == wanted)


def test_copy_that_another_api_cannot_say_is_dropped(velox: VeloxProcess) -> None:
    """It is no bug of the gateway's, which the end of the gateway would tell of."""
    body = json.dumps({"model": "copied", "messages": MESSAGES, "n": 2, "stream": True}).encode()

    assert velox.request("POST", "/v1/chat/completions", body).status == 200

    velox.wait_metric('velox_mirrored_requests_total{outcome="dropped"}', lambda n: n == 1)


def test_fallback_that_cannot_say_the_request_is_passed_over(velox: VeloxProcess) -> None:
    """Claude gives one answer; whoever comes after it is asked."""
    body = json.dumps({"model": "next", "messages": MESSAGES, "n": 2, "stream": True}).encode()

    reply = velox.request("POST", "/v1/chat/completions", body)

    assert reply.status == 200 and ("x-velox-upstream", "gpt") in reply.headers
    assert ("x-velox-tried", "busy=503, claude=bad_request") in reply.headers


# What Claude has nothing for, and OpenAI's API has: a sound.
_SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
_FILE = {"type": "file", "file": {"file_id": "file-1"}}


def _asking(model: str, *parts: object) -> bytes:
    """Return a request with these parts after a text."""
    content = [{"type": "text", "text": "What is this?"}, *parts]
    return json.dumps({"model": model, "messages": [{"role": "user", "content": content}], "stream": True}).encode()


@pytest.mark.parametrize("model", ["all", "hedged"])
def test_first_choice_that_cannot_say_the_request_is_passed_over(velox: VeloxProcess, model: str) -> None:
    """Its fallback can, and answers."""
    reply = velox.request("POST", "/v1/chat/completions", _asking(model, _SOUND))

    assert reply.status == 200 and b"[DONE]" in reply.body
    told = dict(reply.headers)
    assert (told["x-velox-upstream"], told["x-velox-tried"]) == ("gpt", "claude=bad_request")


def test_each_request_that_one_of_a_group_can_say_goes_to_it(velox: VeloxProcess, claude: RecordingUpstream) -> None:
    """Wherever the balance would have it, and however often: who was passed over is as well as before."""
    replies = [velox.request("POST", "/v1/chat/completions", _asking("group", _SOUND)) for _ in range(12)]

    assert {(reply.status, dict(reply.headers)["x-velox-upstream"]) for reply in replies} == {(200, "gpt")}
    assert any(("x-velox-tried", "claude=bad_request") in reply.headers for reply in replies)
    assert velox.metric(f'velox_upstream_state{{origin="{claude.upstream.url}",state="in",upstream="claude"}}') == 1


def test_request_that_none_can_say_is_refused_with_the_reason_of_the_first(velox: VeloxProcess) -> None:
    """Claude has no sounds; Gemini has, but can't have a file of OpenAI's."""
    reply = velox.request("POST", "/v1/chat/completions", _asking("none", _SOUND, _FILE))

    error = json.loads(reply.body)["error"]
    assert reply.status == 400 and "takes no sound" in error["message"]
    assert error["param"] == "messages[0].content[1]"
    assert ("x-velox-tried", "claude=bad_request, gemini=bad_request") in reply.headers


def test_failure_of_the_only_one_that_can_say_it_is_told(velox: VeloxProcess) -> None:
    """The request is right for it, and may be tried again."""
    reply = velox.request("POST", "/v1/chat/completions", _asking("then", _SOUND))

    assert reply.status == 503 and dict(reply.headers)["x-velox-tried"].startswith("claude=bad_request")
    assert "x-should-retry" not in dict(reply.headers)


@pytest.mark.parametrize("is_stream", [False, True])
def test_failure_that_may_pass_is_no_bad_request(velox: VeloxProcess, is_stream: bool) -> None:
    """The request was right for its first choice: an SDK must try it again."""
    body = json.dumps({"model": "last", "messages": MESSAGES, "n": 2, "stream": is_stream}).encode()

    reply = velox.request("POST", "/v1/chat/completions", body)

    assert reply.status == 503 and ("x-velox-tried", "busy=503, claude=bad_request") in reply.headers
    assert "x-should-retry" not in dict(reply.headers)
    assert b"leave n out" in reply.body  # what to do about the fallback


@pytest.mark.parametrize("where", ["before", "after", "plain", "gzip", "status"])
def test_no_error_shows_the_key_that_went_up(velox: VeloxProcess, claude: RecordingUpstream, where: str) -> None:
    """Nor does it where the key is escaped or compressed, or the error comes in a reply of status 200."""
    is_stream = where in ("before", "after")
    messages = [{"role": "user", "content": where}]
    body = json.dumps({"model": "alone", "messages": messages, "stream": is_stream}).encode()
    with claude.playing(shows_key):
        reply = velox.request("POST", "/v1/chat/completions", body)

    assert reply.status in ((200, 502) if where == "after" else (401,))  # 502: before the head went out
    assert b"0123456789" not in reply.body and b"error" in reply.body
    assert b"[DONE]" not in reply.body


def test_compressed_error_is_read(velox: VeloxProcess, claude: RecordingUpstream) -> None:
    """Some servers compress though identity was asked for."""
    body = json.dumps({"model": "alone", "messages": MESSAGES}).encode()
    with claude.playing(compresses):
        reply = velox.request("POST", "/v1/chat/completions", body)

    assert reply.status == 400 and json.loads(reply.body)["error"]["message"] == "prompt is too long"
