"""An HTTP/1.1 connection to an upstream: one exchange at a time.

Knows: when the connection may be used again (RFC 9112 §9.3). Does not know: framing (protocol/http1/response.py)
or which exchange comes next (pool.py). A connection whose exchange did not end cleanly is never used again.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from velox.errors import Reason
from velox.heads import Headers
from velox.net.tls_unread import unread
from velox.net.upstream.connection import HttpConnection
from velox.net.upstream.delivery import n_unacknowledged
from velox.net.upstream.interface import (
    SLICE_BYTES,
    ConnectionOwner,
    ReadBuffer,
    ReplySink,
    UpgradeSink,
    UpstreamFailure,
    UpstreamRequest,
)
from velox.net.upstream.read_pace import TIMED_BYTES
from velox.outcomes import ConnectionEnd, Retry
from velox.protocol.http1 import write as http1_write
from velox.protocol.http1.response import LONE_CHUNK_BYTES, ResponseDecoder, ResponseError, decode_first, lone_chunk
from velox.protocol.http1.response_head import ReplyHeads

__all__ = ["Http1Connection"]


class _TlsTransport(Protocol):
    """What a TLS transport has beside asyncio.Transport."""

    def set_read_buffer_limits(self, high: int, low: int) -> None:
        """Stop to read from the socket while so many bytes wait for an application that has paused."""


class Http1Connection(HttpConnection):
    """The connection, and the stream of its one exchange at the same time."""

    __slots__ = (
        "_decoder",
        "_got_eof",
        "_heads",
        "_host",
        "_is_head_request",
        "_is_tls",
        "_method",
        "_n_body",
        "_offers_upgrade",
        "_passes_by",
        "_sink",
        "_start",
        "_target",
        "_unsent",
        "_was_stale",
        "_write_paused",
    )

    def __init__(
        self,
        owner: ConnectionOwner,
        buffer: ReadBuffer,
        host: bytes,
        loop: asyncio.AbstractEventLoop,
        heads: ReplyHeads | None = None,
    ) -> None:
        """heads: of all connections to the same upstream; None: of this one only."""
        super().__init__(owner, buffer, loop)
        self._host: Final = host
        self._method = self._target = self._start = b""  # of the last request, and the lines that these make
        self._heads: Final = heads or ReplyHeads()
        self._is_tls = False
        self._passes_by = False  # reads come as bytes, not in the buffer
        self._sink: ReplySink | None = None
        self._is_head_request = False
        self._offers_upgrade = False
        self._decoder: ResponseDecoder | None = None  # from the first read of a reply on that holds only a part of it
        self._unsent: memoryview | None = None
        self._n_body = 0
        self._got_eof = False
        self._write_paused = False
        self._was_stale = False  # the upstream had closed it before the request that is in flight reached it

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "busy" if self._sink else "idle"
        return f"<Http1Connection {self._host.decode()} {state} served={self.n_begun - self.n_streams}>"

    @property
    def protocol(self) -> str:
        return "HTTP/1.1"

    @property
    def n_streams(self) -> int:
        return 0 if self._sink is None else 1

    @property
    def n_rooms(self) -> int:
        return 1 if self.has_room else 0

    @property
    def is_settled(self) -> bool:
        return True

    @property
    def n_unsent(self) -> int:
        transport = self._transport
        if transport is None or self._sink is None:
            return 0
        waiting = 0 if self._unsent is None else len(self._unsent)
        # The head left before the body, so what is left of both is body first of all.
        return min(self._n_body, waiting + transport.get_write_buffer_size())

    def open(self, request: UpstreamRequest, sink: ReplySink) -> Http1Connection:
        """Send the request; the connection itself is the stream."""
        transport = self._transport
        assert self._sink is None, "the pool leases idle connections only"
        if transport is None or transport.is_closing():
            self.retire(ConnectionEnd.CLOSED)
            message = "the upstream has closed the connection"
            raise UpstreamFailure(Reason.UPSTREAM_RESET, message, unprocessed=Retry.STALE)
        if request.target != self._target or request.method != self._method:
            self._start = http1_write.request_start(request.method, request.target, self._host)
            self._target, self._method = request.target, request.method
        start, lines, body = self._start, request.fields.lines(request.values), request.body
        self._sink = sink
        self.has_room = False
        self.n_begun += 1
        self._is_head_request = request.method == b"HEAD"
        self._offers_upgrade = request.offer is not None
        if body is None:
            self._n_body = 0
            transport.write(http1_write.request_head(start, lines, None))
            return self
        n_body = self._n_body = len(body)
        if n_body <= SLICE_BYTES:
            transport.write(http1_write.request_head(start, lines, n_body, body))
        else:
            transport.write(http1_write.request_head(start, lines, n_body))
            self._unsent = memoryview(body)
            self._pump()
        return self

    def pause(self) -> None:
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()
            self._use_buffer()

    def resume(self) -> None:
        self._is_paused = False
        if self._transport is not None and not self._is_in_line:
            self._transport.resume_reading()

    def cancel(self) -> None:
        self._sink = None
        self.abort(ConnectionEnd.CANCELLED)

    def retire(self, cause: ConnectionEnd) -> None:
        self._take_no_more(cause)
        if self._sink is None:
            self.abort(cause)

    def check_alive(self, now_s: float, silence_s: float) -> None:
        pass  # HTTP/1.1 has no question to ask

    def abort(self, cause: ConnectionEnd) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._ended(cause)
            sink, self._sink = self._sink, None
            if sink is not None:
                sink.on_failure(UpstreamFailure(self._lost_reason(), "the upstream's connection was given up"))

    # -- asyncio.BufferedProtocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.has_room = True
        self._is_tls = hasattr(transport, "set_read_buffer_limits")
        if self._is_tls:
            # While reading is paused uvloop's TLS reads on, up to 512 KiB; and when it comes to the end of the
            # connection it throws away what it has read. With 1 byte it stops with the next read.
            cast(_TlsTransport, transport).set_read_buffer_limits(1, 0)

    def buffer_updated(self, nbytes: int) -> None:
        sink, decoder = self._sink, self._decoder
        if sink is None:
            # Unexpected bytes would be read as the reply to the next request.
            self.abort(ConnectionEnd.EXTRA_DATA)
            return
        if decoder is None:
            began_s = self._clock() if nbytes >= TIMED_BYTES else 0.0
            self._take_first(sink, self._view[:nbytes].tobytes())
            if began_s:
                self._paced(nbytes, self._clock() - began_s)
            return
        if decoder.between and nbytes <= LONE_CHUNK_BYTES:
            # As most chunks of a model come: there is a way with fewer steps (docs/decisions/0027-a-chunks-way.md).
            chunk = self._view[:nbytes].tobytes()
            at = lone_chunk(chunk)
            if at and sink.on_chunk(chunk, at):
                self._pass_by(sink, decoder)
                return
        self._n_untimed += nbytes
        began_s = self._clock() if self._n_untimed >= self._pace.timed_bytes else 0.0
        self._take(sink, decoder, self._view[:nbytes])
        if began_s:
            self._paced(nbytes, self._clock() - began_s)

    def eof_received(self) -> bool:
        # TCP's FIN, or TLS's close_notify: after a FIN without that, uvloop calls connection_lost() only.
        self._got_eof = True
        if self._sink is None:
            self._take_no_more(ConnectionEnd.CLOSED)
        elif self._transport is not None:
            if self._decoder is None:
                # Not in connection_lost(): TLS has closed the socket by then.
                self._was_stale = self._is_stale(self._transport)
            self._transport.abort()  # not close(): that waits until the upstream has taken the rest of the request
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._is_tls and self._transport is not None:
            self._take_unread(self._transport)
        sink, decoder = self._sink, self._decoder
        self._sink = None
        if self._transport is not None:
            self._ended(ConnectionEnd.CLOSED if sink is None else ConnectionEnd.LOST)
        if sink is None:
            return
        # A reply that ends with the connection is whole if somebody said that it ends here: anyone on the way can cut
        # a TLS connection, but only the upstream can say close_notify (RFC 9112 §9.8).
        if decoder is not None and decoder.eof() and exc is None and self._got_eof:
            assert decoder.head is not None, "a reply can't end by close before its head"
            sink.on_reply(None, decoder.take_body(), True)
        elif decoder is not None and decoder.head is not None:
            sink.on_failure(UpstreamFailure(self._lost_reason(), "the upstream cut its reply"))
        else:
            # RFC 9110 §9.2.2 asks not to repeat a POST unless it was surely not begun. What TCP has not delivered was
            # not (F-10). All else may have been: a server that fails on a request closes its connection, too.
            stale = Retry.STALE if self._was_stale else None
            message = "the upstream closed the connection before it answered"
            failure = UpstreamFailure(Reason.UPSTREAM_RESET, message, unprocessed=stale)
            failure.may_be_stale = self.n_begun > 1 and decoder is None
            sink.on_failure(failure)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._pump()

    # -- reading ----------------------------------------------------------------------------------

    def _take_first(self, sink: ReplySink, data: bytes) -> None:
        """Take the first read of a reply: most replies are complete with it."""
        try:
            first = decode_first(data, self._heads, head_request=self._is_head_request, upgrade=self._offers_upgrade)
        except ResponseError as exc:
            self._fail(exc)
            return
        if isinstance(first, ResponseDecoder):
            self._decoder = first
            self._deliver(sink, first, had_head=False)
            return
        head, body = first
        self._end_exchange()
        sink.on_reply(head, body, True)

    def _take(self, sink: ReplySink, decoder: ResponseDecoder, read: bytes | memoryview) -> None:
        """Take a further read of a reply."""
        had_head = decoder.head is not None
        try:
            decoder.feed(read)
        except ResponseError as exc:
            self._fail(exc)
            return
        self._deliver(sink, decoder, had_head=had_head)

    def _take_unread(self, transport: asyncio.Transport) -> None:
        """Take what came before the end of the connection, and waited for a sink that was paused."""
        sink, decoder = self._sink, self._decoder
        data = b"" if sink is None else unread(transport)
        if sink is not None and data:
            self._take_no_more(ConnectionEnd.CLOSED)  # no exchange begins on it
            if decoder is None:
                self._take_first(sink, data)
            else:
                self._take(sink, decoder, data)

    def _deliver(self, sink: ReplySink, decoder: ResponseDecoder, *, had_head: bool) -> None:
        """Give the sink what the decoder has read."""
        head = decoder.head
        if head is None:
            if decoder.switched is not None:
                self._switch(decoder.switched, decoder.rest)
            return
        data = decoder.take_body()
        if decoder.complete:
            if decoder.surplus:
                self._end_exchange(ConnectionEnd.EXTRA_DATA)
            else:
                self._end_exchange(None if decoder.keep_alive else ConnectionEnd.LAST)
            sink.on_reply(None if had_head else head, data, True)
        elif data or not had_head:
            sink.on_reply(None if had_head else head, data, False)

    def _end_exchange(self, cause: ConnectionEnd | None = None) -> None:
        """Free the connection for the next exchange, before the sink hears of this one's end.

        cause: why there can be no next one.
        """
        transport = self._transport
        assert transport is not None, "it has just been read from"
        # A reply that came before the whole request was sent leaves the upstream reading a body: not usable.
        is_sent = self._unsent is None and not (self._n_body and transport.get_write_buffer_size())
        self._sink = None
        self._decoder = None
        if cause is not None or self.end is not None or not is_sent:
            self.abort(cause or ConnectionEnd.LAST)
            return
        if self._passes_by:
            self._use_buffer()
        self.has_room = True
        self._owner.on_room(self)

    # -- inside -----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Write the next slice of a large body; one slice a loop turn, none while the upstream is behind."""
        unsent, transport = self._unsent, self._transport
        if unsent is None or transport is None or self._write_paused:
            return
        transport.write(unsent[:SLICE_BYTES])
        self._unsent = unsent[SLICE_BYTES:] if len(unsent) > SLICE_BYTES else None
        if self._unsent is not None and not self._write_paused:
            self._loop.call_soon(self._pump)

    def _pass_by(self, sink: ReplySink, decoder: ResponseDecoder) -> None:
        """Have the rest of this reply come as bytes: its chunks come alone, and each would be copied anyway."""
        transport = self._transport
        # Not if the chunk has just paused its client.
        if transport is not None and not self._is_tls and transport.is_reading():
            self._passes_by = True
            transport.set_protocol(_BytesReader(self, sink, decoder))

    def _use_buffer(self) -> None:
        """Undo _pass_by(): for what may be much, and for a client that takes nothing."""
        if self._passes_by:
            self._passes_by = False
            if self._transport is not None:
                self._transport.set_protocol(self)

    def data_received(self, read: bytes) -> None:
        """Go through a read that did not come in the buffer.

        By this name because uvloop keeps the last protocol's: without one here it would keep the reader, and with it
        the reply, for as long as the connection is idle.
        """
        if len(read) > len(self._view):
            self._use_buffer()
        self._n_untimed += len(read)
        began_s = self._clock() if self._n_untimed >= self._pace.timed_bytes else 0.0
        sink, decoder = self._sink, self._decoder
        if sink is None or decoder is None:
            self.abort(ConnectionEnd.EXTRA_DATA)
        else:
            self._take(sink, decoder, read)
            if began_s:
                self._paced(len(read), self._clock() - began_s)

    def _switch(self, fields: Headers, rest: bytes) -> None:
        """Give the connection away: it is a WebSocket's from here on."""
        sink, transport = self._sink, self._transport
        assert transport is not None, "it has just been read from"
        self._sink = None
        self._ended(ConnectionEnd.LAST)
        # Only a request with an offer gets here, and that has such a sink.
        cast(UpgradeSink, sink).on_switch(fields, transport, rest)

    def _fail(self, error: ResponseError) -> None:
        sink = self._sink
        self._sink = None
        self.abort(ConnectionEnd.PROTOCOL)
        if sink is not None:
            message = f"the upstream's reply broke HTTP/1.1: {error}"
            sink.on_failure(UpstreamFailure(Reason.UPSTREAM_PROTOCOL, message))

    def _is_stale(self, transport: asyncio.Transport) -> bool:
        """Return True if the peer closed a connection that has served, and has not received the head in flight.

        At most the fields of the head were acknowledged, if as many bytes are outstanding as its first line and the
        body have. A body of more than a slice is not judged: TLS adds bytes of its own.
        """
        if self.n_begun == 1 or self._n_body > SLICE_BYTES:
            return False
        outstanding = n_unacknowledged(transport)
        return outstanding is not None and outstanding >= len(self._start) + self._n_body

    def _lost_reason(self) -> Reason:
        """Tell a reply that was cut from one that never began."""
        began = self._decoder is not None and self._decoder.head is not None
        return Reason.UPSTREAM_TRUNCATED if began else Reason.UPSTREAM_RESET

    def _ended(self, cause: ConnectionEnd) -> None:
        self._transport = None
        self.has_room = False
        self._unsent = None
        self._passes_by = False
        self._take_no_more(cause)

    def _take_no_more(self, cause: ConnectionEnd) -> None:
        if self.end is None:
            self.end = cause
            self.has_room = False
            self._owner.on_closed(self)


class _BytesReader(asyncio.Protocol):
    """The protocol of a connection while the chunks of a reply come alone.

    It saves two calls and a copy a chunk. But the loop reads up to 250 KiB so, where the buffer has 128 KiB.
    """

    def __init__(self, connection: Http1Connection, sink: ReplySink, decoder: ResponseDecoder) -> None:
        """sink, decoder: of the reply that is under way, with whose end this one goes."""
        self._connection: Final = connection
        self._sink: Final = sink
        self._decoder: Final = decoder

    def data_received(self, data: bytes) -> None:
        if self._decoder.between and len(data) <= LONE_CHUNK_BYTES:
            at = lone_chunk(data)
            if at and self._sink.on_chunk(data, at):
                return
        self._connection.data_received(data)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
