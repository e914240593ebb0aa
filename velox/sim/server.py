"""The simulator's listener: binds, finds out which HTTP a client speaks, says goodbye.

Knows: the socket, TLS, ALPN, the HTTP/2 preface. Does not know: routes, frames, the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Final, Self, cast

from velox.sim.app import Simulator
from velox.sim.engine import Engine
from velox.sim.http1 import Http1Connection
from velox.sim.http2 import Http2Connection
from velox.sim.options import SimOptions
from velox.sim.player import Pace
from velox.sim.stage import Stage

__all__ = ["SimServer", "SimStatistics", "start"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113 §3.4
_BACKLOG: Final = 4096  # a load test opens its connections all at once; the kernel caps it at somaxconn
_TLS_HANDSHAKE_S: Final = 10.0


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

    def __init__(self, server: asyncio.Server, stage: Stage, options: SimOptions) -> None:
        self._server: Final = server
        self._stage: Final = stage
        self.port: Final[int] = server.sockets[0].getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.url: Final = f"{'https' if options.cert_file else 'http'}://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"<SimServer {self.url} {self.statistics()}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def statistics(self) -> SimStatistics:
        """Return a snapshot."""
        stage = self._stage
        return SimStatistics(
            n_connections=len(stage.connections),
            n_running=sum(connection.n_running for connection in stage.connections),
            n_queued_bytes=sum(connection.n_queued_bytes for connection in stage.connections),
            n_requests=stage.n_requests,
            n_cancelled=stage.n_cancelled,
        )

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop listening, let running answers end within grace_s, then cut what is left.

        Idle connections close at once; clients on HTTP/2 get GOAWAY, those on HTTP/1.1 a `connection: close`
        on answers that have not begun.
        """
        self._server.close()
        self._stage.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._stage.wait_empty()
        self._stage.abort()
        await self._stage.wait_empty()


async def start(options: SimOptions, *, sock: socket.socket | None = None) -> SimServer:
    """Listen and answer on the running loop.

    sock: a bound stream socket to listen on instead of host and port; the server closes it.
    Raises OSError when the address can't be bound, ssl.SSLError or OSError for a bad certificate.
    """
    loop = asyncio.get_running_loop()
    pace = Pace(options.ttft_s, options.token_rate)
    engine = Engine(loop, options.capacity, shares=options.batch_slowdown)
    stage = Stage(Simulator(options, time.time), pace, engine)
    tls = _tls_context(options)
    handshake_s = _TLS_HANDSHAKE_S if tls else None

    def front() -> _Front:
        return _Front(stage, has_http2=options.http2)

    if sock is not None:
        server = await loop.create_server(
            front, sock=sock, backlog=_BACKLOG, ssl=tls, ssl_handshake_timeout=handshake_s
        )
    else:
        server = await loop.create_server(
            front, options.host, options.port, backlog=_BACKLOG, ssl=tls, ssl_handshake_timeout=handshake_s
        )
    return SimServer(server, stage, options)


def _tls_context(options: SimOptions) -> ssl.SSLContext | None:
    if options.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(options.cert_file, options.key_file)
    context.set_alpn_protocols(["h2", "http/1.1"] if options.http2 else ["http/1.1"])
    return context


class _Front(asyncio.Protocol):
    """Holds a connection until it is known which HTTP the client speaks, then hands it over."""

    def __init__(self, stage: Stage, *, has_http2: bool) -> None:
        self._stage: Final = stage
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
            self._stage.enter(self)

    def data_received(self, data: bytes) -> None:
        self._begin += data
        start = self._begin[: len(_PREFACE)]
        if not _PREFACE.startswith(start):
            self._stage.exit(self)
            self._hand_over(is_http2=False)
        elif len(start) == len(_PREFACE):
            self._stage.exit(self)
            self._hand_over(is_http2=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stage.exit(self)

    def _hand_over(self, *, is_http2: bool) -> None:
        connection = Http2Connection(self._stage) if is_http2 else Http1Connection(self._stage)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        if self._begin:
            connection.data_received(self._begin)
