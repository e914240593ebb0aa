"""The spans of one request's attempts: what is noted of each, and what its upstream is told.

Knows: which event of an attempt begins or ends its span. Does not know: whether the request is one for a WebSocket
(websocket/traced_tunnel.py) or any other (traced_exchange.py), or what a span says (observe/traces/spans.py).
"""

from __future__ import annotations

from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.cluster.group import Attempt
from velox.gateway.trace_heads import with_parent
from velox.gateway.tracing import Tracer
from velox.heads import RequestHead
from velox.observe.traces.record import MOST_CHARS, AttemptRecord, SpanIds
from velox.protocol.trace_context import traceparent

__all__ = ["AttemptSpans"]


class AttemptSpans:
    """Of one request. ids: its own. came_as: its head, as the client sent it. cause: of the attempt that comes next."""

    __slots__ = ("_attempts", "_came_as", "_tracer", "cause", "ids")

    def __init__(self, tracer: Tracer, ids: SpanIds, came_as: RequestHead) -> None:
        self.ids: Final = ids
        self.cause = ""
        self._tracer: Final = tracer
        self._came_as: Final = came_as
        self._attempts: Final[list[tuple[Attempt, AttemptRecord]]] = []

    def __repr__(self) -> str:
        return f"<AttemptSpans {len(self._attempts)}>"

    def began(self, attempt: Attempt, model: str | None) -> None:
        """Note where the request goes now. model: that its client named."""
        member = attempt.member
        record = AttemptRecord(
            self._tracer.span_id(),
            member.name,
            member.entry.provider,
            member.address,
            (attempt.asked(model) or "")[:MOST_CHARS],
            self.ids.now(),
            cause=self.cause,
        )
        self.cause = ""
        self.ids.attempts.append(record)
        self._attempts.append((attempt, record))

    def head_for(self, attempt: Attempt, head: RequestHead) -> RequestHead:
        """Return what tells the attempt's upstream whose span its own are below. head: where nothing is told."""
        record = next((record for known, record in self._attempts if known is attempt), None)
        if record is None or not self._tracer.reads_context:
            return head
        ids = self.ids
        field = traceparent(ids.trace_id, record.span_id, is_sampled=ids.is_sampled)
        return with_parent(self._came_as, field, keeps_state=bool(ids.state))

    def failed(self, upstream: str, failure: VeloxError) -> None:
        """Note how an attempt ended that another one follows, or is beside."""
        record = next((each for _, each in self._attempts if each.upstream == upstream and not each.end_ns), None)
        if record is not None:
            record.end_ns = self.ids.now()
            is_status = failure.reason is Reason.UPSTREAM_STATUS
            record.status = failure.status if is_status else 0
            record.error = str(failure.status) if is_status else failure.reason.code

    def chosen(self, attempt: Attempt) -> None:
        """Of two at a time the other one is over, and stands before this one."""
        now_ns = self.ids.now()
        for known, record in self._attempts:
            if known is not attempt and not record.end_ns:
                record.end_ns, record.error = now_ns, "hedged"
        self.ids.attempts.sort(key=lambda record: not record.end_ns)

    def clear(self) -> None:
        """Let go of the attempts: they lead to what the request was."""
        self._attempts.clear()
