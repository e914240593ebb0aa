"""Internal requests: the gateway asks an upstream something itself, or sends a copy that no client waits for.

    ask()              returns the answer
    ask_for_client()   the same, with the time-outs that a client's request has there
    ask_status()       returns its status, and keeps nothing else of it

Knows: how one is sent on a connection of a pool, how long it may take, how much of an answer is kept. Does not know:
why it is asked (health_checks.py, mirror.py), health, limits or retries.

It takes a room as an attempt does (group.py), and waits in the same line for one. A connection that had idled and is
closed just as it is used (F-10) says nothing about the member, and no work was done there: then it is sent once more,
elsewhere. A probe whose interval is the upstream's keep-alive time would else fail each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from velox.errors import Reason, VeloxError, untraced
from velox.gateway.reply.first_event import FirstEventWatch
from velox.heads import Headers, ReplyHead
from velox.net.upstream.interface import UpstreamFailure, UpstreamRequest, UpstreamStream
from velox.net.upstream.pool import Pool
from velox.outcomes import Retry
from velox.policy.routes.entries import Timeouts
from velox.protocol.reply_body import CodingError, label_of, plain_reply

__all__ = ["Answer", "Listener", "ask", "ask_for_client", "ask_status"]

# How often one request is sent: an upstream that drops all its idle connections is met by three of them at most.
_TRIES: Final = 3
_UNPROCESSED: Final = frozenset({Retry.STALE, Retry.REFUSED, Retry.GOAWAY})
# RFC 9110 §9.2.2: to ask twice does no harm.
_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD"})


class Listener(NamedTuple):
    """What is called of an answer before it is whole. None of it may raise.

    on_head: its head is there. on_first: its first event that tells of the model's work, or the first bytes of a body
    without events; called with the seconds since the request was sent. on_data: more of its body, and whether that was
    the end.
    """

    on_head: Callable[[ReplyHead], None]
    on_first: Callable[[float], None]
    on_data: Callable[[bytes, bool], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, whatever its status."""

    status: int
    headers: Headers
    body: bytes


async def ask(
    pool: Pool,
    request: UpstreamRequest,
    loop: asyncio.AbstractEventLoop,
    *,
    timeout_s: float,
    max_bytes: int,
    first_byte_s: float | None = None,
) -> Answer:
    """Send a request and return its answer. timeout_s: for all of it. max_bytes: a longer body is a failure.

    first_byte_s: as in ask_status().

    Raises VeloxError; it is an UpstreamFailure unless the member was never asked: QUEUE_TIMEOUT when all its
    connections were busy, DRAINING at the end. Anything else is a bug.
    """
    begin_s = timeout_s if first_byte_s is None else min(timeout_s, first_byte_s)
    sink = await _send(pool, request, lambda: _Sink(loop, max_bytes), timeout_s, begin_s)
    head = sink.head
    assert head is not None, "a whole reply has a head"
    try:
        headers, body = plain_reply(head.headers, b"".join(sink.pieces))
    except CodingError as exc:
        raise UpstreamFailure(Reason.UPSTREAM_PROTOCOL, f"the upstream's answer can't be read: {exc}") from exc
    return Answer(head.status, headers, body)


async def ask_for_client(
    pool: Pool, request: UpstreamRequest, loop: asyncio.AbstractEventLoop, limits: Timeouts, *, max_bytes: int
) -> Answer:
    """Do as ask() does, for an answer that comes in one piece: one that has begun is late sooner than it is silent."""
    whole_s = limits.first_byte_s + limits.idle_s
    timeout_s = min(whole_s, limits.total_s or whole_s)
    return await ask(pool, request, loop, timeout_s=timeout_s, first_byte_s=limits.first_byte_s, max_bytes=max_bytes)


async def ask_status(
    pool: Pool,
    request: UpstreamRequest,
    loop: asyncio.AbstractEventLoop,
    *,
    timeout_s: float,
    first_byte_s: float | None = None,
    listener: Listener | None = None,
) -> int:
    """Send a request, read its answer to the end and return its status; the body may have any length.

    first_byte_s: how much of timeout_s may be over when the answer begins; None: all. Raises as ask() does.
    """
    begin_s = timeout_s if first_byte_s is None else min(timeout_s, first_byte_s)
    sink = await _send(pool, request, lambda: _Sink(loop, None, listener), timeout_s, begin_s)
    assert sink.head is not None, "a whole reply has a head"
    return sink.head.status


async def _send(
    pool: Pool, request: UpstreamRequest, make_sink: Callable[[], _Sink], timeout_s: float, begin_s: float
) -> _Sink:
    try:
        return await _send_anywhere(pool, request, make_sink, timeout_s, begin_s)
    except VeloxError as exc:
        untraced(exc)  # the sink keeps it
        raise


