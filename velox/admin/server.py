"""The admin listener: its pages on the HTTP/1.1 server that clients get, with TLS or without.

Knows: the bounds of its connections, how a request is handed to the pages and their reply written. Does not know: what
is served where (app.py), or how requests are read (net/client/).

    connections   64; one more replaces the one that has waited for its client the longest, to send or to take a reply,
                  so that a crowd of clients that do neither keeps no probe out
    head          32 KiB, within 5 s of the connection's start or of its first byte
    body          1 MiB; it may be silent for 10 s, and come no slower than 1 KiB a second
    between       a connection may wait 75 s for its next request
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from typing import Final

import uvloop

from velox.admin.app import AdminApp
from velox.admin.message import AdminRequest, RefusalError, Reply, read_request, reply_headers
from velox.admin.supervisor_answers import BEAT_S
from velox.errors import Reason, VeloxError
from velox.heads import Headers, RequestHead
from velox.net.application import Client, ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.connection import ClientConnection
from velox.net.client.ingress import Ingress
from velox.net.client.tls import TlsIngress
from velox.observe.oplog import crash_text, operations_logger
from velox.protocol.http1.request import Http1Limits
from velox.types import ANYONE, Caller

__all__ = ["ADMIN_LIMITS", "BODY_BYTES", "MAX_CONNECTIONS", "AdminServer", "run"]

MAX_CONNECTIONS: Final = 64
BODY_BYTES: Final = 2**20
ADMIN_LIMITS: Final = Http1Limits(body_bytes=BODY_BYTES)
_HEAD_TIMEOUT_S: Final = 5.0
_BODY_TIMEOUT_S: Final = 10.0
_WRITE_TIMEOUT_S: Final = 30.0
# Longer than what Prometheus and most clients wait between two requests.
_IDLE_S: Final = 75.0
_MIN_RATE_BYTES: Final = 1024
# What a client has not taken of a reply waits here, and not in its connection, but for one such piece.
_PIECE_BYTES: Final = 64 * 1024
# Where the data path's own words name its settings.
_TEXTS: Final = {
    Reason.BODY_TOO_LARGE: f"the body is over {BODY_BYTES} bytes",
    Reason.BODY_TIMEOUT: "the request's body took too long",
    Reason.CONN_LIMIT: "too many connections",
}


class AdminServer:
    """The admin listener's side of its connections (net/application.py). logger: the operations log."""

    def __init__(self, app: AdminApp, loop: asyncio.AbstractEventLoop, logger: logging.Logger) -> None:
        self._app: Final = app
        self._loop: Final = loop
        self._logger: Final = logger
        self._ingress: Final = Ingress(
            self,
            replace(ADMIN_LIMITS, hosts=frozenset(name.encode() for name in app.host_names)),
            ClientTimeouts(_HEAD_TIMEOUT_S, _BODY_TIMEOUT_S, _IDLE_S, _WRITE_TIMEOUT_S, _MIN_RATE_BYTES),
            # So much that no body waits: some connections that have given way are not gone yet.
            BodyBudget(2 * MAX_CONNECTIONS * BODY_BYTES, _BODY_TIMEOUT_S, loop.time),
            loop,
            max_connections=MAX_CONNECTIONS,
            idlest_gives_way=True,
        )
        self._is_unix = False
        self._tls: TlsIngress | None = None
        if app.tls is not None:
            self._tls = TlsIngress(
                self._ingress, app.tls(), on_handshake=lambda _resumed: None, on_failure=lambda _cause: None
            )

    def __repr__(self) -> str:
        return f"<AdminServer {self._ingress!r}>"

    async def listen(self, sock: socket.socket) -> asyncio.Server:
        """Serve on a listening socket until the returned server is closed."""
        if sock.family == socket.AF_UNIX:
            # Its file's mode says who may connect: there is nothing that TLS would add.
            self._is_unix = True
            return await self._loop.create_unix_server(self._ingress.connection, sock=sock)
        make = self._ingress.connection if self._tls is None else self._tls.connection
        return await self._loop.create_server(make, sock=sock)

    def sweep(self) -> None:
        """End what has taken too long, and take a new certificate. To be called a few times a second."""
        if self._tls is not None and self._app.tls is not None:
            self._tls.context = self._app.tls()
        self._ingress.sweep()

    def stop(self) -> None:
        """Abort what is still open."""
        self._ingress.stop()

    # -- Application (net/application.py) -----------------------------------------------------------

    def check_head(self, head: RequestHead) -> Caller:
        """Raise VeloxError for a request that is refused whatever its body is."""
        try:
            self._app.admit(self._read(head))
        except RefusalError as refusal:
            # refuse() answers with what is in it.
            raise VeloxError(Reason.BAD_REQUEST, str(refusal)) from refusal
        return ANYONE

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller
    ) -> _AdminExchange:
        """Begin to answer a request."""
        is_private = self._is_unix or self._tls is not None or _is_from_here(client)
        request = replace(self._read(head), body=bytes(body or b""), is_private=is_private)
        return _AdminExchange(client, request, self)

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        """Answer a request that came to no exchange."""
        cause = error.__cause__
        reply = Reply(error.status, f"{_TEXTS.get(error.reason, error.message)}\n".encode())
        if isinstance(cause, RefusalError):
            reply = cause.reply
        headers = [*reply_headers(reply), *error.headers]
        is_head = head is not None and head.method == b"HEAD"
        client.answer(reply.status, headers, reply.body or b"", with_body=not is_head, close=error.close)

    def crashed(self, exc: Exception) -> None:
        """Record an error that is a bug."""
        self._logger.error("a connection of the admin listener failed: %(error)s", {"error": crash_text(exc)})

    # -- for exchanges ------------------------------------------------------------------------------

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Begin to answer a request."""
        return self._loop.create_task(work)

    async def reply(self, request: AdminRequest) -> Reply:
        """Return the reply of a page; 500 for one that fails: the others go on."""
        try:
            return await self._app.reply(request)
        except RefusalError as refusal:
            return refusal.reply
        except Exception as exc:
            self._logger.error("an admin page failed: %(error)s", {"error": crash_text(exc)})
            return Reply(500, b"this page failed; the log says why\n")

    def stream_failed(self, exc: Exception) -> None:
        """Record that a reply ended before its end."""
        self._logger.warning("a reply of the admin listener was cut: %(error)s", {"error": type(exc).__name__})

    def renew(self, client: Client) -> None:
        """Note that a client is answered now: it gives way after those that were answered before."""
        if isinstance(client, ClientConnection):
            self._ingress.renew(client)

    def _read(self, head: RequestHead) -> AdminRequest:
        return read_request(head, self._app.host_names, self._app.is_api)


class _AdminExchange:
    """One request that is being answered; for its connection (ClientExchange in net/application.py)."""

    def __init__(self, client: Client, request: AdminRequest, server: AdminServer) -> None:
        self._client: Final = client
        self._request: Final = request
        self._server: Final = server
        self._left = memoryview(b"")  # what was not written yet of the reply
        self._may_write: Final = asyncio.Event()
        self._may_write.set()
        self._task: Final = server.begin(self._answer())

    def __repr__(self) -> str:
        return f"<_AdminExchange {self._request.method} {self._request.path} {len(self._left)} bytes left>"

    def client_gone(self, *, stalled: bool = False) -> None:
        """Stop: nobody's profile must block the next one."""
        self._left = memoryview(b"")
        self._task.cancel()

    def client_paused(self) -> None:
        """Wait with a stream; a reply that is here is written as the client takes it."""
        self._may_write.clear()

    def client_resumed(self) -> None:
        """Write more of the reply."""
        self._may_write.set()
        if self._left:
            self._write_on()

    async def _answer(self) -> None:
        reply = await self._server.reply(self._request)
        client, body, headers = self._client, reply.body, reply_headers(reply)
        self._server.renew(client)
        if reply.stream is not None:
            await self._send_stream(reply.status, headers, reply.stream)
        elif body is None:
            client.begin_reply(reply.status, headers, None, b"", True, has_body=False)
            client.finish()
        elif self._request.is_head or len(body) <= _PIECE_BYTES:
            client.answer(reply.status, headers, body, with_body=not self._request.is_head, close=False)
        else:
            self._left = memoryview(body)[_PIECE_BYTES:]
            client.begin_reply(reply.status, headers, len(body), body[:_PIECE_BYTES], False, has_body=True)
            self._write_on()

    async def _send_stream(self, status: int, headers: Headers, stream: AsyncGenerator[bytes]) -> None:
        client = self._client
        async with contextlib.aclosing(stream):
            client.begin_reply(status, headers, None, b"", False, has_body=True)
            try:
                async for piece in stream:
                    client.body(piece, False)
                    await self._may_write.wait()
            except Exception as exc:  # the head has gone: a client sees by its missing end that something is missing
                self._server.stream_failed(exc)
                client.cut(b"")
                return
        client.body(b"", True)
        client.finish()

    def _write_on(self) -> None:
        client = self._client
        while self._left and not client.is_write_paused:
            piece, self._left = bytes(self._left[:_PIECE_BYTES]), self._left[_PIECE_BYTES:]
            client.body(piece, not self._left)
            if not self._left:
                client.finish()


