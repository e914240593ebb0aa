"""The warm connections of one worker to one upstream.

Knows: how many connections there are, which has room, who waits for one. Does not know: HTTP, or how to connect.

A lease is decided without waiting wherever a connection has room; room is handed out round robin. Where there is none,
the caller waits and a dial is started for it. A warm connection that is lost is replaced with back-off and jitter.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Final

from aiolimiter import AsyncLimiter

from velox.errors import Reason, VeloxError
from velox.net.upstream import ConnectionOwner, UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.types import ReplyHead

__all__ = ["PoolStatistics", "UpstreamPool"]

_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 30.0
# A connection that lived shorter than this says that the upstream closes what it should keep.
_STABLE_S: Final = 1.0
# Dials a second and worker: an upstream that comes back is not met by all at once. Arbitrary; a TLS handshake costs
# the upstream about 1 ms.
_DIALS_PER_S: Final = 500.0

Dial = Callable[[ConnectionOwner], Awaitable[UpstreamConnection]]


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool holds at one instant."""

    connections: int
    dialing: int
    streams: int
    waiting: int


class UpstreamPool:
    """Connections to one upstream; the owner that connections report to."""

    def __init__(
        self,
        dial: Dial,
        warmup: UpstreamRequest,
        *,
        warm_connections: int,
        max_connections: int,
        warmup_timeout_s: float,
        on_change: Callable[[], None],
        on_warm_failure: Callable[[VeloxError], None],
    ) -> None:
        self._dial: Final = dial
        self._warmup: Final = warmup
        self._n_warm: Final = warm_connections
        self._max: Final = max_connections
        self._warmup_timeout_s: Final = warmup_timeout_s
        self._on_change: Final = on_change
        self._on_warm_failure: Final = on_warm_failure
        self._pace: Final = AsyncLimiter(_DIALS_PER_S, 1.0)
        # Both fields change only in on_room, on_closed, lease_nowait and _adopt; no await in between.
        self._connections: set[UpstreamConnection] = set()
        self._ready: deque[UpstreamConnection] = deque()
        self._waiters: deque[asyncio.Future[UpstreamConnection]] = deque()
        self._dialing = 0  # by keepers and for waiters
        self._dialing_for_waiters = 0
        self._short = asyncio.Event()
        self._reached = False  # the last warm-up was answered
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<UpstreamPool connections={s.connections} dialing={s.dialing} streams={s.streams} waiting={s.waiting}>"

    def statistics(self) -> PoolStatistics:
        """Count connections, dials, streams in flight and callers that wait."""
        streams = sum(connection.n_streams for connection in self._connections)
        return PoolStatistics(len(self._connections), self._dialing, streams, len(self._waiters))

    @property
    def is_warm(self) -> bool:
        """True while a connection is open, or the last warm-up was answered by an upstream that keeps none open."""
        return bool(self._connections) or self._reached

    def start(self) -> None:
        """Keep the warm connections: one task each, so that one slow dial holds up no other."""
        for _ in range(self._n_warm):
            self._spawn(self._keep_warm(), "pool-keeper")

    def lease_nowait(self) -> UpstreamConnection | None:
        """Return a connection with room, or None. The caller opens its stream before it awaits anything."""
        ready = self._ready
        while ready:
            connection = ready.popleft()
            connection.queued = False
            if connection.has_room:
                return connection
        return None

    def give_back(self, connection: UpstreamConnection) -> None:
        """After a stream was opened: pass on the room that is left."""
        self.on_room(connection)

    async def lease(self) -> UpstreamConnection:
        """Wait for a connection with room. Raises UpstreamFailure when the dial made for it failed.

        It may have lost its room when the caller wakes: then the caller asks again.
        """
        ready = self.lease_nowait()
        if ready is not None:
            return ready
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._dial_for_waiters()
        try:
            connection: UpstreamConnection = await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.on_room(waiter.result())
            raise
        return connection

    def close(self) -> None:
        """Abort every connection and end the keepers."""
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    # -- ConnectionOwner ------------------------------------------------------------------------

    def on_room(self, connection: UpstreamConnection) -> None:
        """Give the room to who has waited longest, else put the connection at the end of the line."""
        if connection not in self._connections:
            return  # it is being warmed, or it leaves
        while self._waiters and connection.has_room:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                # One at a time: the woken caller opens its stream, then gives the rest back.
                return
        if connection.has_room and not connection.queued:
            connection.queued = True
            self._ready.append(connection)

    def on_closed(self, connection: UpstreamConnection) -> None:
        """Forget the connection; wake the keepers if there are too few now."""
        if connection in self._connections:
            self._connections.discard(connection)
            if connection.queued:
                connection.queued = False
                self._ready.remove(connection)
            self._on_change()
            if not self._closing:
                self._short.set()
                self._dial_for_waiters()

    # -- dialing ----------------------------------------------------------------------------------

    def _dial_for_waiters(self) -> None:
        """Start a dial for each waiter that none is under way for.

        The protocol that the next connection will speak is not known before it is made, so over HTTP/2 this may dial
        more than is needed; the surplus is kept and used.
        """
        while self._dialing_for_waiters < len(self._waiters) and len(self._connections) + self._dialing < self._max:
            self._dialing += 1
            self._dialing_for_waiters += 1
            self._spawn(self._dial_one(), "pool-dial")

    async def _dial_one(self) -> None:
        try:
            connection = await self._connect()
        except UpstreamFailure as failure:
            self._dial_ended()
            while self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_exception(failure)
                    break
            # The others may have waited for this place.
            self._dial_for_waiters()
        except BaseException:
            self._dial_ended()
            raise
        else:
            self._dial_ended()
            self._adopt(connection)

    async def _connect(self) -> UpstreamConnection:
        """Dial, no faster than the pace. Raises UpstreamFailure, and nothing else.

        A keeper or a dial that ended by any other error would be missed for ever, by the pool or by a waiter.
        """
        await self._pace.acquire()
        try:
            connection = await self._dial(self)
        except UpstreamFailure:
            raise
        except Exception as exc:
            message = f"the upstream could not be reached ({type(exc).__name__})"
            raise UpstreamFailure(Reason.UPSTREAM_CONNECT, message, unprocessed=True) from exc
        if connection.is_closed:
            message = "the upstream closed the connection at once"
            raise UpstreamFailure(Reason.UPSTREAM_CONNECT, message, unprocessed=True)
        return connection

    def _dial_ended(self) -> None:
        self._dialing -= 1
        self._dialing_for_waiters -= 1
        self._short.set()  # a keeper may have counted on this dial

    def _adopt(self, connection: UpstreamConnection) -> None:
        if connection.is_closed:
            self._dial_for_waiters()
        else:
            self._connections.add(connection)
            self.on_room(connection)
        self._on_change()

    async def _keep_warm(self) -> None:
        """Hold one warm connection's place: dial, warm, wait until the pool is short again."""
        loop = asyncio.get_running_loop()
        failed, began_s, backoff_s = False, -math.inf, 0.0
        while not self._closing:
            if len(self._connections) + self._dialing >= self._n_warm:
                self._short.clear()
                await self._short.wait()
                continue
            if failed or loop.time() - began_s < _STABLE_S:
                # Also after a success: an upstream that closes each connection at once is not dialed in a loop.
                backoff_s = min(max(backoff_s * 2, _BACKOFF_FIRST_S), _BACKOFF_MAX_S)
                failed, began_s = False, -math.inf
                # Jitter, so that the workers do not dial in step. Then look again: others may have filled the place.
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.5))
                continue
            began_s = loop.time()
            failed = not await self._warm()
            if not failed and self._connections:
                backoff_s = 0.0

    async def _warm(self) -> bool:
        """Make one warm connection; False if that failed."""
        self._dialing += 1
        try:
            connection = await self._connect()
            await self._pass_warmup(connection)
        except VeloxError as failure:
            self._dialing -= 1
            self._reached = False
            self._on_change()
            self._on_warm_failure(failure)
            # Callers that waited for this connection get a dial of their own, and its answer.
            self._dial_for_waiters()
            return False
        except BaseException:
            self._dialing -= 1
            raise
        self._dialing -= 1
        self._reached = True
        self._adopt(connection)
        return True

    async def _pass_warmup(self, connection: UpstreamConnection) -> None:
        """Pass one HEAD; any answer proves that the way is open."""
        sink = _WarmupSink(asyncio.get_running_loop())
        try:
            connection.open(self._warmup, sink)
            async with asyncio.timeout(self._warmup_timeout_s):
                await sink.done
        except TimeoutError as exc:
            connection.abort()
            message = f"no answer to the warm-up request in {self._warmup_timeout_s:g} s"
            raise UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, message) from exc
        except BaseException:
            connection.abort()
            raise

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _WarmupSink:
    """Waits for the end of a warm-up's reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.done: Final[asyncio.Future[None]] = loop.create_future()

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        if end and not self.done.done():
            self.done.set_result(None)

    def on_failure(self, failure: UpstreamFailure) -> None:
        if not self.done.done():
            self.done.set_exception(failure)
