"""What the gateway asks of an upstream connection, whichever HTTP it speaks.

Knows: the request to send, the sink that takes the reply, how a failure is told. Does not know: HTTP/1.1 or HTTP/2
framing (upstream_http1.py, upstream_http2.py), or how connections are chosen (pool.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from velox.errors import Reason, VeloxError
from velox.types import Headers, ReplyHead

__all__ = [
    "SLICE_BYTES",
    "ConnectionOwner",
    "ReadBuffer",
    "ReplySink",
    "UpstreamConnection",
    "UpstreamFailure",
    "UpstreamRequest",
    "UpstreamStream",
]

# The most that one stream writes in one turn of the loop: about 0.1 ms of copying into the kernel, so that a large
# upload never holds up the small requests beside it.
SLICE_BYTES: Final = 256 * 1024


@dataclass(slots=True)  # not frozen: one is made for each request
class UpstreamRequest:
    """A request as it goes up: built by the gateway, never copied from the client.

    headers: no host, no content-length, no hop-by-hop header; each HTTP version adds its own framing.
    lines: the same as lines of HTTP/1.1 (http1_write.field_lines).
    """

    method: bytes
    target: bytes
    headers: Headers
    lines: bytes
    body: bytes | bytearray | None


class UpstreamFailure(VeloxError):  # noqa: N818 - it is a VeloxError
    """An exchange that the upstream, or the way to it, did not carry to its end.

    unprocessed: True when the upstream surely did no work, so that another try is free.
    """

    def __init__(self, reason: Reason, message: str, *, unprocessed: bool = False) -> None:
        super().__init__(reason, message)
        self.unprocessed: Final = unprocessed


class ReplySink(Protocol):
    """Takes one reply. Called synchronously from the read that brought it; must not raise."""

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        """Take what one read brought: the head once, body bytes, and whether the reply is whole."""

    def on_failure(self, failure: UpstreamFailure) -> None:
        """The reply will not be completed. Nothing is called after this."""


class UpstreamStream(Protocol):
    """One exchange in flight on a connection."""

    def pause(self) -> None:
        """Stop the upstream's bytes: HTTP/1.1 stops reading, HTTP/2 withholds window."""

    def resume(self) -> None:
        """Undo pause()."""

    def cancel(self) -> None:
        """Give the exchange up now: RST_STREAM(CANCEL), or abort of the connection. The sink hears nothing more."""


class UpstreamConnection(Protocol):
    """A connected, usable connection."""

    queued: bool

    @property
    def has_room(self) -> bool:
        """True while one more exchange may begin."""

    @property
    def is_closed(self) -> bool:
        """True once it will never carry another exchange."""

    @property
    def n_streams(self) -> int:
        """Exchanges in flight."""

    def open(self, request: UpstreamRequest, sink: ReplySink) -> UpstreamStream:
        """Begin an exchange; only while has_room."""

    def retire(self) -> None:
        """Take no new exchange; close when the last one has ended."""

    def abort(self) -> None:
        """Close at once."""


class ConnectionOwner(Protocol):
    """Whom a connection tells of its room and its end: the pool."""

    def on_room(self, connection: UpstreamConnection) -> None:
        """The connection can take an exchange (again)."""

    def on_closed(self, connection: UpstreamConnection) -> None:
        """The connection takes no more exchanges."""


class ReadBuffer:
    """The one buffer that all upstream reads of a worker go through.

    A read is parsed before the next one begins (the loop calls get_buffer and buffer_updated back to back), and the
    parsers copy what they keep, so one buffer serves all connections. 256 KiB takes all TLS records that have arrived.
    """

    __slots__ = ("view",)

    def __init__(self, size_bytes: int = 256 * 1024) -> None:
        self.view: Final = memoryview(bytearray(size_bytes))
