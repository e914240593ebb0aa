"""The playground on real sockets: the admin listener asks a gateway, and hands its answer on as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.admin.playground import Playground
from velox.admin.server import AdminServer
from velox.runtime.playground import OwnGateway

BODY: Final = b'{"model":"m","messages":[],"stream":true}'
LOGGER: Final = logging.getLogger("tests.playground")
# How long a test waits for what must come.
PATIENCE_S: Final = 10

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Fake:
    """A gateway that answers each request as a test says."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.left = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        self.n_open = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.n_open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            self.bodies.append(await reader.readexactly(size))
            await self._serve(reader, writer)
            if not await reader.read():
                self.left.set()
        except ConnectionError:
            self.left.set()
        finally:
            self.n_open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def running(serve: Serve, folder: Path | None = None) -> AsyncIterator[tuple[Fake, int]]:
    """Run a fake gateway, and an admin listener before it; return its port. folder: of the gateway's unix socket."""
    fake, loop = Fake(serve), asyncio.get_running_loop()
    if folder is None:
        gateway = await asyncio.start_server(fake, "127.0.0.1", 0)
        url = f"http://0.0.0.0:{gateway.sockets[0].getsockname()[1]}"
    else:
        gateway = await asyncio.start_unix_server(fake, folder / "velox.sock")
        url = f"unix:{folder / 'velox.sock'}"
    app = AdminApp(
        metrics=lambda: b"",
        ready=lambda: Readiness(alive=True, ready=True, reasons=()),
        profiles=None,
        playground=Playground(OwnGateway(url, None).send),
    )
    server = AdminServer(app, loop, LOGGER)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        listening = await server.listen(sock)
        try:
            yield fake, sock.getsockname()[1]
        finally:
            listening.close()
            server.stop()
            gateway.close()
            await asyncio.wait_for(asyncio.gather(*fake.tasks), PATIENCE_S)


