"""A tunnel: a client's and an upstream's connection, whose bytes are each other's from a 101 on.

Knows: who is held up while the other one is slow, how an end on one side becomes an end on the other, when a tunnel has
taken too long, how it is closed from here. Does not know: HTTP, why it was opened, what is in a frame
(protocol/websocket).

    one side sends    the other gets the same bytes; above 64 KiB unsent the sender is not read
    a message waits   while others are asked about it (HoldingGate): its sender is not read, the other one is
    one side ends     what it sent goes out, then the other side's connection ends too. No Close frame is invented: a
                      cut looks like a cut (RFC 6455 §7.1.5, code 1006)
    close()           both sides get a Close frame at the next end of a frame; when they have answered it, or after
                      CLOSE_S, their connections are closed
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from velox.errors import Reason, VeloxError
from velox.net.client.backlog import unsent_bytes
from velox.net.client.body_budget import BodyBudget
from velox.net.message_budget import MessageBudget
from velox.net.tls_unread import unread
from velox.net.upstream.interface import ReadBuffer, UpstreamFailure
from velox.net.upstream.read_pace import ReadPace
from velox.policy.pace import PaceRules
from velox.protocol.websocket.handshake import GOING_AWAY, POLICY, TRY_LATER, FrameScanner, close_frame
from velox.protocol.websocket.messages import MessageError

__all__ = [
    "CLOSE_S",
    "READ_BYTES",
    "UNSENT_BYTES",
    "Asking",
    "Gate",
    "HoldingGate",
    "TlsTransport",
    "Tunnel",
    "TunnelEnd",
    "TunnelLimits",
]

# Asks others what a message has to wait for.
Asking = Callable[[Sequence[str]], Awaitable[None]]

# What may wait to be sent on one side before the other is not read any more.
UNSENT_BYTES: Final = 64 * 1024
# One read; together with what may wait before it, the most that a tunnel holds in each direction.
READ_BYTES: Final = 64 * 1024
# How long a closing handshake may take that we began. Shorter than the worker's last wait of a drain.
CLOSE_S: Final = 0.4
# When one side has ended, how long the other one may take for it, after it has taken all bytes.
_HALF_CLOSED_S: Final = 2.0
_TEXT_BYTES: Final = 120  # RFC 6455 §5.5: of a Close frame


class Gate(Protocol):
    """What looks at the messages of one direction, or reads them as they pass."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may go on. Raises MessageError or VeloxError: none may any more."""


class HoldingGate(Gate, Protocol):
    """One that holds messages until they are whole. wanted: what must be asked before the next one may go on."""

    wanted: Sequence[str]

    @property
    def held_bytes(self) -> int:
        """What came and has not gone on."""

    def answered(self) -> None:
        """Go on, with the next feed(): what was wanted is known now, or can't be."""


class TlsTransport(Protocol):
    """What a TLS transport has beside asyncio.Transport."""

    def set_read_buffer_limits(self, high: int, low: int) -> None:
        """Stop to read from the socket while so many bytes wait for an application that has paused."""


@dataclass(frozen=True, slots=True)
class TunnelLimits:
    """Seconds. idle_s: without a byte in either direction. total_s: from the 101 on; 0: no limit.

    client_write_s, upstream_write_s: how long one side may take nothing of what waits for it. min_rate_bytes: what a
    client must take a second where Velox answers itself, and send of a message that is held back; 0: any.

    message_idle_s: longest silence inside such a message. body_bytes: the most of it, and of a request that it makes.
    """

    idle_s: float = 300.0
    total_s: float = 0.0
    client_write_s: float = 30.0
    upstream_write_s: float = 30.0
    min_rate_bytes: int = 0
    message_idle_s: float = 15.0
    body_bytes: int = 64 * 1024 * 1024

    @property
    def pace(self) -> PaceRules:
        """How slow a message may come that is held back."""
        return PaceRules(self.message_idle_s, self.min_rate_bytes)


