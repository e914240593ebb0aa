"""One exchange on an HTTP/2 connection: what reads have brought for it, told to its sink once a read.

Knows: the reply so far, what the sink has not taken, how a reply's head is read. Does not know: frames, the other
streams, or when the connection writes (upstream/http2.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from velox.errors import Reason
from velox.net.upstream.interface import ReplySink, UpstreamRequest
from velox.protocol.http2 import CANCEL
from velox.types import Header, Headers, ReplyHead

__all__ = ["NARROW_WINDOW_BYTES", "Http2Stream", "StreamCarrier", "reply_head", "request_head"]

# The window that all streams begin with. Most are widened as they are opened; later would cost a large reply a round
# trip, and a window that has been given can't be taken back.
NARROW_WINDOW_BYTES: Final = 16 * 1024

# RFC 9113 §8.2.2: these have no meaning in HTTP/2; a careless upstream's are not passed on.
_CONNECTION_HEADERS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te", b"trailer"}
)

# No longer length is meant by anybody, and int() takes no more than 4,300 digits.
_LENGTH_DIGITS: Final = 18


class StreamCarrier(Protocol):
    """What a stream asks of its connection."""

    def acknowledge(self, stream_id: int, n_bytes: int) -> None:
        """Let the upstream send `n_bytes` more on a stream."""

    def reset(self, stream: Http2Stream, error_code: int) -> None:
        """End a stream from our side; its sink hears nothing more."""

    def n_unsent(self, stream_id: int) -> int:
        """Bytes of a request's body that the upstream has not taken yet."""


class Http2Stream:
    """One exchange. Gathers what a read brings, then tells the sink once.

    held: bytes given to a sink that was paused, and not acknowledged; never more than the stream's window.
    expected: the announced length of the body; -1: the reply to HEAD, which has none.
    """

    __slots__ = (
        "_carrier",
        "_paused",
        "began",
        "chunks",
        "ended",
        "expected",
        "has_body",
        "head",
        "held",
        "id",
        "received",
        "sink",
    )

    def __init__(self, carrier: StreamCarrier, sink: ReplySink) -> None:
        self._carrier: Final = carrier
        self.sink: Final = sink
        self.id = 0
        self.head: ReplyHead | None = None
        self.chunks: list[bytes] = []
        self.ended = False
        self.expected: int | None = None
        self.received = 0
        self.began = False
        self.has_body = False
        self.held = 0
        self._paused = False

    def __repr__(self) -> str:
        state = "paused" if self._paused else "ended" if self.ended else "open"
        return f"<Http2Stream {self.id} {state} received={self.received} held={self.held}>"

    @property
    def n_unsent(self) -> int:
        return self._carrier.n_unsent(self.id) if self.has_body else 0

    @property
    def lost_reason(self) -> Reason:
        """Tell a reply that was cut from one that never began."""
        return Reason.UPSTREAM_TRUNCATED if self.began else Reason.UPSTREAM_RESET

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        held, self.held = self.held, 0
        self._carrier.acknowledge(self.id, held)

    def cancel(self) -> None:
        self._carrier.reset(self, CANCEL)

    def deliver(self) -> int:
        """Tell the sink what has come since the last time; return the bytes to acknowledge now."""
        head, self.head = self.head, None
        data = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        self.chunks.clear()
        self.sink.on_reply(head, data, self.ended)
        # The sink may have paused in on_reply: what it holds is acknowledged when it resumes.
        # An ended stream's bytes are acknowledged at once, for the connection's window.
        n_bytes = self.held + len(data)
        self.held = 0
        if self._paused and not self.ended:
            self.held, n_bytes = n_bytes, 0
        return n_bytes


def request_head(request: UpstreamRequest, scheme: bytes, authority: bytes) -> Headers:
    """Return a request's header fields, the pseudo headers first (RFC 9113 §8.3.1)."""
    headers = [
        (b":method", request.method),
        (b":scheme", scheme),
        (b":authority", authority),
        (b":path", request.target),
    ]
    headers += request.headers
    if request.body is not None:
        headers.append((b"content-length", b"%d" % len(request.body)))
    return headers


def reply_head(headers: Sequence[Header]) -> ReplyHead | None:
    """Split the pseudo header off; None when the status or the length is none (RFC 9113 §8.3.2)."""
    status = 0
    content_length: int | None = None
    kept: list[Header] = []
    for header in headers:
        name, value = header
        if name == b":status":
            status = int(value) if value.isdigit() and len(value) == 3 else 0
        elif name == b"content-length":
            if not value.isdigit() or len(value) > _LENGTH_DIGITS:
                return None
            content_length = int(value)
        elif name not in _CONNECTION_HEADERS:
            kept.append(header)
    return ReplyHead.of(status, kept, content_length) if 200 <= status <= 599 else None
