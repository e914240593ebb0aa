"""Server-sent events pass one by one as they arrive; nobody is held up by who reads slowly."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import time

import pytest

from tests.e2e.conftest import Wall
from tests.e2e.harness import read_reply
from tests.e2e.recording import SSE, Call
from tests.e2e.upstreams import chat_chunk
from tests.patience import PROMPT_S

STREAM = b'{"model":"m","messages":[],"stream":true}'
DONE = b"data: [DONE]\n\n"
WORDS = [f"w{number} " for number in range(20)]


async def word_by_word(call: Call) -> None:
    """Send one event for each step() of the test."""
    await call.head(200, SSE)
    for word in WORDS:
        await call.step()
        await call.data(chat_chunk(word))
    await call.step()
    await call.data(DONE)
    await call.end()


def ask(sock: socket.socket, body: bytes = STREAM) -> None:
    """Send a request for a stream."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    sock.sendall(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))


def test_each_event_reaches_the_sdk_before_the_next_is_sent(wall: Wall) -> None:
    """The client has an event in hand before the upstream sends the one after it: nothing is gathered on the way."""
    with (
        wall.upstream.playing(word_by_word) as upstream,
        wall.sdk.chat.completions.create(model="m", messages=[], stream=True) as stream,
    ):
        for word in WORDS:
            upstream.step()
            chunk = next(stream)
            assert chunk.choices[0].delta.content == word
        upstream.step()
        assert next(stream, None) is None


def test_each_event_arrives_as_it_was_cut(wall: Wall) -> None:
    """An event's bytes come down when they come: halves too, unchanged (F-14, F-15)."""
    pieces = [b"data: caf", b"\xc3", b"\xa9 \xe2\x80", b"\xa8\n", b"\n: comment\n\ndata: 2\r\n\r\n", DONE]

    async def in_pieces(call: Call) -> None:
        await call.head(200, SSE)
        for piece in pieces:
            await call.step()
            await call.data(piece)
        await call.step()
        await call.end()

    with wall.upstream.playing(in_pieces) as upstream, wall.velox.connect() as sock:
        ask(sock)
        upstream.wait_call()
        head = sock.recv(65536)
        assert head.endswith(b"\r\n\r\n") and b"transfer-encoding: chunked" in head
        for piece in pieces:
            upstream.step()
            assert sock.recv(65536) == b"%x\r\n%b\r\n" % (len(piece), piece)
        upstream.step()
        assert sock.recv(65536) == b"0\r\n\r\n"


def test_head_of_a_stream_comes_before_its_first_event(wall: Wall) -> None:
    """The client learns that its stream was accepted while the model still thinks: a second later at most."""

    async def late_event(call: Call) -> None:
        await call.head(200, SSE)
        await call.step()
        await call.data(DONE)
        await call.end()

    with wall.upstream.playing(late_event) as upstream, wall.velox.connect() as sock:
        ask(sock)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        upstream.step()
        assert DONE in sock.recv(65536)