class Tunnel:
    """Both sides of it. on_end: called once, when both connections are closed, with what ended it; None: a WebSocket's
    own closing handshake.

    buffer: for the reads of all tunnels of a worker. clock: seconds, that go on within a turn of the loop: a read may
    hold ten thousand frames, and no side takes more than a millisecond or two of a turn.
    """

    def __init__(
        self,
        buffer: ReadBuffer,
        limits: TunnelLimits,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[VeloxError | None], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.loop: Final = loop
        self.client: Final = TunnelEnd(self, buffer, clock, is_server=False)
        self.upstream: Final = TunnelEnd(self, buffer, clock, is_server=True)
        self.client.peer, self.upstream.peer = self.upstream, self.client
        self.goodbye = ""  # the text of our Close frames, from close() on
        self.goodbye_code = GOING_AWAY
        self.close_code: int | None = None  # of the first Close frame, whoever sent it
        self.moved_s = loop.time()  # when the last byte came, from either side
        self._began_s: Final = self.moved_s
        self._limits: Final = limits
        self._on_end: Callable[[VeloxError | None], None] | None = on_end  # until then
        self._error: VeloxError | None = None
        self._first: TunnelEnd | None = None  # whose end came first
        self._first_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "closing" if self._error else "half closed" if self._first else "open"
        return f"<Tunnel {state} up={self.client.n_bytes} down={self.upstream.n_bytes} close={self.close_code}>"

    def guard(
        self, gate: HoldingGate, watch: Gate | None, bodies: BodyBudget, asks_others: Asking | None = None
    ) -> None:
        """Have what comes from the client looked at before it passes. watch: of what comes from the upstream.

        bodies: the room for what is held of messages, and for what of a large one the upstream has still to take.
        asks_others: for what the gate wants; None: it wants nothing.
        """
        self.upstream.gate = watch
        self.client.hold(gate, MessageBudget(bodies, self._limits.pace), asks_others)

    def tap(self, up: Gate, down: Gate) -> None:
        """Have what passes read, from the client and from the upstream; after guard(), if there is one."""
        self.client.tap(up)
        self.upstream.tap(down)

    def start(self) -> None:
        """Let the bytes flow; both ends have their connections."""
        self.client.start()
        self.upstream.start()

    def check(self, now_s: float) -> None:
        """End what takes too long. Called every 0.25 s; now_s: the loop's time."""
        limits = self._limits
        if self.client.is_stalled(now_s, limits.client_write_s):
            message = f"the client took nothing of the tunnel's bytes for {limits.client_write_s:g} s"
            self._cut(VeloxError(Reason.CLIENT_SLOW, message))
        elif self.upstream.is_stalled(now_s, limits.upstream_write_s):
            message = f"the upstream took nothing of the tunnel's bytes for {limits.upstream_write_s:g} s"
            self._cut(UpstreamFailure(Reason.UPSTREAM_IDLE_TIMEOUT, message))
        elif self.client.is_late(now_s):
            message = "a message came too slowly (VELOX_BODY_TIMEOUT, VELOX_CLIENT_MIN_RATE)"
            self.close(VeloxError(Reason.BODY_TIMEOUT, message), message, POLICY)
        elif self.client.waits_since_s and now_s - self.client.waits_since_s >= limits.message_idle_s:
            message = "other gateways took too long to tell what a message names"
            self.close(VeloxError(Reason.TUNNEL_TIMEOUT, message), message, TRY_LATER)
        elif limits.total_s and now_s - self._began_s >= limits.total_s:
            message = f"the tunnel was open for {limits.total_s:g} s"
            self.close(VeloxError(Reason.TUNNEL_TIMEOUT, message), "the connection has reached its longest time")
        elif self._first is not None:
            if now_s - self._first_s >= _HALF_CLOSED_S and not self.client.n_unsent and not self.upstream.n_unsent:
                self.abort()
        elif now_s - self.moved_s >= limits.idle_s:
            message = f"no byte went through the tunnel for {limits.idle_s:g} s"
            self.close(VeloxError(Reason.TUNNEL_TIMEOUT, message), "no byte came from either side for too long")

    def close(self, error: VeloxError, text: str, code: int = GOING_AWAY) -> None:
        """End both sides with a Close frame each. text: what it tells. No effect on a tunnel that has ended."""
        if self._error is not None or (self.client.is_closed and self.upstream.is_closed):
            return
        self._error = error
        self.goodbye, self.goodbye_code = text, code
        if self.close_code is None:
            self.close_code = code
        self._timer = self.loop.call_later(CLOSE_S, self.abort)
        self.client.let_go()
        self.client.say_goodbye()
        self.upstream.say_goodbye()

    def ends(self, end: TunnelEnd) -> None:
        """Note that one side has ended."""
        if self._first is None:
            self._first = end
            self._first_s = self.loop.time()

    def lost(self) -> None:
        """Note that one side's connection is gone; with the second one the tunnel is over."""
        if not (self.client.is_closed and self.upstream.is_closed):
            return
        if self._timer is not None:
            self._timer.cancel()
        self.client.let_go()
        error = self._error
        if error is None and self.close_code is None:
            if self._first is self.client:
                error = VeloxError(Reason.CLIENT_CLOSED, "the client left without closing the WebSocket")
            else:
                error = UpstreamFailure(Reason.UPSTREAM_TRUNCATED, "the upstream cut the WebSocket")
        on_end, self._on_end = self._on_end, None
        assert on_end is not None, "it ends once"
        on_end(error)
        # Nothing is called any more. What leads back would be reference cycles, and outlive the tunnel.
        self.client.part()
        self.upstream.part()

    def _cut(self, error: VeloxError) -> None:
        if self._error is None:
            self._error = error
        self.abort()

    def abort(self) -> None:
        """Close both connections now."""
        self.client.abort()
        self.upstream.abort()


class _Tapped:
    """A gate, and what reads that which has passed it."""

    def __init__(self, gate: Gate, reader: Gate) -> None:
        self._gate: Final = gate
        self._reader: Final = reader

    def feed(self, data: bytes) -> bytes:
        """See Gate."""
        return self._reader.feed(self._gate.feed(data))


class TunnelEnd(asyncio.BufferedProtocol):
    """One of the two connections: what it reads goes to its peer.

    is_server: it leads to the server, which takes masked frames only (RFC 6455 §5.1). n_bytes: how many have come from
    it. scan: where its frames end. gate: sees what came from it before it passes; None: it passes unread.
    """

    def __init__(self, tunnel: Tunnel, buffer: ReadBuffer, clock: Callable[[], float], *, is_server: bool) -> None:
        self.peer: TunnelEnd
        self.scan: Final = FrameScanner()
        self.gate: Gate | None = None
        self.n_bytes = 0
        self._tunnel = tunnel
        self._view: Final = buffer.view
        self._turns: Final = buffer.turns
        self._clock: Final = clock
        self._pace: Final = ReadPace(len(buffer.view))
        self._is_in_line = False  # for a turn of the loop in which to read on
        self._is_server: Final = is_server
        self._transport: asyncio.Transport | None = None
        self._is_tls = False
        self._on_lost: Callable[[BaseException | None], None] | None = None
        self._early = b""
        self._got_eof = False
        self._ended = False  # nothing more is sent on it
        self._said_goodbye = False
        self._write_paused = False
        self._n_unsent = 0  # at the last look, with what the kernel holds
        self._progress_s = 0.0  # when that had last changed
        self._held: HoldingGate | None = None  # the gate, where it holds messages
        self._budget: MessageBudget | None = None  # for them
        self._asks_others: Asking | None = None
        self._asking: asyncio.Task[None] | None = None  # about the next message; meanwhile nothing is read
        self.waits_since_s = 0.0  # that message does; 0: none waits

    def __repr__(self) -> str:
        side = "upstream" if self._is_server else "client"
        return f"<TunnelEnd {side} {'closed' if self.is_closed else 'open'} bytes={self.n_bytes}>"

    @property
    def is_closed(self) -> bool:
        """True while it has no connection."""
        return self._transport is None

    @property
    def n_unsent(self) -> int:
        """Bytes that wait to be sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def take(
        self,
        transport: asyncio.Transport,
        early: bytes,
        on_lost: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        """Take a connection over, with the bytes that came on it already. on_lost: called when it is lost."""
        self._transport = transport
        self._early = early
        self._on_lost = on_lost
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        # A transport looks at the kind of its protocol when it begins to read.
        if transport.is_reading():
            transport.pause_reading()
        transport.set_write_buffer_limits(UNSENT_BYTES)
        if hasattr(transport, "set_read_buffer_limits"):
            cast(TlsTransport, transport).set_read_buffer_limits(1, 0)  # as in upstream/http1.py
        transport.set_protocol(self)

    def start(self) -> None:
        """Pass on what came early, and read."""
        early, self._early = self._early, b""
        if early:
            self._received(early)
        if not self.peer._write_paused:
            self._resume()

    # -- asyncio.BufferedProtocol -----------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        pace = self._pace
        return self._view[: pace.quick_bytes if self._turns.is_over else pace.n_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        began_s = self._clock()
        self._received(bytes(self._view[:nbytes]))
        seconds = self._clock() - began_s
        self._pace.took(nbytes, seconds)
        if not (self.is_closed or self._is_in_line) and self._turns.took(self, seconds, self._tunnel.loop):
            self._is_in_line = True
            self._pause()

    def eof_received(self) -> bool:
        self._got_eof = True
        self.let_go()
        self._tunnel.ends(self)
        if not self.peer._said_goodbye:
            self.peer.end_sending()
        # TCP can be half closed: what the peer has still to say is sent. TLS ends as a whole.
        return not (self._is_tls or self._ended or self._tunnel.goodbye)

    def connection_lost(self, exc: BaseException | None) -> None:
        data = b"" if self._transport is None or not self._is_tls else unread(self._transport)
        if data:
            self._received(data)
        self._transport = None
        self.let_go()
        self._tunnel.ends(self)
        if not self.peer._said_goodbye:  # after our goodbye it has its own time to answer
            self.peer.end_sending(is_lost=True)
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(exc)
        self._tunnel.lost()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._n_unsent = 0 if self._transport is None else unsent_bytes(self._transport)
        self._progress_s = self._tunnel.loop.time()
        self.peer._pause()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.peer._resume()

    # -- PausedConnection ----------------------------------------------------------------------------------

    def resume_reading(self) -> None:
        """See PausedConnection."""
        if not self.peer._write_paused:
            self._resume()

    def message_refused(self) -> None:
        """See PausedConnection."""
        message = "no memory for this message came free in time"
        self._tunnel.close(VeloxError(Reason.OVERLOAD_MEMORY, message), message, TRY_LATER)

    # -- for the tunnel and the peer ----------------------------------------------------------------

    def hold(self, gate: HoldingGate, budget: MessageBudget, asks_others: Asking | None) -> None:
        """Let messages pass when they were looked at."""
        self.gate = self._held = gate
        self._budget = budget
        self._asks_others = asks_others

    def tap(self, reader: Gate) -> None:
        """Have what passes the gate read."""
        self.gate = reader if self.gate is None else _Tapped(self.gate, reader)

    def is_late(self, now_s: float) -> bool:
        """True when a message that is held comes too slowly."""
        return self._budget is not None and self._budget.is_late(now_s)

    def let_go(self) -> None:
        """Hold nothing any more: no message will become whole. What the peer has still to take is held on."""
        self.gate = self._held = self._asks_others = None
        self.waits_since_s = 0.0
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
        if self._budget is not None:
            self._budget.stand_still()
            self._budget.shrink(self.peer.n_unsent)

    def send(self, data: bytes) -> None:
        """Send bytes of the peer; they are dropped when nothing more can be sent."""
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    def end_sending(self, *, is_lost: bool = False) -> None:
        """The peer has ended: so does this, after what waits to be sent. is_lost: nobody is left to read for."""
        transport = self._transport
        if transport is None:
            return
        if is_lost or self._got_eof or not transport.can_write_eof():
            self._ended = True
            # TLS can't be half closed. A side that has an answer to a Close frame to send stays open: see check().
            if is_lost or self._got_eof or self.peer.scan.close_code is None:
                transport.close()
        elif not (self._ended or transport.is_closing()):
            self._ended = True
            transport.write_eof()

    def say_goodbye(self) -> None:
        """Send our Close frame, if the peer has no frame open here; else the end of that frame calls again."""
        scan = self.peer.scan
        if self._said_goodbye or not scan.between:
            return
        self._said_goodbye = True
        if scan.close_code is None:  # its own Close has gone ahead, and nothing may follow that
            mask = os.urandom(4) if self._is_server else b""
            self.send(close_frame(self._tunnel.goodbye_code, self._tunnel.goodbye, mask))
        # What the peer says now is read for its Close frame and goes nowhere: it need not wait.
        self.peer._resume()
        self._end_if_closed()

    def is_stalled(self, now_s: float, limit_s: float) -> bool:
        """True when it has taken nothing for too long of what waits for it, however little that is."""
        transport = self._transport
        if transport is None or not transport.get_write_buffer_size():
            self._n_unsent = 0
            return False
        n_unsent = unsent_bytes(transport)
        if n_unsent != self._n_unsent:
            self._n_unsent = n_unsent
            self._progress_s = now_s
        return now_s - self._progress_s >= limit_s

    def abort(self) -> None:
        """Close now; what was not sent is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def part(self) -> None:
        """Let go of the tunnel and of the peer: both connections are gone."""
        del self.peer, self._tunnel

    # -- inside ---------------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        tunnel, peer = self._tunnel, self.peer
        tunnel.moved_s = tunnel.loop.time()
        self.n_bytes += len(data)
        if tunnel.goodbye:
            self._received_late(data)
        else:
            n_bytes = len(data)
            if self.gate is not None:
                data = self._checked(self.gate, data)
            self._scan(data)
            peer.send(data)
            if self._held is not None and self._held.wanted and self._asking is None:
                self._ask_others(self._held)
            if self._budget is not None:
                self._settle(self._budget, n_bytes)

    def _settle(self, budget: MessageBudget, n_bytes: int) -> None:
        """Have room for what is held, or wait for it. n_bytes: that came."""
        if self._held is None:
            return
        n_held = self._held.held_bytes
        budget.hold(n_held + self.peer.n_unsent, self)
        if budget.waits or self.peer._write_paused or self._asking is not None:
            budget.stand_still()
            self._pause()
        else:
            budget.came(n_bytes, self._tunnel.loop.time(), is_open=n_held > 0)

    def _ask_others(self, held: HoldingGate) -> None:
        """Ask for what the next message waits for; it is not read on until that is known."""
        asks_others = self._asks_others
        assert asks_others is not None, "given with a gate that wants something"
        self.waits_since_s = self._tunnel.loop.time()
        self._pause()
        self._asking = self._tunnel.loop.create_task(self._ask(asks_others, held), name="ask what a message names")

    async def _ask(self, asks_others: Asking, held: HoldingGate) -> None:
        # A task that ends as cancelled keeps the error, whose traceback leads to what it ran, and that to the task.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await asks_others(held.wanted)
            except Exception as exc:  # a bug: nobody can say whether the message may pass
                self._tunnel.loop.call_exception_handler({"message": "nobody could be asked", "exception": exc})
                message = "an error inside Velox; it was recorded"
                self._tunnel.close(VeloxError(Reason.INTERNAL, message), message, TRY_LATER)
                return
            self._asking, self.waits_since_s = None, 0.0
            held.answered()
            self._received(b"")
            self.resume_reading()  # reads on, unless there is more to wait for

    def _checked(self, gate: Gate, data: bytes) -> bytes:
        """Return what may pass; the first message that may not closes both sides."""
        try:
            return gate.feed(data)
        except MessageError as exc:
            refusal = VeloxError(Reason.FORBIDDEN, str(exc))
        except VeloxError as error:
            refusal = error
        self._tunnel.close(refusal, refusal.message.encode("ascii", "replace")[:_TEXT_BYTES].decode(), POLICY)
        return b""

    def _received_late(self, data: bytes) -> None:
        """Our own Close frame goes to the peer: the open frame is ended before, and what comes after is dropped."""
        at, peer = 0, self.peer
        if not peer._said_goodbye:
            at = self.scan.feed_frame(data)
            peer.send(data[:at])
            peer.say_goodbye()
        self._scan(data[at:])
        self._end_if_closed()

    def _scan(self, data: bytes) -> None:
        self.scan.feed(data)
        if self._tunnel.close_code is None:
            self._tunnel.close_code = self.scan.close_code

    def _end_if_closed(self) -> None:
        """After our Close frame and this side's: RFC 6455 §7.1.1, the connection is closed."""
        if self._said_goodbye and self.scan.close_code is not None and self._transport is not None:
            self._ended = True
            self._transport.close()

    def read_on(self) -> None:
        """See TurnReader."""
        self._is_in_line = False
        if not self.is_closed and not self.peer._write_paused:
            self._resume()

    def _pause(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and transport.is_reading():
            transport.pause_reading()

    def _resume(self) -> None:
        if self._is_in_line or self._asking is not None:
            return
        if self._budget is not None:
            self._settle(self._budget, 0)
            if self._budget.waits:
                return
        transport = self._transport
        if transport is not None and not (self._got_eof or transport.is_closing() or transport.is_reading()):
            transport.resume_reading()
