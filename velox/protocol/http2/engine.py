"""HTTP/2 behind one adapter: what an engine does, whom it tells, and which engines there are.

Knows: streams, windows and events as an engine's user sees them. Does not know: sockets, what an exchange
means, or (until one is chosen) any HTTP/2 library.

How an engine is used: feed what was read to receive(), which calls the handler; call the verbs at any time,
also from the handler; then write take_output() while has_output is True and the transport has room. The handler is
called from receive() and from nowhere else.

Back-pressure. Inbound: a peer may send a stream no more than its window until acknowledge(). Outbound:
send_data() takes everything and keeps what the peer's windows forbid; a caller that streams looks at
queued_bytes() after it has written take_output(), and stops reading its source while too much is queued.
on_window() says when to write, and so to look, again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias

from velox.heads import Header, Headers

__all__ = [
    "CANCEL",
    "ENHANCE_YOUR_CALM",
    "FRAME_SIZE_ERROR",
    "INGRESS_SETTINGS",
    "INTERNAL_ERROR",
    "LARGE_UPDATE",
    "MAX_IDLE_FRAMES",
    "MAX_INTERIM",
    "MAX_OUTPUT",
    "MAX_WINDOW",
    "NEVER_INDEXED",
    "NO_ERROR",
    "PING_DATA",
    "PREFACE",
    "PROTOCOL_ERROR",
    "REFUSED_STREAM",
    "STREAM_CLOSED",
    "Engine",
    "EngineError",
    "EngineFactory",
    "EngineHandler",
    "EngineSettings",
    "Mark",
    "Markable",
    "SendQueue",
    "guarded",
]

# Error codes of RFC 9113 §7, those that Velox sends or acts on.
NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
ENHANCE_YOUR_CALM: Final = 0xB

# What a client says first (RFC 9113 §3.4).
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# One write's worth of output: large enough for a fast upload, small enough not to stall a loop turn (0.5 ms).
MAX_OUTPUT: Final = 1 << 20
# 1xx replies before the final one. One or two are usual (100, 103); endless ones would hold a stream open.
MAX_INTERIM: Final = 10
# RFC 7541 §7.1.3: what must not sit in a compression table, where its length could be probed.
NEVER_INDEXED: Final = frozenset({b"authorization", b"x-api-key", b"api-key", b"cookie", b"set-cookie"})
PING_DATA: Final = b"velox-up"
# RFC 9113 §6.9.1.
MAX_WINDOW: Final = 2**31 - 1
# Frames in a row that bring nothing (PING, SETTINGS, empty DATA, ...); as many answers as libnghttp2 would queue.
MAX_IDLE_FRAMES: Final = 1_000
# A WINDOW_UPDATE of at least so many bytes is none of those: the window's own limit bounds how often it can come.
LARGE_UPDATE: Final = 1_024


# Marks a field as one that no compression table keeps (RFC 7541 §7.1.3).
Mark: TypeAlias = Callable[[Header], object]
# Fields with or without marks. What a mark returns is of a class below tuple, and must stay so: no pair to a compiler.
Markable: TypeAlias = list[Any]


class EngineError(Exception):
    """A request can't be sent on this connection: the peer is leaving, or allows no more streams."""


class EngineHandler(Protocol):
    """Receiver of what the peer did. Called synchronously, only from Engine.receive().

    After on_reset or Engine.reset() a handler hears no more of that stream; after on_stream_end or an `end_stream`
    of True it may hear on_reset, if it is a server.
    """

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        """The header fields of a request (server) or final reply (client) came, pseudo headers first.

        A request's are as the client sent them: http2_head.read_head() says whether they are one.
        """

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        """Body bytes came; acknowledge() them when they are used up. `data` may be empty at the end."""

    def on_stream_end(self, stream_id: int) -> None:
        """The message ended with trailers, which are dropped."""

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        """The stream is gone without a proper end. by_us: the peer broke a rule on it, and the engine has reset it.

        REFUSED_STREAM: the peer did no work on it (RFC 9113 §8.7), which GOAWAY may say as well.
        A client hears nothing of it when the reply was whole: then only the rest of the request is not wanted
        (RFC 9113 §8.1), and it is dropped.
        """

    def on_goaway(self, last_stream_id: int, error_code: int) -> None:
        """The peer takes no new streams. on_reset follows for those above `last_stream_id`; others go on."""

    def on_settings(self) -> None:
        """The peer's settings came or changed: peer_max_streams may differ."""

    def on_window(self, stream_id: int) -> None:
        """The peer allows more on a stream (0: the connection); take_output() may have something."""

    def on_pong(self) -> None:
        """The peer answered ping()."""

    def on_fatal(self, message: str) -> None:
        """The connection broke; streams get no event of their own. A last GOAWAY may wait in take_output()."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What we allow the peer.

    stream_window, connection_window: bytes it may send before they are acknowledged.
    max_streams_local: streams that a client may open on us; unused by a client.
    max_header_list: bytes of one header list as RFC 9113 §6.5.2 counts them; above it the connection ends.
    max_headers: fields of one header list; above it the stream is reset. Counted as decoded, since that is
    what an attacker multiplies: one byte may refer to a long field.

    guards: a server's clients are untrusted; http2/guard.py inspects their frames before the engine does.

    What a peer sends that brings nothing has its own limit, MAX_IDLE_FRAMES, above which the connection ends; a guard
    has lower ones instead.
    """

    stream_window: int = 8 << 20
    connection_window: int = 64 << 20
    max_streams_local: int = 100
    max_header_list: int = 64 << 10
    max_headers: int = 200
    guards: bool = False


