"""The admin listener: HTTP/1.1 for people, probes, Prometheus and `go tool pprof`, in a process of its own.

Knows: which path is served by what, which paths need the token, and the bounds of a connection. Does not know: where
figures come from; all of it is injected. It shares no process with a worker, so neither can delay the other.

Limits: GET and HEAD, POST for a reload, all methods for the API; 64 connections, each within the bounds of
connection.py. One more replaces the connection that has waited for its client the longest, so that a crowd of clients
that send nothing, or take no reply, keeps no probe out. A path is compared as it came, so there is no way to spell
another one. With a token, only probes need none. Requests of a connection are answered one after the other. After a
refusal the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol

import orjson
import uvloop

from velox.admin import metrics_page
from velox.admin.connection import HEAD_BYTES, Incoming, PlainStream, Stream, TlsStream, has_private_peer
from velox.admin.health import Readiness
from velox.admin.message import AdminRequest, RefusalError, Reply, parse_request, write_reply
from velox.admin.pprof import ProfilePage, index_page
from velox.admin.reload import ReloadPage
from velox.admin.roles import Role, TokenCheck

__all__ = ["PAGES", "AdminApp", "Api", "run", "serve"]

# What AdminApp serves itself.
PAGES: Final = frozenset(
    {
        *("/", "/metrics", "/healthz", "/livez", "/readyz", "/reload"),
        *("/health/liveliness", "/health/liveness", "/health/readiness"),
        *("/debug/pprof", "/debug/pprof/", "/debug/pprof/profile"),
    }
)
MAX_CONNECTIONS: Final = 64
BEAT_S: Final = 0.25

_log: Final = logging.getLogger(__name__)


class Api(Protocol):
    """What is served at paths that are no pages (api/service.py)."""

    def takes(self, path: str) -> bool:
        """Tell whether a path is the API's."""

    def admit(self, request: AdminRequest, role: Role | None) -> None:
        """Refuse what is refused whatever its body is. Raises RefusalError."""

    async def reply(self, request: AdminRequest, role: Role | None) -> Reply:
        """Answer a request. Raises RefusalError."""


class AdminApp:
    """What the admin listener serves.

    metrics: renders the metrics page now; called in a thread, once at a time: with thousands of origins it takes
    seconds, in which probes are answered and the supervisor sees that this process moves. problems: what is wrong
    besides, for the index, called as metrics is. ready: judges now.
    profiles: takes them; None: there are none. reload: asks for one; None: nobody can be asked. api: what is served at
    its paths; None: nothing is. token: what is asked for, where it is. viewer_token: one that may only read. tls: the
    context for the next handshake; None: there is no TLS. host_names: names, lower-case, that a Host header may have
    besides IP addresses and localhost.
    """

    def __init__(
        self,
        *,
        metrics: Callable[[], bytes],
        ready: Callable[[], Readiness],
        profiles: ProfilePage | None,
        problems: Callable[[], Sequence[str]] = tuple,
        reload: ReloadPage | None = None,
        token: str | None = None,
        viewer_token: str | None = None,
        host_names: frozenset[str] = frozenset(),
        tls: Callable[[], ssl.SSLContext] | None = None,
        api: Api | None = None,
    ) -> None:
        self.tls: Final = tls
        self.host_names: Final = host_names
        self._metrics = metrics
        self._renderer: Final = ThreadPoolExecutor(1, "metrics")
        self._ready = ready
        self._problems = problems
        self._profiles = profiles
        self._reload = reload
        self._api = api
        self._token = TokenCheck(token, viewer_token)

    def is_api(self, path: str) -> bool:
        """Tell whether a path takes all methods."""
        return self._api is not None and self._api.takes(path)

    def admit(self, request: AdminRequest) -> None:
        """Raise RefusalError for a request that needs a token and has none, before its body is read."""
        if self._api is not None and self._api.takes(request.path):
            self._api.admit(request, self._token.role_of(request))
        else:
            self._token.check(request)

    async def reply(self, request: AdminRequest) -> Reply:
        """Answer a request. Raises RefusalError."""
        if self._api is not None and self._api.takes(request.path):
            return await self._api.reply(request, self._token.role_of(request))
        match request.path:
            case "/":
                return await self._index(request)
            case "/metrics":
                page = await asyncio.get_running_loop().run_in_executor(self._renderer, self._metrics)
                return Reply(200, page, metrics_page.CONTENT_TYPE.decode())
            case "/healthz" | "/livez":
                return Reply(200, b"ok\n") if self._ready().alive else Reply(503, b"no worker is running\n")
            case "/readyz":
                return _ready_reply(self._ready(), with_reasons=self._token.is_trusted(request))
            case "/health/liveliness" | "/health/liveness":  # as LiteLLM answers its probes
                alive = self._ready().alive
                return _json(200 if alive else 503, "I'm alive!" if alive else "no worker is running")
            case "/health/readiness":
                ready = self._ready().ready
                return _json(200 if ready else 503, {"status": "healthy" if ready else "unhealthy"})
            case "/reload" if self._reload is not None:
                return await self._reload.reply(request)
            case "/debug/pprof" | "/debug/pprof/" if self._profiles is not None:
                return await self._index(request)
            case "/debug/pprof/profile" if self._profiles is not None:
                return await self._profiles.reply(request)
            case _:
                raise RefusalError(404, "there is no such page; / lists what there is")

    async def _index(self, request: AdminRequest) -> Reply:
        has_profiles, has_tls = self._profiles is not None, self.tls is not None
        more = await asyncio.get_running_loop().run_in_executor(self._renderer, self._problems)
        problems = (*self._ready().reasons, *more)
        return index_page(request, with_profiles=has_profiles, problems=problems, has_tls=has_tls)


