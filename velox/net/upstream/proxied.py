"""A connection to an upstream by a proxy: a tunnel through it, or requests that it sends on.

    https upstream, HTTP/2 without TLS, WebSocket   a tunnel (CONNECT), then as if there were no proxy
    http upstream                                   HTTP/1.1 to the proxy, with absolute targets

Knows: when which is used, TLS to the proxy and within its tunnel, the time that each may take. Does not know: the bytes
of CONNECT (proxy_connect.py) and of absolute targets (forwarded.py). Nothing of a proxy's URL but scheme, host and port
is in an error. Whatever fails, nothing was sent to the upstream: each failure is free to try again.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, replace
from typing import Final, Protocol, cast

from velox.errors import Reason
from velox.net.upstream.dialer import Connection, Dialer, DialTarget, keep_session, words_of
from velox.net.upstream.forwarded import ForwardedConnection, ForwardedOrigin
from velox.net.upstream.interface import ConnectionOwner, ReadBuffer, UpstreamFailure
from velox.net.upstream.proxy_connect import ConnectExchange, ProxyRefusedError
from velox.net.upstream.resolver import Resolver
from velox.net.upstream.tls import UpstreamContext
from velox.outcomes import Retry
from velox.protocol.http2.engine import EngineFactory

__all__ = ["ProxiedDialer", "ProxyTarget"]


class _Reading(Protocol):
    """What both kinds of protocols have of a transport that reads into their buffer."""

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        """Return where to write."""

    def buffer_updated(self, nbytes: int) -> None:
        """Take so much of it."""


@dataclass(frozen=True, slots=True)
class ProxyTarget:
    """The proxy. called: for errors, without its password. authorization: for it, b"": none. context: of TLS to it.

    host: as its certificate names it. authority: HOST:PORT of the upstream. tunnels: also to an http upstream, as
    WebSockets need it.
    """

    called: str
    host: str
    authorization: bytes
    context: UpstreamContext | None
    authority: bytes
    tunnels: bool = False


class ProxiedDialer(Dialer):
    """Makes connections to one target by a proxy. resolver: of the proxy's host."""

    def __init__(
        self,
        target: DialTarget,
        proxy: ProxyTarget,
        resolver: Resolver,
        buffer: ReadBuffer,
        loop: asyncio.AbstractEventLoop,
        make_engine: EngineFactory,
    ) -> None:
        super().__init__(target, resolver, buffer, loop, make_engine, called=f"the proxy {proxy.called}")
        self._proxy: Final = proxy
        self._tunnels: Final = proxy.tunnels or target.context is not None or target.http2 == "on"
        # Of requests that it sends on: to it, TLS if it has it, as to any server.
        self._to_proxy: Final = replace(target, host=proxy.host, context=proxy.context, http2="off")
        credentials = [(b"proxy-authorization", proxy.authorization)] if proxy.authorization else []
        self._forwarded: Final = ForwardedOrigin(b"http://" + target.host_header, proxy.called, credentials)

    async def _speak(self, sock: socket.socket, owner: ConnectionOwner) -> Connection:
        if self._tunnels:
            return await self._through(await self._open_tunnel(sock), owner)
        if self._proxy.context is None:
            return await self._plain(sock, owner)
        return await self._secure(sock, self._to_proxy, self._proxy.context, owner)

    def _protocol(self, owner: ConnectionOwner, use_http2: bool) -> Connection:
        if self._tunnels:
            return super()._protocol(owner, use_http2)
        target = self._target
        connection = ForwardedConnection(owner, self._buffer, target.host_header, self._loop, self._heads)
        connection.forwarded = self._forwarded
        return connection

    # -- a tunnel -------------------------------------------------------------------------------------

    async def _open_tunnel(self, sock: socket.socket) -> _Tunneling:
        """Return the connection to the proxy once it is a tunnel. Raises UpstreamFailure."""
        proxy, target = self._proxy, self._target
        exchange = ConnectExchange(proxy.authority, proxy.authorization)
        tunnel = _Tunneling(exchange, self._loop)
        try:
            async with asyncio.timeout(target.tls_timeout_s if proxy.context else target.connect_timeout_s):
                await self._loop.create_connection(
                    lambda: tunnel,
                    sock=sock,
                    ssl=proxy.context,
                    server_hostname=proxy.host if proxy.context else None,
                )
        except BaseException as exc:
            sock.close()
            if proxy.context is not None:
                proxy.context.forget()
            if not isinstance(exc, OSError):
                raise
            raise self._failed(f"can't be spoken to: {words_of(exc)}") from exc
        try:
            async with asyncio.timeout(target.connect_timeout_s):
                await tunnel.opened
        except ProxyRefusedError as exc:
            tunnel.transport.abort()
            raise self._failed(str(exc)) from None
        except OSError as exc:
            tunnel.transport.abort()
            raise self._failed(f"has not opened a tunnel to {proxy.authority.decode()}: {words_of(exc)}") from exc
        except BaseException:
            tunnel.transport.abort()
            raise
        return tunnel

    async def _through(self, tunnel: _Tunneling, owner: ConnectionOwner) -> Connection:
        """Make of a tunnel a connection to the upstream."""
        target, context = self._target, self._target.context
        if context is None:
            connection = self._protocol(owner, target.http2 == "on")
            tunnel.hand_over(tunnel.transport, connection)
            return connection
        held = _Held()
        if tunnel.rest:  # nobody speaks before the client does in TLS
            tunnel.transport.abort()
            raise self._failed("sends something into its own tunnel")
        try:
            transport = await self._loop.start_tls(
                tunnel.transport,
                held,
                context,
                server_hostname=target.host,
                ssl_handshake_timeout=target.tls_timeout_s,
            )
        except BaseException as exc:
            tunnel.transport.abort()
            context.forget()
            if not isinstance(exc, OSError):
                raise
            message = f"no TLS with the upstream by {self.called}: {words_of(exc)}"
            raise UpstreamFailure(Reason.UPSTREAM_TLS, message, unprocessed=Retry.CONNECT) from exc
        assert transport is not None, "the connection was there"
        alpn = keep_session(transport, context, required="h2" if target.http2 == "on" else None)
        connection = self._protocol(owner, alpn == "h2")
        held.hand_over(transport, connection)
        return connection

    def _failed(self, what: str) -> UpstreamFailure:
        return UpstreamFailure(Reason.UPSTREAM_CONNECT, f"{self.called} {what}", unprocessed=Retry.CONNECT)


