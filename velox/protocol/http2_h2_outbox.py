"""What an h2 connection has to write: its own frames, and bodies cut to frames as the peer's windows allow.

Knows: h2's windows and frame size, and whose turn it is. Does not know: events, what a stream means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from h2.connection import H2Connection
from hyperframe.frame import GoAwayFrame

from velox.protocol.http2 import SendQueue

__all__ = ["Outbox"]


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
        # An empty frame, which only ends the stream, needs no window (RFC 9113 §6.9.1).
        return not queue.n_bytes or self._connection.local_flow_control_window(stream_id) > 0

    def _send_frame(self, stream_id: int, queue: SendQueue) -> None:
        connection = self._connection
        piece = b""
        if queue.n_bytes:
            window = connection.local_flow_control_window(stream_id)
            piece = queue.take(min(window, connection.max_outbound_frame_size))
        is_empty = not queue.n_bytes
        is_last = is_empty and queue.ended
        connection.send_data(stream_id, piece, is_last)
        self._collect()
        if is_empty:
            del self._queues[stream_id]
        if is_last:
            self._on_ended(stream_id)

    def _collect(self) -> None:
        self._output.extend(self._connection.data_to_send())