async def _send_anywhere(
    pool: Pool, request: UpstreamRequest, make_sink: Callable[[], _Sink], timeout_s: float, begin_s: float
) -> _Sink:
    sink = make_sink()
    now_s = sink.loop.time()
    n_left = _TRIES
    while True:
        try:
            await _send_once(pool, request, sink, now_s + begin_s, now_s + timeout_s)
        except UpstreamFailure as failure:
            n_left -= 1
            may_repeat = failure.may_be_stale and request.method in _IDEMPOTENT
            if not n_left or not (may_repeat or failure.unprocessed in _UNPROCESSED):
                raise
            if failure.may_be_stale:
                pool.retire_stale_idle(sink.loop.time())
            sink = make_sink()
        except TimeoutError:
            if not sink.done.done() or sink.done.cancelled():
                raise _too_late(pool, sink) from None
            sink.done.result()  # it came at the last moment
            return sink
        else:
            return sink


async def _send_once(pool: Pool, request: UpstreamRequest, sink: _Sink, begin_s: float, until_s: float) -> None:
    """Send it on one connection. begin_s, until_s: when its answer has to begin, and to be whole. Raises TimeoutError.

    Whatever happens, its stream is over at the end, and the room that it had is free.
    """
    stream: UpstreamStream | None = None
    try:
        async with asyncio.timeout_at(begin_s) as deadline:
            connection = pool.lease_nowait()
            while connection is None or not connection.has_room:
                connection = await pool.lease()
            # No await from here to give_back(): the room that was leased is taken.
            sink.begin(deadline, until_s)
            try:
                dispatch = request.dispatch
                stream = connection.open(request, sink) if dispatch is None else dispatch(sink)
            finally:
                pool.give_back(connection)
            await sink.done
    finally:
        # Over HTTP/1.1 the stream is the connection, which may carry another exchange once this one has ended.
        if stream is not None and not sink.has_ended:
            stream.cancel()


def _too_late(pool: Pool, sink: _Sink) -> VeloxError:
    if sink.head is not None:
        return UpstreamFailure(Reason.UPSTREAM_TOTAL_TIMEOUT, "the upstream's answer was not whole in time")
    if sink.has_begun:
        return UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, "the upstream did not answer in time")
    if pool.statistics().connections:
        return VeloxError(Reason.QUEUE_TIMEOUT, "no upstream connection came free in time")
    message = "no connection to the upstream could be made in time"
    return UpstreamFailure(Reason.UPSTREAM_CONNECT, message, unprocessed=Retry.CONNECT)


class _Sink:
    """Takes one answer; `done` resolves when it is whole, or fails with what broke it."""

    __slots__ = (
        "_deadline",
        "_first",
        "_listener",
        "_max_bytes",
        "_n_bytes",
        "_needs_first",
        "_sent_s",
        "_until_s",
        "done",
        "has_begun",
        "has_ended",
        "head",
        "loop",
        "pieces",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, max_bytes: int | None, listener: Listener | None = None
    ) -> None:
        """max_bytes: how much of the body is kept, and may come; None: nothing, and any number."""
        self.loop: Final = loop
        self._listener: Final = listener
        self._needs_first = listener is not None
        self._first: FirstEventWatch | None = None  # of an event stream that is not compressed
        self._max_bytes: Final = max_bytes
        self._n_bytes = 0
        self._deadline: asyncio.Timeout | None = None
        self._until_s = 0.0
        self._sent_s = 0.0
        self.done: Final[asyncio.Future[None]] = loop.create_future()
        self.has_begun = False  # a connection was there for it
        self.has_ended = False  # with a whole reply, also when nobody waits for it any more
        self.head: ReplyHead | None = None
        self.pieces: Final[list[bytes]] = []

    def begin(self, deadline: asyncio.Timeout, until_s: float) -> None:
        """The request is about to be sent. deadline: moved to until_s when its answer begins."""
        self.has_begun = True
        self._sent_s = self.loop.time()
        self._deadline, self._until_s = deadline, until_s

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        self.has_ended = end
        if self.done.done():
            return
        if head is not None:
            self.head = head
            if self._deadline is not None and not self._deadline.expired():
                self._deadline.reschedule(self._until_s)
            if self._listener is not None:
                self._listener.on_head(head)
                self._first = FirstEventWatch() if label_of(head.headers) == (True, True) else None
        if data:
            self._take(data)
        if self._listener is not None:
            self._listener.on_data(data, end)
        if end and not self.done.done():
            self.done.set_result(None)

    def on_chunk(self, chunk: bytes, at: int) -> bool:
        return False

    def _take(self, data: bytes) -> None:
        if self._needs_first and (self._first is None or self._first.feed(data)):
            self._needs_first, self._first = False, None
            if self._listener is not None:
                self._listener.on_first(self.loop.time() - self._sent_s)
        self._n_bytes += len(data)
        if self._max_bytes is None:
            return
        if self._n_bytes <= self._max_bytes:
            self.pieces.append(data)
            return
        self.pieces.clear()
        message = f"the upstream's answer has more than {self._max_bytes} bytes"
        self.done.set_exception(UpstreamFailure(Reason.UPSTREAM_PROTOCOL, message))

    def on_failure(self, failure: UpstreamFailure) -> None:
        if not self.done.done():
            self.done.set_exception(failure)
            self.done.exception()  # heard, also where nobody waits any more
