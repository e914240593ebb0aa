"""The client side: one HTTP/1.1 connection, one request at a time, strictly in order.

Knows: sockets, the connection's timers, when to read on and when to stop. Does not know: framing rules
(protocol/http1.py) or what a request means (gateway/, behind application.py).

Requests that a client pipelines stay unparsed bytes until the one before has been answered (R-H1-10).
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from typing import Final, cast

from velox.errors import Reason, VeloxError
from velox.net.application import Application, ClientExchange, ClientTimeouts
from velox.net.body_budget import BodyBudget
from velox.protocol.http1 import Http1Limits, RequestDecoder
from velox.protocol.http1_write import CONTINUE_100
from velox.types import RequestHead

__all__ = ["ClientConnection", "Ingress"]

# What a client may send ahead while its request is being answered; more stays in the kernel (R-H1-10).
_PIPELINE_BYTES: Final = 64 * 1024
# After an early refusal the rest of the request is read and thrown away for this long, so that the client sees the
# refusal and not a reset (RFC 9112 §9.6).
_LINGER_S: Final = 2.0
_SWEEP_S: Final = 0.25
# A drain waits this long for the first request of a connection that came just before it.
_FIRST_REQUEST_S: Final = 0.5
# struct linger {on, 0 s}: close() sends RST instead of FIN.
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class _State(enum.IntEnum):
    IDLE = 0  # between requests
    HEAD = 1  # part of a head has come
    BODY = 2
    ANSWERING = 3
    LINGER = 4  # answered early; what still comes is thrown away
    CLOSED = 5


class Ingress:
    """What the connections of one worker share."""

    def __init__(
        self,
        app: Application,
        limits: Http1Limits,
        timeouts: ClientTimeouts,
        budget: BodyBudget,
        loop: asyncio.AbstractEventLoop,
        *,
        max_connections: int,
    ) -> None:
        self.app: Final = app
        self.limits: Final = limits
        self.timeouts: Final = timeouts
        self.budget: Final = budget
        self.loop: Final = loop
        self.max_connections: Final = max_connections
        self.connections: Final[set[ClientConnection]] = set()
        self.draining = False
        self._sweeper: asyncio.TimerHandle | None = None

    def connection(self) -> ClientConnection:
        """Make the protocol of an accepted socket."""
        return ClientConnection(self)

    def start(self) -> None:
        """Begin to watch the connections' deadlines."""
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)

    def stop(self) -> None:
        """Stop watching, and abort what is still open."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in tuple(self.connections):
            connection.abort()

    def drain(self) -> None:
        """Answer what has begun, then close each connection."""
        self.draining = True
        for connection in tuple(self.connections):
            connection.close_if_idle()

    def _sweep(self) -> None:
        # One timer for all connections: arming one per request would cost each request about a microsecond.
        now = self.loop.time()
        for connection in tuple(self.connections):
            if connection.deadline_s and now >= connection.deadline_s:
                connection.on_deadline()
        self.budget.expire()
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)


class ClientConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, ingress: Ingress) -> None:
        self.deadline_s = 0.0  # loop time; 0: none
        self._ingress: Final = ingress
        self._decoder: Final = RequestDecoder(ingress.limits)
        self._transport: asyncio.Transport | None = None
        self._state = _State.IDLE
        self._head: RequestHead | None = None
        self._caller = ""
        self._body: bytes | bytearray | None = None
        self._held_bytes = 0  # taken from the body budget
        self._exchange: ClientExchange | None = None
        self._read_paused = False
        self._write_paused = False
        self._is_new = True

    def __repr__(self) -> str:
        return f"<ClientConnection {self._state.name} buffered={self._decoder.buffered} held={self._held_bytes}>"

    # -- for the gateway --------------------------------------------------------------------------

    @property
    def is_write_paused(self) -> bool:
        """True while the client reads more slowly than it is written to."""
        return self._write_paused

    @property
    def will_close(self) -> bool:
        """True when this reply is the connection's last."""
        return self._ingress.draining or self._head is None or not self._head.keep_alive

    def write(self, data: bytes) -> None:
        """Send bytes of the reply. Nothing happens when the client has left."""
        if self._transport is not None:
            self._transport.write(data)

    def release_body(self) -> None:
        """The request's body is no longer held: its bytes go back to the budget."""
        if self._held_bytes:
            self._ingress.budget.give(self._held_bytes)
            self._held_bytes = 0

    def finish(self, *, close: bool) -> None:
        """The reply has been written to its end."""
        self._exchange = None
        self.release_body()
        if self._transport is None:
            return
        if close or self.will_close:
            self._close()
            return
        self._head = None
        self._body = None
        self._is_new = False
        self._state = _State.IDLE
        self.deadline_s = self._ingress.loop.time() + self._ingress.timeouts.keepalive_s
        self._resume_reading()
        if self._decoder.buffered:
            # Not from here: a client that pipelines thousands of requests must not grow the stack.
            self._ingress.loop.call_soon(self._advance)

    def abort(self) -> None:
        """Reset the connection: the reply must not look complete."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Draining: close unless a request has begun, or the first one may be on its way."""
        if self._state is not _State.IDLE or self._decoder.buffered:
            return
        if self._is_new:
            self.deadline_s = self._ingress.loop.time() + _FIRST_REQUEST_S
        else:
            self._close()

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        ingress = self._ingress
        ingress.connections.add(self)
        first_s = _FIRST_REQUEST_S if ingress.draining else ingress.timeouts.header_s
        self.deadline_s = ingress.loop.time() + first_s
        if len(ingress.connections) > ingress.max_connections:
            message = f"this worker has {ingress.max_connections} connections, its limit (VELOX_MAX_CONNECTIONS)"
            self._refuse(VeloxError(Reason.CONN_LIMIT, message, retry_after_s=1.0, close=True))

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is _State.LINGER or state is _State.CLOSED:
            return
        self._decoder.feed(data)
        if state is _State.ANSWERING:
            if self._decoder.buffered > _PIPELINE_BYTES:
                self._pause_reading()
            return
        self._advance()

    def eof_received(self) -> bool:
        # A client that closes its sending side is taken to have left (R-CANCEL-1).
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self._state = _State.CLOSED
        self._ingress.connections.discard(self)
        self._ingress.budget.forget(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        self.release_body()
        self._body = None

    def pause_writing(self) -> None:
        self._write_paused = True
        self.deadline_s = self._ingress.loop.time() + self._ingress.timeouts.write_s
        if self._exchange is not None:
            self._exchange.client_paused()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._state is _State.ANSWERING:
            self.deadline_s = 0.0
        if self._exchange is not None:
            self._exchange.client_resumed()

    # -- reading a request --------------------------------------------------------------------------

    def _advance(self) -> None:
        """Go as far as the bytes that are here allow."""
        if self._state >= _State.ANSWERING:
            return
        try:
            if self._state is not _State.BODY and not self._read_head():
                return
            if not self._read_body():
                return
        except VeloxError as error:
            self._refuse(error)
            return
        self._submit()

    def _read_head(self) -> bool:
        ingress = self._ingress
        head = self._decoder.read_head()
        if head is None:
            if self._state is _State.IDLE and self._decoder.buffered:
                self._state = _State.HEAD
                self.deadline_s = ingress.loop.time() + ingress.timeouts.header_s
            return False
        self._head = head
        self._state = _State.BODY
        self._caller = ingress.app.check_head(head)
        if head.content_length and not self._take_budget(head.content_length):
            return False
        self._invite_body(head)
        return True

    def _invite_body(self, head: RequestHead) -> None:
        """Answer `Expect: 100-continue`, now that the request has passed (R-H1-9); not if the body is coming anyway."""
        if head.expect_continue and head.has_body and not self._decoder.buffered:
            self.write(CONTINUE_100)

    def _take_budget(self, n_bytes: int) -> bool:
        """Reserve room for a body; without it, stop reading until budget_granted()."""
        if self._ingress.budget.take(self, n_bytes):
            self._held_bytes += n_bytes
            return True
        self._pause_reading()
        self.deadline_s = 0.0  # the budget has its own
        return False

    def budget_granted(self, n_bytes: int) -> None:
        """The budget has room for the body that waited."""
        self._held_bytes += n_bytes
        self._resume_reading()
        if self._head is not None:
            self._invite_body(self._head)
        self._ingress.loop.call_soon(self._advance)

    def budget_refused(self) -> None:
        """The body waited as long as a request may."""
        message = "no memory for this request's body came free in time (VELOX_BODY_BUDGET)"
        self._refuse(VeloxError(Reason.OVERLOAD_MEMORY, message, retry_after_s=1.0))

    def _read_body(self) -> bool:
        """Collect what is here of the body; True when it is whole."""
        if self._ingress.budget.is_waiting(self):
            return False
        decoder, head = self._decoder, self._head
        assert head is not None, "a body follows its head"
        piece = decoder.read_body()
        if head.chunked and piece:
            # Its length was not announced: what does not fit is refused, there is no way to wait in the middle.
            if not self._ingress.budget.take_now(len(piece)):
                message = "no memory for this request's body (VELOX_BODY_BUDGET)"
                raise VeloxError(Reason.OVERLOAD_MEMORY, message, retry_after_s=1.0, close=True)
            self._held_bytes += len(piece)
        if decoder.body_complete and self._body is None:
            # The usual case: the request came in one read, and its body is one slice of it.
            self._body = piece if head.has_body else None
        elif piece:
            if not isinstance(self._body, bytearray):
                self._body = bytearray()
            self._body += piece
        if not decoder.body_complete:
            self.deadline_s = self._ingress.loop.time() + self._ingress.timeouts.body_s
            return False
        return True

    def _submit(self) -> None:
        head = self._head
        assert head is not None, "a request is submitted after its head was read"
        self._state = _State.ANSWERING
        self.deadline_s = 0.0
        body, self._body = self._body, None
        exchange = self._ingress.app.submit(self, head, body, self._caller)
        # submit() may have answered already, and the connection may be on to the next request.
        if exchange is not None:
            self._exchange = exchange

    def _refuse(self, error: VeloxError) -> None:
        """Answer an error before there is an exchange. A body that was not read makes the connection unusable."""
        self._state = _State.ANSWERING
        self.deadline_s = 0.0
        self._ingress.budget.forget(self)
        self._body = None
        close = error.close or not self._decoder.body_complete
        if close and self._head is not None:
            self._head.keep_alive = False
        self._ingress.app.refuse(self, self._head, error)

    # -- timers and ends ------------------------------------------------------------------------------

    def on_deadline(self) -> None:
        """A step took too long."""
        state, timeouts = self._state, self._ingress.timeouts
        self.deadline_s = 0.0
        if self._write_paused:
            # Whatever was still to come, the client does not take it.
            exchange, self._exchange = self._exchange, None
            if exchange is not None:
                exchange.client_gone(stalled=True)
            self.abort()
        elif state is _State.HEAD or (state is _State.IDLE and self._decoder.buffered):
            message = f"the request's head was not complete after {timeouts.header_s:g} s"
            self._refuse(VeloxError(Reason.HEADER_TIMEOUT, message, close=True))
        elif state is _State.BODY:
            message = f"no byte of the request's body came for {timeouts.body_s:g} s"
            self._refuse(VeloxError(Reason.BODY_TIMEOUT, message, close=True))
        elif state is _State.IDLE:
            self._close()
        else:
            self.abort()

    def _close(self) -> None:
        """Close after what was written has left.

        Our side first, then the client's: bytes that it still sends would otherwise be answered by a reset, which can
        overtake the reply (RFC 9112 §9.6).
        """
        transport = self._transport
        if transport is None or self._state >= _State.LINGER:
            return
        self._state = _State.LINGER
        self._resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()
        # A slow client gets the time that it gets for any part of a reply.
        unsent = transport.get_write_buffer_size()
        self.deadline_s = self._ingress.loop.time() + (self._ingress.timeouts.write_s if unsent else _LINGER_S)

    def cut(self, last: bytes, *, reset: bool) -> None:
        """End a reply that is not whole: the framing stays unfinished, so that no client takes it for complete.

        last: bytes that still go out before. reset: where only a reset tells (a reply that ends at close).
        """
        transport = self._transport
        if transport is None:
            return
        if last:
            transport.write(last)
        self._exchange = None
        self.release_body()
        self._state = _State.LINGER
        self.deadline_s = self._ingress.loop.time() + self._ingress.timeouts.write_s
        if reset:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            transport.abort()
        else:
            transport.close()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()
