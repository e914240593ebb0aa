"""The simulator's life: starts, finds out which HTTP a client speaks, closes its port for a time, says goodbye.

Knows: ALPN, the HTTP/2 preface, which parts there are. Does not know: routes, frames, the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass
from typing import Final, Self, cast

from velox.sim.app import Simulator
from velox.sim.engine import Engine
from velox.sim.http1 import Http1Connection
from velox.sim.http2 import Http2Connection
from velox.sim.listener import Listener
from velox.sim.options import SimOptions
from velox.sim.outage import Outage
from velox.sim.player import Pace
from velox.sim.stage import Stage

__all__ = ["SimServer", "SimStatistics", "start"]

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

    def __init__(self, listener: Listener, stage: Stage, options: SimOptions, outage: Outage | None = None) -> None:
        """outage: while it lasts, the port is closed."""
        self._listener: Final = listener
        self._stage: Final = stage
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
        if self._outage_task is not None:
            self._outage_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._outage_task
        self._listener.close()
        self._stage.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._stage.wait_empty()
        self._stage.abort()
        await self._stage.wait_empty()

    async def _keep(self, outage: Outage) -> None:
        """Shut and open the listener as the outage comes and goes. Answers that run then go on to their end."""
        while True:
            if outage.is_now():
                self._listener.shut()
                self._stage.send_away()
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
    stage = Stage(Simulator(options, time.time, engine, None if closes else outage), pace, engine)

    def front() -> _Front:
        return _Front(stage, has_http2=options.http2)

    listener = Listener(options, front, sock)
    try:
        await listener.open()
    except BaseException:
        listener.close()
        raise
    return SimServer(listener, stage, options, outage if closes else None)


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
