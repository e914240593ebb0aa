"""Replies of status 200 that are errors: what a client gets, who is asked instead, what health and log know of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.e2e.harness import VeloxProcess
from tests.e2e.recording import JSON, SSE, Call, RecordingUpstream, Script, healthy
from tests.e2e.routed import routed

HTML = [("content-type", "text/html; charset=utf-8")]
GEMINI = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"


def event(data: object, name: str = "") -> bytes:
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(data)}\n\n".encode()


class Case(NamedTuple):
    """An error that an upstream tells of in a reply of status 200, and an answer of the same API."""

    path: str
    error: bytes
    answer: bytes
    status: int


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
START = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1}}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
CHUNK = {"id": "c", "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
FAILED = {"object": "response", "status": "failed", "error": {"code": "server_error", "message": "no"}}
CREATED = event({"type": "response.created", "response": {"status": "in_progress"}}, "response.created")
DELTA = event({"type": "response.output_text.delta", "delta": "hi"}, "response.output_text.delta")
GEMINI_ERROR = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
CANDIDATE = {"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}

STREAMS = {
    "messages": Case("/v1/messages", event(OVERLOADED, "error"), event(START, "message_start") + event(BLOCK), 529),
    "messages, begun": Case(
        "/v1/messages",
        event(START, "message_start") + event({"type": "ping"}, "ping") + event(OVERLOADED, "error"),
        event(START, "message_start") + event(BLOCK),
        529,
    ),
    "chat": Case("/v1/chat/completions", event({"error": {"message": "over", "code": 502}}), event(CHUNK), 502),
    "openrouter": Case(
        "/v1/chat/completions",
        event({"id": "g", "error": {"code": 502, "message": "x"}, "choices": [{"finish_reason": "error"}]}),
        event(CHUNK),
        502,
    ),
    "responses": Case(
        "/v1/responses",
        CREATED + event({"type": "response.failed", "response": FAILED}, "response.failed"),
        CREATED + DELTA,
        500,
    ),
    "responses, error": Case(
        "/v1/responses",
        CREATED + event({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, "error"),
        CREATED + DELTA,
        429,
    ),
    "gemini": Case(GEMINI, event(GEMINI_ERROR), event(CANDIDATE), 503),
    "nothing": Case("/v1/chat/completions", b": ka\n\n", event(CHUNK), 502),
}
BODIES = {
    "openrouter": Case(
        "/v1/chat/completions", b'{"error":{"code":502,"message":"x"}}', json.dumps(CHUNK).encode(), 502
    ),
    "messages": Case("/v1/messages", json.dumps(OVERLOADED).encode(), b'{"type":"message","content":[]}', 529),
    "responses": Case(
        "/v1/responses", json.dumps(FAILED).encode(), b'{"object":"response","status":"completed","error":null}', 500
    ),
    "gemini": Case(GEMINI.partition(":")[0] + ":generateContent", json.dumps(GEMINI_ERROR).encode(), b"{}", 503),
    "nothing": Case("/v1/chat/completions", b"", json.dumps(CHUNK).encode(), 502),
}


def says(text: bytes, fields: list[tuple[str, str]] = SSE, *, in_pieces: bool = False) -> Script:
    """Script: answer 200 with this. in_pieces: the head first, and each event by itself."""

    async def script(call: Call) -> None:
        if not call.body:
            await healthy(call)
            return
        if fields is not SSE:
            await call.reply(200, fields, text)
            return
        await call.head(200, fields)
        for piece in text.split(b"\n\n")[:-1] if in_pieces else [text.removesuffix(b"\n\n")]:
            await call.drain()
            await call.data(piece + b"\n\n")
        await call.end()

    return script


def config(a: RecordingUpstream, b: RecordingUpstream, **more: object) -> Mapping[str, Any]:
    upstreams = [{"name": "a", "origin": a.upstream.url, **more}, {"name": "b", "origin": b.upstream.url, **more}]
    routes = [
        {"name": "one", "match": {"headers": {"x-to": "one"}}, "to": ["a"]},
        {"name": "all", "to": ["a"], "fallback": ["b"]},
    ]
    return {"upstreams": upstreams, "routes": routes}


@pytest.fixture(scope="module")
def upstreams() -> Iterator[tuple[RecordingUpstream, RecordingUpstream]]:
    with RecordingUpstream() as a, RecordingUpstream() as b:
        yield a, b


@pytest.fixture
def velox(upstreams: tuple[RecordingUpstream, RecordingUpstream]) -> Iterator[VeloxProcess]:
    with routed(config(*upstreams), retry_budget="100") as running:
        yield running


def ask(velox: VeloxProcess, case: Case, *, to: str = "all", stream: bool = True) -> Any:
    body = json.dumps({"model": "m", "stream": stream}).encode() if case.path != GEMINI else b"{}"
    return velox.request("POST", case.path, body, {"x-to": to})


@pytest.mark.parametrize("in_pieces", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("name", STREAMS)
def test_stream_that_begins_with_an_error_is_a_failed_attempt(
    upstreams: tuple[RecordingUpstream, RecordingUpstream], velox: VeloxProcess, name: str, in_pieces: bool
) -> None:
    """C74, N7: nothing has gone to the client: the fallback answers, and the upstream is soon asked no more.

    Alone, the client gets the status that the error names. The access log has it, too.
    """
    (a, b), case = upstreams, STREAMS[name]
    a.forget()
    with a.playing(says(case.error, in_pieces=in_pieces)), b.playing(says(case.answer)):
        alone = ask(velox, case, to="one")
        replies = [ask(velox, case) for _ in range(20)]

    assert alone.status == case.status, alone.body
    assert alone.header("content-type") == "application/json" and json.loads(alone.body)["error"]
    assert [reply.status for reply in replies] == [200] * 20
    assert all(reply.body == case.answer for reply in replies)
    asked = [call for call in a.calls if call.body]
    assert case.status == 429 or len(asked) <= 12, "the upstream is ejected, or rests"
    line = velox.wait_access(lambda line: line["status"] == case.status)
    assert line["reason"] in ("upstream_status", "upstream_truncated")


@pytest.mark.parametrize("name", BODIES)
def test_body_that_is_an_error_is_a_failed_attempt(
    upstreams: tuple[RecordingUpstream, RecordingUpstream], velox: VeloxProcess, name: str
) -> None:
    """W1: so is an empty one."""
    (a, b), case = upstreams, BODIES[name]
    a.forget()
    with a.playing(says(case.error, JSON)), b.playing(says(case.answer, JSON)):
        alone = ask(velox, case, to="one", stream=False)
        replies = [ask(velox, case, stream=False) for _ in range(20)]

    assert alone.status == case.status and json.loads(alone.body)["error"]
    assert [(reply.status, reply.body) for reply in replies] == [(200, case.answer)] * 20
    assert len([call for call in a.calls if call.body]) <= 12


def test_page_in_place_of_an_answer_is_a_failed_attempt(
    upstreams: tuple[RecordingUpstream, RecordingUpstream], velox: VeloxProcess
) -> None:
    """A proxy before the upstream answers 200 with HTML."""
    (a, b), case = upstreams, BODIES["openrouter"]
    with a.playing(says(b"<html>down</html>", HTML)), b.playing(says(case.answer, JSON)):
        alone, reply = ask(velox, case, to="one", stream=False), ask(velox, case, stream=False)

    assert (alone.status, alone.header("x-velox-reason")) == (502, "upstream_protocol")
    assert (reply.status, reply.header("x-velox-tried")) == (200, "a=upstream_protocol")


def test_head_of_a_silent_stream_goes_on_after_a_second(
    upstreams: tuple[RecordingUpstream, RecordingUpstream], velox: VeloxProcess
) -> None:
    """With the comments that an upstream sends meanwhile: they keep the client's connection open."""
    a, _ = upstreams

    async def thinks(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(b": thinking\n\n")
        await call.step()
        await call.data(event(CHUNK))
        await call.end()

    with a.playing(thinks), velox.connect() as sock:
        body = b'{"model":"m","stream":true}'
        fields = b"host: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + fields % len(body) + body)
        text = b""
        while b": thinking" not in text:
            text += sock.recv(65536) or pytest.fail(f"closed: {text!r}")
        assert text.startswith(b"HTTP/1.1 200 ")
        a.step()
        while b'"hi"' not in text:
            text += sock.recv(65536) or pytest.fail(f"closed: {text!r}")


def test_translated_reply_that_cant_be_read_leads_to_the_fallback(
    upstreams: tuple[RecordingUpstream, RecordingUpstream],
) -> None:
    """HTML, nothing, no choices: another one is asked, as where a stream has no event. And it counts as a fault."""
    a, b = upstreams
    entries = [
        {"name": "a", "provider": "anthropic", "origin": a.upstream.url},
        {"name": "b", "origin": b.upstream.url},
    ]
    routes = [{"name": "all", "to": ["a"], "fallback": ["b"]}]
    answer = json.dumps(CHUNK).encode()
    with routed({"upstreams": entries, "routes": routes}, retry_budget="100") as velox:
        for text, fields in ((b"<html>", HTML), (b"", JSON), (b'{"type":"message"}', JSON)):
            a.forget()
            with a.playing(says(text, fields)), b.playing(says(answer, JSON)):
                replies = [ask(velox, BODIES["openrouter"], stream=False) for _ in range(3)]
            assert [reply.status for reply in replies] == [200] * 3, (text, replies[0].body)
        a.forget()
        with a.playing(says(event(OVERLOADED, "error"))), b.playing(says(event(CHUNK))):
            assert [ask(velox, STREAMS["chat"]).status for _ in range(20)] == [200] * 20
        assert len([call for call in a.calls if call.body]) <= 12, "the upstream rests"


TOO_LONG = {
    "type": "error",
    "error": {"type": "invalid_request_error", "message": "prompt is too long: 250000 tokens > 200000 maximum"},
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_prompt_too_long_inside_a_200_goes_to_the_fallback_for_that(
    upstreams: tuple[RecordingUpstream, RecordingUpstream], path: str, is_stream: bool
) -> None:
    """Translated or not: what it says is read, as of a reply whose status is 400."""
    a, b = upstreams
    entries = [{"name": each, "provider": "anthropic", "origin": on.upstream.url} for each, on in (("a", a), ("b", b))]
    routes = [{"name": "all", "to": ["a"], "fallback": [{"upstream": "b", "for": "context_length"}]}]
    told = says(event(TOO_LONG, "error")) if is_stream else says(json.dumps(TOO_LONG).encode(), JSON)
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
    whole = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    whole |= {"content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 1, "output_tokens": 1}}
    ends = [{"type": "content_block_stop", "index": 0}, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]
    events = b"".join(event(each, str(each["type"])) for each in (START, BLOCK, delta, *ends, {"type": "message_stop"}))
    answer = says(events) if is_stream else says(json.dumps(whole).encode(), JSON)
    body = {"model": "m", "stream": is_stream, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    with routed({"upstreams": entries, "routes": routes}) as velox, a.playing(told), b.playing(answer):
        reply = velox.request("POST", path, json.dumps(body).encode())
    assert (reply.status, reply.header("x-velox-tried")) == (200, "a=400"), reply.body
    assert b"hi" in reply.body


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/images/generations", "/v1/moderations", "/v1/audio/speech"])
def test_error_in_place_of_another_answer_is_a_failed_attempt(
    upstreams: tuple[RecordingUpstream, RecordingUpstream], velox: VeloxProcess, path: str, is_stream: bool
) -> None:
    """Of APIs that are never translated, too, where the reply says that it is JSON or an event stream."""
    a, b = upstreams
    error, answer = {"error": {"code": 503, "message": "over"}}, {"id": "x", "data": []}
    case = Case(path, event(error) if is_stream else json.dumps(error).encode(), event(answer), 503)
    fields = SSE if is_stream else JSON
    with a.playing(says(case.error, fields)), b.playing(says(case.answer, SSE)):
        alone, reply = ask(velox, case, to="one", stream=is_stream), ask(velox, case, stream=is_stream)
    assert alone.status == 503
    assert (reply.status, reply.header("x-velox-tried")) == (200, "a=503")


def test_file_is_no_error_whatever_is_in_it(
    upstreams: tuple[RecordingUpstream, RecordingUpstream], velox: VeloxProcess
) -> None:
    """A sound, or a text that somebody dictated."""
    a, _ = upstreams
    text = b'{"error": {"message": "over", "code": 503}}'
    for kind in ("audio/mpeg", "text/plain", "text/html"):
        with a.playing(says(text, [("content-type", kind)])):
            for path in ("/v1/audio/speech", "/v1/audio/transcriptions"):
                reply = velox.request("POST", path, b'{"model":"m"}')
                assert (reply.status, reply.body) == (200, text)
