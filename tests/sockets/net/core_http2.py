"""An ingress that speaks HTTP/2 on a real socket, and a client of it on h2 that does what a test says."""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, cast

import uvloop
from h2.config import H2Configuration
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingAckReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from tests.patience import NEVER_S, PATIENCE_S
from tests.sockets.net.core_ingress import App, eventually, sweep
from velox.heads import Header
from velox.net.application import ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.ingress import Ingress
from velox.protocol.http1.request import Http1Limits
from velox.protocol.http2.engines import engine_factory
from velox.protocol.http2.h2_engine import WireConnection

__all__ = ["ENGINES", "GET", "NOTICE", "POST", "LaterLoop", "Name", "PeerClient", "Server", "asked", "run", "serve"]

Name = Literal["ngh2", "h2"]
ENGINES: Final[tuple[Name, ...]] = ("ngh2", "h2")
# RFC 9113 §6.8: the last stream of a GOAWAY that names none yet.
NOTICE: Final = 2**31 - 1
_BASE: Final[list[Header]] = [(b":scheme", b"http"), (b":authority", b"gateway.test")]
GET: Final = [(b":method", b"GET"), *_BASE, (b":path", b"/v1/models")]
POST: Final = [(b":method", b"POST"), *_BASE, (b":path", b"/v1/chat/completions")]


class PeerClient:
    """One connection, and what came on it, by stream. Windows are opened again for all streams but those in `held`."""

    def __init__(self, sock: socket.socket, *, window: int = 65_535, checks: bool = True) -> None:
        """window: how much of each reply may come before it is acknowledged. checks: h2 refuses to send nonsense."""
        config = H2Configuration(
            client_side=True,
            header_encoding=None,
            validate_outbound_headers=checks,
            normalize_outbound_headers=checks,
        )
        self.http2: Final = WireConnection(config)  # h2 itself takes any GOAWAY for the end
        self.sock: Final = sock
        self.heads: Final[dict[int, list[Header]]] = {}
        self.interim: Final[list[int]] = []
        self.bodies: Final[defaultdict[int, bytes]] = defaultdict(bytes)
        self.ended: Final[list[int]] = []
        self.resets: Final[dict[int, int]] = {}
        self.goaways: Final[list[tuple[int, int]]] = []
        self.held: Final[set[int]] = set()
        self.n_pongs = 0
        self.is_closed = False
        self.is_reset = False
        self.http2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
        self.http2.local_settings.acknowledge()
        self.http2.initiate_connection()
        # Of the connection: large, so that the streams' own windows are what a test is about.
        self.http2.increment_flow_control_window(1 << 24)

    def status(self, stream_id: int) -> int:
        return int(dict(self.heads[stream_id])[b":status"])

    def request(self, headers: Sequence[Header], body: bytes | None = None, *, end: bool = True) -> int:
        """Begin a request; it leaves with the next turn(). body: at most what the window lets through."""
        stream_id = self.http2.get_next_available_stream_id()
        self.http2.send_headers(stream_id, list(headers), end_stream=body is None and end)
        if body is not None:
            self.send(stream_id, body, end=end)
        return stream_id

    def send(self, stream_id: int, body: bytes, *, end: bool = False) -> None:
        """Send body bytes, in frames."""
        size = self.http2.max_outbound_frame_size
        for at in range(0, max(1, len(body)), size):
            self.http2.send_data(stream_id, body[at : at + size], end_stream=end and at + size >= len(body))

    async def say(self) -> None:
        """Send what is to be sent."""
        data = self.http2.data_to_send()
        if data:
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def turn(self) -> None:
        """Send, and take what comes in one read."""
        loop = asyncio.get_running_loop()
        await self.say()
        try:
            data = await loop.sock_recv(self.sock, 65_536)
        except ConnectionResetError:
            self.is_closed = self.is_reset = True
            return
        self.is_closed = not data
        for event in self.http2.receive_data(data):
            self._note(event)
        assert not self.http2.fault, self.http2.fault
        await self.say()

    def _note(self, event: Event) -> None:
        match event:
            case ResponseReceived():
                self.heads[event.stream_id] = [(bytes(name), bytes(value)) for name, value in event.headers]
            case InformationalResponseReceived():
                self.interim.append(event.stream_id)
            case DataReceived():
                self.bodies[event.stream_id] += event.data
                self._acknowledge(event.stream_id, event.flow_controlled_length)
            case StreamEnded():
                self.ended.append(event.stream_id)
            case StreamReset():
                self.resets[event.stream_id] = int(event.error_code)
            case PingAckReceived():
                self.n_pongs += 1
            case ConnectionTerminated():
                self.goaways.append((event.last_stream_id or 0, int(event.error_code or 0)))

    def _acknowledge(self, stream_id: int, n_bytes: int) -> None:
        if stream_id in self.held:
            return
        try:
            self.http2.acknowledge_received_data(n_bytes, stream_id)
        except ProtocolError:
            pass  # its stream has ended

    def open_window(self, stream_id: int, n_bytes: int) -> None:
        """Let so much more of a reply come."""
        self.http2.increment_flow_control_window(n_bytes, stream_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read until it is so, or until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                assert not self.is_closed, f"closed; ended={self.ended} resets={self.resets} goaways={self.goaways}"
                await self.turn()

    async def until_closed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.is_closed:
                await self.turn()

    async def whole(self, *stream_ids: int) -> None:
        """Read until these replies are whole."""
        await self.until(lambda: set(stream_ids) <= set(self.ended))


class Server:
    """An ingress that listens. crashes: what the loop had to report."""

    def __init__(self, ingress: Ingress) -> None:
        self.ingress: Final = ingress
        self.crashes: Final[list[dict[str, object]]] = []
        self.address: tuple[str, int] = ("127.0.0.1", 0)
        self.socks: Final[list[socket.socket]] = []  # of clients, closed at the end

    async def connect(self, *, receive_bytes: int = 0) -> socket.socket:
        """Connect a client; receive_bytes: how much its kernel takes before it is read."""
        sock = socket.socket()
        self.socks.append(sock)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.address)
        return sock

    async def client(self, *, window: int = 65_535, checks: bool = True, receive_bytes: int = 0) -> PeerClient:
        """Connect, and wait for what the server says first: how much may be sent at once."""
        client = PeerClient(await self.connect(receive_bytes=receive_bytes), window=window, checks=checks)
        await client.until(lambda: client.http2.outbound_flow_control_window > 65_535)
        return client


