"""A batch split: one request goes up as several calls, as its model takes fewer texts a call than the client has sent.

    open()   in place of a connection's: begins, some calls at a time, each on a connection of its own
    take()   is given each answer as it comes; the sink gets the reply once all are there

For all others it is one attempt with one reply: that has the head of the first call's answer, and what take() has made
of the bodies. The first error or failure takes the place of the reply, and ends the other calls. Another attempt
repeats all of them.

Vectors are read in the thread for such work (cpu_work.py): an answer may have megabytes of numbers.

Knows: how many run at a time, when all are there. Does not know: what the bodies are (other_models.py), or how the
stream ends (several_calls.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from velox.dialects.canonical.errors import BrokenReplyError
from velox.errors import Reason
from velox.gateway.cpu_work import TranslationThread, is_large
from velox.gateway.several_calls import SeveralCalls
from velox.heads import Headers
from velox.net.upstream.interface import ReplySink, UpstreamFailure, UpstreamRequest, UpstreamStream
from velox.net.upstream.pool import Pool
from velox.policy.routes.entries import Timeouts

__all__ = ["BatchSplit"]

_AT_ONCE: Final = 8  # arbitrary: 100 texts take as long as 13 in a row
_MOST_CALL_BYTES: Final = 8 * 1024 * 1024
_MOST_BYTES: Final = 64 * 1024 * 1024  # of all answers
_NOT_GOOD_FROM: Final = 300


class BatchSplit:
    """The calls of one attempt.

    pool, timeouts, most_at_once: of its upstream; most_at_once is 0 where any number of requests may run there.
    build: makes the request of a body, just before it is sent: a signature does not hold for long. take: called with an
    answer's number, headers and body, in the thread of `thread` where it is long. Raises BrokenReplyError. on_bug:
    called with an unexpected error.
    """

    __slots__ = ("_bodies", "_build", "_calls", "_headers", "_most_at_once", "_n_left", "_next", "_take", "_thread")

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
        self._thread: Final = thread
        self._bodies: Final = bodies
        self._build: Final = build
        self._take: Final = take
        self._most_at_once: Final = most_at_once
        self._calls: Final = SeveralCalls(pool, timeouts, _MOST_CALL_BYTES, on_bug)
        self._next = 0
        self._n_left = len(bodies)
        self._headers: Headers = []  # of the first call's answer

    def __repr__(self) -> str:
        return f"<BatchSplit {self._n_left} of {len(self._bodies)} left>"

    def open(self, sink: ReplySink) -> UpstreamStream:
        """Begin. The sink gets the reply once it is whole."""
        n_at_once = min(len(self._bodies), _AT_ONCE, self._most_at_once or _AT_ONCE)
        return self._calls.begin(sink, self._work, n_at_once)

    async def _work(self) -> None:
        """Make one call after the other, as long as there are some."""
        while self._next < len(self._bodies) and not self._calls.is_over:
            n = self._next
            self._next += 1
            try:
                await self._call(n)
            except BrokenReplyError as exc:
                message = f"the upstream's reply can't be translated: {exc}"
                raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, message) from exc
            except UpstreamFailure as failure:
                # Other calls may have been answered: none of it is sure to have been no work.
                raise UpstreamFailure(failure.reason, failure.message, status=failure.status) from failure

    async def _call(self, n: int) -> None:
        calls = self._calls
        answer = await calls.ask(self._build(self._bodies[n]))
        if calls.is_over:
            return
        if answer.status >= _NOT_GOOD_FROM:
            calls.reply(answer.status, answer.headers, answer.body)
            return
        if calls.n_bytes > _MOST_BYTES:
            raise BrokenReplyError(f"its answers are over {_MOST_BYTES} bytes")
        take = partial(self._take, n, answer.headers, answer.body)
        if is_large((answer.body,)):
            await self._thread.run(take)
        else:
            take()
        if n == 0:
            self._headers = answer.headers
        self._n_left -= 1
        if not self._n_left:
            calls.reply(200, self._headers, b"")
