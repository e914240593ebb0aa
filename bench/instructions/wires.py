"""The two ends of a gateway without sockets: transports that play a client or an upstream, byte by byte.

Knows: the bytes that a client and an upstream say, over HTTP/1.1 and HTTP/2. Does not know: the gateway, or how often.

What they say next is prepared before (prepared.py): it costs nothing while anything is counted.

Each end hands its bytes to the gateway's protocol as a loop does after a read: get_buffer(), buffer_updated(). What
comes the other way is only looked at as far as it must be to know that it is whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from bench.payloads import SSE_CHUNK, SSE_LAST
from velox.net.upstream.read_pace import TIMED_BYTES

__all__ = ["Client", "Http1Client", "Http1Origin", "Http2Client", "Http2Origin", "Upstream", "Wire"]

_STREAMED: Final = b'"stream":true'
_LAST_CHUNK: Final = b"0\r\n\r\n"

# RFC 9113 §6
_DATA: Final = 0
_HEADERS_FRAME: Final = 1
_SETTINGS: Final = 4
_PING: Final = 6
_WINDOW_UPDATE: Final = 8
_END_STREAM: Final = 1
_END_HEADERS: Final = 4
_ACK: Final = 1
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_ROOMY: Final = 2**31 - 1
# So much fits into the buffer of a new upstream connection.
_READ_BYTES: Final = TIMED_BYTES - 1


class BufferedProtocol(Protocol):
    """What the gateway's protocols are."""

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _frames(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield kind, flags, stream and where the payload begins. The gateway writes whole frames."""
    at, end = 0, len(data)
    while at < end:
        size = int.from_bytes(data[at : at + 3], "big")
        yield data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big"), at + 9
        at += 9 + size


# SETTINGS_MAX_CONCURRENT_STREAMS 1000 (of a server), SETTINGS_INITIAL_WINDOW_SIZE; then the connection's window.
_ROOM_FOR_ALL: Final = _frame(
    _SETTINGS, 0, 0, b"\x00\x03\x00\x00\x03\xe8" + b"\x00\x04" + _ROOMY.to_bytes(4, "big")
) + _frame(_WINDOW_UPDATE, 0, 0, (_ROOMY - 65535).to_bytes(4, "big"))
_ROOM_FOR_REPLIES: Final = _frame(_SETTINGS, 0, 0, b"\x00\x04" + _ROOMY.to_bytes(4, "big")) + _frame(
    _WINDOW_UPDATE, 0, 0, (_ROOMY - 65535).to_bytes(4, "big")
)


class Wire(asyncio.Transport):
    """A transport whose other end never has too little room."""

    def __init__(self, protocol: BufferedProtocol, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__({"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 8080)})
        self._protocol = protocol
        self._give_bytes: Callable[[bytes], None] | None = None  # to a protocol that lends no buffer
        self._loop: Final = loop
        self._unread: list[bytes] | None = None  # what is said while the gateway reads nothing

    def say(self, data: bytes) -> None:
        """Let the gateway read this."""
        if self._give_bytes is not None:
            self._give_bytes(data)
            return
        while len(data) > _READ_BYTES:
            self._protocol.get_buffer(-1)[:_READ_BYTES] = data[:_READ_BYTES]
            self._protocol.buffer_updated(_READ_BYTES)
            data = data[_READ_BYTES:]
        self._protocol.get_buffer(-1)[: len(data)] = data
        self._protocol.buffer_updated(len(data))

    def set_protocol(self, protocol: BufferedProtocol | asyncio.Protocol) -> None:  # type: ignore[override]
        if isinstance(protocol, asyncio.Protocol):
            self._give_bytes = protocol.data_received
        else:
            self._give_bytes, self._protocol = None, protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self._unread is None

    def pause_reading(self) -> None:
        if self._unread is None:
            self._unread = []
            # Not by a question in say(), whose instructions are counted with each request's.
            self.say = self._unread.append  # type: ignore[method-assign, assignment]

    def resume_reading(self) -> None:
        """Let the gateway read again, from the next turn on, as a loop does."""
        if self._unread is not None:
            unread, self._unread = self._unread, None
            del self.say
            for data in unread:
                self._loop.call_soon(self.say, data)

    def abort(self) -> None:
        raise RuntimeError("the gateway gave a connection up")

    def close(self) -> None:
        raise RuntimeError("the gateway closed a connection")


# -- upstreams ----------------------------------------------------------------------------------------


class Upstream:
    """What the connections of one upstream share: what they answer next, and when.

    n_chunks: of a stream that begins. replies: prepared for the upstream's kind of HTTP.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.n_chunks = 0
        self.replies: Iterator[Any] = iter(())
        self._loop: Final = loop
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None

    def soon(self, answer: Callable[..., None], *arguments: Any) -> None:
        """Answer in the next turn of the loop, or when the answers that are held are released."""
        if self._held is None:
            self._loop.call_soon(answer, *arguments)
        else:
            self._held.append((answer, arguments))

    def hold(self) -> None:
        """Answer nothing until release()."""
        self._held = []

    def release(self) -> None:
        """Answer all that was held."""
        held, self._held = self._held or [], None
        for answer, arguments in held:
            self._loop.call_soon(answer, *arguments)


def _http1_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_HTTP1_WARM: Final = (
    b"HTTP/1.1 200 OK\r\nserver: cloudflare\r\ncontent-type: application/json\r\ncontent-length: 600\r\n\r\n"
)
_HTTP1_SSE_CHUNK: Final = _http1_chunk(SSE_CHUNK)
_HTTP1_SSE_END: Final = _http1_chunk(SSE_LAST) + _LAST_CHUNK


class Http1Origin(Wire):
    """An upstream that answers each request in the next turn of the loop; a stream gets a chunk a turn."""

    def __init__(self, protocol: BufferedProtocol, loop: asyncio.AbstractEventLoop, upstream: Upstream) -> None:
        super().__init__(protocol, loop)
        self._upstream: Final = upstream
        self._left = 0

    def write(self, data: Any) -> None:
        if data.startswith(b"HEAD "):  # the pool's warm-up
            self._loop.call_soon(self.say, _HTTP1_WARM)
        elif _STREAMED in data:
            self._left = self._upstream.n_chunks
            self._upstream.soon(self._begin, next(self._upstream.replies))
        else:
            self._upstream.soon(self.say, next(self._upstream.replies))

    def _begin(self, head: bytes) -> None:
        self._loop.call_soon(self._step)
        self.say(head)

    def _step(self) -> None:
        if self._left:
            self._left -= 1
            self._loop.call_soon(self._step)
            self.say(_HTTP1_SSE_CHUNK)
        else:
            self.say(_HTTP1_SSE_END)


class Http2Origin(Wire):
    """The same over HTTP/2: what came whole in one write is answered in one read.

    A prepared reply has the block of fields for a connection's first reply, that for any later one, and the body.
    """

    def __init__(self, protocol: BufferedProtocol, loop: asyncio.AbstractEventLoop, upstream: Upstream) -> None:
        super().__init__(protocol, loop)
        self._upstream: Final = upstream
        self._is_first = True

    def write(self, data: Any) -> None:
        data = bytes(data)
        now = b""
        answer = b""
        at = 0
        if data.startswith(_PREFACE):
            at = len(_PREFACE)
            now = _ROOM_FOR_ALL
        for kind, flags, stream, start in _frames(data[at:]):
            start += at
            if kind == _HEADERS_FRAME and flags & _END_STREAM:  # the pool's warm-up
                now += _frame(_HEADERS_FRAME, _END_HEADERS | _END_STREAM, stream, b"\x88")
            elif kind == _DATA and flags & _END_STREAM:
                block, body = self._reply()
                if body:
                    answer += _frame(_HEADERS_FRAME, _END_HEADERS, stream, block)
                    answer += _frame(_DATA, _END_STREAM, stream, body)
                else:
                    self._upstream.soon(self._begin, stream, block)
            elif kind == _SETTINGS and not flags & _ACK:
                now += _frame(_SETTINGS, _ACK, 0)
            elif kind == _PING and not flags & _ACK:
                now += _frame(_PING, _ACK, 0, data[start : start + 8])
        if now:
            self._loop.call_soon(self.say, now)
        if answer:
            self._upstream.soon(self.say, answer)

    def _reply(self) -> tuple[bytes, bytes]:
        first, later, body = next(self._upstream.replies)
        if self._is_first:
            self._is_first = False
            return first, body
        return later, body

    def _begin(self, stream: int, block: bytes) -> None:
        chunk = _frame(_DATA, 0, stream, SSE_CHUNK)
        self._loop.call_soon(self._step, stream, chunk, self._upstream.n_chunks)
        self.say(_frame(_HEADERS_FRAME, _END_HEADERS, stream, block))

    def _step(self, stream: int, chunk: bytes, left: int) -> None:
        if left:
            self._loop.call_soon(self._step, stream, chunk, left - 1)
            self.say(chunk)
        else:
            self.say(_frame(_DATA, _END_STREAM, stream, SSE_LAST))


# -- clients ------------------------------------------------------------------------------------------


class Client(Protocol):
    """One connection of a client. requests: prepared for its kind of HTTP; several connections may share them."""

    requests: Iterator[Any]

    def ask(self) -> None:
        """Send a request."""


class Http1Client(Wire):
    """A client that sends one request at a time. on_answer: its answer is whole, since what is written ends so."""

    def __init__(
        self, protocol: BufferedProtocol, loop: asyncio.AbstractEventLoop, ends: bytes, on_answer: Callable[[], None]
    ) -> None:
        super().__init__(protocol, loop)
        self._on_answer: Final = on_answer
        self._end: Final = ends
        self.requests: Iterator[bytes] = iter(())
        self.first = b""

    def ask(self) -> None:
        self.say(next(self.requests))

    def write(self, data: Any) -> None:
        if not self.first:
            self.first = bytes(data)
            if not self.first.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"the gateway answered {self.first!r}")
        if data.endswith(self._end):
            self._on_answer()


