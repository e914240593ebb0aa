"""What the gateway asks of an upstream connection, whichever HTTP it speaks.

Knows: the request to send, the sink that takes the reply, how a failure is told. Does not know: HTTP/1.1 or HTTP/2
framing (upstream/http1.py, upstream/http2.py), or how connections are chosen (pool.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from velox.errors import Reason, VeloxError
from velox.heads import Headers, ReplyHead, WebSocketOffer
from velox.net.read_turns import ReadTurns
from velox.outcomes import ConnectionEnd, Retry
from velox.protocol.http1.write import field_lines
from velox.protocol.http2.engine import Mark, guarded

__all__ = [
    "SLICE_BYTES",
    "Address",
    "ConnectionOwner",
    "LoneOwner",
    "PlainFields",
    "ReadBuffer",
    "ReplySink",
    "RequestFields",
    "UpgradeSink",
    "UpstreamConnection",
    "UpstreamFailure",
    "UpstreamRequest",
    "UpstreamStream",
]

# The most that one stream writes in one turn of the loop: about 0.1 ms of copying into the kernel, so that a large
# upload never holds up the small requests beside it.
SLICE_BYTES: Final = 256 * 1024

# An IP address (a host's may change while it runs), or the path of a unix socket.
Address: TypeAlias = str


class RequestFields(Protocol):
    """The fields of a request, without host, content-length and hop-by-hop fields; each HTTP version adds its own."""

    def headers(self, values: Sequence[bytes], mark: Mark | None = None) -> Headers:
        """Return them as pairs, for HTTP/2. Nobody changes them. Raises ValueError as lines() does.

        mark: is put on secrets, and on values that only this request has.
        """

    def lines(self, values: Sequence[bytes]) -> bytes:
        """Return them as lines of HTTP/1.1, each with its CRLF. Raises ValueError if one holds CR, LF or NUL."""


class PlainFields:
    """Fields of one request alone."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Headers) -> None:
        self._headers: Final = headers

    def headers(self, values: Sequence[bytes], mark: Mark | None = None) -> Headers:
        field_lines(self._headers)  # an engine of HTTP/2 does not look at what it sends
        return self._headers if mark is None else guarded(self._headers, mark)

    def lines(self, values: Sequence[bytes]) -> bytes:
        return field_lines(self._headers)


class UpstreamRequest:
    """A request as it goes up: built by the gateway, never copied from the client.

    fields, values: asked for in the form that the upstream's protocol needs.
    offer: it asks for a WebSocket; over HTTP/1.1 only, and then the sink is an UpgradeSink.
    may_run_ahead: the reply may come before its client has taken what came already, as far as a whole window; else it
    has a small one. Over HTTP/1.1 nothing comes that is not read.
    dispatch: begins it in place of a connection, as several requests (batch_split.py); None: it is one.
    """

    __slots__ = ("body", "dispatch", "fields", "may_run_ahead", "method", "offer", "target", "values")

    # Written out, for one is made for each request: that of a dataclass is never compiled.
    def __init__(
        self,
        method: bytes,
        target: bytes,
        fields: RequestFields,
        values: Sequence[bytes],
        body: bytes | bytearray | None,
        offer: WebSocketOffer | None = None,
        *,
        may_run_ahead: bool = True,
        dispatch: Callable[[ReplySink], UpstreamStream] | None = None,
    ) -> None:
        self.method: Final = method
        self.target: Final = target
        self.fields = fields
        self.values = values
        self.body: Final = body
        self.offer: Final = offer
        self.may_run_ahead = may_run_ahead
        self.dispatch = dispatch

    @classmethod
    def of(
        cls,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes | bytearray | None = None,
        offer: WebSocketOffer | None = None,
    ) -> UpstreamRequest:
        """Return a request with fields of its own."""
        return cls(method, target, PlainFields(headers), (), body, offer)

    @property
    def headers(self) -> Headers:
        """Its fields as pairs."""
        return self.fields.headers(self.values)

    @property
    def lines(self) -> bytes:
        """Its fields as lines of HTTP/1.1."""
        return self.fields.lines(self.values)


class UpstreamFailure(VeloxError):  # noqa: N818 - it is a VeloxError
    """An exchange that the upstream, or the way to it, did not carry to its end.

    unprocessed: set when the upstream surely did no work, so that another try is free, and says why that is sure.
    may_be_stale: the connection had served before, and ended before a byte of this reply: others that have idled may
    have ended with it.
    """

    def __init__(
        self, reason: Reason, message: str, *, unprocessed: Retry | None = None, status: int | None = None
    ) -> None:
        super().__init__(reason, message, status=status)
        self.unprocessed: Final = unprocessed
        self.may_be_stale = unprocessed is Retry.STALE
        # Only what surely was no work yet is repeated by SDKs.
        self.should_retry = unprocessed is not None or bool(reason.fact.should_retry)


