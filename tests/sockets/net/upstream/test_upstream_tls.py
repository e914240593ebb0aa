"""HTTP/1.1 to an upstream over real TLS: how its end is told, and what a reader that pauses holds."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import trustme
import uvloop

from tests.patience import PATIENCE_S
from tests.unit.net.upstream_wire import KIB, MIB, Owner, Sink, asked
from velox.errors import Reason
from velox.net.upstream.http1 import Http1Connection
from velox.net.upstream.interface import ReadBuffer
from velox.outcomes import ConnectionEnd

Script = Callable[[ssl.SSLSocket], None]
UNTIL_CLOSE: Final = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextlib.contextmanager
def serving(authority: trustme.CA, script: Script) -> Iterator[int]:
    """A server that plays `script` on one connection, once the request has come. Gives its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE_S)
        # Else the socket's end would say close_notify by itself.
        with context.wrap_socket(connection, server_side=True, suppress_ragged_eofs=False) as secured:
            secured.recv(64 * KIB)
            # The gateway may hang up while we write.
            with contextlib.suppress(OSError):
                script(secured)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


class WaitingSink(Sink):
    """A sink that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.over: Final = asyncio.Event()
        self.pause: Callable[[], None] = lambda: None

    def on_reply(self, head, data, end) -> None:  # type: ignore[no-untyped-def]
        super().on_reply(head, data, end)
        self.pause()
        if end:
            self.over.set()

    def on_failure(self, failure) -> None:  # type: ignore[no-untyped-def]
        super().on_failure(failure)
        self.over.set()


async def dial(authority: trustme.CA, port: int, owner: Owner) -> Http1Connection:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    loop = asyncio.get_running_loop()
    connection = Http1Connection(owner, ReadBuffer(), b"localhost", loop)
    await loop.create_connection(
        lambda: connection, "127.0.0.1", port, ssl=context, server_hostname="localhost", ssl_shutdown_timeout=0.5
    )
    return connection


def exchange(authority: trustme.CA, script: Script) -> tuple[WaitingSink, Owner]:
    """One request, to its end."""

    async def run(port: int) -> tuple[WaitingSink, Owner]:
        owner, sink = Owner(), WaitingSink()
        connection = await dial(authority, port, owner)
        connection.open(asked(), sink)
        async with asyncio.timeout(PATIENCE_S):
            await sink.over.wait()
        return sink, owner

    with serving(authority, script) as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(port))


def say_goodbye(secured: ssl.SSLSocket) -> None:
    """close_notify, and the end of the connection."""
    secured.settimeout(0.2)
    with contextlib.suppress(OSError):
        secured.unwrap()


def cut(secured: ssl.SSLSocket) -> None:
    """The end of the connection, without close_notify: what anyone on the way can do."""
    secured.shutdown(socket.SHUT_RDWR)


def test_reply_that_ends_with_close_notify_is_whole(authority: trustme.CA) -> None:
    """Neither length nor chunks: the upstream says where it ends by closing."""

    def script(secured: ssl.SSLSocket) -> None:
        secured.sendall(UNTIL_CLOSE + b"all of it")
        say_goodbye(secured)

    sink, owner = exchange(authority, script)
    assert (sink.body, sink.ended, sink.failure) == (b"all of it", True, None)
    assert len(owner.ends) == 1


def test_reply_that_ends_without_close_notify_is_cut(authority: trustme.CA) -> None:
    """RFC 9112 §9.8: a close that TLS knows nothing of may be an attack; the reply must not look whole (F-13)."""

    def script(secured: ssl.SSLSocket) -> None:
        secured.sendall(UNTIL_CLOSE + b"part of it")
        cut(secured)

    sink, owner = exchange(authority, script)
    assert sink.body == b"part of it" and not sink.ended
    assert sink.failure is not None and sink.failure.reason is Reason.UPSTREAM_TRUNCATED
    assert owner.ends == [ConnectionEnd.LOST]


@pytest.mark.parametrize("ends", [say_goodbye, cut])
@pytest.mark.parametrize("n_body", [100 * KIB, 3 * MIB])
def test_slow_reader_gets_all_of_a_reply_that_ended_long_ago(
    authority: trustme.CA, ends: Callable[[ssl.SSLSocket], None], n_body: int
) -> None:
    """While it pauses, the end of the connection is not read past: what came before would be thrown away."""
    sent = threading.Event()

    def script(secured: ssl.SSLSocket) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % n_body
        secured.sendall(head + bytes(64 * KIB))
        secured.sendall(bytes(n_body - 64 * KIB))
        ends(secured)
        sent.set()

    async def run(port: int) -> None:
        sink = WaitingSink()
        connection = await dial(authority, port, Owner())
        sink.pause = connection.pause
        connection.open(asked(), sink)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while not sink.over.is_set():
                n_calls = sink.n_calls
                while sink.n_calls == n_calls and not sink.over.is_set():
                    await asyncio.sleep(0.01)
                # Time enough for whatever the loop reads behind the sink's back.
                if n_body < MIB:
                    await loop.run_in_executor(None, sent.wait, 1.0)
                for _ in range(10):
                    await asyncio.sleep(0)
                connection.resume()
        assert (len(sink.body), sink.ended, sink.failure) == (n_body, True, None)

    with serving(authority, script) as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(port))


def test_reader_that_pauses_stops_the_upstream(authority: trustme.CA) -> None:
    """Uvloop's TLS does not go on reading half a mebibyte for a reader that takes nothing."""
    n_sent = 0

    def script(secured: ssl.SSLSocket) -> None:
        nonlocal n_sent
        secured.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)
        secured.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\nx")
        secured.settimeout(1.0)
        while True:
            n_sent += secured.send(bytes(16 * KIB))

    async def run(port: int) -> tuple[Http1Connection, WaitingSink]:
        sink = WaitingSink()
        context = ssl.create_default_context()
        authority.configure_trust(context)
        loop = asyncio.get_running_loop()
        connection = Http1Connection(Owner(), ReadBuffer(), b"localhost", loop)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
        sock.connect(("127.0.0.1", port))
        sock.setblocking(False)
        await loop.create_connection(lambda: connection, sock=sock, ssl=context, server_hostname="localhost")
        sink.pause = connection.pause
        connection.open(asked(), sink)
        before = -1
        async with asyncio.timeout(PATIENCE_S):
            while n_sent != before or not sink.n_calls:
                before = n_sent
                await asyncio.sleep(0.2)
        connection.cancel()
        return connection, sink

    with serving(authority, script) as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(port))
    assert n_sent < 400 * KIB
