"""One client's HTTP/1.1 connection: one request at a time, strictly in order.

Knows: its socket, its timers, when to read on and when to stop, the room for a request's body, how a reply is framed.
Does not know: where a head or a body ends (protocol/http1/request.py), or what they mean (gateway/, behind
application.py).

Requests that a client pipelines stay unparsed bytes until the one before has been answered, and the client has taken
the answer.
"""

from __future__ import annotations

import abc
import asyncio
import enum
from typing import Final, cast

from velox.errors import Reason, VeloxError
from velox.heads import Headers, RequestHead
from velox.net import resets
from velox.net.application import ChunkWriter, ClientExchange, Successor
from velox.net.client.backlog import discard_unread, is_sending
from velox.net.client.body_budget import FIRST_BYTES, FREE_REPLY_BYTES, BodyBudget, BudgetWaiter
from velox.net.client.connection import ClientConnection
from velox.net.client.ingress_state import FIRST_REQUEST_S, LINGER_S, IngressState
from velox.net.client.refusals import (
    body_too_late,
    body_too_slow,
    foreign_host,
    head_too_late,
    no_room,
    no_room_in_time,
)
from velox.policy.pace import Pace
from velox.protocol.http1 import write as http1_write
from velox.protocol.http1.request import HeadReader, Http1Limits, RequestDecoder
from velox.types import ANYONE

__all__ = ["ClientHttp1Connection", "Http1Replies"]

# What a client may send ahead while its request is being answered; more stays in the kernel.
_PIPELINE_BYTES: Final = 64 * 1024
# Of a body in chunks, between two looks at whether there is time left: half a millisecond, if each brings one byte.
_LINES_A_STEP: Final = 64
_TIMED: Final = -1
# Of a read that is gone through in half a millisecond, even if it is a body in chunks.
_SHORT_BYTES: Final = 4096


class RequestReader(RequestDecoder):
    """One request after the other: feed(), read_head(), reserve(), collect(), release().

    head: the open request's, as its connection has noted it. body: what has come of it. waits: there is no room for it
    yet. held_bytes: taken from the budget. Errors are VeloxErrors.

    It is a decoder and does not have one: a call that is only passed on is paid by each request.
    """

    __slots__ = ("_budget", "body", "head", "held_bytes", "waits")

    def __init__(self, limits: Http1Limits, budget: BodyBudget, heads: HeadReader) -> None:
        super().__init__(limits, heads)
        self.head: RequestHead | None = None
        self.body: bytes | bytearray | None = None
        self._budget: Final = budget
        self.held_bytes = 0
        self.waits = False

    def __repr__(self) -> str:
        return f"<RequestReader buffered={self.buffered} held={self.held_bytes} waits={self.waits}>"

    def reserve(self, waiter: BudgetWaiter, n_bytes: int) -> bool:
        """Take room for the first bytes of a body. False: there is none yet, the waiter is called back."""
        if self._budget.take(waiter, n_bytes):
            self.held_bytes += n_bytes
            return True
        self.waits = True
        return False

    def grant(self, n_bytes: int) -> None:
        """Note that the budget gave the room that was waited for."""
        self.waits = False
        self.held_bytes += n_bytes

    def collect(self) -> bool:
        """Collect what is here of the body; True when it is whole. Raises VeloxError."""
        head = self.head
        if self.waits or head is None:
            return False
        piece = self.read_body(_LINES_A_STEP)
        if piece and (n_more := len(piece) + len(self.body or b"") - self.held_bytes) > 0:
            # Of a body in chunks nothing was taken with the head, of a long one the first bytes.
            if not self._budget.take_more(n_more, self.held_bytes):
                raise no_room(close=True)
            self.held_bytes += n_more
        if self.body_complete and self.body is None:
            # The usual case: the request came in one read, and its body is one slice of it.
            self.body = piece if piece or head.chunked else None
        elif piece:
            if not isinstance(self.body, bytearray):
                self.body = bytearray()
            self.body += piece
        return self.body_complete

    def hold_more(self, n_bytes: int) -> bool:
        """Take room for more of a body than came."""
        if not self._budget.take_more(n_bytes, self.held_bytes):
            return False
        self.held_bytes += n_bytes
        return True

    def forget(self) -> bool:
        """Forget the request that was answered. True: something of another one is here."""
        self.head = self.body = None
        return self._at < len(self._buffer)

    def leave_line(self, waiter: BudgetWaiter) -> None:
        """Wait for room no longer."""
        if self.waits:
            self.waits = False
            self._budget.forget(waiter)

    def release(self) -> None:
        """Give the body's room back to the budget."""
        if self.held_bytes:
            n_bytes, self.held_bytes = self.held_bytes, 0
            self._budget.give(n_bytes)


