"""A scripted upstream: records every request, answers as the test's script says, and misbehaves where it is told to.

Knows: what is recorded, a thread with a loop of its own, the handing over to the test's thread. Does not know:
Velox, or the HTTP versions (recording_http1.py, recording_http2.py). What is sent is written by hand, so that replies
can be cut, late or wrong.

    async def two_events(call: Call) -> None:
        await call.head(200, SSE)
        await call.data(b"data: 1\\n\\n")
        await call.step()                 # until the test calls upstream.step()
        call.cut()                        # HTTP/1.1: close; HTTP/2: RST_STREAM

    with upstream.playing(two_events):    # forgets the calls of before; at the end the healthy script is back
        ...
        call = upstream.wait_call()
        upstream.wait_left(call)          # the gateway closed, or reset the stream

HEAD requests for /v1/models are warm-ups: answered at once, counted, and not among the calls.
"""

from __future__ import annotations

import abc
import asyncio
import collections
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self, cast

from tests.e2e.upstreams import CHAT_JSON, CHAT_SSE, Certificates, Upstream

__all__ = [
    "JSON",
    "SSE",
    "Call",
    "ClientLeftError",
    "Connection",
    "Fields",
    "RecordingUpstream",
    "Script",
    "healthy",
]

Fields = Sequence[tuple[str, str]]
JSON: Final = (("content-type", "application/json"),)
SSE: Final = (("content-type", "text/event-stream"),)
_WAIT_S: Final = 10.0


class ClientLeftError(Exception):
    """The gateway gave the exchange up while the script waited."""


class Call(abc.ABC):
    """One request as it came, and the means to answer it. Verbs of the script run on the upstream's loop."""

    def __init__(self, link: Connection, method: str, target: str, fields: Fields) -> None:
        self.link: Final = link
        self.upstream: Final = link.upstream
        self.connection: Final = link.number  # the how-manieth accepted, from 1
        self.method: Final = method
        self.target: Final = target
        self.headers: Final = list(fields)
        self.body = b""
        self.left_s = 0.0  # monotonic; 0: the gateway has not left
        self.reset_code: int | None = None  # of the gateway's RST_STREAM
        self.left: Final = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Call {self.method} {self.target} body={len(self.body)} connection={self.connection}>"

    def header(self, name: str) -> str | None:
        """Return the only value of a header (lower-case name), or None. Two values fail the test."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    async def reply(self, status: int, fields: Fields = (), body: bytes = b"") -> None:
        """Send a whole reply with its length."""
        await self.head(status, [*fields, ("content-length", str(len(body)))])
        if body and self.method != "HEAD":
            await self.data(body)
        await self.end()

    async def drain(self) -> None:
        """Wait until the socket takes more. Raises ClientLeftError."""
        await self._unless_left(self._wait_writable())

    async def _wait_writable(self) -> None:
        await self.link.writable.wait()

    async def step(self) -> None:
        """Wait for the test's step(). Raises ClientLeftError."""
        await self._unless_left(self.upstream.take_step(self))

    async def silence(self) -> None:
        """Wait until the gateway leaves."""
        await self.left.wait()

    async def _unless_left(self, work: Awaitable[None]) -> None:
        wanted, left = asyncio.ensure_future(work), asyncio.ensure_future(self.left.wait())
        try:
            await asyncio.wait((wanted, left), return_when=asyncio.FIRST_COMPLETED)
            if not wanted.done():
                raise ClientLeftError
        finally:
            wanted.cancel()
            left.cancel()

    def note_left(self, reset_code: int | None = None) -> None:
        """The gateway closed the connection or reset the stream."""
        if not self.left_s:
            self.left_s = time.monotonic()
            self.reset_code = reset_code
            self.left.set()
            self.upstream.notify()

    @abc.abstractmethod
    async def head(self, status: int, fields: Fields = ()) -> None:
        """Send the head. Without a content-length HTTP/1.1 sends the body in chunks."""

    @abc.abstractmethod
    async def interim(self, status: int, fields: Fields = ()) -> None:
        """Send a 1xx reply before the head."""

    @abc.abstractmethod
    async def data(self, data: bytes) -> None:
        """Send body bytes, as one chunk or as one frame if the window allows."""

    @abc.abstractmethod
    async def end(self) -> None:
        """End the reply properly."""

    @abc.abstractmethod
    def cut(self) -> None:
        """End it as if the server had failed: HTTP/1.1 closes, HTTP/2 sends RST_STREAM(INTERNAL_ERROR)."""

    @abc.abstractmethod
    def lose(self) -> None:
        """Lose the connection: HTTP/1.1 sends a TCP reset, HTTP/2 just closes."""


class Connection(asyncio.Protocol):
    """What both HTTP versions' connections have: a number, a transport, and when it takes more."""

    def __init__(self, upstream: RecordingUpstream) -> None:
        self.upstream: Final = upstream
        self.number = 0
        self.transport: asyncio.Transport
        self.writable: Final = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.number = self.upstream.opened(self.transport)
        self.writable.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.upstream.closed(self.transport)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


Script = Callable[[Call], Awaitable[None]]


async def healthy(call: Call) -> None:
    """Answer as a provider does: a chat completion, streamed where it is asked for, else an empty list."""
    if "chat/completions" not in call.target:
        await call.reply(200, JSON, b'{"object":"list","data":[]}')
    elif json.loads(call.body).get("stream"):
        await call.head(200, SSE)
        await call.data(CHAT_SSE)
        await call.end()
    else:
        await call.reply(200, [*JSON, ("x-request-id", "req_upstream")], CHAT_JSON)