def _ready_reply(state: Readiness, *, with_reasons: bool) -> Reply:
    fields = {"ready": state.ready, "reasons": state.reasons} if with_reasons else {"ready": state.ready}
    return _json(200 if state.ready else 503, fields)


def _json(status: int, body: object) -> Reply:
    return Reply(status, orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE), "application/json")


async def serve(sock: socket.socket, app: AdminApp) -> asyncio.Server:
    """Serve on a listening socket until the returned server is closed. The caller keeps the socket."""
    listener = _Listener(app)
    if sock.family == socket.AF_UNIX:
        return await asyncio.start_unix_server(listener.on_connection, sock=sock, limit=HEAD_BYTES)
    return await asyncio.start_server(listener.on_connection, sock=sock, limit=HEAD_BYTES)


class _Listener:
    """Bounds the number of connections, and each of them."""

    def __init__(self, app: AdminApp) -> None:
        self._app = app
        self._connections = 0
        # Those that wait for their client, the longest first: for it to send, to take its reply, or to leave.
        self._idle: dict[asyncio.StreamWriter, None] = {}

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, to its end."""
        self._connections += 1
        try:
            stream = PlainStream(reader, writer)
            if self._connections <= MAX_CONNECTIONS or self._drop_oldest():
                await self._serve(stream, writer)
            elif self._app.tls is None:
                await _send(stream, write_reply(Reply(503, b"too many connections\n"), head_only=False))
        except (TimeoutError, OSError):
            pass  # the client is gone, or too slow for an answer
        except asyncio.CancelledError:
            # The process ends, and with it this task. Python 3.11 would log a bug for each of these.
            pass
        finally:
            self._connections -= 1
            writer.transport.abort()  # all that could be sent is sent: nothing is lost by it

    async def _serve(self, plain: PlainStream, writer: asyncio.StreamWriter) -> None:
        stream: Stream = plain
        is_private = has_private_peer(writer)
        if self._app.tls is not None:
            stream, is_private = TlsStream(plain, self._app.tls()), True
            with self._waiting(writer):
                await stream.handshake()
        incoming = Incoming(stream)
        while await self._exchange(incoming, stream, writer, is_private=is_private):
            pass
        with self._waiting(writer):
            await incoming.linger()

    def _drop_oldest(self) -> bool:
        """Make room by the one that has kept us waiting the longest; False when each is being answered."""
        for writer in self._idle:
            del self._idle[writer]
            writer.transport.abort()
            return True
        return False

    async def _exchange(
        self, incoming: Incoming, stream: Stream, writer: asyncio.StreamWriter, *, is_private: bool
    ) -> bool:
        """Answer one request. False: it was the connection's last."""
        head, keep_alive = b"", False
        try:
            with self._waiting(writer):
                head = await incoming.read_head()
            request = replace(parse_request(head, self._app.host_names, self._app.is_api), is_private=is_private)
            self._app.admit(request)
            if request.framing.length != 0:
                with self._waiting(writer):
                    request = replace(request, body=await incoming.read_body(request))
            reply = await _unless_gone(self._answer(request), incoming)
            keep_alive = request.framing.keep_alive
        except RefusalError as refusal:
            reply = refusal.reply
        # An empty line before a request is none of it (RFC 9112 §2.2).
        head_only = head.lstrip(b"\r\n").startswith(b"HEAD ")
        with self._waiting(writer):
            await _send(stream, write_reply(reply, head_only=head_only, keep_alive=keep_alive))
        return keep_alive

    @contextlib.contextmanager
    def _waiting(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._idle[writer] = None
        try:
            yield
        finally:
            self._idle.pop(writer, None)

    async def _answer(self, request: AdminRequest) -> Reply:
        try:
            return await self._app.reply(request)
        except RefusalError:
            raise
        except Exception:  # the other pages must go on: this one answers 500, and the cause is logged
            _log.exception("an admin page failed: %s", request.path)
            return Reply(500, b"this page failed; the log says why\n")


async def _unless_gone(answer: Coroutine[None, None, Reply], incoming: Incoming) -> Reply:
    """Await the answer; cancel it when the client leaves: nobody's profile must not block the next one."""
    work, gone = asyncio.create_task(answer), asyncio.create_task(incoming.wait_gone())
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ConnectionResetError("the client left")
        return work.result()
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _send(stream: Stream, reply: bytes) -> None:
    stream.write(reply)
    await stream.drain()


def run(sock: socket.socket, app: AdminApp, beat: Callable[[], None] = lambda: None) -> None:
    """Serve on a listening socket until SIGTERM, then return at once; running profiles are given up.

    beat: called four times a second, as long as the loop runs.

    SIGINT is ignored: Ctrl-C reaches the whole process group, and probes must be answered while workers drain.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sock, app, beat))


async def _serve(sock: socket.socket, app: AdminApp, beat: Callable[[], None]) -> None:
    must_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, must_stop.set)

    def tick() -> None:
        loop.call_later(BEAT_S, tick)
        beat()

    tick()
    server = await serve(sock, app)
    await must_stop.wait()
    server.close()
    # Connections still open end with the loop: the runner cancels what is left.
