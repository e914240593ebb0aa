"""The simulator's life: listens, finds out which HTTP a client speaks, closes its port for a time, shuts down.

Knows: addresses, TLS, ALPN, the HTTP/2 preface. Does not know: routes, frames, the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import uvloop

from velox_sim.app import Simulator
from velox_sim.backend import Backend, Pace
from velox_sim.engine import Engine, Outage
from velox_sim.http1 import Http1Connection
from velox_sim.http2 import Http2Connection
from velox_sim.options import SimOptions

__all__ = ["Listener", "SimServer", "SimStatistics", "run", "start"]

_BACKLOG: Final = 4096  # a load test opens its connections all at once; the kernel caps it at somaxconn
_TLS_HANDSHAKE_S: Final = 10.0


class Listener:
    """Where clients connect. open() it first, and close() it at the end."""

    def __init__(
        self, options: SimOptions, front: Callable[[], asyncio.Protocol], sock: socket.socket | None = None
    ) -> None:
        """front: makes the protocol of a new connection. sock: a bound stream socket to listen on instead of host and
        port; it belongs to the listener, which can't be opened again once it was shut.

        Raises ssl.SSLError or OSError for a bad certificate, OSError when the address can't be bound.
        """
        self._loop: Final = asyncio.get_running_loop()
        self._front: Final = front
        self._tls: Final = _tls_context(options)
        self._host: Final = options.host
        self._sock: Final = sock
        self._server: asyncio.Server | None = None
        # While the port is closed it stays bound, or the kernel could give it to another process; who connects is
        # refused, as nobody listens.
        self._held: Final = _bound(options) if options.flap_as == "refuse" and options.flap and not sock else None
        self.port = self._held.getsockname()[1] if self._held else options.port

    def __repr__(self) -> str:
        return f"<Listener {self._host}:{self.port} {'open' if self._server else 'closed'}>"

    async def open(self) -> None:
        """Listen, unless it does already. Raises OSError when the address can't be bound."""
        if self._server is not None:
            return
        if self._sock is not None:
            where: dict[str, Any] = {"sock": self._sock}
        else:
            where = {"host": self._host, "port": self.port, "reuse_address": True}
        self._server = await self._loop.create_server(
            self._front,
            **where,
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=_TLS_HANDSHAKE_S if self._tls else None,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Refuse who connects; the connections there are go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Shut, and give the port back."""
        self.shut()
        if self._held is not None:
            self._held.close()


def _bound(options: SimOptions) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
    held = socket.socket(family, kind, protocol)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(place)
    except OSError:
        held.close()
        raise
    return held


def _tls_context(options: SimOptions) -> ssl.SSLContext | None:
    if options.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(options.cert_file, options.key_file)
    context.set_alpn_protocols(["h2", "http/1.1"] if options.http2 else ["http/1.1"])
    return context


_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113 §3.4


@dataclass(frozen=True, slots=True)
class SimStatistics:
    """What there is now, and counts since the start. n_cancelled: answers whose client left too early.

    n_queued_bytes: of answers, waiting for their clients to read.
    """

    n_connections: int
    n_running: int
    n_queued_bytes: int
    n_requests: int
    n_cancelled: int


class SimServer:
    """A listening simulator."""

    def __init__(self, listener: Listener, backend: Backend, options: SimOptions, outage: Outage | None = None) -> None:
        """outage: while it lasts, the port is closed."""
        self._listener: Final = listener
        self._backend: Final = backend
        self.port: Final[int] = listener.port
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.url: Final = f"{'https' if options.cert_file else 'http'}://{host}:{self.port}"
        self._outage_task: Final = asyncio.create_task(self._keep(outage), name="outage") if outage else None

    def __repr__(self) -> str:
        return f"<SimServer {self.url} {self.statistics()}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def statistics(self) -> SimStatistics:
        """Return a snapshot."""
        backend = self._backend
        return SimStatistics(
            n_connections=len(backend.connections),
            n_running=sum(connection.n_running for connection in backend.connections),
            n_queued_bytes=sum(connection.n_queued_bytes for connection in backend.connections),
            n_requests=backend.n_requests,
            n_cancelled=backend.n_cancelled,
        )

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop listening, let running answers end within grace_s, then cut what is left.

        Idle connections close at once; clients on HTTP/2 get GOAWAY, those on HTTP/1.1 a `connection: close`
        on answers that have not begun.
        """
        if self._outage_task is not None:
            self._outage_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._outage_task
        self._listener.close()
        self._backend.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._backend.wait_empty()
        self._backend.abort()
        await self._backend.wait_empty()

    async def _keep(self, outage: Outage) -> None:
        """Shut and open the listener as the outage comes and goes. Answers that run then go on to their end."""
        while True:
            if outage.is_now():
                self._listener.shut()
                self._backend.send_away()
            else:
                await self._listener.open()
            await asyncio.sleep(outage.change_in_s())


async def start(options: SimOptions, *, sock: socket.socket | None = None) -> SimServer:
    """Listen and answer on the running loop.

    sock: a bound stream socket to listen on instead of host and port; the server closes it.
    Raises OSError when the address can't be bound, ssl.SSLError or OSError for a bad certificate, ValueError for a
    `sock` whose port would have to be closed and opened again (options.flap_as).
    """
    loop = asyncio.get_running_loop()
    pace = Pace(options.ttft_s, options.token_rate)
    engine = Engine(loop, options.capacity, shares=options.batch_slowdown)
    outage = Outage(*options.flap, loop.time) if options.flap else None
    closes = options.flap_as == "refuse"
    if sock is not None and outage is not None and closes:
        raise ValueError("flap as refuse needs a host and a port; expected no socket")
    backend = Backend(Simulator(options, time.time, engine, None if closes else outage), pace, engine)

    def front() -> _PrefaceDetector:
        return _PrefaceDetector(backend, has_http2=options.http2)

    listener = Listener(options, front, sock)
    try:
        await listener.open()
    except BaseException:
        listener.close()
        raise
    return SimServer(listener, backend, options, outage if closes else None)


class _PrefaceDetector(asyncio.Protocol):
    """Holds a connection until it is known which HTTP the client speaks, then hands it over."""

    def __init__(self, backend: Backend, *, has_http2: bool) -> None:
        self._backend: Final = backend
        self._has_http2: Final = has_http2
        self._begin = b""
        self._transport: asyncio.Transport

    @property
    def n_running(self) -> int:
        return 0

    @property
    def n_queued_bytes(self) -> int:
        return 0

    def leave(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._hand_over(is_http2=tls.selected_alpn_protocol() == "h2")
        elif not self._has_http2:
            self._hand_over(is_http2=False)
        else:
            self._backend.enter(self)

    def data_received(self, data: bytes) -> None:
        self._begin += data
        start = self._begin[: len(_PREFACE)]
        if not _PREFACE.startswith(start):
            self._backend.exit(self)
            self._hand_over(is_http2=False)
        elif len(start) == len(_PREFACE):
            self._backend.exit(self)
            self._hand_over(is_http2=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._backend.exit(self)

    def _hand_over(self, *, is_http2: bool) -> None:
        connection = Http2Connection(self._backend) if is_http2 else Http1Connection(self._backend)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        if self._begin:
            connection.data_received(self._begin)


def run(options: SimOptions, announce: Callable[[str], None], *, sock: socket.socket | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then let running answers end; a second signal ends the process at once.

    announce: gets one line once the listener is open. sock: see start(), whose errors this raises too.
    """
    uvloop.run(_serve(options, announce, sock))


async def _serve(options: SimOptions, announce: Callable[[str], None], sock: socket.socket | None) -> None:
    loop = asyncio.get_running_loop()
    must_stop = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for signum in signals:
        loop.add_signal_handler(signum, must_stop.set)
    server = await start(options, sock=sock)
    announce(f"velox sim listening on {server.url}")
    await must_stop.wait()
    for signum in signals:
        loop.remove_signal_handler(signum)
    await server.close(options.grace_s)
