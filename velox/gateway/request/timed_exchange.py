"""An exchange whose client is told what took how long: it notes the moments that no other exchange looks at.

Knows: which step of an exchange a moment is of. Does not know: what a client is told (reply/timing.py; litellm.py,
where the gateway tells what LiteLLM does).

Plain where the exchange is compiled: it is for those who look at single requests, not for all of them.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from velox.gateway.access.plan import RequestPlan
from velox.gateway.cluster.group import Attempt
from velox.gateway.cluster.routing import ResolvedRoute
from velox.gateway.limits.cost_filter import CostFilter
from velox.gateway.reply.headers import AttemptFields
from velox.gateway.reply.reply import Reply
from velox.gateway.reply.timing import Moments, TimingFilter
from velox.gateway.request.exchange import Exchange, ExchangeOwner, Step, StepAnswer
from velox.gateway.request.litellm import LitellmFilter, cost_fields, duration_fields, place_fields
from velox.gateway.translation.prepared import LocalAnswer, Prepared
from velox.gateway.upstreams.member import Member
from velox.heads import Headers, RequestHead
from velox.net.application import Client
from velox.net.upstream.interface import UpstreamConnection, UpstreamRequest
from velox.outcomes import CacheResult
from velox.types import Timing

__all__ = ["TimedExchange"]

_NS_PER_MS: Final = 1_000_000
_NOTHING: Final = b"0.000000000"


class TimedExchange(Exchange):
    """One request and its reply, with the moments between."""

    __slots__ = ("_moments", "_step_ns")

    def __init__(
        self,
        gateway: ExchangeOwner,
        client: Client,
        head: RequestHead,
        body: bytes | bytearray | None,
        plan: RequestPlan,
    ) -> None:
        super().__init__(gateway, client, head, body, plan)
        # The loop's clock has whole milliseconds, of when the turn began; both are the monotonic one.
        turn_ms, now_ms = int(gateway.loop.time() * 1000), self.started_ns // _NS_PER_MS
        self._moments = Moments(self.started_ns, max(now_ms - turn_ms, 0) * _NS_PER_MS)
        self._step_ns = 0  # when the last step of the admission was taken
        self._steps = _noting(self._steps)

    # -- the steps --------------------------------------------------------------------------------

    def read(self) -> None:
        """As an exchange does."""
        self._left_queue()
        try:
            super().read()
        finally:
            self._was_read()

    async def _read_in_steps(self) -> None:
        self._left_queue()
        try:
            await super()._read_in_steps()
        finally:
            self._was_read()

    def _left_queue(self) -> None:
        self._moments.queue_ns = self.taken_ns - self.started_ns
        self._step_ns = time.monotonic_ns()

    def _was_read(self) -> None:
        self._moments.parse_ns = self._since_last_step()

    def _since_last_step(self) -> int:
        now_ns = time.monotonic_ns()
        took_ns, self._step_ns = now_ns - self._step_ns, now_ns
        return took_ns

    def note_limit(self, _now_ns: int) -> StepAnswer:
        """Note the end of a step that belongs to limits."""
        self._moments.limit_ns += self._since_last_step()
        return None

    def note_route(self, _now_ns: int) -> StepAnswer:
        """Note the end of a step that belongs to its route."""
        self._moments.route_ns += self._since_last_step()
        return None

    async def _wait_for_turn(self, wait_ns: int) -> None:
        self._since_last_step()
        await super()._wait_for_turn(wait_ns)
        self._moments.limit_ns += self._since_last_step()

    def _begin_first_attempt(self, route: ResolvedRoute) -> Attempt | None:
        self._since_last_step()
        try:
            return super()._begin_first_attempt(route)
        finally:
            self._moments.route_ns += self._since_last_step()

    async def _wait_for_capacity(self) -> Attempt:
        attempt = await super()._wait_for_capacity()
        self._moments.route_ns += self._since_last_step()
        return attempt

    def _make_reply(self) -> Reply:
        others, plan = self._filters, self.plan
        if plan.timing:  # else it is timed for another reason
            self._add_filters((TimingFilter(self._moments, to_end=plan.timing is Timing.STREAM),))
        if plan.is_litellms:
            self._tell_as_litellm()
        try:
            return super()._make_reply()
        finally:
            self._filters = others  # they read no reply: what is asked of those does not hold for them

    def _tell_as_litellm(self) -> None:
        """Have the reply tell what LiteLLM's do. The head of an answer waits for its cost, unless it does already."""
        cost = next((each for each in self._filters if isinstance(each, CostFilter)), None)
        if cost is None and self._calls is not None and self._meter is not None and not self.fields.stream:
            known = partial(self._calls.cost_by, self._meter)
            cost = CostFilter(known, self.gateway.parts.tunnels.bodies, is_told=False)
            self._add_filters((cost,))
        self._add_filters((LitellmFilter(self._litellm_fields, cost),))

    def _litellm_fields(self) -> Headers:
        """Return them as they are now, but for the cost."""
        fields: Headers = [(b"x-litellm-call-id", self.id)]
        answering, now_ns = self._answering, time.monotonic_ns()
        if self.cached is CacheResult.HIT:
            fields += cost_fields(_NOTHING)
        if answering is not None:
            before = self.tried[: self.n_attempts - 1]  # the last one is there, too, if nothing follows on it
            fields += place_fields(self.fields.model, self.upstream, answering.member.address, before)
        if self.plan.caller.terms.timing:
            fields += duration_fields(now_ns - self.started_ns, self._moments.upstream_ns(now_ns))
        return fields

    # -- what its attempts ask for ------------------------------------------------------------------

    def attempt_began(self, attempt: Attempt) -> AttemptFields:
        """As an exchange does."""
        self._moments.begin(time.monotonic_ns())
        return super().attempt_began(attempt)

    def prepare(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """As an exchange does."""
        began_ns = time.monotonic_ns()
        try:
            return super().prepare(attempt)
        finally:
            self._was_prepared(began_ns)

    async def prepare_in_thread(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """As an exchange does."""
        began_ns = time.monotonic_ns()
        try:
            return await super().prepare_in_thread(attempt)
        finally:
            self._was_prepared(began_ns)

    def _was_prepared(self, began_ns: int) -> None:
        now_ns, moments = time.monotonic_ns(), self._moments.attempt
        if moments is not None:
            moments.prepared_ns, moments.sent_ns = now_ns - began_ns, now_ns

    async def lease(self, member: Member) -> UpstreamConnection:
        """As an exchange does."""
        began_ns = time.monotonic_ns()
        try:
            return await super().lease(member)
        finally:
            now_ns, moments = time.monotonic_ns(), self._moments.attempt
            if moments is not None:
                moments.connected_ns, moments.sent_ns = now_ns - began_ns, now_ns

    def error_fields(self) -> Headers:
        """As an exchange does, and what took how long up to the error."""
        told = super().error_fields()
        if self.plan.timing:
            told = [*told, self._moments.field(time.monotonic_ns(), is_reply=False)]
        return [*told, *self._litellm_fields()] if self.plan.is_litellms else told


def _noting(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return steps of an admission, each with the note of its end behind it."""
    noted: list[Step] = []
    for step in steps:
        noted.append(step)
        noted.append(_note_route if step is Exchange.find_route else _note_limit)
    return tuple(noted)


def _note_limit(exchange: Exchange, now_ns: int) -> StepAnswer:
    assert isinstance(exchange, TimedExchange), "these steps are of such"
    return exchange.note_limit(now_ns)


def _note_route(exchange: Exchange, now_ns: int) -> StepAnswer:
    assert isinstance(exchange, TimedExchange), "these steps are of such"
    return exchange.note_route(now_ns)
