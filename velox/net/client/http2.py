"""One client's HTTP/2 connection: many requests side by side.

Knows: which stream belongs to which request, the room for its body, what its client has not taken of the reply, when to
read and to write, all timers, how the connection ends. Does not know: frames (protocol/http2/engine.py), or what a
request means (gateway/, behind application.py).

    reading     stops while the client takes nothing of what is written: answers to PING count like replies.
                One read may have a thousand frames, and each may be a request: all connections share a millisecond
                of each turn of the loop (net/turn_budget.py), and what is left of a read waits in line
    writing     once a turn of the loop, for all streams that have something to send in it
    slowness    of one stream is a matter of its window and holds up only that stream's upstream; of the connection, of
                TCP: then nothing is written, and each stream with 64 KiB waiting is held up; all are when they fill the
                buffer that they share (client/reply_buffer_budget.py)
    leaving     two GOAWAY: a first one that names no stream, and after a round trip, in which requests that were on
                their way have come, one that names the last (RFC 9113 §6.8)
    bugs        an error that is raised in the code of one stream is recorded and ends that stream with
                RST_STREAM(INTERNAL_ERROR): its client can't know what became of the request. The others go on
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from typing import Final

from velox.errors import Reason, VeloxError
from velox.heads import Header, Headers, RequestHead
from velox.net.application import ClientExchange, PairsOnly, Successor
from velox.net.client.backlog import unsent_bytes
from velox.net.client.body_budget import FIRST_BYTES
from velox.net.client.connection import ClientConnection
from velox.net.client.ingress_state import LINGER_S, IngressState
from velox.net.client.refusals import body_too_late, body_too_slow, foreign_host, no_room, no_room_in_time
from velox.net.client.reply_buffer_budget import ReplyBufferBudget, held_bytes
from velox.policy.pace import Pace
from velox.protocol.http1.write import check_unsplit
from velox.protocol.http2 import engine as http2
from velox.protocol.http2.engine import Engine, EngineFactory
from velox.protocol.http2.request_head import MalformedError
from velox.types import ANYONE

__all__ = ["ClientHttp2Connection"]

# State that grows with a connection's age, here or in a client, ends with it.
_MAX_STREAMS: Final = 10_000
_MAX_AGE_S: Final = 3600.0
# How long an answer to our PING is waited for before the last stream is named: a round trip, or a client that does not
# read between two requests.
_ROUND_TRIP_S: Final = 0.5
# One write's worth: it bounds a turn of the loop, and what lies in the transport above its own 64 KiB.
_SLICE_BYTES: Final = 64 * 1024
# What is read at once while there is time, then twice as much each time: twenty small requests, or a part of a body.
_FIRST_READ_BYTES: Final = 1024
# Between two looks at how much of it is queued: more than one read of an upstream's reply, so that looking is seldom.
_MOST_AT_ONCE: Final = 128 * 1024


class _StreamState(enum.IntEnum):
    WAITING = 0  # for room in the body budget; what has come is not acknowledged
    BODY = 1
    ANSWERING = 2
    ENDED = 3  # all of the reply is given to the engine; the client has not taken it yet
    GONE = 4


_WAITING, _BODY, _ANSWERING, _ENDED, _GONE = _StreamState  # an enumeration's attribute takes 50 ns


class ClientHttp2Stream(PairsOnly):
    """One request and its reply: the Client of one exchange.

    A stream has two halves. The request ends it when it has come whole, or is refused with an answer and then
    RST_STREAM(NO_ERROR) (RFC 9113 §8.1). The reply ends it with END_STREAM; a reply that is not whole with
    RST_STREAM(INTERNAL_ERROR), which no client can take for an end. The stream stays known here, and
    timed, until the client has taken the whole reply.

    deadline_s: loop time, by when something must have moved; 0: nothing is waited for.
    """

    chunk_writer: Final = None  # chunks are HTTP/1.1's
    __slots__ = (
        *("_body", "_caller", "_connection", "_error_code", "_exchange", "_has_whole_request", "_head", "_held_bytes"),
        *(
            "_is_malformed",
            "_is_to_head",
            "_lacks_room",
            "_n_empty",
            "_n_given",
            "_n_held",
            "_n_mark",
            "_n_received",
            "_n_settled",
        ),
        *("_pace", "_state", "deadline_s", "id", "is_write_paused", "may_run_ahead"),
    )

    def __init__(self, connection: ClientHttp2Connection, stream_id: int) -> None:
        self.id: Final = stream_id
        self.deadline_s = 0.0
        self.is_write_paused = False
        self.may_run_ahead = False
        self._connection: Final = connection
        self._state = _BODY
        self._head: RequestHead | None = None
        self._caller = ANYONE
        self._body: bytes | bytearray | None = None
        self._pace: Pace | None = None
        self._exchange: ClientExchange | None = None
        self._held_bytes = 0  # taken from the body budget
        self._n_received = 0
        self._has_whole_request = False
        self._is_malformed = False
        self._is_to_head = False  # the request is a HEAD, whatever else may be wrong with it
        self._error_code: int | None = None  # of the reset that follows when all has been taken
        self._n_given = 0  # bytes of the body that the engine was given
        self._n_settled = 0  # how many of them settle() has seen
        self._n_empty = 0  # how many of them there were when nothing was queued
        self._n_held = 0  # of the connection's reply budget
        self._n_mark = 0  # how many of them had been taken when the deadline was set
        self._lacks_room = False  # for what waits: it is given up, unless the client takes that at once

    def __repr__(self) -> str:
        paused = " paused" if self.is_write_paused else ""
        return f"<ClientHttp2Stream {self.id} {self._state.name}{paused} in={self._n_received} out={self._n_given}>"

    @property
    def address(self) -> str:
        """See Client."""
        return self._connection.address

    # -- the request, as it comes in ------------------------------------------------------------------

    def on_head(self, fields: Sequence[Header], *, end_stream: bool) -> None:
        """Read the head, and all of the request when there is no body."""
        ingress = self._connection.ingress
        self._has_whole_request = end_stream
        self._is_to_head = (b":method", b"HEAD") in fields
        try:
            head = self._head = ingress.http2_heads.read(fields, end_stream=end_stream)
            if self._connection.is_guarded and head.shape.is_foreign_page:
                raise foreign_host()
            self._caller = ingress.app.check_head(head)
            ingress.http2_heads.accept(head)
        except MalformedError:
            self._is_malformed = True
            self._refuse(VeloxError(Reason.BAD_FRAMING, "the fields of this stream are no HTTP/2 request"))
            return
        except VeloxError as error:
            self._refuse(error)
            return
        if end_stream:
            self._submit()
            return
        n_first = min(head.content_length or 0, FIRST_BYTES)
        if n_first and not ingress.budget.take(self, n_first):
            self._state = _WAITING  # the budget has a deadline of its own
            return
        self._held_bytes = n_first
        self._await_body()

    def on_data(self, data: bytes, end_stream: bool) -> None:
        """Take a piece of the body."""
        n_bytes = len(data)
        self._n_received += n_bytes
        self._has_whole_request = self._has_whole_request or end_stream
        if self._state >= _ANSWERING:
            return  # it was refused; not acknowledged, so that the client gets no window to send more of it
        head = self._head
        assert head is not None, "a stream without a head has been answered"
        try:
            if head.content_length is None:
                self._check_unannounced()
            elif self._n_received > head.content_length:
                raise VeloxError(Reason.BAD_FRAMING, "the body is longer than announced")
            elif end_stream and self._n_received < head.content_length:
                self._is_malformed = True  # with trailers behind it h2 lets it pass
                raise VeloxError(Reason.BAD_FRAMING, "the body is shorter than announced")
            if self._n_received > self._held_bytes and self._state is _BODY:
                self._take_more()
        except VeloxError as error:
            self._refuse(error)
            return
        self._keep(data, end_stream)
        if self._state is _WAITING:
            return  # no more than the stream's window
        self._connection.engine.acknowledge(self.id, n_bytes)
        if end_stream:
            self._submit()
        elif self._pace is not None:
            self._set_deadline(self._pace.came(n_bytes, self._connection.ingress.loop.time()))

    def _check_unannounced(self) -> None:
        ingress = self._connection.ingress
        if self._n_received > ingress.limits.body_bytes:
            message = f"body is over {ingress.limits.body_bytes} bytes (VELOX_MAX_BODY)"
            raise VeloxError(Reason.BODY_TOO_LARGE, message)

    def _take_more(self) -> None:
        """Take room for what has come: as over HTTP/1.1, a body that has begun does not wait."""
        n_more = self._n_received - self._held_bytes
        if n_more > 0:
            if not self._connection.ingress.budget.take_more(n_more, self._held_bytes):
                raise no_room(close=False)
            self._held_bytes += n_more

    def _keep(self, data: bytes, end_stream: bool) -> None:
        if self._body is None and end_stream:
            self._body = data or None  # the usual case: one frame
        elif data:
            if not isinstance(self._body, bytearray):
                self._body = bytearray()
            self._body += data

    def _await_body(self) -> None:
        """Let the body come, and ask for it if the client waits for that."""
        self._state = _BODY
        self._pace = Pace(self._connection.ingress.pace)
        self._set_deadline(self._pace.begin(self._connection.ingress.loop.time()))
        head = self._head
        if head is not None and head.expect_continue and not self._n_received:
            self._connection.engine.send_continue(self.id)
            self._connection.flush_soon()

    def budget_granted(self, n_bytes: int) -> None:
        """The budget has room for the body that waited."""
        self._held_bytes += n_bytes
        self._await_body()
        self._connection.ingress.loop.call_soon(self._after_grant)

    def _after_grant(self) -> None:
        if self._state is _BODY:
            try:
                self._take_more()  # more than was waited for may have come meanwhile: a stream's window
                self._connection.engine.acknowledge(self.id, self._n_received)
                self._connection.flush_soon()
                if self._has_whole_request:
                    self._submit()
            except VeloxError as error:
                self._refuse(error)
            except Exception as exc:
                self.crashed(exc)

    def budget_refused(self) -> None:
        """The body waited as long as a request may."""
        self._state = _BODY  # no longer in the line
        self._refuse(no_room_in_time())

    def _submit(self) -> None:
        head = self._head
        assert head is not None, "a request is submitted after its head was read"
        self._state = _ANSWERING
        self.deadline_s = 0.0
        body, self._body = self._body, None
        self.may_run_ahead = self._connection.reply_budget.take_ahead()
        exchange = self._connection.ingress.app.submit(self, head, body, self._caller)
        # submit() may have answered already.
        if exchange is not None:
            self._exchange = exchange

    def _refuse(self, error: VeloxError) -> None:
        """Answer an error before there is an exchange."""
        self._leave_line()
        self._state = _ANSWERING
        self.deadline_s = 0.0
        self._body = None
        self._connection.ingress.app.refuse(self, self._head, error)

    # -- Client: the reply, as the gateway gives it ------------------------------------------------------

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """See Client."""
        if self._state is _GONE:
            return
        fields = [(b":status", str(status).encode()), *headers]
        names, values = zip(*fields)  # noqa: B905 - pairs
        check_unsplit(b"".join(names + values))  # a gateway behind this one could write it on HTTP/1.1
        if length is not None:
            fields.append((b"content-length", str(length).encode()))
        self._connection.engine.send_response(self.id, fields, not has_body or (end and not data))
        if data:
            self._give(data, end)
        self._connection.touch(self)

    def body(self, data: bytes, end: bool) -> None:
        """See Client."""
        if self._state is not _GONE and (data or end):
            self._give(data, end)
            self._connection.touch(self)

    def cut(self, last: bytes) -> None:
        """See Client: RST_STREAM after `last`, and never END_STREAM."""
        if self._state is not _GONE:
            if last:
                self._give(last, False)
            self._end(http2.INTERNAL_ERROR)

    def switch(self, headers: Headers, successor: Successor) -> None:
        """Never called: HTTP/2 has no Upgrade (RFC 9113 §8.6), so no head of it offers a WebSocket."""
        raise AssertionError("only a head of HTTP/1.1 has an offer")

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """See Client. close is not looked at: what makes an HTTP/1.1 connection unusable harms no other stream here."""
        if self._state is _GONE:
            return
        if self._is_malformed:
            # RFC 9113 §8.1.1: not a request, so there is no answer to it.
            self._connection.engine.reset(self.id, http2.PROTOCOL_ERROR)
            self._connection.flush_soon()
            self.drop()
            return
        if with_body and not self._is_to_head:
            self.begin_reply(status, headers, len(body), body, True, has_body=True)
        else:
            self.begin_reply(status, headers, len(body), b"", True, has_body=False)
        self.finish()

    def finish(self) -> None:
        """See Client."""
        if self._state is not _GONE:
            self._end(None if self._has_whole_request else http2.NO_ERROR)

    def hold_more(self, n_bytes: int) -> bool:
        """See Client."""
        if not self._connection.ingress.budget.take_more(n_bytes, self._held_bytes):
            return False
        self._held_bytes += n_bytes
        return True

    def release_body(self) -> None:
        """See Client."""
        if self._held_bytes:
            n_bytes, self._held_bytes = self._held_bytes, 0
            self._connection.ingress.budget.give(n_bytes)

    def _give(self, data: bytes, end: bool) -> None:
        connection = self._connection
        self._n_given += len(data)
        self._n_held += len(data)
        connection.engine.send_data(self.id, data, end)
        connection.held_more(len(data))
        # One turn of the loop may read megabytes of a reply that is there already, before anything is written.
        is_much = self._n_given - self._n_settled > _MOST_AT_ONCE and not self.is_write_paused
        if is_much and connection.engine.queued_bytes(self.id) > connection.reply_budget.share(is_stalled=False):
            self.pause()

    def _end(self, error_code: int | None) -> None:
        self._exchange = None
        self._error_code = error_code
        self._state = _ENDED
        self.release_body()
        self._connection.touch(self)

    # -- for the connection --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hold the upstream, also one that is not asked yet; settle() lets it go on."""
        if not self.is_write_paused:
            self.is_write_paused = True
            if self._exchange is not None:
                try:
                    self._exchange.client_paused()
                except Exception as exc:
                    self.crashed(exc)

    def settle(self, *, has_said_all: bool) -> bool:
        """Look how much of the reply waits, after the connection has written; False when nothing is left to wait for.

        has_said_all: the connection has nothing more to write, so what waits here waits for the client's window.
        """
        connection = self._connection
        n_queued = connection.engine.queued_bytes(self.id)
        self._n_settled = self._n_given
        if not n_queued:
            self._n_empty = self._n_given
        self._hold(held_bytes(n_queued, self._n_given - self._n_empty))
        if self._state is _ENDED and not n_queued and (self._error_code is None or has_said_all):
            if self._error_code is not None:
                connection.engine.reset(self.id, self._error_code)
                connection.flush_soon()
            self.drop()
            return False
        if not n_queued:
            if self._state >= _ANSWERING:
                self.deadline_s = 0.0
        elif has_said_all and not self.deadline_s:
            self._n_mark = self._n_given - n_queued
            self._set_deadline(connection.ingress.loop.time() + connection.ingress.timeouts.write_s)
        most = connection.reply_budget.share(is_stalled=has_said_all)
        if n_queued > most:
            self.pause()
        elif self.is_write_paused and n_queued <= most // 4 and not connection.reply_budget.is_full:
            self.is_write_paused = False
            if self._exchange is not None:
                self._exchange.client_resumed()
        return n_queued > 0 or self._error_code is not None

    def on_deadline(self, now_s: float) -> None:
        """Something took too long."""
        ingress = self._connection.ingress
        self.deadline_s = 0.0
        if self._lacks_room:
            self._lacks_room = False
            if self._connection.lacks_room:
                self._connection.lacks_room = False
                self._give_up()
            else:
                self._n_mark = self._n_given - self._connection.engine.queued_bytes(self.id)
                self._set_deadline(now_s + ingress.timeouts.write_s)
            return
        if self._state is _BODY:
            is_trickle = self._pace is not None and self._pace.is_trickle(now_s)
            self._refuse(body_too_slow(ingress.pace.rate) if is_trickle else body_too_late(ingress.timeouts.body_s))
            return
        n_taken = self._n_given - self._connection.engine.queued_bytes(self.id)
        if self._connection.is_write_paused or n_taken - self._n_mark >= max(1, ingress.least_taken_bytes):
            # It takes enough; or the whole connection is slow, which has a deadline of its own.
            self._n_mark = n_taken
            self._set_deadline(now_s + ingress.timeouts.write_s)
            return
        self._give_up()

    def _give_up(self) -> None:
        """End it: the client takes too little of the reply."""
        self._connection.engine.reset(self.id, http2.CANCEL)
        self._connection.flush_soon()
        self.gone(stalled=True)

    @property
    def n_held(self) -> int:
        """Bytes of the reply that wait here."""
        return self._n_held

    def lack_room(self) -> None:
        """There is no room for what waits of the reply."""
        self._lacks_room = True
        self._set_deadline(self._connection.ingress.loop.time())

    def gone(self, *, stalled: bool = False) -> None:
        """The client gave the stream up, or is given up itself: stop all work for it."""
        exchange, self._exchange = self._exchange, None
        self._leave_line()
        self.drop()
        if exchange is not None:
            try:
                exchange.client_gone(stalled=stalled)
            except Exception as exc:
                self._connection.ingress.app.crashed(exc)

    def crashed(self, exc: Exception) -> None:
        """An error was raised in the code of this stream: end the stream."""
        connection = self._connection
        connection.ingress.app.crashed(exc)
        connection.engine.reset(self.id, http2.INTERNAL_ERROR)
        connection.flush_soon()
        self.gone()

    def drop(self) -> None:
        """The stream is over: hold nothing for it any more."""
        self._state = _GONE
        self.deadline_s = 0.0
        self._body = None
        self.release_body()
        self._hold(0)
        if self.may_run_ahead:
            self.may_run_ahead = False
            self._connection.reply_budget.give_ahead()
        self._connection.forget(self)

    def _hold(self, n_bytes: int) -> None:
        n_more, self._n_held = n_bytes - self._n_held, n_bytes
        if n_more:
            self._connection.held_more(n_more)

    def _leave_line(self) -> None:
        if self._state is _WAITING:
            self._state = _BODY
            self._connection.ingress.budget.forget(self)

    def _set_deadline(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._connection.watch(deadline_s)


def _held_by(stream: ClientHttp2Stream) -> int:
    return stream.n_held


class _State(enum.IntEnum):
    NEW = 0  # no request has come yet
    OPEN = 1
    NOTICED = 2  # the client has been told to open no more streams, but may not have heard of it
    LEAVING = 3  # later streams than the last one that was named are not taken
    LINGER = 4  # all is said; what still comes is thrown away
    CLOSED = 5


class ClientHttp2Connection(ClientConnection):
    """The connection; also the handler of its engine's events."""

    __deletable__ = ("engine",)

    def __init__(self, ingress: IngressState, make_engine: EngineFactory) -> None:
        super().__init__(ingress)
        self.engine: Engine = make_engine(self, http2.INGRESS_SETTINGS, False)
        self.is_write_paused = False
        self._state = _State.NEW
        self._streams: dict[int, ClientHttp2Stream] = {}
        self._touched: dict[int, ClientHttp2Stream] = {}  # to look at after the next write
        self.reply_budget: Final = ReplyBufferBudget()
        self._n_room = 0  # taken of the room for bodies, for what is above that
        self.lacks_room = False  # there was too little
        self._waiting: dict[int, ClientHttp2Stream] = {}  # whose replies the client has not taken whole
        self._may_move = False  # those that wait may have been given a window
        self._unread = b""  # what came and waits for a turn of the loop; meanwhile nothing more is read
        self._n_begun = 0
        self._retire_s = 0.0
        self._due_s = 0.0  # loop time: of the state; 0: none
        self._write_due_s = 0.0  # while writing is paused
        self._flush_queued = False
        self._client_leaves = False
        self._is_over = False  # close as soon as all is written
        self._may_linger = False  # and then wait for the client's end: it has replies to read, or a reason
        self._is_fatal = False  # the client gets our last word, if it takes that at once, and nothing else

    def __repr__(self) -> str:
        return f"<ClientHttp2Connection {self._state.name} streams={len(self._streams)} begun={self._n_begun}>"

    # -- for the ingress ------------------------------------------------------------------------------

    @property
    def protocol(self) -> str:
        return "HTTP/2"

    @property
    def state(self) -> str:
        return self._state.name.lower()

    @property
    def n_streams(self) -> int:
        return len(self._streams)

    @property
    def is_busy(self) -> bool:
        return bool(self._streams)

    def close_if_idle(self) -> None:
        """Draining: tell the client, let run what has begun, then close."""
        self._leave()

    def on_deadline(self) -> None:
        """See who is late: the connection, or one of its streams."""
        now_s = self.ingress.loop.time()
        if self._write_due_s and now_s >= self._write_due_s:
            self._on_write_due()
        if self._due_s and now_s >= self._due_s:
            self._on_due()
        for stream in tuple(self._streams.values()):
            if stream.deadline_s and now_s >= stream.deadline_s:
                try:
                    stream.on_deadline(now_s)
                except Exception as exc:
                    stream.crashed(exc)
        deadlines = [stream.deadline_s for stream in self._streams.values()]
        deadlines += self._due_s, self._write_due_s
        self.deadline_s = min(filter(None, deadlines), default=0.0)

    # -- for the streams --------------------------------------------------------------------------------

    def touch(self, stream: ClientHttp2Stream) -> None:
        """A stream has something to say; it leaves at the end of this turn of the loop, with its neighbours'."""
        self._touched[stream.id] = stream
        self.flush_soon()

    def flush_soon(self) -> None:
        """Write what the engine has, in the next turn of the loop."""
        if not self._flush_queued and self._transport is not None:
            self._flush_queued = True
            self.ingress.loop.call_soon(self._flush)

    def held_more(self, n_bytes: int) -> None:
        """A stream holds so much more, or less, of its reply."""
        buffered = self.reply_budget
        if buffered.add(n_bytes):  # all are held now: until the next write each of a hundred may bring 128 KiB
            for stream in tuple(self._streams.values()):
                stream.pause()
        # Mostly the buffer is not full, and nothing is over it.
        if (buffered.is_full or self._n_room) and buffered.n_over != self._n_room:
            self._settle_room(buffered.n_over)

    def _settle_room(self, n_over: int) -> None:
        """Have room for what is held above the buffer, as over HTTP/1.1; without it the stream that holds most ends."""
        budget, n_more = self.ingress.budget, n_over - self._n_room
        if n_more < 0:
            self._n_room, self.lacks_room = n_over, False
            budget.give_of_reply(-n_more)
        elif budget.take_for_reply(n_more, self._n_room):
            self._n_room, self.lacks_room = n_over, False
        elif not self.lacks_room and self._streams:
            self.lacks_room = True
            max(self._streams.values(), key=_held_by).lack_room()

    def watch(self, deadline_s: float) -> None:
        """Call on_deadline() by then; 0: never."""
        if deadline_s and (not self.deadline_s or deadline_s < self.deadline_s):
            self.deadline_s = deadline_s

    def forget(self, stream: ClientHttp2Stream) -> None:
        """A stream is over."""
        self._waiting.pop(stream.id, None)
        self._was_served = True
        if self._streams.pop(stream.id, None) is not None and not self._streams:
            self._on_idle()

    # -- asyncio.Protocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        ingress = self.ingress
        now_s = ingress.loop.time()
        refusal = self._register(transport)
        ingress.n_http2 += 1
        self._retire_s = now_s + _MAX_AGE_S
        self.engine.start()
        self._set_due(now_s + ingress.timeouts.header_s)
        if refusal is not None:
            # Nothing of it was processed, says GOAWAY: the client may go elsewhere at once.
            self._end()
            self._may_linger = ingress.limiter.may_linger
        elif ingress.draining:
            self._leave()
        self.flush_soon()

    def data_received(self, data: bytes) -> None:
        if self._state >= _State.LINGER:
            return
        if self._is_in_line:
            self._unread += data
        elif len(data) <= _FIRST_READ_BYTES and self.ingress.turns.has_room(is_known=self._was_served):
            self.engine.receive(data, self.ingress.loop.time())
            # Acknowledgements and answers to PING leave with whatever else this turn of the loop sends.
            self.flush_soon()
        else:
            self._unread = data
            self._read()

    def _read(self) -> None:
        """Go through what has come, while there is time for it in this turn of the loop."""
        ingress, data, at, n_bytes = self.ingress, self._unread, 0, _FIRST_READ_BYTES
        while at < len(data) and self._transport is not None and self._state < _State.LINGER:
            if not ingress.turns.has_time():
                self._await_turn(is_known=self._was_served and len(data) <= _FIRST_READ_BYTES)
                self._transport.pause_reading()
                break
            self.engine.receive(data[at : at + n_bytes], ingress.loop.time())
            at += n_bytes
            n_bytes *= 2
        self._unread = data[at:] if self._is_in_line else b""
        self.flush_soon()

    def turn_came(self) -> None:
        """See TurnWaiter."""
        self._is_in_line = False
        if self._has_left:
            self._end_left()
            return
        self._read()
        if not (self._is_in_line or self.is_write_paused or self._transport is None):
            self._transport.resume_reading()

    def _end_left(self) -> None:
        """End the connection of a client that has left, in its turn."""
        if not self._abort_if_busy() and self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._state = _State.CLOSED
        self._due_s = self._write_due_s = 0.0
        self._unregister()
        self.ingress.n_http2 -= 1
        self._give_up_all()
        # Breaks the cycle with the engine; not at once, because it may be in the middle of a read.
        self.ingress.loop.call_soon(self._drop_engine)

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
        if self._state is not _State.LINGER:  # then the client has still to take what the kernel holds
            self._write_due_s = 0.0
        self.ingress.paused.discard(self)
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._is_in_line:
            transport.resume_reading()
        self._may_move = True
        self.flush_soon()

    # -- EngineHandler ----------------------------------------------------------------------------------

    def on_head(self, stream_id: int, headers: Sequence[Header], end_stream: bool) -> None:
        if self._state >= _State.LEAVING:
            return  # above the last stream that was named
        self._n_begun += 1
        if self.reply_budget.is_full:
            self.engine.reset(stream_id, http2.REFUSED_STREAM)  # nothing of it was processed: it may be sent again
            return
        if self._state is _State.NEW:
            self._state = _State.OPEN
        if not self._streams:
            self._set_due(self._retire_s if self._state is _State.OPEN else self._due_s)
        stream = self._streams[stream_id] = ClientHttp2Stream(self, stream_id)
        try:
            stream.on_head(headers, end_stream=end_stream)
        except Exception as exc:
            stream.crashed(exc)
        if self._n_begun >= _MAX_STREAMS:
            self._leave()

    def on_data(self, stream_id: int, data: bytes, end_stream: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:  # else it has been reset, and the engine gives back what it takes of the window
            try:
                stream.on_data(data, end_stream)
            except Exception as exc:
                stream.crashed(exc)

    def on_stream_end(self, stream_id: int) -> None:
        self.on_data(stream_id, b"", True)

    def on_reset(self, stream_id: int, error_code: int, by_us: bool = False) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            # Before the next frame is read: its work ends before another stream's is admitted.
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
        self._set_due(self.ingress.loop.time() + LINGER_S)  # it may not even take our last word
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
        touched, self._touched = self._touched, {}
        for stream in touched.values():
            if self._streams.get(stream.id) is stream:
                self._settle(stream, has_said_all=has_said_all)
        if self._may_move and self._waiting:
            for stream in tuple(self._waiting.values()):
                self._settle(stream, has_said_all=has_said_all)
        if self.reply_budget.reopens():
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
        try:
            waits = stream.settle(has_said_all=has_said_all)
        except Exception as exc:
            stream.crashed(exc)
            waits = False
        if waits:
            self._waiting[stream.id] = stream
        else:
            self._waiting.pop(stream.id, None)

    # -- ends ---------------------------------------------------------------------------------------------

    def _set_due(self, due_s: float) -> None:
        self._due_s = due_s
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
            self._set_due(self.ingress.loop.time() + LINGER_S)  # it has not all of its replies yet
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
        self._may_linger = bool(self._streams) or self._is_behind()
        self._is_over = not self._streams
        self.flush_soon()

    def _end(self) -> None:
        """Close a connection without streams."""
        if self._state < _State.LEAVING:
            self._state = _State.LEAVING
            self.engine.goaway()
        self._due_s = 0.0
        self._may_linger = self._may_linger or self._is_behind()
        self._is_over = True
        self.flush_soon()

    def _is_behind(self) -> bool:
        """Say whether the client has not taken all of its replies yet: what it still sends may not reset them."""
        return self._transport is not None and unsent_bytes(self._transport) > 0

    def _close(self) -> None:
        """Close, now that all is said: our side first, then the client's (see LINGER_S)."""
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
        self._set_due(now_s + LINGER_S)

    def _give_up_all(self, *, stalled: bool = False) -> None:
        streams, self._streams = self._streams, {}
        self._waiting.clear()
        for stream in streams.values():
            stream.gone(stalled=stalled)

    def _drop_engine(self) -> None:
        self.engine.close()
        del self.engine