def _is_from_here(client: Client) -> bool:
    """Tell whether a TCP connection comes from this machine."""
    peer = client.peer if isinstance(client, ClientConnection) else None
    if not isinstance(peer, tuple):
        return False
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def run(
    sock: socket.socket,
    app: AdminApp,
    beat: Callable[[], None] = lambda: None,
    is_handed_over: Callable[[], bool] = lambda: False,
) -> None:
    """Serve on a listening socket until SIGTERM, then return at once; running profiles are given up.

    beat: called four times a second (BEAT_S), as long as the loop runs. is_handed_over: asked after that; once True, no
    more is accepted: the next version does, on the same socket.

    SIGINT is ignored: Ctrl-C reaches the whole process group, and probes must be answered while workers drain.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sock, app, beat, is_handed_over))


async def _serve(
    sock: socket.socket, app: AdminApp, beat: Callable[[], None], is_handed_over: Callable[[], bool]
) -> None:
    must_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, must_stop.set)
    server = AdminServer(app, loop, operations_logger(sys.stderr))

    def tick() -> None:
        loop.call_later(BEAT_S, tick)
        beat()
        if is_handed_over():
            listening.close()
        server.sweep()

    listening = await server.listen(sock)
    tick()
    await must_stop.wait()
    listening.close()
    server.stop()
