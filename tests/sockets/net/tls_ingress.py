"""A TLS listener on a real socket in front of an application that does what a test says, and clients that see it all.

Knows: both sides' TLS. Does not know: what a test asks.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trustme

from tests.sockets.net.core_ingress import App, Server, listening
from velox.net.client.tls import TlsIngress
from velox.net.client.tls_context import ServerCertificate, server_context
from velox.outcomes import TlsFailure

__all__ = ["TlsClient", "TlsServer", "certificate_of", "serve_tls"]


def certificate_of(leaf: trustme.LeafCert, client_ca: trustme.CA | None = None) -> ServerCertificate:
    """Return a certificate as the settings give it, with no end that matters."""
    chain = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
    return ServerCertificate(
        chain, leaf.private_key_pem.bytes(), b"" if client_ca is None else client_ca.cert_pem.bytes(), b"", 1 << 40
    )


class TlsServer(Server):
    """A Server that speaks TLS. failures, resumed: what it was told of handshakes."""

    def __init__(
        self,
        app: App,
        certificate: ServerCertificate,
        *,
        write_s: float = 5.0,
        header_s: float = 5.0,
        max_connections: int = 100,
    ) -> None:
        super().__init__(
            app, write_s=write_s, budget=1 << 20, max_connections=max_connections, min_rate=0, header_s=header_s
        )
        self.failures: Final[list[TlsFailure]] = []
        self.resumed: Final[list[bool]] = []
        self.tls: Final = TlsIngress(
            self.ingress,
            server_context(certificate, ("http/1.1",)),
            on_handshake=self.resumed.append,
            on_failure=self.failures.append,
        )


@asynccontextmanager
async def serve_tls(server: TlsServer) -> AsyncIterator[TlsServer]:
    """Listen while the block runs."""
    async with listening(server, server.tls.connection):
        yield server


class TlsClient:
    """One TLS connection, whose end is told apart.

    end: "" while it is open; "close_notify", "fin" (without one), or "reset".
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.sock: Final = sock
        self.incoming: Final = ssl.MemoryBIO()
        self.outgoing: Final = ssl.MemoryBIO()
        self.tls: Final = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.end = ""
        self._loop: Final = asyncio.get_running_loop()

    async def handshake(self) -> TlsClient:
        """Shake hands. Raises ssl.SSLError when the server does not want to, ConnectionError when it leaves."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                if not await self._fill():
                    raise ConnectionError(f"the server has left: {self.end}") from None
            else:
                await self.flush()
                return self

    async def send(self, data: bytes) -> None:
        self.tls.write(data)
        await self.flush()

    async def recv(self) -> bytes:
        """Return what comes next; b"" at the end, and `end` says which one."""
        while True:
            try:
                data = self.tls.read(1 << 20)
            except ssl.SSLWantReadError:
                await self.flush()
                if not await self._fill():
                    return b""
                continue
            except ssl.SSLZeroReturnError:
                data = b""
            if not data:
                self.end = "close_notify"
            return data

    async def read_to_end(self) -> bytes:
        """Return all that comes."""
        whole = b""
        while data := await self.recv():
            whole += data
        return whole

    async def say_goodbye(self) -> None:
        """Send close_notify, and keep the connection."""
        try:
            self.tls.unwrap()
        except ssl.SSLError:
            pass  # the server's has not come
        await self.flush()

    async def flush(self) -> None:
        if self.outgoing.pending:
            await self._loop.sock_sendall(self.sock, self.outgoing.read())

    def close(self) -> None:
        self.sock.close()

    async def _fill(self) -> bool:
        try:
            data = await self._loop.sock_recv(self.sock, 1 << 16)
        except ConnectionResetError:
            self.end = "reset"
            return False
        if not data:
            self.end = "fin"
            return False
        self.incoming.write(data)
        return True
