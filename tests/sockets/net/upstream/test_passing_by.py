"""Reads that go past the worker's buffer, on a real loop's transports: bytes keep their order over each change."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.patience import PATIENCE_S
from tests.sockets.net.core_ingress import eventually
from tests.sockets.net.dialing import dialed, dialer_to, local, run
from tests.unit.net.upstream_wire import KIB, Sink, asked
from velox.net.upstream.http1 import Http1Connection
from velox.protocol.http1 import write as http1_write

HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def alone(n: int) -> bytes:
    """Return a chunk whose data tells which one it is."""
    return http1_write.chunk(b"data: %08d of the reply\n\n" % n)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Http1Connection, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, and the upstream's end of it."""
    ends: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda *end: ends.put_nowait(end), "127.0.0.1", 0)
    async with (
        server,
        asyncio.timeout(PATIENCE_S),
        dialed(dialer_to(local(server.sockets[0].getsockname()[1]))) as connection,
    ):
        assert isinstance(connection, Http1Connection)
        reader, writer = await ends.get()
        yield connection, reader, writer
        writer.close()


async def say(writer: asyncio.StreamWriter, data: bytes, sink: Sink, body: bytes) -> None:
    """Send it, and wait until the sink has all that was sent so far."""
    writer.write(data)
    await eventually(lambda: len(sink.body) >= len(body))
    assert sink.body == body


async def begun(connection: Http1Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Sink:
    """Begin a reply, and bring it to where its reads come as bytes."""
    sink, body = Sink(takes_chunks=True), b""
    connection.open(asked(), sink)
    await reader.readuntil(b"\r\n\r\n")
    for n, data in enumerate((HEAD + alone(0), alone(1), alone(2))):
        body += alone(n)[4:-2]
        await say(writer, data, sink, body)
    assert connection._passes_by
    return sink


def test_all_ways_of_reading_follow_each_other() -> None:
    """Pieces that come alone, hundreds of kilobytes at once, a pause with a backlog, the end, and the next reply."""

    async def test() -> None:
        async with connected() as (connection, reader, writer):
            for turn in range(3):
                sink, body = Sink(takes_chunks=True), b""
                connection.open(asked(), sink)
                await reader.readuntil(b"\r\n\r\n")
                writer.write(HEAD)
                await eventually(lambda: sink.head is not None)  # noqa: B023 - awaited in the turn
                for n in range(5):
                    body += alone(n)[4:-2]
                    await say(writer, alone(n), sink, body)
                assert sink.n_chunks >= 4 and connection._passes_by, turn
                body += b"".join(alone(n)[4:-2] for n in range(40_000))
                await say(writer, b"".join(alone(n) for n in range(40_000)), sink, body)
                for n in range(3):
                    body += alone(n)[4:-2]
                    await say(writer, alone(n), sink, body)
                assert connection._passes_by
                connection.pause()
                assert not connection._passes_by
                n_bytes = len(sink.body)
                for n in range(2_000):
                    writer.write(alone(n))
                    body += alone(n)[4:-2]
                await writer.drain()
                assert len(sink.body) == n_bytes
                connection.resume()
                await say(writer, http1_write.LAST_CHUNK, sink, body)
                await eventually(lambda: sink.ended)  # noqa: B023 - awaited in the turn
                assert connection.n_rooms == 1 and not connection._passes_by

    run(test())


def test_idle_connection_keeps_nothing_of_the_reply_before() -> None:
    """uvloop holds on to what it was given: a pool's idle connections would each hold a dead reply."""

    async def test() -> None:
        async with connected() as (connection, reader, writer):
            sink = await begun(connection, reader, writer)
            await say(writer, http1_write.LAST_CHUNK, sink, sink.body)
            await eventually(lambda: connection.n_rooms == 1)
            kept = weakref.ref(sink)
            del sink
            gc.collect()
            assert kept() is None

    run(test())


def test_upstream_that_cuts_its_reply_is_heard() -> None:
    """The connection's end arrives, whoever is the transport's protocol at that time."""

    async def test() -> None:
        async with connected() as (connection, reader, writer):
            sink = await begun(connection, reader, writer)
            writer.transport.abort()
            await eventually(lambda: sink.failure is not None)
            assert not sink.ended and not connection._passes_by and connection.is_closed

    run(test())


def test_memory_of_a_reply_that_is_read_by_nobody() -> None:
    """What is behind the pause stays with the kernel: one read may come, no more."""

    async def test() -> None:
        async with connected() as (connection, reader, writer):
            sink = await begun(connection, reader, writer)
            writer.write(b"".join(alone(n) for n in range(100_000)))
            while len(sink.body) < 128 * KIB:
                before = len(sink.body)
                await asyncio.sleep(0)
                assert len(sink.body) - before <= (250 + 128) * KIB
            connection.pause()
            held = len(sink.body)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(sink.body) == held

    run(test())
