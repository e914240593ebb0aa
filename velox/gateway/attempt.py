"""One attempt of an exchange at one upstream: lease, send, wait for the reply; and what follows if none came.

    run()        a stream on a warm connection; the reply passes through reply.py
    _refuses()   asked with each reply's head: is it the client's, or is there another attempt (retries.py)?
    overdue()    asked every 0.3 s: is it time to give this upstream up?

Knows: which upstream, since when, how far the request's body has got, who is told how it ended. Does not know: what
comes before and after it in the life of the request (exchange.py), or when another is allowed (retries.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from velox.errors import Reason
from velox.gateway.parts import GatewayLimits
from velox.gateway.reply import Reply
from velox.gateway.retries import Again
from velox.gateway.upstreams import Upstream
from velox.net.upstream.interface import UpstreamFailure, UpstreamStream
from velox.types import ReplyHead

if TYPE_CHECKING:  # an exchange makes its attempts, and each goes on with what its exchange has
    from velox.gateway.exchange import Exchange

__all__ = ["Attempt"]


class Attempt:
    """One attempt, made when its turn has come."""

    __slots__ = (
        "_again",
        "_began_s",
        "_exchange",
        "_has_replied",
        "_n_unsent",
        "_progress_s",
        "_sent_s",
        "_stream",
        "_upstream",
    )

    def __init__(self, exchange: Exchange, upstream: Upstream, now_s: float) -> None:
        self._exchange: Final = exchange
        self._upstream: Final = upstream
        self._began_s: Final = now_s
        self._stream: UpstreamStream | None = None  # until it is opened, and from its end on
        self._again: Again | None = None  # what follows, once the head of its reply has been refused
        self._n_unsent = 0  # of the request's body, at the last look
        self._progress_s = now_s  # when that had last become less
        self._sent_s = now_s
        self._has_replied = False

    def __repr__(self) -> str:
        return f"<Attempt at {self._upstream.name} {'open' if self._stream is not None else 'waiting'}>"

    async def run(self, reply: Reply) -> Again | None:
        """Send it once. Return None when the reply is whole, else what comes next. Raises VeloxError if nothing may."""
        exchange, upstream = self._exchange, self._upstream
        loop, recorder = exchange.gateway.loop, exchange.gateway.parts.recorder
        exchange.attempts += 1
        upstream.breaker.begin(self._began_s)
        lasts = exchange.head.offer is not None
        upstream.concurrency.begin(self._began_s, lasts=lasts)
        try:
            request = exchange.build(upstream)
            request.may_run_ahead = exchange.client.may_run_ahead
            connection = await exchange.lease(upstream)
            exchange.phase = "ttfb"
            on_first = self._on_first if upstream.concurrency.limit else None
            reply.begin(self._refuses, upstream.forwarder.secret, on_first)
            try:
                # No await from here to give_back(): the room that was leased is taken.
                try:
                    stream = connection.open(request, reply)
                    reply.attach(stream)
                finally:
                    upstream.pool.give_back(connection)
                self._stream = stream
                self._sent_s = self._progress_s = loop.time()
                if exchange.client.is_write_paused:
                    reply.pause()
                await reply.done
            finally:
                self._stream = None
                reply.detach()
        except UpstreamFailure as failure:
            recorder.attempt_failed(failure)
            upstream.broke(failure, self._began_s, loop.time())
            again = self._again
            exchange.was_sent |= failure.unprocessed is None
            # What it answered, even with an error, it does not work on any more.
            exchange.may_have_begun |= failure.unprocessed is None and failure.reason is not Reason.UPSTREAM_STATUS
            if again is None and not reply.started:
                again = exchange.retries.after_failure(failure, upstream, self._began_s, loop.time())
            if again is None:
                raise
            failure.__traceback__ = None  # as in Exchange._run()
            return again
        except BaseException:
            recorder.attempt_given_up()
            upstream.breaker.gave_up(self._began_s)
            exchange.was_sent |= exchange.phase == "ttfb"
            exchange.may_have_begun |= exchange.phase == "ttfb"
            if self._again is not None:
                self._again.give_up(loop.time())
            raise
        finally:
            upstream.concurrency.ended(self._began_s, loop.time(), replied=self._has_replied, lasts=lasts)
        exchange.was_sent = True
        recorder.attempt_answered(reply.status)
        upstream.answered(reply.status, self._began_s, loop.time())
        return None

    def _refuses(self, head: ReplyHead) -> bool:
        """Say whether a reply is not for the client, because there is another attempt. Asked with each reply's head."""
        if head.status < 400:
            self._upstream.breaker.answers()
            return False
        exchange = self._exchange
        self._again = exchange.retries.after_status(head, self._upstream, exchange.gateway.loop.time())
        return self._again is not None

    def _on_first(self) -> None:
        """The reply's first event is there, or what there is first of a reply without events."""
        self._has_replied = True
        exchange, now_s = self._exchange, self._exchange.gateway.loop.time()
        streamed = exchange.reply is not None and exchange.reply.is_sse
        concurrency = self._upstream.concurrency
        if concurrency.replied(self._began_s, now_s - self._sent_s, now_s, streamed=streamed):
            exchange.gateway.found_room()

    def overdue(self, reply: Reply, now_s: float, limits: GatewayLimits) -> UpstreamFailure | None:
        """Return why the upstream gets no more time; None while it has some."""
        if reply.started and now_s - reply.last_s < limits.idle_timeout_s:
            return None
        stream = self._stream
        if stream is None or reply.done.done():
            return None
        if reply.started:
            message = f"the upstream sent nothing for {limits.idle_timeout_s:g} s"
            return UpstreamFailure(Reason.UPSTREAM_IDLE_TIMEOUT, message)
        n_unsent = stream.n_unsent
        if n_unsent != self._n_unsent:
            # The wait for the first byte runs from when the body has been taken; until then, each byte taken counts.
            self._n_unsent = n_unsent
            self._progress_s = now_s
            return None
        silent_s = now_s - self._progress_s
        if n_unsent and silent_s >= limits.write_timeout_s:
            message = f"the upstream took nothing of the request's body for {limits.write_timeout_s:g} s"
            return UpstreamFailure(Reason.BODY_TIMEOUT, message, status=504)
        if not n_unsent and silent_s >= limits.first_byte_timeout_s:
            message = f"the upstream sent no reply in {limits.first_byte_timeout_s:g} s"
            return UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, message)
        return None
