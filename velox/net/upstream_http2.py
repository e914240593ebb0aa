"""An HTTP/2 connection to an upstream: many exchanges side by side.

Knows: which stream belongs to which exchange, when to write, how many streams may be open. Does not know: frames
(protocol/http2.py) or which connection an exchange gets (pool.py).

One read may carry frames of many streams: what each stream got is gathered while the engine is fed and handed over
once when it is done, so a reply costs its client one write. Output of a loop turn leaves as one write too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

from velox.errors import Reason
from velox.net.upstream import SLICE_BYTES, ConnectionOwner, ReadBuffer, ReplySink, UpstreamFailure, UpstreamRequest
from velox.protocol.http2 import Engine, EngineError, EngineHandler, EngineSettings
from velox.types import NO_BODY_STATUSES, Header, ReplyHead

__all__ = ["Http2Connection", "Http2Stream"]

# RFC 9113 §7.
_CANCEL: Final = 0x8
_REFUSED_STREAM: Final = 0x7
_PROTOCOL_ERROR: Final = 0x1
_MAX_STREAMS: Final = 512
# Stream ids end at 2^31-1; leave long before, the pool replaces the connection.
_LAST_STREAM_ID: Final = 2**30
# RFC 9113 §8.2.2: these have no meaning in HTTP/2; a careless upstream's are not passed on.
_CONNECTION_HEADERS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te", b"trailer"}
)

EngineMaker = Callable[[EngineHandler, EngineSettings, bool], Engine]


class Http2Stream:
    """One exchange. Gathers what a read brings, then tells the sink once."""

    __slots__ = (
        "_connection",
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
        self.held = 0  # bytes delivered to a sink that was paused, and not yet acknowledged
        self._paused = False

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        held, self.held = self.held, 0
        self._connection.acknowledge(self.id, held)

    def cancel(self) -> None:
        self._connection.reset(self, _CANCEL)

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


class Http2Connection(asyncio.BufferedProtocol):
    """The connection; also the handler of its engine's events."""

    def __init__(
        self,
        owner: ConnectionOwner,
        buffer: ReadBuffer,
        authority: bytes,
        loop: asyncio.AbstractEventLoop,
        make_engine: EngineMaker,
        *,
        scheme: bytes,
    ) -> None:
        self.queued = False
        self._owner: Final = owner
        self._view: Final = buffer.view
        self._authority: Final = authority
        self._scheme: Final = scheme
        self._loop: Final = loop
        self._engine: Final = make_engine(self, EngineSettings(), True)
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Http2Stream] = {}
        self._touched: list[Http2Stream] = []
        self._write_paused = False
        self._flush_queued = False
        self._retired = False
        self._last_id = 0

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "retired" if self._retired else "open"
        return f"<Http2Connection {self._authority.decode()} {state} streams={len(self._streams)}>"

    @property
    def has_room(self) -> bool:
        # The peer's limit is counted here: an engine would queue silently above it.
        return (
            self._transport is not None
            and not self._retired
            and len(self._streams) < min(_MAX_STREAMS, self._engine.peer_max_streams)
        )

    @property
    def is_closed(self) -> bool:
        return self._transport is None

    @property
    def n_streams(self) -> int:
        return len(self._streams)

    def open(self, request: UpstreamRequest, sink: ReplySink) -> Http2Stream:
        """Begin a stream; its frames leave at the end of this loop turn, together with those of its neighbours."""
        headers: list[Header] = [
            (b":method", request.method),
            (b":scheme", self._scheme),
            (b":authority", self._authority),
            (b":path", request.target),
        ]
        headers += request.headers
        body = request.body
        if body is not None:
            headers.append((b"content-length", b"%d" % len(body)))
        stream = Http2Stream(self, sink)
        try:
            stream.id = self._engine.send_request(headers, not body)
        except EngineError as exc:
            self.retire()
            message = "the upstream's connection takes no more streams"
            raise UpstreamFailure(Reason.UPSTREAM_RESET, message, unprocessed=True) from exc
        stream.expected = -1 if request.method == b"HEAD" else None
        self._streams[stream.id] = stream
        if body:
            stream.has_body = True
            self._engine.send_data(stream.id, cast(bytes, body), True)
        if stream.id >= _LAST_STREAM_ID:
            self._retired = True
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
            self._flush()
            self._after_stream()

    def retire(self) -> None:
        self._retired = True
        if not self._streams:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._closed()

    # -- asyncio.BufferedProtocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._engine.start()
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._engine.receive(self._view[:nbytes])
        if self._touched:
            self._deliver_touched()
        # Acknowledgements and answers to PING leave with whatever else this turn of the loop sends.
        self._flush_soon()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._closed()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._flush_soon()

    # -- EngineHandler --------------------------------------------------------------------------

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        head = _reply_head(headers)
        if head is None:
            self._fail_stream(stream, Reason.UPSTREAM_PROTOCOL, "the upstream's reply has no valid status")
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

    def on_reset(self, stream_id: int, error_code: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended:
            return  # after a whole reply it only says that the rest of the request is not wanted (RFC 9113 §8.1)
        self._deliver_rest(stream)
        if error_code == _REFUSED_STREAM:
            failure = UpstreamFailure(Reason.UPSTREAM_RESET, "the upstream refused the stream", unprocessed=True)
        else:
            message = f"the upstream reset the stream (HTTP/2 error {error_code})"
            failure = UpstreamFailure(_lost_reason(stream), message)
        if self._streams.pop(stream_id, None) is not None:
            stream.sink.on_failure(failure)
            self._after_stream()

    def on_goaway(self, last_stream_id: int, error_code: int) -> None:
        self._retired = True
        self._owner.on_closed(self)
        if not self._streams:
            self._loop.call_soon(self.abort)

    def on_settings(self) -> None:
        if self.has_room:
            self._owner.on_room(self)

    def on_window(self, stream_id: int) -> None:
        self._flush_soon()

    def on_pong(self) -> None:
        pass

    def on_fatal(self, message: str) -> None:
        self._flush()
        self.abort()

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
                self._engine.reset(stream.id, _CANCEL)
            n_bytes = stream.deliver()
            if n_bytes:
                # Only the connection's window matters now, the stream is over.
                self._engine.acknowledge(stream.id, n_bytes)
            self._after_stream()
        else:
            self.acknowledge(stream.id, stream.deliver())

    def _deliver_rest(self, stream: Http2Stream) -> None:
        """Hand over what came in the same read before the stream's end by error."""
        if stream in self._touched:
            self._touched.remove(stream)
            stream.ended = False
            stream.deliver()

    def _fail_stream(self, stream: Http2Stream, reason: Reason, message: str) -> None:
        self.reset(stream, _PROTOCOL_ERROR)
        stream.sink.on_failure(UpstreamFailure(reason, message))

    def _after_stream(self) -> None:
        if self._transport is None:
            return
        if self._retired:
            if not self._streams:
                # Not at once: the engine may be in the middle of a read.
                self._loop.call_soon(self.abort)
        elif not self.queued and self.has_room:
            self._owner.on_room(self)

    def _flush_soon(self) -> None:
        if not self._flush_queued and self._transport is not None:
            self._flush_queued = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_queued = False
        transport, engine = self._transport, self._engine
        if transport is None or self._write_paused or not engine.has_output:
            return
        transport.write(engine.take_output(SLICE_BYTES))
        if engine.has_output:
            self._flush_soon()

    def _closed(self) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._owner.on_closed(self)
        # Also what the last read brought: a reply that came whole is whole.
        self._deliver_touched()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            message = "the upstream's connection was lost"
            stream.sink.on_failure(UpstreamFailure(_lost_reason(stream), message))


def _lost_reason(stream: Http2Stream) -> Reason:
    """Tell a reply that was cut from one that never began."""
    return Reason.UPSTREAM_TRUNCATED if stream.began else Reason.UPSTREAM_RESET


def _reply_head(headers: Sequence[Header]) -> ReplyHead | None:
    """Split the pseudo header off; None when the status is missing or no number (RFC 9113 §8.3.2)."""
    status = 0
    content_length: int | None = None
    kept: list[Header] = []
    for header in headers:
        name, value = header
        if name == b":status":
            status = int(value) if value.isdigit() and len(value) == 3 else 0
        elif name == b"content-length":
            if not value.isdigit():
                return None
            content_length = int(value)
        elif name not in _CONNECTION_HEADERS:
            kept.append(header)
    return ReplyHead(status, kept, content_length) if 200 <= status <= 599 else None
