"""The life of one request, in order: authenticate, queue, read, admit, forward, account.

    check_head()               with the head, before a body is read: key and path                    (intake.py)
    submit()                   a whole request has come: it passes the empty queue at once, or waits  (intake.py)
    drain                      once per loop turn, up to a batch: what was too late is refused        (intake.py)
      read()                   one look into the body: model, stream, ...
      admit()                  the steps of its admission: limits, route, budgets           (front/admission.py)
    _run()                     one coroutine per request:
      _read_in_steps()         a large body: the same look, in slices; then the steps of its admission
      _take_remaining_steps()  the steps that have to wait, and those behind them
      _wait_for_turn()         what was taken ahead of its time
      _begin_first_attempt()   choose a member of its route                                          (routing.py)
        Attempt.send()         a stream on a warm connection; the reply passes through reply.py        (group.py)
        _decide_next()         after an attempt: the end, another attempt, or the client gets the error (retries.py)
      reply_ends()             before the last bytes of a reply go out: limits settled, counted, logged
      _end()                   always, exactly once: the same where there was no such reply; slot and body freed

Knows: the order of these steps and who learns of each end. Does not know: sockets (net/), framing (protocol/), rules
(policy/). docs/life-of-a-request.md shows the same as a picture.
"""

from __future__ import annotations

import abc
import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec.structs import replace

from velox.errors import Reason, VeloxError, untraced
from velox.gateway.access.access import Guard
from velox.gateway.access.own_pages import OwnPages
from velox.gateway.access.ownership import ListFilter
from velox.gateway.access.places import NOWHERE, Placement
from velox.gateway.access.plan import RequestPlan
from velox.gateway.answers.answers import Answers, BodyBudgetRelease, is_of_answer, names_own, unknown_object
from velox.gateway.auth import seal_upload
from velox.gateway.cluster.capacity import QueueTicket
from velox.gateway.cluster.group import UNSUPPORTED, Attempt, AttemptHost, Group, RetryDecision
from velox.gateway.cluster.hedging import HedgedAttempts, hedged
from velox.gateway.cluster.retries import EarlierFailure, RetryPolicy
from velox.gateway.cluster.routing import ResolvedRoute, RouteCursor, Routing
from velox.gateway.cpu_work import TranslationThread, in_turn, in_turns
from velox.gateway.limits.billed_units import BY_UNITS, AskedUnits, asked_units
from velox.gateway.limits.budgets import BOUNDED, BudgetGate, bound_of
from velox.gateway.limits.calls import NO_KINDS, Answered, CallLog, RequestCalls, Spending, spending_of
from velox.gateway.limits.cost_filter import CostFilter
from velox.gateway.limits.lease_wait import NotYet, wait_for_permits
from velox.gateway.limits.metering import NOTHING_USED, Meter, Usage, metered, usage_of
from velox.gateway.limits.reservation import NOT_RESERVED, Reservation, Spent
from velox.gateway.limits.usage_drain import UsageDrain
from velox.gateway.reply.addresses import AddressFilter
from velox.gateway.reply.filters import ReplyFilter, insert_in_order
from velox.gateway.reply.headers import AttemptFields, HeaderRuleFilter, RateHeaders
from velox.gateway.reply.outcome import Complete, ErrorReply, Failed, Unsupported
from velox.gateway.reply.pipeline import FilterOrder
from velox.gateway.reply.reply import Reply
from velox.gateway.reply.respond import crash
from velox.gateway.request.batch_lines import check_lines
from velox.gateway.request.mirror import Mirrors
from velox.gateway.request.parts import GatewayLimits, Parts
from velox.gateway.translation.client_request import COUNTS, ClientRequest
from velox.gateway.translation.prepared import BackgroundAnswer, LocalAnswer, Prepared
from velox.gateway.upstreams.member import Member
from velox.heads import Headers, ReplyHead, RequestHead
from velox.net.application import Client, ClientExchange
from velox.net.client.refusals import no_room
from velox.net.turn_budget import TurnBudget
from velox.net.upstream.interface import UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.observe.metrics import CallKind
from velox.outcomes import CacheResult, Drained, JoinResult, Phase
from velox.policy.limits.estimate import NO_TOKENS, Estimate
from velox.policy.queue.fair_queue import FairQueue
from velox.policy.routes.entries import NO_RULES, asked_model
from velox.policy.routes.sessions import lifetime_s
from velox.policy.routes.split import MirrorGate
from velox.protocol.forms import adding_form_model, read_form
from velox.protocol.google_limits import with_google_limits
from velox.protocol.heads.target import SERVER
from velox.protocol.http1.request_head import METHODS
from velox.protocol.json.edit import adding_model
from velox.protocol.list_pages import PageWalk
from velox.protocol.slices import finished
from velox.protocol.usage.token_usage import TokenUsage
from velox.types import AnswerKeeper, ApiKind, BodyFields, Caller, Dialect, Endpoint, FormFields

if TYPE_CHECKING:  # few gateways have a cache, or join calls
    from velox.gateway.cache.request_key import RequestKey
    from velox.gateway.cache.response_cache import CacheHit
    from velox.gateway.join.following import Following
    from velox.gateway.join.joining import Joining, JoinLookup
    from velox.gateway.join.led_call import LedCall
    from velox.policy.join.rules import JoinRule

__all__ = ["Exchange", "ExchangeOwner", "Step", "StepAnswer"]

_NS_PER_S: Final = 1_000_000_000
_NOT_READ: Final = BodyFields()
_ERRORS_FROM: Final = 400
_NO_COST: Final = (b"x-velox-cost", b"0.000000000")
_JOINED: Final = (b"x-velox-join", b"joined")
_JSON: Final = (b"content-type", b"application/json")
_ALLOW: Final = (b"allow", b", ".join(sorted(METHODS)))
# Of a request that no upstream was asked for.
_NOT_ASKED: Final = Answered(None, 0, None, False, False, 0, None, NO_KINDS)
_NO_SIGNS: Final = str.maketrans("", "", "-_.")


# What a step of the admission says of a request. None: it has passed. NotYet: it passes once the permits are there that
# it lacks. Else what is awaited in its task, and returns True where the request is answered by it.
StepAnswer: TypeAlias = NotYet | Callable[[], Coroutine[Any, Any, bool]] | None
Step: TypeAlias = Callable[["Exchange", int], StepAnswer]


