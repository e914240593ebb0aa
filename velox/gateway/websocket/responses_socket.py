"""One WebSocket of the Responses API that Velox answers itself: each message of the client is a request like any other.

    ResponsesSocket   frames in, messages out; one answer at a time in each lane (`stream_id`). A large message is read
                      beside the loop (cpu_work.py); what follows it waits
      Turn            a `response.create` as POST to the same path: the whole way of a request (exchange.py), whose
                      events are messages

Knows: which requests a connection makes, when it ends, what it keeps. Does not know: what happens to a request, or what
is in its events (dialects/responses/socket.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, cast

from velox.dialects.canonical.errors import BadRequestError, BrokenReplyError
from velox.dialects.canonical.model import ApiError, ClientCall
from velox.dialects.openai_errors import kind_of, read_error
from velox.dialects.responses.socket import (
    MessageHead,
    SocketMessages,
    SocketRequest,
    check_prepared,
    head_of,
    is_last,
    parsed_message,
    prepared_messages,
    type_of,
)
from velox.errors import Reason, VeloxError, untraced
from velox.gateway.cpu_work import LARGE_BYTES, in_turns, is_large
from velox.gateway.request.exchange import ExchangeOwner
from velox.gateway.translation.client_request import refusal
from velox.heads import Header, Headers, RequestHead
from velox.net.application import ChunkWriter, Client, ClientExchange, PairsOnly, Successor
from velox.net.client.backlog import Backlog
from velox.net.client.refusals import no_room
from velox.net.message_budget import MessageBudget
from velox.net.tunnel import UNSENT_BYTES, TlsTransport
from velox.net.turn_budget import TurnBudget
from velox.protocol.reply_body import is_events
from velox.protocol.sse_events import SseEvents
from velox.protocol.websocket.frames import (
    BINARY,
    CLOSE,
    MOST_BYTES,
    PING,
    PONG,
    TEXT,
    FrameReader,
    TooLongError,
    close_code_of,
    frame,
)
from velox.protocol.websocket.handshake import GOING_AWAY, POLICY, TOO_LARGE, TRY_LATER, accept_value, close_frame
from velox.providers.rows import OPENAI
from velox.types import Endpoint

__all__ = ["ResponsesSocket"]

_PROTOCOL_ERROR: Final = 1002
_ERRORS_FROM: Final = 400
_SERVER_ERRORS_FROM: Final = 500
_BAD_GATEWAY: Final = 502
_MOST_ERROR_BYTES: Final = 64 * 1024
# The last event of an answer repeats all of it.
_MOST_EVENT_BYTES: Final = 16 * 1024 * 1024
_MOST_WAITING: Final = 32
_MOST_TURNS: Final = 16
# In a row, with no answer between them: such a client is wrong in a way that no further message mends.
_MOST_REFUSED: Final = 64
_CLOSE_S: Final = 2.0  # how long a client may take to answer a Close frame
# Of the handshake alone, or said of each body anew.
_NOT_PASSED: Final = frozenset(
    {
        *(b"accept", b"accept-encoding", b"content-type", b"content-length", b"origin", b"idempotency-key"),
        *(b"x-request-id", b"connection", b"upgrade"),
    }
)
_OF_A_BODY: Final[tuple[Header, ...]] = (
    (b"content-type", b"application/json"),
    (b"accept", b"text/event-stream"),
    (b"accept-encoding", b"identity"),
)
_BETA: Final = (b"openai-beta", b"responses_websockets")


class _Message(NamedTuple):
    """One that waits. n_sent: its bytes. asked, problem: of one that was read beside the loop; its text is let go."""

    head: MessageHead
    n_sent: int
    text: bytes | bytearray
    asked: SocketRequest | None = None
    problem: BadRequestError | VeloxError | None = None

    @property
    def n_bytes(self) -> int:
        return len(self.text) + (0 if self.asked is None else len(self.asked.body))


class ResponsesSocket(asyncio.BufferedProtocol):
    """One connection, from the handshake on. on_closed: called once, when it is gone.

    budget: of time, which all of the worker share in each turn of the loop with what requests have to be worked on.
    """

    def __init__(
        self,
        owner: ExchangeOwner,
        client: Client,
        head: RequestHead,
        budget: TurnBudget,
        on_closed: Callable[[ResponsesSocket], None],
    ) -> None:
        self._owner: Final = owner
        self._client: Final = client
        self._head: Final = head
        self._budget: Final = budget
        self._on_closed: Final = on_closed
        self._limits: Final = owner.parts.tunnels.limits
        self._fields: Final = _turn_fields(head, requires_keys=owner.parts.auth.requires_keys)
        self._message_budget: Final = MessageBudget(owner.parts.tunnels.bodies, self._limits.pace)
        self._most_bytes: Final = min(MOST_BYTES, self._limits.body_bytes)
        self._reader = FrameReader(self._most_bytes)
        self.messages = SocketMessages(passes_unknown=owner.parts.answers is not None)
        self._turns: Final[dict[str | None, Turn]] = {}  # that run, by their lanes
        self._waiting: Final[deque[_Message]] = deque()
        self._looking: asyncio.Task[None] | None = None  # at a large message; meanwhile nothing is read
        self._n_looked_at = 0  # its bytes
        self._transport: asyncio.Transport | None = None
        self._on_lost: Callable[[BaseException | None], None] | None = None
        self._is_gone = False
        self._is_closing = False  # a Close frame was sent
        self._closing_s = 0.0
        self._is_reading = False
        self._is_in_line = False  # frames wait for a later turn of the loop; meanwhile nothing is read
        self._n_refused = 0  # messages, since one was answered
        # Of one read, as one write: a transport that can't send keeps an object for each.
        self._pongs = bytearray()
        self._discards_input = False  # nothing that still comes is looked at
        self.is_write_paused = False
        self._backlog: Final = Backlog(round(self._limits.min_rate_bytes * self._limits.client_write_s))
        self._look_s = 0.0  # while writing is paused: when enough of it must have been taken
        self._began_s: Final = owner.loop.time()
        self.moved_s = self._began_s  # when a message, or an answer, last came to its end

    def __repr__(self) -> str:
        return f"<ResponsesSocket turns={len(self._turns)} waiting={len(self._waiting)}>"

    @property
    def address(self) -> str:
        """The address from which its client connects; "" for a unix socket."""
        return self._client.address

    # -- ClientExchange: the connection has one until it is lost ------------------------------------

    def client_gone(self, *, stalled: bool = False) -> None:
        """The client left; the first call counts."""
        if self._is_gone:
            return
        self._is_gone = True
        self._stop_looking()
        self._waiting.clear()
        self.messages.forget()
        for turn in tuple(self._turns.values()):
            turn.client_gone(stalled=stalled)
        self._turns.clear()
        self._discard_input()
        self._message_budget.shrink(0)
        self._on_closed(self)

    def client_paused(self) -> None:
        """Before the 101 there is nothing to be paused."""

    def client_resumed(self) -> None:
        """See client_paused()."""

    # -- the handshake ------------------------------------------------------------------------------

    def switch(self) -> None:
        """Answer 101, and take the connection over."""
        if self._is_gone:
            return
        offer = self._head.offer
        assert offer is not None, "asked for heads that offer one"
        headers = [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-accept", accept_value(offer.key)),
        ]
        # A browser that offers some wants one of them; those with a key in them are none.
        names = [name for name in offer.protocols if b"." not in name]
        if names:
            headers.append((b"sec-websocket-protocol", names[0]))
        headers.append((b"x-velox-request-id", self._owner.parts.recorder.next_id()))
        self._client.switch(headers, cast(Successor, self))

    def take(self, transport: asyncio.Transport, early: bytes, on_lost: Callable[[BaseException | None], None]) -> None:
        """See Successor."""
        self._transport = transport
        self._on_lost = on_lost
        if transport.is_reading():
            transport.pause_reading()  # it looks at the kind of its protocol when it begins to read
        transport.set_write_buffer_limits(UNSENT_BYTES)
        if hasattr(transport, "set_read_buffer_limits"):
            cast(TlsTransport, transport).set_read_buffer_limits(1, 0)
        transport.set_protocol(self)
        if early:
            self._received(early)
        self._update_reading()

    # -- asyncio.BufferedProtocol -------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._owner.parts.tunnels.buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        self._received(bytes(self._owner.parts.tunnels.buffer.view[:nbytes]))

    def eof_received(self) -> bool:
        # As over HTTP, the client has left. What runs is not kept until it has taken what was written,
        # which may be never.
        if self._turns and self._transport is not None:
            self._transport.abort()
        else:
            self._end()
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self.client_gone()
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(exc)

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._look_s = self._owner.loop.time() + self._limits.client_write_s
        if self._transport is not None:
            self._backlog.begin(self._transport)
        for turn in self._turns.values():
            turn.client_paused()
        # Nor is more read: whatever the client sends may have an answer that waits, too.
        self._update_reading()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        for turn in tuple(self._turns.values()):
            if self.is_write_paused:  # again, by what another one had at hand
                return
            turn.client_resumed()
        self._read()
        self._settle()

    # -- the room for what is held --------------------------------------------------------------------

    @property
    def _n_held(self) -> int:
        """Bytes of messages: of one that has begun, of those that wait, of those that are answered."""
        n_bytes = self._reader.held_bytes + sum(turn.n_bytes for turn in self._turns.values())
        return n_bytes + self._n_looked_at + sum(each.n_bytes for each in self._waiting)

    def _settle(self) -> None:
        """Have room for what is held, or wait for it."""
        self._message_budget.hold(self._n_held, self)
        self._update_reading()

    def resume_reading(self) -> None:
        """See PausedConnection."""
        self._settle()

    def message_refused(self) -> None:
        """See PausedConnection."""
        self.close(TRY_LATER, "no memory for this message came free in time")

    # -- what the client sends ----------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        self.moved_s = self._owner.loop.time()
        if not self._discards_input:
            self._reader.add(data)
            self._read()
            self._settle()
            self._message_budget.came(len(data), self.moved_s, is_open=self._reader.held_bytes > 0 and self._is_reading)

    def _read(self) -> None:
        """Take what has come, frame by frame, while the client takes what it is told and there is time for it."""
        if self._is_in_line:
            return
        try:
            while not (self.is_write_paused or self._discards_input or self._looking is not None):
                if not self._budget.has_time():
                    self._is_in_line = True
                    self._budget.wait(self)
                    break
                if (taken := self._reader.take()) is None:
                    break
                self._take_frame(*taken)
        except TooLongError as exc:
            self._discard_input()
            self.close(TOO_LARGE, str(exc))
        except ValueError as exc:
            self._discard_input()
            self.close(_PROTOCOL_ERROR, str(exc))
        if self._pongs and not self._is_closing:
            self._write(bytes(self._pongs))
        self._pongs.clear()

    def turn_came(self) -> None:
        """See TurnWaiter."""
        self._is_in_line = False
        if self._transport is not None:
            self._read()
            self._settle()

    def _discard_input(self) -> None:
        """Drop all that still comes: it can't be read, or is of no use."""
        self._discards_input = True
        self._reader = FrameReader()

    def _update_reading(self) -> None:
        """Read from the client, or not."""
        waits = self.is_write_paused or self._message_budget.waits or self._is_in_line or self._looking is not None
        transport, may_read = self._transport, not waits
        if transport is None or transport.is_closing() or may_read is self._is_reading:
            return
        self._is_reading = may_read
        if may_read:
            transport.resume_reading()
            self._message_budget.came(0, self._owner.loop.time(), is_open=self._reader.held_bytes > 0)
        else:
            transport.pause_reading()
            self._message_budget.stand_still()

    def _take_frame(self, opcode: int, payload: bytes | bytearray) -> None:
        if opcode == PING:
            self._pongs += frame(bytes(payload), PONG)
        elif opcode == CLOSE:
            if not self._is_closing:
                self._write(frame(close_code_of(bytes(payload)).to_bytes(2), CLOSE))
            self._end()
        elif opcode in (TEXT, BINARY) and not self._is_closing:
            self._take_message(payload)

    def _take_message(self, text: bytes | bytearray) -> None:
        if is_large((text,)):
            self._look_at(text)
            return
        try:
            head = head_of(text)
        except BadRequestError as exc:
            self._refuse(exc, None)
            return
        if (self.messages.n_kept_before(head) or 0) > LARGE_BYTES:
            self._look_at(text)
        else:
            self._wait(_Message(head, len(text), text))

    def _wait(self, message: _Message) -> None:
        n_bytes = message.n_sent + sum(each.n_sent for each in self._waiting)
        if len(self._waiting) >= _MOST_WAITING or n_bytes > self._most_bytes:
            self.close(POLICY, "too many messages wait for their answers")
            return
        self._waiting.append(message)
        self._go_on()

    def _look_at(self, text: bytes | bytearray) -> None:
        """Read a message, beside the loop."""
        self._n_looked_at = len(text)
        self._looking = self._owner.loop.create_task(self._look(text), name="look at a message")

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking, self._n_looked_at = None, 0

    async def _look(self, text: bytes | bytearray) -> None:
        # A task that ends as cancelled keeps the error, whose traceback leads to what it ran, and that to the task.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                message = await self._looked_at(text)
            except BadRequestError as exc:
                self._stopped_looking()
                self._refuse(exc, None)
            except Exception as exc:
                self._owner.parts.recorder.crashed(exc)
                self._stopped_looking()
                self.close(TRY_LATER, "an error inside Velox; it was recorded")
            else:
                self._stopped_looking()
                self._wait(message)
            self._read()
            self._settle()

    def _stopped_looking(self) -> None:
        self._looking, self._n_looked_at = None, 0

    async def _looked_at(self, text: bytes | bytearray) -> _Message:
        """Read a message. Raises BadRequestError for one that has no head."""
        owner = self._owner
        looked = await owner.thread.run(partial(parsed_message, self.messages, text))
        problem: BadRequestError | VeloxError | None = looked.problem
        try:
            await in_turns(owner.parts.reader.read_in_steps(text), self._budget)  # as in _ask()
        except VeloxError as exc:
            problem = untraced(exc)
        # What goes on with an answer that is not there yet is read again when it is.
        is_early = problem is looked.problem and problem is not None and looked.head.before is not None
        kept = text if is_early else b""
        return _Message(looked.head, len(text), kept, looked.asked if problem is None else None, problem)

    def _go_on(self) -> None:
        """Begin what waits and may begin: one answer at a time in each lane, in the order of the messages.

        In a drain none does: a client that always has another one would be cut at its end.
        """
        if self._owner.draining:
            if not self._turns:
                self._leave()
            return
        held: set[str | None] = set(self._turns)
        for _ in range(len(self._waiting)):
            if self._is_gone or self._is_closing:
                return
            message = self._waiting.popleft()
            lane = message.head.stream_id
            if lane in held or len(self._turns) >= _MOST_TURNS:
                held.add(lane)
                self._waiting.append(message)
                continue
            self._ask(lane, message)
            if lane in self._turns:
                held.add(lane)
        self._settle()

    def _ask(self, lane: str | None, message: _Message) -> None:
        """Make a request of a message."""
        owner, asked, problem = self._owner, message.asked, message.problem
        is_looked_at = asked is not None
        try:
            if problem is not None and (not message.text or self.messages.n_kept_before(message.head) is None):
                raise problem
            if asked is None:
                owner.parts.reader.read(message.text)  # as the body of a request: what stands twice there is refused
                asked = self.messages.asked(message.text)
        except (BadRequestError, VeloxError) as exc:
            self._refuse(untraced(exc), lane)
            return
        head = RequestHead.of(b"POST", self._head.target, self._fields, len(asked.body))
        turn = Turn(self, asked, lane)
        try:
            caller = owner.check_head(head)  # the key may be one of yesterday
            if asked.generate:
                self._check_body(turn)
        except VeloxError as error:
            owner.refuse(turn, head, error)
            return
        if not asked.generate:
            self._prepare(asked, is_checked=is_looked_at)
            return
        self._turns[lane] = turn
        turn.begin(owner.submit(turn, head, asked.body, caller))

    def _prepare(self, asked: SocketRequest, *, is_checked: bool) -> None:
        """Keep a conversation that no model is asked for."""
        number = self._owner.parts.recorder.next_id().decode("ascii").replace("-", "")
        call = ClientCall(number, int(time.time()), "", stream=True)
        try:
            if not is_checked:
                check_prepared(asked)
        except BadRequestError as exc:
            self._refuse(exc, asked.stream_id)
            return
        for told in prepared_messages(self.messages, asked, call):
            self.send(told)

    def _check_body(self, turn: Turn) -> None:
        """Take room for a request; with the conversation before it, it may be longer than its message."""
        most_bytes = self._limits.body_bytes
        if turn.n_bytes > most_bytes:
            message = f"body is over the limit of {most_bytes} bytes (VELOX_MAX_BODY)"
            raise VeloxError(Reason.BODY_TOO_LARGE, message)
        if not self._message_budget.take_now(self._n_held + turn.n_bytes):
            raise no_room(close=False)

    def _refuse(self, exc: BadRequestError | VeloxError, lane: str | None) -> None:
        """Refuse a message that makes no request. For the key and its limits it counts as one."""
        owner = self._owner
        head = RequestHead.of(b"POST", self._head.target, self._fields, 0)
        turn = Turn(self, SocketRequest(b"", 0, lane), lane)
        try:
            owner.parts.limiter.count_refused(owner.check_head(head), time.monotonic_ns())
        except VeloxError as error:
            owner.refuse(turn, head, error)
            return
        if isinstance(exc, VeloxError):
            owner.refuse(turn, head, exc)
            return
        recorder = owner.parts.recorder
        recorder.refused(recorder.next_id(), head, Endpoint.RESPONSES, refusal(exc), self.address)
        self.send(self.messages.error(self.messages.refusal(exc), lane))
        self.refused()

    # -- for its turns ------------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        """Send a message."""
        if not self._is_closing:
            self._write(frame(message))

    def refused(self) -> None:
        """Note that a message was refused. One that is refused again and again closes the connection."""
        self._n_refused += 1
        if self._n_refused >= _MOST_REFUSED:
            self.close(POLICY, "too many messages in a row were refused")

    def answered(self) -> None:
        """Note that an upstream answers a message."""
        self._n_refused = 0

    def turn_over(self, turn: Turn) -> None:
        """Note that an answer has ended: the next may begin."""
        if self._turns.get(turn.lane) is turn:
            del self._turns[turn.lane]
            self._settle()
            self.moved_s = self._owner.loop.time()
            if self._waiting or self._owner.draining:
                self._owner.loop.call_soon(self._go_on)  # not from within the end of the one before

    # -- ends ---------------------------------------------------------------------------------------

    def check(self, now_s: float, *, is_short_of_memory: bool) -> None:
        """End what takes too long, or lasts while the worker leaves. now_s: the loop's time."""
        limits, transport = self._limits, self._transport
        if transport is None:
            return
        if is_short_of_memory:
            self.messages.forget()
        if self._is_closing:
            if now_s - self._closing_s >= _CLOSE_S:
                transport.abort()
        elif self._is_stalled(transport, now_s):
            self.client_gone(stalled=True)
            transport.abort()
        elif self._owner.draining and not self._turns:
            self._leave()
        elif self._message_budget.is_late(now_s):
            self.close(POLICY, "a message came too slowly (VELOX_BODY_TIMEOUT, VELOX_CLIENT_MIN_RATE)")
        elif limits.total_s and now_s - self._began_s >= limits.total_s:
            self.close(GOING_AWAY, "the connection has reached its longest time")
        elif not self._turns and now_s - self.moved_s >= limits.idle_s:
            self.close(GOING_AWAY, "no message came for too long")

    def _is_stalled(self, transport: asyncio.Transport, now_s: float) -> bool:
        """Say whether the client has taken too little of what waits for it."""
        if not self.is_write_paused or now_s < self._look_s:
            return False
        self._look_s = now_s + self._limits.client_write_s
        return not self._backlog.is_taken(transport)

    def _leave(self) -> None:
        """Close: this worker drains, and no answer runs here."""
        self.close(GOING_AWAY, "the gateway is shutting down")

    def close(self, code: int, text: str) -> None:
        """Send a Close frame; what runs is given up. The connection ends when the client has answered it."""
        if self._is_closing:
            return
        self._write(close_frame(code, text))
        self._is_closing = True
        self._closing_s = self._owner.loop.time()
        self._reader.skip_messages()
        self._stop_looking()
        self._waiting.clear()
        for turn in tuple(self._turns.values()):
            turn.client_gone()
        self._turns.clear()
        self._message_budget.shrink(0)
        self._update_reading()

    def _end(self) -> None:
        """Both Close frames were sent (RFC 6455 §7.1.1)."""
        self._is_closing = True
        self._closing_s = self._owner.loop.time()
        self._discard_input()
        self._stop_looking()
        self._waiting.clear()
        if self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self.is_write_paused:
                self._backlog.wrote(len(data))
            self._transport.write(data)


