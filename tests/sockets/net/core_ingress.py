"""A client's connection on a real socket, with an application that does what a test says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from tests.patience import NEVER_S, PATIENCE_S
from velox.errors import VeloxError
from velox.heads import RequestHead
from velox.net.application import Client, ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.ingress import Ingress
from velox.protocol.http1.request import Http1Limits
from velox.protocol.http2.engine import EngineFactory
from velox.types import ANYONE, Caller

__all__ = ["App", "Exchange", "Server", "eventually", "listening", "serve"]


class Exchange:
    """Notes what the connection tells of its client."""

    def __init__(self, client: Client, head: RequestHead, body: bytes | bytearray | None) -> None:
        self.client: Final = client
        self.head: Final = head
        self.body: Final = body
        self.gone: Final = asyncio.Event()
        self.paused: Final = asyncio.Event()
        self.n_resumed = 0
        self.stalled = False

    def client_gone(self, *, stalled: bool = False) -> None:
        self.stalled = stalled
        self.gone.set()

    def client_paused(self) -> None:
        self.paused.set()

    def client_resumed(self) -> None:
        self.n_resumed += 1

    def answer(self, body: bytes = b"ok") -> None:
        """Reply as a whole, and finish."""
        self.client.begin_reply(200, [], len(body), body, True, has_body=True)
        self.client.finish()


class App:
    """Takes every request; `on_request` may answer it, in the turn after it came."""

    def __init__(self, on_request: Callable[[Exchange], None] | None = None) -> None:
        self.exchanges: Final[list[Exchange]] = []
        self.errors: Final[list[VeloxError]] = []
        self.crashes: Final[list[Exception]] = []
        self._on_request: Final = on_request

    def check_head(self, head: RequestHead) -> Caller:
        return ANYONE

    def submit(self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller) -> Exchange:
        exchange = Exchange(client, head, body)
        self.exchanges.append(exchange)
        if self._on_request is not None:
            asyncio.get_running_loop().call_soon(self._on_request, exchange)
        return exchange

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        self.errors.append(error)
        client.answer(error.status, [], b"", with_body=True, close=error.close)

    def crashed(self, exc: Exception) -> None:
        self.crashes.append(exc)


class Server:
    """An ingress that listens, and the clients that a test connects to it. crashes: what the loop had to report."""

    def __init__(
        self,
        app: App,
        *,
        write_s: float,
        budget: int,
        max_connections: int,
        min_rate: int,
        header_s: float = NEVER_S,
        http2: EngineFactory | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.app: Final = app
        self.crashes: Final[list[dict[str, object]]] = []
        loop.set_exception_handler(lambda _loop, context: self.crashes.append(context))
        self.budget: Final = BodyBudget(budget, 0.5, loop.time)
        timeouts = ClientTimeouts(
            header_s=header_s, body_s=NEVER_S, keepalive_s=NEVER_S, write_s=write_s, min_rate_bytes=min_rate
        )
        self.ingress: Final = Ingress(
            app, Http1Limits(), timeouts, self.budget, loop, max_connections=max_connections, http2=http2
        )
        self.address: tuple[str, int] = ("127.0.0.1", 0)

    async def connect(self, *, receive_bytes: int = 0) -> socket.socket:
        """Connect a client; receive_bytes: how much its kernel takes before it is read."""
        sock = socket.socket()
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.address)
        return sock


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def sweep(ingress: Ingress) -> None:
    """Look at the connections' deadlines as often as a worker does, until cancelled."""
    while True:
        await asyncio.sleep(0.25)
        asyncio.get_running_loop().call_soon(ingress.sweep)


@asynccontextmanager
async def serve(
    app: App,
    *,
    write_s: float = NEVER_S,
    budget: int = 1 << 20,
    max_connections: int = 100,
    min_rate: int = 0,
    http2: EngineFactory | None = None,
) -> AsyncIterator[Server]:
    server = Server(
        app, write_s=write_s, budget=budget, max_connections=max_connections, min_rate=min_rate, http2=http2
    )
    async with listening(server, server.ingress.connection):
        yield server


@asynccontextmanager
async def listening(server: Server, make: Callable[[], asyncio.BaseProtocol]) -> AsyncIterator[None]:
    """Listen while the block runs; nothing may have been raised in the loop. make: a connection's protocol."""
    sweeping = asyncio.create_task(sweep(server.ingress))
    listener = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    server.address = listener.sockets[0].getsockname()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield
    finally:
        sweeping.cancel()
        server.ingress.stop()
        listener.close()
    assert server.crashes == [], "no callback may raise"
