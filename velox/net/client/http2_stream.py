"""One request and its reply on a client's HTTP/2 connection: the Client of one exchange.

Knows: the request as it comes in, the room for its body, what its client has not taken of the reply, its timers. Does
not know: frames, the other streams, when the connection writes (client/http2.py), or what a request means (gateway/).

A stream ends in two halves. The client's has come whole, or is refused with an answer and then RST_STREAM(NO_ERROR)
(RFC 9113 §8.1). Ours is END_STREAM, or for a reply that is not whole RST_STREAM(INTERNAL_ERROR), which no client can
take for an end (R-STREAM-1). Until the client has taken all of ours, the stream stays known here, and timed.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from velox.errors import Reason, VeloxError
from velox.net.application import ClientExchange, Successor
from velox.net.client.http2_room import held_bytes
from velox.net.client.refusals import body_too_late, body_too_slow
from velox.policy.pace import Pace
from velox.protocol.http2 import CANCEL, INTERNAL_ERROR, NO_ERROR, PROTOCOL_ERROR
from velox.protocol.http2_head import MalformedError
from velox.types import ANYONE, Header, Headers, RequestHead

if TYPE_CHECKING:  # a connection makes its streams
    from velox.net.client.http2 import ClientHttp2Connection

__all__ = ["ClientHttp2Stream"]

# Between two looks at how much of it is queued: more than one read of an upstream's reply, so that looking is seldom.
_MOST_AT_ONCE: Final = 128 * 1024


class _State(enum.IntEnum):
    WAITING = 0  # for room in the body budget; what has come is not acknowledged
    BODY = 1
    ANSWERING = 2
    ENDED = 3  # all of the reply is given to the engine; the client has not taken it yet
    GONE = 4


class ClientHttp2Stream:
    """One stream. deadline_s: loop time, by when something must have moved; 0: nothing is waited for."""

    chunk_writer: Final = None  # chunks are HTTP/1.1's
    __slots__ = (
        "_body",
        "_caller",
        "_connection",
        "_error_code",
        "_exchange",
        "_has_whole_request",
        "_head",
        "_held_bytes",
        "_is_malformed",
        "_is_to_head",
        "_n_empty",
        "_n_given",
        "_n_held",
        "_n_mark",
        "_n_received",
        "_n_settled",
        "_pace",
        "_state",
        "deadline_s",
        "id",
        "is_touched",
        "is_write_paused",
        "may_run_ahead",
    )

    def __init__(self, connection: ClientHttp2Connection, stream_id: int) -> None:
        self.id: Final = stream_id
        self.deadline_s = 0.0
        self.is_write_paused = False
        self.may_run_ahead = False
        self.is_touched = False  # the connection will look at it when it has written
        self._connection: Final = connection
        self._state = _State.BODY
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
        self._n_held = 0  # of the connection's room
        self._n_mark = 0  # how many of them had been taken when the deadline was set

    def __repr__(self) -> str:
        paused = " paused" if self.is_write_paused else ""
        return f"<ClientHttp2Stream {self.id} {self._state.name}{paused} in={self._n_received} out={self._n_given}>"

    # -- the request, as it comes in ------------------------------------------------------------------

    def on_head(self, fields: Sequence[Header], *, end_stream: bool) -> None:
        """Read the head, and all of the request when there is no body."""
        ingress = self._connection.ingress
        self._has_whole_request = end_stream
        self._is_to_head = (b":method", b"HEAD") in fields
        try:
            head = self._head = ingress.http2_heads.read(fields, end_stream=end_stream)
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
        if head.content_length and not ingress.budget.take(self, head.content_length):
            self._state = _State.WAITING  # the budget has a deadline of its own
            return
        self._held_bytes = head.content_length or 0
        self._await_body()

    def on_data(self, data: bytes, end_stream: bool) -> None:
        """Take a piece of the body."""
        n_bytes = len(data)
        self._n_received += n_bytes
        self._has_whole_request = self._has_whole_request or end_stream
        if self._state >= _State.ANSWERING:
            return  # it was refused; not acknowledged, so that the client gets no window to send more of it
        head = self._head
        assert head is not None, "a stream without a head has been answered"
        try:
            if head.content_length is None:
                self._count_unannounced(n_bytes)
            elif self._n_received > head.content_length:
                raise VeloxError(Reason.BAD_FRAMING, "the body is longer than announced")
        except VeloxError as error:
            self._refuse(error)
            return
        self._keep(data, end_stream)
        if self._state is _State.WAITING:
            return  # no more than the stream's window
        self._connection.engine.acknowledge(self.id, n_bytes)
        if end_stream:
            self._submit()
        elif self._pace is not None:
            self._set_deadline(self._pace.came(n_bytes, self._connection.ingress.loop.time()))

    def _count_unannounced(self, n_bytes: int) -> None:
        """Count a body whose length was not announced: what does not fit is refused, as over HTTP/1.1."""
        ingress = self._connection.ingress
        if self._n_received > ingress.limits.body_bytes:
            message = f"body is over {ingress.limits.body_bytes} bytes (VELOX_MAX_BODY)"
            raise VeloxError(Reason.BODY_TOO_LARGE, message)
        if not ingress.budget.take_now(n_bytes):
            message = "no memory for this request's body (VELOX_BODY_BUDGET)"
            raise VeloxError(Reason.OVERLOAD_MEMORY, message, retry_after_s=1.0)
        self._held_bytes += n_bytes

    def _keep(self, data: bytes, end_stream: bool) -> None:
        if self._body is None and end_stream:
            self._body = data or None  # the usual case: one frame
        elif data:
            if not isinstance(self._body, bytearray):
                self._body = bytearray()
            self._body += data

    def _await_body(self) -> None:
        """Let the body come, and ask for it if the client waits for that (R-H1-9)."""
        self._state = _State.BODY
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
        if self._state is _State.BODY:
            self._connection.engine.acknowledge(self.id, self._n_received)
            self._connection.flush_soon()
            if self._has_whole_request:
                self._submit()

    def budget_refused(self) -> None:
        """The body waited as long as a request may."""
        self._state = _State.BODY  # no longer in the line
        message = "no memory for this request's body came free in time (VELOX_BODY_BUDGET)"
        self._refuse(VeloxError(Reason.OVERLOAD_MEMORY, message, retry_after_s=1.0))

    def _submit(self) -> None:
        head = self._head
        assert head is not None, "a request is submitted after its head was read"
        self._state = _State.ANSWERING
        self.deadline_s = 0.0
        body, self._body = self._body, None
        self.may_run_ahead = self._connection.room.take_ahead()
        exchange = self._connection.ingress.app.submit(self, head, body, self._caller)
        # submit() may have answered already.
        if exchange is not None:
            self._exchange = exchange

    def _refuse(self, error: VeloxError) -> None:
        """Answer an error before there is an exchange."""
        self._leave_line()
        self._state = _State.ANSWERING
        self.deadline_s = 0.0
        self._body = None
        self._connection.ingress.app.refuse(self, self._head, error)

    # -- Client: the reply, as the gateway gives it ------------------------------------------------------

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """See Client."""
        if self._state is _State.GONE:
            return
        fields = [(b":status", b"%d" % status), *headers]
        _check(fields)
        if length is not None:
            fields.append((b"content-length", b"%d" % length))
        self._connection.engine.send_response(self.id, fields, not has_body or (end and not data))
        if data:
            self._give(data, end)
        self._connection.touch(self)

    def body(self, data: bytes, end: bool) -> None:
        """See Client."""
        if self._state is not _State.GONE and (data or end):
            self._give(data, end)
            self._connection.touch(self)

    def cut(self, last: bytes) -> None:
        """See Client: RST_STREAM after `last`, and never END_STREAM."""
        if self._state is not _State.GONE:
            if last:
                self._give(last, False)
            self._end(INTERNAL_ERROR)

    def switch(self, headers: Headers, successor: Successor) -> None:
        """Never called: HTTP/2 has no Upgrade (RFC 9113 §8.6), so no head of it offers a WebSocket."""
        raise AssertionError("only a head of HTTP/1.1 has an offer")

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """See Client. close is not looked at: what makes an HTTP/1.1 connection unusable harms no other stream here."""
        if self._state is _State.GONE:
            return
        if self._is_malformed:
            # RFC 9113 §8.1.1: not a request, so there is no answer to it.
            self._connection.engine.reset(self.id, PROTOCOL_ERROR)
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
        if self._state is not _State.GONE:
            self._end(None if self._has_whole_request else NO_ERROR)

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
        if is_much and connection.engine.queued_bytes(self.id) > connection.room.share(is_stalled=False):
            self.pause()

    def _end(self, error_code: int | None) -> None:
        self._exchange = None
        self._error_code = error_code
        self._state = _State.ENDED
        self.release_body()
        self._connection.touch(self)

    # -- for the connection --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hold the upstream, also one that is not asked yet; settle() lets it go on."""
        if not self.is_write_paused:
            self.is_write_paused = True
            if self._exchange is not None:
                self._exchange.client_paused()

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
        if self._state is _State.ENDED and not n_queued and (self._error_code is None or has_said_all):
            if self._error_code is not None:
                connection.engine.reset(self.id, self._error_code)
                connection.flush_soon()
            self.drop()
            return False
        if not n_queued:
            if self._state >= _State.ANSWERING:
                self.deadline_s = 0.0
        elif has_said_all and not self.deadline_s:
            self._n_mark = self._n_given - n_queued
            self._set_deadline(connection.ingress.loop.time() + connection.ingress.timeouts.write_s)
        most = connection.room.share(is_stalled=has_said_all)
        if n_queued > most:
            self.pause()
        elif self.is_write_paused and n_queued <= most // 4 and not connection.room.is_full:
            self.is_write_paused = False
            if self._exchange is not None:
                self._exchange.client_resumed()
        return n_queued > 0 or self._error_code is not None

    def on_deadline(self, now_s: float) -> None:
        """Something took too long."""
        ingress = self._connection.ingress
        self.deadline_s = 0.0
        if self._state is _State.BODY:
            is_trickle = self._pace is not None and self._pace.is_trickle(now_s)
            self._refuse(body_too_slow(ingress.pace.rate) if is_trickle else body_too_late(ingress.timeouts.body_s))
            return
        n_taken = self._n_given - self._connection.engine.queued_bytes(self.id)
        if self._connection.is_write_paused or n_taken - self._n_mark >= max(1, ingress.least_taken_bytes):
            # It takes enough; or the whole connection is slow, which has a deadline of its own.
            self._n_mark = n_taken
            self._set_deadline(now_s + ingress.timeouts.write_s)
            return
        self._connection.engine.reset(self.id, CANCEL)
        self._connection.flush_soon()
        self.gone(stalled=True)

    def gone(self, *, stalled: bool = False) -> None:
        """The client gave the stream up, or is given up itself: stop all work for it (R-CANCEL-1)."""
        exchange, self._exchange = self._exchange, None
        self._leave_line()
        self.drop()
        if exchange is not None:
            exchange.client_gone(stalled=stalled)

    def drop(self) -> None:
        """The stream is over: hold nothing for it any more."""
        self._state = _State.GONE
        self.deadline_s = 0.0
        self._body = None
        self.release_body()
        self._hold(0)
        if self.may_run_ahead:
            self.may_run_ahead = False
            self._connection.room.give_ahead()
        self._connection.forget(self)

    def _hold(self, n_bytes: int) -> None:
        before, self._n_held = self._n_held, n_bytes
        self._connection.held_more(n_bytes - before)

    def _leave_line(self) -> None:
        if self._state is _State.WAITING:
            self._state = _State.BODY
            self._connection.ingress.budget.forget(self)

    def _set_deadline(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._connection.watch(deadline_s)


def _check(fields: Headers) -> None:
    """Raise ValueError when a field holds CR, LF or NUL: a gateway behind this one could write it on HTTP/1.1."""
    text = b"".join(chain.from_iterable(fields))
    if b"\n" in text or b"\r" in text or b"\0" in text:
        raise ValueError("a field of this head holds CR, LF or NUL")
