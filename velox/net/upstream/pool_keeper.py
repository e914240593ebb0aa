"""What a pool needs to keep its connections: dials at a pace, pauses after failures, warm-ups, terms of use.

Knows: how one connection is made and proved, how long it may be used, how long to wait after a failure. Does not know:
how many connections there are or who gets one (pool.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiolimiter import AsyncLimiter

from velox.errors import Reason
from velox.net.upstream.interface import (
    ConnectionOwner,
    UpstreamConnection,
    UpstreamFailure,
    UpstreamRequest,
    UpstreamStream,
)
from velox.outcomes import ConnectionEnd, Retry
from velox.types import ReplyHead

__all__ = ["BackOff", "Dial", "PacedDial", "Term", "Upkeep", "Warmup", "again", "is_instable"]

Dial = Callable[[ConnectionOwner], Awaitable[UpstreamConnection]]

_BACKOFF_FIRST_S: Final = 0.1
# With its jitter of a half, and some seconds for the dial itself: an upstream that is back is used within 30 s.
_BACKOFF_MAX_S: Final = 18.0
# Dials a second and worker: an upstream that comes back is not met by all at once. Arbitrary; a TLS handshake costs
# the upstream about 1 ms.
_DIALS_PER_S: Final = 500.0
# A connection that lived shorter than this, and served next to nothing, says that the upstream closes what it should
# keep.
_STABLE_S: Final = 1.0
_BY_UPSTREAM: Final = frozenset(
    {
        ConnectionEnd.CLOSED,
        ConnectionEnd.LOST,
        ConnectionEnd.LAST,
        ConnectionEnd.GOAWAY,
        ConnectionEnd.EXTRA_DATA,
        ConnectionEnd.PROTOCOL,
    }
)
_JITTER: Final = 0.1


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How long connections are used.

    max_age_s, max_requests: give or take a tenth, so that connections made together do not end together.
    idle_timeout_s: how long one beyond the warm ones is kept unused. ping_interval_s: silence before a PING.
    """

    max_age_s: float = 3600.0
    max_requests: int = 1_000_000
    idle_timeout_s: float = 60.0
    ping_interval_s: float = 30.0


@dataclass(slots=True)
class Term:
    """How long one connection may be used, and since when it is not. Times on the loop's clock."""

    since_s: float
    until_s: float
    max_begun: int
    idle_since_s: float
    n_seen: int

    @classmethod
    def begin(cls, now_s: float, upkeep: Upkeep) -> Term:
        """Return the term of a connection that was made just now."""
        max_age_s = upkeep.max_age_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        max_begun = max(1, round(upkeep.max_requests * random.uniform(1 - _JITTER, 1 + _JITTER)))
        return cls(now_s, now_s + max_age_s, max_begun, now_s, 0)

    def idle_s(self, connection: UpstreamConnection, now_s: float) -> float:
        """Return how long the connection has not been used, as far as was seen at the calls of this."""
        if connection.n_streams or connection.n_begun != self.n_seen:
            self.n_seen = connection.n_begun
            self.idle_since_s = now_s
        return now_s - self.idle_since_s

    def is_stable(self, now_s: float) -> bool:
        """Tell whether the connection has lasted long enough to say that the upstream keeps connections."""
        return now_s - self.since_s >= _STABLE_S


def is_instable(connection: UpstreamConnection, term: Term, now_s: float) -> bool:
    """Tell whether a connection's end means that the next one will end as soon: dial it in a moment, not at once."""
    return connection.end in _BY_UPSTREAM and connection.n_begun <= 1 and not term.is_stable(now_s)


class BackOff:
    """A pause after failures, doubled each time, with jitter so that the workers do not dial in step."""

    def __init__(self, resume: Callable[[], None]) -> None:
        self._resume: Final = resume
        self._pause_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """True during the pause."""
        return self._timer is not None

    def start(self) -> bool:
        """Pause; False if a pause is on already: what fails together counts once."""
        if self._timer is not None:
            return False
        self._pause_s = min(max(self._pause_s * 2, _BACKOFF_FIRST_S), _BACKOFF_MAX_S)
        delay_s = self._pause_s * random.uniform(0.5, 1.5)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._over)
        return True

    def reset(self) -> None:
        """All is well: the next pause is a short one."""
        self._pause_s = 0.0

    def close(self) -> None:
        """Never resume."""
        if self._timer is not None:
            self._timer.cancel()

    def _over(self) -> None:
        self._timer = None
        self._resume()


class PacedDial:
    """Dials, no faster than the pace."""

    def __init__(self, dial: Dial) -> None:
        self._dial: Final = dial
        self._pace: Final = AsyncLimiter(_DIALS_PER_S, 1.0)

    async def connect(self, owner: ConnectionOwner) -> UpstreamConnection:
        """Return an open connection. Raises UpstreamFailure, and nothing else.

        A dial that ended by any other error would be missed for ever by those who count on it.
        """
        await self._pace.acquire()
        try:
            connection = await self._dial(owner)
        except UpstreamFailure:
            raise
        except Exception as exc:
            message = f"the upstream could not be reached ({type(exc).__name__})"
            raise UpstreamFailure(Reason.UPSTREAM_CONNECT, message, unprocessed=Retry.CONNECT) from exc
        if connection.is_closed or connection.end is not None:
            connection.abort(ConnectionEnd.LOST)
            message = "the upstream closed the connection at once"
            raise UpstreamFailure(Reason.UPSTREAM_CONNECT, message, unprocessed=Retry.CONNECT)
        return connection


class Warmup:
    """One HEAD on a connection; any answer proves that the way is open."""

    def __init__(self, connection: UpstreamConnection, request: UpstreamRequest) -> None:
        """Send it. Raises UpstreamFailure when the connection takes no stream."""
        self._connection: Final = connection
        self._sink: Final = _WarmupSink(asyncio.get_running_loop())
        self._stream: Final[UpstreamStream] = connection.open(request, self._sink)

    @classmethod
    def begin(cls, connection: UpstreamConnection, request: UpstreamRequest) -> Warmup | None:
        """Send one; None if the connection has no room, or turns out to take no stream."""
        try:
            return cls(connection, request) if connection.has_room else None
        except UpstreamFailure:
            return None  # it has retired itself

    async def wait_answer(self, timeout_s: float) -> None:
        """Wait for the answer. Raises UpstreamFailure; then the connection takes no more exchanges."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._sink.done
        except TimeoutError as exc:
            if self._sink.has_ended:
                return  # at the last moment: over HTTP/1.1 the connection may carry another exchange by now
            self._give_up()
            message = f"no answer to the warm-up request in {timeout_s:g} s"
            raise UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, message) from exc
        except UpstreamFailure:
            self._give_up()
            raise

    def _give_up(self) -> None:
        # Others may be using it: their exchanges go on to their own ends.
        self._connection.retire(ConnectionEnd.LOST)
        self._stream.cancel()


class _WarmupSink:
    """Waits for the end of a warm-up's reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.done: Final[asyncio.Future[None]] = loop.create_future()
        self.has_ended = False  # with a whole reply, also when nobody waits for it any more

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        self.has_ended = end
        if end and not self.done.done():
            self.done.set_result(None)

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        return False

    def on_failure(self, failure: UpstreamFailure) -> None:
        if not self.done.done():
            self.done.set_exception(failure)
            self.done.exception()  # heard, also where nobody waits: the pool may have closed meanwhile


def again(failure: UpstreamFailure) -> UpstreamFailure:
    """Return an equal failure: each who is told of a dial's end raises one of its own, with its own traceback."""
    return UpstreamFailure(failure.reason, failure.message, unprocessed=failure.unprocessed)