class Page:
    """A connection of a browser to the admin listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.head = b""

    @classmethod
    async def open(cls, port: int) -> Page:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, key: str = "sk-client", body: bytes = BODY, whole: bytes | None = None) -> None:
        """Send a request, and read the head of its answer."""
        sent = b'{"key":%b,"body":%b}' % (json.dumps(key).encode(), body) if whole is None else whole
        self._writer.write(
            b"POST /playground HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(sent) + sent
        )
        self.head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), PATIENCE_S)

    @property
    def status(self) -> int:
        """Of the answer."""
        return int(self.head.split()[1])

    async def piece(self) -> bytes:
        """Return the next chunk, b"" for the last."""
        size = int(await asyncio.wait_for(self._reader.readline(), PATIENCE_S), 16)
        data = await self._reader.readexactly(size)
        await self._reader.readexactly(2)
        return data

    async def rest(self) -> bytes:
        """Return what comes until the connection ends."""
        return await asyncio.wait_for(self._reader.read(), PATIENCE_S)

    def leave(self) -> None:
        """Close the connection."""
        self._writer.close()


async def answer(writer: asyncio.StreamWriter, head: bytes, *pieces: bytes, end: bool = True) -> None:
    """Write an answer in chunks."""
    writer.write(b"HTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\n" % head)
    for piece in pieces:
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    if end:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


def test_stream_comes_piece_by_piece() -> None:
    """The first event is here before the second is written. The key goes as a client sends it."""

    async def run() -> None:
        go = asyncio.Event()

        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = b"content-type: text/event-stream\r\nx-velox-upstream: openai\r\nset-cookie: a=b\r\n"
            await answer(writer, head, b"data: 1\n\n", end=False)
            await go.wait()
            writer.write(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

        async with running(serve) as (fake, port):
            page = await Page.open(port)
            await page.ask()
            assert page.status == 200
            assert b"\r\nx-velox-upstream: openai\r\n" in page.head and b"set-cookie" not in page.head
            assert b"\r\ncontent-type: text/event-stream\r\n" in page.head
            assert await page.piece() == b"data: 1\n\n"
            go.set()
            assert [await page.piece(), await page.piece()] == [b"data: 2\n\n", b""]
            assert fake.bodies == [BODY]
            head = fake.heads[0].lower()
            assert head.startswith(b"post /v1/chat/completions ") and b"\r\nauthorization: bearer sk-client\r\n" in head
            page.leave()

    asyncio.run(run())


def test_page_that_leaves_ends_the_call_at_the_gateway() -> None:
    """Nobody pays for what nobody reads; the place is free for the next."""

    async def run() -> None:
        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answer(writer, b"content-type: text/event-stream\r\n", b"data: 1\n\n", end=False)

        async with running(serve) as (fake, port):
            for _ in range(6):  # more than run at once
                page = await Page.open(port)
                await page.ask()
                assert page.status == 200 and await page.piece()
                fake.left.clear()
                page.leave()
                await asyncio.wait_for(fake.left.wait(), PATIENCE_S)
            assert fake.n_open == 0

    asyncio.run(run())


def test_few_run_at_once() -> None:
    """The fifth is refused, and says when to come back."""

    async def run() -> None:
        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answer(writer, b"content-type: text/event-stream\r\n", b"data: 1\n\n", end=False)

        async with running(serve) as (_, port):
            pages = [await Page.open(port) for _ in range(5)]
            for page in pages[:4]:
                await page.ask()
            await pages[4].ask()
            assert [page.status for page in pages] == [200, 200, 200, 200, 429]
            assert b"\r\nretry-after: 5\r\n" in pages[4].head
            for page in pages:
                page.leave()

    asyncio.run(run())


def test_stream_that_breaks_off_is_not_taken_for_whole() -> None:
    """No last chunk: the page sees that something is missing."""

    async def run() -> None:
        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answer(writer, b"content-type: text/event-stream\r\n", b"data: 1\n\n", end=False)
            writer.close()

        async with running(serve) as (_, port):
            page = await Page.open(port)
            await page.ask()
            assert not (await page.rest()).endswith(b"0\r\n\r\n")
            page.leave()

    asyncio.run(run())


def test_error_of_the_gateway_comes_as_it_is() -> None:
    """With its status, and as JSON; what is no JSON is text, never a page."""

    async def run() -> None:
        kinds = [b"application/json", b"text/html", b""]

        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            kind = kinds.pop(0)
            more = b"content-type: %b\r\n" % kind if kind else b""
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\n%bretry-after: 7\r\ncontent-length: 2\r\n\r\n{}" % more)

        async with running(serve) as (_, port):
            for kind in (b"application/json", b"text/plain; charset=utf-8", b"text/plain; charset=utf-8"):
                page = await Page.open(port)
                await page.ask()
                assert page.status == 429 and b"\r\nretry-after: 7\r\n" in page.head
                assert b"\r\ncontent-type: %b\r\n" % kind in page.head
                page.leave()

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent",
    [
        *(b"", b"[]", b"{}", b'{"key":"k"}', b'{"body":{},"key":1}', b'{"body":{},"more":1}'),
        b'{"body":{},"key":"a\\r\\nx: y"}',
    ],
)
def test_other_bodies_are_refused_and_go_nowhere(sent: bytes) -> None:
    """400, before anybody is asked."""

    async def run() -> None:
        async def serve(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            raise AssertionError("nothing may come here")

        async with running(serve) as (fake, port):
            page = await Page.open(port)
            await page.ask(whole=sent)
            assert page.status == 400 and fake.heads == []
            page.leave()

    asyncio.run(run())


def test_gateway_on_a_unix_socket_is_asked_there(tmp_path: Path) -> None:
    """A gateway may have no other listener. Without a key none is sent."""

    async def run() -> None:
        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

        async with running(serve, tmp_path) as (fake, port):
            page = await Page.open(port)
            await page.ask(key="")
            assert page.status == 200 and await page.piece() == b"{}"
            assert b"authorization" not in fake.heads[0].lower()
            page.leave()

    asyncio.run(run())


def test_gateway_that_does_not_listen_is_named() -> None:
    """502 with its address; the listener goes on."""

    async def run() -> None:
        gateway = OwnGateway("http://127.0.0.1:1", None)
        app = AdminApp(
            metrics=lambda: b"",
            ready=lambda: Readiness(alive=True, ready=True, reasons=()),
            profiles=None,
            playground=Playground(gateway.send),
        )
        server = AdminServer(app, asyncio.get_running_loop(), LOGGER)
        with socket.create_server(("127.0.0.1", 0)) as sock:
            listening = await server.listen(sock)
            for _ in range(6):
                page = await Page.open(sock.getsockname()[1])
                await page.ask()
                assert page.status == 502
                page.leave()
            listening.close()
            server.stop()

    asyncio.run(run())
