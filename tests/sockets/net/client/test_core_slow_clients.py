"""Clients that are slow on purpose, that leave unseen, or come in crowds: each is ended in time, on a real socket."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import uvloop

from tests.sockets.net.core_ingress import App, Exchange, Server, eventually, serve
from velox.net.client.backlog import unsent_bytes

GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
LAST_GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
MIB = 1 << 20


def begin_large(exchange: Exchange) -> None:
    """Answer with 8 MiB, and no end yet."""
    exchange.client.begin_reply(200, [], None, bytes(8 * MIB), False, has_body=True)


def test_client_that_reads_a_trickle_is_cut() -> None:
    """F-45: 4 KB now and then is not silence, but far below the rate; it would hold its slot for ever."""

    async def main() -> None:
        app = App(begin_large)
        async with serve(app, write_s=0.5, min_rate=10 * MIB) as server:
            loop = asyncio.get_running_loop()
            client = await server.connect(receive_bytes=65536)
            await loop.sock_sendall(client, GET)
            await eventually(lambda: bool(app.exchanges))
            n_read = 0
            while not app.exchanges[0].gone.is_set():
                n_read += len(await loop.sock_recv(client, 4096))
                await asyncio.sleep(0.005)  # the client is slow: this is what the test is about
            assert app.exchanges[0].stalled
            assert n_read < 8 * MIB, "it was cut long before it had all"
            client.close()

    uvloop.run(main())


def test_client_that_reads_faster_than_the_rate_gets_all_however_long_it_takes() -> None:
    """The other half: far longer than the time-out, and never faster than the client wants."""

    async def main() -> None:
        app = App(begin_large)
        async with serve(app, write_s=0.3, min_rate=16 * 1024) as server:
            loop = asyncio.get_running_loop()
            client = await server.connect(receive_bytes=65536)
            began_s = time.monotonic()
            await loop.sock_sendall(client, GET)
            n_read = 0
            while n_read < 8 * MIB:
                n_read += len(await loop.sock_recv(client, 65536))
                await asyncio.sleep(0.01)
            assert time.monotonic() - began_s > 3 * 0.3, "this test shows nothing if it is over too soon"
            assert not app.exchanges[0].gone.is_set()
            client.close()

    uvloop.run(main())


def test_last_reply_reaches_a_client_that_reads_it_slowly() -> None:
    """A connection that closes waits for a client that takes its reply, not only for as long as one look."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer(bytes(8 * MIB)))
        async with serve(app, write_s=0.3, min_rate=1024) as server:
            loop = asyncio.get_running_loop()
            client = await server.connect(receive_bytes=65536)
            await loop.sock_sendall(client, LAST_GET)
            n_read = 0
            while piece := await loop.sock_recv(client, 65536):
                n_read += len(piece)
                await asyncio.sleep(0.01)
            assert n_read > 8 * MIB
            client.close()

    uvloop.run(main())


def test_client_that_leaves_while_it_is_not_read_from_is_gone() -> None:
    """It had sent so much ahead that reading was stopped: its close is seen all the same."""

    async def main() -> None:
        app = App()
        async with serve(app) as server:
            loop = asyncio.get_running_loop()
            client = await server.connect()
            await loop.sock_sendall(client, GET)
            await eventually(lambda: bool(app.exchanges))
            await loop.sock_sendall(client, b"x" * 100_000)
            await eventually(lambda: bool(server.ingress.paused))
            client.close()
            await eventually(lambda: not server.ingress.connections)
            assert app.exchanges[0].gone.is_set()
            assert not server.ingress.paused

    uvloop.run(main())


def test_client_that_leaves_while_its_body_waits_for_room_gives_up_its_place() -> None:
    """Nobody behind it waits for a client that is not there any more."""

    async def main() -> None:
        app = App()
        async with serve(app, budget=100) as server:
            loop = asyncio.get_running_loop()
            post = b"POST /v1/models HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
            holder, waiter, small = [await server.connect() for _ in range(3)]
            await loop.sock_sendall(holder, post)
            await eventually(lambda: server.budget.taken_bytes == 100)
            await loop.sock_sendall(waiter, post)
            await eventually(lambda: len(server.ingress.paused) == 1)
            await loop.sock_sendall(small, post.replace(b"100", b"1") + b"x")
            await eventually(lambda: len(server.ingress.paused) == 2)
            waiter.close()
            await eventually(lambda: len(server.ingress.connections) == 2)
            holder.close()
            await eventually(lambda: len(app.exchanges) == 1)
            assert not app.errors
            small.close()

    uvloop.run(main())


