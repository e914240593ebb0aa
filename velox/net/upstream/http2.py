"""An HTTP/2 connection to an upstream: many exchanges side by side.

Knows: which stream belongs to which exchange, when to write, how many streams may be open. Does not know: frames
(protocol/http2.py) or which connection an exchange gets (pool.py).

One read may carry frames of many streams: what each stream got is gathered while the engine is fed and handed over
once when it is done, so a reply costs its client one write. Output of a loop turn leaves as one write too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from velox.errors import Reason
from velox.net.upstream.http2_pulse import PONG_WAIT_S, Pulse, Verdict
from velox.net.upstream.http2_stream import NARROW_WINDOW_BYTES, Http2Stream, reply_head, request_head
from velox.net.upstream.interface import (
    SLICE_BYTES,
    Address,
    ConnectionOwner,
    ReadBuffer,
    ReplySink,
    UpstreamFailure,
    UpstreamRequest,
)
from velox.outcomes import ConnectionEnd, Retry
from velox.protocol.http2 import (
    CANCEL,
    MAX_WINDOW,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    EngineError,
    EngineFactory,
    EngineSettings,
)
from velox.types import NO_BODY_STATUSES, Header

__all__ = ["DEFAULT_STREAM_WINDOW_BYTES", "Http2Connection"]

_MAX_STREAMS: Final = 512
# Stream ids end at 2^31-1; leave long before, the pool replaces the connection.
_LAST_STREAM_ID: Final = 2**30
DEFAULT_STREAM_WINDOW_BYTES: Final = 128 * 1024
# A connection whose socket has taken nothing for so long, when somebody gives up a request on it, gets no more of them.
_STUCK_S: Final = 0.5


class Http2Connection(asyncio.BufferedProtocol):
    """The connection; also the handler of its engine's events."""

    def __init__(
        self,
        owner: ConnectionOwner,
        buffer: ReadBuffer,
        authority: bytes,
        loop: asyncio.AbstractEventLoop,
        make_engine: EngineFactory,
        *,
        scheme: bytes,
        stream_window_bytes: int = DEFAULT_STREAM_WINDOW_BYTES,
        narrow_window_bytes: int = NARROW_WINDOW_BYTES,
    ) -> None:
        # All streams but one may hold their whole window, and the last one still gets through: an engine opens the
        # connection's window again when half of it has been taken, so the windows of all streams are that half.
        self._stream_limit: Final = min(_MAX_STREAMS, MAX_WINDOW // (2 * stream_window_bytes))
        all_windows = 2 * stream_window_bytes * self._stream_limit
        windows = EngineSettings(stream_window=narrow_window_bytes, connection_window=all_windows)
        self._wider_bytes: Final = stream_window_bytes - narrow_window_bytes
        self.queued = False
        self._owner: Final = owner
        self._view: Final = buffer.view
        self._authority: Final = authority
        self._scheme: Final = scheme
        self._loop: Final = loop
        self._engine = make_engine(self, windows, True)
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Http2Stream] = {}
        self._touched: list[Http2Stream] = []
        self._stuck_since_s = 0.0  # when the transport said that it is full; 0: it is not
        self._flush_queued = False
        self.address: Address = ""
        self.end: ConnectionEnd | None = None
        self.is_settled = False
        self.n_begun = 0
        self._last_id = 0  # the last stream that was opened
        self._written_id = 0  # the last stream of which something may have been written
        self._last_taken_id = MAX_WINDOW  # streams above it are not processed, said a GOAWAY
        self._pulse: Final = Pulse()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "retired" if self.end else "open"
        return f"<Http2Connection {self._authority.decode()} {state} streams={len(self._streams)}>"

    @property
    def has_room(self) -> bool:
        # The peer's limit is counted here: an engine would queue silently above it.
        return self._transport is not None and self.end is None and len(self._streams) < self._max_streams()

    @property
    def is_closed(self) -> bool:
        return self._transport is None

    @property
    def n_streams(self) -> int:
        return len(self._streams)

    @property
    def n_rooms(self) -> int:
        return max(0, self._max_streams() - len(self._streams)) if self.has_room else 0

    def open(self, request: UpstreamRequest, sink: ReplySink) -> Http2Stream:
        """Begin a stream; its frames leave at the end of this loop turn, together with those of its neighbours."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self.retire(ConnectionEnd.CLOSED)
            message = "the upstream has closed the connection"
            raise UpstreamFailure(Reason.UPSTREAM_RESET, message, unprocessed=Retry.STALE)
        headers, body = request_head(request, self._scheme, self._authority), request.body
        stream = Http2Stream(self, sink)
        try:
            stream.id = self._engine.send_request(headers, not body)
        except EngineError as exc:
            self.retire(ConnectionEnd.LAST)
            message = "the upstream's connection takes no more streams"
            raise UpstreamFailure(Reason.UPSTREAM_RESET, message, unprocessed=Retry.REFUSED) from exc
        if self._wider_bytes and request.may_run_ahead:
            self._engine.widen(stream.id, self._wider_bytes)
        stream.expected = -1 if request.method == b"HEAD" else None
        if not self._streams:
            self._pulse.leave_idle(self._loop.time())
        self._last_id = stream.id
        self._streams[stream.id] = stream
        self.n_begun += 1
        if body:
            stream.has_body = True
            self._engine.send_data(stream.id, cast(bytes, body), True)
        if stream.id >= _LAST_STREAM_ID:
            self.retire(ConnectionEnd.REQUESTS)
        self._flush_soon()
        return stream

    def acknowledge(self, stream_id: int, n_bytes: int) -> None:
        """Let the upstream send `n_bytes` more on a stream."""
        if self._transport is not None and n_bytes:
            self._engine.acknowledge(stream_id, n_bytes)
            self._flush_soon()

    def reset(self, stream: Http2Stream, error_code: int) -> None:
        """End a stream from our side; its sink hears nothing more."""
        if self._streams.pop(stream.id, None) is not None and self._transport is not None:
            self._engine.reset(stream.id, error_code)
            if stream.held:
                self._engine.acknowledge(stream.id, stream.held)
            if self._stuck_since_s and self._loop.time() - self._stuck_since_s >= _STUCK_S:
                # The upstream takes no bytes at all, so it does not hear of this reset either (F-38).
                self._take_no_more(ConnectionEnd.LOST)
            self._flush()
            self._after_stream()

    def n_unsent(self, stream_id: int) -> int:
        """Bytes of a request's body that the upstream has not taken yet."""
        return 0 if self._transport is None else self._engine.queued_bytes(stream_id)

    def retire(self, cause: ConnectionEnd) -> None:
        self._take_no_more(cause)
        if not self._streams:
            self.abort(cause)

    def check_alive(self, now_s: float, silence_s: float) -> None:
        if self._transport is None:
            return
        self._engine.forgive()
        verdict = self._pulse.check(now_s, silence_s)
        if verdict is Verdict.DEAD:
            self.abort(ConnectionEnd.PING)
        elif verdict is Verdict.ASK:
            self._engine.ping()
            self._flush_soon()

    def abort(self, cause: ConnectionEnd) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._closed(cause)

    # -- asyncio.BufferedProtocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._engine.start()
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return
        self._pulse.n_reads += 1
        self._engine.receive(self._view[:nbytes])
        if self._touched:
            self._deliver_touched()
        # Acknowledgements and answers to PING leave with whatever else this turn of the loop sends.
        self._flush_soon()

    def eof_received(self) -> bool:
        if self._streams:
            self.abort(ConnectionEnd.LOST)  # a half of a connection answers nobody
        else:
            self._take_no_more(ConnectionEnd.CLOSED)
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._closed(ConnectionEnd.LOST if self._streams else ConnectionEnd.CLOSED)

    def pause_writing(self) -> None:
        self._stuck_since_s = self._loop.time()

    def resume_writing(self) -> None:
        self._stuck_since_s = 0.0
        self._flush_soon()

    # -- EngineHandler --------------------------------------------------------------------------

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        head = reply_head(headers)
        if head is None:
            self._fail_stream(stream, Reason.UPSTREAM_PROTOCOL, "the upstream's reply has no valid status or length")
            return
        stream.head = head
        stream.began = True
        if stream.expected != -1 and head.status not in NO_BODY_STATUSES:
            stream.expected = head.content_length
        stream.ended = end_stream
        self._touched.append(stream)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            # A stream that we have reset: its bytes still count against the connection's window.
            self._engine.acknowledge(stream_id, len(data))
            return
        if not stream.chunks and stream.head is None:
            self._touched.append(stream)
        stream.chunks.append(data)
        stream.received += len(data)
        stream.ended = end_stream

    def on_stream_end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ended:
            stream.ended = True
            if not stream.chunks and stream.head is None:
                self._touched.append(stream)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended:
            return  # after a whole reply it only says that the rest of the request is not wanted (RFC 9113 §8.1)
        self._deliver_rest(stream)
        if error_code == REFUSED_STREAM and not stream.began:
            refusal = Retry.GOAWAY if stream_id > self._last_taken_id else Retry.REFUSED
            failure = UpstreamFailure(Reason.UPSTREAM_RESET, "the upstream refused the stream", unprocessed=refusal)
        elif by_us and not stream.began:
            failure = UpstreamFailure(Reason.UPSTREAM_PROTOCOL, "the upstream's reply broke HTTP/2")
        else:
            message = f"the upstream reset the stream (HTTP/2 error {error_code})"
            failure = UpstreamFailure(stream.lost_reason, message)
        if self._streams.pop(stream_id, None) is not None:
            stream.sink.on_failure(failure)
            self._after_stream()

    def on_goaway(self, last_stream_id: int, error_code: int) -> None:
        self._last_taken_id = last_stream_id
        self._take_no_more(ConnectionEnd.GOAWAY)
        if not self._streams:
            self._loop.call_soon(self.abort, ConnectionEnd.GOAWAY)

    def on_settings(self) -> None:
        self.is_settled = True
        if self.has_room:
            self._owner.on_room(self)

    def on_window(self, stream_id: int) -> None:
        self._flush_soon()

    def on_pong(self) -> None:
        pass  # whatever is read is a sign of life

    def on_fatal(self, message: str) -> None:
        self._flush()
        self.abort(ConnectionEnd.PROTOCOL)

    # -- inside -----------------------------------------------------------------------------------

    def _deliver_touched(self) -> None:
        touched, self._touched = self._touched, []
        for stream in touched:
            if self._streams.get(stream.id) is stream:
                self._deliver(stream)

    def _deliver(self, stream: Http2Stream) -> None:
        if stream.ended:
            expected = stream.expected
            if expected is not None and expected >= 0 and expected != stream.received:
                message = f"the upstream announced {expected} bytes and sent {stream.received}"
                self._fail_stream(stream, Reason.UPSTREAM_TRUNCATED, message)
                return
            del self._streams[stream.id]
            if stream.has_body and self._engine.queued_bytes(stream.id):
                # RFC 9113 §8.1: the reply came before the request's end; its rest would wait in the engine for ever.
                self._engine.reset(stream.id, CANCEL)
        n_bytes = stream.deliver()
        if n_bytes and self._transport is not None:
            # Sent after the read that brought them. Of a stream that is over only the connection's window matters.
            self._engine.acknowledge(stream.id, n_bytes)
        if stream.ended:
            self._after_stream()

    def _deliver_rest(self, stream: Http2Stream) -> None:
        """Hand over what came in the same read before the stream's end by error."""
        if stream in self._touched:
            self._touched.remove(stream)
            stream.ended = False
            stream.deliver()

    def _fail_stream(self, stream: Http2Stream, reason: Reason, message: str) -> None:
        self.reset(stream, PROTOCOL_ERROR)
        stream.sink.on_failure(UpstreamFailure(reason, message))

    def _after_stream(self) -> None:
        if self._transport is None:
            return
        if self.end is not None:
            if not self._streams:
                # Not at once: the engine may be in the middle of a read.
                self._loop.call_soon(self.abort, self.end)
        elif not self.queued and self.has_room:
            self._owner.on_room(self)

    def _flush_soon(self) -> None:
        # Most reads of a reply leave nothing to say: an engine opens a window when half of it was taken.
        if not self._flush_queued and self._transport is not None and self._engine.has_output:
            self._flush_queued = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_queued = False
        transport = self._transport
        if transport is None:
            return  # and there is no engine any more
        engine = self._engine
        if self._stuck_since_s or not engine.has_output:
            return
        transport.write(engine.take_output(SLICE_BYTES))
        self._written_id = self._last_id
        if engine.has_output:
            self._flush_soon()

    def _max_streams(self) -> int:
        # One until the peer has said how many: what is above its limit would be refused, and sent again.
        return min(self._stream_limit, self._engine.peer_max_streams) if self.is_settled else 1

    def _take_no_more(self, cause: ConnectionEnd) -> None:
        if self.end is None:
            self.end = cause
            self._owner.on_closed(self)

    def _drop_engine(self) -> None:
        """Break the cycle with the engine, so that both are freed now: a worker seldom collects garbage."""
        self._engine.close()
        del self._engine

    def _closed(self, cause: ConnectionEnd) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._loop.call_soon(self._drop_engine)  # not at once: it may be in the middle of a read
        self._take_no_more(cause)
        # Also what the last read brought: a reply that came whole is whole.
        self._deliver_touched()
        # A first request can't meet a connection that idled for too long.
        has_served = self.n_begun > len(self._streams)
        is_stale = cause is ConnectionEnd.LOST and has_served and self._pulse.was_stale(self._loop.time())
        streams, self._streams = self._streams, {}
        message = "the upstream's connection was lost"
        if cause is ConnectionEnd.PING:
            message = f"the upstream gave no sign of life within {PONG_WAIT_S:g} s of being asked for one"
        for stream in streams.values():
            unprocessed = Retry.STALE if is_stale or stream.id > self._written_id else None
            reason = stream.lost_reason
            if cause is ConnectionEnd.PROTOCOL and len(streams) == 1 and not stream.began:
                reason = Reason.UPSTREAM_PROTOCOL  # it was alone, so it was its reply (F-29)
            stream.sink.on_failure(UpstreamFailure(reason, message, unprocessed=unprocessed))
