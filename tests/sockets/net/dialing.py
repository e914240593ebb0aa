"""What the tests of dialing share: a dialer to addresses of the test's choice, and what it must leave behind: nothing.

Knows: the dialer and its resolver, servers on the same loop. Does not know: what a test asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, Literal, TypeVar

import uvloop

from tests.patience import NEVER_S, PATIENCE_S
from velox.net.upstream.dialer import Connection, Dialer, DialTarget
from velox.net.upstream.interface import ReadBuffer, UpstreamConnection
from velox.net.upstream.resolver import Place, Resolver
from velox.net.upstream.tls import UpstreamContext
from velox.outcomes import ConnectionEnd
from velox.protocol.http2.engines import engine_factory

__all__ = ["Owner", "TlsServer", "dialed", "dialer_to", "full_listener", "is_through", "local", "nothing_left", "run"]

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on the loop that workers have; what that loop complains about fails the test."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        result = await work
        gc.collect()  # "never retrieved" is said when a future is collected
        await asyncio.sleep(0)
        return result

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(watched())
    assert not complaints, complaints
    return result


class Owner:
    """Whom connections report to; notes their ends."""

    def __init__(self) -> None:
        self.closed: Final[list[UpstreamConnection]] = []

    def on_room(self, connection: UpstreamConnection) -> None:
        """Nobody waits."""

    def on_closed(self, connection: UpstreamConnection) -> None:
        self.closed.append(connection)


def local(port: int, host: str = "127.0.0.1") -> Place:
    """Return a place on this machine."""
    return (socket.AF_INET, (host, port))


def dialer_to(
    *places: Place,
    look_up: Callable[[str, int], Sequence[Place]] | None = None,
    context: UpstreamContext | None = None,
    http2: Literal["auto", "on", "off"] = "off",
    connect_timeout_s: float = NEVER_S,
    tls_timeout_s: float = NEVER_S,
    host: str = "upstream.test",
    unix_path: str = "",
) -> Dialer:
    """Return a dialer whose target's name leads to `places`, or where `look_up` says."""
    loop = asyncio.get_running_loop()
    resolver = Resolver(
        host,
        443,
        loop,
        refresh_s=60.0,
        on_result=lambda _: None,
        on_addresses=lambda _: None,
        look_up=look_up or (lambda host, port: places),
    )
    target = DialTarget(host, host.encode(), http2, context, connect_timeout_s, tls_timeout_s, unix_path)
    return Dialer(target, resolver, ReadBuffer(), loop, engine_factory("ngh2"))


@contextlib.asynccontextmanager
async def dialed(dialer: Dialer) -> AsyncIterator[Connection]:
    """Dial for the block."""
    connection = await dialer.dial(Owner())
    try:
        yield connection
    finally:
        connection.abort(ConnectionEnd.SHUTDOWN)


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A port whose queue is full: the kernel answers no SYN, so a connection is neither made nor refused (F-2)."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Check that the block leaves no descriptor, no task and no warning behind."""
    gc.collect()
    fds, tasks = open_files(), asyncio.all_tasks()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield
        for _ in range(20):  # what is aborted closes some turns of the loop later
            await asyncio.sleep(0)
        gc.collect()
    assert [str(each.message) for each in warned] == []
    left = (open_files() - fds, asyncio.all_tasks() - tasks)
    assert left == (set(), set()), left


def open_files() -> set[str]:
    """Return what this process holds open: numbers of descriptors and what they lead to.

    Without /dev/null: libuv keeps one with its first stream, to have a descriptor when there is none left.
    """
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is closed again
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return {each for each in found if not each.endswith("/dev/null")}


class TlsServer:
    """A server on the test's loop that notes how each handshake went, then says one byte, so that tickets are read."""

    def __init__(self, context: ssl.SSLContext, port: int = 0) -> None:
        self._context: Final = context
        self._server: asyncio.Server
        self._writers: Final[set[asyncio.StreamWriter]] = set()
        self.port = port
        self.resumed: Final[list[bool]] = []
        self.versions: Final[list[str]] = []
        self.clients: Final[list[dict[str, Any] | None]] = []  # their certificates

    async def __aenter__(self) -> TlsServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def wait_handshakes(self, n: int) -> None:
        """Wait until the server knows of `n` handshakes: the client knows sooner."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.resumed) < n:
                await asyncio.sleep(0)

    async def _serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        secured = writer.get_extra_info("ssl_object")
        self.resumed.append(secured.session_reused)
        self.versions.append(secured.version())
        self.clients.append(secured.getpeercert())
        writer.write(b"x")


async def is_through(dialer: Dialer, n_turns: int) -> bool:
    """Cancel a dial after so many turns of the loop. True: it had succeeded before; its connection is ended."""
    dial = asyncio.create_task(dialer.dial(Owner()))
    for _ in range(n_turns):
        await asyncio.sleep(0)
    dial.cancel()
    try:
        connection = await dial
    except asyncio.CancelledError:
        return False
    connection.abort(ConnectionEnd.SHUTDOWN)
    return True
