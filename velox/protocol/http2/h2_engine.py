"""The HTTP/2 engine on h2, in pure Python: for machines without ngh2, and its opponent in tests.

Knows: h2's calls, events and gaps. Does not know: sockets, what an exchange means.

About 20 times dearer than ngh2. What h2 leaves to us:
- Cutting bodies to frames and windows, whose rule was broken (a stream's or the connection's), floods, and what a
  GOAWAY or an overlong frame means: see WireConnection and Outbox.
- It has no limit on answers to PING and SETTINGS, none on the number of header fields.
- It refers to itself in cycles; close() breaks them, so that a connection is freed when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingAckReceived,
    PingReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import DenialOfServiceError, FlowControlError, H2Error, ProtocolError, TooManyStreamsError
from h2.settings import SettingCodes, Settings
from h2.stream import StreamClosedBy, StreamState
from hpack import Decoder, HeaderTuple, HPACKDecodingError, HPACKError, NeverIndexedHeaderTuple
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame, WindowUpdateFrame

from velox.heads import Header, Headers
from velox.protocol.http2.engine import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    LARGE_UPDATE,
    MAX_IDLE_FRAMES,
    MAX_INTERIM,
    MAX_OUTPUT,
    MAX_WINDOW,
    NO_ERROR,
    PING_DATA,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    EngineError,
    EngineHandler,
    EngineSettings,
    Markable,
    SendQueue,
    guarded,
)
from velox.protocol.http2.guard import FrameGuard
from velox.protocol.http2.request_head import MalformedError, check_trailers

if TYPE_CHECKING:  # not installed with h2
    from typing_extensions import Buffer

__all__ = ["H2Engine", "WireConnection"]

# PING and SETTINGS that a peer may send between two writes of ours: each queues an answer. Like libnghttp2.
_MAX_UNANSWERED: Final = 1_000
# Bytes of frames that wait to be written: heads of requests, and what the peer is owed. Bodies wait elsewhere.
_MAX_READY: Final = 1 << 20
_DEFAULT_WINDOW: Final = 65_535  # RFC 9113 §6.9.2

# What h2 raises for a head that can't be decoded. After that no head of the connection can (RFC 9113 §4.3).
_UNDECODABLE: Final = (HPACKError, IndexError, TypeError, UnicodeDecodeError)
# Rules of the connection, whichever frame breaks them. A stream's own window may end either (RFC 9113 §6.9.1).
_OF_THE_CONNECTION: Final = (DenialOfServiceError, FlowControlError, TooManyStreamsError)


def _mark(header: Header) -> object:
    return NeverIndexedHeaderTuple(*header)


@dataclass(slots=True)
class _Stream:
    """What this file must know of an open stream. held: bytes received and not acknowledged.

    queue_ended: the caller has given the last of it; local_ended: and it has been sent.
    """

    held: int = 0
    n_interim: int = 0
    queue_ended: bool = False
    local_ended: bool = False
    remote_ended: bool = False


class H2Engine:
    """See velox.protocol.http2.engine.Engine."""

    mark: Final = staticmethod(_mark)

    def __init__(self, handler: EngineHandler, settings: EngineSettings, client: bool) -> None:
        self.peer_max_streams = 100
        self._handler: Final = handler
        self._settings: Final = settings
        self._client: Final = client
        # Outbound names are lower-case and values checked already; inbound ones are the peer's.
        config = H2Configuration(client, validate_outbound_headers=False, normalize_outbound_headers=False)
        if settings.guards and not client:
            # A hundred crumbs of a cookie would be one field (CVE-2026-49975).
            config.normalize_inbound_headers = False
            # It takes a millisecond for 32 KiB; http2/request_head.py looks at each field anyway.
            config.validate_inbound_headers = False
        self._guard: Final = FrameGuard(settings.max_streams_local) if settings.guards and not client else None
        self._connection: Final = WireConnection(config, self._guard)
        self._streams: Final[dict[int, _Stream]] = {}
        self._outbox: Final = Outbox(self._connection, self._end_local)
        self._n_unanswered = 0
        self._is_leaving = False  # one side has sent GOAWAY
        self._is_dead = False

    def __repr__(self) -> str:
        return f"<H2Engine client={self._client} streams={len(self._streams)} dead={self._is_dead}>"

    @property
    def has_output(self) -> bool:
        return self._outbox.has_output

    def start(self) -> None:
        ours = self._settings
        wire = {
            SettingCodes.INITIAL_WINDOW_SIZE: ours.stream_window,
            SettingCodes.MAX_HEADER_LIST_SIZE: ours.max_header_list,
        }
        if self._client:
            wire[SettingCodes.ENABLE_PUSH] = 0
        else:
            wire[SettingCodes.MAX_CONCURRENT_STREAMS] = ours.max_streams_local
        connection = self._connection
        connection.local_settings = Settings(self._client, wire)
        connection.decoder.max_header_list_size = ours.max_header_list
        connection.initiate_connection()
        connection.increment_flow_control_window(ours.connection_window - _DEFAULT_WINDOW)

    def receive(self, data: bytes | memoryview, now: float = 0.0) -> None:
        if self._is_dead:
            return
        if self._guard is not None and (fault := self._guard.read(data, now)) is not None:
            self._end(*fault)
            return
        for event in self._connection.receive_data(data):
            self._tell(event)
        self._look_at_connection()

    def _tell(self, event: Event) -> None:
        if self._is_dead:
            pass  # since an earlier event of this read
        elif isinstance(event, DataReceived):
            self._on_data(event)
        elif isinstance(event, ResponseReceived | RequestReceived):
            self._on_head(event)
        else:
            self._on_rare(event)

    def _look_at_connection(self) -> None:
        """After a read: did the connection break in it?"""
        connection = self._connection
        if self._is_dead:
            pass  # since an event of this read
        elif connection.fault:
            self._die(connection.fault)
        elif connection.awaits_overlong_frame:
            self._end(FRAME_SIZE_ERROR, "the peer sent an overlong frame, or no HTTP/2 at all")
        elif self._outbox.n_ready > _MAX_READY:
            self._end(ENHANCE_YOUR_CALM, "the peer takes no answers and asks for more")

    def send_request(
        self, headers: Markable, end_stream: bool, body: bytes | bytearray = b"", *, is_marked: bool = False
    ) -> int:
        if self._is_dead or self._is_leaving:
            raise EngineError("the connection takes no new streams")
        if len(self._streams) >= self.peer_max_streams:
            raise EngineError("the peer allows no more streams")
        try:
            stream_id = self._connection.get_next_available_stream_id()
            headers = headers if is_marked else guarded(headers, _mark)
            is_all = end_stream and not body
            self._connection.send_headers(stream_id, headers, is_all)
        except H2Error as error:
            raise EngineError(f"no stream can be opened: {error}") from error
        self._streams[stream_id] = _Stream(queue_ended=is_all, local_ended=is_all)
        if body:
            self.send_data(stream_id, body, end_stream)
        return stream_id

    def send_continue(self, stream_id: int) -> None:
        if stream_id in self._streams:
            _unless_over(self._connection.send_headers, stream_id, [(b":status", b"100")])

    def send_response(self, stream_id: int, headers: Headers, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.queue_ended:
            try:
                self._connection.send_headers(stream_id, guarded(headers, _mark), end_stream)
            except H2Error:
                return  # over, see Engine
            stream.queue_ended = end_stream
            if end_stream:
                self._end_local(stream_id)

    def send_data(self, stream_id: int, data: bytes | bytearray, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.queue_ended:
            stream.queue_ended = end_stream
            self._outbox.push(stream_id, data, end_stream)

    def queued_bytes(self, stream_id: int) -> int:
        return self._outbox.queued_bytes(stream_id)

    def reset(self, stream_id: int, error_code: int = CANCEL) -> None:
        if stream_id in self._streams:
            _unless_over(self._connection.reset_stream, stream_id, error_code)
            self._forget(stream_id)

    def finish(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return  # both sides have ended it
        if self._outbox.queued_bytes(stream_id):
            self.reset(stream_id, CANCEL)
        else:
            self.acknowledge(stream_id, stream.held)

    def acknowledge(self, stream_id: int, n_bytes: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and stream.held:
            n_bytes = min(n_bytes, stream.held)
            stream.held -= n_bytes
            self._connection.acknowledge_received_data(n_bytes, stream_id)

    def widen(self, stream_id: int, n_bytes: int) -> None:
        if stream_id in self._streams:
            _unless_over(self._connection.increment_flow_control_window, n_bytes, stream_id)

    def ping(self) -> None:
        if not self._is_dead:
            self._connection.ping(PING_DATA)

    def forgive(self) -> None:
        self._connection.n_idle = 0

    def goaway(self, *, is_notice: bool = False) -> None:
        if not self._is_dead:
            self._is_leaving = not is_notice
            self._outbox.goaway(NO_ERROR, is_notice=is_notice)

    def close(self) -> None:
        self._is_dead = True
        self._streams.clear()
        self._outbox.let_go()
        self._connection.let_go()

    def take_output(self, limit: int = MAX_OUTPUT) -> bytes:
        self._n_unanswered = 0
        return self._outbox.take(limit)

    def _on_data(self, event: DataReceived) -> None:
        stream_id = event.stream_id
        stream = self._streams.get(stream_id)
        padding = event.flow_controlled_length - len(event.data)
        if stream is None:
            self._connection.acknowledge_received_data(event.flow_controlled_length, stream_id)
            return
        stream.held += len(event.data)
        if padding:  # counts against the windows but is never given to anybody
            self._connection.acknowledge_received_data(padding, stream_id)
        self._handler.on_data(stream_id, event.data, event.stream_ended is not None)
        if event.stream_ended is not None:
            self._end_remote(stream_id, stream)

    def _on_head(self, event: ResponseReceived | RequestReceived) -> None:
        stream_id = event.stream_id
        if isinstance(event, RequestReceived):
            self._streams[stream_id] = _Stream()
            if self._is_leaving:
                self.reset(stream_id, REFUSED_STREAM)
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if len(event.headers) > self._settings.max_headers:
            self._refuse(stream_id)
            return
        self._handler.on_head(stream_id, event.headers, event.stream_ended is not None)
        if event.stream_ended is not None:
            self._end_remote(stream_id, stream)

    def _on_rare(self, event: Event) -> None:
        handler = self._handler
        if isinstance(event, TrailersReceived):
            self._on_trailers(event.stream_id, event.headers)
        elif isinstance(event, StreamReset):
            if (stream := self._streams.get(event.stream_id)) is not None:
                self._forget(event.stream_id)
                if not (self._client and stream.remote_ended):
                    handler.on_reset(event.stream_id, int(event.error_code), not event.remote_reset)
        elif isinstance(event, InformationalResponseReceived):
            if (stream := self._streams.get(event.stream_id)) is not None:
                stream.n_interim += 1
                if stream.n_interim > MAX_INTERIM:
                    self._refuse(event.stream_id)
        elif isinstance(event, WindowUpdated):
            handler.on_window(event.stream_id)
        elif isinstance(event, RemoteSettingsChanged):
            self.peer_max_streams = self._connection.remote_settings.max_concurrent_streams
            handler.on_settings()
            self._count_unanswered()
        elif isinstance(event, PingReceived):
            self._count_unanswered()
        elif isinstance(event, PingAckReceived):
            handler.on_pong()
        elif isinstance(event, ConnectionTerminated):
            self._on_goaway(event.last_stream_id or 0, int(event.error_code or NO_ERROR))

    def _on_trailers(self, stream_id: int, headers: Sequence[Header]) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        try:
            if self._guard is not None:
                check_trailers(headers)
        except MalformedError:
            self._refuse(stream_id)
            return
        self._handler.on_stream_end(stream_id)
        self._end_remote(stream_id, stream)

    def _on_goaway(self, last_stream_id: int, error_code: int) -> None:
        self._is_leaving = True
        self._handler.on_goaway(last_stream_id, error_code)
        if self._client:
            for stream_id, stream in [*self._streams.items()]:
                # The handler may reset another one from on_reset; of a whole reply it hears nothing more.
                if stream_id > last_stream_id and stream_id in self._streams:
                    self.reset(stream_id, CANCEL)
                    if not stream.remote_ended:
                        self._handler.on_reset(stream_id, REFUSED_STREAM)

    def _refuse(self, stream_id: int) -> None:
        """End a stream on which the peer went over a limit of ours."""
        self.reset(stream_id, PROTOCOL_ERROR)
        self._handler.on_reset(stream_id, PROTOCOL_ERROR, True)

    def _count_unanswered(self) -> None:
        self._n_unanswered += 1
        if self._n_unanswered > _MAX_UNANSWERED:
            self._end(ENHANCE_YOUR_CALM, "the peer sent too many control frames")

    def _end(self, error_code: int, message: str) -> None:
        """End the connection for what the peer did."""
        self._outbox.goaway(error_code)
        self._die(message)

    def _die(self, message: str) -> None:
        self._is_dead = True
        self._streams.clear()
        self._outbox.clear()
        self._connection.let_go()  # a megabyte, if it died of a flood; the last words may take a while
        self._handler.on_fatal(message)

    def _end_local(self, stream_id: int) -> None:
        stream = self._streams[stream_id]
        stream.local_ended = True
        if stream.remote_ended:
            self._forget(stream_id)

    def _end_remote(self, stream_id: int, stream: _Stream) -> None:
        stream.remote_ended = True
        if stream.local_ended and stream_id in self._streams:
            self._forget(stream_id)

    def _forget(self, stream_id: int) -> None:
        """Drop a stream that is over; what it took from the connection's window goes back."""
        self._outbox.drop(stream_id)
        held = self._streams.pop(stream_id).held
        if held:
            self._connection.acknowledge_received_data(held, stream_id)


