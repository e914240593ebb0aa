"""A pool with connections and a dialer that do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from velox.errors import Reason, VeloxError
from velox.heads import ReplyHead
from velox.net.upstream.connection_budget import ConnectionBudget
from velox.net.upstream.interface import ConnectionOwner, PlainFields, ReplySink, UpstreamFailure, UpstreamRequest
from velox.net.upstream.pool import Upkeep, UpstreamPool
from velox.outcomes import ConnectionEnd, Retry

__all__ = [
    "WARMUP",
    "Bench",
    "FakeConnection",
    "Make",
    "closes_after_warmup",
    "closes_at_once",
    "connects",
    "never",
    "refuses",
    "turns",
    "unsettled",
]

WARMUP: Final = UpstreamRequest(b"HEAD", b"/v1/models", PlainFields([]), (), None)
REQUEST: Final = UpstreamRequest(b"GET", b"/", PlainFields([]), (), None)
OK: Final = ReplyHead.of(200, [], 0)


class FakeConnection:
    """Has room for `capacity` streams; a test ends them. answers: a HEAD is answered as soon as it is sent."""

    def __init__(self, owner: ConnectionOwner, *, capacity: int = 1, answers: bool = True) -> None:
        self.queued = False
        self.is_settled = True
        self.capacity = capacity
        self.is_closed = False
        self.sinks: list[ReplySink] = []
        self.closes_after_reply = False
        self.address = "192.0.2.1"
        self.end: ConnectionEnd | None = None
        self.n_begun = 0
        self.checked: list[tuple[float, float]] = []
        self._owner: Final = owner
        self._answers: Final = answers

    @property
    def has_room(self) -> bool:
        return self.end is None and len(self.sinks) < self.capacity

    @property
    def n_streams(self) -> int:
        return len(self.sinks)

    @property
    def n_rooms(self) -> int:
        return self.capacity - len(self.sinks) if self.has_room else 0

    def open(self, request: UpstreamRequest, sink: ReplySink) -> FakeStream:
        assert self.has_room, "opened without room"
        self.sinks.append(sink)
        self.n_begun += 1
        if request is WARMUP and self._answers:
            asyncio.get_running_loop().call_soon(self.reply, sink)
        return FakeStream(self, sink)

    def reply(self, sink: ReplySink) -> None:
        """The reply of one stream came to its end."""
        if sink in self.sinks:
            self.sinks.remove(sink)
            if self.closes_after_reply:
                self.close()
            sink.on_reply(OK, b"", True)
            self._after_stream()

    def reply_all(self) -> None:
        """All replies came."""
        for sink in tuple(self.sinks):
            self.reply(sink)

    def grow(self, capacity: int) -> None:
        """The peer allows so many streams; fewer than before too."""
        self.is_settled = True
        self.capacity = capacity
        if self.has_room:
            self._owner.on_room(self)

    def close(self, cause: ConnectionEnd = ConnectionEnd.CLOSED) -> None:
        """It is closed: exchanges in flight fail."""
        if self.is_closed:
            return
        self.is_closed = True
        self._end(cause)
        sinks, self.sinks = self.sinks, []
        for sink in sinks:
            sink.on_failure(UpstreamFailure(Reason.UPSTREAM_RESET, "closed"))

    def retire(self, cause: ConnectionEnd) -> None:
        """No new exchange; a GOAWAY does the same."""
        self._end(cause)
        if not self.sinks:
            self.close(cause)

    def check_alive(self, now_s: float, silence_s: float) -> None:
        self.checked.append((now_s, silence_s))

    def abort(self, cause: ConnectionEnd) -> None:
        self.close(cause)

    def drop(self, sink: ReplySink) -> None:
        """The stream was cancelled."""
        if sink in self.sinks:
            self.sinks.remove(sink)
            self._after_stream()

    def _end(self, cause: ConnectionEnd) -> None:
        if self.end is None:
            self.end = cause
            self._owner.on_closed(self)

    def _after_stream(self) -> None:
        if self.end is not None:
            if not self.sinks:
                self.close(self.end)
        elif self.has_room and not self.queued:
            self._owner.on_room(self)


class FakeStream:
    n_unsent = 0

    def __init__(self, connection: FakeConnection, sink: ReplySink) -> None:
        self._connection: Final = connection
        self._sink: Final = sink

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def cancel(self) -> None:
        self._connection.drop(self._sink)


class Sink:
    """One exchange of a test."""

    def __init__(self) -> None:
        self.failure: UpstreamFailure | None = None

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None: ...

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        return False

    def on_failure(self, failure: UpstreamFailure) -> None:
        self.failure = failure


Make = Callable[[ConnectionOwner], Awaitable[FakeConnection]]


class Bench:
    """A pool and its dialer. script: what the dials do, in order; afterwards each makes a connection."""

    def __init__(
        self,
        *script: Make,
        warm: int = 0,
        most: int = 100,
        capacity: int = 1,
        upkeep: Upkeep | None = None,
        budget: ConnectionBudget | None = None,
    ) -> None:
        self.dialed_s: Final[list[float]] = []
        self.made: Final[list[FakeConnection]] = []
        self.failures: Final[list[Reason]] = []
        self.ends: Final[list[ConnectionEnd]] = []
        self.capacity: Final = capacity
        self.n_dialing = 0
        self.most_dialing = 0
        self._script: Final = list(script)
        self.pool: Final = UpstreamPool(
            self.dial,
            WARMUP,
            warm_connections=warm,
            max_connections=most,
            warmup_timeout_s=10.0,
            on_change=lambda: None,
            on_warm_failure=self._note,
            on_end=self.ends.append,
            upkeep=upkeep or Upkeep(),
            budget=budget,
        )

    @property
    def usable(self) -> list[FakeConnection]:
        """The connections that take exchanges."""
        return [connection for connection in self.made if connection.end is None]

    def _note(self, failure: VeloxError) -> None:
        self.failures.append(failure.reason)

    async def dial(self, owner: ConnectionOwner) -> FakeConnection:
        self.dialed_s.append(asyncio.get_running_loop().time())
        self.n_dialing += 1
        self.most_dialing = max(self.most_dialing, self.n_dialing)
        try:
            await asyncio.sleep(0.001)
            made = await (self._script.pop(0)(owner) if self._script else connects(self.capacity)(owner))
        finally:
            self.n_dialing -= 1
        self.made.append(made)
        return made

    async def take(self) -> FakeConnection:
        """Do what an exchange does: lease, open a stream, give the rest of the room back."""
        connection = self.pool.lease_nowait()
        while connection is None or not connection.has_room:
            connection = await self.pool.lease()
        assert isinstance(connection, FakeConnection)
        connection.open(REQUEST, Sink())
        self.pool.give_back(connection)
        return connection

    async def pass_time(self, seconds: float, step_s: float = 0.3) -> None:
        """Let time go by, with the worker's tick."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        while loop.time() < until_s:
            await asyncio.sleep(step_s)
            self.pool.tick(loop.time())


