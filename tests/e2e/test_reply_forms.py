"""A reply is what it is, not what its label says: real processes, an upstream that mislabels, and the next one."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recorded_call import Call, Fields
from tests.e2e.recording import JSON, SSE, RecordingUpstream
from tests.e2e.routed import routed
from tests.e2e.upstreams import CHAT_JSON, chat_chunk

_TEXT = "Hello from afar."
_ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": _TEXT}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 4},
}
_PLAIN = json.dumps(_ANSWER).encode()


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


_EVENTS = [
    _event("message_start", message={**_ANSWER, "content": [], "stop_reason": None}),
    _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    _event("content_block_delta", index=0, delta={"type": "text_delta", "text": _TEXT}),
    _event("content_block_stop", index=0),
    _event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 4}),
    _event("message_stop"),
]
_STREAM = b"".join(_EVENTS)
_MOST_MIB = 64  # of a plain reply, and of one event
_HTML: Fields = (("content-type", "text/html"),)


def _coded(coding: str, fields: Fields = JSON) -> Fields:
    return (*fields, ("content-encoding", coding))


# What can be read, whatever its label says.
READ: dict[str, tuple[Fields, bytes]] = {
    "gzip": (_coded("gzip"), gzip.compress(_PLAIN)),
    "x-gzip": (_coded("X-GZip"), gzip.compress(_PLAIN)),
    "deflate": (_coded("deflate"), zlib.compress(_PLAIN)),
    "not compressed": (_coded("gzip"), _PLAIN),
    "empty label": (_coded(""), _PLAIN),
    "charset as coding": (_coded("utf-8"), _PLAIN),
    "no label": (JSON, gzip.compress(_PLAIN)),
    "events for a plain request": (SSE, _STREAM),
    "events with the label of JSON": (JSON, _STREAM),
    "compressed events": (_coded("gzip", SSE), gzip.compress(_STREAM)),
    "JSON with the label of events": (SSE, _PLAIN),
    "JSON with a tail": (JSON, _PLAIN + b"\n\ndata: [DONE]\n\n"),
    "JSON of HTML": (_HTML, _PLAIN),
}
# What can't: the next upstream is asked.
BROKEN: dict[str, tuple[Fields, bytes]] = {
    "HTML": (_HTML, b"<!DOCTYPE html><html><body>one moment</body></html>"),
    "HTML with the label of JSON": (JSON, b"<html>"),
    "nothing": (JSON, b""),
    "blanks": (JSON, b"\n\n  "),
    "no content": (JSON, b'{"id":"msg_1","type":"message"}'),
    "null": (JSON, b"null"),
    "cut": (JSON, _PLAIN[:-40]),
    "cut gzip": (_coded("gzip"), gzip.compress(_PLAIN)[:-30]),
    "unknown coding": (_coded("compress"), b"\x1f\x9d\x90" + _PLAIN[::-1]),
}

# Of Chat Completions as sent, where the client takes compressed replies.
SENT: dict[str, tuple[Fields, bytes]] = {
    "compressed answer": (_coded("gzip"), gzip.compress(CHAT_JSON)),
    "compressed error": (_coded("gzip"), gzip.compress(b'{"error":{"message":"busy","code":503}}')),
    "compressed page": (_coded("gzip"), gzip.compress(b"<html><body>one moment</body></html>")),
    "page with the label of JSON": (JSON, b"<html><body>one moment</body></html>"),
}


async def _says(call: Call) -> None:
    """Reply as the request names it."""
    for known in (READ, BROKEN, SENT):
        for name, (fields, body) in known.items():
            if json.dumps(f"say {name}").encode() in call.body:
                await call.reply(200, fields, body)
                return
    if b"say too much" in call.body:
        is_stream = b'"stream":true' in call.body
        await call.head(200, SSE if is_stream else JSON)
        await call.data(b'data: {"type":"message_start","pad":"' if is_stream else b'{"pad":"')
        for _ in range(_MOST_MIB + 1):
            await call.data(b"x" * 1024 * 1024)
            await call.drain()
        await call.data(b'"}\n\n')
        await call.end()
    if b"say flushes" in call.body:
        packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
        await call.head(200, _coded("gzip", SSE))
        for each in _EVENTS:
            await call.data(packer.compress(each) + packer.flush(zlib.Z_SYNC_FLUSH))
            if b"content_block_delta" in each:
                await call.step()
        await call.data(packer.flush())
        await call.end()


async def _answers(call: Call) -> None:
    if b'"stream":true' in call.body.replace(b" ", b""):
        await call.reply(200, SSE, chat_chunk(_TEXT) + chat_chunk("", "stop") + b"data: [DONE]\n\n")
    else:
        await call.reply(200, JSON, CHAT_JSON)


@pytest.fixture(scope="module")
def odd() -> Iterator[RecordingUpstream]:
    with RecordingUpstream(script=_says) as running:
        yield running


@pytest.fixture(scope="module")
def velox(odd: RecordingUpstream) -> Iterator[VeloxProcess]:
    with RecordingUpstream(script=_answers) as gpt:
        upstreams = [
            {"name": "odd", "provider": "anthropic", "origin": odd.upstream.url, "key": "env:MODEL_KEY"},
            {"name": "sent", "provider": "openai", "origin": odd.upstream.url, "key": "env:MODEL_KEY"},
            {"name": "gpt", "provider": "openai", "origin": gpt.upstream.url, "key": "env:MODEL_KEY"},
        ]
        routes = [
            {"name": "sent", "match": {"models": ["gpt-*"]}, "to": "sent", "fallback": ["gpt"]},
            {"name": "all", "to": "odd", "fallback": ["gpt"]},
        ]
        health = {"VELOX_RETRY_BUDGET_MIN": "1000", "VELOX_RETRY_BEFORE_FALLBACK": "0s"}
        with routed({"upstreams": upstreams, "routes": routes}, MODEL_KEY="sk-x", **health) as running:
            yield running


def _asked(name: str, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": f"say {name}"}]
    return json.dumps({"model": "claude-x", "messages": messages, "stream": stream}).encode()


def _text(body: bytes, *, stream: bool) -> str:
    if not stream:
        text: str = json.loads(body)["choices"][0]["message"]["content"]
        return text
    assert body.endswith(b"data: [DONE]\n\n")
    chunks = [json.loads(line[6:]) for line in body.split(b"\n\n") if line and line != b"data: [DONE]"]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", READ)
def test_reply_is_read_for_what_it_is(velox: VeloxProcess, name: str, stream: bool) -> None:
    """C40, C24: compressed, an event stream for a plain request and the other way round, JSON with a tail."""
    reply = velox.request("POST", "/v1/chat/completions", _asked(name, stream=stream))

    assert reply.status == 200, reply.body
    assert ("x-velox-upstream", "odd") in reply.headers
    assert _text(reply.body, stream=stream) == _TEXT
    assert not [value for field, value in reply.headers if field == "content-encoding"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", BROKEN)
def test_reply_that_cannot_be_read_moves_on(velox: VeloxProcess, name: str, stream: bool) -> None:
    """W1: nothing has gone to the client: the next upstream is asked, also where the answer was to be plain."""
    velox.request("POST", "/v1/chat/completions", _asked("not compressed", stream=False))  # it is well again
    reply = velox.request("POST", "/v1/chat/completions", _asked(name, stream=stream))

    assert reply.status == 200, reply.body
    assert ("x-velox-upstream", "gpt") in reply.headers
    assert next(value for field, value in reply.headers if field == "x-velox-tried").startswith("odd=upstream_")
    assert _text(reply.body, stream=stream) == _TEXT


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_reply_over_the_bound_moves_on(velox: VeloxProcess, stream: bool) -> None:
    """C43: one bound for a plain reply and for one event of a stream, and the next upstream is asked beyond it."""
    velox.request("POST", "/v1/chat/completions", _asked("not compressed", stream=False))  # it is well again
    reply = velox.request("POST", "/v1/chat/completions", _asked("too much", stream=stream))

    assert ("x-velox-upstream", "gpt") in reply.headers and ("x-velox-tried", "odd=upstream_protocol") in reply.headers
    assert _text(reply.body, stream=stream) == _TEXT


def test_events_that_come_compressed_pass_as_they_are_flushed(velox: VeloxProcess, odd: RecordingUpstream) -> None:
    """C40: a client reads the first text of a stream that is gzip'd while the upstream still writes."""
    import openai

    sdk = openai.OpenAI(base_url=f"{velox.base_url}/v1", api_key="x")
    stream = sdk.chat.completions.create(
        model="claude-x", messages=[{"role": "user", "content": "say flushes"}], stream=True
    )
    texts = []
    for chunk in stream:
        texts.append(chunk.choices[0].delta.content or "")
        if texts[-1] == _TEXT:
            odd.step()  # not before the client has it
    assert "".join(texts) == _TEXT


@pytest.mark.parametrize("name", SENT)
def test_compressed_reply_as_sent_is_looked_at(velox: VeloxProcess, name: str) -> None:
    """C74: a client that takes compressed replies is not told an error inside a 200 while another upstream is left."""
    body = json.dumps({"model": "gpt-x", "messages": [{"role": "user", "content": f"say {name}"}]}).encode()
    takes = {"accept-encoding": "gzip", "content-type": "application/json"}
    velox.request("POST", "/v1/chat/completions", body.replace(name.encode(), b"compressed answer"), headers=takes)

    reply = velox.request("POST", "/v1/chat/completions", body, headers=takes)

    assert reply.status == 200
    if name == "compressed answer":
        assert ("x-velox-upstream", "sent") in reply.headers
        assert reply.body == SENT[name][1]
    else:
        assert ("x-velox-upstream", "gpt") in reply.headers
        assert next(value for field, value in reply.headers if field == "x-velox-tried").startswith("sent=")
        assert _text(reply.body, stream=False) == _TEXT
