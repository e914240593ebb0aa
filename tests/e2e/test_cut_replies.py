"""A reply that was cut is never presented as complete, whichever way the upstream failed (F-11 to F-14, F-30)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import openai
import pytest

from tests.e2e.conftest import Wall
from tests.e2e.harness import read_reply
from tests.e2e.recording import JSON, SSE, Call
from tests.e2e.recording_http1 import Http1Call
from tests.e2e.recording_http2 import Http2Call
from tests.e2e.upstreams import chat_chunk

STREAM = b'{"model":"m","messages":[],"stream":true}'
PLAIN = b'{"model":"m","messages":[]}'
EVENTS = chat_chunk("one ") + chat_chunk("two ")

End = Callable[[Call], Awaitable[None]]


async def close(call: Call) -> None:
    """HTTP/1.1: FIN. HTTP/2: RST_STREAM(INTERNAL_ERROR)."""
    call.cut()


async def lose(call: Call) -> None:
    """HTTP/1.1: a TCP reset. HTTP/2: the connection is gone."""
    call.lose()


async def break_framing(call: Call) -> None:
    """HTTP/1.1: no chunk size where one must be. HTTP/2: a frame that nobody may send."""
    if isinstance(call, Http1Call):
        call.raw(b"no size\r\n")
    else:
        call.link.transport.write(b"\x00\x00\x01\x00\x00\x00\x00\x00\x00x")  # DATA on stream 0


async def cancel(call: Call) -> None:
    """HTTP/2: RST_STREAM(CANCEL), which some servers send on their own time-out. HTTP/1.1: FIN."""
    if isinstance(call, Http2Call):
        call.reset(8)
    else:
        call.cut()


ENDS = [close, lose, break_framing, cancel]


def play(end: End, events: bytes = EVENTS) -> Callable[[Call], Awaitable[None]]:
    """Return a script that begins a stream, waits for the test, and fails."""

    async def script(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(events)
        await call.drain()
        await call.step()
        await end(call)

    return script


def read_to_end(wall: Wall, body: bytes, script: Callable[[Call], Awaitable[None]]) -> tuple[bytes, bytes]:
    """Return the head and everything after it, up to the connection's end."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with wall.upstream.playing(script), wall.velox.connect() as sock:
        sock.sendall(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        got = sock.recv(65536)
        wall.upstream.step()
        while piece := sock.recv(65536):
            got += piece
    first, _, rest = got.partition(b"\r\n\r\n")
    return first, rest


def dechunk(data: bytes) -> tuple[bytes, bool]:
    """Return the body of chunks, and whether its last chunk came."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        if size == b"0":
            return body, True
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body, False


@pytest.mark.parametrize("end", ENDS)
def test_sdk_raises_on_a_stream_that_was_cut(wall: Wall, end: End) -> None:
    """The SDK hands out the events that came, then raises; it never thinks that the stream was whole."""
    words = []

    with (
        wall.upstream.playing(play(end)) as upstream,
        pytest.raises(openai.APIError, match="upstream") as caught,
        wall.sdk.chat.completions.create(model="m", messages=[], stream=True) as stream,
    ):
        for chunk in stream:
            words.append(chunk.choices[0].delta.content)
            if len(words) == 2:
                upstream.step()

    assert words == ["one ", "two "]
    assert caught.value.code in ("upstream_truncated", "upstream_protocol")
    assert len(upstream.calls) == 1


@pytest.mark.parametrize("end", ENDS)
def test_cut_stream_ends_with_the_error_event_and_no_proper_end(wall: Wall, end: End) -> None:
    """On the wire: what came, one error event, no [DONE], no last chunk, and the connection's end."""
    head, rest = read_to_end(wall, STREAM, play(end))

    body, is_whole = dechunk(rest)
    error = json.loads(body.removeprefix(EVENTS).removeprefix(b"data: "))["error"]
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body.startswith(EVENTS) and body.endswith(b"\n\n")
    assert error["code"] in ("upstream_truncated", "upstream_protocol")
    assert error["type"] == "upstream_error"
    assert b"[DONE]" not in body
    assert not is_whole
    (own_id,) = (line for line in head.decode().split("\r\n") if line.startswith("x-velox-request-id: "))
    line = wall.velox.wait_access(lambda line: own_id == f"x-velox-request-id: {line['id']}")
    assert line["reason"] == error["code"]


@pytest.mark.parametrize("cut_at", [len(chat_chunk("one ")) + 30, -1, -2])
def test_event_that_was_cut_does_not_swallow_the_error(wall: Wall, cut_at: int) -> None:
    """After half an event the error still stands in an event of its own (F-14)."""
    _, rest = read_to_end(wall, STREAM, play(close, EVENTS[:cut_at]))

    body, is_whole = dechunk(rest)
    events = [event for event in body.split(b"\n\n") if event.strip()]
    assert not is_whole
    assert body.startswith(EVENTS[:cut_at])
    assert json.loads(events[-1].strip().removeprefix(b"data: "))["error"]["code"] == "upstream_truncated"


@pytest.mark.parametrize("n_bytes", [1, 2, 3])
def test_character_that_was_cut_does_not_swallow_the_error(wall: Wall, n_bytes: int) -> None:
    """A stream cut inside a character of four bytes still ends in a readable error event (F-14)."""
    start = b'data: {"x":"' + "😀".encode()[:n_bytes]

    _, rest = read_to_end(wall, STREAM, play(close, start))

    body, _ = dechunk(rest)
    assert body.startswith(start + b"\n\n")
    assert json.loads(body.removeprefix(start).strip().removeprefix(b"data: "))["error"]["type"] == "upstream_error"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("length", [None, 1000], ids=["unknown-length", "known-length"])
def test_plain_reply_that_was_cut_is_an_error_for_the_sdk(wall: Wall, length: int | None, end: End) -> None:
    """A JSON body of which a part is missing never reaches the SDK as an answer."""

    async def script(call: Call) -> None:
        await call.head(200, [*JSON, *([] if length is None else [("content-length", str(length))])])
        # Valid as far as it goes, and more than is held back to see whether it is an error.
        await call.data(b'{"id":"chatcmpl-1","model":"%b"}' % (b"m" * 300))
        await call.drain()
        await call.step()
        await (close(call) if length is not None and end is break_framing and not wall.is_http2 else end(call))

    with wall.upstream.playing(script) as upstream:
        upstream.step()
        # Where the failure comes in one read with the head, nothing has gone down yet: then it is a 502.
        with pytest.raises((openai.APIConnectionError, openai.InternalServerError)):
            wall.sdk.chat.completions.create(model="m", messages=[])

    assert len(upstream.calls) == 1


def test_http2_stream_that_ends_short_of_its_length_is_cut(wall: Wall) -> None:
    """A proper end before the announced length is no proper end."""

    async def script(call: Call) -> None:
        await call.head(200, [*JSON, ("content-length", "1000")])
        await call.data(b"{}")
        if isinstance(call, Http2Call):
            # The library would not let us: END_STREAM on an empty DATA frame.
            call.link.transport.write(b"\x00\x00\x00\x00\x01" + call.stream_id.to_bytes(4, "big"))
        else:
            call.cut()

    # The `h2` engine finds it out before a byte has gone down, and so answers 502.
    with wall.upstream.playing(script), pytest.raises((openai.APIConnectionError, openai.InternalServerError)):
        wall.sdk.chat.completions.create(model="m", messages=[])


def test_http10_client_sees_a_cut_reply_as_reset(wall: Wall) -> None:
    """Where only the connection's end tells the reply's, a cut one ends in a TCP reset."""

    async def script(call: Call) -> None:
        await call.head(200, JSON)
        await call.data(b"half")
        await call.step()
        call.cut()

    with wall.upstream.playing(script), wall.velox.connect() as sock:
        sock.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        start = sock.recv(65536)
        wall.upstream.step()
        with pytest.raises(ConnectionResetError):
            read_reply(sock, start=start)


@pytest.mark.parametrize("end", [close, lose, cancel])
def test_failure_before_the_head_is_a_502(wall: Wall, end: End) -> None:
    """The upstream took the request, then failed without a word: one more try, as work may have been done; then 502."""

    async def script(call: Call) -> None:
        await asyncio.sleep(0.15)  # longer than a connection that had gone stale would take
        await end(call)

    with wall.upstream.playing(script):
        reply = wall.velox.request("POST", "/v1/chat/completions", PLAIN)

    assert (reply.status, reply.header("x-velox-reason")) == (502, "upstream_reset")
    assert reply.header("x-should-retry") == "false"
    assert reply.error()["code"] == "upstream_reset" and reply.error()["type"] == "upstream_error"
    assert len(wall.upstream.calls) == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_a_502_and_not_followed(wall: Wall, status: int) -> None:
    """An upstream cannot send a request, and the key in it, elsewhere (F-28)."""

    async def script(call: Call) -> None:
        await call.reply(status, [("location", f"{wall.upstream.upstream.url}/v1/elsewhere")], b"moved")

    with wall.upstream.playing(script):
        reply = wall.velox.request("POST", "/v1/chat/completions", PLAIN)

    assert (reply.status, reply.header("x-velox-reason")) == (502, "upstream_redirect")
    assert reply.header("location") is None
    assert [call.target for call in wall.upstream.calls] == ["/v1/chat/completions"]
