"""Whether TCP has delivered a request, on real sockets: a connection that was closed, or a server that failed?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from velox.net.upstream.delivery import n_unacknowledged

REQUEST = b"x" * 500


class Client(asyncio.Protocol):
    """A client that notes what was outstanding at the end of its connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.at_eof: int | None = -1
        self.got = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.got.set()

    def eof_received(self) -> bool:
        assert self.transport is not None
        self.at_eof = n_unacknowledged(self.transport)
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.set()


async def served(family: int, address: object) -> tuple[Client, socket.socket]:
    """Return a client and the server's end of a connection that has served one request."""
    listener = socket.socket(cast(socket.AddressFamily, family))
    listener.bind(cast(str, address))
    listener.listen()
    loop = asyncio.get_running_loop()
    if family == socket.AF_UNIX:
        _, client = await loop.create_unix_connection(Client, listener.getsockname())
    else:
        _, client = await loop.create_connection(Client, *listener.getsockname())
    server, _ = listener.accept()
    listener.close()
    assert client.transport is not None
    client.transport.write(b"first")
    assert server.recv(5) == b"first"
    server.send(b"answer")
    await client.got.wait()
    return client, server


def closes_first(client: asyncio.Transport, server: socket.socket) -> None:
    server.close()
    client.write(REQUEST)


def reads_and_closes(client: asyncio.Transport, server: socket.socket) -> None:
    client.write(REQUEST)
    assert server.recv(len(REQUEST), socket.MSG_WAITALL) == REQUEST
    server.close()


@pytest.mark.parametrize(("ends", "outstanding"), [(closes_first, len(REQUEST)), (reads_and_closes, 0)])
def test_bytes_are_outstanding_only_where_the_peer_had_closed(
    ends: Callable[[asyncio.Transport, socket.socket], None], outstanding: int
) -> None:
    """The loop has not yet seen the peer's end as the request is written: the race of each keep-alive."""

    async def main() -> None:
        client, server = await served(socket.AF_INET, ("127.0.0.1", 0))
        with server:
            assert client.transport is not None
            ends(client.transport, server)
            await client.lost.wait()
        assert client.at_eof == outstanding

    uvloop.run(main())


def test_unix_socket_tells_nothing(tmp_path: object) -> None:
    """The kernel has no acknowledgements there."""

    async def main() -> None:
        client, server = await served(socket.AF_UNIX, f"{tmp_path}/s")
        with server:
            assert client.transport is not None
            reads_and_closes(client.transport, server)
            await client.lost.wait()
        assert client.at_eof is None

    uvloop.run(main())