class Http1Replies(ClientConnection):
    """How replies leave: with a length, in chunks, or up to the connection's close.

    The framing half of a Client (application.py). A base class and not a part of the connection: another call for each
    chunk would cost more than the framing itself.
    """

    takes_lines: Final = True
    may_run_ahead: Final = True  # there is no more than one reply

    def __init__(self, ingress: IngressState) -> None:
        super().__init__(ingress)
        self._chunked = False
        self.ends_at_close = False  # HTTP/1.0, no length: only the connection's close ends the reply

    # -- what the framing asks of its connection ---------------------------------------------------------

    @property
    @abc.abstractmethod
    def is_http_1_0(self) -> bool:
        """True when the request came as HTTP/1.0, which knows no chunks."""

    @property
    @abc.abstractmethod
    def will_close(self) -> bool:
        """True when this reply is the connection's last."""

    @property
    @abc.abstractmethod
    def direct_write(self) -> ChunkWriter | None:
        """What does as write() does in fewer steps, until the client is paused. None while it is, or has left."""

    @abc.abstractmethod
    def write(self, data: bytes) -> None:
        """Send bytes. Nothing happens when the client has left."""

    @abc.abstractmethod
    def finish(self, *, close: bool = False) -> None:
        """See Client. close: nothing can follow on this connection."""

    @abc.abstractmethod
    def cut_off(self, last: bytes, *, reset: bool) -> None:
        """Close after `last`, with the reply unfinished. reset: where only a reset tells."""

    @abc.abstractmethod
    def hand_over(self, successor: Successor) -> None:
        """Give the connection away, with what has come on it. Nothing happens when the client has left."""

    # -- framing ----------------------------------------------------------------------------------------

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """See Client. One write: a head alone would be a packet of its own."""
        chunked = has_body and length is None
        if chunked and self.is_http_1_0:
            chunked = False
            self._end_at_close()
        self._chunked = chunked
        close = self.ends_at_close or self.will_close
        out = http1_write.reply_head(status, headers, content_length=length, chunked=chunked, close=close)
        if data:
            out += http1_write.chunk(data) if chunked else data
        if end and chunked:
            out += http1_write.LAST_CHUNK
        self.write(out)

    def begin_lines(
        self, status: int, lines: bytes, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """See Client."""
        is_last = self.will_close
        if length is not None:
            self._chunked = False
            self.write(http1_write.sized_reply(status, lines, length, data, close=is_last))
            return
        chunked = has_body
        if chunked and self.is_http_1_0:
            chunked = False
            self._end_at_close()
        self._chunked = chunked
        close = is_last or self.ends_at_close
        out = http1_write.reply_lines(status, lines, chunked=chunked, close=close)
        if data:
            out += http1_write.chunk(data) if chunked else data
        if end and chunked:
            out += http1_write.LAST_CHUNK
        self.write(out)

    def _end_at_close(self) -> None:
        """Let the connection's close end the reply; until it is whole any close is a reset, as when a worker dies."""
        self.ends_at_close = True
        if self._transport is not None:
            resets.at_any_close(self._transport)

    @property
    def chunk_writer(self) -> ChunkWriter | None:
        """See Client."""
        return self.direct_write if self._chunked else None

    def body(self, data: bytes, end: bool) -> None:
        """See Client."""
        if self._chunked:
            data = http1_write.chunk(data)
            if end:
                data += http1_write.LAST_CHUNK
        if data:
            self.write(data)

    def cut(self, last: bytes) -> None:
        """See Client: no last chunk, fewer bytes than announced, or a reset."""
        self.cut_off(http1_write.chunk(last) if self._chunked else last, reset=self.ends_at_close)

    def switch(self, headers: Headers, successor: Successor) -> None:
        """See Client. headers: with `upgrade` and `connection`, as RFC 9110 §7.8 has it."""
        self.write(http1_write.reply_head(101, headers, content_length=None, chunked=False, close=False))
        self.hand_over(successor)

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """See Client."""
        close = close or self.will_close
        out = http1_write.reply_head(status, headers, content_length=len(body), chunked=False, close=close)
        self.write(out + body if with_body else out)
        self.finish(close=close)


class _State(enum.IntEnum):
    IDLE = 0  # between requests
    HEAD = 1  # part of a head has come
    BODY = 2
    ANSWERING = 3
    FLUSHING = 4  # answered; the client has not taken the answer yet
    LINGER = 5  # the last answer is given; what still comes is thrown away
    CLOSED = 6


_IDLE, _HEAD, _BODY, _ANSWERING, _FLUSHING, _LINGER, _CLOSED = _State  # an enumeration's attribute takes 50 ns


class ClientHttp1Connection(Http1Replies):
    """One client's connection; the Client of each of its requests in turn."""

    def __init__(self, ingress: IngressState) -> None:
        super().__init__(ingress)
        self._request: Final = RequestReader(ingress.limits, ingress.budget, ingress.heads)
        self._state = _IDLE
        self._caller = ANYONE
        self._exchange: ClientExchange | None = None
        self._read_paused = False
        self.is_write_paused = False
        self._n_unsent = 0  # of what the client has still to take: taken of the room for bodies
        self._lacks_room = False  # for that: it is cut, unless it takes all in time
        self._pace: Final = Pace(ingress.pace)

    def __repr__(self) -> str:
        return f"<ClientHttp1Connection {self._state.name} {self._request!r}>"

    # -- for the gateway --------------------------------------------------------------------------

    @property
    def protocol(self) -> str:
        return "HTTP/1.1"

    @property
    def state(self) -> str:
        return self._state.name.lower()

    @property
    def n_streams(self) -> int:
        return 1 if self._state is _ANSWERING or self._state is _BODY else 0

    @property
    def is_busy(self) -> bool:
        return self._exchange is not None

    @property
    def is_idle(self) -> bool:
        """True when no request has begun to come, and none is being answered."""
        return self._state is _IDLE

    @property
    def is_http_1_0(self) -> bool:
        head = self._request.head
        return head is not None and head.http_1_0

    @property
    def will_close(self) -> bool:
        head = self._request.head
        return self.ingress.draining or head is None or not head.keep_alive

    @property
    def direct_write(self) -> ChunkWriter | None:
        """See Http1Replies. Not after connection_lost(): uvloop's raises then."""
        return None if self._transport is None or self.is_write_paused else self._transport.write

    def write(self, data: bytes) -> None:
        """Send bytes of the reply. Nothing happens when the client has left."""
        if self._transport is not None:
            if self.is_write_paused:
                self._backlog.wrote(len(data))
            self._transport.write(data)

    def hold_more(self, n_bytes: int) -> bool:
        """See Client."""
        return self._request.hold_more(n_bytes)

    def release_body(self) -> None:
        """The request's body is no longer held: its bytes go back to the budget."""
        if self._request.held_bytes:
            self._request.release()

    def finish(self, *, close: bool = False) -> None:
        """The reply has been written to its end. close: nothing can follow on this connection."""
        self._exchange = None
        request = self._request
        n_bytes, request.held_bytes = request.held_bytes, 0
        if n_bytes:
            self.ingress.budget.give(n_bytes)
        if self._transport is None:
            return
        head = request.head
        if close or self.ends_at_close or self.ingress.draining or head is None or not head.keep_alive:
            if close or self.ends_at_close or not self._may_stay():
                self._close()
        elif self.is_write_paused:
            # The replies to requests that were sent ahead must not gather behind one that is not taken.
            self._state = _FLUSHING
        else:
            self._next()

    def _next(self) -> None:
        """Be ready for another request."""
        ingress = self.ingress
        self._was_served = True
        self._state = _IDLE
        self.deadline_s = ingress.loop.time() + ingress.timeouts.keepalive_s
        if self._request.forget():
            # Not from here: a client that pipelines thousands of requests must not grow the stack.
            self._await_turn()

    def stay(self) -> None:
        """Another process takes over: the reply that is under way may have said that others can follow."""
        if self._state is not _IDLE:
            self.ingress.staying.add(self)

    def _may_stay(self) -> bool:
        """Be ready for another request after stay(), and return True; else False: nothing can follow."""
        head = self._request.head
        if self not in self.ingress.staying or head is None or not head.keep_alive:
            return False
        if self.is_write_paused:
            self._state = _FLUSHING
        else:
            self.ingress.staying.discard(self)
            self._next()
        return True

    def close_if_idle(self) -> None:
        """Draining: close unless a request has begun, or the first one may be on its way."""
        if self._state is not _IDLE or self._request.buffered:
            return
        if self._was_served:
            self._close_idle()
        else:
            self.deadline_s = self.ingress.loop.time() + FIRST_REQUEST_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        ingress = self.ingress
        refusal = self._register(transport)
        first_s = FIRST_REQUEST_S if ingress.draining else ingress.timeouts.header_s
        self.deadline_s = ingress.loop.time() + first_s
        if refusal is not None:
            self._refuse(refusal)
            if not ingress.limiter.may_linger:
                discard_unread(cast(asyncio.Transport, transport))
                transport.close()

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state >= _LINGER:
            return
        request = self._request
        is_known = state is _IDLE and self._was_served and len(data) <= _SHORT_BYTES
        if state <= _BODY and (self._is_in_line or not self.ingress.turns.has_room(is_known=is_known)):
            request.feed(data)
            if state is _BODY:
                self.deadline_s = self._pace.came(len(data), self.ingress.loop.time())
            self._await_turn(is_known=is_known)
            self._read_on()
            return
        if state is _IDLE and not self._read_paused:
            try:
                if self._take_whole(data):
                    return
            except VeloxError as error:
                self._refuse(error)
                return
        request.feed(data)
        self._advance(len(data) if state is _BODY else 0)

    def _take_whole(self, data: bytes) -> bool:
        """Take a read that is one whole request of a known kind, as most are. False: all others. Raises VeloxError.

        What is asked of such a head is what _check() asks.
        """
        request, ingress = self._request, self.ingress
        whole = request.read_whole(data)
        if whole is None:
            return False
        head, body = whole
        request.head = head
        request.body_complete = body is None  # for _refuse(): the body counts as read when its head has passed
        if self.is_guarded and head.shape.is_foreign_page:
            raise foreign_host()
        caller = ingress.app.check_head(head)
        request.body_complete = True
        if body is not None:
            n_bytes = len(body)
            if not ingress.budget.take_unless_waiting(n_bytes):
                return False
            request.held_bytes = n_bytes
        if not head.keep_alive:
            request.stop()
        self._state = _ANSWERING
        self.deadline_s = 0.0
        exchange = ingress.app.submit(self, head, body, caller)
        # submit() may have answered already, and the connection may be on to the next request.
        if exchange is not None:
            self._exchange = exchange
        return True

    def _leave(self) -> None:
        """End the connection of a client that has left, in its turn.

        A request of it that had no turn yet is not begun; it is recorded as one that its client gave up.
        """
        if self._abort_if_busy():
            return
        if self._state <= _HEAD and self._request.buffered:
            try:
                self._request.head = self._request.read_head()
                if self._request.head is not None:
                    self._refuse(VeloxError(Reason.CLIENT_CLOSED, "the client left before its request was begun"))
            except VeloxError as error:
                self._refuse(error)
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._state = _CLOSED
        self._unregister()
        self._give_unsent()
        self._request.leave_line(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        self._request.release()
        self._request.head = self._request.body = None

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self.deadline_s = self.ingress.loop.time() + self.ingress.timeouts.write_s
        if self._transport is not None:
            self._backlog.begin(self._transport)
            self._hold_unsent(self._transport.get_write_buffer_size() - FREE_REPLY_BYTES)
        if self._exchange is not None:
            self._exchange.client_paused()

    def _hold_unsent(self, n_bytes: int) -> None:
        """Have room for a large piece that the client has still to take: one event of a translation may be 32 MiB."""
        if n_bytes <= 0:
            return
        if self.ingress.budget.take_for_reply(n_bytes):
            self._n_unsent = n_bytes
        else:
            self._lacks_room = True
            self.deadline_s = self.ingress.loop.time()

    def _give_unsent(self) -> None:
        n_bytes, self._n_unsent = self._n_unsent, 0
        if n_bytes:
            self.ingress.budget.give_of_reply(n_bytes)

    def resume_writing(self) -> None:
        self.is_write_paused = self._lacks_room = False
        self._give_unsent()
        if self._state is _ANSWERING:
            self.deadline_s = 0.0
        elif self._state is _LINGER:
            self._linger()
        elif self._state is _FLUSHING:
            if not self.will_close:
                self._next()
            elif not self._may_stay():
                self._close()
        if self._exchange is not None:
            self._exchange.client_resumed()

    def _await_turn(self, *, is_known: bool = False) -> None:
        """Go on in a later turn of the loop: enough requests have begun in this one. is_known: see TurnBudget."""
        if self._state is _IDLE:
            self.deadline_s = self.ingress.loop.time() + self.ingress.timeouts.header_s
        super()._await_turn(is_known=is_known)

    def turn_came(self) -> None:
        """See TurnWaiter."""
        self._is_in_line = False
        if self._has_left:
            self._leave()
        else:
            self._advance(_TIMED if self._state is _BODY else 0)

    # -- reading a request --------------------------------------------------------------------------

    def _advance(self, n_body: int = 0) -> None:
        """Go as far as the bytes that are here allow, and the time of this turn.

        n_body: bytes of an open body that have just come; _TIMED: their time was noted when they came.
        """
        request = self._request
        if request.waits:
            return
        if self._state < _ANSWERING:
            try:
                is_whole = (self._state is _BODY or self._read_head()) and request.collect()
                while request.is_behind and self.ingress.turns.has_time():
                    is_whole = request.collect()
            except VeloxError as error:
                self._refuse(error)
            else:
                if is_whole and request.head is not None:
                    body, request.body = request.body, None
                    self._submit(request.head, body)
                elif self._state is _BODY and not request.waits:
                    if n_body != _TIMED:
                        now_s = self.ingress.loop.time()
                        self.deadline_s = self._pace.came(n_body, now_s) if n_body else self._pace.begin(now_s)
                    if request.is_behind:
                        self._await_turn()
        if self._read_paused or request.buffered:
            self._read_on()

    def _read_head(self) -> bool:
        """Read a head; True when its body may come."""
        request = self._request
        head = request.head = request.read_head()
        if head is not None:
            return self._check(head)
        self._await_head()
        return False

    def _await_head(self) -> None:
        """The head is not whole: it has its time from its first byte on."""
        if self._state is _IDLE and self._request.buffered:
            self._state = _HEAD
            self.deadline_s = self.ingress.loop.time() + self.ingress.timeouts.header_s

    def _check(self, head: RequestHead) -> bool:
        """Let the application check a head, and take room for the body; True when that may come."""
        ingress = self.ingress
        self._state = _BODY
        if self.is_guarded and head.shape.is_foreign_page:
            raise foreign_host()
        self._caller = ingress.app.check_head(head)
        if not head.shape.is_shared:
            ingress.heads.accept(head)
        if head.content_length and not self._request.reserve(self, min(head.content_length, FIRST_BYTES)):
            self._pause_reading()
            self.deadline_s = 0.0  # the budget has its own
            return False
        if head.shape.expect_continue:
            self._invite_body()
        return True

    def _invite_body(self) -> None:
        """Answer `Expect: 100-continue`, now that the request has passed; not if the body is coming anyway."""
        if not self._request.buffered:
            self.write(http1_write.CONTINUE_100)

    def budget_granted(self, n_bytes: int) -> None:
        """The budget has room for the body that waited."""
        self._request.grant(n_bytes)
        if (head := self._request.head) is not None and head.expect_continue:
            self._invite_body()
        self.ingress.loop.call_soon(self._advance)

    def budget_refused(self) -> None:
        """The body waited as long as a request may."""
        self._refuse(no_room_in_time())

    def _submit(self, head: RequestHead, body: bytes | bytearray | None) -> None:
        self._state = _ANSWERING
        self.deadline_s = 0.0
        exchange = self.ingress.app.submit(self, head, body, self._caller)
        # submit() may have answered already, and the connection may be on to the next request.
        if exchange is not None:
            self._exchange = exchange

    def _refuse(self, error: VeloxError) -> None:
        """Answer an error before there is an exchange. A body that was not read makes the connection unusable."""
        request = self._request
        self._state, self.deadline_s = _ANSWERING, 0.0
        request.leave_line(self)
        request.body = None
        if request.head is not None and (error.close or not request.body_complete):
            request.head.keep_alive = False
        self.ingress.app.refuse(self, request.head, error)

    # -- timers and ends ------------------------------------------------------------------------------

    def on_deadline(self) -> None:
        """A step took too long."""
        state, timeouts = self._state, self.ingress.timeouts
        self.deadline_s = 0.0
        if self.is_write_paused or (state is _LINGER and is_sending(self._transport)):
            if self._transport is not None and not self._lacks_room and self._backlog.is_taken(self._transport):
                self.deadline_s = self.ingress.loop.time() + timeouts.write_s
                return
            exchange, self._exchange = self._exchange, None
            if exchange is not None:
                exchange.client_gone(stalled=True)
            self.abort()
        elif state is _HEAD or (state is _IDLE and self._request.buffered):
            self._refuse(head_too_late(timeouts.header_s))
        elif state is _BODY:
            is_trickle = self._pace.is_trickle(self.ingress.loop.time())
            self._refuse(body_too_slow(self.ingress.pace.rate) if is_trickle else body_too_late(timeouts.body_s))
        elif state is _IDLE:
            self._close_idle()
        else:
            self.abort()

    def _close(self) -> None:
        """Close after what was written has left; our side first, then the client's (RFC 9112 §9.6)."""
        # Bytes that it still sends would otherwise be answered by a reset, which can overtake the reply.
        transport = self._transport
        if transport is None or self._state >= _LINGER:
            return
        self._state = _LINGER
        self._resume_reading()
        if self.ends_at_close and is_sending(transport):
            transport.set_write_buffer_limits(0)  # resume_writing() is when the kernel has all of it
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()
        self._linger()

    def _linger(self) -> None:
        """Give the client time to take what is left, as for any part of a reply; then a little to close."""
        transport = self._transport
        if transport is not None:
            self._backlog.begin(transport)
        waits = is_sending(transport)
        if self.ends_at_close and transport is not None and not waits:
            resets.at_no_close(transport)
        self.deadline_s = self.ingress.loop.time() + (self.ingress.timeouts.write_s if waits else LINGER_S)

    def peer_closed(self) -> None:
        """The client has closed, which was seen though nothing is read from it."""
        if self._exchange is not None or self._state is _BODY:
            self.abort()
        elif self._transport is not None:
            self._transport.close()

    def _close_idle(self) -> None:
        """Close between requests: no reply is on its way that a reset could overtake, so it is done at once."""
        if self._transport is not None:
            self._state = _LINGER
            self._transport.close()
            self.deadline_s = self.ingress.loop.time() + self.ingress.timeouts.write_s

    def cut_off(self, last: bytes, *, reset: bool) -> None:
        """See Http1Replies: the framing stays unfinished, so that no client takes the reply for complete."""
        transport = self._transport
        if transport is None:
            return
        if last:
            transport.write(last)
        self._exchange = None
        self.release_body()
        self._state = _LINGER
        self.deadline_s = self.ingress.loop.time() + self.ingress.timeouts.write_s
        if reset:
            resets.reset(transport)
        else:
            transport.close()

    def hand_over(self, successor: Successor) -> None:
        """See Http1Replies. The connection stays one of the ingress's."""
        self._resume_reading()  # it is no longer watched for a client that leaves while nothing is read from it
        if self._transport is not None:
            successor.take(self._transport, self._request.take_rest(), self.connection_lost)

    def _read_on(self) -> None:
        """Read while what waits is within its limit, and a body has its turn.

        That never holds an open request up: what is here of a body was taken, and half a head is less (Http1Limits).
        """
        if self._request.waits or self._state >= _LINGER:
            return
        if self._request.buffered > _PIPELINE_BYTES or (self._is_in_line and self._state is _BODY):
            self._pause_reading()
        elif self._read_paused:
            self._resume_reading()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._read_paused:
            self._read_paused = True
            self.ingress.paused.add(self)
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and self._read_paused:
            self._read_paused = False
            self.ingress.paused.discard(self)
            self._transport.resume_reading()
