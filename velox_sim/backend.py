"""How a reply is played at the pace of a model, and what all connections of one simulator share.

Knows: time to first byte, tokens a second, back-pressure, the app, counts. Does not know: HTTP versions, sockets, what
the bytes mean. A reply has one loop timer; a full outlet pauses it, and it can be stopped at once.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from velox_sim.app import Simulator
from velox_sim.engine import Engine
from velox_sim.shapes import Reply, Streamed, TokenStream

__all__ = ["Backend", "Connection", "Outlet", "Pace", "Player"]

# Events joined into one write when many are due: about 16 KiB, so a slow reader is noticed soon.
_BATCH: Final = 64
# uvloop's timers and clock count whole milliseconds: one may fire half of that early.
_CLOCK_SLACK_S: Final = 0.0005


class Outlet(Protocol):
    """Where a reply's bytes go: one exchange of a connection."""

    def send(self, reply: Reply, piece: bytes, *, last: bool) -> bool:
        """Take body bytes, the head before the first ones; False: full, send no more until resume()."""


class Pace:
    """How fast answers are given."""

    __slots__ = ("interval_s", "rate", "ttft_s")

    def __init__(self, ttft_s: float, rate: float) -> None:
        """ttft_s: seconds to the first byte. rate: tokens a second after the first, 0 without limit."""
        self.ttft_s: Final = ttft_s
        self.rate: Final = rate
        self.interval_s: Final = 1 / rate if rate else 0.0

    def wait_s(self, reply: Reply) -> float:
        """Return the seconds to a reply's first byte; a whole body comes when its last token would."""
        first_s = self.ttft_s + reply.plan.late_s
        if isinstance(reply, Streamed):
            return first_s
        return first_s + (reply.n_tokens - 1) * self.interval_s if reply.n_tokens else 0.0


class Player:
    """Plays one reply into one outlet. Nothing is sent after stop() or after the piece marked as last."""

    def __init__(self, engine: Engine, pace: Pace, outlet: Outlet, reply: Reply) -> None:
        self._engine: Final = engine
        self._pace: Final = pace
        self._outlet: Final = outlet
        self._reply: Final = reply
        self._first_at = 0.0
        self._n_sent = 0
        self._n_held = 0
        self._has_begun = False
        self._is_inside = False  # the engine, in line or not
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin. A reply that takes no time is sent before this returns, if no other is before it."""
        if isinstance(self._reply, Streamed) or self._reply.n_tokens:
            self._is_inside = True
            self._engine.enter(self, self._begin)
        else:
            self._begin()

    def resume(self) -> None:
        """Go on after a send that returned False: what came due in between is sent at once."""
        if self._timer is None and self._has_begun:
            self._play()

    def stop(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._leave()

    def _begin(self) -> None:
        plan = self._reply.plan
        self._n_held = plan.n_context
        self._engine.n_held += self._n_held
        if plan.stops_after is not None and not (plan.stops_after and isinstance(self._reply, Streamed)):
            return  # it keeps its place and says nothing until its client leaves
        self._has_begun = True
        wait_s = self._pace.wait_s(self._reply)
        self._first_at = self._engine.time() + wait_s
        if wait_s > 0:
            self._timer = self._engine.call_at(self._first_at, self._play)
        else:
            self._play()

    def _leave(self) -> None:
        if self._is_inside:
            self._is_inside = False
            self._engine.n_held -= self._n_held
            self._engine.leave(self)

    def _play(self) -> None:
        self._timer = None
        if self._engine.time() + _CLOCK_SLACK_S < self._first_at:
            self._timer = self._engine.call_at(self._first_at, self._play)
        elif isinstance(self._reply, Streamed):
            self._play_events(self._reply.events, self._reply.plan.stops_after)
        else:
            self._outlet.send(self._reply, self._reply.body, last=True)
            self._leave()

    def _play_events(self, events: TokenStream, stops_after: int | None) -> None:
        n_due = self._n_due(events.n_tokens if stops_after is None else min(stops_after, events.n_tokens))
        while self._n_sent < n_due:
            begin, end = self._n_sent, min(n_due, self._n_sent + _BATCH)
            piece = events.lead + events.lead.join(events.rests[begin:end])
            if begin == 0:
                piece = events.opening + piece
            is_last = end == events.n_tokens
            if is_last:
                piece += events.closing
            self._n_sent = end
            has_room = self._outlet.send(self._reply, piece, last=is_last)
            if is_last:
                self._leave()
            if is_last or not has_room:
                return
        if self._n_sent == stops_after:
            return
        self._timer = self._engine.call_at(self._first_at + self._n_sent * self._pace.interval_s, self._play)

    def _n_due(self, n_tokens: int) -> int:
        """Return how many tokens should have been sent by now."""
        if not self._pace.rate:
            return n_tokens
        elapsed_s = self._engine.time() - self._first_at + _CLOCK_SLACK_S
        return min(n_tokens, int(elapsed_s * self._pace.rate) + 1)


class Connection(Protocol):
    """One client connection, whatever version of HTTP it speaks."""

    @property
    def n_running(self) -> int:
        """How many answers are being played."""

    @property
    def n_queued_bytes(self) -> int:
        """How many bytes of answers wait for the client to read."""

    def leave(self) -> None:
        """Take no new request; close when no answer is running any more."""

    def abort(self) -> None:
        """Close at once; running answers are cut."""


class Backend:
    """The connections, and what they need to answer."""

    def __init__(self, app: Simulator, pace: Pace, engine: Engine) -> None:
        self.app: Final = app
        self._pace: Final = pace
        self._engine: Final = engine
        self.connections: Final[set[Connection]] = set()
        self.n_requests = 0
        self.n_cancelled = 0  # answers that were still being played when their client left
        self.is_leaving = False
        self._is_empty: Final = asyncio.Event()

    def answer(self, outlet: Outlet, method: bytes, target: bytes, body: bytes) -> Player | None:
        """Return a player, not yet started, of the reply to a whole request; None: break it off without one."""
        self.n_requests += 1
        reply = self.app.answer(method, target, body)
        return None if reply is None else self.player(outlet, reply)

    def player(self, outlet: Outlet, reply: Reply) -> Player:
        """Return a player, not yet started, of a reply."""
        return Player(self._engine, self._pace, outlet, reply)

    def enter(self, connection: Connection) -> None:
        """Register a connection that has just been made."""
        self.connections.add(connection)
        if self.is_leaving:
            connection.leave()

    def exit(self, connection: Connection) -> None:
        """Forget a connection that has ended; its running answers count as cancelled."""
        self.n_cancelled += connection.n_running
        self.connections.discard(connection)
        if not self.connections:
            self._is_empty.set()

    def leave(self) -> None:
        """Say goodbye to all connections, now and as they come."""
        self.is_leaving = True
        self.send_away()

    def send_away(self) -> None:
        """Say goodbye to the connections there are."""
        for connection in tuple(self.connections):
            connection.leave()

    def abort(self) -> None:
        """Cut all connections."""
        for connection in tuple(self.connections):
            connection.abort()

    async def wait_empty(self) -> None:
        """Wait until the last connection has ended."""
        while self.connections:
            self._is_empty.clear()
            await self._is_empty.wait()
