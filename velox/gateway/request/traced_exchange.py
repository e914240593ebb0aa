"""An exchange that is traced: its attempts are noted, and each tells its upstream whose span it is.

Knows: which step of an exchange begins and ends an attempt. Does not know: which requests are exported (tracing.py),
or what a span says (observe/traces/spans.py).

Plain where the exchange is compiled: gateways that trace nothing have none of these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.access.plan import RequestPlan
from velox.gateway.cluster.group import Attempt, RetryDecision
from velox.gateway.cluster.routing import ResolvedRoute
from velox.gateway.limits.metering import metered
from velox.gateway.reply.capture import ReplyCapture
from velox.gateway.reply.headers import AttemptFields
from velox.gateway.request.exchange import ExchangeOwner
from velox.gateway.request.timed_exchange import TimedExchange
from velox.gateway.tracing import Tracer
from velox.gateway.translation.prepared import LocalAnswer, Prepared
from velox.heads import ExtraFields, RequestHead
from velox.net.application import Client
from velox.net.upstream.interface import UpstreamRequest
from velox.observe.traces.record import MOST_CHARS, AttemptRecord, ContentRecord, SpanIds
from velox.policy.limits.estimate import NO_TOKENS
from velox.protocol.trace_context import TRACEPARENT, TRACESTATE, traceparent

__all__ = ["TracedExchange", "with_parent"]

_OWN: Final = frozenset({TRACEPARENT, TRACESTATE})
_NO_EXTRAS: Final = ExtraFields(frozenset(), b"")


class TracedExchange(TimedExchange):
    """One request and its reply, with its spans."""

    __slots__ = ("_asked", "_came_as", "_capture", "_cause", "_of_attempts", "_span_ids", "_tracer")

    def __init__(
        self,
        gateway: ExchangeOwner,
        client: Client,
        head: RequestHead,
        body: bytes | bytearray | None,
        plan: RequestPlan,
        tracer: Tracer,
    ) -> None:
        super().__init__(gateway, client, head, body, plan)
        self._tracer = tracer
        self._span_ids = tracer.begin(head)
        self._came_as = head
        self._of_attempts: list[tuple[Attempt, AttemptRecord]] = []
        self._cause = ""  # of the attempt that comes next
        self._asked: bytes | None = None  # of the request, where content is exported
        self._capture: ReplyCapture | None = None

    def span_ids(self) -> SpanIds:
        """See RequestContext."""
        return self._span_ids

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
        if not is_metered and self._meter is None and self.plan.names_model and self._span_ids.is_sampled:
            self._meter, filters, self.body = metered(self.body, self.fields, self.plan.endpoint, self.plan.dialect)
            self._add_filters(filters)
        return super()._begin_first_attempt(route)

    # -- its attempts ---------------------------------------------------------------------------------

    def attempt_began(self, attempt: Attempt) -> AttemptFields:
        """As an exchange does."""
        member = attempt.member
        record = AttemptRecord(
            self._tracer.span_id(),
            member.name,
            member.entry.provider,
            member.address,
            (attempt.asked(self.fields.model) or "")[:MOST_CHARS],
            self._span_ids.now(),
            cause=self._cause,
        )
        self._cause = ""
        self._span_ids.attempts.append(record)
        self._of_attempts.append((attempt, record))
        return super().attempt_began(attempt)

    def prepare(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """As an exchange does."""
        self._head_for(attempt)
        return super().prepare(attempt)

    async def prepare_in_thread(self, attempt: Attempt) -> UpstreamRequest | Prepared | LocalAnswer:
        """As an exchange does."""
        self._head_for(attempt)
        return await super().prepare_in_thread(attempt)

    def _head_for(self, attempt: Attempt) -> None:
        """Have the upstream told whose span its own are below."""
        record = next((record for known, record in self._of_attempts if known is attempt), None)
        if record is not None and self._tracer.reads_context:
            ids = self._span_ids
            field = traceparent(ids.trace_id, record.span_id, is_sampled=ids.is_sampled)
            self.head = with_parent(self._came_as, field, keeps_state=bool(ids.state))

    def attempt_failed(self, upstream: str, failure: VeloxError) -> None:
        """As an exchange does."""
        super().attempt_failed(upstream, failure)
        record = self._open(upstream)
        if record is not None:
            record.end_ns = self._span_ids.now()
            is_status = failure.reason is Reason.UPSTREAM_STATUS
            record.status = failure.status if is_status else 0
            record.error = str(failure.status) if is_status else failure.reason.code

    def attempt_chosen(self, attempt: Attempt) -> None:
        """As an exchange does: of two at a time the other one is over, and stands before this one."""
        super().attempt_chosen(attempt)
        now_ns = self._span_ids.now()
        for known, record in self._of_attempts:
            if known is not attempt and not record.end_ns:
                record.end_ns, record.error = now_ns, "hedged"
        self._span_ids.attempts.sort(key=lambda record: not record.end_ns)

    def _open(self, upstream: str) -> AttemptRecord | None:
        found = [record for _, record in self._of_attempts if record.upstream == upstream and not record.end_ns]
        return found[0] if found else None

    async def _wait_for_retry(self, decision: RetryDecision) -> None:
        self._cause = decision.cause.name.lower()
        await super()._wait_for_retry(decision)

    # -- the end --------------------------------------------------------------------------------------

    def _settle_end(self, error: VeloxError | None) -> int:
        if self.spent is None and self._meter is not None and error is None and self.was_sent:
            self.spent = self._spending(None, is_whole=True)
        return super()._settle_end(error)

    def _end(self, error: VeloxError | None) -> None:
        self._of_attempts.clear()  # they lead to what the request was
        super()._end(error)


def with_parent(head: RequestHead, field: bytes, *, keeps_state: bool) -> RequestHead:
    """Return a head with this traceparent in the place of its own. keeps_state: its tracestate means something."""
    names = [name for name, _ in head.shape.fields]
    n_parents, n_states = names.count(TRACEPARENT), names.count(TRACESTATE)
    extras = head.extras or _NO_EXTRAS
    is_state_here = n_states > 0 or TRACESTATE in extras.names
    if n_parents == 0 and (keeps_state or not is_state_here) and TRACEPARENT not in extras.names:
        lines = b"%btraceparent: %b\r\n" % (extras.lines, field)
        return RequestHead(
            head.shape, head.values, head.content_length, ExtraFields(extras.names | {TRACEPARENT}, lines)
        )
    if n_parents == 1 and (keeps_state or not is_state_here) and (TRACEPARENT, None) in head.shape.fields:
        volatile = [name for name, value in head.shape.fields if value is None]
        values = list(head.values)
        values[volatile.index(TRACEPARENT)] = field
        return RequestHead(head.shape, tuple(values), head.content_length, head.extras)
    dropped = {TRACEPARENT} if keeps_state else _OWN
    fields = (*(each for each in head.headers if each[0] not in dropped), (TRACEPARENT, field))
    shape = replace(head.shape, fields=fields, is_shared=False, credential_at=-1)
    return RequestHead(shape, (), head.content_length)
