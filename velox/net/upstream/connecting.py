"""How a pool gets a connection: dials at a limited rate, pauses after failures, warm-up requests.

Knows: how one connection is dialled and proved to work, how long to wait after a failure. Does not know: how many
connections there are, how long they are used, or who gets one (pool.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from aiolimiter import AsyncLimiter

from velox.errors import Reason, untraced
from velox.heads import ReplyHead
from velox.net.upstream.interface import (
    ConnectionOwner,
    UpstreamConnection,
    UpstreamFailure,
    UpstreamRequest,
    UpstreamStream,
)
from velox.outcomes import ConnectionEnd, Retry

__all__ = ["BackOff", "Dial", "PacedDial", "Warmup"]

Dial = Callable[[ConnectionOwner], Awaitable[UpstreamConnection]]

_BACKOFF_FIRST_S: Final = 0.1
# With its jitter of a half, and some seconds for the dial itself: an upstream that is back is used within 30 s.
_BACKOFF_MAX_S: Final = 18.0
# Dials a second and worker: the workers do not all dial at once when an upstream comes back. Arbitrary; a TLS handshake
# costs the upstream about 1 ms.
_DIALS_PER_S: Final = 500.0


class BackOff:
    """A pause after failures. It doubles with each failure and has jitter, so that workers do not dial together."""

    def __init__(self, resume: Callable[[], None]) -> None:
        self._resume: Final = resume
        self._pause_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """True during the pause."""
        return self._timer is not None

    def start(self) -> bool:
        """Begin a pause; False if one is on already: failures at the same time count once."""
        if self._timer is not None:
            return False
        self._pause_s = min(max(self._pause_s * 2, _BACKOFF_FIRST_S), _BACKOFF_MAX_S)
        delay_s = self._pause_s * random.uniform(0.5, 1.5)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._end)
        return True

    def reset(self) -> None:
        """Make the next pause a short one again."""
        self._pause_s = 0.0

    def close(self) -> None:
        """Never resume."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._timer = None
        self._resume()


class PacedDial:
    """Dials at a limited rate."""

    def __init__(self, dial: Dial) -> None:
        self._dial: Final = dial
        self._pace: Final = AsyncLimiter(_DIALS_PER_S, 1.0)

    async def connect(self, owner: ConnectionOwner) -> UpstreamConnection:
        """Return an open connection. Raises UpstreamFailure, and nothing else.

        After any other error the callers that wait for this dial would never be woken.
        """
        await self._pace.acquire()
        try:
            connection = await self._dial(owner)
        except UpstreamFailure as failure:
            untraced(failure)
            raise
        except Exception as exc:
            message = f"the upstream could not be reached ({type(exc).__name__})"
            raise UpstreamFailure(Reason.UPSTREAM_CONNECT, message, unprocessed=Retry.CONNECT) from untraced(exc)
        if connection.is_closed or connection.end is not None:
            connection.abort(ConnectionEnd.LOST)
            message = "the upstream closed the connection at once"
            raise UpstreamFailure(Reason.UPSTREAM_CONNECT, message, unprocessed=Retry.CONNECT)
        return connection


class Warmup:
    """One HEAD request on a connection; any reply proves that the connection works."""

    def __init__(self, connection: UpstreamConnection, request: UpstreamRequest) -> None:
        """Send the request. Raises UpstreamFailure when the connection takes no stream."""
        self._connection: Final = connection
        self._sink: Final = _WarmupSink(asyncio.get_running_loop())
        self._stream: Final[UpstreamStream] = connection.open(request, self._sink)

    @classmethod
    def begin(cls, connection: UpstreamConnection, request: UpstreamRequest) -> Warmup | None:
        """Send a warm-up; None if the connection has no room or takes no stream."""
        try:
            return cls(connection, request) if connection.has_room else None
        except UpstreamFailure:
            return None  # it has retired itself

    async def wait_reply(self, timeout_s: float) -> None:
        """Wait for the reply. Raises UpstreamFailure; then the connection takes no more exchanges."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._sink.done
        except TimeoutError as exc:
            if self._sink.has_ended:
                return  # just in time; over HTTP/1.1 the connection may carry another exchange by now
            self._give_up()
            message = f"no answer to the warm-up request in {timeout_s:g} s"
            raise UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, message) from exc
        except UpstreamFailure:
            self._give_up()
            raise

    def _give_up(self) -> None:
        # Other exchanges on the connection go on.
        self._connection.retire(ConnectionEnd.LOST)
        self._stream.cancel()


class _WarmupSink:
    """Waits for the end of a warm-up's reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.done: Final[asyncio.Future[None]] = loop.create_future()
        self.has_ended = False  # the reply is complete; also set when nobody waits for it any more

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        self.has_ended = end
        if end and not self.done.done():
            self.done.set_result(None)

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        return False

    def on_failure(self, failure: UpstreamFailure) -> None:
        if not self.done.done():
            self.done.set_exception(failure)
            self.done.exception()  # marks it as retrieved: nobody waits if the pool was closed meanwhile