def connects(capacity: int = 1, *, answers: bool = True, address: str = "192.0.2.1") -> Make:
    async def make(owner: ConnectionOwner) -> FakeConnection:
        connection = FakeConnection(owner, capacity=capacity, answers=answers)
        connection.address = address
        return connection

    return make


def unsettled() -> Make:
    """HTTP/2 before the upstream's SETTINGS, which grow() brings."""

    async def make(owner: ConnectionOwner) -> FakeConnection:
        connection = FakeConnection(owner)
        connection.is_settled = False
        return connection

    return make


def refuses(exc: Exception | None = None) -> Make:
    async def make(_owner: ConnectionOwner) -> FakeConnection:
        raise exc or UpstreamFailure(Reason.UPSTREAM_CONNECT, "refused", unprocessed=Retry.CONNECT)

    return make


async def closes_at_once(owner: ConnectionOwner) -> FakeConnection:
    connection = FakeConnection(owner)
    connection.close()
    return connection


async def closes_after_warmup(owner: ConnectionOwner) -> FakeConnection:
    connection = FakeConnection(owner)
    connection.closes_after_reply = True
    return connection


async def never(_owner: ConnectionOwner) -> FakeConnection:
    return await asyncio.Future[FakeConnection]()


async def turns(n: int = 10) -> None:
    for _ in range(n):
        await asyncio.sleep(0)