class ExchangeOwner(abc.ABC):
    """The gateway (intake.py), as what belongs to it sees it: exchanges, and WebSockets that are answered here.

    A base class and no protocol: compiled code reads its attributes directly.
    """

    __slots__ = (
        *("draining", "loop", "mirrors", "n_drains", "n_hedges", "local_steps", "parts", "queue", "routing", "steps"),
        *("thread", "turns"),
    )

    parts: Parts
    queue: FairQueue[Exchange]
    routing: Routing
    loop: asyncio.AbstractEventLoop
    mirrors: Mirrors
    thread: TranslationThread
    turns: TurnBudget  # of work on requests that is done in the loop
    draining: bool
    steps: tuple[Step, ...]  # of the admission; local_steps: of what may be answered here
    local_steps: tuple[Step, ...]
    n_hedges: int
    n_drains: int  # exchanges that are read on though their clients have left

    @abc.abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Let an exchange wait whose time has not come; others may have its place at the upstream meanwhile."""

    @abc.abstractmethod
    def rests(self, n: int) -> None:
        """So many exchanges more have no place at an upstream, or fewer."""

    @abc.abstractmethod
    def check_head(self, head: RequestHead) -> Caller:
        """Return the caller. Raises VeloxError if the request is refused whatever its body is."""

    @abc.abstractmethod
    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller
    ) -> ClientExchange | None:
        """Take a whole request; None when it was refused on the spot."""

    @abc.abstractmethod
    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        """Answer a request that never became an exchange."""

    @abc.abstractmethod
    def crashed(self, exc: Exception) -> None:
        """Record an error that is a bug."""

    @abc.abstractmethod
    def found_capacity(self) -> None:
        """An upstream takes more than a moment ago, though no exchange has ended."""

    @abc.abstractmethod
    def account(self, exchange: Exchange, reason: Reason | None, status: int, tokens: int) -> None:
        """Free the slot and record how it ended."""

    @abc.abstractmethod
    def answer_for(self, exchange: Exchange, error: VeloxError) -> None:
        """Write the error that an exchange has ended in."""


class Exchange(AttemptHost):
    """One request and its reply, from the queue to its end.

    taken_ns: when it left the queue. is_accounted: its end is recorded, if its client is yet to get the last bytes.
    """

    __slots__ = (
        *(
            "_addresses",
            "_answering",
            "_attempting",
            "_calls",
            "_cursor",
            "_drain",
            "_failed",
            "_filters",
            "_forward_s",
            "_placement",
        ),
        "_gone",
        "_google_fields",
        *("_takes_route_model", "_tokens", "is_accounted"),
        "_n_passed",
        "_steps",
        *("_reservation", "_meter", "_retries", "_routing", "_running", "_task", "_timer", "_route", "cost", "gateway"),
        *("_has_kept_answers", "_keeper", "_following", "_led", "_left", "taken_ns"),
    )

    def __init__(
        self,
        gateway: ExchangeOwner,
        client: Client,
        head: RequestHead,
        body: bytes | bytearray | None,
        plan: RequestPlan,
    ) -> None:
        parts = gateway.parts
        self.gateway: Final = gateway
        self.loop = gateway.loop
        self.recorder = parts.recorder
        self.client = client
        self.head = head
        self.body = body
        self.plan = plan
        self.id = parts.recorder.next_id()
        self.fields = _NOT_READ
        self._takes_route_model = False  # it names none
        self._steps = gateway.local_steps if plan.may_be_local else gateway.steps
        self._google_fields: BodyFields | None = None  # of a large body, with the length that it names of its answer
        self.phase = "queue"
        self.reply: Reply | None = None
        self.started_ns = time.monotonic_ns()
        self.sent_ns = 0
        self.deadline_s = self.started_ns / _NS_PER_S + plan.terms.timeout_s
        n_bytes = 0 if body is None else len(body)
        # Tokens, before the body has been read.
        self.cost: Final = plan.least_cost - (-n_bytes // parts.estimator.bytes_per_token)
        self.taken_ns = 0
        self.was_sent = False
        self.may_have_begun = False
        self.n_attempts = 0
        self.upstream = ""
        self.tried: tuple[str, ...] = ()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone: Reason | None = None
        self._drain: UsageDrain | None = None  # while it goes on without its client, for its usage
        self._failed: VeloxError | None = None  # what it was ended for from outside
        self.failed_before: VeloxError | None = None  # how the last attempt ended that another one followed
        self._reservation: Reservation = NOT_RESERVED
        self._meter: Meter | None = None  # where its tokens are counted
        self.spent = None
        self.cached = None
        self.joined = None
        self._led: LedCall | None = None  # its call, that others may join
        self._following: Following | None = None  # the call of another one, that it has joined
        self._left: Reason | None = None  # why it goes on without its client, for those that have joined it
        self._calls: RequestCalls | None = None  # where its calls are recorded
        self._filters: tuple[ReplyFilter, ...] = ()  # of the reply, at their places (pipeline.py)
        self._addresses: AddressFilter | None = None  # where a reply may hold addresses of the upstream's
        self._route: ResolvedRoute | None = None  # its route, once it is forwarded
        self._cursor: RouteCursor | None = None  # most requests need none: they have one upstream, which answers
        self._routing: Routing | None = None  # while a configuration is held by it
        self._running = False
        self._retries: RetryPolicy | None = None  # most requests need none
        self._placement: Placement | None = None  # where its things are kept, where that has to be known
        self._forward_s = 0.0  # when the first attempt began
        self._attempting: Attempt | HedgedAttempts | None = None
        self._answering: Attempt | None = None  # at `upstream`
        self._keeper: AnswerKeeper | None = None  # of its answer
        self._has_kept_answers = False  # some were inserted into its body
        self.is_accounted = False  # its end is recorded
        self._tokens = 0  # that it really cost, once that is settled

    def __repr__(self) -> str:
        tried = " ".join((*self.tried, self.upstream))
        return f"<Exchange {self.id.decode()} {self.phase} attempts={self.n_attempts} {tried}>"

    # -- what the client does meanwhile ---------------------------------------------------------

    def client_gone(self, *, stalled: bool = False) -> None:
        """Stop at once, in whichever phase."""
        if self.reply is not None:
            self.reply.client_gone()
            if self.reply.is_whole:
                return  # the client disconnected after the complete response, which _run() is about to account
        left = Reason.CLIENT_SLOW if stalled else Reason.CLIENT_CLOSED
        if self._led is not None and self._goes_on_for_others(self._led, left):
            return
        self._gone = left
        if self._task is not None:
            if not self._goes_on_for_usage():
                self._cancel()
        elif self.gateway.queue.discard(self):
            self._stop_timer()
            self.recorder.ended(self, Reason.CLIENT_CLOSED, 499, time.monotonic_ns())

    def _goes_on_for_usage(self) -> bool:
        """Read on what the upstream still sends, where its end tells what it cost, and that is worth it."""
        reply, meter, gateway, answering = self.reply, self._meter, self.gateway, self._answering
        if reply is None or not reply.started or reply.status >= _ERRORS_FROM or not self.wants_stream:
            return False  # the client has had nothing, or nothing more follows
        if meter is None or not meter.reads_body or answering is None or gateway.draining:
            return False
        rules, model = gateway.parts.limits.drains, self.fields.model
        if not rules.wants(lambda: answering.reasons(model)):
            return False
        if gateway.n_drains >= rules.most:
            self.recorder.drained(Drained.DENIED)
            return False
        gateway.n_drains += 1
        self.phase = "drain"
        drain = self._drain = UsageDrain(rules, self.loop.time(), reply.bytes_out, self._cancel, self.client.address)
        # A body that is kept has no room of the budget any more: what it has is the client's.
        reply.bytes_in += 0 if self.body is None else len(self.body)
        self.body, self._cursor, self._retries = None, None, None  # no other attempt follows a reply that has begun
        self.client.release_body()
        self.client = drain
        reply.drain(drain)
        return True

    def _goes_on_for_others(self, led: LedCall, left: Reason, error: VeloxError | None = None) -> bool:
        """Go on without the client, for those that have joined its call, or for its retry. error: what it is told."""
        gateway, reply, body, client = self.gateway, self.reply, self.body, self.client
        if self._left is not None or (gateway.draining and not led.has_followers):
            return False
        n_held = 0
        bodies = gateway.parts.tunnels.bodies
        has_begun = reply is not None and reply.started
        if not has_begun and body:
            n_held = len(body)  # another attempt may send it again
            if not bodies.take_for_reply(n_held):
                return False
        if not led.client_left():
            if n_held:
                bodies.give_of_reply(n_held)
            return False
        self._left = left
        self._stop_timer()
        self.deadline_s = math.inf
        if error is None:
            client.release_body()
        else:
            error.should_retry = led.may_retry or error.should_retry
            gateway.answer_for(self, error)
        n_before = 0 if reply is None else reply.bytes_out
        if has_begun and reply is not None:
            reply.bytes_in += 0 if body is None else len(body)
            self.body, self._cursor, self._retries = None, None, None  # no other attempt follows a reply that has begun
        self.client = led.absent_client(client.address, n_before, bodies, n_held)
        if reply is not None:
            reply.drain(self.client)
            led.keep_pace()
        return True

    @property
    def awaits_retry(self) -> bool:
        """True while it goes on without its client, whose retry would get its reply."""
        return self._left is not None and self._led is not None and self._led.may_retry

    def _give_up(self) -> None:
        """Nobody waits any more for the reply that it went on for."""
        self._gone = self._left
        self._cancel()

    def _leave_client_behind(self) -> None:
        """Cut its client off, which reads so slowly that those who have joined its call would have to wait."""
        led, client = self._led, self.client
        if led is not None and self._goes_on_for_others(led, Reason.CLIENT_SLOW):
            client.cut(b"")

    def client_paused(self) -> None:
        if self.reply is not None and (self._led is None or not self._led.runs_ahead()):
            self.reply.pause()

    def client_resumed(self) -> None:
        if self._following is not None:
            self._following.wake()
        may_go_on = self._led is None or self._led.caught_up()
        if self.reply is not None and may_go_on:
            self.reply.resume()

    def _set_pace(self, is_held: bool) -> None:
        """Have its client, which reads slowly, hold up the upstream, or not: those who have joined its call read."""
        if self.reply is not None:
            if is_held:
                self.reply.pause()
            else:
                self.reply.resume()

    # -- the steps --------------------------------------------------------------------------------

    def read(self) -> None:
        """Parse what routing and limits need of the body. Raises VeloxError."""
        plan = self.plan
        if plan.reads_body:
            fields = self.fields = self.gateway.parts.reader.read(self.body or b"")
            if fields.model is None or plan.path_model is not None:
                self._override_model(fields)
        elif plan.named is not None:
            self.fields = plan.named
        elif plan.reads_form:
            self.fields = finished(self._form_reading())
            self._override_model(self.fields)
        elif plan.names_lines and self._checks_lines:
            finished(check_lines(self.head, self.body or b"", self.gateway.routing, plan.caller))
        guard = plan.guard
        if guard is not None and guard.concerns(self.body, self.fields):
            finished(self._check_objects(guard))

    def _check_objects(self, guard: Guard, *, has_asked: bool = False) -> Generator[None, None, None]:
        """Check that its key may use the objects and models that it names. Raises VeloxError.

        has_asked: other gateways were asked for what is not known here; else that comes first (_ask_other_gateways()).
        """
        body, access, owned = self.body or b"", self.gateway.parts.access, guard.owned
        if owned is None or not (access.tracks_objects or access.share is not None):
            self._add_filters((yield from guard.steps(self.head, body, self.fields)))
            return
        placement = self._placement = Placement(tracks_objects=access.tracks_objects)
        named = yield from owned.named_in(self.head, body)
        if access.share is not None and not has_asked:
            placement.unknown = yield from owned.unknown(self.head, named)
            if placement.unknown:
                return
        self._add_filters((yield from guard.steps(self.head, body, self.fields, placement.place, named)))
        if placement.tracks_objects:
            placement.places = yield from owned.places(self.head, named)

    async def _ask_other_gateways(self) -> bool:
        """Ask other gateways for the owners of the objects that it names, then check them. Raises VeloxError."""
        guard, placement = self.plan.guard, self._placement
        assert guard is not None and placement is not None, "else nothing is unknown"
        await self.gateway.parts.access.learn(placement.unknown)
        await in_turns(self._check_objects(guard, has_asked=True), self.gateway.turns)
        return False

    @property
    def _checks_lines(self) -> bool:
        """True if a route may have a line of a batch run as another model than it names."""
        return self.gateway.routing.table.renames and bool(self.body)

    def _form_reading(self) -> Generator[None, None, BodyFields]:
        return read_form(self.head.header(b"content-type") or b"", self.body or b"")

    def _override_model(self, fields: BodyFields) -> None:
        """Set the model: that of the path, where it names one; of a request without any, that of its route."""
        plan = self.plan
        if plan.path_model is not None:
            # One is routed, counted, paid for and run.
            fields.model = plan.path_model
            fields.is_model_in_path = True
        elif fields.model is None and plan.fills and self.body:
            model = self.gateway.routing.model_of_unnamed(self.head, plan.caller)
            if model is not None:
                self._takes_route_model = True
                if isinstance(fields, FormFields):
                    self.body = adding_form_model(self.body, fields, model)
                else:
                    self.body, fields.model = adding_model(self.body, model), model

    # -- its admission (front/admission.py has the order) -----------------------------------------

    def admit(self, now_ns: int) -> None:
        """Take the steps of its admission, as far as they go at once, and go on as a task.

        Raises VeloxError: then it is refused, which gives all back.
        """
        answer: StepAnswer = None
        n_passed = 0  # of them
        for step in self._steps:
            answer = step(self, now_ns)
            if answer is not None:
                break
            n_passed += 1
        self._n_passed = n_passed
        # Not by the loop's create_task(), which makes up a name for each.
        self._task = asyncio.Task(self._run(answer, is_read=True), loop=self.loop, name="exchange")

    def admit_large(self) -> None:
        """Go on as a task, which reads the body in slices and takes all steps."""
        self._n_passed = 0
        self._task = asyncio.Task(self._run(None, is_read=False), loop=self.loop, name="exchange")

    async def _take_remaining_steps(self, answer: StepAnswer) -> bool:
        """Take the steps that are left. answer: of the first of them. True: it is answered."""
        steps = self._steps
        while self._n_passed < len(steps):
            step = steps[self._n_passed]
            if answer is None:
                answer = step(self, time.monotonic_ns())
            if isinstance(answer, NotYet):
                self.phase = "limit"
                await wait_for_permits(partial(step, self), self.gateway.parts.leases, self.loop)
            elif answer is not None and await answer():
                return True
            answer = None
            self._n_passed += 1
        return False

    def take_limits(self, now_ns: int) -> StepAnswer:
        """Take of all limits that count it. Raises VeloxError, and has taken nothing."""
        parts = self.gateway.parts
        taken = parts.limiter.reserve(self.plan, self.fields, self.body, parts.estimator, now_ns)
        if isinstance(taken, NotYet):
            return taken
        self._reservation = taken
        return None

    def ask_other_gateways(self, _now_ns: int) -> StepAnswer:
        """Ask other gateways of objects that it names and this one does not know."""
        return self._ask_other_gateways if self._placement is not None and self._placement.unknown else None

    def answer_locally(self, _now_ns: int) -> StepAnswer:
        """Answer what needs no upstream; insert the kept answers that it refers to. For requests that may_be_local."""
        return self._answer_locally

    def find_route(self, _now_ns: int) -> StepAnswer:
        """Find where it may go. Raises VeloxError."""
        plan, placement, routing = self.plan, self._placement, self.gateway.routing
        if plan.has_addresses and plan.passed is not None:
            route = self._route = routing.route_to(plan.passed.upstream)
        else:
            route = self._route = routing.resolve(
                self.head, None if self._takes_route_model else self.fields.model, plan.caller
            )
        routing.n_open += 1
        self._routing = routing
        if placement is not None and placement.tracks_objects:
            route = self._route = self._route_to_objects(placement, route, routing)
        if route.only is None and route.parts.entry.balance == "session":
            self._keep_session(route)
        return None

    def look_up_cache(self, _now_ns: int) -> StepAnswer:
        """Answer from the cache, where its route has one and an equal request was answered. Raises VeloxError."""
        route, make = self._route, self.gateway.parts.cache
        assert route is not None and make is not None, "a step of gateways that have a cache, behind the route"
        rule = route.parts.entry.cache
        if rule is None or self._has_kept_answers:
            return None
        looked = make().look_up(self.head, self.plan, self.body, route.parts, rule, self._is_first_choice)
        self.cached = looked.result
        self.recorder.cached(looked.result)
        if looked.found is not None:
            return partial(self._answer_from_cache, looked.found)
        if looked.is_unsatisfiable:
            message = (
                "the cache has no answer to this request, and its cache-control header accepts a cached answer only;"
                " without that directive an upstream is asked"
            )
            raise VeloxError(Reason.NOT_CACHED, message)
        if looked.reply_filter is not None:
            self._add_filters((looked.reply_filter,))
        return None

    def _is_first_choice(self) -> bool:
        """Say whether its reply is of one that its route leads to first: a fallback's or a canary's is another one."""
        route, answering = self._route, self._answering
        return route is not None and answering is not None and answering.group is route.parts.groups[0]

    async def _answer_from_cache(self, found: CacheHit) -> bool:
        """Send the client a cached answer."""
        if self._reservation.wait_ns:
            await self._wait_for_turn(self._reservation.wait_ns)
        route, calls, plan = self._route, self.gateway.parts.calls, self.plan
        assert route is not None, "it has the cache"
        if calls is not None and plan.is_recorded:
            name = route.parts.entry.name
            family, agent = plan.family, plan.agent
            calls.record_again(self.id, plan.caller, plan.endpoint, name, self.fields, family, agent, self._tags())
        entry = found.entry
        own: Headers = [(b"x-velox-cache", b"hit; age=%d" % int(found.age_s))]
        if plan.terms.wants_cost:
            own.append(_NO_COST)
        reply = self.reply = self._make_reply()
        reply.begin(None, self.attempt_fields().with_fields(own))
        self.was_sent = True  # its place in the limits is used
        reply.on_reply(ReplyHead.of(200, [(b"content-type", entry.content_type)], len(entry.body)), entry.body, True)
        return True

    def join_call(self, _now_ns: int) -> StepAnswer:
        """Follow the call of another request, or begin one that others may follow. Raises VeloxError."""
        route, make = self._route, self.gateway.parts.joining
        assert route is not None and make is not None, "a step of gateways that join calls, behind the route"
        rule = route.parts.entry.join
        if rule is None or self._has_kept_answers:
            return None
        joining = make()
        if joining.is_long(self.body):
            return partial(self._join_long, joining, rule)
        key = joining.key_of(self.head, self.plan, self.body, route.parts, rule)
        looked = self._look_up_join(joining, key, rule)
        if looked.elsewhere is not None:
            return partial(self._join_elsewhere, joining, key, rule, looked.elsewhere)
        return self._follow if self._joins(looked) else None

    async def _join_long(self, joining: Joining, rule: JoinRule) -> bool:
        """Do so with a body that takes long to be compared: in the worker's thread."""
        route = self._route
        assert route is not None, "it joins calls"
        key = await self.gateway.thread.run(partial(joining.key_of, self.head, self.plan, self.body, route.parts, rule))
        looked = self._look_up_join(joining, key, rule)
        if looked.elsewhere is not None:
            return await self._join_elsewhere(joining, key, rule, looked.elsewhere)
        return self._joins(looked) and await self._follow()

    async def _join_elsewhere(
        self,
        joining: Joining,
        key: RequestKey | None,
        rule: JoinRule,
        elsewhere: Callable[[], Coroutine[Any, Any, None]],
    ) -> bool:
        """Do so once another worker has been asked, which seems to have the call."""
        try:
            await elsewhere()
        except VeloxError:
            self._is_refused_to_join()
            raise
        return self._joins(self._look_up_join(joining, key, rule, asks_others=False)) and await self._follow()

    def _look_up_join(
        self, joining: Joining, key: RequestKey | None, rule: JoinRule, *, asks_others: bool = True
    ) -> JoinLookup:
        try:
            return joining.look_up(self.head, self.plan, key, rule, asks_others=asks_others)
        except VeloxError:
            self._is_refused_to_join()
            raise

    def _is_refused_to_join(self) -> None:
        self.joined = JoinResult.REFUSED
        self.recorder.joined(JoinResult.REFUSED)

    def _joins(self, looked: JoinLookup) -> bool:
        """Begin a call that others may join, or take the call of another one. True: it follows that."""
        self.joined = looked.result
        self.recorder.joined(looked.result)
        led = looked.led
        if led is not None:
            self._led = led
            self._add_filters((led.lead(self._give_up, self._leave_client_behind, self._set_pace),))
        self._following = looked.following
        return looked.following is not None

    async def _follow(self) -> bool:
        """Send the client the reply of the call that it has joined; False: there is none for it. Raises VeloxError."""
        following, calls = self._following, self.gateway.parts.calls
        assert following is not None, "it follows"
        if self._reservation.wait_ns:
            await self._wait_for_turn(self._reservation.wait_ns)
        if calls is not None and self.plan.is_recorded:
            calls.check()
        own: Headers = [_JOINED]
        if self.cached is not None:
            own.append((b"x-velox-cache", self.cached.name.lower().encode()))
        if self.plan.terms.wants_cost:
            own.append(_NO_COST)
        filters = self._filters
        # What keeps answers has that of the call itself.
        self._filters = tuple([each for each in filters if each.order != FilterOrder.CACHE])
        reply = self.reply = self._make_reply()
        reply.begin(None, self.attempt_fields().with_fields(own))
        self.phase = "join"
        self._forward_s = self.loop.time()
        self.gateway.rests(1)
        try:
            is_answered = await following.write(reply, self.client)
        finally:
            self.gateway.rests(-1)
            following.leave()
            if reply.started:
                self.was_sent = True  # its place in the limits is used, also if it leaves before the end
        if is_answered:
            return True
        self.reply, self._filters, self._following = None, filters, None
        self.joined = JoinResult.ALONE
        self.recorder.joined(JoinResult.ALONE)
        self.phase = "limit"
        return False

    def hold_budgets(self, _now_ns: int) -> StepAnswer:
        """Have its calls recorded, and hold what they may cost. Raises VeloxError."""
        log, route = self.gateway.parts.calls, self._route
        assert log is not None and route is not None, "a step of gateways that record, behind its route"
        return self._record_calls(log, route) if self.plan.is_recorded else None

    def _release_reservation(self) -> None:
        """Release the reservation and the routing table: nothing is sent."""
        self.release_routing()
        reservation, self._reservation = self._reservation, NOT_RESERVED
        spent = reservation.settle(None, sent=False)
        if spent is not None:
            self.recorder.tokens(spent)

    async def _run(self, answer: StepAnswer, *, is_read: bool) -> None:
        self._running = True
        error: VeloxError | None = None
        try:
            if self._gone or self._failed:
                raise asyncio.CancelledError
            if not is_read:
                await self._read_in_steps()
                self.phase = "limit"
            if (answer is not None or not is_read) and await self._take_remaining_steps(answer):
                pass  # answered here
            else:
                if self._reservation.wait_ns:
                    await self._wait_for_turn(self._reservation.wait_ns)
                route = self._route
                assert route is not None, "it is found"
                attempt: Attempt | None = self._begin_first_attempt(route)
                if attempt is None:
                    attempt = await self._wait_for_capacity()
                reply = self.reply
                assert reply is not None, "made with the choice"
                attempting: Attempt | HedgedAttempts = attempt
                if route.only is None or route.parts.hedging is not None:
                    attempting = hedged(self, self.cursor, self.gateway.parts.retry_rules, route.parts.hedging, attempt)
                self._attempting = attempting
                outcome = await attempting.send(self, reply)
                while not isinstance(outcome, Complete):
                    if isinstance(outcome, LocalAnswer):
                        self._send_local_answer(outcome)
                        break
                    decision = self._decide_next(attempting, outcome, reply)
                    if decision is None:
                        outcome = await attempting.pass_on(reply)
                        continue
                    await self._wait_for_retry(decision)
                    self.recorder.retried(decision.cause)
                    attempting = self._attempting = decision.attempt
                    outcome = await attempting.send(self, reply)
        except VeloxError as exc:
            error = exc
        except asyncio.CancelledError:
            # Two cancel: the client that left, and fail(). Both go on to the account. Of a drain, both may: a Responses
            # WebSocket that is closed gives up what fail() has just ended.
            error = self._failed
            if error is None:
                error = VeloxError(self._gone or Reason.DRAINING, "the exchange was given up")
        except Exception as exc:
            self.recorder.crashed(exc)
            error = crash()
            if self._attempting is not None and self.reply is not None:
                self._attempting.abandon(self.reply)
        if self._led is not None:
            try:
                self._led.ended(error)
            except Exception as exc:  # a bug: the end comes all the same
                self.recorder.crashed(exc)
        if self._drain is not None:
            self._end_drain(self._drain)
            error = VeloxError(self._gone or Reason.CLIENT_CLOSED, "the client left")
        if self._left is not None:
            self._gone = self._left
            error = VeloxError(
                self._left, "the client left, or waited no longer; its call went on for those that joined it"
            )
        self._end(error)
        self.failed_before = None
        if error is not None:
            untraced(error)

    def _end_drain(self, drain: UsageDrain) -> None:
        self.gateway.n_drains -= 1
        is_whole = self.reply is not None and self.reply.is_whole
        self.recorder.drained(Drained.WHOLE if is_whole else Drained.CUT)
        drain.close()
        if self.reply is not None:
            self.reply.bytes_out = drain.n_before  # what the client has had of it

    def _decide_next(
        self, attempting: Attempt | HedgedAttempts, outcome: ErrorReply | Failed | Unsupported, reply: Reply
    ) -> RetryDecision | None:
        """Decide what follows an attempt that has brought no good reply; None: the client gets its error.

        Raises VeloxError where nothing follows, and there is nothing to pass on.
        """
        attempt = attempting if isinstance(attempting, Attempt) else attempting.last
        if isinstance(outcome, Unsupported):
            return self._decide_after_unsupported(attempt, outcome.error)
        if isinstance(outcome, ErrorReply):
            decision = self._decide_after_error(attempt, outcome)
            if decision is None or (isinstance(decision, EarlierFailure) and self.failed_before is None):
                return None
            failure = attempting.give_up(outcome, reply)
            if isinstance(decision, EarlierFailure):
                assert self.failed_before is not None, "see above"
                self.tried += (f"{attempt.member.name}={failure.status}",)
                raise _first_of(
                    self.failed_before, f"the fallback {attempt.member.name} refused the request ({failure.status})"
                )
        else:
            if not isinstance(outcome.failure, UpstreamFailure):
                raise outcome.failure  # it was ended from outside
            failure = outcome.failure
            if reply.started:
                raise failure
            decision = self._retry_policy().after_failure(failure, attempt, self.loop.time())
            if decision is None:
                raise failure
        self.attempt_failed(attempt.member.name, failure)
        return decision

    def _decide_after_error(self, attempt: Attempt, error_reply: ErrorReply) -> RetryDecision | EarlierFailure | None:
        """Decide about an error that the client has seen nothing of."""
        policy, now_s = self._retry_policy(), self.loop.time()
        decision = policy.after_status(error_reply.head, attempt, now_s)
        if decision is not None or (error_reply.body is None and error_reply.failure is None):
            return decision
        is_encrypted = self._has_encrypted_reasoning(attempt)
        if not policy.reads_error(error_reply.head, is_encrypted=is_encrypted):
            return None
        if error_reply.body is None:
            assert error_reply.failure is not None, "see above"
            return policy.after_failure(error_reply.failure, attempt, now_s)
        found = policy.after_error(error_reply.head, error_reply.body, attempt, now_s, is_encrypted=is_encrypted)
        if isinstance(found, RetryDecision) and found.drops_reasoning:
            adapter, client_api = attempt.member.adapter, self.plan.client_api
            if adapter is not None and client_api is not None and self.body:
                adapter.note_refused(self.body, client_api)
        return found

    def _decide_after_unsupported(self, attempt: Attempt, error: VeloxError) -> RetryDecision:
        """Return what follows a member whose API can't express the request. Raises VeloxError where nothing does.

        If no member can, the client gets the first one's reason. If one that can has failed before, it gets that
        failure, which may be temporary: the request was valid.
        """
        before = self.failed_before
        was_unsupported = before is None or before.reason in UNSUPPORTED
        decision = self._retry_policy().after_unsupported(attempt, self.loop.time(), allow_unhealthy=was_unsupported)
        if before is None:
            if decision is None:
                raise error
            self.failed_before = error
        self.tried += (f"{attempt.member.name}={error.reason.code}",)
        if decision is not None:
            return decision
        assert before is not None, "it is raised above"
        if was_unsupported:
            raise before
        raise _first_of(before, f"the fallback {attempt.member.name} can't take the request: {error.message}")

    def _send_local_answer(self, answered: LocalAnswer) -> None:
        """Send the client an answer that no upstream has made. Raises VeloxError."""
        if isinstance(answered, BackgroundAnswer):
            answered = self._start_in_background()
        reply = self.reply
        assert reply is not None, "made with the choice"
        if self._placement is not None:
            self._placement.number = NOWHERE  # what it tells of is kept here
        reply.begin(None, self.attempt_fields().with_fields(answered.own))
        reply.on_reply(ReplyHead.of(200, answered.headers, len(answered.body)), answered.body, True)

    def _start_in_background(self) -> LocalAnswer:
        """Start making the answer in the background; return what the client gets now. Raises VeloxError."""
        gateway, keeper = self.gateway, self._keeper
        answers = gateway.parts.answers
        assert answers is not None and keeper is not None, "a provider adapter has seen the keeper"
        calls, self._calls, self._meter = self._calls, None, None
        if calls is not None:
            calls.end(_NOT_ASKED)  # the request that follows is recorded, and paid for
        answer_id = f"resp_{self.id.decode('ascii').translate(_NO_SIGNS)}"
        bodies, body = gateway.parts.tunnels.bodies, self.body or b""
        told = answers.kept.in_background(
            gateway, self.loop, bodies, self.head, body, self.plan.caller, answer_id, keeper
        )
        return LocalAnswer([_JSON], told, [])

    async def _read_in_steps(self) -> None:
        """Do what read() does, with a turn of the loop for the others between two slices of the work."""
        plan, body = self.plan, self.body or b""
        self.phase = "parse"
        if plan.reads_body:
            self.fields = await in_turns(self.gateway.parts.reader.read_in_steps(body), self.gateway.turns)
            self._override_model(self.fields)
        elif plan.named is not None:
            self.fields = plan.named
        elif plan.reads_form:
            self.fields = await in_turns(self._form_reading(), self.gateway.turns)
            self._override_model(self.fields)
        elif plan.names_lines and self._checks_lines:
            await in_turns(check_lines(self.head, body, self.gateway.routing, plan.caller), self.gateway.turns)
        if plan.endpoint is Endpoint.GENERATE and plan.is_recorded and self.gateway.parts.calls is not None:
            self._google_fields = await in_turns(with_google_limits(self.fields, body), self.gateway.turns)
        guard = plan.guard
        if guard is not None and guard.concerns(None, self.fields):
            await in_turns(self._check_objects(guard), self.gateway.turns)

    async def _wait_for_turn(self, wait_ns: int) -> None:
        self.phase = "limit"
        if time.monotonic() + wait_ns / _NS_PER_S >= self.deadline_s:
            raise self._too_late()
        await self.gateway.sleep(wait_ns / _NS_PER_S)
        self._reservation.used_wait()

    async def _answer_locally(self) -> bool:
        """Answer a request for a list of models, a kept answer or the server as a whole (OPTIONS *); False: go on.

        Of other requests, insert the kept answers that they refer to. Raises VeloxError.
        """
        gateway, caller = self.gateway, self.plan.caller
        if self._reservation.wait_ns:
            await self._wait_for_turn(self._reservation.wait_ns)
        if self.head.path == SERVER:
            # RFC 9110 §9.3.7. It says the same to everybody, so it needs no key, and nothing of the upstream's.
            self.reply = self._make_reply()
            self.reply.on_reply(ReplyHead.of(200, [_ALLOW], 0), b"", True)
            return True
        answers = gateway.parts.answers
        if self.plan.client_api is not None:
            if answers is not None:
                await self._insert_kept_answers(answers)
            return False
        served = None
        if is_of_answer(self.head.path):
            served = await self._answer_for_kept_object(answers)
        models, routing = gateway.parts.models, gateway.routing
        if served is None:
            if models is None or not models.serves(self.head, caller, routing):
                return False
            self.phase = "models"
            served = await models.answer(self.head, caller, routing, gateway.turns)
        status, headers, body = served
        self.was_sent = True  # its place in the limits is used
        self.reply = self._make_reply()
        self.reply.on_reply(ReplyHead.of(status, headers, len(body)), body, True)
        return True

    async def _answer_for_kept_object(self, answers: Answers | None) -> tuple[int, Headers, bytes] | None:
        """Return the reply to a request for a kept answer; None: it is for an upstream. Raises VeloxError."""
        members, head, served = self.gateway.routing.members, self.head, None
        if answers is not None:
            has_own = any(each.adapter is None or each.adapter.has_conversations for each in members)
            makes = None if has_own else self._object_name
            served = await answers.serve(head, self.body or b"", self.plan.caller, makes=makes)
        if served is not None or not names_own(head.path):
            return served
        # Another gateway of this kind, as an upstream, makes such ids, too.
        is_elsewhere = self._placement is not None and bool(self._placement.places)
        if is_elsewhere or all(each.adapter is None for each in members):
            return None
        raise unknown_object()

    def _object_name(self) -> str:
        """Return a name for what is made by this request."""
        return self.id.decode("ascii").translate(_NO_SIGNS)

    async def _insert_kept_answers(self, answers: Answers) -> None:
        """Insert the kept answers that the request refers to into its body, and have its own answer kept.

        Raises VeloxError.
        """
        body, caller = self.body or b"", self.plan.caller
        expanded = await answers.expand(body, caller)
        adapters = [member.adapter for member in self.gateway.routing.members if member.adapter is not None]
        if self.plan.client_api is ApiKind.RESPONSES and adapters:
            keeper = self._keeper = answers.kept.keeper(caller, expanded)
            model = self.fields.model or ""
            may_pass = not all(each.keeps_answers(model) for each in adapters)
            for each in await answers.kept.readers(keeper, body, may_pass=may_pass):
                self._filters = insert_in_order(self._filters, each)
        if expanded is None:
            return
        self._has_kept_answers = True
        more = max(0, len(expanded.body) - len(body))
        bodies = self.gateway.parts.tunnels.bodies
        if not bodies.take_unless_waiting(more):
            raise no_room(close=False)
        self._filters = insert_in_order(self._filters, BodyBudgetRelease(bodies, more))
        self.body = expanded.body
        guard, placement = self.plan.guard, self._placement
        if placement is not None and placement.places and guard is not None and guard.owned is not None:
            named = await in_turns(guard.owned.named_in(self.head, self.body), self.gateway.turns)
            places = guard.owned.places(self.head, named)  # the answer is here
            placement.places = await in_turns(places, self.gateway.turns)

    def _begin_first_attempt(self, route: ResolvedRoute) -> Attempt | None:
        """Find the first attempt, which has begun; None: those that could take it have no room now."""
        parts, routing = self.gateway.parts, self._routing
        assert routing is not None, "the route is of it"
        now_s = self._forward_s = self.loop.time()
        parts.retry_budget.on_request(now_s)
        if self._reservation.estimate is not NO_TOKENS or (self._calls is not None and not self.is_tunnel):
            self._meter, filters, self.body = metered(self.body, self.fields, self.plan.endpoint, self.plan.dialect)
            self._add_filters(filters)
            if self._calls is not None and self.plan.terms.wants_cost:
                self._report_cost(self._calls, self._meter)
        if route.only is None:
            cursor = self.cursor
            if cursor.is_canary:
                parts.recorder.canary()
            attempt = cursor.first(now_s)
        elif not route.only.is_limited or route.only.has_capacity:
            attempt = Attempt(route.only, 0, 0)
            attempt.begin(now_s)
        else:
            attempt = None
        if attempt is not None:  # it has begun: from here to its run nothing may fail
            self.reply = self._make_reply()
            if route.parts.mirror is not None:
                self._mirror(route.parts.mirror, routing)
        return attempt

    def _keep_session(self, route: ResolvedRoute) -> None:
        """Begin where the session's last turn went, as long as its prompt is kept there."""
        places, name = self.gateway.parts.access.places, self.cursor.session.decode("utf-8", "surrogatepass")
        if not name or places is None:
            return
        placement = self._placement = self._placement or Placement(tracks_objects=False)
        placement.session = name
        members = route.levels[0].group.members
        place = places.session(name, time.time_ns(), partial(lifetime_s, body=self.body), members)
        if place is not None:
            self.cursor.prefer(*place)

    def _route_to_objects(self, placement: Placement, route: ResolvedRoute, routing: Routing) -> ResolvedRoute:
        """Return the route to where the objects are kept that it names, and lead there alone. Raises VeloxError."""
        guard, places = self.plan.guard, self.gateway.parts.access.places
        assert guard is not None and guard.owned is not None and places is not None, "else nothing is noted"
        if len(placement.places) > 1:
            message = "this request names objects that are kept at different upstreams, or with different keys of one"
            raise VeloxError(Reason.BAD_REQUEST, message)
        if not placement.places:
            if guard.owned.keeps and self.fields.model is None:
                home = places.home(route.levels[0].group.members, self.plan.caller.id, self.loop.time())
                if home is not None:
                    self.cursor.prefer(*home)
            return route
        place = places.find(routing.members, next(iter(placement.places)))
        if place is None:
            message = "the upstream that keeps this object, or its key, is not configured any more"
            raise VeloxError(Reason.UNKNOWN_OBJECT, message)
        if self.cursor.keep_to(*place):
            return route
        if self.fields.model is not None:
            message = "this request names an object that is kept at an upstream to which no route of its model leads"
            raise VeloxError(Reason.BAD_REQUEST, message, param="model")
        route = self._route = routing.route_to(place.upstream)
        self._cursor = None
        self.cursor.keep_to(*place)
        return route

    async def _wait_for_capacity(self) -> Attempt:
        """Wait in line for one of those that could take it. Raises VeloxError."""
        self.phase = "capacity"
        gateway, route = self.gateway, self._route
        assert route is not None and self._routing is not None, "asked for once the route is known"
        until_s = min(self.deadline_s, self._forward_s + gateway.parts.limits.queue_timeout_s)
        ticket = QueueTicket(self.plan.caller.id, self.plan.priority, self.cost)
        attempt = await self._routing.wait_for_capacity(self.cursor, until_s, ticket)
        self.reply = self._make_reply()
        if route.parts.mirror is not None:
            self._mirror(route.parts.mirror, self._routing)
        return attempt

    def _mirror(self, mirror: tuple[MirrorGate, Group], routing: Routing) -> None:
        """Send a copy, put into the API of its upstream where that has another one."""
        has_adapter = any(member.adapter is not None for member in mirror[1].members)
        prepare = self._prepare if has_adapter else None
        thread = self._prepare_in_thread if has_adapter and self.is_large else None
        self.gateway.mirrors.copy(
            mirror,
            routing,
            self.head,
            self.fields,
            self.body,
            prepare=prepare,
            prepare_in_thread=thread,
            calls=self._calls,
        )

    def _make_reply(self) -> Reply:
        route, filters = self._route, self._filters
        if route is not None and route.parts.entry.response_headers is not NO_RULES:
            filters = insert_in_order(filters, HeaderRuleFilter(route.parts.entry.response_headers))
        fields, rates = self.gateway.parts.reply_fields, self._reservation.limits.headers
        expected = self.plan.expected
        if expected.rewrites:
            self._addresses = self._address_filter()
            filters = insert_in_order(filters, self._addresses)
        thread = self.gateway.thread
        return Reply(self.client, self.head, self.id, self.loop, fields, rates, filters, expected, thread)

    def _add_filters(self, filters: Sequence[ReplyFilter]) -> None:
        """Add filters for the reply, in their order."""
        for each in filters:
            self._filters = insert_in_order(self._filters, each) if self._filters else (each,)

    def _address_filter(self) -> AddressFilter:
        """Return what puts the gateway's addresses in the place of the upstream's."""
        parts, head = self.gateway.parts, self.head
        seal = partial(seal_upload, parts.auth, head)
        return AddressFilter(parts.reply_fields.public.here(head), seal, reads_texts=self.plan.reads_addresses)

    def _make_cursor(self, route: ResolvedRoute) -> RouteCursor:
        return route.cursor(self.head, self.fields, self.plan.caller, self.body)

    @property
    def cursor(self) -> RouteCursor:
        """The cursor in the levels of its route: made where one choice is not enough."""
        if self._cursor is None:
            assert self._route is not None, "asked for once the route is known"
            self._cursor = self._make_cursor(self._route)
        return self._cursor

    # -- what its attempts ask for (group.AttemptHost) ------------------------------------------------

    def attempt_began(self, attempt: Attempt) -> AttemptFields:
        """Note where the request goes now; return the fields that tell the client of the attempts so far."""
        member = attempt.member
        self.n_attempts += 1
        self.upstream = member.name
        self._answering = attempt
        if self._placement is not None:
            self._record_place(attempt)
        if self._calls is not None:
            self._calls.begin(attempt, member.name, attempt.asked(self.fields.model))
        shape = self.head.shape
        if self.n_attempts == 1 and not self.tried:
            if not shape.query:
                return member.first_fields
            told = member.first_fields
        else:
            if self._meter is not None:
                self._meter.forget()
            told = self.attempt_fields()
        if shape.query and (dropped := attempt.forwarder.dropped_parameters(shape)):
            told = told.with_dropped(dropped)
        return told

    def prepare(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """Return what an attempt sends. Raises VeloxError for what the API of its upstream can't say."""
        if attempt.member.adapter is None and not self.plan.has_addresses:  # as it came
            return attempt.build(self.head, self.fields, self.body, to_be_read=bool(self._filters))
        return self._prepare(attempt, None if self._meter is None else self._meter.note, keeps=True)

    @property
    def has_turn(self) -> bool:
        """See AttemptHost."""
        return self.gateway.turns.has_time()

    async def prepare_in_thread(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """Do what prepare() does: in turns of the loop, or what is large for another API in the worker's thread."""
        if not self.is_large:
            return await in_turn(partial(self.prepare, attempt), self.gateway.turns)
        if attempt.member.adapter is None:
            assert self.body is not None, "it is large"
            await attempt.rename(self.fields, self.body, self.gateway.turns)
            return self.prepare(attempt)
        return await self._prepare_in_thread(attempt, None if self._meter is None else self._meter.note, keeps=True)

    async def _prepare_in_thread(
        self, attempt: Attempt, on_tokens: Callable[[TokenUsage], None] | None, *, keeps: bool = False
    ) -> Prepared | LocalAnswer:
        told: list[tuple[ApiKind, ApiKind, int]] = []
        try:
            prepare = partial(self._prepare, attempt, on_tokens, partial(_note, told), keeps=keeps)
            return await self.gateway.thread.run(prepare)
        finally:
            for client_api, model_api, n_dropped in told:  # counters are of the loop
                self.recorder.translated(client_api, model_api, n_dropped)

    def _prepare(
        self,
        attempt: Attempt,
        on_tokens: Callable[[TokenUsage], None] | None,
        on_translated: Callable[[ApiKind, ApiKind, int], None] | None = None,
        *,
        keeps: bool = False,
    ) -> Prepared | LocalAnswer:
        """As prepare(). on_tokens: called with the tokens of a reply that is translated; None: nobody counts them.

        on_translated: as in ClientRequest; None: the recorder's own. keeps: the answer is the client's,
        and may be kept.
        """
        client_api, adapter = self.plan.client_api, attempt.member.adapter
        if self.plan.has_addresses:
            self._take_addresses(attempt)
        if adapter is not None:
            fields, model = self.fields, attempt.asked(self.fields.model)
            if client_api is not None:
                call = adapter.target_call(client_api, model, stream=fields.stream, query=self.head.shape.query)
                if call is not None:
                    if self._retries is not None and self._retries.has_dropped_reasoning and self.body:
                        self.body = adapter.without_encrypted_reasoning(self.body, client_api)
                    request = self._client_request(client_api, model, attempt, on_tokens)
                    if on_translated is not None:
                        request = request._replace(on_translated=on_translated)
                    if keeps and self._keeper is not None:
                        request = request._replace(keeper=self._keeper)
                    prepared = adapter.prepare(call, request)
                    if keeps and isinstance(prepared, Prepared) and prepared.translation is not None:
                        self._record_place(attempt, is_translated=True)
                    return prepared
                if client_api in COUNTS:
                    return adapter.estimate(self._client_request(client_api, model, attempt, None))
            of_google = self.plan.expected.rewrites and self.plan.dialect is Dialect.GOOGLE
            adapter.check_passes(self.plan.endpoint, self.head.path, of_google=of_google)
        if self.plan.has_addresses:
            target = None if self.plan.passed is None else self.plan.passed.target
            is_read = bool(self._filters) or self.plan.reads_addresses
            passed = attempt.build(self.head, self.fields, self.body, to_be_read=is_read, target=target)
            if keeps and self.head.method == b"GET":
                self._read_own_pages(passed, attempt)
            return Prepared(passed)
        return Prepared(attempt.build(self.head, self.fields, self.body, to_be_read=bool(self._filters)))

    def _read_own_pages(self, request: UpstreamRequest, attempt: Attempt) -> None:
        """Have a list that its client sees a part of read on to where that part is."""
        for each in self._filters:
            if isinstance(each, ListFilter):
                request.dispatch = OwnPages(
                    PageWalk(self.head.query, self.plan.dialect),
                    each,
                    partial(self._page_request, attempt),
                    attempt.member.pool,
                    attempt.member.timeouts,
                    self.gateway.thread,
                    self.gateway.turns,
                    on_head=attempt.on_head,
                    on_lost=self.fail,
                    on_bug=self.recorder.crashed,
                ).open
                return

    def _page_request(self, attempt: Attempt, query: bytes) -> UpstreamRequest:
        """Return what asks for another page of the list that the client has asked for."""
        target = self.head.path + b"?" + query if query else self.head.path
        head = RequestHead.of(b"GET", target, self.head.headers)
        return attempt.build(head, self.fields, None, to_be_read=True)

    def _take_addresses(self, attempt: Attempt) -> None:
        """Have the reply's addresses of this upstream changed, and those in the body that were changed before."""
        addresses = attempt.member.addresses
        if self._addresses is not None and attempt is self._answering:  # and no mirror's
            self._addresses.upstream = addresses
        if self.plan.dialect is Dialect.GOOGLE and self.body and addresses is not None:
            self.body = addresses.taken_back(self.body, self.gateway.parts.reply_fields.public.here(self.head))

    def _client_request(
        self,
        client_api: ApiKind,
        model: str | None,
        attempt: Attempt,
        on_tokens: Callable[[TokenUsage], None] | None,
    ) -> ClientRequest:
        """Return what its provider adapter depends on."""
        route = self._route
        assert route is not None, "an attempt has a route"
        return ClientRequest(
            client_api,
            attempt.forwarder,
            attempt.member.pool,
            attempt.member.timeouts,
            attempt.member.concurrency.limit,
            attempt.secret,
            self.head,
            self.fields,
            self.body,
            model,
            attempt.group.request_rules,
            id=self.id.decode("ascii").translate(_NO_SIGNS),
            now_s=int(time.time()),
            strict=route.parts.entry.strict,
            has_limits=self._reservation.limits.headers is not None,
            to_be_read=bool(self._filters),
            on_bug=self.recorder.crashed,
            on_translated=self.recorder.translated,
            on_lost=partial(_tell, self.loop, self.recorder.lost),
            on_tokens=on_tokens,
            thread=self.gateway.thread,
        )

    async def lease(self, member: Member) -> UpstreamConnection:
        """Wait for a connection with room for one request. Raises VeloxError."""
        self.phase = "connect"
        began_ns = time.monotonic_ns()
        connection = await member.connection(self.gateway.parts.limits.queue_timeout_s)
        self.recorder.overhead[Phase.CONNECT].observe(time.monotonic_ns() - began_ns)
        return connection

    def _has_encrypted_reasoning(self, attempt: Attempt) -> bool:
        """Return True if the request may have reasoning that only its maker can read."""
        adapter, client_api, body = attempt.member.adapter, self.plan.client_api, self.body
        return (
            adapter is not None
            and client_api is not None
            and bool(body)
            and adapter.has_encrypted_reasoning(body or b"", client_api)
        )

    def attempt_chosen(self, attempt: Attempt) -> None:
        """Note which of two attempts is left."""
        self.upstream = attempt.member.name
        self._answering = attempt
        if self._placement is not None:
            self._record_place(attempt)
        if self._addresses is not None:
            self._addresses.upstream = attempt.member.addresses
        if self._calls is not None:
            self._calls.answering = attempt

    def _record_place(self, attempt: Attempt, *, is_translated: bool = False) -> None:
        """Note where the reply comes from that tells of new objects; of one in another API they are kept here."""
        places, placement = self.gateway.parts.access.places, self._placement
        if placement is None or places is None:
            return
        number = places.number(attempt.member, attempt.key)
        if placement.session:
            places.keep_session(placement.session, number, time.time_ns())
        placement.number = NOWHERE if is_translated or attempt.translation is not None else number

    def count_hedges(self, n: int) -> None:
        """So many second attempts more are under way, or fewer."""
        self.gateway.n_hedges += n

    def found_capacity(self) -> None:
        """An upstream takes more than a moment ago."""
        self.gateway.found_capacity()

    def _retry_policy(self) -> RetryPolicy:
        """What is left of the retries; made when the first attempt brought no reply."""
        if self._retries is None:
            parts = self.gateway.parts
            self._retries = RetryPolicy(
                parts.retry_rules,
                parts.retry_budget,
                parts.recorder.retry_denied,
                self.cursor,
                self.plan.terms,
                self.deadline_s,
            )
        return self._retries

    async def _wait_for_retry(self, decision: RetryDecision) -> None:
        try:
            if self._failed is not None:
                raise self._failed  # it came after the attempt's own end, and nobody has looked since
            if decision.renewal is not None:
                self.phase = "renewal"
                await asyncio.wait((decision.renewal,), timeout=decision.wait_s)
            elif decision.wait_s:
                self.phase = "backoff"
                await self.gateway.sleep(decision.wait_s)
        except BaseException:
            decision.give_up(self.loop.time())
            raise

    # -- the end --------------------------------------------------------------------------------------

    def reply_ends(self) -> bool:
        """Settle and record it now, as the last bytes of its reply are about to go to the client; False: not yet.

        Behind them the worker may be killed, and what the client has would not be counted.
        """
        reply = self.reply
        is_alone = self._gone is not None or self._left is not None or self._drain is not None
        if reply is None or is_alone or self._failed is not None:
            return False  # it ends otherwise
        if isinstance(self._attempting, HedgedAttempts) and not self._attempting.is_alone:
            return False  # what the other one came to is not known before it has ended
        self.was_sent = True
        try:
            self._tokens = self._settle_end(None)
            self.is_accounted = True
            self.recorder.ended(self, None, reply.status, time.monotonic_ns())
        except Exception as exc:  # a bug: the client gets its answer all the same
            self.recorder.crashed(exc)
        return self.is_accounted

    def _settle_end(self, error: VeloxError | None) -> int:
        """Settle it; return the tokens that it really cost."""
        # Most often there is nothing to settle.
        is_kept = error is None and self._reservation.limits.is_kept and self._calls is None
        return self.cost if is_kept else self._settle(error)

    def _end(self, error: VeloxError | None) -> None:
        """Settle, account, then tell the client how it ended. No await: it happens exactly once."""
        reply = self.reply
        self._attempting = None  # it leads back here: a cycle, which would hold the request's body
        if self._routing is not None:
            self._routing.n_open -= 1
            self._routing = None
        if self._timer is not None:
            self._stop_timer()
        tokens = self._tokens if self.is_accounted else self._settle_end(error)
        if error is None:
            assert reply is not None, "an exchange without error has replied"
            self.gateway.account(self, None, reply.status, tokens)
            self.client.finish()
        else:
            self.gateway.account(self, error.reason, error.status, tokens)
            if self._gone:
                self.client.release_body()
            elif reply is not None and reply.started:
                reply.cut(error)
            else:
                self.gateway.answer_for(self, error)
        self._led = None
        if self._following is not None:
            self._following.leave()
            self._record_joined(error)
        if self._filters:
            if reply is not None:
                reply.close()
            else:
                for each in self._filters:
                    each.close()

    def _record_joined(self, error: VeloxError | None) -> None:
        """Record that it had the reply of another request's call."""
        calls, plan, route, reply = self.gateway.parts.calls, self.plan, self._route, self.reply
        if calls is None or not plan.is_recorded or route is None:
            return
        status = error.status if error is not None else 0 if reply is None else reply.status
        first_ns = 0 if reply is None else reply.first_byte_ns
        try:
            calls.record_joined(
                self.id,
                plan.caller,
                plan.endpoint,
                route.parts.entry.name,
                self.fields,
                plan.family,
                plan.agent,
                self._tags(),
                status,
                None if error is None else error.reason,
                self.started_ns,
                first_ns,
            )
        except Exception as exc:
            self.recorder.crashed(exc)

    def release_routing(self) -> None:
        """Hold its configuration no longer; only the first call counts."""
        if self._routing is not None:
            self._routing.n_open -= 1
            self._routing = None

    def _settle(self, error: VeloxError | None) -> int:
        """Make good what was taken in advance: what did not go out goes back. Return the tokens that it really cost."""
        reservation, self._reservation = self._reservation, NOT_RESERVED
        # What is answered here counts for requests, if nothing but requests is counted.
        is_used = self.was_sent or (error is None and reservation.limits.is_kept)
        pays = self._pays()
        usage: Usage | None = None
        spent: Spent | None = None
        try:
            try:
                if self._meter is not None:
                    usage = self._usage(self._meter, reservation.estimate, error)
                if self._calls is not None:
                    self._end_calls(self._calls, error, usage, pays=pays)
            finally:
                spent = reservation.settle(usage if pays else NOTHING_USED, sent=is_used)
            reply = self.reply
            self.spent = self._spending(usage, is_whole=error is None or (reply is not None and reply.is_whole))
        except Exception as exc:  # a bug: the slot is freed and the client told all the same
            self.recorder.crashed(exc)
        if spent is None:
            return self.cost if is_used else 0
        self.recorder.tokens(spent)
        return spent.input + spent.output

    def call_kind(self) -> CallKind:
        """See RequestContext."""
        route, answering, model = self._route, self._answering, self.fields.model
        assert route is not None and answering is not None, "asked of those that were sent"
        wanted = answering.group.models[answering.n]
        return route.parts.entry.name, self.upstream, (model if wanted is None else asked_model(wanted, model)) or ""

    def _spending(self, usage: Usage | None, *, is_whole: bool) -> Spending | None:
        """Return what it took: as its calls are recorded, else as its reply tells, where that is read."""
        if self._calls is not None:
            return self._calls.spent()
        if self._meter is None or not self.was_sent:
            return None
        kinds = self._meter.kinds()
        if usage is None or not usage.is_exact:
            usage = self._meter.usage(is_whole=is_whole)
        if kinds.input != usage.input or kinds.output != usage.output:
            kinds = replace(kinds, input=usage.input, output=usage.output)
        return spending_of(kinds, None, is_estimated=not usage.is_exact, is_recorded=False)

    def _pays(self) -> bool:
        """Say whether its tokens are the client's to pay."""
        if self.cached is CacheResult.HIT or self._following is not None:
            return False
        if self.reply is not None and self.reply.started:
            return True
        # Nothing was answered: only if the client left, or waits no longer (on_deadline()).
        failed = self._failed
        return self.may_have_begun and (
            self._gone is not None if failed is None else failed.reason is Reason.UPSTREAM_TTFB_TIMEOUT
        )

    def _usage(self, meter: Meter, estimate: Estimate, error: VeloxError | None) -> Usage:
        goes_on = self._drain is not None or self._left is not None
        is_whole = error is None or (goes_on and self.reply is not None and self.reply.is_whole)
        usage = meter.usage(is_whole=is_whole)
        if usage.is_exact:
            return usage
        least = estimate.answer if self._calls is None else self._calls.guess
        return usage_of(meter, self._answering, self.fields.model, least, is_whole=is_whole)

    def _record_calls(self, log: CallLog, route: ResolvedRoute) -> NotYet | None:
        """Have its calls recorded, and hold what they may cost. Raises VeloxError."""
        log.check()
        plan, fields, estimate = self.plan, self.fields, self._reservation.estimate
        if self._google_fields is not None:
            fields = self._google_fields
        elif plan.endpoint is Endpoint.GENERATE and self.body is not None:
            fields = finished(with_google_limits(fields, self.body))
        is_form = isinstance(fields, FormFields)  # the bytes of pictures and sounds tell nothing of tokens
        is_unread = not plan.reads_body and (plan.named is None or plan.named.is_model_in_path)
        if is_form or is_unread or not plan.names_model:
            estimate = NO_TOKENS
        elif (estimate is NO_TOKENS and plan.names_model) or fields is not self.fields or self._has_kept_answers:
            n_bytes = 0 if self.body is None else len(self.body)
            estimate = self.gateway.parts.estimator.estimate(plan.endpoint, n_bytes, fields)
        asked = asked_units(plan.endpoint, plan.family, fields, self.body) if plan.endpoint in BY_UNITS else None
        if log.budgets is not None:
            not_yet = self._hold(log.budgets, route, fields, estimate, asked)
            if not_yet is not None:
                return not_yet
        route_name = route.parts.entry.name
        self._calls = log.request(
            self.id,
            plan.caller,
            plan.endpoint,
            route_name,
            fields,
            estimate,
            reservation=self._reservation,
            dialect=plan.dialect,
            path=plan.family,
            asked=asked,
            agent=plan.agent,
            tags=self._tags(),
        )
        return None

    def _tags(self) -> str | None:
        """Return the tags that its calls count under, as one text; None: those of its key."""
        known = self.gateway.parts.request_tags
        if known is None:
            return None
        return known.of(self.head, None if self.is_large else self.body, self.plan.caller, self.loop.time())

    def _hold(
        self,
        budgets: BudgetGate,
        route: ResolvedRoute,
        fields: BodyFields,
        estimate: Estimate,
        asked: AskedUnits | None,
    ) -> NotYet | None:
        """Hold what it may cost. Raises VeloxError."""
        plan, n_bytes = self.plan, 0 if self.body is None else len(self.body)
        bound: TokenUsage | None = None
        if asked is not None or (plan.names_model and plan.endpoint in BOUNDED):
            bound = bound_of(plan.endpoint, fields, n_bytes, asked)
        held = budgets.hold(plan.caller, route.destinations, fields, estimate, bound)
        if held is None or isinstance(held, NotYet):
            return held
        self._reservation = self._reservation.holding(held)
        return None

    def _report_cost(self, calls: RequestCalls, meter: Meter) -> None:
        """Have the client told what its call cost."""
        cost = CostFilter(partial(calls.cost_by, meter), self.gateway.parts.tunnels.bodies)
        self._filters = insert_in_order(self._filters, cost)

    def _end_calls(self, calls: RequestCalls, error: VeloxError | None, usage: Usage | None, *, pays: bool) -> None:
        reply = self.reply
        status = error.status if error is not None else 0 if reply is None else reply.status
        started, first_ns = (False, 0) if reply is None else (reply.started, reply.first_byte_ns)
        reason = None if error is None else error.reason
        kinds = NO_KINDS if self._meter is None else self._meter.kinds()
        was_drained = self._drain is not None or self._left is not None
        calls.end(Answered(self._answering, status, reason, pays, started, first_ns, usage, kinds, was_drained))

    @property
    def rates(self) -> RateHeaders | None:
        """What the client learns of its limits; None where no quota counts its requests."""
        if self._reservation is not NOT_RESERVED:
            return self._reservation.limits.headers
        return self.gateway.parts.limiter.limits(self.plan.caller, self.fields.model).headers

    def refuse(self, error: VeloxError) -> None:
        """Answer instead of starting: the exchange never had a task."""
        self._stop_timer()
        if self._led is not None:
            self._led.ended(error)
            self._led = None
        self._release_reservation()
        self.recorder.ended(self, error.reason, error.status, time.monotonic_ns())
        self.gateway.answer_for(self, error)

    # -- ends from outside ----------------------------------------------------------------------------

    def fail(self, error: VeloxError) -> None:
        """End the exchange from outside, in whichever phase: a deadline, or the end of a drain."""
        self.end_drain()
        if self._failed is None and self._gone is None and not self.is_accounted:
            self._failed = error
            if self.phase == "ttfb" and self.reply is not None:
                self.reply.on_failure(error)  # no effect on a reply that has just become whole
            else:
                self._cancel()

    def end_drain(self) -> None:
        """Stop, if nobody is there any more and it is only read on for its usage."""
        if self._drain is not None:
            self._cancel()
        elif self._left is not None and self._led is not None and not self._led.has_followers:
            self._give_up()

    def _cancel(self) -> None:
        # A task that is cancelled before its first step never runs, and its slot would never be freed: _run() looks.
        if self._task is not None and self._running:
            self._task.cancel()

    def set_timer(self) -> None:
        """Be there when the client's deadline is over, to the millisecond."""
        self._timer = self.loop.call_later(self.plan.terms.timeout_s, self.on_deadline)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_deadline(self) -> None:
        """The client waits no longer for the first byte."""
        if self._task is None:
            self.gateway.queue.discard(self)
            self.refuse(self._too_late())
        elif self.reply is None:
            self.fail(self._too_late())
        elif not self.reply.started:
            message = f"no reply came within the {self.plan.terms.timeout_s:g} s that the client gave it"
            error = VeloxError(Reason.UPSTREAM_TTFB_TIMEOUT, message)
            if self._following is not None and self._following.can_join_again:
                error.should_retry = True  # it costs nothing: the retry joins the same call
            if self._led is None or not self._goes_on_for_others(self._led, error.reason, error):
                self.fail(error)

    def _too_late(self) -> VeloxError:
        timeout_s = self.plan.terms.timeout_s
        message = f"this request could not be sent within the {timeout_s:g} s that the client gave it"
        return VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0)

    def check_deadlines(self, now_s: float, limits: GatewayLimits) -> None:
        """End what takes too long. Called every 0.25 s."""
        reply, drain = self.reply, self._drain
        if drain is not None and now_s >= drain.until_s:
            self._cancel()
            return
        if now_s >= self.deadline_s:
            self.on_deadline()
        if reply is None:
            return
        is_stream = reply.is_sse or self.fields.stream
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
        elif self._following is not None and limits.sse_keepalive_s:
            reply.keep_alive(now_s, limits.sse_keepalive_s)


def _tell(
    loop: asyncio.AbstractEventLoop,
    on_lost: Callable[[ApiKind, ApiKind], None],
    client_api: ApiKind,
    model_api: ApiKind,
) -> None:
    """Have a counter told in the loop's thread."""
    loop.call_soon_threadsafe(on_lost, client_api, model_api)


def _first_of(failure: VeloxError, then: str) -> VeloxError:
    """Return a failure that may pass, with what came after it."""
    found = VeloxError(failure.reason, f"{failure.message}; {then}", status=failure.status)
    if failure.reason is not Reason.UPSTREAM_STATUS:
        found.should_retry = failure.should_retry  # a status says it by itself
    return found


def _note(told: list[tuple[ApiKind, ApiKind, int]], client_api: ApiKind, model_api: ApiKind, n_dropped: int) -> None:
    told.append((client_api, model_api, n_dropped))