class Http2Client(Wire):
    """A client that sends several requests at a time, on streams of one connection.

    A prepared request has its block of fields, encoded after those before it, and its body.
    """

    def __init__(
        self, protocol: BufferedProtocol, loop: asyncio.AbstractEventLoop, ends: bytes, on_answer: Callable[[], None]
    ) -> None:
        super().__init__(protocol, loop)
        self._on_answer: Final = on_answer
        self._stream = 1
        self.requests: Iterator[tuple[bytes, bytes]] = iter(())

    def begin(self) -> None:
        """Say what comes before any request."""
        self.say(_PREFACE + _ROOM_FOR_REPLIES)

    def ask(self) -> None:
        stream, self._stream = self._stream, self._stream + 2
        block, body = next(self.requests)
        self.say(_frame(_HEADERS_FRAME, _END_HEADERS, stream, block) + _frame(_DATA, _END_STREAM, stream, body))

    def write(self, data: Any) -> None:
        data = bytes(data)
        for kind, flags, _, start in _frames(data):
            if kind in (_DATA, _HEADERS_FRAME) and flags & _END_STREAM:
                self._on_answer()
            elif kind == _SETTINGS and not flags & _ACK:
                self._loop.call_soon(self.say, _frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags & _ACK:
                self._loop.call_soon(self.say, _frame(_PING, _ACK, 0, data[start : start + 8]))
