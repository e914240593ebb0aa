"""One connection to an upstream, from its name to a protocol that may be used.

Knows: addresses, TCP, TLS, ALPN, the time each may take. Does not know: how many connections there should be (pool.py).
Every failure comes out as an UpstreamFailure with the reason of the step that failed; nothing was sent, so each is
free to try again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, cast

from velox.errors import Reason
from velox.net.upstream import ConnectionOwner, ReadBuffer, UpstreamFailure
from velox.net.upstream_http1 import Http1Connection
from velox.net.upstream_http2 import EngineMaker, Http2Connection

__all__ = ["Connection", "DialTarget", "Dialer"]

Connection = Http1Connection | Http2Connection

# What the kernel may hold of ours that it can't send yet. Over HTTP/2 a small request waits behind it: by default,
# behind up to 4 MB of somebody's upload.
_UNSENT_BYTES: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class DialTarget:
    """Where to, and how. `context` is None for plain text."""

    host: str
    port: int
    host_header: bytes
    http2: Literal["auto", "on", "off"]
    context: ssl.SSLContext | None
    connect_timeout_s: float
    tls_timeout_s: float


class Dialer:
    """Makes connections to one target."""

    def __init__(
        self,
        target: DialTarget,
        buffer: ReadBuffer,
        loop: asyncio.AbstractEventLoop,
        make_engine: EngineMaker,
    ) -> None:
        self._target: Final = target
        self._buffer: Final = buffer
        self._loop: Final = loop
        self._make_engine: Final = make_engine

    async def dial(self, owner: ConnectionOwner) -> Connection:
        """Connect. Raises UpstreamFailure(UPSTREAM_DNS, UPSTREAM_CONNECT or UPSTREAM_TLS)."""
        sock = await self._connect()
        if self._target.context is None:
            use_http2 = self._target.http2 == "on"
            _, connection = await self._loop.create_connection(lambda: self._protocol(owner, use_http2), sock=sock)
            return connection
        return await self._secure(sock, self._target.context, owner)

    async def _connect(self) -> socket.socket:
        target = self._target
        try:
            async with asyncio.timeout(target.connect_timeout_s):
                found = await self._loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError) as exc:  # UnicodeError: no name that IDNA can write
            raise UpstreamFailure(
                Reason.UPSTREAM_DNS,
                f"the upstream's name could not be resolved: {_words(exc)}",
                unprocessed=True,
            ) from exc
        failure: BaseException = OSError("no address")
        for family, kind, protocol, _, address in found:
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as exc:  # no descriptor is free, or the machine has no IPv6
                failure = exc
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            try:
                async with asyncio.timeout(target.connect_timeout_s):
                    await self._loop.sock_connect(sock, address)
            except (OSError, TimeoutError) as exc:
                sock.close()
                failure = exc
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise UpstreamFailure(
            Reason.UPSTREAM_CONNECT, f"the upstream could not be reached: {_words(failure)}", unprocessed=True
        ) from failure

    async def _secure(self, sock: socket.socket, context: ssl.SSLContext, owner: ConnectionOwner) -> Connection:
        """Shake hands, then pick the protocol that ALPN chose."""
        target = self._target
        chooser = _AlpnChooser(lambda alpn: self._protocol(owner, alpn == "h2"))
        try:
            transport, _ = await self._loop.create_connection(
                lambda: chooser,
                sock=sock,
                ssl=context,
                server_hostname=target.host,
                ssl_handshake_timeout=target.tls_timeout_s,
            )
        except (OSError, TimeoutError) as exc:  # ssl.SSLError is an OSError
            sock.close()
            message = f"no TLS with the upstream: {_words(exc)}"
            raise UpstreamFailure(Reason.UPSTREAM_TLS, message, unprocessed=True) from exc
        if target.http2 == "on" and chooser.alpn != "h2":
            transport.abort()
            message = f"the upstream did not agree to HTTP/2 (ALPN said {chooser.alpn})"
            raise UpstreamFailure(Reason.UPSTREAM_TLS, message, unprocessed=True)
        return chooser.connection

    def _protocol(self, owner: ConnectionOwner, use_http2: bool) -> Connection:
        target = self._target
        if not use_http2:
            return Http1Connection(owner, self._buffer, target.host_header, self._loop)
        scheme = b"http" if target.context is None else b"https"
        return Http2Connection(owner, self._buffer, target.host_header, self._loop, self._make_engine, scheme=scheme)


class _AlpnChooser(asyncio.BufferedProtocol):
    """Gives its transport to the protocol that ALPN chose, before the first byte is read.

    It is a BufferedProtocol itself because a transport looks at the kind of protocol when it is made.
    """

    def __init__(self, make: Callable[[str | None], Connection]) -> None:
        self._make: Final = make
        self.alpn: str | None = None
        self.connection: Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.alpn = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        self.connection = self._make(self.alpn)
        cast(asyncio.Transport, transport).set_protocol(self.connection)
        self.connection.connection_made(transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        raise AssertionError("the chosen protocol has the transport since connection_made")


def _words(exc: BaseException) -> str:
    """Say what failed without addresses of ours: the system's own text."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"certificate verification failed: {exc.verify_message}"
    if isinstance(exc, TimeoutError) and not exc.strerror:
        return "time-out"
    if isinstance(exc, ssl.SSLError):
        return exc.reason or type(exc).__name__
    if isinstance(exc, OSError) and exc.errno and exc.errno > 0:
        return os.strerror(exc.errno)  # the exception's own text may hold the address
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror  # a name's failure to resolve has numbers of its own, below 0
    return str(exc) or type(exc).__name__