def open_files() -> int:
    """Return how many descriptors this process has."""
    return len([*Path("/proc/self/fd").iterdir()])


async def read_refusal(server: Server, *, send: bool) -> bytes:
    """Connect, ask or say nothing, and read to the end."""
    loop = asyncio.get_running_loop()
    client = await server.connect()
    try:
        if send:
            await loop.sock_sendall(client, LAST_GET)
        found = b""
        while piece := await loop.sock_recv(client, 65536):
            found += piece
        return found
    except OSError:
        return found
    finally:
        client.close()


@pytest.mark.parametrize("send", [True, False])
def test_crowd_beyond_the_limit_is_told_and_holds_nothing(*, send: bool) -> None:
    """Each of 90 reads its 503, those inside go on, and few descriptors are held by the refused."""

    async def main() -> None:
        app = App(lambda exchange: exchange.answer())
        async with serve(app, max_connections=4) as server:
            loop = asyncio.get_running_loop()
            inside = [await server.connect() for _ in range(4)]
            await eventually(lambda: len(server.ingress.connections) == 4)
            told = await asyncio.gather(*(read_refusal(server, send=send) for _ in range(90)))
            assert all(reply.startswith(b"HTTP/1.1 503 ") for reply in told)
            for client in inside:
                await loop.sock_sendall(client, GET)
                assert (await loop.sock_recv(client, 65536)).startswith(b"HTTP/1.1 200 ")
                client.close()
            await eventually(lambda: not server.ingress.connections)
            assert (await read_refusal(server, send=True)).startswith(b"HTTP/1.1 200 "), "there is room again"

    uvloop.run(main())


def test_refused_clients_that_never_close_hold_few_descriptors() -> None:
    """A flood that is told and stays: only some are waited for, the others are closed at once."""

    async def main() -> None:
        async with serve(App(), max_connections=1) as server:
            inside = await server.connect()
            await eventually(lambda: len(server.ingress.connections) == 1)
            before = open_files()
            flood = [await server.connect() for _ in range(90)]
            # All have been accepted when each has something to read.
            for client in flood:
                await asyncio.get_running_loop().sock_recv(client, 16)
            assert len(server.ingress.connections) <= 1 + 16 + 2
            assert open_files() - before <= len(flood) + 16 + 2
            for client in (inside, *flood):
                client.close()

    uvloop.run(main())


def test_reply_that_the_kernel_holds_is_not_taken_yet() -> None:
    """What is in the kernel's buffer was written and not taken; the number is the kernel's own."""

    async def main() -> None:
        app = App(begin_large)
        async with serve(app) as server:
            client = await server.connect(receive_bytes=4096)
            await asyncio.get_running_loop().sock_sendall(client, GET)
            await eventually(lambda: bool(app.exchanges) and app.exchanges[0].paused.is_set())
            (connection,) = server.ingress.connections
            transport = connection._transport
            assert transport is not None
            assert 8 * MIB - 64 * 1024 < unsent_bytes(transport) <= 8 * MIB + 200
            assert transport.get_write_buffer_size() < unsent_bytes(transport)
            client.close()

    uvloop.run(main())


def test_large_piece_that_a_client_does_not_take_needs_room() -> None:
    """One event of a translation may be 32 MiB. Without room the client that takes its time is cut; room comes back."""

    async def main() -> None:
        app = App(begin_large)
        async with serve(app, write_s=30.0, budget=16 * MIB) as server:
            loop, budget = asyncio.get_running_loop(), server.ingress.budget
            first, second = [await server.connect(receive_bytes=4096) for _ in range(2)]
            await loop.sock_sendall(first, GET)
            await eventually(lambda: bool(app.exchanges))
            assert 4 * MIB < budget.taken_bytes < 8 * MIB

            await loop.sock_sendall(second, GET)
            await eventually(lambda: len(app.exchanges) == 2 and app.exchanges[1].gone.is_set())
            assert app.exchanges[1].stalled and not app.exchanges[0].gone.is_set()

            n_read = 0
            while n_read < 8 * MIB:
                n_read += len(await loop.sock_recv(first, MIB))
            await eventually(lambda: budget.taken_bytes == 0)
            await loop.sock_sendall(third := await server.connect(receive_bytes=4096), GET)
            await eventually(lambda: budget.taken_bytes > 4 * MIB)
            third.close()
            await eventually(lambda: budget.taken_bytes == 0)
            for client in (first, second):
                client.close()

    uvloop.run(main())
