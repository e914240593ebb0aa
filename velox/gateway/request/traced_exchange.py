"""An exchange that is traced: its attempts are noted, and each tells its upstream whose span it is.

Knows: which step of an exchange begins and ends an attempt. Does not know: which requests are traced (tracing.py), or
what is noted of an attempt (attempt_spans.py).

Plain where the exchange is compiled: gateways that trace nothing have none of these.
"""

from __future__ import annotations

from velox.errors import VeloxError
from velox.gateway.access.plan import RequestPlan
from velox.gateway.cluster.group import Attempt, RetryDecision
from velox.gateway.cluster.routing import ResolvedRoute
from velox.gateway.limits.metering import metered
from velox.gateway.reply.capture import ReplyCapture
from velox.gateway.reply.headers import AttemptFields
from velox.gateway.request.attempt_spans import AttemptSpans
from velox.gateway.request.exchange import ExchangeOwner
from velox.gateway.request.timed_exchange import TimedExchange
from velox.gateway.tracing import Tracer
from velox.gateway.translation.prepared import LocalAnswer, Prepared
from velox.heads import RequestHead
from velox.net.application import Client
from velox.net.upstream.interface import UpstreamRequest
from velox.observe.traces.record import ContentRecord, SpanIds
from velox.policy.limits.estimate import NO_TOKENS

__all__ = ["TracedExchange"]


class TracedExchange(TimedExchange):
    """One request and its reply, with its spans."""

    __slots__ = ("_asked", "_capture", "_spans", "_tracer")

    def __init__(
        self,
        gateway: ExchangeOwner,
        client: Client,
        head: RequestHead,
        body: bytes | bytearray | None,
        plan: RequestPlan,
        tracer: Tracer,
        ids: SpanIds,
    ) -> None:
        super().__init__(gateway, client, head, body, plan)
        self._tracer = tracer
        self._spans = AttemptSpans(tracer, ids, head)
        self._asked: bytes | None = None  # of the request, where content is exported
        self._capture: ReplyCapture | None = None

    def span_ids(self) -> SpanIds:
        """See RequestContext."""
        return self._spans.ids

    def content(self) -> ContentRecord | None:
        """See RequestContext."""
        asked, capture = self._asked, self._capture
        if asked is None or capture is None:
            return None
        is_cut = capture.is_cut or len(asked) == self._tracer.content.request_bytes
        return ContentRecord(asked, capture.kept, capture.is_stream, is_cut)

    def _begin_first_attempt(self, route: ResolvedRoute) -> Attempt | None:
        bounds = self._tracer.content
        if self._capture is None and bounds.takes(route.parts.entry.name) and self.body is not None:
            self._asked = bytes(self.body[: bounds.request_bytes])
            self._capture = ReplyCapture(bounds.reply_bytes)
            self._add_filters((self._capture,))
        is_metered = self._reservation.estimate is not NO_TOKENS or self._calls is not None
        if not is_metered and self._meter is None and self.plan.names_model and self._spans.ids.is_sampled:
            self._meter, filters, self.body = metered(self.body, self.fields, self.plan.endpoint, self.plan.dialect)
            self._add_filters(filters)
        return super()._begin_first_attempt(route)

    # -- its attempts ---------------------------------------------------------------------------------

    def attempt_began(self, attempt: Attempt) -> AttemptFields:
        """As an exchange does."""
        self._spans.began(attempt, self.fields.model)
        return super().attempt_began(attempt)

    def prepare(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """As an exchange does."""
        self.head = self._spans.head_for(attempt, self.head)
        return super().prepare(attempt)

    async def prepare_in_thread(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """As an exchange does."""
        self.head = self._spans.head_for(attempt, self.head)
        return await super().prepare_in_thread(attempt)

    def attempt_failed(self, upstream: str, failure: VeloxError) -> None:
        """As an exchange does."""
        super().attempt_failed(upstream, failure)
        self._spans.failed(upstream, failure)

    def attempt_chosen(self, attempt: Attempt) -> None:
        """As an exchange does: of two at a time the other one is over, and stands before this one."""
        super().attempt_chosen(attempt)
        self._spans.chosen(attempt)

    async def _wait_for_retry(self, decision: RetryDecision) -> None:
        self._spans.cause = decision.cause.name.lower()
        await super()._wait_for_retry(decision)

    # -- the end --------------------------------------------------------------------------------------

    def _settle_end(self, error: VeloxError | None) -> int:
        if self.spent is None and self._meter is not None and error is None and self.was_sent:
            self.spent = self._spending(None, is_whole=True)
        return super()._settle_end(error)

    def _end(self, error: VeloxError | None) -> None:
        self._spans.clear()
        super()._end(error)