class ReplySink(Protocol):
    """Takes one reply. Called synchronously from the read that brought it; must not raise."""

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        """Take what one read brought: the head once, body bytes, and whether the reply is whole."""

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        """Take what one read brought as a chunk of HTTP/1.1, or leave it: then False, and on_reply() brings its data.

        chunk: with its framing, as http1_write.chunk() writes it; the data is chunk[at:-2]. Not before the head.
        """

    def on_failure(self, failure: UpstreamFailure) -> None:
        """The reply will not be completed. Nothing is called after this."""


class UpgradeSink(ReplySink, Protocol):
    """Takes the answer to a request that offers a WebSocket."""

    def on_switch(self, fields: Headers, transport: asyncio.Transport, rest: bytes) -> None:
        """Take the connection over, after a 101: its fields, not checked, and what came on it after them."""


class UpstreamStream(Protocol):
    """One exchange in flight on a connection."""

    @property
    def n_unsent(self) -> int:
        """Bytes of the request's body that the upstream has not taken yet; the kernel's own buffer counts as taken."""

    def pause(self) -> None:
        """Stop the upstream's bytes: HTTP/1.1 stops reading, HTTP/2 withholds window."""

    def resume(self) -> None:
        """Undo pause()."""

    def cancel(self) -> None:
        """Give the exchange up now: RST_STREAM(CANCEL), or abort of the connection. The sink hears nothing more."""


class UpstreamConnection(Protocol):
    """A connected, usable connection."""

    queued: bool
    address: Address  # set by the dialer: where it leads to

    @property
    def has_room(self) -> bool:
        """True while one more exchange may begin."""

    @property
    def is_closed(self) -> bool:
        """True once it will never carry another exchange."""

    @property
    def n_streams(self) -> int:
        """Exchanges in flight."""

    @property
    def n_rooms(self) -> int:
        """How many more exchanges may begin now."""

    @property
    def is_settled(self) -> bool:
        """True once n_rooms is what the upstream allows; before, it will be more in a moment (HTTP/2 SETTINGS)."""

    @property
    def n_begun(self) -> int:
        """Exchanges begun since it was made."""

    @property
    def protocol(self) -> str:
        """What is spoken, for people: `HTTP/1.1`, `HTTP/2`."""

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 when there is none any more."""

    @property
    def end(self) -> ConnectionEnd | None:
        """Why it takes no more exchanges; None while it does."""

    def open(self, request: UpstreamRequest, sink: ReplySink) -> UpstreamStream:
        """Begin an exchange; only while has_room."""

    def retire(self, cause: ConnectionEnd) -> None:
        """Take no new exchange; close when the last one has ended."""

    def check_alive(self, now_s: float, silence_s: float) -> None:
        """Ask a silent upstream for a sign of life, and leave one that gives none (HTTP/2 PING, RFC 9113 §6.7).

        silence_s: how long nothing may have come before it is asked. HTTP/1.1 has no such question.
        """

    def abort(self, cause: ConnectionEnd) -> None:
        """Close at once; exchanges in flight fail."""


class ConnectionOwner(Protocol):
    """Whom a connection tells of its room and its end: the pool."""

    def on_room(self, connection: UpstreamConnection) -> None:
        """The connection can take an exchange (again)."""

    def on_closed(self, connection: UpstreamConnection) -> None:
        """The connection takes no more exchanges."""


class LoneOwner:
    """The owner of a connection that is for one exchange only."""

    def on_room(self, connection: UpstreamConnection) -> None:
        """It has served: close it."""
        connection.retire(ConnectionEnd.LAST)

    def on_closed(self, connection: UpstreamConnection) -> None:
        """Do nothing: nobody counts on it."""


class ReadBuffer:
    """The one buffer that all upstream reads of a worker go through.

    A read is parsed before the next one begins (the loop calls get_buffer and buffer_updated back to back), and the
    parsers copy what they keep, so one buffer serves all connections. 128 KiB takes all TLS records that have arrived.
    Chunks that come alone pass it by (http1.py). turns: in which these connections read what is much. clock: times
    reads, in seconds.
    """

    __slots__ = ("clock", "turns", "view")

    def __init__(self, size_bytes: int = 128 * 1024, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock: Final = clock
        self.view: Final = memoryview(bytearray(size_bytes))
        self.turns: Final = ReadTurns()
