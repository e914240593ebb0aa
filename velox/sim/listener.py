"""The simulator's listening sockets: opened, and for a simulated outage closed and opened again on the same port.

Knows: addresses, TLS, SO_REUSEADDR. Does not know: when it is down, what a connection does.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from velox.sim.options import SimOptions

__all__ = ["Listener"]

_BACKLOG: Final = 4096  # a load test opens its connections all at once; the kernel caps it at somaxconn
_TLS_HANDSHAKE_S: Final = 10.0


class Listener:
    """Where clients connect. open() it first, and close() it at the end."""

    def __init__(
        self, options: SimOptions, front: Callable[[], asyncio.Protocol], sock: socket.socket | None = None
    ) -> None:
        """front: makes the protocol of a new connection. sock: a bound stream socket to listen on instead of host and
        port; it belongs to the listener, which can't be opened again once it was shut.

        Raises ssl.SSLError or OSError for a bad certificate, OSError when the address can't be bound.
        """
        self._loop: Final = asyncio.get_running_loop()
        self._front: Final = front
        self._tls: Final = _tls_context(options)
        self._host: Final = options.host
        self._sock: Final = sock
        self._server: asyncio.Server | None = None
        # While the port is closed it stays bound, or the kernel could give it to another process; who connects is
        # refused, as nobody listens.
        self._held: Final = _bound(options) if options.flap_as == "refuse" and options.flap and not sock else None
        self.port = self._held.getsockname()[1] if self._held else options.port

    def __repr__(self) -> str:
        return f"<Listener {self._host}:{self.port} {'open' if self._server else 'closed'}>"

    async def open(self) -> None:
        """Listen, unless it does already. Raises OSError when the address can't be bound."""
        if self._server is not None:
            return
        loop, handshake_s = self._loop, _TLS_HANDSHAKE_S if self._tls else None
        if self._sock is not None:
            self._server = await loop.create_server(
                self._front, sock=self._sock, backlog=_BACKLOG, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        else:
            self._server = await loop.create_server(
                self._front,
                self._host,
                self.port,
                backlog=_BACKLOG,
                ssl=self._tls,
                ssl_handshake_timeout=handshake_s,
                reuse_address=True,
            )
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Refuse who connects; the connections there are go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Shut, and give the port back."""
        self.shut()
        if self._held is not None:
            self._held.close()


def _bound(options: SimOptions) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
    held = socket.socket(family, kind, protocol)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(place)
    except OSError:
        held.close()
        raise
    return held


def _tls_context(options: SimOptions) -> ssl.SSLContext | None:
    if options.cert_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(options.cert_file, options.key_file)
    context.set_alpn_protocols(["h2", "http/1.1"] if options.http2 else ["http/1.1"])
    return context
