"""The two ends of a gateway without sockets: transports that play a client or an upstream, byte by byte.

Knows: the bytes that a client and an upstream say, over HTTP/1.1 and HTTP/2. Does not know: the gateway, or how often.

Each end hands its bytes to the gateway's protocol as a loop does after a read: get_buffer(), buffer_updated(). What
comes the other way is only looked at as far as it must be to know that it is whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import hpack

from bench.payloads import API_KEY, CHAT_PATH, CHAT_REPLY, SSE_CHUNK, SSE_LAST

__all__ = ["Client", "Http1Client", "Http1Origin", "Http2Client", "Http2Origin", "Wire"]

# What an OpenAI SDK sends beside the key.
_HEADERS: Final = (
    ("content-type", "application/json"),
    ("accept", "application/json"),
    ("user-agent", "OpenAI/Python 3.52.0"),
    ("accept-encoding", "identity"),
    ("x-stainless-lang", "python"),
    ("x-stainless-retry-count", "0"),
    ("x-stainless-read-timeout", "600"),
    ("authorization", f"Bearer {API_KEY}"),
)
_REPLY_HEADERS: Final = (
    ("server", "nginx/1.22.1"),
    ("date", "Sun, 22 Nov 2026 02:00:00 GMT"),
)
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

    def say(self, data: bytes) -> None:
        """Let the gateway read this."""
        if self._give_bytes is not None:
            self._give_bytes(data)
            return
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
        return True

    def abort(self) -> None:
        raise RuntimeError("the gateway gave a connection up")

    def close(self) -> None:
        raise RuntimeError("the gateway closed a connection")


# -- upstreams ----------------------------------------------------------------------------------------


def _http1_head(kind: str, more: str) -> bytes:
    fields = "".join(f"{name}: {value}\r\n" for name, value in (*_REPLY_HEADERS, ("content-type", kind)))
    return f"HTTP/1.1 200 OK\r\n{fields}{more}\r\n".encode()


def _http1_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_HTTP1_JSON_HEAD: Final = _http1_head("application/json", f"content-length: {len(CHAT_REPLY)}\r\n")
_HTTP1_JSON: Final = _HTTP1_JSON_HEAD + CHAT_REPLY
_HTTP1_SSE_HEAD: Final = _http1_head("text/event-stream", "transfer-encoding: chunked\r\n")
_HTTP1_SSE_CHUNK: Final = _http1_chunk(SSE_CHUNK)
_HTTP1_SSE_END: Final = _http1_chunk(SSE_LAST) + _LAST_CHUNK


class Http1Origin(Wire):
    """An upstream that answers each request in the next turn of the loop; a stream gets a chunk a turn.

    n_chunks: of a stream; for all connections of one upstream, asked when the stream begins.
    """

    def __init__(
        self, protocol: BufferedProtocol, loop: asyncio.AbstractEventLoop, n_chunks: Callable[[], int]
    ) -> None:
        super().__init__(protocol, loop)
        self._n_chunks: Final = n_chunks
        self._left = 0

    def write(self, data: Any) -> None:
        if data.startswith(b"HEAD "):  # the pool's warm-up
            self._loop.call_soon(self.say, _HTTP1_JSON_HEAD)
        elif _STREAMED in data:
            self._left = self._n_chunks()
            self._loop.call_soon(self._begin)
        else:
            self._loop.call_soon(self.say, _HTTP1_JSON)

    def _begin(self) -> None:
        self._loop.call_soon(self._step)
        self.say(_HTTP1_SSE_HEAD)

    def _step(self) -> None:
        if self._left:
            self._left -= 1
            self._loop.call_soon(self._step)
            self.say(_HTTP1_SSE_CHUNK)
        else:
            self.say(_HTTP1_SSE_END)


def _literal(name: str, value: str) -> bytes:
    """Return a field that the decoder's table does not keep, as nginx writes it (RFC 7541 §6.2.2)."""
    return b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def _http2_head(kind: str, *more: tuple[str, str]) -> bytes:
    return b"\x88" + b"".join(_literal(*field) for field in (*_REPLY_HEADERS, ("content-type", kind), *more))


_HTTP2_JSON_HEAD: Final = _http2_head("application/json", ("content-length", str(len(CHAT_REPLY))))
_HTTP2_SSE_HEAD: Final = _http2_head("text/event-stream")