class RecordingUpstream:
    """The server. http2: by ALPN where certificates are given, else by prior knowledge."""

    def __init__(self, *, http2: bool = False, certificates: Certificates | None = None) -> None:
        self.http2: Final = http2
        self.calls: list[Call] = []
        self.n_warmups = 0
        self.n_connections = 0
        self.n_open = 0
        self._certificates: Final = certificates
        self._script: Script = healthy
        self._failures: list[BaseException] = []
        self._changed: Final = threading.Condition()
        self._loop: Final = asyncio.new_event_loop()
        # On the loop only. A step is for the first that waits and has not been left.
        self._waiting: Final[collections.deque[tuple[Call, asyncio.Future[None]]]] = collections.deque()
        self._n_steps = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: set[asyncio.Transport] = set()
        self._thread: Final = threading.Thread(target=self._run, name="upstream", daemon=True)
        self._server: asyncio.Server
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_WAIT_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()

    # -- for the test's thread ------------------------------------------------------------------------

    @property
    def upstream(self) -> Upstream:
        """Where it is, as settings of a gateway."""
        if self._certificates is None:
            return Upstream(f"http://127.0.0.1:{self.port}", http2=self.http2)
        return Upstream(f"https://127.0.0.1:{self.port}", self._certificates.ca_file)

    def env(self) -> dict[str, str]:
        """Return the settings that point a gateway at it."""
        return self.upstream.env()

    @contextlib.contextmanager
    def playing(self, script: Script) -> Iterator[Self]:
        """Answer with `script` inside the block; a script that raises fails the test."""
        with self._changed:
            self.calls = []
        self._failures.clear()
        self._drop_steps()
        self._script = script
        try:
            yield self
        finally:
            self._script = healthy
        assert not self._failures, self._failures

    def step(self, n: int = 1) -> None:
        """Let the script go on past `n` of its step()s."""
        for _ in range(n):
            self._loop.call_soon_threadsafe(self._release_step)

    def wait_call(self, n: int = 1) -> Call:
        """Wait for the `n`th call since playing(), whose body has come too."""
        self.wait(lambda: len(self.calls) >= n, f"call {n}; there are {self.calls}")
        return self.calls[n - 1]

    def wait_left(self, call: Call) -> float:
        """Wait until the gateway gave a call up; return when, monotonic."""
        self.wait(lambda: call.left_s > 0, f"the gateway leaves {call}")
        return call.left_s

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that the upstream sees."""
        with self._changed:
            assert self._changed.wait_for(condition, _WAIT_S), f"not within {_WAIT_S:g} s: {what}"

    def close_connections(self) -> None:
        """Close every connection in good order (HTTP/1.1 keep-alive that ran out)."""

        async def close() -> None:
            for transport in tuple(self._transports):
                transport.close()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(_WAIT_S)

    # -- for connections ------------------------------------------------------------------------------

    def notify(self) -> None:
        """Wake the test if it waits."""
        with self._changed:
            self._changed.notify_all()

    def opened(self, transport: asyncio.Transport) -> int:
        """Note a connection; return its number."""
        self._transports.add(transport)
        self.n_connections += 1
        self.n_open += 1
        self.notify()
        return self.n_connections

    def closed(self, transport: asyncio.Transport) -> None:
        """Note a connection's end."""
        self._transports.discard(transport)
        self.n_open -= 1
        self.notify()

    def play(self, call: Call) -> asyncio.Task[None]:
        """Record a call and answer it."""
        script = self._script
        if call.method == "HEAD" and call.target.endswith("/v1/models"):
            self.n_warmups += 1
            script = healthy
        else:
            with self._changed:
                self.calls.append(call)
        self.notify()
        task = self._loop.create_task(self._answer(script, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def take_step(self, call: Call) -> None:
        """Wait for the test's step()."""
        if call.left_s:
            raise ClientLeftError
        if self._n_steps:
            self._n_steps -= 1
            return
        released: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((call, released))
        await released

    # -- inside ---------------------------------------------------------------------------------------

    async def _answer(self, script: Script, call: Call) -> None:
        try:
            await script(call)
        except ClientLeftError:
            pass  # the test looks at call.left_s
        except Exception as exc:
            self._failures.append(exc)
            call.lose()

    def _release_step(self) -> None:
        while self._waiting:
            call, released = self._waiting.popleft()
            if not released.done() and not call.left_s:
                released.set_result(None)
                return
        self._n_steps += 1

    def _drop_steps(self) -> None:
        async def drop() -> None:
            self._n_steps = 0

        asyncio.run_coroutine_threadsafe(drop(), self._loop).result(_WAIT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _start(self) -> None:
        # Here: they build on this module.
        from tests.e2e.recording_http1 import Http1Connection
        from tests.e2e.recording_http2 import Http2Connection

        make = (lambda: Http2Connection(self)) if self.http2 else (lambda: Http1Connection(self))
        alpn = "h2" if self.http2 else "http/1.1"
        context = None if self._certificates is None else self._certificates.server_context(alpn)
        self._server = await self._loop.create_server(make, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        for transport in tuple(self._transports):
            transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What abort() and TLS close still have to do takes a few turns of the loop.
        while self._transports:
            await asyncio.sleep(0)
