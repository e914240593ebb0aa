"""An upstream connection without sockets: loop, owner, sinks, a transport in memory, an upstream behind it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Final, cast

from tests.unit.protocol.http2.http2_peers import Name, Recorder
from velox.heads import Header, ReplyHead
from velox.net.upstream.http2 import Http2Connection, Http2Stream
from velox.net.upstream.interface import PlainFields, ReadBuffer, UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.outcomes import ConnectionEnd
from velox.protocol.http1 import write as http1_write
from velox.protocol.http2.engine import EngineSettings
from velox.protocol.http2.engines import engine_factory

__all__ = ["KIB", "MIB", "OK", "Loop", "Owner", "Sink", "Transport", "Wire", "asked"]

KIB: Final = 1 << 10
MIB: Final = 1 << 20
OK: Final[list[Header]] = [(b":status", b"200"), (b"content-type", b"text/plain")]


def asked(body: bytes | None = None, method: bytes = b"POST", *, ahead: bool = True) -> UpstreamRequest:
    """A request. ahead: its reply may run ahead of the client."""
    return UpstreamRequest(method, b"/v1/x", PlainFields([]), (), body, may_run_ahead=ahead)


class Loop:
    """Keeps what is to be called soon until somebody turns it; its clock stands still."""

    def __init__(self) -> None:
        self.soon: Final[list[Callable[[], None]]] = []
        self.now_s = 1_000.0

    def call_soon(self, callback: Callable[..., None], *args: object) -> None:
        self.soon.append(lambda: callback(*args))

    def time(self) -> float:
        return self.now_s

    def turn(self) -> None:
        """Do what was to be done soon."""
        soon, self.soon[:] = self.soon[:], []
        for callback in soon:
            callback()


class Owner:
    """The pool's place."""

    def __init__(self) -> None:
        self.n_room = 0
        self.ends: Final[list[ConnectionEnd | None]] = []

    def on_room(self, connection: UpstreamConnection) -> None:
        assert connection.has_room and connection.end is None, "no room there"
        self.n_room += 1

    def on_closed(self, connection: UpstreamConnection) -> None:
        assert not connection.has_room, "told of the end of a connection that goes on"
        self.ends.append(connection.end)


class Sink:
    """The gateway's place. takes_chunks: also without their being decoded."""

    def __init__(self, *, takes_chunks: bool = False) -> None:
        self.takes_chunks: Final = takes_chunks
        self.n_chunks = 0  # taken so
        self.n_offered = 0
        self.head: ReplyHead | None = None
        self.body = b""
        self.n_calls = 0
        self.ended = False
        self.failure: UpstreamFailure | None = None
        self.is_deaf = False  # after a cancel

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        assert not self.ended and self.failure is None and not self.is_deaf, "told after the end"
        assert (head is not None) == (self.head is None), "a head comes once, first of all"
        self.head = head or self.head
        self.body += data
        self.n_calls += 1
        self.ended = end

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        assert not self.ended and self.failure is None and not self.is_deaf, "told after the end"
        assert self.head is not None, "a head comes first of all"
        self.n_offered += 1
        if self.takes_chunks:
            assert chunk == http1_write.chunk(chunk[at:-2])
            self.body += chunk[at:-2]
            self.n_chunks += 1
        return self.takes_chunks

    def on_failure(self, failure: UpstreamFailure) -> None:
        assert not self.ended and self.failure is None and not self.is_deaf, "told after the end"
        self.failure = failure


class TcpSocket:
    """The socket of a connection of which so many bytes were sent, and so many of them acknowledged."""

    family: Final = socket.AF_INET

    def __init__(self, n_sent: int, n_acked: int) -> None:
        self._info: Final = bytearray(256)
        struct.pack_into("Q", self._info, 120, n_acked + 1)  # tcpi_bytes_acked, with the SYN
        struct.pack_into("Q", self._info, 200, n_sent)  # tcpi_bytes_sent

    def getsockopt(self, level: int, name: int, n_bytes: int) -> bytes:
        assert (level, name) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return bytes(self._info[:n_bytes])


class Secured:
    """What TLS has decrypted of a connection, and nobody has read."""

    def __init__(self) -> None:
        self.unread: Final = bytearray()

    def read(self, n_bytes: int) -> bytes:
        if not self.unread:
            raise ssl.SSLWantReadError
        data = bytes(self.unread[:n_bytes])
        del self.unread[:n_bytes]
        return data