def test_stream_without_done_ends_as_it_came(wall: Wall) -> None:
    """A stream that ends properly is whole, without `[DONE]` too; broken JSON and errors inside pass (F-16, F-17)."""
    events = b"data: {broken\n\n" + b'data: {"error":{"message":"mine"}}\n\n' + b"data: " + b"x" * 1_000_000 + b"\n\n"

    async def odd(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(events)
        await call.end()

    with wall.upstream.playing(odd):
        reply = wall.velox.request("POST", "/v1/chat/completions", STREAM)

    assert reply.body == events


def test_one_byte_at_a_time_is_the_same_stream(wall: Wall) -> None:
    """Each byte in a segment or DATA frame of its own, through characters and line ends: the same bytes (F-15)."""
    events = "data: caf\u00e9 \u2028 \U0001f600\r\n\r\n: c\n\n".encode() * 20 + DONE

    async def drip(call: Call) -> None:
        await call.head(200, SSE)
        for at in range(len(events)):
            await call.data(events[at : at + 1])
            await asyncio.sleep(0)
        await call.end()

    with wall.upstream.playing(drip):
        reply = wall.velox.request("POST", "/v1/chat/completions", STREAM)

    assert reply.body == events


@pytest.mark.parametrize("piece", [1_000, 16_384, 1_100_000])
def test_event_of_a_megabyte_passes_whole(wall: Wall, piece: int) -> None:
    """F-17: an image in one event is not gathered, nor too long for anything."""
    event = b'data: {"b64":"' + bytes(65 + number % 26 for number in range(1_048_576)) + b'"}\n\n'

    async def large(call: Call) -> None:
        await call.head(200, SSE)
        for at in range(0, len(event), piece):
            await call.data(event[at : at + piece])
            await call.drain()
        await call.data(DONE)
        await call.end()

    with wall.upstream.playing(large):
        reply = wall.velox.request("POST", "/v1/chat/completions", STREAM)

    assert hashlib.sha256(reply.body).digest() == hashlib.sha256(event + DONE).digest()


def test_stream_without_done_ends_when_its_upstream_ends_it(wall: Wall) -> None:
    """S11: nothing is waited for that does not come."""

    async def no_done(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(chat_chunk("all"))
        await call.step()
        await call.end()

    with wall.upstream.playing(no_done) as upstream, wall.velox.connect() as sock:
        ask(sock)
        upstream.wait_call()
        began_s = time.monotonic()
        upstream.step()
        reply = read_reply(sock)
        assert time.monotonic() - began_s < PROMPT_S

    assert reply.body == chat_chunk("all")
    line = wall.velox.wait_access(lambda line: line["id"] == reply.header("x-velox-request-id"))
    assert line["reason"] == "ok"


def test_errors_inside_a_stream_are_counted_and_pass(wall: Wall) -> None:
    """F-16: in each provider's way of telling them, cut anywhere; the client gets what the upstream sent.

    Not before the first event: an error is no stream then (test_early_errors.py).
    """
    events = (
        b'data: {"id":"0","choices":[]}\n\n'
        b'data: {"error":{"message":"mine"}}\n\n'
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'
        b'data: {"id":"1","error":null}\n\n'
    )

    async def odd(call: Call) -> None:
        await call.head(200, SSE)
        for at in range(0, len(events), 7):
            await call.data(events[at : at + 7])
            await asyncio.sleep(0)
        await call.end()

    before = wall.velox.metric("velox_stream_error_events_total")
    with wall.upstream.playing(odd):
        reply = wall.velox.request("POST", "/v1/chat/completions", STREAM)

    assert (reply.status, reply.body) == (200, events)
    wall.velox.wait_metric("velox_stream_error_events_total", lambda n: n == before + 2)


def test_slow_reader_pauses_the_upstream_and_loses_nothing(wall: Wall) -> None:
    """Back-pressure: while a client does not read, its upstream stops; its neighbour does not notice."""
    n_events, event = 600, b"data: " + b"y" * 65_520 + b"\n\n"
    sent = []

    async def flood(call: Call) -> None:
        if json.loads(call.body)["model"] == "small":
            await call.reply(200, SSE, DONE)
            return
        await call.head(200, SSE)
        for number in range(n_events):
            await call.data(event)
            await call.drain()
            sent.append(number)
            wall.upstream.notify()
        await call.end()

    with wall.upstream.playing(flood), wall.velox.connect(30.0) as slow:
        # Else the kernel may hold tens of megabytes for a client that does not read.
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
        ask(slow)
        wall.upstream.wait(lambda: len(sent) > 0, "the flood begins")
        held_at = [0]
        # Each neighbour is answered while the slow one has read nothing. The flood stands still when ten saw no more.
        while len(held_at) < 20 or held_at[-1] > held_at[-10]:
            small = wall.velox.request("POST", "/v1/chat/completions", STREAM.replace(b'"m"', b'"small"'))
            assert small.body == DONE
            held_at.append(len(sent))
        reply = read_reply(slow)

    # What may be under way: a stream's window or the sockets' buffers, which the kernel sizes; never the whole 39 MB.
    assert held_at[-1] < n_events * 2 // 3
    assert reply.body == event * n_events


@pytest.mark.parametrize("n_streams", [40])
def test_streams_side_by_side_do_not_mix(wall: Wall, n_streams: int) -> None:
    """Many streams at once, over one connection where HTTP/2 is spoken: each client gets its own events only."""

    async def own_name(call: Call) -> None:
        name = json.loads(call.body)["model"].encode()
        await call.head(200, SSE)
        for number in range(10):
            await call.step()
            await call.data(b"data: %b %d\n\n" % (name, number))
        await call.end()

    with wall.upstream.playing(own_name) as upstream:
        socks = [wall.velox.connect() for _ in range(n_streams)]
        try:
            for number, sock in enumerate(socks):
                ask(sock, STREAM.replace(b'"m"', b'"m%d"' % number))
            upstream.wait_call(n_streams)
            upstream.step(10 * n_streams)
            replies = [read_reply(sock) for sock in socks]
        finally:
            for sock in socks:
                sock.close()

    for number, reply in enumerate(replies):
        assert reply.body == b"".join(b"data: m%d %d\n\n" % (number, event) for event in range(10))
