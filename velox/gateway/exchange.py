"""The life of one request, from top to bottom: queue, read, who, gate, forward, account.

    check_head()    who      with the head, before a body is read: key and path             (intake.py)
    submit()        accept   a whole request has come: into the bounded queue, or refused   (intake.py)
    drain           queue    once per loop turn, up to a batch: what was too late is refused
      read()        read     one look into the body: model, stream, ...
      pass_gate()   gate     it takes what it needs of all limits that count it, or nothing and gets 429 (limiter.py)
    _run()          one coroutine per request:
      _read_in_steps()       a large body: the same look, in slices; then the gate
      _wait_for_turn()       what was taken ahead of its time
      _forward()    where    its route, and whom of that (routing.py)
                    forward  one attempt, and where it is safe another (retries.py)
        Attempt.run()        a stream on a warm connection; the reply passes through reply.py   (attempt.py)
      _end()        account  always, exactly once: limits settled, slot, body, count, log

Knows: the order of these steps and who is told of each end. Does not know: sockets (net/), framing (protocol/), rules
(policy/). docs/life-of-a-request.md shows the same as a picture.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from velox.errors import Reason, VeloxError
from velox.gateway.attempt import Attempt
from velox.gateway.grant import NO_GRANT, Grant
from velox.gateway.group import Pick
from velox.gateway.hedged import HedgedAttempts, first_attempt
from velox.gateway.lease_wait import pass_when_told
from velox.gateway.member import Member
from velox.gateway.parts import GatewayLimits
from velox.gateway.permission import check_model
from velox.gateway.rate_headers import RateHeaders
from velox.gateway.reply import Reply
from velox.gateway.respond import crash
from velox.gateway.retries import Again, Retries
from velox.gateway.routing import Plan
from velox.gateway.trail import Trail
from velox.net.application import Client
from velox.net.upstream.interface import UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.outcomes import Phase
from velox.policy.estimate import NO_TOKENS
from velox.policy.routes import NO_RULES
from velox.protocol.body import LARGE_BYTES
from velox.types import BodyFields, Caller, Headers, ReplyHead, RequestHead

if TYPE_CHECKING:  # the gateway makes exchanges, and an exchange goes through its gateway
    from velox.gateway.intake import Gateway

__all__ = ["Exchange"]

_NS_PER_S: Final = 1_000_000_000
_NOT_READ: Final = BodyFields()


class Exchange:
    """One request and its reply."""

    __slots__ = (
        *("_attempting", "_failed", "_forward_s", "_gone", "_grant", "_plan", "_retries", "_running", "_task"),
        *("_timer", "body", "caller", "client", "cost", "deadline_s", "facts", "gateway", "head", "id"),
        *("may_have_begun", "peek", "phase", "priority", "reply", "started_ns", "taken_ns", "terms", "trail"),
        "was_sent",
    )

    def __init__(
        self,
        gateway: Gateway,
        client: Client,
        head: RequestHead,
        body: bytes | bytearray | None,
        caller: Caller,
    ) -> None:
        self.gateway: Final = gateway
        self.client: Final = client
        self.head: Final = head
        self.body = body
        self.facts: Final = gateway.facts(head)
        self.caller: Final = caller
        self.id: Final = gateway.parts.recorder.next_id()
        self.peek = _NOT_READ
        self.phase = "queue"
        self.trail: Final = Trail()
        self.reply: Reply | None = None
        self.started_ns: Final = time.monotonic_ns()
        self.terms: Final = self.facts.terms
        self.deadline_s: Final = self.started_ns / _NS_PER_S + self.terms.timeout_s
        self.priority: Final = gateway.priority(caller, self.terms)
        self.cost: Final = gateway.parts.estimator.at_first(self.facts.route, 0 if body is None else len(body))
        self.taken_ns = 0  # off the queue
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone: Reason | None = None
        self._failed: VeloxError | None = None  # what it was ended for from outside
        self._grant: Grant = NO_GRANT
        self._plan: Plan | None = None  # before it is forwarded
        self._running = False
        self.was_sent = False  # an upstream has got it, and did not say that it takes it not
        self.may_have_begun = False  # an upstream, with work for it; it has not answered
        self._retries: Retries | None = None  # most requests need none
        self._forward_s = 0.0  # when the first attempt began
        self._attempting: Attempt | HedgedAttempts | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.id.decode()} {self.phase} {self.trail!r}>"

    # -- what the client does meanwhile ---------------------------------------------------------

    def client_gone(self, *, stalled: bool = False) -> None:
        """Stop at once, in whichever phase (R-CANCEL-1)."""
        if self.reply is not None:
            if self.reply.is_whole:
                return  # it left with its answer, which _run() is about to account
            self.reply.client_gone()
        self._gone = Reason.CLIENT_SLOW if stalled else Reason.CLIENT_CLOSED
        if self._task is not None:
            self._cancel()
        elif self.gateway.parts.queue.discard(self):
            self._stop_timer()
            self.gateway.parts.recorder.ended(self, Reason.CLIENT_CLOSED, 499, time.monotonic_ns())

    def client_paused(self) -> None:
        if self.reply is not None:
            self.reply.pause()

    def client_resumed(self) -> None:
        if self.reply is not None:
            self.reply.resume()

    # -- the steps --------------------------------------------------------------------------------

    def read(self) -> None:
        """Look into the body, if its path names a model. Raises VeloxError."""
        if self.facts.reads_body:
            self.peek = self.gateway.parts.reader.read(self.body or b"")
        check_model(self.caller, self.head, self.peek.model)

    @property
    def is_large(self) -> bool:
        """True when reading the body at one go would hold up the other requests."""
        return self.body is not None and len(self.body) >= LARGE_BYTES

    def pass_gate(self, now_ns: int) -> None:
        """Take what it needs of all limits that count it. Raises VeloxError or NotYetError, and has taken nothing."""
        parts = self.gateway.parts
        limits = parts.limiter.limits(self.caller, self.head, self.peek.model)
        tokens = NO_TOKENS
        # Also of a form, which is not read: some servers look at no content-type.
        if limits.counts_tokens and self.body and self.facts.names_model:
            tokens = parts.estimator.estimate(self.facts.route, len(self.body), self.peek)
        self._grant = parts.limiter.admit(limits, tokens, now_ns)

    def start(self, *, is_read: bool = True) -> None:
        """Go on as a task. is_read: False: its body is read there. What has not passed the gate comes to it there."""
        # Not by the loop's create_task(), which makes up a name for each.
        self._task = asyncio.Task(self._run(is_read), loop=self.gateway.loop, name="exchange")

    async def _run(self, is_read: bool) -> None:
        self._running = True
        error: VeloxError | None = None
        try:
            if self._gone or self._failed:
                raise asyncio.CancelledError
            if not is_read:
                await self._read_in_steps()
                check_model(self.caller, self.head, self.peek.model)
            if self._grant is NO_GRANT:
                self.phase = "limit"
                await pass_when_told(self.pass_gate, self.gateway.parts.leases, self.gateway.loop)
            if self._grant.wait_ns:
                await self._wait_for_turn(self._grant.wait_ns)
            await self._forward()
        except VeloxError as exc:
            error = exc
        except asyncio.CancelledError:
            # Two cancel: the client that left, and fail(). Both go on to the account.
            error = None if self._gone else self._failed
            if error is None:
                error = VeloxError(self._gone or Reason.DRAINING, "the exchange was given up")
        except Exception as exc:
            self.gateway.parts.recorder.crashed(exc)
            error = crash()
        self._end(error)
        if error is not None:
            # The traceback leads to this frame and the frame to the error: a cycle, which would hold the body until the
            # garbage collector comes by.
            error.__traceback__ = None

    async def _read_in_steps(self) -> None:
        """Do what read() does, with a turn of the loop for the others between two slices of the work."""
        if not self.facts.reads_body:
            return
        self.phase = "parse"
        steps = self.gateway.parts.reader.read_in_steps(self.body or b"")
        while True:
            try:
                next(steps)
            except StopIteration as done:
                self.peek = done.value
                return
            await asyncio.sleep(0)

    async def _wait_for_turn(self, wait_ns: int) -> None:
        self.phase = "limit"
        if time.monotonic() + wait_ns / _NS_PER_S >= self.deadline_s:
            raise self._too_late()
        await self.gateway.sleep(wait_ns / _NS_PER_S)
        self._grant.used_wait()

    async def _forward(self) -> None:
        """Send the request; wait for the end of the reply. Tries again only where that is safe (retries.py)."""
        gateway = self.gateway
        parts, routing = gateway.parts, gateway.routing
        if (models := parts.models) is not None and models.serves(self.head, self.caller, routing):
            self.phase = "models"
            self._answer(*await models.answer(self.head, self.caller, routing))
            return
        now_s = self._forward_s = gateway.loop.time()
        parts.retry_budget.on_request(now_s)
        plan = self._plan = routing.plan(self.head, self.peek, self.caller, self.body)
        if plan.is_canary:
            parts.recorder.canary()
        if self._grant.estimate is not NO_TOKENS:
            self.body = self._grant.measure(self.body, self.peek, self.facts.route)
        pick = plan.first(now_s)  # it has begun: from here to its attempt nothing may fail
        if pick is None:
            self.phase = "room"
            until_s = min(self.deadline_s, now_s + parts.limits.queue_timeout_s)
            pick = await plan.routing.wait_room(plan, until_s)
            now_s = gateway.loop.time()
        reply = self.reply = self._make_reply(plan)
        if plan.parts.mirror is not None:
            gateway.mirrors.copy(plan, self.head, self.peek, self.body)
        attempting = self._attempting = first_attempt(self, plan, pick, now_s)
        while (again := await attempting.run(reply)) is not None:
            await self._wait_for_retry(again)
            parts.recorder.retried(again.cause)
            attempting = self._attempting = Attempt(self, again.pick, gateway.loop.time())

    def _answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer what is no upstream's. Its place in the limits is used."""
        self.was_sent = True
        self.reply = Reply(self.client, self.head, self.id, self.gateway.loop, None, self._grant.limits.headers)
        self.reply.on_reply(ReplyHead(status, headers, len(body)), body, True)

    def _make_reply(self, plan: Plan) -> Reply:
        meter, rates, fields = self._grant.meter, self._grant.limits.headers, self.gateway.parts.reply_fields
        rules = None if plan.parts.entry.response_headers is NO_RULES else plan.parts.entry.response_headers
        return Reply(self.client, self.head, self.id, self.gateway.loop, meter, rates, rules=rules, fields=fields)

    def build(self, pick: Pick) -> UpstreamRequest:
        """Return what an attempt sends."""
        return pick.build(self.head, self.peek, self.body, to_be_read=self._grant.meter is not None)

    async def _wait_for_retry(self, again: Again) -> None:
        try:
            if self._failed is not None:
                raise self._failed  # it came after the attempt's own end, and nobody has looked since
            if again.wait_s:
                self.phase = "backoff"
                await self.gateway.sleep(again.wait_s)
        except BaseException:
            again.give_up(self.gateway.loop.time())
            raise

    @property
    def retries(self) -> Retries:
        """What is left of them; made when the first attempt brought no reply."""
        if self._retries is None:
            assert self._plan is not None, "asked for after an attempt"
            self._retries = Retries(self.gateway.parts, self._plan, self.terms, self.deadline_s)
        return self._retries

    async def lease(self, member: Member) -> UpstreamConnection:
        """Wait for a connection with room for one request. Raises VeloxError."""
        gateway = self.gateway
        self.phase = "connect"
        began_ns = time.monotonic_ns()
        connection = await member.connection(gateway.parts.limits.queue_timeout_s)
        gateway.parts.recorder.overhead[Phase.CONNECT].observe(time.monotonic_ns() - began_ns)
        return connection

    def _end(self, error: VeloxError | None) -> None:
        """Tell the client how it ended, then account. No await: it happens exactly once."""
        reply = self.reply
        self._attempting = None  # it leads back here: a cycle, which would hold the request's body
        if self._plan is not None:
            self._plan.close()
        self._stop_timer()
        # Most often there is nothing to settle.
        tokens = self.cost if error is None and self._grant.limits.is_kept else self._settle(error)
        if error is None:
            assert reply is not None, "an exchange without error has replied"
            self.gateway.account(self, None, reply.status, tokens)
            self.client.finish()
            return
        self.gateway.account(self, error.reason, error.status, tokens)
        if self._gone:
            self.client.release_body()
        elif reply is not None and reply.started:
            reply.cut(error)
        else:
            self.gateway.answer_for(self, error)

    def _settle(self, error: VeloxError | None) -> int:
        """Make good what was taken in advance: what did not go out goes back. Return the tokens that it really cost."""
        pays = self.reply is not None and self.reply.started
        if not pays and self.may_have_begun:
            # Nothing was answered: that is the client's to pay only if it left, or waits no longer (on_deadline()).
            failed = self._failed
            pays = self._gone is not None or (failed is not None and failed.reason is Reason.UPSTREAM_TTFB_TIMEOUT)
        try:
            spent = self._grant.settle(sent=self.was_sent, pays=pays, is_whole=error is None)
        except Exception as exc:  # a bug: the slot is freed and the client told all the same
            self.gateway.parts.recorder.crashed(exc)
            spent = None
        if spent is None:
            return self.cost if self.was_sent else 0
        self.gateway.parts.recorder.tokens(spent)
        return spent.input + spent.output

    @property
    def rates(self) -> RateHeaders | None:
        """What the client is told of its limits; None where no quota counts its requests."""
        if self._grant is not NO_GRANT:
            return self._grant.limits.headers
        return self.gateway.parts.limiter.limits(self.caller, self.head, self.peek.model).headers

    def refuse(self, error: VeloxError) -> None:
        """Answer instead of starting: the exchange never had a task."""
        self._stop_timer()
        self.gateway.parts.recorder.ended(self, error.reason, error.status, time.monotonic_ns())
        self.gateway.answer_for(self, error)

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
        self._timer = self.gateway.loop.call_later(self.terms.timeout_s, self.on_deadline)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_deadline(self) -> None:
        """The client waits no longer for the first byte."""
        if self._task is None:
            self.gateway.parts.queue.discard(self)
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
        """End what takes too long (R-TIME-1). Called every 0.25 s."""
        reply = self.reply
        if now_s >= self.deadline_s:
            self.on_deadline()
        if reply is None:
            return
        is_stream = reply.is_sse or self.peek.stream
        attempting = self._attempting
        total_s = limits.stream_timeout_s if is_stream or attempting is None else attempting.total_s
        if total_s and now_s - self._forward_s >= total_s:
            message = f"the reply was not whole in {total_s:g} s"
            self.fail(UpstreamFailure(Reason.UPSTREAM_TOTAL_TIMEOUT, message))
        elif attempting is not None and not self.client.is_write_paused:
            # A client that does not read keeps its upstream silent; it has a timer of its own.
            failure = attempting.overdue(reply, now_s)
            if failure is not None:
                reply.on_failure(failure)  # not fail(): another attempt may follow
            elif limits.sse_keepalive_s:
                reply.keep_alive(now_s, limits.sse_keepalive_s)
