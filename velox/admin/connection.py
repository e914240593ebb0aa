"""One connection of the admin listener: bytes of requests in, bytes of replies out, with TLS or without.

Knows: when a head or a body is whole, how long it may take, TLS over memory BIOs. Does not know: what a request asks
for, or how many connections there are (server.py).

    head      8 KiB, within 5 s of the connection's start or of its first byte
    body      1 MiB, within 10 s
    between   a connection may wait 75 s for its next request
    ahead     64 KiB of the next requests are read while one is answered; then the client has to wait
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from typing import Final, Protocol

from velox.admin.message import BODY_BYTES, AdminRequest, RefusalError, too_large
from velox.errors import VeloxError
from velox.protocol.http1.chunked import ChunkedDecoder

__all__ = ["HEAD_BYTES", "Incoming", "PlainStream", "Stream", "TlsStream", "has_private_peer"]

HEAD_BYTES: Final = 8192
_END: Final = b"\r\n\r\n"
_HEAD_TIMEOUT_S: Final = 5.0
_BODY_TIMEOUT_S: Final = 10.0
_WRITE_TIMEOUT_S: Final = 30.0
_LINGER_S: Final = 1.0
# Longer than what Prometheus and most clients wait between two requests.
_IDLE_S: Final = 75.0
_READ_BYTES: Final = 64 * 1024
_GO_ON: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Stream(Protocol):
    """What a connection is read from and written to. Both raise OSError when it is broken."""

    async def read(self) -> bytes:
        """Return what has come, as soon as something has; b"" at the end."""

    def write(self, data: bytes) -> None:
        """Send."""

    async def drain(self) -> None:
        """Wait until the kernel has all that was written."""

    def write_eof(self) -> None:
        """Say that nothing more is sent."""


class PlainStream:
    """A connection without TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer
        writer.transport.set_write_buffer_limits(0)  # drain() waits until the kernel has all of it

    async def read(self) -> bytes:
        """Return what has come, as soon as something has; b"" at the end."""
        return await self._reader.read(_READ_BYTES)

    def write(self, data: bytes) -> None:
        """Send."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the kernel has all that was written."""
        async with asyncio.timeout(_WRITE_TIMEOUT_S):
            await self._writer.drain()

    def write_eof(self) -> None:
        """Say that nothing more is sent."""
        self._writer.write_eof()


class TlsStream:
    """A connection with TLS. Own code over memory BIOs: an event loop counts no connection before its handshake."""

    def __init__(self, stream: PlainStream, context: ssl.SSLContext) -> None:
        self._stream: Final = stream
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._tls: Final = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        """Shake hands. Raises OSError, TimeoutError."""
        async with asyncio.timeout(_HEAD_TIMEOUT_S):
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    self._send()
                    if not await self._receive():
                        raise ConnectionResetError("the client left") from None
                    continue
                finally:
                    self._send()  # an alert, too
                return

    async def read(self) -> bytes:
        """Return what has come, as soon as something has; b"" at the end."""
        while True:
            try:
                found = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                self._send()
                if not await self._receive():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            else:
                return found

    def write(self, data: bytes) -> None:
        """Send."""
        if data:
            self._tls.write(data)
            self._send()

    async def drain(self) -> None:
        """Wait until the kernel has all that was written."""
        await self._stream.drain()

    def write_eof(self) -> None:
        """Say that nothing more is sent."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the client has not said so yet, or never will
        self._send()
        self._stream.write_eof()

    async def _receive(self) -> bool:
        found = await self._stream.read()
        self._incoming.write(found)
        return bool(found)

    def _send(self) -> None:
        if self._outgoing.pending:
            self._stream.write(self._outgoing.read())


class Incoming:
    """The requests of one connection, in their order."""

    def __init__(self, stream: Stream) -> None:
        self._stream: Final = stream
        self._buffer = bytearray()
        self._n_heads = 0

    def __repr__(self) -> str:
        return f"<Incoming {self._n_heads} heads, {len(self._buffer)} bytes ahead>"

    async def read_head(self) -> bytes:
        """Return the next head with its empty line. Raises RefusalError: 408, 431; OSError when none comes."""
        if self._n_heads and not self._buffer:
            async with asyncio.timeout(_IDLE_S):
                await self._read_more()
        self._n_heads += 1
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                while (end := self._buffer.find(_END)) < 0:
                    if len(self._buffer) >= HEAD_BYTES + len(_END):
                        break
                    await self._read_more()
        except TimeoutError as exc:
            raise RefusalError(408, "the request's head took too long") from exc
        if not 0 <= end <= HEAD_BYTES:
            raise RefusalError(431, f"the request's head is over {HEAD_BYTES} bytes")
        return self._take(end + len(_END))

    async def read_body(self, request: AdminRequest) -> bytes:
        """Return the body of a request. Raises RefusalError: 400, 408, 413; ConnectionResetError."""
        framing = request.framing
        if framing.length == 0:
            return b""
        if framing.expects_continue and not self._buffer:
            self._stream.write(_GO_ON)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                if framing.length is None:
                    return await self._read_chunks()
                while len(self._buffer) < framing.length:
                    await self._read_more()
        except TimeoutError as exc:
            raise RefusalError(408, "the request's body took too long") from exc
        return self._take(framing.length)

    async def _read_chunks(self) -> bytes:
        decoder, body = ChunkedDecoder(BODY_BYTES), bytearray()
        while True:
            try:
                part, n_read = decoder.decode(self._buffer, 0)
            except VeloxError as exc:
                raise (too_large() if exc.status == 413 else RefusalError(exc.status, exc.message)) from exc
            del self._buffer[:n_read]
            body += part
            if decoder.complete:
                return bytes(body)
            await self._read_more()

    async def wait_gone(self) -> None:
        """Return when the client has left; hold what it sends meanwhile. Never when it sends much."""
        try:
            while len(self._buffer) < _READ_BYTES:
                await self._read_more()
        except OSError:
            return
        await asyncio.Event().wait()

    async def linger(self) -> None:
        """Let the client close first: closing over unread input sends a reset, which may outrun the reply."""
        self._stream.write_eof()
        async with asyncio.timeout(_LINGER_S):
            while await self._stream.read():
                pass

    def _take(self, n_bytes: int) -> bytes:
        found = bytes(self._buffer[:n_bytes])
        del self._buffer[:n_bytes]
        return found

    async def _read_more(self) -> None:
        found = await self._stream.read()
        if not found:
            raise ConnectionResetError("the client left")
        self._buffer += found


def has_private_peer(writer: asyncio.StreamWriter) -> bool:
    """Tell whether a connection comes from this machine."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        return True
    peer = writer.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return False
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
