"""An HTTP/2 connection to an upstream: many exchanges side by side.

Knows: which stream belongs to which exchange, when to write, how many streams may be open, whether the upstream still
answers. Does not know: frames (protocol/http2/engine.py) or which connection an exchange gets (pool.py).

One read may carry frames of many streams. While the engine reads them, each stream collects its part; its sink gets
that part once, at the end of the read, so a reply costs its client one write. Output of a loop turn is one write too.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from typing import Final, cast

from velox.errors import Reason
from velox.heads import NO_BODY_STATUSES, Header, ReplyHead
from velox.net.tls_unread import unread
from velox.net.upstream.connection import HttpConnection
from velox.net.upstream.delivery import n_unacknowledged
from velox.net.upstream.interface import (
    SLICE_BYTES,
    ConnectionOwner,
    ReadBuffer,
    ReplySink,
    UpstreamFailure,
    UpstreamRequest,
)
from velox.outcomes import ConnectionEnd, Retry
from velox.protocol.http1.response import LONE_CHUNK_BYTES
from velox.protocol.http1.write import chunk
from velox.protocol.http2.engine import (
    CANCEL,
    MAX_WINDOW,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    EngineError,
    EngineFactory,
    EngineSettings,
    Markable,
)
from velox.protocol.http2.response_head import Http2ReplyHeads

__all__ = ["DEFAULT_STREAM_WINDOW_BYTES", "NARROW_WINDOW_BYTES", "Http2Connection", "Http2Stream"]

_MAX_STREAMS: Final = 512
# Stream ids end at 2^31-1; leave long before, the pool replaces the connection.
_LAST_STREAM_ID: Final = 2**30
DEFAULT_STREAM_WINDOW_BYTES: Final = 128 * 1024
# The window that all streams begin with. Most are widened as they are opened; later would cost a large reply a round
# trip, and a window that has been given can't be taken back.
NARROW_WINDOW_BYTES: Final = 16 * 1024
# The part of the narrow window below which what a sink has taken is not told to the engine: a piece of an event stream
# is some hundred bytes. An engine opens a window by half of it, so this much less opens it hardly later.
_UNTOLD_PART: Final = 4
# Of pieces in a row that a sink has not taken as chunks, so many are offered, of each so many: a client over HTTP/2
# takes none, a busy upstream's reads bring several events at a time.
_OFFERED: Final = 2
_OFFERED_OF: Final = 32
# A connection whose socket has taken nothing for so long when a request on it is cancelled gets no more requests.
_BLOCKED_S: Final = 0.5
# How long an upstream may take to answer a PING, or to send anything else.
_PONG_WAIT_S: Final = 5.0


class Http2Connection(HttpConnection):
    """The connection; also the handler of its engine's events."""

    __slots__ = (
        "_authority",
        "_blocked_since_s",
        "_engine",
        "_flush_queued",
        "_goaway_last_id",
        "_heads",
        "_last_id",
        "_liveness",
        "_most_untold",
        "_n_max_streams",
        "_n_written",
        "_scheme",
        "_stream_limit",
        "_streams",
        "_updated",
        "_was_stale",
        "_wider_bytes",
        "_written_id",
        "is_settled",
    )

    __deletable__ = ("_engine",)

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
        heads: Http2ReplyHeads | None = None,
    ) -> None:
        """heads: of all connections to the same upstream; None: of this one only."""
        super().__init__(owner, buffer, loop)
        # All streams but one may hold their whole window, and the last one still gets through: an engine opens the
        # connection's window again when half of it has been taken, so the windows of all streams are that half.
        self._stream_limit: Final = min(_MAX_STREAMS, MAX_WINDOW // (2 * stream_window_bytes))
        all_windows = 2 * stream_window_bytes * self._stream_limit
        windows = EngineSettings(stream_window=narrow_window_bytes, connection_window=all_windows)
        self._wider_bytes: Final = stream_window_bytes - narrow_window_bytes
        self._most_untold: Final = narrow_window_bytes // _UNTOLD_PART
        self._n_max_streams = 1  # until the peer has announced its limit; 0: the connection takes no more streams
        self._authority: Final = (b":authority", authority)
        self._scheme: Final = (b":scheme", scheme)
        self._heads: Final = heads or Http2ReplyHeads()
        self._engine = make_engine(self, windows, True)
        self._streams: dict[int, Http2Stream] = {}
        self._updated: list[Http2Stream] = []  # streams that the present read has brought something for
        self._blocked_since_s = 0.0  # when the transport's buffer became full; 0: it is not full
        self._flush_queued = False
        self.is_settled = False
        self._last_id = 0  # the last stream that was opened
        self._written_id = 0  # the last stream of which something may have been written
        self._n_written = 0  # bytes, since a request ended the last time without one
        self._was_stale = False  # the upstream had closed it before anything of these reached it
        self._goaway_last_id = MAX_WINDOW  # a GOAWAY said that streams above it are not processed
        self._liveness: Final = _Liveness()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "retired" if self.end else "open"
        return f"<Http2Connection {self._authority[1].decode()} {state} streams={len(self._streams)}>"

    @property
    def protocol(self) -> str:
        return "HTTP/2"

    @property
    def n_streams(self) -> int:
        return len(self._streams)

    @property
    def n_rooms(self) -> int:
        return max(0, self._n_max_streams - len(self._streams))

    def open(self, request: UpstreamRequest, sink: ReplySink) -> Http2Stream:
        """Begin a stream; its frames leave at the end of this loop turn, together with those of its neighbours."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self.retire(ConnectionEnd.CLOSED)
            message = "the upstream has closed the connection"
            raise UpstreamFailure(Reason.UPSTREAM_RESET, message, unprocessed=Retry.STALE)
        engine, body = self._engine, request.body
        # The pseudo headers first (RFC 9113 §8.3.1).
        headers: Markable = [(b":method", request.method), self._scheme, self._authority, (b":path", request.target)]
        headers += request.fields.headers(request.values, engine.mark)
        if body is not None:
            headers.append((b"content-length", str(len(body)).encode()))
        stream = Http2Stream(self, sink)
        try:
            stream.id = engine.send_request(headers, True, body or b"", is_marked=True)
        except EngineError as exc:
            self.retire(ConnectionEnd.LAST)
            message = "the upstream's connection takes no more streams"
            raise UpstreamFailure(Reason.UPSTREAM_RESET, message, unprocessed=Retry.REFUSED) from exc
        if self._wider_bytes and request.may_run_ahead:
            engine.widen(stream.id, self._wider_bytes)
        stream.expected = -1 if request.method == b"HEAD" else None
        streams = self._streams
        if not streams:
            self._n_written = 0
        self._last_id = stream.id
        streams[stream.id] = stream
        # The peer's limit is checked here: an engine would queue silently above it.
        self.has_room = len(streams) < self._n_max_streams
        self.n_begun += 1
        stream.has_body = bool(body)
        if stream.id >= _LAST_STREAM_ID:
            self.retire(ConnectionEnd.REQUESTS)
        if not self._flush_queued:
            self._flush_queued = True
            self._loop.call_soon(self._flush)
        return stream

    def acknowledge(self, stream_id: int, n_bytes: int) -> None:
        """Let the upstream send `n_bytes` more on a stream."""
        if self._transport is not None and n_bytes:
            self._engine.acknowledge(stream_id, n_bytes)
            self._flush_soon()

    def reset(self, stream: Http2Stream, error_code: int) -> None:
        """End a stream from our side; its sink is not called any more."""
        if self._streams.pop(stream.id, None) is not None and self._transport is not None:
            self._engine.reset(stream.id, error_code)
            if stream.held:
                self._engine.acknowledge(stream.id, stream.held)
            if self._blocked_since_s and self._loop.time() - self._blocked_since_s >= _BLOCKED_S:
                # The upstream reads nothing at all, so this reset does not reach it either (F-38).
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
        verdict = self._liveness.check(now_s, silence_s)
        if verdict is _Verdict.DEAD:
            self.abort(ConnectionEnd.PING)
        elif verdict is _Verdict.SILENT:
            self._engine.ping()
            self._flush_soon()

    def abort(self, cause: ConnectionEnd) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._closed(cause)

    # -- asyncio.BufferedProtocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.has_room = True
        self._engine.start()
        self._flush()

    def buffer_updated(self, nbytes: int) -> None:
        self._n_untimed += nbytes
        began_s = self._clock() if self._n_untimed >= self._pace.timed_bytes else 0.0
        transport = self._transport
        if transport is None:
            return
        self._liveness.n_reads += 1
        self._engine.receive(self._view[:nbytes])
        updated = self._updated
        if updated:
            self._updated = []
            for stream in updated:
                if self._streams.get(stream.id) is stream:
                    self._deliver(stream)
        # Acknowledgements and answers to PING leave with whatever else this turn of the loop sends. Most reads of a
        # reply leave nothing to send: an engine opens a window when half of it was taken.
        if not self._flush_queued and self._transport is transport and self._engine.has_output:
            self._flush_queued = True
            self._loop.call_soon(self._flush)
        if began_s:
            self._paced(nbytes, self._clock() - began_s)

    def eof_received(self) -> bool:
        if self._streams:
            # Not in connection_lost(): TLS has closed the socket by then.
            self._was_stale = self.n_begun > len(self._streams) and self._is_stale()
            self.abort(ConnectionEnd.LOST)  # no reply can come any more
        else:
            self._take_no_more(ConnectionEnd.CLOSED)
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._streams and self._transport is not None:
            # What came before the end, and waited for its turn: _closed() delivers it.
            data = unread(self._transport)
            if data:
                self._take_no_more(ConnectionEnd.LOST)
                self._engine.receive(data)
        self._closed(ConnectionEnd.LOST if self._streams else ConnectionEnd.CLOSED)

    def pause_writing(self) -> None:
        self._blocked_since_s = self._loop.time()

    def resume_writing(self) -> None:
        self._blocked_since_s = 0.0
        self._flush_soon()

    # -- EngineHandler --------------------------------------------------------------------------

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        head = self._heads.read(headers)
        if head is None:
            self._fail_stream(stream, Reason.UPSTREAM_PROTOCOL, "the upstream's reply has no valid status or length")
            return
        stream.head = head
        stream.began = True
        if stream.expected != -1 and head.shape.status not in NO_BODY_STATUSES:
            stream.expected = head.content_length
        stream.ended = end_stream
        self._updated.append(stream)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            # A stream that we have reset: its bytes still count against the connection's window.
            self._engine.acknowledge(stream_id, len(data))
            return
        if not stream.chunks and stream.head is None:
            self._updated.append(stream)
        stream.chunks.append(data)
        stream.received += len(data)
        stream.ended = end_stream

    def on_stream_end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.ended:
            stream.ended = True
            if not stream.chunks and stream.head is None:
                self._updated.append(stream)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended:
            return  # after a whole reply it only says that the rest of the request is not wanted (RFC 9113 §8.1)
        self._deliver_rest(stream)
        if error_code == REFUSED_STREAM and not stream.began:
            refusal = Retry.GOAWAY if stream_id > self._goaway_last_id else Retry.REFUSED
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
        self._goaway_last_id = last_stream_id
        self._take_no_more(ConnectionEnd.GOAWAY)
        if not self._streams:
            self._loop.call_soon(self.abort, ConnectionEnd.GOAWAY)

    def on_settings(self) -> None:
        self.is_settled = True
        if self._transport is not None and self.end is None:
            self._n_max_streams = min(self._stream_limit, self._engine.peer_max_streams)
            self.has_room = len(self._streams) < self._n_max_streams
            if self.has_room:
                self._owner.on_room(self)

    def on_window(self, stream_id: int) -> None:
        self._flush_soon()

    def on_pong(self) -> None:
        pass  # check_alive() counts every read

    def on_fatal(self, message: str) -> None:
        self._flush()
        self.abort(ConnectionEnd.PROTOCOL)

    # -- inside -----------------------------------------------------------------------------------

    def _deliver(self, stream: Http2Stream) -> None:
        ended = stream.ended
        if ended:
            expected = stream.expected
            if expected is not None and expected >= 0 and expected != stream.received:
                message = f"the upstream announced {expected} bytes and sent {stream.received}"
                self._fail_stream(stream, Reason.UPSTREAM_TRUNCATED, message)
                return
            del self._streams[stream.id]
            self._engine.finish(stream.id)
        head, chunks = stream.head, stream.chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        if head is not None or ended:
            stream.head = None
            stream.sink.on_reply(head, data, ended)
            if ended:
                if not self.queued or not self.has_room or self.end is not None:
                    self._after_stream()
                return
        else:
            # A chunk costs the sink less, if it takes any.
            framed = chunk(data) if data and stream.n_not_taken % _OFFERED_OF < _OFFERED else b""
            if 0 < len(framed) <= LONE_CHUNK_BYTES and stream.sink.on_chunk(framed, len(framed) - len(data) - 2):
                stream.n_not_taken = 0
            else:
                stream.n_not_taken += 1
                stream.sink.on_reply(None, data, False)
        # Acknowledged when it is much; if the sink has paused meanwhile, when it resumes.
        held = stream.held = stream.held + len(data)
        if held > self._most_untold and not stream.is_paused and self._transport is not None:
            stream.held = 0
            self._engine.acknowledge(stream.id, held)

    def _deliver_rest(self, stream: Http2Stream) -> None:
        """Deliver what came in the same read before the stream's end by error."""
        if stream in self._updated:
            self._updated.remove(stream)
            stream.ended = False
            self._deliver(stream)

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
            return
        self.has_room = len(self._streams) < self._n_max_streams
        if not self.queued and self.has_room:
            self._owner.on_room(self)

    def _flush_soon(self) -> None:
        if not self._flush_queued and self._transport is not None and self._engine.has_output:
            self._flush_queued = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_queued = False
        transport = self._transport
        if transport is None:
            return  # and there is no engine any more
        engine = self._engine
        if self._blocked_since_s or not engine.has_output:
            return
        output = engine.take_output(SLICE_BYTES)
        self._n_written += len(output)
        transport.write(output)
        self._written_id = self._last_id
        if engine.has_output:
            self._flush_soon()

    def _take_no_more(self, cause: ConnectionEnd) -> None:
        if self.end is None:
            self.end = cause
            self._n_max_streams = 0
            self.has_room = False
            self._owner.on_closed(self)

    def _is_stale(self) -> bool:
        """Return True if the peer's end came although it has received nothing since the connection was idle (F-10)."""
        transport = self._transport
        outstanding = None if transport is None else n_unacknowledged(transport)
        return outstanding is not None and 0 < self._n_written <= outstanding

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
        touched, self._updated = self._updated, []
        for stream in touched:
            if self._streams.get(stream.id) is stream:
                self._deliver(stream)
        # A first request can't meet a connection that idled for too long.
        has_served = self.n_begun > len(self._streams)
        is_reused = cause is ConnectionEnd.LOST and has_served
        is_stale = is_reused and self._was_stale
        streams, self._streams = self._streams, {}
        message = "the upstream's connection was lost"
        if cause is ConnectionEnd.PING:
            message = f"the upstream gave no sign of life within {_PONG_WAIT_S:g} s of being asked for one"
        for stream in streams.values():
            unprocessed = Retry.STALE if is_stale or stream.id > self._written_id else None
            reason = stream.lost_reason
            if cause is ConnectionEnd.PROTOCOL and len(streams) == 1 and not stream.began:
                reason = Reason.UPSTREAM_PROTOCOL  # it was alone, so it was its reply (F-29)
            failure = UpstreamFailure(reason, message, unprocessed=unprocessed)
            failure.may_be_stale = is_reused and not stream.began
            stream.sink.on_failure(failure)


class Http2Stream:
    """One exchange. Collects what a read brings for it, and gives that to the sink once.

    held: bytes given to the sink and not acknowledged, since it is paused or they are few; never more than the stream's
    window. n_not_taken: pieces in a row that the sink did not take as chunks.
    expected: the announced length of the body; -1: the reply to HEAD, which has none.
    """

    __slots__ = (
        "_connection",
        "began",
        "chunks",
        "ended",
        "expected",
        "has_body",
        "head",
        "held",
        "id",
        "is_paused",
        "n_not_taken",
        "received",
        "sink",
    )

    def __init__(self, connection: Http2Connection, sink: ReplySink) -> None:
        self._connection: Final = connection
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
        self.n_not_taken = 0
        self.is_paused = False

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "ended" if self.ended else "open"
        return f"<Http2Stream {self.id} {state} received={self.received} held={self.held}>"

    @property
    def n_unsent(self) -> int:
        return self._connection.n_unsent(self.id) if self.has_body else 0

    @property
    def lost_reason(self) -> Reason:
        """Tell a reply that was cut from one that never began."""
        return Reason.UPSTREAM_TRUNCATED if self.began else Reason.UPSTREAM_RESET

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.n_not_taken = 0  # a sink that is paused takes no chunks
        held, self.held = self.held, 0
        self._connection.acknowledge(self.id, held)

    def cancel(self) -> None:
        self._connection.reset(self, CANCEL)


class _Verdict(enum.Enum):
    """The state of a connection, as far as reads show it."""

    ALIVE = 0
    SILENT = 1
    DEAD = 2


class _Liveness:
    """Whether the upstream still answers on a connection. n_reads: count up with each read, of whatever."""

    __slots__ = ("_n_reads_seen", "_pinged_s", "_read_s", "n_reads")

    def __init__(self) -> None:
        self.n_reads = 0
        self._n_reads_seen = -1
        self._read_s = 0.0  # the latest that anything can have been read
        self._pinged_s = 0.0  # 0: no answer is awaited

    def __repr__(self) -> str:
        return f"<_Liveness n_reads={self.n_reads} is_pinged={self._pinged_s > 0}>"

    def check(self, now_s: float, silence_s: float) -> _Verdict:
        """Check whether anything was read. As exact as it is called often; any byte proves that the upstream is alive.

        silence_s: after which it is SILENT and to be asked with a PING. It is DEAD when it sends nothing for
        _PONG_WAIT_S from then on.
        """
        if self.n_reads != self._n_reads_seen:
            self._n_reads_seen = self.n_reads
            self._read_s = now_s
            self._pinged_s = 0.0
        elif self._pinged_s:
            if now_s - self._pinged_s >= _PONG_WAIT_S:
                return _Verdict.DEAD
        elif now_s - self._read_s >= silence_s:
            self._pinged_s = now_s
            return _Verdict.SILENT
        return _Verdict.ALIVE
