"""One connection to an upstream, from its name to a protocol that may be used.

Knows: TCP, unix sockets, TLS, ALPN, the time each may take. Does not know: how a name becomes addresses
(resolver.py), what is trusted (tls.py), how many connections there should be (pool.py).
Every failure comes out as an UpstreamFailure with the reason of the step that failed; nothing was sent, so each is
free to try again. No message holds an address.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from velox.errors import Reason, untraced
from velox.net.upstream.http1 import Http1Connection
from velox.net.upstream.http2 import DEFAULT_STREAM_WINDOW_BYTES, NARROW_WINDOW_BYTES, Http2Connection
from velox.net.upstream.interface import Address, ConnectionOwner, ReadBuffer, UpstreamFailure
from velox.net.upstream.resolver import Place, Resolver, in_turn
from velox.net.upstream.tls import UpstreamContext
from velox.outcomes import Retry
from velox.protocol.http1.response_head import ReplyHeads
from velox.protocol.http2.engine import EngineFactory
from velox.protocol.http2.response_head import Http2ReplyHeads

__all__ = ["Connection", "DialTarget", "Dialer", "keep_session", "words_of"]

Connection = Http1Connection | Http2Connection

# What the kernel may hold of ours that it can't send yet. Over HTTP/2 a small request waits behind it: by default,
# behind up to 4 MB of somebody's upload.
_UNSENT_BYTES: Final = 128 * 1024

# How long one address may take before the next is tried beside it: what RFC 8305 §5 recommends.
_HEAD_START_S: Final = 0.25

# Of this worker, and of this machine.
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
# A NAT or firewall that forgets a connection tells nobody: a request on it would wait for its whole time-out. After
# 30 s of silence the kernel asks, which also keeps most of them from forgetting; without an answer it ends 15 s later.
# No TCP_USER_TIMEOUT: it would also end an upstream that is slow to read, for which there are other time-outs.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))

# A unix socket whose queue is full says so at once, and there is no event for "has room again".
_UNIX_RETRY_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class DialTarget:
    """Where to, and how. `context` is None for plain text.

    unix_path: the socket to connect to; "": the addresses that the resolver has for `host`.
    connect_timeout_s: for the name and the connection together.
    stream_window_bytes: what one HTTP/2 stream may send ahead of its reader.
    narrow_window_bytes: and what where its reader may have no more.
    """

    host: str
    host_header: bytes
    http2: Literal["auto", "on", "off"]
    context: UpstreamContext | None
    connect_timeout_s: float
    tls_timeout_s: float
    unix_path: str = ""
    stream_window_bytes: int = DEFAULT_STREAM_WINDOW_BYTES
    narrow_window_bytes: int = NARROW_WINDOW_BYTES


class Dialer:
    """Makes connections to one target. resolver: of the target's host; not asked for a unix socket.

    called: who is connected to, for errors.
    """

    def __init__(
        self,
        target: DialTarget,
        resolver: Resolver,
        buffer: ReadBuffer,
        loop: asyncio.AbstractEventLoop,
        make_engine: EngineFactory,
        called: str = "the upstream",
    ) -> None:
        self.called: Final = called
        self._target: Final = target
        self._resolver: Final = resolver
        self._buffer: Final = buffer
        self._heads: Final = ReplyHeads()
        self._http2_heads: Final = Http2ReplyHeads()
        self._loop: Final = loop
        self._make_engine: Final = make_engine
        self._n_dials = random.randrange(1 << 16)  # the workers' first dials go to different addresses

    async def dial(self, owner: ConnectionOwner) -> Connection:
        """Connect. Raises UpstreamFailure(UPSTREAM_DNS, UPSTREAM_CONNECT, UPSTREAM_TLS or CONN_LIMIT).

        A dial that is cancelled leaves nothing behind but a look-up that others may wait for too.
        """
        sock, address = await self._connect()
        connection = await self._speak(sock, owner)
        connection.address = address
        return connection

    def close(self) -> None:
        """Keep the name's addresses fresh no longer."""
        self._resolver.close()

    # -- the socket -----------------------------------------------------------------------------------

    async def _connect(self) -> tuple[socket.socket, Address]:
        places: Sequence[Place] = ()
        try:
            async with asyncio.timeout(self._target.connect_timeout_s):
                if self._target.unix_path:
                    return await self._connect_unix(self._target.unix_path)
                places = await self._resolver.places()
                self._n_dials += 1
                return await self._race(in_turn(places, self._n_dials))
        except (OSError, UnicodeError) as exc:  # TimeoutError is an OSError; UnicodeError: no name that IDNA can write
            if isinstance(exc, OSError) and exc.errno in _NO_FILES:
                reason, what = Reason.CONN_LIMIT, "this worker can connect to no upstream"
            elif places or self._target.unix_path:
                reason, what = Reason.UPSTREAM_CONNECT, f"{self.called} could not be reached"
            else:
                reason, what = Reason.UPSTREAM_DNS, f"{self.called}'s name could not be resolved"
            # The task that has dialed keeps the error.
            raise UpstreamFailure(reason, f"{what}: {words_of(exc)}", unprocessed=Retry.CONNECT) from untraced(exc)

    async def _race(self, places: Sequence[Place]) -> tuple[socket.socket, Address]:
        """Connect to the first that answers (RFC 8305 §5). Raises the OSError of the last that failed."""
        running: set[asyncio.Task[tuple[socket.socket, Address]]] = set()
        waiting = list(places)
        failure = OSError("no address")
        try:
            while waiting or running:
                if waiting:
                    work = self._connect_tcp(waiting.pop(0))
                    running.add(self._loop.create_task(work, name="dial-address"))
                head_start_s = _HEAD_START_S if waiting else None
                done, _ = await asyncio.wait(running, timeout=head_start_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    failed = task.exception()
                    if failed is None:
                        running.discard(task)
                        return task.result()
                    running.discard(task)
                    if not isinstance(failed, OSError):
                        raise failed
                    failure = failed
            raise failure
        finally:
            for task in running:  # those that lost
                task.cancel()
                task.add_done_callback(_drop)

    async def _connect_tcp(self, place: Place) -> tuple[socket.socket, Address]:
        family, address = place
        sock = socket.socket(family, socket.SOCK_STREAM)  # fails where no descriptor is free, or IPv6 is off
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            await self._loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        return sock, address[0]

    async def _connect_unix(self, path: str) -> tuple[socket.socket, Address]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            while True:
                try:
                    sock.connect(path)
                except BlockingIOError:  # unix(7): EAGAIN, its queue is full; the socket is not "connecting"
                    await asyncio.sleep(_UNIX_RETRY_S)
                else:
                    return sock, path
        except BaseException:
            sock.close()
            raise

    # -- the protocol on it ---------------------------------------------------------------------------

    async def _speak(self, sock: socket.socket, owner: ConnectionOwner) -> Connection:
        """Make of a socket a connection to the upstream. Raises UpstreamFailure, then the socket is closed."""
        if self._target.context is None:
            return await self._plain(sock, owner)
        return await self._secure(sock, self._target, self._target.context, owner)

    async def _plain(self, sock: socket.socket, owner: ConnectionOwner) -> Connection:
        def make() -> Connection:
            return self._protocol(owner, self._target.http2 == "on")

        try:
            if sock.family == socket.AF_UNIX:
                _, connection = await self._loop.create_unix_connection(make, sock=sock)
            else:
                _, connection = await self._loop.create_connection(make, sock=sock)
        except OSError as exc:  # it was reset meanwhile
            sock.close()
            message = f"{self.called} could not be reached: {words_of(exc)}"
            raise UpstreamFailure(Reason.UPSTREAM_CONNECT, message, unprocessed=Retry.CONNECT) from exc
        except BaseException:
            sock.close()
            raise
        return connection

    async def _secure(
        self, sock: socket.socket, target: DialTarget, context: UpstreamContext, owner: ConnectionOwner
    ) -> Connection:
        """Shake hands, then pick the protocol that ALPN chose. target: whose certificate it must be."""
        chooser = _AlpnChooser(lambda alpn: self._protocol(owner, alpn == "h2"))
        try:
            transport, _ = await self._loop.create_connection(
                lambda: chooser,
                sock=sock,
                ssl=context,
                server_hostname=target.host,
                ssl_handshake_timeout=target.tls_timeout_s,
            )
        except OSError as exc:  # ssl.SSLError is one, and so is TimeoutError
            sock.close()
            context.forget()  # whatever the reason: no session may keep the next handshake from being whole
            message = f"no TLS with {self.called}: {words_of(exc)}"
            raise UpstreamFailure(Reason.UPSTREAM_TLS, message, unprocessed=Retry.CONNECT) from exc
        except BaseException:
            sock.close()
            raise
        keep_session(transport, context, required="h2" if target.http2 == "on" else None)
        return chooser.connection

    def _protocol(self, owner: ConnectionOwner, use_http2: bool) -> Connection:
        target = self._target
        if not use_http2:
            return Http1Connection(owner, self._buffer, target.host_header, self._loop, self._heads)
        scheme = b"http" if target.context is None else b"https"
        return Http2Connection(
            owner,
            self._buffer,
            target.host_header,
            self._loop,
            self._make_engine,
            scheme=scheme,
            stream_window_bytes=target.stream_window_bytes,
            narrow_window_bytes=target.narrow_window_bytes,
            heads=self._http2_heads,
        )


def keep_session(transport: asyncio.Transport, context: UpstreamContext, required: str | None) -> str | None:
    """Keep the session of a finished handshake for the next one, and return the protocol that ALPN chose.

    Raises UpstreamFailure(UPSTREAM_TLS), and closes the transport, when that is not the required one.
    """
    secured: ssl.SSLObject = transport.get_extra_info("ssl_object")
    alpn = secured.selected_alpn_protocol()
    if required and alpn != required:
        transport.abort()
        message = f"the upstream did not agree to HTTP/2 (ALPN said {alpn})"
        raise UpstreamFailure(Reason.UPSTREAM_TLS, message, unprocessed=Retry.CONNECT)
    context.keep(secured)
    return alpn


def _drop(task: asyncio.Task[tuple[socket.socket, Address]]) -> None:
    """Close the socket of a connect that came too late, and hear of a failure that no longer matters."""
    if not task.cancelled() and task.exception() is None:
        task.result()[0].close()


class _AlpnChooser(asyncio.BufferedProtocol):
    """Gives its transport to the protocol that ALPN chose, before the first byte is read.

    It is a BufferedProtocol itself because a transport looks at the kind of protocol when it is made.
    """

    def __init__(self, make: Callable[[str | None], Connection]) -> None:
        self._make: Final = make
        self.connection: Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection = self._make(transport.get_extra_info("ssl_object").selected_alpn_protocol())
        cast(asyncio.Transport, transport).set_protocol(self.connection)
        self.connection.connection_made(transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        raise AssertionError("the chosen protocol has the transport since connection_made")


# What OpenSSL says of bytes that are no record of TLS: an answer of HTTP, most of all. The second is OpenSSL 3.2's.
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG"})


def words_of(exc: BaseException) -> str:
    """Say what failed without addresses of ours: the system's own text."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"certificate verification failed: {exc.verify_message}"
    if isinstance(exc, TimeoutError) and not exc.strerror:
        return "time-out"
    if isinstance(exc, ssl.SSLError) and exc.reason in _NO_TLS:
        return f"{exc.reason}: what it sent is no TLS, as from a server of plain HTTP"
    if isinstance(exc, ssl.SSLError):
        return exc.reason or type(exc).__name__
    if isinstance(exc, OSError) and exc.errno and exc.errno > 0:
        return os.strerror(exc.errno)  # the exception's own text may hold the address
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror  # a name's failure to resolve has numbers of its own, below 0
    if isinstance(exc, ConnectionResetError):
        return "the upstream closed the connection"  # asyncio's own, without number and text: it ended too early
    return str(exc) or type(exc).__name__
