"""The life of one request, from top to bottom: queue, read, who, gate, forward, account.

    check_head()    who      with the head, before a body is read: key and path             (intake.py)
    submit()        accept   a whole request has come: into the bounded queue, or refused   (intake.py)
    drain           queue    once per loop turn, up to a batch: what was too late is refused
      read()        read     one look into the body: model, stream, ...
      bucket.take() gate     the batch takes its tokens in one operation
    _run()          one coroutine per request:
      _read_in_steps()       a large body: the same look, in slices; then its token
      _wait_for_token()      a token that was taken ahead of its time
      _forward()    forward  one attempt, and where it is safe another (retries.py)
        _attempt()           a stream on a warm connection; the reply passes through reply.py
      _end()        account  always, exactly once: slot, token, body, count, log

Knows: the order of these steps and who is told of each end. Does not know: sockets (net/), framing (protocol/), rules
(policy/). docs/life-of-a-request.md shows the same as a picture.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from velox.errors import Reason, VeloxError
from velox.gateway.attempt import Attempt
from velox.gateway.parts import GatewayLimits
from velox.gateway.permission import check_model
from velox.gateway.reply import Reply
from velox.gateway.retries import Again, Retries
from velox.gateway.routes import reads_body
from velox.gateway.upstreams import Upstream
from velox.net.application import Client
from velox.net.upstream.interface import UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.observe.series import Phase
from velox.protocol.body import LARGE_BYTES
from velox.types import Caller, Peek, ReplyHead, RequestHead

if TYPE_CHECKING:  # the gateway makes exchanges, and an exchange goes through its gateway
    from velox.gateway.intake import Gateway

__all__ = ["Exchange"]

_NS_PER_S: Final = 1_000_000_000


class Exchange:
    """One request and its reply."""

    __slots__ = (
        "_attempting",
        "_failed",
        "_forward_s",
        "_gateway",
        "_gone",
        "_holds_token",
        "_may_have_begun",
        "_retries",
        "_running",
        "_task",
        "_timer",
        "attempts",
        "body",
        "caller",
        "client",
        "deadline_s",
        "facts",
        "head",
        "id",
        "peek",
        "phase",
        "reply",
        "started_ns",
        "terms",
    )

    def __init__(
        self,
        gateway: Gateway,
        client: Client,
        head: RequestHead,
        body: bytes | bytearray | None,
        caller: Caller,
    ) -> None:
        self._gateway: Final = gateway
        self.client: Final = client
        self.head: Final = head
        self.body = body
        self.facts: Final = gateway.parts.routes.facts(head.path)
        self.caller: Final = caller
        self.id: Final = gateway.parts.recorder.next_id()
        self.peek = Peek()
        self.phase = "queue"
        self.attempts = 0
        self.reply: Reply | None = None
        self.started_ns: Final = time.monotonic_ns()
        self.terms: Final = gateway.terms(head)
        self.deadline_s: Final = self.started_ns / _NS_PER_S + self.terms.timeout_s
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone: Reason | None = None
        self._failed: VeloxError | None = None  # what it was ended for from outside
        self._holds_token = False
        self._running = False
        self._may_have_begun = False  # an upstream, with work for it
        self._retries: Retries | None = None  # most requests need none
        self._forward_s = 0.0  # when the first attempt began
        self._attempting: Attempt | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.id.decode()} {self.phase} attempts={self.attempts}>"

    # -- what the client does meanwhile ---------------------------------------------------------

    def client_gone(self, *, stalled: bool = False) -> None:
        """Stop at once, in whichever phase (R-CANCEL-1)."""
        if self.reply is not None and self.reply.is_whole:
            return  # it left with its answer, which _run() is about to account
        self._gone = Reason.CLIENT_SLOW if stalled else Reason.CLIENT_CLOSED
        if self._task is not None:
            self._cancel()
        elif self._gateway.parts.queue.discard(self):
            self._stop_timer()
            self._gateway.parts.recorder.ended(self, Reason.CLIENT_CLOSED, 499)

    def client_paused(self) -> None:
        if self.reply is not None:
            self.reply.pause()

    def client_resumed(self) -> None:
        if self.reply is not None:
            self.reply.resume()

    # -- the steps --------------------------------------------------------------------------------

    def read(self) -> None:
        """Look into the body, if its path names a model. Raises VeloxError."""
        if reads_body(self.facts, self.head):
            self.peek = self._gateway.parts.reader.read(self.body or b"")
        check_model(self.caller, self.head, self.peek.model)

    @property
    def is_large(self) -> bool:
        """True when reading the body at one go would hold up the other requests."""
        return self.body is not None and len(self.body) >= LARGE_BYTES

    def start(self, wait_ns: int | None) -> None:
        """Go on as a task. wait_ns: until the token that was taken for it is due; None: not read yet, and no token."""
        self._holds_token = bool(wait_ns)
        self._task = self._gateway.loop.create_task(self._run(wait_ns))

    async def _run(self, wait_ns: int | None) -> None:
        self._running = True
        error: VeloxError | None = None
        try:
            if self._gone or self._failed:
                raise asyncio.CancelledError
            if wait_ns is None:
                await self._read_in_steps()
                check_model(self.caller, self.head, self.peek.model)
                wait_ns = self._gateway.take_token()
                self._holds_token = wait_ns > 0
            if wait_ns:
                await self._wait_for_token(wait_ns)
            await self._forward()
        except VeloxError as exc:
            error = exc
        except asyncio.CancelledError:
            # Two cancel: the client that left, and fail(). Both go on to the account.
            error = None if self._gone else self._failed
            if error is None:
                error = VeloxError(self._gone or Reason.DRAINING, "the exchange was given up")
        except Exception as exc:
            self._gateway.parts.recorder.crashed(exc)
            error = VeloxError(Reason.INTERNAL, "an error inside Velox ended this request; it was recorded")
        self._end(error)
        if error is not None:
            # The traceback leads to this frame and the frame to the error: a cycle, which would hold the body until the
            # garbage collector comes by.
            error.__traceback__ = None

    async def _read_in_steps(self) -> None:
        """Do what read() does, with a turn of the loop for the others between two slices of the work."""
        if not reads_body(self.facts, self.head):
            return
        self.phase = "parse"
        steps = self._gateway.parts.reader.read_in_steps(self.body or b"")
        while True:
            try:
                next(steps)
            except StopIteration as done:
                self.peek = done.value
                return
            await asyncio.sleep(0)

    async def _wait_for_token(self, wait_ns: int) -> None:
        self.phase = "limit"
        if time.monotonic() + wait_ns / _NS_PER_S >= self.deadline_s:
            raise self._too_late()
        await asyncio.sleep(wait_ns / _NS_PER_S)
        self._holds_token = False
        self._gateway.parts.bucket.used_wait()

    async def _forward(self) -> None:
        """Send the request; wait for the end of the reply. Tries again only where that is safe (retries.py)."""
        gateway = self._gateway
        now_s = self._forward_s = gateway.loop.time()
        gateway.parts.retry_budget.on_request(now_s)
        self.reply = self._make_reply()
        again = await self._attempt(gateway.parts.upstreams.first(now_s), self.reply)
        while again is not None:
            await self._wait_for_retry(again)
            gateway.parts.recorder.retried(again.cause)
            again = await self._attempt(again.upstream, self.reply)

    def _make_reply(self) -> Reply:
        return Reply(self.client, self.head, self.id, self._gateway.loop)

    def _build(self, upstream: Upstream) -> UpstreamRequest:
        return upstream.forwarder.build(self.head, self.peek, self.body)

    async def _wait_for_retry(self, again: Again) -> None:
        try:
            if self._failed is not None:
                raise self._failed  # it came after the attempt's own end, and nobody has looked since
            if again.wait_s:
                self.phase = "backoff"
                await asyncio.sleep(again.wait_s)
        except BaseException:
            again.give_up(self._gateway.loop.time())
            raise

    async def _attempt(self, upstream: Upstream, reply: Reply) -> Again | None:
        """Send it once. Return None when the reply is whole, else what comes next. Raises VeloxError if nothing may."""
        loop, recorder = self._gateway.loop, self._gateway.parts.recorder
        attempt = self._attempting = Attempt(upstream, loop.time())
        self.attempts += 1
        upstream.breaker.begin(attempt.began_s)
        try:
            request = self._build(upstream)
            request.may_run_ahead = self.client.may_run_ahead
            connection = await self._lease(upstream)
            self.phase = "ttfb"
            reply.begin(self._is_refused, upstream.forwarder.secret)
            try:
                # No await from here to give_back(): the room that was leased is taken.
                try:
                    stream = connection.open(request, reply)
                    reply.attach(stream)
                finally:
                    upstream.pool.give_back(connection)
                attempt.opened(stream, loop.time())
                if self.client.is_write_paused:
                    reply.pause()
                await reply.done
            finally:
                attempt.stream = None
                reply.detach()
        except UpstreamFailure as failure:
            recorder.attempt_failed(failure)
            upstream.broke(failure, attempt.began_s, loop.time())
            again = attempt.again
            # What it answered, even with an error, it does not work on any more.
            self._may_have_begun |= failure.unprocessed is None and failure.reason is not Reason.UPSTREAM_STATUS
            if again is None and not reply.started:
                again = self._more().after_failure(failure, upstream, attempt.began_s, loop.time())
            if again is None:
                raise
            failure.__traceback__ = None  # as in _run()
            return again
        except BaseException:
            recorder.attempt_given_up()
            upstream.breaker.gave_up(attempt.began_s)
            self._may_have_begun |= self.phase == "ttfb"
            if attempt.again is not None:
                attempt.again.give_up(loop.time())
            raise
        recorder.attempt_answered(reply.status)
        upstream.answered(reply.status, attempt.began_s, loop.time())
        return None

    def _is_refused(self, head: ReplyHead) -> bool:
        """Say whether a reply is not for the client, because there is another attempt. Asked with each reply's head."""
        attempt = self._attempting
        if attempt is None:
            return False
        if head.status < 400:
            attempt.upstream.breaker.answers()
            return False
        attempt.again = self._more().after_status(head, attempt.upstream, self._gateway.loop.time())
        return attempt.again is not None

    def _more(self) -> Retries:
        if self._retries is None:
            self._retries = Retries(self._gateway.parts, self.terms, self.deadline_s)
        return self._retries

    async def _lease(self, upstream: Upstream) -> UpstreamConnection:
        gateway, pool = self._gateway, upstream.pool
        connection = pool.lease_nowait()
        if connection is not None:
            return connection
        self.phase = "connect"
        began_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(gateway.parts.limits.lease_timeout_s):
                while connection is None or not connection.has_room:
                    connection = await pool.lease()
        except TimeoutError as exc:
            message = f"no upstream connection came free in {gateway.parts.limits.lease_timeout_s:g} s"
            raise VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0) from exc
        gateway.parts.recorder.overhead(Phase.CONNECT, time.monotonic_ns() - began_ns)
        return connection

    def _end(self, error: VeloxError | None) -> None:
        """Tell the client how it ended, then account. No await: it happens exactly once."""
        reply = self.reply
        self._stop_timer()
        if self._holds_token:
            self._gateway.parts.bucket.refund()
        if error is None:
            assert reply is not None, "an exchange without error has replied"
            self._gateway.account(self, None, reply.status)
            self.client.finish()
            return
        self._gateway.account(self, error.reason, error.status)
        if self._gone:
            self.client.release_body()
        elif reply is not None and reply.started:
            reply.cut(error)
        else:
            self._gateway.answer(self.client, self.head, error, self.id, may_have_begun=self._may_have_begun)

    def refuse(self, error: VeloxError) -> None:
        """Answer instead of starting: the exchange never had a task."""
        self._stop_timer()
        self._gateway.parts.recorder.ended(self, error.reason, error.status)
        self._gateway.answer(self.client, self.head, error, self.id)

    # -- ends from outside ----------------------------------------------------------------------------

    def fail(self, error: VeloxError) -> None:
        """End the exchange from outside, in whichever phase: a deadline, or the end of a drain."""
        if self._failed is None:
            self._failed = error
            if self.phase == "ttfb" and self.reply is not None:
                self.reply.on_failure(error)  # no effect on a reply that has just become whole
            else:
                self._cancel()

    def _cancel(self) -> None:
        # A task that is cancelled before its first step never runs, and its slot would never be freed: _run() looks.
        if self._task is not None and self._running:
            self._task.cancel()

    def set_timer(self) -> None:
        """Be there when the client's deadline is over, to the millisecond."""
        self._timer = self._gateway.loop.call_later(self.terms.timeout_s, self.on_deadline)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_deadline(self) -> None:
        """The client waits no longer for the first byte."""
        if self._task is None:
            self._gateway.parts.queue.discard(self)
            self.refuse(self._too_late())
        elif self.reply is None:
            self.fail(self._too_late())
        elif not self.reply.started:
            message = f"no reply came within the {self.terms.timeout_s:g} s that the client gave it"
            self.fail(VeloxError(Reason.UPSTREAM_TTFB_TIMEOUT, message))

    def _too_late(self) -> VeloxError:
        message = f"this request could not be sent within the {self.terms.timeout_s:g} s that the client gave it"
        return VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0)

    def check_deadlines(self, now_s: float, limits: GatewayLimits) -> None:
        """End what takes too long (R-TIME-1). Called every 0.3 s."""
        reply = self.reply
        if now_s >= self.deadline_s:
            self.on_deadline()
        if reply is None:
            return
        is_stream = reply.is_sse or self.peek.stream
        total_s = limits.stream_timeout_s if is_stream else limits.total_timeout_s
        if total_s and now_s - self._forward_s >= total_s:
            message = f"the reply was not whole in {total_s:g} s"
            self.fail(UpstreamFailure(Reason.UPSTREAM_TOTAL_TIMEOUT, message))
        elif self._attempting is not None and not self.client.is_write_paused:
            # A client that does not read keeps its upstream silent; it has a timer of its own.
            failure = self._attempting.overdue(reply, now_s, limits)
            if failure is not None:
                reply.on_failure(failure)  # not fail(): another attempt may follow
            elif limits.sse_keepalive_s:
                reply.keep_alive(now_s, limits.sse_keepalive_s)
