"""The simulator over HTTP/1.1, byte for byte: order, framing, back-pressure, leaving clients, goodbye."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import pytest

from tests.sim.harness import FAST, wait_until, with_sim
from velox_sim.options import SimOptions
from velox_sim.server import SimServer

# Answers of this length (about 20 MB) fill every socket buffer on the way.
LONG: Final = replace(FAST, tokens=100_000)
SLOW: Final = replace(FAST, tokens=20, token_rate=50)

Talk = Callable[[SimServer, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_socket(options: SimOptions, talk: Talk) -> None:
    """Run `talk` with a simulator and one plain connection to it."""

    async def connected(sim: SimServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
        try:
            await talk(sim, reader, writer)
        finally:
            writer.close()

    with_sim(options, connected)


def chat_request(*, stream: bool, version: str = "1.1", more: str = "") -> bytes:
    """Return a whole chat request."""
    body = json.dumps({"model": "any", "stream": stream, "messages": []}).encode()
    head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: x\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


async def read_reply(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one reply of known length; return head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
    return head, await reader.readexactly(int(length.split()[1]))


def test_pipelined_requests_are_answered_in_order() -> None:
    """Requests sent at once, fast and slow mixed, get their replies in the order they were sent."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        get = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
        writer.write(chat_request(stream=True) + get + b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n" + get)

        head = await reader.readuntil(b"\r\n\r\n")
        events = await reader.readuntil(b"\r\n0\r\n\r\n")
        replies = [await read_reply(reader) for _ in range(3)]

        assert b"text/event-stream" in head and b"transfer-encoding: chunked" in head
        assert b"data: [DONE]\n\n" in events
        assert [head.split(b" ")[1] for head, _ in replies] == [b"200", b"404", b"200"]
        assert sim.statistics().n_requests == 4

    with_socket(replace(FAST, ttft_s=0.02), talk)


def test_pipelining_far_ahead_waits_for_the_running_answer() -> None:
    """While an answer is running, a client can't fill the simulator's memory with what it asks next."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        large = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 20000000\r\n\r\n" + b" " * 20_000_000
        writer.write(chat_request(stream=False) + large)
        sending = asyncio.create_task(writer.drain())

        first, _ = await read_reply(reader)
        assert not sending.done()  # read on, it would all have gone out long before
        second, _ = await read_reply(reader)

        assert sending.done()
        assert first.startswith(b"HTTP/1.1 200 ") and second.startswith(b"HTTP/1.1 400 ")

    with_socket(replace(FAST, ttft_s=0.5), talk)


def test_head_is_answered_without_body() -> None:
    """A HEAD says how long the body would be, sends none, and the connection goes on."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")

        head = await reader.readuntil(b"\r\n\r\n")
        _, body = await read_reply(reader)

        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-length: %d\r\n" % len(body) in head

    with_socket(FAST, talk)


def test_http_1_0_stream_ends_with_the_connection() -> None:
    """A client of HTTP/1.0 knows no chunks: it gets the events as they are, and the end by closing."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chat_request(stream=True, version="1.0"))

        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read()

        assert b"transfer-encoding" not in head and b"connection: close" in head
        assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")

    with_socket(FAST, talk)


def test_expect_continue_is_answered_before_the_body() -> None:
    """A client that waits for 100 Continue gets it, then its answer."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _, body = chat_request(stream=False, more="expect: 100-continue\r\n").partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        reply, answer = await read_reply(reader)

        assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
        assert json.loads(answer)["usage"]["completion_tokens"] == 3

    with_socket(FAST, talk)


@pytest.mark.parametrize("begin", [b"GET /v1/models HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_broken_request_is_refused_and_closed(begin: bytes) -> None:
    """Without a Host, or with HTTP/2 where it is switched off, a client gets a 400 and is cut off."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)

        head, body = await read_reply(reader)

        assert head.startswith(b"HTTP/1.1 400 ") and b"connection: close" in head
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert await reader.read() == b""

    with_socket(replace(FAST, http2=False), talk)


def test_client_that_leaves_stops_its_stream() -> None:
    """A stream whose client left is stopped at once and counted; the simulator goes on."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        writer.write(chat_request(stream=True))
        await reader.readuntil(b"\r\n\r\n")
        assert sim.statistics().n_running == 1
        left_at = loop.time()
        writer.close()
        await wait_until(lambda: sim.statistics().n_running == 0)

        assert loop.time() - left_at < 0.1  # the answer would have taken 0.4 s
        assert sim.statistics().n_cancelled == 1 and sim.statistics().n_connections == 0

    with_socket(SLOW, talk)


def test_client_that_leaves_before_the_first_token_stops_its_stream() -> None:
    """A client that leaves while the simulator is still thinking is noticed too."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chat_request(stream=False))
        await wait_until(lambda: sim.statistics().n_running == 1)
        writer.close()
        await wait_until(lambda: sim.statistics().n_running == 0)

        assert sim.statistics().n_cancelled == 1

    with_socket(replace(FAST, ttft_s=30), talk)


def test_slow_reader_holds_its_own_stream_only() -> None:
    """An answer that nobody reads waits, without growing; others pass it; read at last, it is whole."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chat_request(stream=True))
        await wait_until(lambda: sim.statistics().n_running == 1)
        other_reader, other = await asyncio.open_connection("127.0.0.1", sim.port)
        for _ in range(50):
            other.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            await read_reply(other_reader)
        other.close()
        assert sim.statistics().n_running == 1
        assert sim.statistics().n_queued_bytes < 200_000  # the whole answer has 20 MB
        events = await reader.readuntil(b"\r\n\r\n")
        while not events.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            events = events[-64:] + await reader.read(1 << 20)

        assert sim.statistics().n_running == 0

    with_socket(LONG, talk)


def test_close_lets_running_streams_end() -> None:
    """At the goodbye idle connections close, a running stream is sent to its end, no new client gets in."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        idle_reader, idle = await asyncio.open_connection("127.0.0.1", sim.port)
        idle.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        await read_reply(idle_reader)
        writer.write(chat_request(stream=True))
        await reader.readuntil(b"\r\n\r\n")
        closing = asyncio.create_task(sim.close(grace_s=60))
        assert await idle_reader.read() == b""
        idle.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", sim.port)
        rest = await reader.read()
        await closing

        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert sim.statistics().n_cancelled == 0

    with_socket(SLOW, talk)


def test_close_cuts_what_is_over_the_grace() -> None:
    """An answer that does not end in time is cut, so that a client can see that it is not whole."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chat_request(stream=True))
        await reader.readuntil(b"\r\n\r\n")
        await sim.close(grace_s=0.02)

        with pytest.raises(ConnectionResetError):
            assert not (await reader.read()).endswith(b"0\r\n\r\n")
            raise ConnectionResetError  # an end without the last chunk says the same
        assert sim.statistics().n_cancelled == 1

    with_socket(SLOW, talk)


def test_many_connections_at_once_are_all_answered() -> None:
    """200 clients at once get an answer each, none another's: every id is different."""

    async def talk(sim: SimServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def ask() -> str:
            mine, out = await asyncio.open_connection("127.0.0.1", sim.port)
            out.write(chat_request(stream=False))
            _, body = await read_reply(mine)
            out.close()
            answer: str = json.loads(body)["id"]
            return answer

        ids = await asyncio.gather(*(ask() for _ in range(200)))

        assert len(set(ids)) == 200

    with_socket(replace(FAST, ttft_s=0.05), talk)