class Turn(PairsOnly):
    """One request of a connection, and the client that its reply is for."""

    __slots__ = (
        "_asked",
        "_events",
        "_exchange",
        "_is_over",
        "_is_told",
        "_refusal",
        "_socket",
        "_status",
        "lane",
        "n_bytes",
    )

    may_run_ahead: Final = False
    chunk_writer: Final[ChunkWriter | None] = None

    def __init__(self, socket: ResponsesSocket, asked: SocketRequest, lane: str | None) -> None:
        self.lane: Final = lane
        self._socket: Final = socket
        self.n_bytes: Final = len(asked.body)  # it is held to the end: the conversation is kept then
        self._asked: Final = asked
        self._exchange: ClientExchange | None = None
        self._events: SseEvents | None = None  # of a reply that streams
        self._refusal = b""  # any other reply
        self._status = 0
        self._is_told = False  # the client knows how it ended
        self._is_over = False

    def __repr__(self) -> str:
        return f"<Turn lane={self.lane} status={self._status} {'over' if self._is_over else 'runs'}>"

    def begin(self, exchange: ClientExchange | None) -> None:
        """Take what runs for it."""
        if not self._is_over:
            self._exchange = exchange

    # -- what the connection tells it ---------------------------------------------------------------

    def client_gone(self, *, stalled: bool = False) -> None:
        """Nobody waits for it any more."""
        self._is_over = self._is_told = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone(stalled=stalled)

    def client_paused(self) -> None:
        if self._exchange is not None:
            self._exchange.client_paused()

    def client_resumed(self) -> None:
        if self._exchange is not None:
            self._exchange.client_resumed()

    # -- Client ---------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """See Client."""
        return self._socket.address

    @property
    def is_write_paused(self) -> bool:
        """See Client."""
        return self._socket.is_write_paused

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """See Client."""
        self._status = status
        media = next((value for name, value in headers if name == b"content-type"), b"")
        if status < _ERRORS_FROM:
            self._socket.answered()
            if is_events(media):
                self._events = SseEvents(_MOST_EVENT_BYTES)
        self.body(data, end)

    def body(self, data: bytes, end: bool) -> None:
        """See Client."""
        if self._is_told:
            return
        events = self._events
        if events is None:
            self._refusal += data[: _MOST_ERROR_BYTES - len(self._refusal)]
            return
        try:
            found = events.feed(data)
            if end:
                found += events.end()
        except BrokenReplyError as exc:
            self._fail(ApiError(kind_of(_BAD_GATEWAY), _BAD_GATEWAY, str(exc)))
            return
        for _, event in found:
            self._tell(event)

    def cut(self, last: bytes) -> None:
        """See Client: the error that is told is the end of the answer, which is none."""
        self.body(last, False)
        self._end()

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """See Client: an error of Velox's own."""
        self._status, self._refusal = status, body
        self._end()
        if _ERRORS_FROM <= status < _SERVER_ERRORS_FROM:
            self._socket.refused()

    def switch(self, headers: Headers, successor: Successor) -> None:
        """Never called: its head offers nothing."""
        raise AssertionError("only a head with an offer")

    def finish(self) -> None:
        """See Client."""
        self._end()

    def hold_more(self, n_bytes: int) -> bool:
        """Never called: no message is coded."""
        raise AssertionError("only a body with a coding")

    def release_body(self) -> None:
        """See Client: the body goes with the exchange."""

    # -- inside ---------------------------------------------------------------------------------------

    def _tell(self, event: bytes) -> None:
        """Send an event as a message; an error without a type, as servers send it in any stream, gets one."""
        if self._is_told or not event.startswith(b"{"):
            return  # what comes behind the end, and marks like [DONE]
        kind = type_of(event)
        if not kind:
            self._fail(read_error(_BAD_GATEWAY, event))
            return
        self._is_told = is_last(kind)
        for message in self._socket.messages.messages(self._asked, [event]):
            self._socket.send(message)

    def _fail(self, error: ApiError) -> None:
        if not self._is_told:
            self._is_told = True
            self._socket.send(self._socket.messages.error(error, self.lane))

    def _end(self) -> None:
        """The reply is over; an answer that has come to no end of its own was cut."""
        if self._is_over:
            return
        self._is_over = True
        self._exchange = None
        if self._events is None and self._status >= _ERRORS_FROM:
            self._fail(self._socket.messages.told(read_error(self._status, self._refusal)))
        else:
            message = "the upstream's stream ended before the answer was whole"
            if self._events is None:
                message = "the upstream answered with no event stream, which was asked for"
            self._fail(ApiError(kind_of(_BAD_GATEWAY), _BAD_GATEWAY, message))
        self._socket.turn_over(self)


def _turn_fields(head: RequestHead, *, requires_keys: bool) -> tuple[Header, ...]:
    """Return the fields of the requests that a handshake leads to: its own, with a key of its protocols as a header.

    requires_keys: the gateway; then either of two credentials may be the known one.
    """
    name, start = _BETA
    fields = [
        field
        for field in head.headers
        if field[0] not in _NOT_PASSED and not (field[0] == name and field[1].startswith(start))
    ]
    offer = head.offer
    keys = {OPENAI.key_in(protocol) for protocol in offer.protocols} - {b""} if offer is not None else set()
    if keys and not any(field[0] == b"authorization" for field in fields):
        fields.append((b"authorization", b"Bearer " + keys.pop()))
    if requires_keys:
        fields += [(b"x-api-key", key) for key in keys]
    return (*fields, *_OF_A_BODY)
