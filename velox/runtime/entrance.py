"""A worker's way in: it accepts connections on its slot's sockets, with TLS where that is spoken, until it drains.

Knows: which of the sockets speak TLS, and how to stop so that nobody who waits in a queue is lost. Does not know: what
a connection is for.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Sequence
from typing import Final

from velox.net.client.ingress import Ingress
from velox.net.client.tls import TlsIngress
from velox.runtime.listeners import BACKLOG

__all__ = ["Entrance"]

# Draining: how long connections that keep coming are still taken. A full queue takes a good second, one a turn.
_BACKLOG_S: Final = 3.0


class Entrance:
    """The listening sockets of one worker. tls: None: none of them speaks it; else those of TCP do."""

    def __init__(self, listeners: Sequence[socket.socket], ingress: Ingress, tls: TlsIngress | None) -> None:
        self._listeners: Final = listeners
        self._ingress: Final = ingress
        self._tls: Final = tls
        self._servers: Final[list[asyncio.Server]] = []

    async def open(self) -> None:
        """Accept from now on.

        One connection a turn of the loop (libuv does no more): a burst of them holds up nobody who is being served, and
        waits in the listener's queue.
        """
        loop = self._ingress.loop
        for listener in self._listeners:
            # dup(): closing the server must not close what the supervisor's slot is known by in this process.
            # backlog: these listen() again, and would make the queue 100 long, too short for a burst of clients; those
            # beyond it come again after a second, or two, or four.
            sock = listener.dup()
            if listener.family == socket.AF_UNIX:
                # Its file's mode says who may connect: there is nothing that TLS would add.
                make_plain = self._ingress.connection
                self._servers.append(await loop.create_unix_server(make_plain, sock=sock, backlog=BACKLOG))
            else:
                make = self._ingress.connection if self._tls is None else self._tls.connection
                self._servers.append(await loop.create_server(make, sock=sock, backlog=BACKLOG))

    async def close(self) -> None:
        """Take the connections that are queued, then accept no more."""
        loop = self._ingress.loop
        until_s = loop.time() + _BACKLOG_S
        queues = select.poll()  # select() knows no descriptor above 1023, which many workers and addresses may reach
        for listener in self._listeners:
            queues.register(listener, select.POLLIN)
        while queues.poll(0) and loop.time() < until_s:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the last ones are accepted; now they become connections
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            listener.close()
