"""One client's HTTP/2 connection: many requests side by side.

Knows: which stream belongs to which request, when to read and to write, when the connection has served long enough, how
it ends. Does not know: frames (protocol/http2.py), one request and its reply (client/http2_stream.py), or what they
mean (gateway/, behind application.py).

    reading     stops while the client takes nothing of what is written: answers to PING count like replies (R-H2-6)
    writing     once a turn of the loop, for all streams that have something to say in it
    slowness    of one stream is a matter of its window and holds up only that stream's upstream; of the connection, of
                TCP: then nobody is written to, and who has 64 KiB waiting is held up; all are when they fill the room
                that they have together (client/http2_room.py)
    leaving     two GOAWAY: a first one that names no stream, and after a round trip, in which requests that were on
                their way have come, one that names the last (RFC 9113 §6.8)
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from velox.net.client.backlog import Backlog, unsent_bytes
from velox.net.client.http2_contained import ContainedStream
from velox.net.client.http2_room import ReplyRoom
from velox.net.client.http2_stream import ClientHttp2Stream
from velox.protocol.http2 import INGRESS_SETTINGS, REFUSED_STREAM, Engine, EngineFactory
from velox.types import Header

if TYPE_CHECKING:  # an ingress makes its connections
    from velox.net.client.ingress import Ingress

__all__ = ["ClientHttp2Connection"]

# R-H2-8: state that grows with a connection's age, here or in a client, ends with it.
_MAX_STREAMS: Final = 10_000
_MAX_AGE_S: Final = 3600.0
# How long an answer to our PING is waited for before the last stream is named: a round trip, or a client that does not
# read between two requests.
_ROUND_TRIP_S: Final = 0.5
# After our end the client's is waited for, as over HTTP/1.1: a reset could overtake what was said last.
_LINGER_S: Final = 2.0
# One write's worth: it bounds a turn of the loop, and what lies in the transport above its own 64 KiB.
_SLICE_BYTES: Final = 64 * 1024


class _State(enum.IntEnum):
    NEW = 0  # no request has come yet
    OPEN = 1
    NOTICED = 2  # the client has been told to open no more streams, but may not have heard of it
    LEAVING = 3  # later streams than the last one that was named are not taken
    LINGER = 4  # all is said; what still comes is thrown away
    CLOSED = 5


class ClientHttp2Connection(asyncio.Protocol):
    """The connection; also the handler of its engine's events."""

    def __init__(self, ingress: Ingress, make_engine: EngineFactory) -> None:
        self.deadline_s = 0.0  # loop time, the first of all there are; 0: none
        self.ingress: Final = ingress
        self.engine: Engine = make_engine(self, INGRESS_SETTINGS, False)
        self.is_write_paused = False
        self._transport: asyncio.Transport | None = None
        self._state = _State.NEW
        self._streams: dict[int, ClientHttp2Stream] = {}
        self._touched: list[ClientHttp2Stream] = []  # to look at after the next write
        self.room: Final = ReplyRoom()
        self._waiting: dict[int, ClientHttp2Stream] = {}  # whose replies the client has not taken whole
        self._may_move = False  # those that wait may have been given a window
        self._n_begun = 0
        self._retire_s = 0.0
        self._due_s = 0.0  # loop time: of the state; 0: none
        self._write_due_s = 0.0  # while writing is paused
        self._backlog: Final = Backlog(ingress.least_taken_bytes)
        self._flush_queued = False
        self._client_leaves = False
        self._is_over = False  # close as soon as all is written
        self._may_linger = False  # and then wait for the client's end: it has replies to read, or a reason
        self._is_fatal = False  # the client gets our last word, if it takes that at once, and nothing else
        self._address = ""
        self._is_refused = False  # there are too many connections

    def __repr__(self) -> str:
        return f"<ClientHttp2Connection {self._state.name} streams={len(self._streams)} begun={self._n_begun}>"

    # -- for the ingress ------------------------------------------------------------------------------

    def close_if_idle(self) -> None:
        """Draining: tell the client, let run what has begun, then close."""
        self._leave()

    def abort(self) -> None:
        """Close now; replies that run are cut."""
        if self._transport is not None:
            self._transport.abort()

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 when there is none any more."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def left(self) -> None:
        """The client has closed, which was seen though nothing is read from it."""
        self.abort()

    def on_deadline(self) -> None:
        """See who is late: the connection, or one of its streams."""
        now_s = self.ingress.loop.time()
        if self._write_due_s and now_s >= self._write_due_s:
            self._on_write_due()
        if self._due_s and now_s >= self._due_s:
            self._on_due()
        for stream in tuple(self._streams.values()):
            if stream.deadline_s and now_s >= stream.deadline_s:
                stream.on_deadline(now_s)
        deadlines = [stream.deadline_s for stream in self._streams.values()]
        deadlines += self._due_s, self._write_due_s
        self.deadline_s = min(filter(None, deadlines), default=0.0)

    # -- for the streams --------------------------------------------------------------------------------

    def touch(self, stream: ClientHttp2Stream) -> None:
        """A stream has something to say; it leaves at the end of this turn of the loop, with its neighbours'."""
        if not stream.is_touched:
            stream.is_touched = True
            self._touched.append(stream)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Write what the engine has, in the next turn of the loop."""
        if not self._flush_queued and self._transport is not None:
            self._flush_queued = True
            self.ingress.loop.call_soon(self._flush)

    def held_more(self, n_bytes: int) -> None:
        """A stream holds so much more, or less, of its reply."""
        if self.room.add(n_bytes):  # all are held now: until the next write each of a hundred may bring 128 KiB
            for stream in tuple(self._streams.values()):
                stream.pause()

    def watch(self, deadline_s: float) -> None:
        """Call on_deadline() by then."""
        if not self.deadline_s or deadline_s < self.deadline_s:
            self.deadline_s = deadline_s

    def forget(self, stream: ClientHttp2Stream) -> None:
        """A stream is over."""
        self._waiting.pop(stream.id, None)
        if self._streams.pop(stream.id, None) is not None and not self._streams:
            self._on_idle()

    # -- asyncio.Protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        ingress = self.ingress
        now_s = ingress.loop.time()
        ingress.connections.add(self)
        ingress.n_http2 += 1
        self._retire_s = now_s + _MAX_AGE_S
        self.engine.start()
        self._set_due(now_s + ingress.timeouts.header_s)
        self._address, refusal = ingress.door.enter(transport.get_extra_info("peername"))
        if refusal is not None:
            # Nothing of it was processed, says GOAWAY: the client may go elsewhere at once.
            self._is_refused = True
            self._may_linger = ingress.door.may_linger
            self._end()
        elif ingress.draining:
            self._leave()
        self.flush_soon()

    def data_received(self, data: bytes) -> None:
        if self._state < _State.LINGER:
            self.engine.receive(data, self.ingress.loop.time())
            # Acknowledgements and answers to PING leave with whatever else this turn of the loop sends.
            self.flush_soon()

    def eof_received(self) -> bool:
        # A client that closes its sending side is taken to have left, as over HTTP/1.1 (R-CANCEL-1); streams have an
        # end of their own for a request that is whole.
        if self._streams:
            self.abort()
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self._state = _State.CLOSED
        self._due_s = self._write_due_s = 0.0
        ingress = self.ingress
        ingress.connections.discard(self)
        ingress.paused.discard(self)
        ingress.n_http2 -= 1
        ingress.door.leave(self._address, was_refused=self._is_refused)
        self._give_up_all()
        # Breaks the cycle with the engine; not at once, because it may be in the middle of a read.
        ingress.loop.call_soon(self._drop_engine)

    def pause_writing(self) -> None:
        self.is_write_paused = True
        transport = self._transport
        if transport is not None:
            self._backlog.begin(transport)
            transport.pause_reading()
            self.ingress.paused.add(self)
        self._write_due_s = self.ingress.loop.time() + self.ingress.timeouts.write_s
        self.watch(self._write_due_s)

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._write_due_s = 0.0
        self.ingress.paused.discard(self)
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
        self._may_move = True
        self.flush_soon()

    # -- EngineHandler ----------------------------------------------------------------------------------

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        if self._state >= _State.LEAVING:
            return  # above the last stream that was named
        self._n_begun += 1
        if self.room.is_full:
            self.engine.reset(stream_id, REFUSED_STREAM)  # nothing of it was processed: it may be sent again
            return
        if self._state is _State.NEW:
            self._state = _State.OPEN
        if not self._streams:
            self._set_due(self._retire_s if self._state is _State.OPEN else self._due_s)
        stream = self._streams[stream_id] = ContainedStream(self, stream_id)
        stream.on_head(headers, end_stream=end_stream)
        if self._n_begun >= _MAX_STREAMS:
            self._leave()

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:  # else it has been reset, and the engine gives back what it takes of the window
            stream.on_data(data, end_stream)

    def on_stream_end(self, stream_id: int) -> None:
        self.on_data(stream_id, b"", True)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            # Before the next frame is read: its work ends before another stream's is admitted (R-H2-4).
            stream.gone()

    def on_goaway(self, last_stream_id: int, error_code: int) -> None:
        self._client_leaves = True
        if not self._streams:
            self._end()

    def on_settings(self) -> None:
        self._may_move = True

    def on_window(self, stream_id: int) -> None:
        self._may_move = True

    def on_pong(self) -> None:
        # A client that has not asked yet, and may be about to, has the time that it has over HTTP/1.1.
        if self._state is _State.NOTICED and self._n_begun:
            self._name_last()

    def on_fatal(self, message: str) -> None:
        self._give_up_all()
        self._is_fatal = self._is_over = self._may_linger = True
        self._set_due(self.ingress.loop.time() + _LINGER_S)  # it may not even take our last word
        self.flush_soon()

    # -- writing ------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write a slice of what the engine has, then look at the streams for which that may change something."""
        self._flush_queued = False
        transport = self._transport
        if transport is None or self._state >= _State.LINGER:
            return
        engine = self.engine
        if not self.is_write_paused and engine.has_output:
            transport.write(engine.take_output(_SLICE_BYTES))
        has_said_all = not engine.has_output
        touched, self._touched = self._touched, []
        for stream in touched:
            stream.is_touched = False
            if self._streams.get(stream.id) is stream:
                self._settle(stream, has_said_all=has_said_all)
        if self._may_move and self._waiting:
            for stream in tuple(self._waiting.values()):
                self._settle(stream, has_said_all=has_said_all)
        if self.room.reopens():
            for stream in tuple(self._streams.values()):  # also those that have nothing waiting
                self._settle(stream, has_said_all=has_said_all)
        self._may_move = not has_said_all
        if self.is_write_paused:
            return  # resume_writing() comes back here
        if engine.has_output:  # also what the streams have just said
            self.flush_soon()
        elif self._is_over:
            self._close()

    def _settle(self, stream: ClientHttp2Stream, *, has_said_all: bool) -> None:
        if stream.settle(has_said_all=has_said_all):
            self._waiting[stream.id] = stream
        else:
            self._waiting.pop(stream.id, None)

    # -- ends ---------------------------------------------------------------------------------------------

    def _set_due(self, due_s: float) -> None:
        self._due_s = due_s
        if due_s:
            self.watch(due_s)

    def _on_idle(self) -> None:
        """The last stream has ended."""
        if self._transport is None or self._is_over:
            return
        if self._state is _State.LEAVING or self._client_leaves:
            self._end()
        elif self._state is _State.OPEN:
            idle_s = self.ingress.loop.time() + self.ingress.timeouts.keepalive_s
            self._set_due(min(idle_s, self._retire_s))

    def _on_due(self) -> None:
        state, self._due_s, transport = self._state, 0.0, self._transport
        if state is _State.NOTICED:
            self._name_last()
        elif state is _State.LINGER and self._write_due_s and transport is not None and unsent_bytes(transport):
            self._set_due(self.ingress.loop.time() + _LINGER_S)  # it has not all of its replies yet
        elif state >= _State.LINGER or self._is_over:
            self.abort()
        elif self._streams:
            self._leave()
        else:
            self._end()

    def _on_write_due(self) -> None:
        """The client takes nothing of what is written, or too little."""
        if self._transport is not None and self._backlog.is_taken(self._transport):
            self._write_due_s = self.ingress.loop.time() + self.ingress.timeouts.write_s
            return
        self._write_due_s = 0.0
        self._give_up_all(stalled=True)
        self.abort()

    def _leave(self) -> None:
        """Take no more streams but those that are on their way, and close after the last one."""
        if self._state < _State.NOTICED and not self._is_over:
            self._state = _State.NOTICED
            self.engine.goaway(is_notice=True)
            self.engine.ping()
            self._set_due(self.ingress.loop.time() + _ROUND_TRIP_S)
            self.flush_soon()

    def _name_last(self) -> None:
        self._state = _State.LEAVING
        self._due_s = 0.0
        self.engine.goaway()
        self._may_linger = bool(self._streams)
        self._is_over = not self._streams
        self.flush_soon()

    def _end(self) -> None:
        """Close a connection without streams."""
        if self._state < _State.LEAVING:
            self._state = _State.LEAVING
            self.engine.goaway()
        self._due_s = 0.0
        self._is_over = True
        self.flush_soon()

    def _close(self) -> None:
        """Close, now that all is said: our side first, then the client's (see _LINGER_S)."""
        transport = self._transport
        if transport is None or self._state >= _State.LINGER:
            return
        self._state = _State.LINGER
        if self._may_linger and transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()
        now_s = self.ingress.loop.time()
        if not self._is_fatal:
            self._backlog.begin(transport)
            self._write_due_s = now_s + self.ingress.timeouts.write_s  # what it has not taken is timed as before
        self._set_due(now_s + _LINGER_S)

    def _give_up_all(self, *, stalled: bool = False) -> None:
        streams, self._streams = self._streams, {}
        self._waiting.clear()
        for stream in streams.values():
            stream.gone(stalled=stalled)

    def _drop_engine(self) -> None:
        self.engine.close()
        del self.engine
