"""A uvloop that has no sockets and no clock: what a worker connects to or listens on stays in the process.

Knows: which calls of a loop make a socket, a server or a timer. Does not know: what goes over a connection.

Everything else is uvloop's own. Timers never come: what a worker does ten times a second would fall into the count by
chance, and the more of it the slower the machine.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import uvloop

__all__ = ["Listening", "Never", "StillLoop"]


class Never:
    """A timer that does not come."""

    def cancel(self) -> None: ...


class Listening:
    """A server without a socket."""

    def close(self) -> None: ...


class StillLoop(uvloop.Loop):
    """attach: gets the protocol of each connection that is made, and returns its transport.

    make_protocol: of a connection that is accepted; there once a worker listens.
    """

    def __init__(self, attach: Callable[[Any], asyncio.BaseTransport]) -> None:
        super().__init__()
        self._attach: Final = attach
        self.make_protocol: Callable[[], Any] | None = None

    async def sock_connect(self, sock: socket.socket, address: object) -> None:
        """Connected."""

    async def create_connection(self, make: Callable[[], Any], sock: socket.socket, **_: object) -> Any:  # type: ignore[override]
        """Return what the real one would. The socket was made by the caller, and nobody needs it."""
        sock.close()
        protocol = make()
        transport = self._attach(protocol)
        protocol.connection_made(transport)
        return transport, protocol

    async def create_server(self, make: Callable[[], Any], **_: object) -> Listening:  # type: ignore[override]
        """Keep how a connection's protocol is made."""
        self.make_protocol = make
        return Listening()

    def add_signal_handler(self, *_: object) -> None: ...

    def call_later(self, *_: object, **__: object) -> Never:  # type: ignore[override]
        return Never()

    def call_at(self, *_: object, **__: object) -> Never:  # type: ignore[override]
        return Never()
