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

import asyncio
import collections
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Final, Self

from tests.e2e.recorded_call import Call, ClientLeftError, Connection, Fields
from tests.e2e.upstreams import CHAT_JSON, CHAT_SSE, Certificates, Upstream
from tests.patience import PATIENCE_S

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

JSON: Final = (("content-type", "application/json"),)
SSE: Final = (("content-type", "text/event-stream"),)
# Of a connection that is aborted while its TLS handshake is under way.
_TURNS_OF_AN_END: Final = 10


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

    def __init__(
        self,
        *,
        http2: bool = False,
        certificates: Certificates | None = None,
        script: Script | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.http2: Final = http2
        self._host: Final = host
        self.http2_settings: dict[int, int] = {}  # more SETTINGS for new connections
        self._usual_script: Final = script or healthy
        self.calls: list[Call] = []
        self.n_warmups = 0
        self.n_connections = 0
        self.n_open = 0
        self._certificates: Final = certificates
        self._script = self._usual_script
        self.failures: list[BaseException] = []  # of scripts that raised
        self._changed: Final = threading.Condition()
        self._loop: Final = asyncio.new_event_loop()
        # On the loop only. A step is for the first that waits and has not been left.
        self._waiting: Final[collections.deque[tuple[Call, asyncio.Future[None]]]] = collections.deque()
        self._n_steps = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: set[asyncio.Transport] = set()
        self._thread: Final = threading.Thread(target=self._run, name="upstream", daemon=True)
        self._server: asyncio.Server
        self.port = port

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(PATIENCE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
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
        self.forget()
        self._script = script
        try:
            yield self
        finally:
            self._script = self._usual_script
        assert not self.failures, self.failures

    def forget(self) -> None:
        """Forget the calls, steps and failures of before."""
        with self._changed:
            self.calls = []
        self.failures.clear()
        self._drop_steps()

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
            if not self._changed.wait_for(condition, PATIENCE_S):
                raise AssertionError(f"not within {PATIENCE_S:g} s: {what}; {self.calls}, {self.failures}")

    def close_connections(self) -> None:
        """Close every connection in good order (HTTP/1.1 keep-alive that ran out)."""

        async def close() -> None:
            for transport in tuple(self._transports):
                transport.close()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(PATIENCE_S)

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

    def began(self, call: Call) -> None:
        """Note that a call's head has come, its body perhaps not."""

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
            self.failures.append(exc)
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

        asyncio.run_coroutine_threadsafe(drop(), self._loop).result(PATIENCE_S)

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
        self._server = await self._loop.create_server(make, self._host, self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        # Among them are asyncio's own, of connections whose TLS handshake is under way: each must have begun, or nobody
        # would close its socket.
        await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        for transport in tuple(self._transports):
            transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        # What abort() and TLS close still have to do takes a few turns of the loop; handshakes are in no list of ours.
        n_turns = 0
        while self._transports or n_turns < _TURNS_OF_AN_END:
            n_turns += 1
            await asyncio.sleep(0)
