"""Bodies on their way into ngh2: small ones at once, large ones slice by slice so that all streams take turns.

Knows: how much of a stream ngh2 holds. Does not know: windows (ngh2 does), what a stream means.

ngh2 sends all that it holds of one stream before it looks at the next: with a large upload inside it, every small
request behind would wait. It keeps a reference to what it is given, so that only the slices are ever copied.
"""

from __future__ import annotations

from typing import Final

from ngh2 import Connection, NGH2Error

from velox.protocol.http2 import SendQueue

__all__ = ["Outbox"]

# A stream's turn when several have much to send.
_SLICE: Final = 64 << 10
# What ngh2 is given of a stream that may not send: it is a copy, and want_write needs something to speak for.
_WAITING: Final = 1 << 10
# What a stream that sends small pieces may have in ngh2 before the rest waits here.
_MAX_INSIDE: Final = 256 << 10
_UPDATE: Final = 13  # a WINDOW_UPDATE (RFC 9113 §4.1, §6.9)


class Outbox:
    """Body bytes of one connection's streams."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self.waiting: Final[dict[int, SendQueue]] = {}  # what ngh2 does not hold yet, by stream
        self._to_widen: Final[dict[int, int]] = {}  # by how much, by stream

    def __repr__(self) -> str:
        return f"<Outbox waiting={len(self.waiting)}>"

    def push(self, stream_id: int, data: bytes, ended: bool) -> None:
        """Queue body bytes of a stream."""
        connection = self._connection
        queue = self.waiting.get(stream_id)
        if queue is None:
            if len(data) <= _SLICE and connection.queued_body_size(stream_id) <= _MAX_INSIDE - _SLICE:
                try:
                    connection.send_data(stream_id, data, end_stream=ended)
                except NGH2Error:
                    pass  # over, see Engine
                return
            queue = self.waiting[stream_id] = SendQueue()
        queue.push(data, ended)
        self._feed(stream_id, queue)

    def queued_bytes(self, stream_id: int) -> int:
        """Return the body bytes of a stream that are not serialised yet."""
        queue = self.waiting.get(stream_id)
        inside = self._connection.queued_body_size(stream_id)
        return inside if queue is None else inside + queue.n_bytes

    def take(self, limit: int) -> bytes:
        """Return at most `limit` bytes of the connection's output, the streams taking turns."""
        output = self._take_turns(limit) if self.waiting else self._connection.data_to_send(limit)
        return output + self._widen_all() if self._to_widen else output

    def widen(self, stream_id: int, n_bytes: int) -> None:
        """Open a stream's window by so much as soon as its head is serialised: before, ngh2 knows no stream."""
        self._to_widen[stream_id] = n_bytes

    def forget(self, stream_id: int) -> None:
        """Drop what a stream still wanted."""
        self.waiting.pop(stream_id, None)
        self._to_widen.pop(stream_id, None)

    def clear(self) -> None:
        """Drop what any stream still wanted."""
        self.waiting.clear()
        self._to_widen.clear()

    def _widen_all(self) -> bytes:
        connection = self._connection
        n_widened = 0
        for stream_id, n_bytes in [*self._to_widen.items()]:
            try:
                window = connection.stream_local_window_size(stream_id) + n_bytes
                connection.set_local_window_size(window, stream_id=stream_id)
            except NGH2Error:
                continue  # its head has found no room yet
            del self._to_widen[stream_id]
            n_widened += 1
        return connection.data_to_send(n_widened * _UPDATE) if n_widened else b""

    def _take_turns(self, limit: int) -> bytes:
        parts = []
        room = limit
        while room > 0:
            self._feed_all()
            part = self._connection.data_to_send(room)
            if not part:
                break
            parts.append(part)
            room -= len(part)
        # Whoever still waits has a slice in ngh2 from here on, so that its want_write speaks for all.
        self._feed_all()
        return b"".join(parts)

    def _feed_all(self) -> None:
        for stream_id, queue in [*self.waiting.items()]:
            self._feed(stream_id, queue)

    def _feed(self, stream_id: int, queue: SendQueue) -> None:
        """Give ngh2 the stream's next slice if it has sent the last one."""
        if self._connection.queued_body_size(stream_id) == 0:
            piece = queue.take(min(_SLICE, max(self._window(stream_id), _WAITING)))
            is_last = queue.n_bytes == 0
            if is_last:
                del self.waiting[stream_id]
            try:
                self._connection.send_data(stream_id, piece, end_stream=is_last and queue.ended)
            except NGH2Error:
                pass  # over, see Engine

    def _window(self, stream_id: int) -> int:
        """Return how many bytes the peer takes of a stream now."""
        connection = self._connection
        try:
            return min(connection.stream_remote_window_size(stream_id), connection.remote_window_size)
        except NGH2Error:
            return 0  # over, see Engine
