"""The admin listener: HTTP/1.1 for people, probes, Prometheus and `go tool pprof`, in a process of its own.

Knows: which path is served by what, which paths need the token, and the bounds of a connection. Does not know: where
figures come from; all of it is injected. It shares no process with a worker, so neither can delay the other.

Limits: GET and HEAD, POST for a reload, one request per connection, a head of 8 KiB in 5 s, 64 connections. One more
replaces the connection that has been idle the longest, so that a crowd of idle ones keeps no probe out. A path
is compared as it came, so there is no way to spell another one. With a token, only probes need none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Final

import orjson
import uvloop

from velox.admin import metrics_page
from velox.admin.health import Readiness
from velox.admin.message import AdminRequest, RefusalError, Reply, parse_request, write_reply
from velox.admin.pprof import ProfilePage, index_page
from velox.admin.reload import ReloadPage

__all__ = ["OPEN_PAGES", "AdminApp", "TokenCheck", "run", "serve"]

# A kubelet can't be given a token. Without one these say yes or no, and nothing else.
OPEN_PAGES: Final = frozenset({"/healthz", "/livez", "/readyz"})


class TokenCheck:
    """Asks for the token. token None: nobody is asked."""

    def __init__(self, token: str | None) -> None:
        self._digest: Final = None if token is None else hashlib.sha256(token.encode("latin-1")).digest()

    def __repr__(self) -> str:
        return f"<TokenCheck open={self._digest is None}>"

    def is_trusted(self, request: AdminRequest) -> bool:
        """Tell whether the request may see everything. In constant time: digests are compared, of equal length."""
        if self._digest is None:
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        presented = token.strip() if scheme.lower() == "bearer" else ""
        return hmac.compare_digest(hashlib.sha256(presented.encode("latin-1")).digest(), self._digest)

    def check(self, request: AdminRequest) -> None:
        """Raise RefusalError(401) for a page that the request may not see, also if there is no such page."""
        if request.path not in OPEN_PAGES and not self.is_trusted(request):
            message = "send the admin token: Authorization: Bearer TOKEN"
            raise RefusalError(401, message, (("WWW-Authenticate", "Bearer"),))


HEAD_BYTES: Final = 8192
HEAD_TIMEOUT_S: Final = 5.0
WRITE_TIMEOUT_S: Final = 30.0
LINGER_S: Final = 1.0
MAX_CONNECTIONS: Final = 64
BEAT_S: Final = 0.25

_log: Final = logging.getLogger(__name__)


class AdminApp:
    """What the admin listener serves.

    metrics: renders the metrics page now. ready: judges now. profiles: takes them; None: there are none. reload: asks
    for one; None: nobody can be asked.
    token: what is asked for, where it is. host_names: names, lower-case, that a Host header may have besides IP
    addresses and localhost.
    """

    def __init__(
        self,
        *,
        metrics: Callable[[], bytes],
        ready: Callable[[], Readiness],
        profiles: ProfilePage | None,
        reload: ReloadPage | None = None,
        token: str | None = None,
        host_names: frozenset[str] = frozenset(),
    ) -> None:
        self.host_names: Final = host_names
        self._metrics = metrics
        self._ready = ready
        self._profiles = profiles
        self._reload = reload
        self._token = TokenCheck(token)

    async def reply(self, request: AdminRequest) -> Reply:
        """Answer a request. Raises RefusalError."""
        self._token.check(request)
        match request.path:
            case "/":
                return index_page(request, with_profiles=self._profiles is not None, problems=self._ready().reasons)
            case "/metrics":
                return Reply(200, self._metrics(), metrics_page.CONTENT_TYPE.decode())
            case "/healthz" | "/livez":
                return Reply(200, b"ok\n") if self._ready().alive else Reply(503, b"no worker is running\n")
            case "/readyz":
                return _ready_reply(self._ready(), with_reasons=self._token.is_trusted(request))
            case "/reload" if self._reload is not None:
                return await self._reload.reply(request)
            case "/debug/pprof" | "/debug/pprof/" if self._profiles is not None:
                return index_page(request, with_profiles=True, problems=self._ready().reasons)
            case "/debug/pprof/profile" if self._profiles is not None:
                return await self._profiles.reply(request)
            case _:
                raise RefusalError(404, "there is no such page; / lists what there is")


def _ready_reply(state: Readiness, *, with_reasons: bool) -> Reply:
    fields = {"ready": state.ready, "reasons": state.reasons} if with_reasons else {"ready": state.ready}
    body = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    return Reply(200 if state.ready else 503, body, "application/json")


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
        # Those that wait for their client, the longest first: for the end of its head, or for its leaving.
        self._idle: dict[asyncio.StreamWriter, None] = {}

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, to its end."""
        self._connections += 1
        try:
            if self._connections <= MAX_CONNECTIONS or self._drop_oldest():
                await self._exchange(reader, writer)
            else:
                await _send(writer, write_reply(Reply(503, b"too many connections\n"), head_only=False))
        except (TimeoutError, OSError):
            pass  # the client is gone, or too slow for an answer
        finally:
            self._connections -= 1
            writer.transport.abort()  # all that could be sent is sent: nothing is lost by it

    def _drop_oldest(self) -> bool:
        """Make room by the one that has kept us waiting the longest; False when each is being answered."""
        for writer in self._idle:
            del self._idle[writer]
            writer.transport.abort()
            return True
        return False

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b""
        try:
            with self._waiting(writer):
                head = await _read_head(reader)
            request = parse_request(head, self._app.host_names)
            reply = await _unless_gone(self._answer(request), reader)
        except RefusalError as refusal:
            reply = refusal.reply
        await _send(writer, write_reply(reply, head_only=head.startswith(b"HEAD ")))
        with self._waiting(writer):
            await _linger(reader, writer)

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


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Return the head with its empty line. Raises RefusalError: 408, 431."""
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            return await reader.readuntil(b"\r\n\r\n")
    except TimeoutError as exc:
        raise RefusalError(408, "the request's head took too long") from exc
    except asyncio.LimitOverrunError as exc:
        raise RefusalError(431, f"the request's head is over {HEAD_BYTES} bytes") from exc
    except asyncio.IncompleteReadError as exc:
        raise ConnectionResetError("the client left") from exc


async def _unless_gone(answer: Coroutine[None, None, Reply], reader: asyncio.StreamReader) -> Reply:
    """Await the answer; cancel it when the client leaves: nobody's profile must not block the next one."""
    work, gone = asyncio.create_task(answer), asyncio.create_task(_discard(reader))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ConnectionResetError("the client left")
        return work.result()
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _discard(reader: asyncio.StreamReader) -> None:
    """Read what nobody wants until the client closes."""
    while await reader.read(HEAD_BYTES):
        pass


async def _send(writer: asyncio.StreamWriter, reply: bytes) -> None:
    writer.transport.set_write_buffer_limits(0)  # drain() waits until the kernel has all of it
    writer.write(reply)
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the client close first: closing over unread input sends a reset, which may outrun the reply."""
    writer.write_eof()
    async with asyncio.timeout(LINGER_S):
        await _discard(reader)


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
