"""A client's connection: clients that read slowly, leave half, or send ahead."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable

import pytest
import uvloop

from tests.patience import PATIENCE_S
from tests.sockets.net.core_ingress import App, Exchange, eventually, serve

OLD_GET = b"GET /v1/models HTTP/1.0\r\n\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
MIB = 1 << 20


def test_client_that_pipelines_and_does_not_read_is_served_no_further() -> None:
    """A request waits until the reply before it has left; else its replies gather in our memory."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer(bytes(4 * MIB)))
        async with serve(app, write_s=0.3) as server:
            client = await server.connect(receive_bytes=4096)
            await asyncio.get_running_loop().sock_sendall(client, GET * 50)
            await eventually(lambda: bool(app.exchanges))
            # The write timer ends it: also when the reply is whole and only waits for the client.
            await eventually(lambda: not server.ingress.connections)
            assert len(app.exchanges) == 1
            client.close()

    uvloop.run(main())


def test_request_sent_ahead_is_served_when_the_reply_before_it_has_left() -> None:
    """The other half: a client that reads late still gets every answer, in order."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer(bytes(4 * MIB)))
        async with serve(app) as server:
            loop = asyncio.get_running_loop()
            client = await server.connect(receive_bytes=4096)
            await loop.sock_sendall(client, GET * 3)
            await eventually(lambda: len(app.exchanges) == 1)
            got = 0
            while got < 3 * 4 * MIB:
                got += len(await loop.sock_recv(client, MIB))
            assert len(app.exchanges) == 3
            client.close()

    uvloop.run(main())


def test_client_that_reads_slowly_but_steadily_is_not_cut() -> None:
    """F-45: the timer is for a client that takes nothing, not for one that takes its time."""

    async def main() -> None:
        def answer(exchange: Exchange) -> None:  # and it is not finished
            exchange.client.begin_reply(200, [], None, bytes(6 * MIB), False, has_body=True)

        app = App(answer)
        async with serve(app, write_s=0.4) as server:
            loop = asyncio.get_running_loop()
            client = await server.connect(receive_bytes=4096)
            await loop.sock_sendall(client, GET)
            got, began_s = 0, time.monotonic()
            while got < 6 * MIB:
                data = await loop.sock_recv(client, 64 * 1024)
                assert data, f"cut after {got} bytes and {time.monotonic() - began_s:.1f} s"
                got += len(data)
                # Half of the buffer within three times what a client that takes nothing would get.
                late_s = began_s + 2.4 * got / (6 * MIB) - time.monotonic()
                await asyncio.sleep(max(0.0, late_s))
            client.close()

    uvloop.run(main())


def begin_without_length(exchange: Exchange) -> None:
    """Begin a reply that to HTTP/1.0 only the connection's close ends."""
    exchange.client.begin_reply(200, [], None, bytes(4 * MIB), False, has_body=True)


def end_without_length(exchange: Exchange) -> None:
    """Reply as a whole."""
    begin_without_length(exchange)
    exchange.client.finish()


@pytest.mark.parametrize("reply", [begin_without_length, end_without_length])
def test_reply_that_ends_at_close_is_reset_while_part_of_it_waits(reply: Callable[[Exchange], None]) -> None:
    """Whatever closes the connection then, nobody takes the part for the whole."""

    async def main() -> None:
        app = App(reply)
        async with serve(app) as server:
            loop = asyncio.get_running_loop()
            client = await server.connect(receive_bytes=4096)
            await loop.sock_sendall(client, OLD_GET)
            assert await loop.sock_recv(client, 1000)
            server.ingress.stop()
            with pytest.raises(ConnectionResetError):
                while await loop.sock_recv(client, MIB):
                    pass
            client.close()

    uvloop.run(main())


def test_reply_that_ends_at_close_ends_cleanly_when_all_of_it_was_taken() -> None:
    """A client that reads slowly gets every byte, then the end and no reset."""

    async def main() -> None:
        app = App(end_without_length)
        async with serve(app) as server:
            loop = asyncio.get_running_loop()
            client = await server.connect(receive_bytes=4096)
            await loop.sock_sendall(client, OLD_GET)
            got = b""
            while piece := await loop.sock_recv(client, 64 * 1024):
                got += piece
            assert len(got.partition(b"\r\n\r\n")[2]) == 4 * MIB
            client.close()
            await eventually(lambda: not server.ingress.connections)

    uvloop.run(main())


def test_half_closed_client_is_gone_at_once_though_it_has_not_read() -> None:
    """What it did not read must not keep its exchange alive."""

    async def main() -> None:
        def answer(exchange: Exchange) -> None:
            exchange.client.begin_reply(200, [], None, bytes(4 * MIB), False, has_body=True)

        app = App(answer)
        async with serve(app) as server:
            client = await server.connect(receive_bytes=4096)
            await asyncio.get_running_loop().sock_sendall(client, GET)
            await eventually(lambda: bool(app.exchanges))
            await app.exchanges[0].paused.wait()
            client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(PATIENCE_S):
                await app.exchanges[0].gone.wait()
            client.close()

    uvloop.run(main())


def test_drain_closes_idle_connections_without_waiting_for_their_clients() -> None:
    """A pooled client does not look at its idle connections: a drain must not wait until it does."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app) as server:
            loop = asyncio.get_running_loop()
            client = await server.connect()
            await loop.sock_sendall(client, GET)
            assert (await loop.sock_recv(client, 4096)).endswith(b"ok")
            server.ingress.drain()
            async with asyncio.timeout(PATIENCE_S):
                while server.ingress.connections:
                    await asyncio.sleep(0.01)
            assert await loop.sock_recv(client, 1) == b""
            client.close()

    uvloop.run(main())


def test_client_that_resets_after_its_request_breaks_nothing() -> None:
    """The answer is written to a socket that is dead already: no callback may raise."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app) as server:
            for request in (GET, b"BAD\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"):
                for _ in range(10):
                    client = await server.connect()
                    client.send(request)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.close()
            await eventually(lambda: not server.ingress.connections)

    uvloop.run(main())
