"""One attempt of an exchange at one member: lease, send, wait for the reply; and what follows if none came.

    run()        a stream on a warm connection; the reply passes through reply.py
    _refuses()   asked with each reply's head: is it the client's, or is there another attempt (retries.py)?
    overdue()    asked every 0.25 s: is it time to give this upstream up?

Knows: which member, since when, how far the request's body has got, who is told how it ended. Does not know: what
comes before and after it in the life of the request (exchange.py), or when another is allowed (retries.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from velox.errors import Reason, VeloxError
from velox.gateway.group import Pick
from velox.gateway.retries import Again
from velox.net.upstream.interface import UpstreamConnection, UpstreamFailure, UpstreamRequest, UpstreamStream
from velox.types import Headers, ReplyHead

if TYPE_CHECKING:  # an exchange makes its attempts, and each goes on with what its exchange has
    from velox.gateway.exchange import Exchange

__all__ = ["Attempt", "AttemptReply"]


class AttemptReply(Protocol):
    """Where the reply of an attempt goes: to the client (reply.py), or first to where it is held back (held.py).

    All as in Reply.
    """

    @property
    def done(self) -> asyncio.Future[None]: ...

    @property
    def started(self) -> bool: ...

    @property
    def status(self) -> int: ...

    @property
    def last_s(self) -> float: ...

    def begin(
        self,
        verdict: Callable[[ReplyHead], bool] | None,
        secret: bytes | None,
        on_first: Callable[[], None] | None,
        told: Headers,
    ) -> None: ...

    def attach(self, stream: UpstreamStream) -> None: ...

    def detach(self) -> None: ...

    def pause(self) -> None: ...

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None: ...

    def on_chunk(self, chunk: bytes, at: int) -> bool: ...

    def on_failure(self, failure: VeloxError) -> None: ...


class Attempt:
    """One attempt, made when its turn has come."""

    __slots__ = (
        "_again",
        "_began_s",
        "_exchange",
        "_has_head",
        "_has_replied",
        "_n_unsent",
        "_progress_s",
        "_sent_s",
        "_stream",
        "is_sent",
        "pick",
    )

    def __init__(self, exchange: Exchange, pick: Pick, now_s: float) -> None:
        self._exchange: Final = exchange
        self.pick: Final = pick
        self._began_s: Final = now_s
        self._stream: UpstreamStream | None = None  # until it is opened, and from its end on
        self._again: Again | None = None  # what follows, once the head of its reply has been refused
        self._n_unsent = 0  # of the request's body, at the last look
        self._progress_s = now_s  # when that had last become less
        self._sent_s = now_s
        self._has_head = False
        self._has_replied = False
        self.is_sent = False  # as far as it is known; it may have failed as it was

    def __repr__(self) -> str:
        return f"<Attempt at {self.pick.member.name} {'open' if self._stream is not None else 'waiting'}>"

    async def run(self, reply: AttemptReply) -> Again | None:
        """Send it once. Return None when the reply is whole, else what comes next. Raises VeloxError if nothing may."""
        exchange, pick, began_s = self._exchange, self.pick, self._began_s
        gateway, client, trail = exchange.gateway, exchange.client, exchange.trail
        loop, recorder = gateway.loop, gateway.parts.recorder
        member = pick.member
        trail.began(member.name, member.first_told)
        pick.begin(began_s)
        lasts = exchange.head.offer is not None
        member.concurrency.begin(began_s, lasts=lasts)
        try:
            request = exchange.build(pick)
            request.may_run_ahead = client.may_run_ahead
            # A tunnel has a connection of its own.
            connection = None if lasts else member.pool.lease_nowait()
            if connection is None:
                connection = await exchange.lease(member)
            exchange.phase = "ttfb"
            self.is_sent = True
            reply.begin(self._refuses, pick.secret, self._on_first, trail.headers())
            try:
                self._open(connection, request, reply)
                await reply.done
            finally:
                self._stream = None
                reply.detach()
        except UpstreamFailure as failure:
            again = self._failed(failure, reply)
            if again is None:
                raise
            failure.__traceback__ = None  # as in Exchange._run()
            return again
        except BaseException:
            recorder.attempt_given_up(pick)
            pick.gave_up(loop.time())
            exchange.was_sent |= self.is_sent
            exchange.may_have_begun |= self.is_sent
            if self._again is not None:
                self._again.give_up(loop.time())
            raise
        finally:
            now_s = loop.time()
            member.concurrency.ended(began_s, now_s, replied=self._has_replied, lasts=lasts)
        exchange.was_sent = True
        status = reply.status
        recorder.attempt_answered(pick, status)
        pick.answered(status, now_s)
        return None

    def _open(self, connection: UpstreamConnection, request: UpstreamRequest, reply: AttemptReply) -> None:
        """Send the request. No await: the room that was leased is taken."""
        try:
            stream = connection.open(request, reply)
            reply.attach(stream)
        finally:
            self.pick.member.pool.give_back(connection)
        exchange = self._exchange
        self._stream = stream
        self._sent_s = self._progress_s = exchange.gateway.loop.time()
        if exchange.client.is_write_paused:
            reply.pause()

    def _failed(self, failure: UpstreamFailure, reply: AttemptReply) -> Again | None:
        """Account for an attempt that failed. Return what follows."""
        exchange, pick = self._exchange, self.pick
        now_s = exchange.gateway.loop.time()
        exchange.gateway.parts.recorder.attempt_failed(pick, failure)
        pick.broke(failure, now_s)
        again = self._again
        exchange.was_sent |= failure.unprocessed is None
        # What it answered, even with an error, it does not work on any more.
        exchange.may_have_begun |= failure.unprocessed is None and failure.reason is not Reason.UPSTREAM_STATUS
        if again is None and not reply.started:
            again = self._after(failure, now_s)
        if again is not None:
            exchange.trail.failed(pick.member.name, failure)
        return again

    def hears(self, head: ReplyHead) -> None:
        """The reply's head has come, whether or not it is the client's. Only the first call counts."""
        if not self._has_head:
            self._has_head = True
            self.pick.answers(head.status, head.headers, self._exchange.gateway.loop.time())

    def _refuses(self, head: ReplyHead) -> bool:
        """Say whether a reply is not for the client, because there is another attempt. Asked with each reply's head."""
        self.hears(head)
        if head.status < 400:
            return False
        exchange = self._exchange
        self._again = exchange.retries.after_status(head, self.pick, exchange.gateway.loop.time())
        return self._again is not None

    def _after(self, failure: UpstreamFailure, now_s: float) -> Again | None:
        """Return what follows a failure before the client has seen a byte."""
        return self._exchange.retries.after_failure(failure, self.pick, self._began_s, now_s)

    def _on_first(self) -> None:
        """The reply's first event is there, or what there is first of a reply without events."""
        self._has_replied = True
        exchange, now_s = self._exchange, self._exchange.gateway.loop.time()
        waited_s = now_s - self._sent_s
        self.pick.has_first(waited_s, now_s)
        concurrency = self.pick.member.concurrency
        if not concurrency.limit:
            return
        streamed = exchange.reply is not None and exchange.reply.is_sse
        if concurrency.replied(self._began_s, waited_s, now_s, streamed=streamed):
            exchange.gateway.found_room()

    @property
    def total_s(self) -> float:
        """How long a reply of this upstream may take that is no stream; 0: no limit."""
        return self.pick.member.timeouts.total_s

    def overdue(self, reply: AttemptReply, now_s: float) -> UpstreamFailure | None:
        """Return why the upstream gets no more time; None while it has some."""
        limits = self.pick.member.timeouts
        if reply.started and now_s - reply.last_s < limits.idle_s:
            return None
        stream = self._stream
        if stream is None or reply.done.done():
            return None
        if reply.started:
            message = f"the upstream sent nothing for {limits.idle_s:g} s"
            return UpstreamFailure(Reason.UPSTREAM_IDLE_TIMEOUT, message)
        n_unsent = stream.n_unsent
        if n_unsent != self._n_unsent:
            # The wait for the first byte runs from when the body has been taken; until then, each byte taken counts.
            self._n_unsent = n_unsent
            self._progress_s = now_s
            return None
        silent_s = now_s - self._progress_s
        if n_unsent and silent_s >= limits.write_s:
            message = f"the upstream took nothing of the request's body for {limits.write_s:g} s"
            return UpstreamFailure(Reason.BODY_TIMEOUT, message, status=504)
        if not n_unsent and silent_s >= limits.first_byte_s:
            message = f"the upstream sent no reply in {limits.first_byte_s:g} s"
            return UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, message)
        return None