class _Held(asyncio.Protocol):
    """Holds what comes until somebody has the connection."""

    def __init__(self) -> None:
        self.rest = b""
        self._has_ended = False
        self._is_lost = False

    def data_received(self, data: bytes) -> None:
        self.rest += data

    def eof_received(self) -> bool:
        self._has_ended = True
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._is_lost = True

    def hand_over(self, transport: asyncio.Transport, connection: Connection) -> None:
        """Give the transport, and what came on it, to the connection."""
        transport.set_protocol(connection)
        connection.connection_made(transport)
        rest, self.rest = self.rest, b""
        reading = cast(_Reading, connection)
        while rest and not connection.is_closed:
            view = memoryview(reading.get_buffer(len(rest)))
            n = min(len(view), len(rest))
            view[:n] = rest[:n]
            rest = rest[n:]
            reading.buffer_updated(n)
        if self._has_ended and not connection.is_closed:
            connection.eof_received()
        if self._is_lost:
            connection.connection_lost(None)


class _Tunneling(_Held):
    """A connection to a proxy that becomes a tunnel. opened: done when it is one; then nothing is read any more."""

    def __init__(self, exchange: ConnectExchange, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._exchange: Final = exchange
        self.opened: Final[asyncio.Future[None]] = loop.create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._exchange.request)

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            self.rest += data
            return
        try:
            rest = self._exchange.feed(data)
        except ProxyRefusedError as exc:
            self._refuse(exc)
            return
        if rest is not None:
            self.rest = rest
            self.opened.set_result(None)

    def eof_received(self) -> bool:
        self._refuse(self._exchange.eof())
        return super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._refuse(self._exchange.eof())
        super().connection_lost(exc)

    def _refuse(self, why: ProxyRefusedError) -> None:
        if not self.opened.done():
            self.opened.set_exception(why)
            self.opened.exception()  # nobody waits for it any more where the dial was cancelled
