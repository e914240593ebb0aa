"""A batch split: one request goes up as several calls, as its model takes fewer texts a call than the client has sent.

    open()      in place of a connection's: begins, some calls at a time, each on a connection of its own
    take()      is given each answer as it comes; the sink gets the reply once all are there
    cancel()    ends them all

For all others it is one attempt with one reply: that has the head of the first call's answer, and what take() has made
of the bodies. The first error or failure takes the place of the reply, and ends the other calls. Another attempt
repeats all of them.

Vectors are read in the thread for such work (cpu_work.py): an answer may have megabytes of numbers.

Knows: how many run at a time, which end the sink gets. Does not know: what the bodies are (other_models.py), or how
one is sent (internal_request.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from velox.dialects.canonical.errors import BrokenReplyError
from velox.errors import Reason, VeloxError
from velox.gateway.cpu_work import TranslationThread, is_large
from velox.gateway.internal_request import ask_for_client
from velox.heads import Headers, ReplyHead
from velox.net.upstream.interface import ReplySink, UpstreamFailure, UpstreamRequest, UpstreamStream
from velox.net.upstream.pool import Pool
from velox.policy.routes.entries import Timeouts

__all__ = ["BatchSplit"]

_AT_ONCE: Final = 8  # arbitrary: 100 texts take as long as 13 in a row
_MOST_CALL_BYTES: Final = 8 * 1024 * 1024
_MOST_BYTES: Final = 64 * 1024 * 1024  # of all answers
_NOT_GOOD_FROM: Final = 300


class BatchSplit:
    """The calls of one attempt, and its stream.

    pool, timeouts, most_at_once: of its upstream; most_at_once is 0 where any number of requests may run there.
    build: makes the request of a body, just before it is sent: a signature does not hold for long. take: called with an
    answer's number, headers and body, in the thread of `thread` where it is long. Raises BrokenReplyError. on_bug:
    called with an unexpected error.
    """

    __slots__ = (
        *(
            "_cpu_thread",
            "_bodies",
            "_build",
            "_headers",
            "_is_over",
            "_most_at_once",
            "_n_bytes",
            "_n_left",
            "_next",
            "_on_bug",
        ),
        *("_pool", "_sink", "_take", "_tasks", "_timeouts"),
    )

    def __init__(
        self,
        bodies: Sequence[bytes],
        build: Callable[[bytes], UpstreamRequest],
        take: Callable[[int, Headers, bytes], None],
        pool: Pool,
        timeouts: Timeouts,
        most_at_once: int,
        on_bug: Callable[[Exception], None],
        thread: TranslationThread,
    ) -> None:
        self._cpu_thread: Final = thread
        self._bodies: Final = bodies
        self._build: Final = build
        self._take: Final = take
        self._pool: Final = pool
        self._timeouts: Final = timeouts
        self._most_at_once: Final = most_at_once
        self._on_bug: Final = on_bug
        self._sink: ReplySink | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._next = 0
        self._n_left = len(bodies)
        self._n_bytes = 0
        self._headers: Headers = []  # of the first call's answer
        self._is_over = False

    def __repr__(self) -> str:
        return f"<BatchSplit {self._n_left} of {len(self._bodies)} left>"

    def open(self, sink: ReplySink) -> UpstreamStream:
        """Begin. The sink gets the reply once it is whole."""
        self._sink = sink
        loop = asyncio.get_running_loop()
        n_at_once = min(len(self._bodies), _AT_ONCE, self._most_at_once or _AT_ONCE)
        self._tasks = [loop.create_task(self._work(loop)) for _ in range(n_at_once)]
        return self

    # -- UpstreamStream -----------------------------------------------------------------------------

    @property
    def n_unsent(self) -> int:
        """Not known: each call has time-outs of its own, so nobody asks."""
        return 0

    def pause(self) -> None:
        """Nothing goes to the client before all is there."""

    def resume(self) -> None:
        """Nothing was held up."""

    def cancel(self) -> None:
        """Give all calls up. The sink gets nothing more."""
        self._is_over = True
        self._sink = None
        for task in self._tasks:
            task.cancel()

    # -- inside -------------------------------------------------------------------------------------

    async def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make one call after the other, as long as there are some."""
        # A task that ends as cancelled keeps the error, whose traceback leads to what it ran, and that to the task.
        with contextlib.suppress(asyncio.CancelledError):
            await self._work_on(loop)

    async def _work_on(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._next < len(self._bodies) and not self._is_over:
                n = self._next
                self._next += 1
                await self._call(n, loop)
        except BrokenReplyError as exc:
            message = f"the upstream's reply can't be translated: {exc}"
            self._fail(UpstreamFailure(Reason.UPSTREAM_PROTOCOL, message))
        except VeloxError as exc:
            # Other calls may have been answered: none of it is sure to have been no work.
            self._fail(UpstreamFailure(exc.reason, exc.message, status=exc.status))
        except Exception as exc:
            self._on_bug(exc)
            self._fail(UpstreamFailure(Reason.INTERNAL, "an error inside Velox ended this request; it was recorded"))

    async def _call(self, n: int, loop: asyncio.AbstractEventLoop) -> None:
        request = self._build(self._bodies[n])
        answer = await ask_for_client(self._pool, request, loop, self._timeouts, max_bytes=_MOST_CALL_BYTES)
        if self._is_over:
            return
        if answer.status >= _NOT_GOOD_FROM:
            self._reply(answer.status, answer.headers, answer.body)
            return
        self._n_bytes += len(answer.body)
        if self._n_bytes > _MOST_BYTES:
            raise BrokenReplyError(f"its answers are over {_MOST_BYTES} bytes")
        take = partial(self._take, n, answer.headers, answer.body)
        if is_large((answer.body,)):
            await self._cpu_thread.run(take)
        else:
            take()
        if n == 0:
            self._headers = answer.headers
        self._n_left -= 1
        if not self._n_left:
            self._reply(200, self._headers, b"")

    def _reply(self, status: int, headers: Headers, body: bytes) -> None:
        sink = self._end()
        if sink is not None:
            kept = [field for field in headers if field[0] != b"content-length"]
            sink.on_reply(ReplyHead.of(status, kept, len(body)), body, True)

    def _fail(self, failure: UpstreamFailure) -> None:
        sink = self._end()
        if sink is not None:
            sink.on_failure(failure)

    def _end(self) -> ReplySink | None:
        """End the other calls; return the sink, None where it has got the reply already."""
        sink, self._sink = self._sink, None
        self._is_over = True
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        return sink