class LaterLoop:
    """The loop, at another time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self.later_s = 0.0
        self.call_soon: Final = loop.call_soon
        self.call_later: Final = loop.call_later

    def time(self) -> float:
        return self._loop.time() + self.later_s


@asynccontextmanager
async def serve(
    app: App,
    engine: Name | None,
    *,
    alpn: str | None = None,
    budget: int = 1 << 20,
    body_bytes: int = 1 << 20,
    max_connections: int = 100,
    header_s: float = NEVER_S,
    body_s: float = NEVER_S,
    keepalive_s: float = NEVER_S,
    write_s: float = NEVER_S,
    ingress_loop: LaterLoop | None = None,
) -> AsyncIterator[Server]:
    """Serve; afterwards no connection, no body and no exception is left. engine: None for a gateway without HTTP/2.

    ingress_loop: what the ingress takes for the loop.
    """
    loop = asyncio.get_running_loop()
    timeouts = ClientTimeouts(header_s=header_s, body_s=body_s, keepalive_s=keepalive_s, write_s=write_s)
    ingress = Ingress(
        app,
        Http1Limits(body_bytes=body_bytes),
        timeouts,
        BodyBudget(budget, 0.5, loop.time),
        cast(asyncio.AbstractEventLoop, ingress_loop or loop),
        max_connections=max_connections,
        http2=None if engine is None else engine_factory(engine),
    )
    server = Server(ingress)
    loop.set_exception_handler(lambda _loop, context: server.crashes.append(context))
    sweeping = asyncio.create_task(sweep(ingress))
    listening = await loop.create_server(lambda: ingress.connection(alpn), "127.0.0.1", 0)
    server.address = listening.sockets[0].getsockname()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield server
    finally:
        for sock in server.socks:
            sock.close()
        sweeping.cancel()
        ingress.stop()
        listening.close()
        for _ in range(5):
            await asyncio.sleep(0)
    assert server.crashes == [], "no callback may raise"
    assert app.crashes == [], "nor what is contained to a stream"
    assert ingress.budget.taken_bytes == 0, "every body is given back"
    assert not ingress.connections and not ingress.paused and ingress.n_http2 == 0


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a test on the loop of production."""
    uvloop.run(main())


async def asked(client: PeerClient, app: App, n: int) -> list[int]:
    """Send n requests; return when the application has them."""
    n_before = len(app.exchanges)
    ids = [client.request(GET) for _ in range(n)]
    await client.say()
    await eventually(lambda: len(app.exchanges) == n_before + n)
    return ids
