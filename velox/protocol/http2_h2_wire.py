"""What h2 needs beside it to speak on a wire: rules it is too strict or too lax about, and an outbox for bodies.

Knows: h2's frames, its windows, and whose turn it is to send. Does not know: what an event or a stream means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event
from h2.exceptions import H2Error
from hyperframe.frame import Frame, GoAwayFrame

from velox.protocol.http2 import SendQueue

__all__ = ["Outbox", "WireConnection"]


class WireConnection(H2Connection):
    """h2's connection, which stays open after a GOAWAY and remembers fewer streams that are over."""

    MAX_CLOSED_STREAMS = 1_000  # 200 bytes each

    @property
    def awaits_overlong_frame(self) -> bool:
        """True when a frame has begun that may not be so long; h2 would take all of it (16 MiB) before it says so."""
        length = self.incoming_buffer._data[:3]
        return len(length) == 3 and int.from_bytes(length) > self.max_inbound_frame_size

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
        self._on_ended: Final = on_ended
        self._output: Final = bytearray()
        self._queues: Final[dict[int, SendQueue]] = {}  # of streams with something to send

    def __repr__(self) -> str:
        return f"<Outbox output={len(self._output)} queues={len(self._queues)}>"

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

    def goaway(self, error_code: int) -> None:
        """Queue a GOAWAY. By hand: after h2's close_connection() open streams could send nothing more."""
        self._collect()
        last = self._connection.highest_inbound_stream_id
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
