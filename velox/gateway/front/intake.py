"""Where requests enter a worker: checked by their heads, queued, and let through the gate in batches.

Knows: the queue, how many exchanges may run, and which do. Does not know: what a limit is (limiter.py), or what happens
to a request after the gate (exchange.py, where the whole way is listed).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from velox.errors import Reason, VeloxError
from velox.gateway.access.endpoints import dialect_of, has_content
from velox.gateway.access.plan import RequestPlan, plan_of
from velox.gateway.cluster.routing import Routing
from velox.gateway.cpu_work import TranslationThread
from velox.gateway.front.admission import admission
from velox.gateway.front.coded_bodies import CodedBodies
from velox.gateway.front.probes import Probes, answer_to
from velox.gateway.reply.headers import RateHeaders, client_id
from velox.gateway.reply.respond import crash, error_reply
from velox.gateway.request.exchange import Exchange, ExchangeOwner
from velox.gateway.request.mirror import Mirrors
from velox.gateway.request.parts import Parts
from velox.gateway.request.timed_exchange import TimedExchange
from velox.gateway.websocket.sockets import ResponsesSockets
from velox.gateway.websocket.tunnel import TunnelExchange
from velox.heads import Headers, HeadShape, RequestHead
from velox.memo import Memo
from velox.net.application import Client, ClientExchange
from velox.net.turn_budget import TURN_S, TurnBudget
from velox.net.yielding_sweep import YieldingSweep
from velox.policy.queue.fair_queue import ADMITTED, FairQueue, Outcome, Verdict
from velox.protocol.heads.target import SERVER
from velox.types import ANYONE, Caller, Dialect, Endpoint, KeyUpdate

__all__ = ["Gateway", "MakeExchange", "untraced_exchange"]

_NS_PER_S: Final = 1_000_000_000
_KEPT_PLANS: Final = 4096
_KEPT_SHAPES: Final = 512
_SHORT_S: Final = 10.0
# To read it, and to look for what it names, takes half a millisecond. A prompt of many pages is longer.
_LONG_BYTES: Final = 64 * 1024
# Exchanges that one turn of the loop looks at: when an upstream hangs, the time of all of them may be over at once.
_LOOKS_PER_TURN: Final = 32


MakeExchange: TypeAlias = Callable[
    [ExchangeOwner, Client, RequestHead, "bytes | bytearray | None", RequestPlan], Exchange
]


def untraced_exchange(
    owner: ExchangeOwner, client: Client, head: RequestHead, body: bytes | bytearray | None, plan: RequestPlan
) -> Exchange:
    """Return the exchange of a request of which nothing is noted for traces."""
    if head.shape.offer is not None:
        return TunnelExchange(owner, client, head, body, plan)
    if plan.timing or plan.is_litellms:
        return TimedExchange(owner, client, head, body, plan)
    return Exchange(owner, client, head, body, plan)


class Gateway(ExchangeOwner):
    """All exchanges of one worker; the application behind its connections."""

    # Over 30 attributes, CPython finds each in a dictionary where a class has no slots (SHARED_KEYS_MAX_SIZE); each
    # request asks for some forty.
    __slots__ = (
        *("_active", "_coded", "_drain_queued", "_late_timer", "_latest", "_looks", "_max_inflight", "_n_asleep"),
        *("_n_passed", "_plans", "_probes", "_refuses", "_shapes", "_share_ns", "_sockets", "_swept_s"),
        *("_timed_below_s", "_traced", "_turn_ns", "_turn_s"),
    )

    def __init__(
        self,
        parts: Parts,
        queue: FairQueue[Exchange],
        routing: Routing,
        loop: asyncio.AbstractEventLoop,
        *,
        share_s: float = TURN_S,
        traced: MakeExchange | None = None,
        thread: TranslationThread | None = None,
    ) -> None:
        """routing: may be replaced by another one at any time; what has begun keeps the one that it has.

        share_s: of each turn of the loop, for work on bodies. traced: makes an exchange that is; None: none is.
        thread: for what is large; None: one of its own.
        """
        self.parts = parts
        self._traced: Final[MakeExchange | None] = traced
        self.queue = queue
        self.routing = routing
        parts.access.tracks_objects = routing.has_places
        self.loop = loop
        self.draining = False  # set by the worker: nothing that lasts is begun any more
        self._refuses = False
        self._active: set[Exchange] = set()
        # Of heads that passed, by shape and credential.
        self._plans: Final[Memo[tuple[HeadShape, bytes | None], RequestPlan]] = Memo(_KEPT_PLANS)
        self._shapes: Final[set[HeadShape]] = set()  # of these plans, at least
        # Of the last head: it is asked for when the head has come, and again with the body, mostly at once.
        self._latest: tuple[RequestHead, RequestPlan] | None = None
        # A client's deadline has a timer of its own if it may come in the queue, or is short; else sweep() sees it.
        self._timed_below_s: Final = max(_SHORT_S, parts.limits.queue_timeout_s)
        self._max_inflight: Final = parts.limits.max_inflight
        self._drain_queued = False
        # Of the turn of the loop in which a request last passed the queue at once: how many did, since when.
        self._turn_s = -1.0
        self._turn_ns = 0
        self._n_passed = 0
        self._n_asleep = 0
        self.n_hedges = 0  # second attempts beside a first one
        self.n_drains = 0
        self._take_steps(routing)
        self._late_timer: asyncio.TimerHandle | None = None
        self._swept_s = 0.0
        self._looks: Final[YieldingSweep[Exchange]] = YieldingSweep(self._look, _LOOKS_PER_TURN, loop)
        tell = parts.recorder
        self._sockets: Final = ResponsesSockets(self)
        self._probes = Probes(routing.table.routes)
        self.thread = thread or TranslationThread()
        self._coded: Final = CodedBodies(self, loop, parts.tunnels.limits.body_bytes, self.thread)
        self.turns = TurnBudget(loop, share_s=share_s)
        self._share_ns: Final = int(share_s * _NS_PER_S)
        self.mirrors = Mirrors(
            loop,
            self.thread,
            self.turns,
            on_end=tell.mirrored,
            on_room=self.found_capacity,
            on_bug=tell.crashed,
        )

    def _take_steps(self, routing: Routing) -> None:
        """Have requests take the steps that a configuration asks for."""
        has_cache, has_joins = routing.table.has_cache, routing.table.has_joins
        self.steps = admission(self.parts, has_cache=has_cache, has_joins=has_joins)
        self.local_steps = admission(self.parts, may_be_local=True, has_cache=has_cache, has_joins=has_joins)

    def __repr__(self) -> str:
        return f"<Gateway active={len(self._active)} queued={len(self.queue)} {self.routing!r}>"

    @property
    def n_active(self) -> int:
        """Exchanges that have begun and not ended, without those that are queued."""
        return len(self._active)

    def running(self) -> list[Exchange]:
        """Return the exchanges that have not ended, those that are queued last."""
        return [*self._active, *self.queue.waiting()]

    def end(self, ident: bytes, error: VeloxError) -> bool:
        """End a request from outside, in whichever phase. False: there is none of this id."""
        for exchange in self.running():
            if exchange.id == ident:
                if exchange in self._active:
                    exchange.fail(error)
                elif self.queue.discard(exchange):
                    exchange.refuse(error)
                return True
        return False

    # -- for the connections --------------------------------------------------------------------

    def check_head(self, head: RequestHead) -> Caller:
        """Refuse what is refused whatever its body is; return the caller. Raises VeloxError."""
        if self._refuses:
            message = "this worker is short of memory, and takes no new request for now (VELOX_MEMORY_SOFT)"
            raise VeloxError(Reason.OVERLOAD_MEMORY, message, retry_after_s=1.0)
        if head.shape.offer is not None and self._sockets.answers(head):
            return self._sockets.check(head)
        return self.plan(head).caller

    def plan(self, head: RequestHead, caller: Caller | None = None) -> RequestPlan:
        """Return what follows from a head. caller: who sent it, if that was checked already. Raises VeloxError."""
        latest, shape = self._latest, head.shape
        if latest is not None and latest[0] is head:
            return latest[1]
        key = (shape, head.values[shape.credential_at] if shape.credential_at >= 0 else None)
        plan = (self._plans.known.get(key) or self._plans.find(key)) if shape.is_shared else None
        if plan is None or (not plan.has_body and head.has_body):
            parts = self.parts
            # A key may have been revoked since its caller was told: what is kept would let all later requests in.
            is_current = caller is None
            if caller is None:
                caller = self._check(head)
            plan = plan_of(
                head,
                caller,
                parts.endpoints,
                parts.estimator,
                parts.access,
                requires_keys=parts.auth.requires_keys,
                passes=parts.auth.passes,
                is_probe=self._probes.answers(head),
                timing=parts.timing,
                is_traced=self._traced is not None,
                is_litellms=parts.is_litellms,
            )
            if not is_current:
                return plan
            if shape.is_shared:
                self._keep(key, plan)
        self._latest = head, plan
        return plan

    def _check(self, head: RequestHead) -> Caller:
        """Return who sent a request that may pass. Raises VeloxError."""
        parts = self.parts
        if head.path == SERVER or self._probes.answers(head):
            return ANYONE
        caller = parts.auth.check(head)
        parts.endpoints.check(head)
        return caller

    def _keep(self, key: tuple[HeadShape, bytes | None], plan: RequestPlan) -> None:
        """Keep a plan: of few shapes for many callers, so that clients that change their heads fill no memory."""
        shapes = self._shapes
        shapes.add(key[0])
        if len(shapes) > _KEPT_SHAPES:
            self._plans.clear()
            shapes.clear()
            shapes.add(key[0])
        self._plans.put(key, plan)

    def route_by(self, routing: Routing) -> None:
        """Send what comes from now on by another configuration."""
        self.routing = routing
        self._take_steps(routing)
        probes = Probes(routing.table.routes)
        if probes != self._probes:
            self._probes = probes
            self._forget_plans()
        access = self.parts.access
        if access.tracks_objects is not routing.has_places:
            access.tracks_objects = routing.has_places
            self._forget_plans()

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._shapes.clear()
        self._latest = None

    def change_keys(self, update: KeyUpdate) -> None:
        """Accept keys as this says.

        It counts on connections that are open, too; what has passed goes on.
        """
        self.parts.auth.change(update)
        self._forget_plans()

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller
    ) -> ClientExchange | None:
        """Queue a whole request; None when it was refused on the spot."""
        offers = head.shape.offer is not None
        if offers and self._sockets.answers(head):
            return self._sockets.open(client, head)
        latest = self._latest
        plan = latest[1] if latest is not None and latest[0] is head else self.plan(head, caller)
        # Each class by its name, which compiled code calls directly.
        if plan.is_unusual:
            if plan.is_coded and body:
                return self._coded.open(client, head, body, caller)
            if plan.is_probe:
                status, headers, answer = answer_to(head, draining=self.draining)
                client.answer(status, headers, answer, with_body=head.method != b"HEAD", close=False)
                return None
            exchange = self._unusual(client, head, body, plan)
        else:
            exchange = (
                TunnelExchange(self, client, head, body, plan) if offers else Exchange(self, client, head, body, plan)
            )
        if body and plan.forbids_body:
            exchange.refuse(has_content())  # a length that was announced is refused by the head
            return None
        if plan.terms.timeout_s < self._timed_below_s:
            exchange.set_timer()
        queue, now_ns = self.queue, exchange.started_ns
        may_pass = not queue.n and self.routing.always_has_capacity and len(self._active) < self._max_inflight
        if may_pass:  # a batch of them in each turn at most
            turn_s = self.loop.time()  # the same for a whole turn
            if turn_s != self._turn_s:
                self._turn_s, self._turn_ns, self._n_passed = turn_s, now_ns, 0
            self._n_passed += 1
            may_pass = self._n_passed <= queue.batch
        if may_pass:
            # The usual way: nobody waits, and there is room.
            queue.pass_through(plan.caller.id, plan.priority, exchange.cost, now_ns)
            exchange.taken_ns = now_ns
            return exchange if self._admit(exchange, now_ns, gate_ns=self._turn_ns) else None
        verdict = queue.offer(
            exchange,
            now_ns,
            caller=plan.caller.id,
            priority=plan.priority,
            cost=exchange.cost,
            n_bytes=0 if body is None else len(body),
            deadline_ns=now_ns + plan.timeout_ns,
        )
        if verdict is not ADMITTED:
            for other in verdict.evicted:
                other.refuse(self._full(Outcome.FULL, 0))
            if verdict.outcome is not Outcome.ADMITTED:
                exchange.refuse(self._not_queued(verdict))
                return None
        if not self._drain_queued:
            self._drain_soon()
        return exchange

    def _unusual(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, plan: RequestPlan
    ) -> Exchange:
        """Return the exchange of a plan that is unusual."""
        if self._traced is not None:
            return self._traced(self, client, head, body, plan)
        return untraced_exchange(self, client, head, body, plan)

    def _not_queued(self, verdict: Verdict[Exchange]) -> VeloxError:
        """Say why a request could not be queued."""
        if verdict.outcome is not Outcome.TOO_LATE:
            return self._full(verdict.outcome, verdict.wait_ns)
        message = (
            f"this request would wait about {verdict.wait_ns / _NS_PER_S:.1f} s in the queue, and it may wait "
            f"{verdict.allowed_ns / _NS_PER_S:.1f} s: this worker is overloaded"
        )
        return VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=_retry_after_s(verdict.wait_ns))

    def _full(self, outcome: Outcome, wait_ns: int) -> VeloxError:
        queue = self.queue
        message = f"{len(queue)} requests are waiting in this worker, its limit (VELOX_QUEUE_DEPTH)"
        if outcome is Outcome.FULL_BYTES:
            message = f"{queue.n_bytes} bytes of requests wait in this worker, near its limit (VELOX_QUEUE_BYTES)"
        return VeloxError(Reason.QUEUE_FULL, message, retry_after_s=_retry_after_s(wait_ns))

    def refuse(self, client: Client, head: RequestHead | None, error: VeloxError) -> None:
        """Answer a request that never became an exchange."""
        request_id = self.parts.recorder.next_id()
        endpoint = Endpoint.OTHER if head is None else self.parts.endpoints.facts(head.path).endpoint
        self.parts.recorder.refused(request_id, head, endpoint, error, client.address)
        self.answer(client, head, error, request_id)

    def crashed(self, exc: Exception) -> None:
        """Record an error that is a bug."""
        self.parts.recorder.crashed(exc)

    def answer(
        self,
        client: Client,
        head: RequestHead | None,
        error: VeloxError,
        request_id: bytes,
        *,
        may_have_begun: bool = False,
        rates: RateHeaders | None = None,
        told: Headers = [],  # noqa: B006 - never changed
    ) -> None:
        """Write an error of Velox's own. may_have_begun: an upstream, with work for it.

        rates: of who asked. told: of the attempts.
        """
        given = None if head is None else client_id(head)
        dialect = Dialect.OPENAI if head is None else dialect_of(head, self.parts.endpoints.facts(head.path))
        headers, body = error_reply(error, request_id, may_have_begun=may_have_begun, client_id=given, dialect=dialect)
        headers += told
        if rates is not None:
            headers += rates.headers(time.monotonic_ns())
        with_body = head is None or head.method != b"HEAD"
        client.answer(error.status, headers, body, with_body=with_body, close=error.close)

    def answer_for(self, exchange: Exchange, error: VeloxError) -> None:
        """Write the error that an exchange has ended in."""
        self.answer(
            exchange.client,
            exchange.head,
            error,
            exchange.id,
            may_have_begun=exchange.may_have_begun and not exchange.awaits_retry,
            rates=exchange.rates,
            told=exchange.error_fields(),
        )

    def refuse_new(self, refuse: bool) -> None:
        """Refuse new requests from now on, or no longer: the worker's memory is used up. What runs goes on."""
        self._refuses = refuse

    # -- queue and gate ---------------------------------------------------------------------------

    def _drain_soon(self) -> None:
        if not self._drain_queued:
            self._drain_queued = True
            self.loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Take a batch off the queue, read it, let it through the gate, and start what may go."""
        self._drain_queued = False
        queue, recorder = self.queue, self.parts.recorder
        now_ns = time.monotonic_ns()
        now_s = now_ns / _NS_PER_S
        for late in queue.late(now_ns):
            self._refuse_late(late, now_ns)
        for exchange, waited_ns in queue.take(self._free_slots(), now_ns):
            exchange.taken_ns = now_ns
            if exchange.deadline_s <= now_s:
                recorder.queued[exchange.plan.priority].observe(waited_ns)
                self._correct(exchange, 0)
                exchange.on_deadline()  # its timer is due, but has not had its turn yet
            else:
                self._admit(exchange, time.monotonic_ns(), waited_ns, gate_ns=now_ns)
        if queue.n:
            self._after_drain(now_ns)

    def _admit(self, exchange: Exchange, now_ns: int, waited_ns: int = 0, *, gate_ns: int) -> bool:
        """Read a request that has left the queue, let it through the gate, and start it. False: it was refused.

        gate_ns: the same for all of one turn, so that those which are refused together learn different times to retry.
        """
        priority, recorder = exchange.plan.priority, self.parts.recorder
        n_bytes = 0 if exchange.body is None else len(exchange.body)
        if n_bytes >= _LONG_BYTES or (n_bytes and now_ns - gate_ns > self._share_ns):
            # To read it at one go would hold up the others, or in a turn whose time is over.
            recorder.queued[priority].observe(waited_ns)
            self._active.add(exchange)
            exchange.admit_large()
            return True
        try:
            exchange.read()
            read_ns = time.monotonic_ns()
            exchange.admit(gate_ns)
        except VeloxError as error:
            recorder.queued[priority].observe(waited_ns)
            self._refuse_taken(exchange, error)
            return False
        except Exception as exc:
            recorder.crashed(exc)
            self._refuse_taken(exchange, crash())
            return False
        self._active.add(exchange)
        recorder.metrics.record_admission(priority, waited_ns, read_ns - now_ns, time.monotonic_ns() - read_ns)
        return True

    def _free_slots(self) -> int:
        """Return how many exchanges more may run."""
        n_active = len(self._active)
        n_free = self.parts.limits.max_inflight - n_active
        # A copy for a mirror is no exchange, but runs at an upstream, as a second attempt does.
        n_running = n_active + self.n_hedges + self.mirrors.n_begun
        return min(n_free, self.routing.free_slots(n_running, self._n_asleep, self.loop.time()))

    async def sleep(self, seconds: float) -> None:
        """Let an exchange wait whose time has not come; others may have its place at the upstream meanwhile."""
        self.rests(1)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.rests(-1)

    def rests(self, n: int) -> None:
        """So many exchanges more have no place at an upstream, or fewer."""
        self._n_asleep += n
        if n > 0:
            self.found_capacity()

    def found_capacity(self) -> None:
        """An upstream takes more than a moment ago, though no exchange has ended."""
        self.routing.found_capacity(self.loop.time())
        if len(self.queue):
            self._drain_soon()

    def _refuse_late(self, late: Exchange, now_ns: int) -> None:
        if late.deadline_s <= now_ns / _NS_PER_S:
            late.on_deadline()
            return
        waited_s = (now_ns - late.started_ns) / _NS_PER_S
        message = f"this request waited {waited_s:.1f} s in the queue, which is as long as it may (VELOX_QUEUE_TIMEOUT)"
        if waited_s < self.parts.limits.queue_timeout_s:
            message = f"this request waited {waited_s:.1f} s in the queue: this worker is overloaded"
        late.refuse(VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0))

    def _refuse_taken(self, exchange: Exchange, error: VeloxError) -> None:
        self._correct(exchange, 0)
        exchange.refuse(error)

    def _correct(self, exchange: Exchange, tokens: int) -> None:
        """Tell the queue what a request really cost that its caller was charged for when it left the queue."""
        if tokens != exchange.cost:
            self.queue.correct(
                exchange.plan.caller.id,
                tokens - exchange.cost,
                priority=exchange.plan.priority,
                taken_ns=exchange.taken_ns,
            )

    def _after_drain(self, now_ns: int) -> None:
        """More to do: at the next turn if there is room, else when a slot is free or the first is too late."""
        if self._free_slots() > 0:
            self._drain_soon()
        elif self._late_timer is None:
            deadline_ns = self.queue.next_deadline_ns
            assert deadline_ns is not None, "a queue that is not empty has a first deadline"
            delay_s = max(0, deadline_ns - now_ns) / _NS_PER_S
            self._late_timer = self.loop.call_later(delay_s, self._on_late)

    def _on_late(self) -> None:
        self._late_timer = None
        self._drain_soon()

    # -- the end of an exchange ---------------------------------------------------------------------

    def account(self, exchange: Exchange, reason: Reason | None, status: int, tokens: int) -> None:
        """Free the slot and record how it ended. tokens: what it really cost, as far as that is known."""
        self._active.discard(exchange)
        queue, waiters = self.queue, self.routing.waiters
        now_ns = time.monotonic_ns()
        if exchange.n_attempts and not exchange.is_tunnel:
            # What was refused behind the gate took no server's time, and a tunnel's says nothing of a request's.
            queue.serviced(now_ns - exchange.taken_ns)
        if tokens != exchange.cost:
            self._correct(exchange, tokens)
        if not exchange.is_accounted:
            self.parts.recorder.ended(exchange, reason, status, now_ns)
        if waiters.n_waiting:
            waiters.notify(self.loop.time())
        if queue.n:
            self._drain_soon()

    def sweep(self, now_s: float) -> None:
        """Look at the deadlines of all exchanges, and publish the gauges."""
        self._swept_s = now_s
        self._looks.begin(self._active)
        self._sockets.sweep(now_s, is_short_of_memory=self._refuses)
        routing, tunnels = self.routing, self.parts.tunnels
        if self._free_slots() > 0:
            self.found_capacity()  # another upstream is the first one now
        self.parts.recorder.tunnels(tunnels.n_open, tunnels.moved())
        self.parts.recorder.upstream_concurrency(*routing.concurrency())
        self.parts.recorder.gauges(
            self.queue.depth_by_class, len(self._active), routing.statistics(), routing.publish(now_s)
        )

    def _look(self, exchange: Exchange) -> None:
        if exchange in self._active:  # still
            exchange.check_deadlines(self._swept_s, self.parts.limits)

    def end_drains(self) -> None:
        """Read on no stream whose client has left."""
        for exchange in tuple(self._active):
            exchange.end_drain()

    def fail_all(self, error: VeloxError) -> None:
        """The end of a drain: what still runs is ended, and its clients are told."""
        for exchange in tuple(self._active):
            exchange.fail(error)
        queue = self.queue
        while len(queue):
            for exchange, _ in queue.take(len(queue), time.monotonic_ns()):
                exchange.refuse(error)
        self._sockets.close_all(error.message)


def _retry_after_s(wait_ns: int) -> float:
    """Return when to come back to a queue that a newcomer would wait `wait_ns` in; 0: not known."""
    return wait_ns / _NS_PER_S if wait_ns else 1.0
