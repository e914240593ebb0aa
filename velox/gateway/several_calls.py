"""Several calls in place of one request: for all others they are one attempt with one reply.

    begin()    in place of a connection's open(): begins the tasks that make the calls
    ask()      sends one call, and returns its answer
    reply()    ends all with a reply
    end()      ends all without one
    cancel()   the client's side gives all up

An error in a task takes the place of the reply.

Knows: the stream of such an attempt, and which end its sink gets. Does not know: what is asked, or what the reply is
made of (own_pages.py, batch_split.py), or how a call is sent (internal_request.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from velox.errors import VeloxError, untraced
from velox.gateway.internal_request import Answer, ask_for_client
from velox.gateway.reply.respond import crash
from velox.heads import Headers, ReplyHead
from velox.net.upstream.interface import ReplySink, UpstreamFailure, UpstreamRequest, UpstreamStream
from velox.net.upstream.pool import Pool
from velox.policy.routes.entries import Timeouts

__all__ = ["SeveralCalls"]

# What is said of the body as it came.
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})


class SeveralCalls:
    """The stream of one attempt, and the tasks behind it.

    pool, timeouts: of its upstream. max_bytes: a longer answer is a failure. on_bug: called with an unexpected error.
    """

    __slots__ = ("_max_bytes", "_on_bug", "_pool", "_sink", "_tasks", "_timeouts", "n_bytes")

    def __init__(self, pool: Pool, timeouts: Timeouts, max_bytes: int, on_bug: Callable[[Exception], None]) -> None:
        self._pool: Final = pool
        self._timeouts: Final = timeouts
        self._max_bytes: Final = max_bytes
        self._on_bug: Final = on_bug
        self._sink: ReplySink | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.n_bytes = 0  # of all answers' bodies

    @property
    def is_over(self) -> bool:
        """Whether the sink gets nothing more."""
        return self._sink is None

    def begin(self, sink: ReplySink, work: Callable[[], Awaitable[None]], n_tasks: int = 1) -> UpstreamStream:
        """Begin as many tasks of this work. The sink gets one reply, or one failure."""
        self._sink = sink
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(work)) for _ in range(n_tasks)]
        return self

    async def ask(self, request: UpstreamRequest) -> Answer:
        """Send a call; its connection is its own. Raises what ask_for_client() does."""
        loop = asyncio.get_running_loop()
        answer = await ask_for_client(self._pool, request, loop, self._timeouts, max_bytes=self._max_bytes)
        self.n_bytes += len(answer.body)
        return answer

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """End with a reply. headers: those of the answer that it is made of."""
        sink = self.end()
        if sink is not None:
            kept = [field for field in headers if field[0] not in _FRAMING]
            sink.on_reply(ReplyHead.of(status, kept, len(body)), body, True)

    def end(self) -> ReplySink | None:
        """End the other tasks; return the sink, None where it has got its end already. It gets nothing more."""
        sink, self._sink = self._sink, None
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        return sink

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
        """Give it up. The sink gets nothing more."""
        self._sink = None
        for task in self._tasks:
            task.cancel()

    # -- inside -------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        # A task that ends as cancelled keeps the error, whose traceback leads to what it ran, and that to the task.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await work()
            except UpstreamFailure as failure:
                self._fail(untraced(failure))
            except VeloxError as exc:
                self._fail(_failure(exc))
            except Exception as exc:
                self._on_bug(exc)
                self._fail(_failure(crash()))

    def _fail(self, failure: UpstreamFailure) -> None:
        sink = self.end()
        if sink is not None:
            sink.on_failure(failure)


def _failure(error: VeloxError) -> UpstreamFailure:
    return UpstreamFailure(error.reason, error.message, status=error.status)