class Transport:
    """A transport whose kernel takes `room` bytes more; what it has taken is in `sent`."""

    HIGH: Final = 64 * KIB

    def __init__(self) -> None:
        self.room = 1 << 40
        self.secured: Secured | None = None  # None: it is not TLS
        self.sent: Final = bytearray()
        self.waiting: Final = bytearray()
        self.is_closed = False
        self._is_reading = True
        self.n_writes = 0
        self.protocol: asyncio.BaseProtocol
        self._is_paused = False
        self.n_received: int | None = None  # by the peer's kernel, of what was sent; None: all

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closed:
            return
        self.n_writes += 1
        self.waiting += data
        self._push()
        if len(self.waiting) > self.HIGH and not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()

    def make_room(self, n_bytes: int) -> None:
        """The upstream has read so much."""
        self.room += n_bytes
        self._push()
        if self._is_paused and len(self.waiting) <= self.HIGH // 4:
            self._is_paused = False
            self.protocol.resume_writing()

    def take(self) -> bytes:
        """What has been sent since the last time."""
        sent = bytes(self.sent)
        self.sent.clear()
        return sent

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def get_extra_info(self, name: str) -> TcpSocket | Secured | None:
        """Return what TCP, and TLS, tell of the connection."""
        if name == "ssl_object":
            return self.secured
        assert name == "socket", name
        n_sent = len(self.sent)
        return TcpSocket(n_sent, n_sent if self.n_received is None else self.n_received)

    def is_closing(self) -> bool:
        return self.is_closed

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def read(self, data: bytes) -> None:
        """Give the protocol what one read brings, as a loop does."""
        if isinstance(self.protocol, asyncio.BufferedProtocol):
            protocol = self.protocol
            while data and not self.is_closed:  # as much at a time as it has room for
                room = protocol.get_buffer(-1)
                part, data = data[: len(room)], data[len(room) :]
                room[: len(part)] = part
                protocol.buffer_updated(len(part))
        else:
            assert isinstance(self.protocol, asyncio.Protocol)
            self.protocol.data_received(data)

    def abort(self) -> None:
        self.is_closed = True
        self.waiting.clear()

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def _push(self) -> None:
        n_bytes = min(self.room, len(self.waiting))
        self.sent += self.waiting[:n_bytes]
        del self.waiting[:n_bytes]
        self.room -= n_bytes


class TlsTransport(Transport):
    """As uvloop's: it has this beside what others have."""

    def set_read_buffer_limits(self, high: int, low: int) -> None: ...


class Wire:
    """An HTTP/2 connection, its transport, and the upstream at the other end, which is an engine too."""

    def __init__(
        self, engine: Name, server_settings: EngineSettings | None = None, stream_window_bytes: int = 256 * KIB
    ) -> None:
        self.loop: Final = Loop()
        self.owner: Final = Owner()
        self.transport: Final = Transport()
        self.peer: Final = Recorder()
        # More than a client may open: what is under test counts for itself.
        settings = server_settings or EngineSettings(max_streams_local=1_000)
        self.server: Final = engine_factory("ngh2")(self.peer, settings, False)
        self.peer.engine = self.server
        self.server.start()
        self.connection: Final = Http2Connection(
            self.owner,
            ReadBuffer(clock=self.loop.time),
            b"api.example",
            cast(asyncio.AbstractEventLoop, self.loop),
            engine_factory(engine),
            scheme=b"https",
            stream_window_bytes=stream_window_bytes,
        )
        self.transport.protocol = self.connection
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))
        self.pump()

    @property
    def is_closed(self) -> bool:
        return self.transport.is_closed

    def give(self, data: bytes) -> None:
        """Let the connection read, as a loop would."""
        self.transport.read(data)

    def pump(self) -> None:
        """Carry bytes both ways until both sides are quiet."""
        for _ in range(10_000):
            self.loop.turn()
            sent = self.transport.take()
            if sent:
                self.server.receive(sent)
            came = self.server.take_output() if self.server.has_output else b""
            if came:
                self.give(came)
            if not (sent or came or self.loop.soon):
                return
        raise AssertionError("the two never become quiet")

    def open(
        self, body: bytes | None = None, method: bytes = b"POST", *, ahead: bool = True, sink: Sink | None = None
    ) -> tuple[Sink, Http2Stream]:
        sink = sink or Sink()
        return sink, self.connection.open(asked(body, method, ahead=ahead), sink)

    def answer(self, stream: Http2Stream, body: bytes = b"", *, end: bool = True) -> None:
        """The upstream's reply, up to now."""
        self.server.send_response(stream.id, OK, end and not body)
        if body:
            self.server.send_data(stream.id, body, end)

    def lose(self) -> None:
        """The connection is gone, as the loop tells it."""
        self.transport.is_closed = True
        self.connection.connection_lost(None)
