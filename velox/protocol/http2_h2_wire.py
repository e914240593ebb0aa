"""What h2 needs beside it to speak on a wire: rules it is too strict or too lax about, and an outbox for bodies.

Knows: h2's frames, its windows, and whose turn it is to send. Does not know: what an event or a stream means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event, StreamReset
from h2.exceptions import DenialOfServiceError, FlowControlError, H2Error, ProtocolError, TooManyStreamsError
from h2.stream import StreamClosedBy, StreamState
from hpack import Decoder, HeaderTuple, HPACKDecodingError, HPACKError
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame, WindowUpdateFrame

from velox.protocol.http2 import LARGE_UPDATE, MAX_IDLE_FRAMES, MAX_WINDOW, SendQueue
from velox.protocol.http2_guard import FrameGuard

if TYPE_CHECKING:  # not installed with h2
    from typing_extensions import Buffer

__all__ = ["Outbox", "WireConnection"]


# What h2 raises for a head that can't be decoded. After that no head of the connection can (RFC 9113 §4.3).
_UNDECODABLE: Final = (HPACKError, IndexError, TypeError, UnicodeDecodeError)
# Rules of the connection, whichever frame breaks them. A stream's own window may end either (RFC 9113 §6.9.1).
_OF_THE_CONNECTION: Final = (DenialOfServiceError, FlowControlError, TooManyStreamsError)


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

    def push(self, stream_id: int, data: bytes, ended: bool) -> None:
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


def _nobody(stream_id: int) -> None:
    """Hear nothing."""