class Http2Origin(Wire):
    """The same over HTTP/2: what came whole in one write is answered in one read."""

    def __init__(
        self, protocol: BufferedProtocol, loop: asyncio.AbstractEventLoop, n_chunks: Callable[[], int]
    ) -> None:
        super().__init__(protocol, loop)
        self._n_chunks: Final = n_chunks
        self._ready = b""
        self._streamed: set[int] = set()

    def write(self, data: Any) -> None:
        data = bytes(data)
        answer = b""
        at = 0
        if data.startswith(_PREFACE):
            at = len(_PREFACE)
            answer = _ROOM_FOR_ALL
        for kind, flags, stream, start in _frames(data[at:]):
            start += at
            if kind == _HEADERS_FRAME and flags & _END_STREAM:  # the pool's warm-up
                answer += _frame(_HEADERS_FRAME, _END_HEADERS | _END_STREAM, stream, _HTTP2_JSON_HEAD)
            elif kind == _DATA and flags & _END_STREAM:
                if data.find(_STREAMED, start, start + 100) >= 0:
                    self._loop.call_soon(self._begin, stream)
                else:
                    answer += _frame(_HEADERS_FRAME, _END_HEADERS, stream, _HTTP2_JSON_HEAD)
                    answer += _frame(_DATA, _END_STREAM, stream, CHAT_REPLY)
            elif kind == _SETTINGS and not flags & _ACK:
                answer += _frame(_SETTINGS, _ACK, 0)
            elif kind == _PING and not flags & _ACK:
                answer += _frame(_PING, _ACK, 0, data[start : start + 8])
        if answer:
            self._loop.call_soon(self.say, answer)

    def _begin(self, stream: int) -> None:
        self._loop.call_soon(self._step, stream, _frame(_DATA, 0, stream, SSE_CHUNK), self._n_chunks())
        self.say(_frame(_HEADERS_FRAME, _END_HEADERS, stream, _HTTP2_SSE_HEAD))

    def _step(self, stream: int, chunk: bytes, left: int) -> None:
        if left:
            self._loop.call_soon(self._step, stream, chunk, left - 1)
            self.say(chunk)
        else:
            self.say(_frame(_DATA, _END_STREAM, stream, SSE_LAST))


# -- clients ------------------------------------------------------------------------------------------


class Client(Protocol):
    """One connection of a client."""

    def ask(self) -> None:
        """Send a request."""


class Http1Client(Wire):
    """A client that sends one request at a time. on_answer: its answer is whole."""

    def __init__(
        self, protocol: BufferedProtocol, loop: asyncio.AbstractEventLoop, body: bytes, on_answer: Callable[[], None]
    ) -> None:
        super().__init__(protocol, loop)
        self._on_answer: Final = on_answer
        fields = "".join(f"{name}: {value}\r\n" for name, value in (("host", "127.0.0.1:8080"), *_HEADERS))
        head = f"POST {CHAT_PATH} HTTP/1.1\r\n{fields}content-length: {len(body)}\r\n\r\n"
        self._request: Final = head.encode() + body
        self._end: Final = _LAST_CHUNK if _STREAMED in body else CHAT_REPLY
        self.first = b""

    def ask(self) -> None:
        self.say(self._request)

    def write(self, data: Any) -> None:
        if not self.first:
            self.first = bytes(data)
            if not self.first.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"the gateway answered {self.first!r}")
        if data.endswith(self._end):
            self._on_answer()


class Http2Client(Wire):
    """A client that sends several requests at a time, on streams of one connection."""

    def __init__(
        self, protocol: BufferedProtocol, loop: asyncio.AbstractEventLoop, body: bytes, on_answer: Callable[[], None]
    ) -> None:
        super().__init__(protocol, loop)
        self._on_answer: Final = on_answer
        fields = [(":method", "POST"), (":scheme", "http"), (":path", CHAT_PATH), (":authority", "127.0.0.1:8080")]
        fields += [*_HEADERS, ("content-length", str(len(body)))]
        encoder = hpack.Encoder()
        self._first_block: bytes = encoder.encode(fields)
        self._block: Final[bytes] = encoder.encode(fields)  # the table has all of them by now
        self._body: Final = body
        self._stream = 1

    def begin(self) -> None:
        """Say what comes before any request."""
        self.say(_PREFACE + _ROOM_FOR_REPLIES)

    def ask(self) -> None:
        stream, self._stream = self._stream, self._stream + 2
        block = self._block if stream > 1 else self._first_block
        self.say(_frame(_HEADERS_FRAME, _END_HEADERS, stream, block) + _frame(_DATA, _END_STREAM, stream, self._body))

    def write(self, data: Any) -> None:
        data = bytes(data)
        for kind, flags, _, start in _frames(data):
            if kind in (_DATA, _HEADERS_FRAME) and flags & _END_STREAM:
                self._on_answer()
            elif kind == _SETTINGS and not flags & _ACK:
                self._loop.call_soon(self.say, _frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags & _ACK:
                self._loop.call_soon(self.say, _frame(_PING, _ACK, 0, data[start : start + 8]))
