"""The reply on its way down: the upstream's bytes, unchanged, written to the client as they come.

Knows: the client's framing, when the reply is whole, how one ends that is not. Does not know: why (exchange.py).
A chunk costs one read and one write: no task is woken and nothing is parsed on the way.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from velox.errors import Reason, VeloxError
from velox.net.application import Client
from velox.net.upstream import UpstreamFailure, UpstreamStream
from velox.protocol import http1_write, sse
from velox.types import NO_BODY_STATUSES, Header, ReplyHead, RequestHead

__all__ = ["Reply"]

# R-SEC-4: what an upstream may not tell our client. Hop-by-hop headers are gone before.
_DROPPED: Final = frozenset(
    {
        b"set-cookie",
        b"server",
        b"alt-svc",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"x-velox-reason",
        b"x-velox-request-id",
    }
)
_SSE: Final = b"text/event-stream"


class Reply:
    """One reply, and the sink of each attempt at it. `done` resolves when it is whole, or fails with what broke it."""

    __slots__ = (
        "_boundary",
        "_chunked",
        "_client",
        "_ends_at_close",
        "_has_body",
        "_is_head",
        "_loop",
        "_request",
        "_request_id",
        "_stream",
        "bytes_out",
        "done",
        "first_byte_ns",
        "is_sse",
        "last_s",
        "relay_ns",
        "started",
        "status",
    )

    def __init__(
        self,
        client: Client,
        request: RequestHead,
        request_id: bytes,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._client: Final = client
        self._request: Final = request
        self._request_id: Final = request_id
        self._loop: Final = loop
        self._is_head: Final = request.method == b"HEAD"
        self._chunked = False
        self._ends_at_close = False
        self._has_body = False
        self._boundary: sse.EventBoundary | None = None
        self._stream: UpstreamStream | None = None
        self.done: asyncio.Future[None] = loop.create_future()
        self.started = False  # the client has seen the head
        self.is_sse = False
        self.status = 0
        self.bytes_out = 0
        self.last_s = loop.time()
        self.first_byte_ns = 0  # monotonic; 0: none came
        self.relay_ns = 0  # what building and writing the reply's first bytes took

    def begin(self) -> None:
        """Begin an attempt. Before the stream is opened: it may fail while it is."""
        self.last_s = self._loop.time()
        if self.done.done():
            self.done = self._loop.create_future()

    def attach(self, stream: UpstreamStream) -> None:
        """Take the attempt's stream, to hold it up and to cancel it."""
        if not self.done.done():
            self._stream = stream

    def detach(self) -> None:
        """End an attempt; what is left of its stream is cancelled."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    @property
    def is_whole(self) -> bool:
        """True when the upstream has given all of it."""
        return self.done.done() and not self.done.cancelled() and self.done.exception() is None

    # -- ReplySink --------------------------------------------------------------------------------

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        """Pass on what one read of the upstream brought."""
        if end:
            # First of all: the connection is free for the next exchange from here on. A client that is slow must not
            # hold it up, nor the end of this exchange cancel what is another's.
            self._stream = None
        if self.done.done():
            return
        self.last_s = self._loop.time()
        if head is None:
            self._write_body(data, end)
        elif 300 <= head.status < 400 and head.status != 304:
            message = f"the upstream answered with a redirect ({head.status}); Velox follows none"
            self.done.set_exception(UpstreamFailure(Reason.UPSTREAM_REDIRECT, message))
            return
        else:
            try:
                self._write_head(head, data, end)
            except ValueError:  # a field with CR, LF or NUL that a parser let through
                self.done.set_exception(
                    UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "the upstream's reply has a bad header")
                )
                return
        if end:
            self.done.set_result(None)

    def on_failure(self, failure: VeloxError) -> None:
        """The reply will not become whole."""
        if not self.done.done():
            self.done.set_exception(failure)

    # -- the client's side --------------------------------------------------------------------------

    def pause(self) -> None:
        """The client reads too slowly: hold the upstream."""
        if self._stream is not None:
            self._stream.pause()

    def resume(self) -> None:
        """The client has caught up."""
        self.last_s = self._loop.time()
        if self._stream is not None:
            self._stream.resume()

    def cut(self, error: VeloxError) -> None:
        """End a reply that has begun: an error event where the client reads events, and never a clean end."""
        last = b""
        # Where the length was announced, our bytes would fill up what the upstream owed: a reply that looks whole.
        if self._boundary is not None and (self._chunked or self._ends_at_close):
            event = sse.error_event(error.reason, error.message)
            # The event that was cut gets its blank line, so that ours is parsed as one of its own (F-14).
            last = event if self._boundary.between else b"\n\n" + event
            if self._chunked:
                last = http1_write.chunk(last)
        self._client.cut(last, reset=self._ends_at_close)

    # -- inside -------------------------------------------------------------------------------------

    def _write_head(self, head: ReplyHead, data: bytes, end: bool) -> None:
        client, status = self._client, head.status
        self.status = status
        self.first_byte_ns = time.monotonic_ns()
        headers: list[Header] = []
        for header in head.headers:
            if header[0] not in _DROPPED:
                if header[0] == b"content-type":
                    self.is_sse = header[1].startswith(_SSE)
                headers.append(header)
        headers.append((b"x-velox-request-id", self._request_id))
        # RFC 9110 §8.6: a 204 has no content-length, though some upstreams send one.
        length = None if status == 204 else head.content_length
        has_body = self._has_body = not self._is_head and status not in NO_BODY_STATUSES
        if has_body and length is None:
            if end:
                length = len(data)  # the whole reply is here: its length is known after all
            elif self._request.http_1_0:
                self._ends_at_close = True
            else:
                self._chunked = True
        if self.is_sse:
            self._boundary = sse.EventBoundary()
        close = self._ends_at_close or client.will_close
        out = http1_write.reply_head(status, headers, content_length=length, chunked=self._chunked, close=close)
        if has_body and data:
            self.bytes_out = len(data)
            if self._boundary is not None:
                self._boundary.feed(data)
            out += http1_write.chunk(data) if self._chunked else data
        if end and self._chunked:
            out += http1_write.LAST_CHUNK
        self.started = True
        client.write(out)
        self.relay_ns = time.monotonic_ns() - self.first_byte_ns

    def _write_body(self, data: bytes, end: bool) -> None:
        if not self._has_body:
            return  # the client would take it for the begin of its next reply
        self.bytes_out += len(data)
        if self._boundary is not None:
            self._boundary.feed(data)
        if self._chunked:
            data = http1_write.chunk(data)
            if end:
                data += http1_write.LAST_CHUNK
        if data:
            self._client.write(data)

    @property
    def ends_at_close(self) -> bool:
        """True when only the connection's close ends the reply (HTTP/1.0 without a length)."""
        return self._ends_at_close