# What clients that we don't know are allowed: a request's head and body, and little more in advance.
INGRESS_SETTINGS: Final = EngineSettings(
    stream_window=64 << 10,
    connection_window=1 << 20,
    max_streams_local=100,
    max_header_list=32 << 10,
    max_headers=100,
    guards=True,
)


class Engine(Protocol):
    """One HTTP/2 connection without I/O.

    A verb does nothing when its stream, or the connection, is over: it may have ended in the very read that the
    caller answers. send_request() alone says so, by EngineError.
    """

    @property
    def peer_max_streams(self) -> int:
        """Streams that the peer lets us have open; 100 until its settings came."""

    @property
    def mark(self) -> Mark:
        """Mark a field that holds a secret, or a value that no other head will have."""

    @property
    def has_output(self) -> bool:
        """True while take_output() may return something; it may be b"" once, for a request that was taken back."""

    def start(self) -> None:
        """Queue the preface and our settings."""

    def receive(self, data: bytes | memoryview, now: float = 0.0) -> None:
        """Read what the peer sent and tell the handler. Raises nothing of its own: see on_fatal.

        now: monotonic seconds, by which a guard forgives what a client sent before: without it, a long connection ends
        some day. Nobody else uses it.
        """

    def send_request(
        self, headers: Markable, end_stream: bool, body: bytes | bytearray = b"", *, is_marked: bool = False
    ) -> int:
        """Open a stream and return its id. Raises EngineError.

        body: as send_data() takes it; end_stream: nothing follows the head and that. is_marked: secrets are marked.
        """

    def send_continue(self, stream_id: int) -> None:
        """Ask the client of a stream for the body that it waits with (RFC 9110 §15.2.1)."""

    def send_response(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        """Answer a stream. `end_stream`: no body follows."""

    def send_data(self, stream_id: int, data: bytes | bytearray, end_stream: bool) -> None:
        """Queue body bytes, of which a reference is kept; they go out as the peer's windows allow."""

    def queued_bytes(self, stream_id: int) -> int:
        """Return the body bytes of a stream that take_output() has not given out yet."""

    def reset(self, stream_id: int, error_code: int = CANCEL) -> None:
        """End a stream both ways, dropping what is queued for it. The handler hears nothing more of it."""

    def finish(self, stream_id: int) -> None:
        """Let go of a client's stream whose reply is whole: what is left of its request is not sent (RFC 9113 §8.1)."""

    def acknowledge(self, stream_id: int, n_bytes: int) -> None:
        """Let the peer send `n_bytes` more. What a stream holds at its end goes back by itself."""

    def widen(self, stream_id: int, n_bytes: int) -> None:
        """Make the window of a stream that we have just opened larger than our settings say, by `n_bytes`."""

    def ping(self) -> None:
        """Ask the peer for a sign of life, which comes as on_pong."""

    def forgive(self) -> None:
        """Begin to count anew what a server sends that brings nothing; for a client with a clock, now and then.

        A head or a body's byte does the same: without this, a peer that sends PING for hours in between would be taken
        for a flood.
        """

    def goaway(self, *, is_notice: bool = False) -> None:
        """Tell the peer to open no more streams; those that are open go on.

        is_notice: a server's first word of it, which names the highest id there is: what is on its way is taken still,
        and a second goaway() names the last stream that was (RFC 9113 §6.8).
        """

    def close(self) -> None:
        """Let go of everything, at once and not when the garbage collector comes; nothing may be asked after it.

        For an owner whose connection is gone.
        """

    def take_output(self, limit: int = MAX_OUTPUT) -> bytes:
        """Return and forget about `limit` bytes at most that are to be written now."""


_name_of: Final = itemgetter(0)
EngineFactory: TypeAlias = Callable[[EngineHandler, EngineSettings, bool], Engine]

# The largest block that comes in one read, and more: a larger one is the body of a request.
_MAX_READ: Final = 256 << 10


class SendQueue:
    """Body bytes of one stream that wait for room, in order. Cuts pieces off without copying what stays.

    Except where that would keep a block alive of which half has gone: who counts n_bytes would count too little. The
    body of a request, which its exchange keeps anyway, is larger than the blocks that this is done for.
    """

    __slots__ = ("_chunks", "ended", "n_bytes")

    def __init__(self) -> None:
        self._chunks: Final[deque[bytes | bytearray | memoryview]] = deque()
        self.n_bytes = 0
        self.ended = False

    def __repr__(self) -> str:
        return f"<SendQueue n_bytes={self.n_bytes} ended={self.ended}>"

    def push(self, data: bytes | bytearray, ended: bool) -> None:
        """Add to the end; nothing may be added after `ended`."""
        if data:
            self._chunks.append(data)
            self.n_bytes += len(data)
        self.ended = ended

    def take(self, limit: int) -> bytes:
        """Remove and return at most `limit` bytes, of one chunk: b"" only when nothing is queued."""
        if not self._chunks:
            return b""
        chunk = self._chunks[0]
        if len(chunk) <= limit:
            self._chunks.popleft()
            piece = bytes(chunk)  # no copy when it is bytes already
        else:
            rest = memoryview(chunk)
            piece = bytes(rest[:limit])
            left = rest[limit:]
            n_kept = memoryview(rest.obj).nbytes
            self._chunks[0] = bytes(left) if 2 * len(left) <= n_kept <= _MAX_READ else left
        self.n_bytes -= len(piece)
        return piece


def guarded(headers: Headers, mark: Mark) -> Markable:
    """Return the headers with those that hold secrets marked as never to be indexed; the argument is kept."""
    if NEVER_INDEXED.isdisjoint(map(_name_of, headers)):
        return headers
    return [mark(header) if header[0] in NEVER_INDEXED else header for header in headers]