class _FloodError(ProtocolError):
    """The peer sent too much that brings nothing."""

    error_code = ErrorCodes.ENHANCE_YOUR_CALM


class _UndecodableError(ProtocolError):
    """The peer sent a head that can't be decoded (RFC 9113 §4.3)."""

    error_code = ErrorCodes.COMPRESSION_ERROR


class _FewChangesDecoder(Decoder):
    """HPACK's decoder, which takes as many changes of its table's size in a block as make sense (RFC 7541 §4.2).

    A change is one byte for the peer and a microsecond for us.
    """

    _MAX_CHANGES = 2

    def __init__(self) -> None:
        super().__init__()
        self._n_changes = 0

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        self._n_changes = 0
        return super().decode(data, raw)

    def _update_encoding_context(self, data: bytes | memoryview) -> int:
        self._n_changes += 1
        if self._n_changes > self._MAX_CHANGES:
            raise HPACKDecodingError("the table's size changes too often")
        return super()._update_encoding_context(data)


class WireConnection(H2Connection):
    """h2's connection, which

    - stays open after a GOAWAY, and remembers fewer streams that are over,
    - resets the stream on which a rule was broken, where h2 would end the connection (RFC 9113 §5.4.2, §8.1.1),
    - does not answer what was on its way when a stream was reset,
    - keeps what it read before the connection broke: receive_data() raises nothing, see `fault`,
    - counts frames that bring nothing: n_idle, in a row.
    """

    MAX_CLOSED_STREAMS = 1_000  # 200 bytes each

    def __init__(self, config: H2Configuration, guard: FrameGuard | None = None) -> None:
        """guard: of a server; it is told what goes out."""
        super().__init__(config)
        self.decoder = _FewChangesDecoder()
        self._guard: Final = guard
        self.fault = ""  # not the error: its traceback would keep all of this alive
        self.n_idle = 0
        self._came: list[Event] = []
        self._is_reset = False  # the stream of the frame that is being read has been reset

    def receive_data(self, data: Buffer) -> list[Event]:
        """Return what came, also before a fault."""
        came = self._came = []
        try:
            super().receive_data(data)
        except H2Error as error:
            self.fault = f"{type(error).__name__}: {error}"
        return came

    def let_go(self) -> None:
        """Break the cycle of references in h2, which the garbage collector would find much later."""
        self._frame_dispatch_table.clear()
        self.streams.clear()
        self._came = []

    @property
    def awaits_overlong_frame(self) -> bool:
        """True when a frame has begun that may not be so long; h2 would take all of it (16 MiB) before it says so."""
        length = self.incoming_buffer._data[:3]
        return len(length) == 3 and int.from_bytes(length) > self.max_inbound_frame_size

    def _receive_frame(self, frame: Frame) -> list[Event]:
        stream = self.streams.get(frame.stream_id)
        # What was on its way when a stream was reset is no fault (RFC 9113 §5.1). h2 answers each frame with another
        # RST_STREAM, and servers count those: they take it for a rapid reset attack.
        self._is_reset = (stream is None or stream.closed) and self._stream_is_closed_by_reset(frame.stream_id)
        try:
            events = super()._receive_frame(frame)
        except ProtocolError as error:
            # A client's first HEADERS make the stream on which they break a rule.
            is_known = stream is not None or (self._guard is not None and frame.stream_id in self.streams)
            is_of_stream = is_known and isinstance(frame, HeadersFrame | DataFrame)
            if isinstance(error.__cause__, _UNDECODABLE) and not isinstance(error, DenialOfServiceError):
                raise _UndecodableError(str(error)) from error
            if not is_of_stream or isinstance(error, _OF_THE_CONNECTION):
                raise
            events = [self._reset_after(frame, error.error_code)]
        self._is_reset = False
        self._came += events
        if self._guard is None:
            self._count_idle(frame, events)
        elif self._guard.fault is not None:
            raise _FloodError(self._guard.fault.message)
        return events

    def _reset_after(self, frame: Frame, error_code: int) -> StreamReset:
        """Reset the stream on which `frame` broke a rule. By hand: h2 holds it for closed already."""
        stream_id = frame.stream_id
        machine = self.streams[stream_id].state_machine
        machine.state = StreamState.CLOSED
        machine.stream_closed_by = StreamClosedBy.SEND_RST_STREAM
        self._prepare_for_sending([RstStreamFrame(stream_id, error_code)])
        if isinstance(frame, DataFrame) and frame.flow_controlled_length:
            self.acknowledge_received_data(frame.flow_controlled_length, stream_id)
        event = StreamReset(stream_id=stream_id)
        event.error_code = error_code
        event.remote_reset = False
        return event

    def _count_idle(self, frame: Frame, events: list[Event]) -> None:
        kind = type(frame)
        if kind is DataFrame:
            # For a stream that is over it counts too: what answers it may cost is limited elsewhere.
            brings = bool(cast(DataFrame, frame).data)
        elif kind is WindowUpdateFrame:
            if cast(WindowUpdateFrame, frame).window_increment >= LARGE_UPDATE:
                return
            brings = False
        else:
            brings = (kind is HeadersFrame or kind is RstStreamFrame) and bool(events)  # of a stream that is open
        if brings:
            self.n_idle = 0
            return
        self.n_idle += 1
        if self.n_idle > MAX_IDLE_FRAMES:
            raise _FloodError("too many frames that bring nothing")

    def _prepare_for_sending(self, frames: list[Frame]) -> None:
        if self._is_reset:
            frames = [frame for frame in frames if not isinstance(frame, RstStreamFrame)]
        if self._guard is not None:
            for frame in frames:
                if isinstance(frame, RstStreamFrame):
                    self._guard.sent_reset(frame.stream_id, frame.error_code)
                elif isinstance(frame, DataFrame):
                    self._guard.sent_data()
        super()._prepare_for_sending(frames)

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        # h2 goes to CLOSED here and drops its output: every frame after it would be a protocol error, though
        # the streams up to the last id may finish (RFC 9113 §6.8).
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        return [], [event]


