"""Between requests: connections that went stale, refused streams, GOAWAY, replies that break the protocol."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.conftest import Wall
from tests.e2e.recording import JSON, SSE, Call, healthy
from tests.e2e.recording_http1 import Http1Call
from tests.e2e.recording_http2 import Http2Call

PLAIN = b'{"model":"m","messages":[]}'
STREAM = b'{"model":"m","messages":[],"stream":true}'
REFUSED_STREAM, ENHANCE_YOUR_CALM = 7, 11


only_http1 = pytest.mark.parametrize("wall_of_session", ["http1"], indirect=True)
only_http2 = pytest.mark.parametrize("wall_of_session", ["ngh2", "h2"], indirect=True)


def ask(wall: Wall, body: bytes = PLAIN) -> int:
    """Send a request; return its status."""
    return wall.velox.request("POST", "/v1/chat/completions", body).status


def test_idle_connections_that_were_closed_are_not_noticed(wall: Wall) -> None:
    """Keep-alive ran out at the upstream: the next request passes at once (F-10)."""
    for _ in range(5):
        wall.upstream.close_connections()
        assert ask(wall) == 200


@only_http1
def test_connection_closed_after_each_reply_fails_no_request(wall: Wall) -> None:
    """An upstream that closes without saying so races with our next request: none is lost (F-10)."""

    async def reply_and_close(call: Call) -> None:
        await healthy(call)
        call.cut()

    with wall.upstream.playing(reply_and_close):
        assert [ask(wall) for _ in range(60)] == [200] * 60


@only_http1
def test_reply_that_says_close_is_the_connections_last(wall: Wall) -> None:
    """`Connection: close` is honoured; its header stays with the gateway."""

    async def say_close(call: Call) -> None:
        await call.head(200, [*JSON, ("content-length", "2"), ("connection", "close")])
        await call.data(b"{}")
        await call.end()

    with wall.upstream.playing(say_close):
        replies = [wall.velox.request("GET", "/v1/models") for _ in range(3)]

    assert [reply.status for reply in replies] == [200] * 3
    assert len({call.connection for call in wall.upstream.calls}) == 3


@only_http1
def test_reply_that_ends_at_close_is_whole(wall: Wall) -> None:
    """A reply of an old server, without length or chunks, ends with its connection."""

    async def old_server(call: Call) -> None:
        assert isinstance(call, Http1Call)
        call.raw(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}")
        call.cut()

    with wall.upstream.playing(old_server):
        assert wall.velox.request("GET", "/v1/models").body == b"{}"


@only_http1
@pytest.mark.parametrize(
    "surplus", [b"surplus", b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen"], ids=["bytes", "reply"]
)
def test_bytes_after_a_reply_reach_nobody(wall: Wall, surplus: bytes) -> None:
    """A connection with bytes that nobody asked for is not used again (F-30)."""

    async def too_much(call: Call) -> None:
        assert isinstance(call, Http1Call)
        call.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\nmine" + surplus)

    with wall.upstream.playing(too_much):
        for _ in range(3):
            reply = wall.velox.request("GET", "/v1/models")
            assert (reply.status, reply.body) == (200, b"mine")

    assert len({call.connection for call in wall.upstream.calls}) == 3


BROKEN = {
    "no-http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "status": b"HTTP/1.1 20 OK\r\n\r\n",
    "two-lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
    "length-and-chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "nul": b"HTTP/1.1 200 OK\r\nx-a: b\x00c\r\ncontent-length: 0\r\n\r\n",
    "bare-cr": b"HTTP/1.1 200 OK\r\nx-a: b\rx-c: d\r\ncontent-length: 0\r\n\r\n",
    "name": b"HTTP/1.1 200 OK\r\nx a: b\r\ncontent-length: 0\r\n\r\n",
    "201-headers": b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 201 + b"content-length: 0\r\n\r\n",
    "1-MB-header": b"HTTP/1.1 200 OK\r\nx-a: " + b"b" * 1_000_000 + b"\r\ncontent-length: 0\r\n\r\n",
    "11-interim": b"HTTP/1.1 102 Wait\r\n\r\n" * 11 + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
}


@only_http1
@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
def test_reply_that_breaks_the_protocol_is_a_502(wall: Wall, raw: bytes) -> None:
    """What could be read in two ways is not passed on, and its connection is closed (F-29)."""

    async def broken(call: Call) -> None:
        assert isinstance(call, Http1Call)
        call.raw(raw)
        await call.silence()

    with wall.upstream.playing(broken):
        reply = wall.velox.request("POST", "/v1/chat/completions", PLAIN)
        call = wall.upstream.wait_call()
        wall.upstream.wait_left(call)

    assert (reply.status, reply.header("x-velox-reason")) == (502, "upstream_protocol")
    assert reply.header("x-should-retry") == "false"
    assert len(wall.upstream.calls) == 1


@only_http2
def test_refused_stream_is_sent_again(wall: Wall) -> None:
    """REFUSED_STREAM says that no work was done: the request is repeated, and the client sees nothing of it (F-35)."""

    async def refuse_once(call: Call) -> None:
        if len(wall.upstream.calls) == 1:
            assert isinstance(call, Http2Call)
            call.refuse()
        else:
            await healthy(call)

    with wall.upstream.playing(refuse_once):
        assert ask(wall, STREAM) == 200

    first, second = wall.upstream.calls
    assert (first.body, first.target) == (second.body, second.target) == (STREAM, "/v1/chat/completions")


@only_http2
def test_stream_refused_again_and_again_is_a_502(wall: Wall) -> None:
    """Free tries are bounded: ten, and the answer says why, and that a retry is safe."""

    async def refuse(call: Call) -> None:
        assert isinstance(call, Http2Call)
        call.refuse()

    with wall.upstream.playing(refuse):
        reply = wall.velox.request("POST", "/v1/chat/completions", PLAIN)

    assert (reply.status, reply.header("x-velox-reason")) == (502, "upstream_reset")
    assert reply.header("x-should-retry") == "true"
    assert len(wall.upstream.calls) == 11


@only_http2
@pytest.mark.parametrize("last_stream_id", ["zero", "before"])
def test_goaway_below_a_request_sends_it_again(wall: Wall, last_stream_id: str) -> None:
    """GOAWAY whose last stream is below ours says that ours was not begun: it goes to a new connection (F-34)."""

    async def leave_once(call: Call) -> None:
        if len(wall.upstream.calls) == 1:
            assert isinstance(call, Http2Call)
            call.goaway(0 if last_stream_id == "zero" else call.stream_id - 2)
            call.link.transport.close()
        else:
            await healthy(call)

    with wall.upstream.playing(leave_once):
        assert ask(wall) == 200

    first, second = wall.upstream.calls
    assert first.connection != second.connection


@only_http2
def test_goaway_lets_its_streams_finish(wall: Wall) -> None:
    """Streams that the upstream has begun end on the old connection; new requests take another one (F-33)."""

    async def leave_in_the_middle(call: Call) -> None:
        if len(wall.upstream.calls) > 1:
            await healthy(call)
            return
        assert isinstance(call, Http2Call)
        await call.head(200, SSE)
        call.goaway(call.stream_id)
        await call.data(b"data: 1\n\n")
        await call.step()
        await call.data(b"data: [DONE]\n\n")
        await call.end()

    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with wall.upstream.playing(leave_in_the_middle), wall.velox.connect() as sock:
        sock.sendall(head + b"content-length: %d\r\n\r\n%b" % (len(STREAM), STREAM))
        got = b""
        while b"data: 1" not in got:  # it came after the GOAWAY
            got += sock.recv(65536)
        assert [ask(wall) for _ in range(3)] == [200] * 3
        wall.upstream.step()
        while not got.endswith(b"0\r\n\r\n"):
            got += sock.recv(65536)

    first, *others = wall.upstream.calls
    assert b"data: [DONE]\n\n" in got and b"error" not in got
    assert first.connection not in {call.connection for call in others}


@only_http2
def test_goaway_after_each_reply_fails_no_request(wall: Wall) -> None:
    """An upstream that retires its connection after every request, as it may, loses none of them."""

    async def reply_and_leave(call: Call) -> None:
        assert isinstance(call, Http2Call)
        await healthy(call)
        call.goaway(call.stream_id)
        call.link.transport.close()

    with wall.upstream.playing(reply_and_leave):
        assert [ask(wall) for _ in range(40)] == [200] * 40


@only_http2
def test_goaway_with_an_error_is_tried_once_more_and_then_a_502(wall: Wall) -> None:
    """The upstream may have begun the work before it threw everybody out: one more try within the budget, no second."""

    async def throw_out(call: Call) -> None:
        assert isinstance(call, Http2Call)
        await asyncio.sleep(0.15)
        call.goaway(call.stream_id, ENHANCE_YOUR_CALM)
        call.link.transport.close()

    with wall.upstream.playing(throw_out):
        reply = wall.velox.request("POST", "/v1/chat/completions", PLAIN)

    assert (reply.status, reply.header("x-velox-reason")) == (502, "upstream_reset")
    assert len(wall.upstream.calls) == 2
