"""One client connection of the simulator that speaks HTTP/2.

Knows: transport, streams, when the engine's output may be written. Does not know: frames, routes, pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from velox.heads import Header
from velox.protocol.http2.engine import INTERNAL_ERROR, Engine, EngineSettings
from velox.protocol.http2.engines import engine_factory
from velox_sim.backend import Backend, Player
from velox_sim.shapes import RefusalError, Reply, Streamed

__all__ = ["Http2Connection"]

# An answer is held while this many of its bytes wait for the client's window.
_MAX_QUEUED_BYTES: Final = 65_536
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024  # as over HTTP/1.1
# Twice what Velox opens on a connection: under load the client's own limit is measured, not this one.
_SETTINGS: Final = EngineSettings(max_streams_local=1024)


class _Stream:
    """One exchange: the request as it comes in, then the outlet of its reply."""

    __slots__ = ("_connection", "_fields", "_has_begun", "_n_body", "_parts", "id", "player")

    def __init__(self, connection: Http2Connection, stream_id: int, headers: Sequence[Header]) -> None:
        self._connection: Final = connection
        self.id: Final = stream_id
        self._fields: Final = dict(headers)
        self._parts: Final[list[bytes]] = []
        self._n_body = 0
        self._has_begun = False
        self.player: Player | None = None

    def receive(self, piece: bytes) -> bool:
        """Keep body bytes; False when there are more than the simulator takes."""
        self._n_body += len(piece)
        self._parts.append(piece)
        return self._n_body <= _MAX_BODY_BYTES

    def answer(self, backend: Backend) -> None:
        """Answer the request, which is whole."""
        body = b"".join(self._parts)
        self._parts.clear()
        player = backend.answer(self, self._fields[b":method"], self._fields.get(b":path", b""), body)
        if player is None:
            self._connection.cut(self)
        else:
            self._play(player)

    def refuse(self, backend: Backend, refusal: RefusalError) -> None:
        """Answer before the request is whole."""
        self._parts.clear()
        self._play(backend.player(self, backend.app.refuse(refusal)))

    def stop(self) -> None:
        """Send nothing more."""
        if self.player is not None:
            self.player.stop()

    def send(self, reply: Reply, piece: bytes, *, last: bool) -> bool:
        """Queue body bytes (see Outlet)."""
        engine = self._connection.engine
        is_bare = self._fields[b":method"] == b"HEAD" or (last and not piece and not self._has_begun)
        if not self._has_begun:
            self._has_begun = True
            headers = [(b":status", b"%d" % reply.status), *reply.headers]
            if not isinstance(reply, Streamed):
                headers.append((b"content-length", b"%d" % len(reply.body)))
            engine.send_response(self.id, headers, is_bare)
        if not is_bare:
            engine.send_data(self.id, piece, last)
        return self._connection.sent(self, last=last)

    def has_room(self) -> bool:
        """Return True while the client's window lets enough through."""
        return self._connection.engine.queued_bytes(self.id) < _MAX_QUEUED_BYTES

    def is_sent(self) -> bool:
        """Return True when nothing waits for the client's window."""
        return self._connection.engine.queued_bytes(self.id) == 0

    def _play(self, player: Player) -> None:
        self.player = player
        player.start()


class Http2Connection(asyncio.Protocol):
    """Answers the streams of one connection side by side. It is the engine's handler too."""

    def __init__(self, backend: Backend) -> None:
        self._backend: Final = backend
        self._loop: Final = asyncio.get_running_loop()
        self.engine: Final[Engine] = engine_factory("ngh2")(self, _SETTINGS, False)
        self._streams: Final[dict[int, _Stream]] = {}
        self._held: Final[dict[_Stream, None]] = {}  # answers without room, first held first
        self._ending: Final[dict[int, _Stream]] = {}  # answers given whole to the engine
        self._is_full = False
        self._is_flush_due = False
        self._is_leaving = False
        self._is_broken = False
        self._transport: asyncio.Transport

    def __repr__(self) -> str:
        n_streams, n_held = len(self._streams), len(self._held)
        return f"<Http2Connection streams={n_streams} held={n_held} leaving={self._is_leaving}>"

    @property
    def n_running(self) -> int:
        """Return how many answers are being played."""
        return sum(stream.player is not None for stream in self._streams.values())

    @property
    def n_queued_bytes(self) -> int:
        """Return the bytes that wait in the engine and in the transport."""
        in_engine = sum(self.engine.queued_bytes(stream_id) for stream_id in self._streams)
        return in_engine + self._transport.get_write_buffer_size()

    def leave(self) -> None:
        """Send GOAWAY; close when the streams that the client has opened by now have ended."""
        if not self._is_leaving:
            self._is_leaving = True
            self.engine.goaway()
        self._flush()

    def abort(self) -> None:
        """Close at once; running answers are cut."""
        self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.engine.start()
        self._backend.enter(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._is_flush_due = True  # below, once for all that the data leads to
        self.engine.receive(data)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._backend.exit(self)
        for stream in self._streams.values():
            stream.stop()
        self._streams.clear()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._flush()

    # What the engine calls.

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        self._streams[stream_id] = _Stream(self, stream_id, headers)
        if end_stream:
            self.on_stream_end(stream_id)

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        self.engine.acknowledge(stream_id, len(data))
        stream = self._streams.get(stream_id)
        if stream is None or stream.player is not None:
            return  # the rest of a request that was refused
        if not stream.receive(data):
            stream.refuse(self._backend, RefusalError(413, f"the body is over {_MAX_BODY_BYTES} bytes"))
        elif end_stream:
            stream.answer(self._backend)

    def on_stream_end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None and stream.player is None:
            stream.answer(self._backend)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._held.pop(stream, None)
            self._ending.pop(stream_id, None)
            stream.stop()
            self._backend.n_cancelled += stream.player is not None

    def on_goaway(self, last_stream_id: int, error_code: int) -> None:
        self._is_leaving = True

    def on_settings(self) -> None:
        """Nothing to do: the flush after receive() sees what a new window lets through."""

    def on_window(self, stream_id: int) -> None:
        """Nothing to do, as with on_settings."""

    def on_pong(self) -> None:
        """Nothing to do: no ping is sent."""

    def on_fatal(self, message: str) -> None:
        self._is_broken = True

    # What the streams call.

    def cut(self, stream: _Stream) -> None:
        """Reset a stream that gets no answer; the others go on."""
        del self._streams[stream.id]
        self.engine.reset(stream.id, INTERNAL_ERROR)

    def sent(self, stream: _Stream, *, last: bool) -> bool:
        """Take note of bytes that a stream gave to the engine; False when it has to wait for resume()."""
        if not self._is_flush_due:
            # One write a loop turn for all streams that have something to say in it.
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        if last:
            self._ending[stream.id] = stream
            return True
        has_room = not self._is_full and stream.has_room()
        if not has_room:
            self._held[stream] = None
        return has_room

    def _flush(self) -> None:
        """Write what may be written, then let held answers go on and forget those that are out."""
        self._is_flush_due = False
        if self._transport.is_closing():
            return
        while not self._is_full and self.engine.has_output and (output := self.engine.take_output()):
            self._transport.write(output)
        for stream_id in [stream_id for stream_id, stream in self._ending.items() if stream.is_sent()]:
            del self._ending[stream_id]
            del self._streams[stream_id]
        if self._held and not self._is_full:
            for stream in [stream for stream in self._held if stream.has_room()]:
                del self._held[stream]
                if stream.player is not None:
                    stream.player.resume()
        if self._is_broken or (self._is_leaving and not self._streams):
            self._transport.close()