class Outbox:
    """Output of one connection. `on_ended` is called with a stream's id when its last byte has become a frame."""

    def __init__(self, connection: H2Connection, on_ended: Callable[[int], None]) -> None:
        self._connection: Final = connection
        self._on_ended = on_ended
        self._output: Final = bytearray()
        self._queues: Final[dict[int, SendQueue]] = {}  # of streams with something to send

    def __repr__(self) -> str:
        return f"<Outbox output={len(self._output)} queues={len(self._queues)}>"

    @property
    def n_ready(self) -> int:
        """Bytes of frames that wait to be taken."""
        self._collect()
        return len(self._output)

    @property
    def has_output(self) -> bool:
        self._collect()
        return bool(self._output) or any(map(self._can_send, self._queues, self._queues.values()))

    def push(self, stream_id: int, data: bytes | bytearray, ended: bool) -> None:
        """Queue body bytes of a stream that has not ended."""
        queue = self._queues.get(stream_id)
        if queue is None:
            queue = self._queues[stream_id] = SendQueue()
        queue.push(data, ended)

    def queued_bytes(self, stream_id: int) -> int:
        """Return the body bytes of a stream that no frame carries yet."""
        queue = self._queues.get(stream_id)
        return 0 if queue is None else queue.n_bytes

    def drop(self, stream_id: int) -> None:
        """Forget what a stream still wanted to send."""
        self._queues.pop(stream_id, None)

    def clear(self) -> None:
        """Forget what any stream still wanted to send; frames that are made stay."""
        self._collect()
        self._queues.clear()

    def let_go(self) -> None:
        """Break the cycle of references with the engine."""
        self._queues.clear()
        self._on_ended = _nobody

    def goaway(self, error_code: int, *, is_notice: bool = False) -> None:
        """Queue a GOAWAY. By hand: after h2's close_connection() open streams could send nothing more."""
        self._collect()
        last = MAX_WINDOW if is_notice else self._connection.highest_inbound_stream_id
        self._output.extend(GoAwayFrame(0, last, error_code).serialize())

    def take(self, limit: int) -> bytes:
        """Return and forget at most `limit` bytes."""
        output = self._output
        self._collect()
        # A frame of each stream that may send, again and again: so a large body holds nobody up.
        is_moving = True
        while is_moving and len(output) < limit:
            is_moving = False
            for stream_id, queue in [*self._queues.items()]:
                if len(output) < limit and self._can_send(stream_id, queue):
                    self._send_frame(stream_id, queue)
                    is_moving = True
        taken = bytes(memoryview(output)[:limit])
        del output[:limit]
        return taken

    def _can_send(self, stream_id: int, queue: SendQueue) -> bool:
        try:
            window = self._connection.local_flow_control_window(stream_id)
        except H2Error:
            return False  # reset by the peer in this read: the event that drops the queue is on its way
        # An empty frame, which only ends the stream, needs no window (RFC 9113 §6.9.1).
        return window > 0 or not queue.n_bytes

    def _send_frame(self, stream_id: int, queue: SendQueue) -> None:
        connection = self._connection
        piece = b""
        if queue.n_bytes:
            window = connection.local_flow_control_window(stream_id)
            piece = queue.take(min(window, connection.max_outbound_frame_size))
        is_empty = not queue.n_bytes
        is_last = is_empty and queue.ended
        try:
            connection.send_data(stream_id, piece, is_last)
        except H2Error:
            del self._queues[stream_id]  # reset, as above
            return
        self._collect()
        if is_empty:
            del self._queues[stream_id]
        if is_last:
            self._on_ended(stream_id)

    def _collect(self) -> None:
        self._output.extend(self._connection.data_to_send())


def _unless_over(call: Callable[..., Any], *args: Any) -> None:
    """Call a verb of h2, which raises when the stream or the connection is over; see Engine."""
    try:
        call(*args)
    except H2Error:
        pass


def _nobody(stream_id: int) -> None:
    """Hear nothing."""
