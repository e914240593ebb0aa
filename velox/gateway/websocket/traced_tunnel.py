"""A request for a WebSocket that is traced: with the spans of its attempts, which end with the upstream's 101.

Knows: which step of a tunnel begins an attempt. Does not know: what is noted of one (request/attempt_spans.py).

Plain where the tunnel is compiled: gateways that trace nothing have none of these.
"""

from __future__ import annotations

from velox.errors import VeloxError
from velox.gateway.access.plan import RequestPlan
from velox.gateway.cluster.group import Attempt, RetryDecision
from velox.gateway.reply.headers import AttemptFields
from velox.gateway.request.attempt_spans import AttemptSpans
from velox.gateway.request.exchange import ExchangeOwner
from velox.gateway.tracing import Tracer
from velox.gateway.translation.prepared import LocalAnswer, Prepared
from velox.gateway.websocket.tunnel import TunnelExchange
from velox.heads import RequestHead
from velox.net.application import Client
from velox.net.upstream.interface import UpstreamRequest
from velox.observe.traces.record import SpanIds

__all__ = ["TracedTunnel"]


class TracedTunnel(TunnelExchange):
    """One request for a WebSocket, with its spans."""

    __slots__ = ("_spans",)

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
        self._spans = AttemptSpans(tracer, ids, head)

    def span_ids(self) -> SpanIds:
        """See RequestContext."""
        return self._spans.ids

    def attempt_began(self, attempt: Attempt) -> AttemptFields:
        """As any exchange does."""
        self._spans.began(attempt, self.fields.model)
        return super().attempt_began(attempt)

    def prepare(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """As a tunnel does."""
        self.head = self._spans.head_for(attempt, self.head)
        return super().prepare(attempt)

    def attempt_failed(self, upstream: str, failure: VeloxError) -> None:
        """As any exchange does."""
        super().attempt_failed(upstream, failure)
        self._spans.failed(upstream, failure)

    async def _wait_for_retry(self, decision: RetryDecision) -> None:
        self._spans.cause = decision.cause.name.lower()
        await super()._wait_for_retry(decision)

    def _end(self, error: VeloxError | None) -> None:
        self._spans.clear()
        super()._end(error)
