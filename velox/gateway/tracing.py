"""What is noted of each request for its trace, beside what every gateway records of it.

Knows: which request is traced, and what of it is noted. Does not know: spans (observe/traces), or who sends them.

Plain where the recorder is compiled. It is made for gateways that trace; others have a Recorder, and none of this.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from typing import Final, NamedTuple

from velox.errors import Reason, VeloxError
from velox.gateway.limits.calls import Spending
from velox.gateway.recorder import Recorder
from velox.gateway.request_context import RequestContext
from velox.gateway.trace_heads import TraceHeads
from velox.heads import RequestHead
from velox.observe.access_log import AccessLog
from velox.observe.metrics import CallSeries, WorkerMetrics
from velox.observe.traces.record import MOST_CHARS, SpanIds, TraceRecord, packed
from velox.observe.traces.sampling import Sampler, TailRules
from velox.observe.traces.socket_capture import CaptureRoom, SocketCapture
from velox.policy.proxies import NO_PROXIES, TrustedProxies
from velox.policy.routes.sessions import session_of
from velox.protocol.trace_context import parent_of
from velox.types import Endpoint

__all__ = ["ContentBounds", "Tracer", "TracingRecorder"]

_ID_BITS: Final = 64
_TRACE_BITS: Final = 128


class ContentBounds(NamedTuple):
    """Whose content is exported, and how much of it is kept. routes: their names; "*": of all.

    socket_bytes: of each side of a WebSocket, which may be open for hours.
    """

    routes: frozenset[str] = frozenset()
    request_bytes: int = 0
    reply_bytes: int = 0
    socket_bytes: int = 0

    def takes(self, route: str) -> bool:
        """Say whether content of this route is exported."""
        return route in self.routes or "*" in self.routes


_NO_CONTENT: Final = ContentBounds()


class Tracer:
    """Makes ids and hands records on, in one worker. put: takes a record; False: there was no room for it.

    on_dropped: called with how many were not taken. reads_context: see TraceSettings.

    unsampled: returns the head that goes up of a request that nothing is noted of, or the trace that one of which is
    begins (TraceHeads). Where rules look at how a request ended, all are noted.
    """

    def __init__(
        self,
        sampler: Sampler,
        tail: TailRules,
        put: Callable[[bytes], bool],
        on_dropped: Callable[[int], None],
        content: ContentBounds = _NO_CONTENT,
        *,
        reads_context: bool = True,
    ) -> None:
        self.content: Final = content
        self.reads_context: Final = reads_context
        self._sampler: Final = sampler
        self._tail: Final = tail
        self._put: Final = put
        self._on_dropped: Final = on_dropped
        self._room: Final = CaptureRoom()
        self._random: Final = random.Random(os.urandom(32))
        self.unsampled: Callable[[RequestHead], RequestHead | int] = _all_noted
        if not tail:
            heads = TraceHeads(sampler, self._random.getrandbits)
            self.unsampled = heads.unsampled if reads_context else self._unread

    def __repr__(self) -> str:
        return "<Tracer>"

    def begin(self, head: RequestHead | None, trace: int = 0) -> SpanIds:
        """Return the ids of a request. trace: the number of the trace that it begins, if that was chosen already."""
        parent = parent_of(head.headers) if head is not None and self.reads_context and not trace else None
        if parent is not None:
            trace_id = parent.trace_id
        else:
            trace_id = (trace or self._random.getrandbits(_TRACE_BITS) or 1).to_bytes(_TRACE_BITS // 8, "big")
        return SpanIds(trace_id, self.span_id(), parent, is_sampled=self._sampler.wants(trace_id, parent))

    def _unread(self, head: RequestHead) -> RequestHead | int:
        """Do as `unsampled`, where no context of the client's is read, nor one sent."""
        number = self._random.getrandbits(_TRACE_BITS) or 1
        return number if self._sampler.wants_root(number) else head

    def span_id(self) -> bytes:
        """Return a new id, which is not all zeros."""
        return (self._random.getrandbits(_ID_BITS) or 1).to_bytes(8, "big")

    def capture(self, route: str) -> SocketCapture | None:
        """Return what reads the messages of a WebSocket on a route; None: its content is not exported."""
        return SocketCapture(self.content.socket_bytes, self._room) if self.content.takes(route) else None

    def wants(self, ids: SpanIds, *, failed: bool, took_ns: int) -> bool:
        """Say whether a request is exported that has ended."""
        return ids.is_sampled or self._tail.wants(failed=failed, took_ns=took_ns)

    def end(self, record: TraceRecord) -> None:
        """Hand a record on."""
        if not self._put(packed(record)):
            self._on_dropped(1 + len(record.attempts))


def _all_noted(_head: RequestHead) -> RequestHead | int:
    return 0


class TracingRecorder(Recorder):
    """Records as a Recorder does, and notes traces."""

    def __init__(
        self,
        metrics: WorkerMetrics,
        log: AccessLog,
        logger: logging.Logger,
        id_prefix: str,
        series: CallSeries,
        proxies: TrustedProxies = NO_PROXIES,
        *,
        tracer: Tracer,
    ) -> None:
        super().__init__(metrics, log, logger, id_prefix, series, proxies)
        self.tracer: Final = tracer

    def refused(
        self, request_id: bytes, head: RequestHead | None, endpoint: Endpoint, error: VeloxError, address: str
    ) -> None:
        """As a Recorder does: a request that never became an exchange has a span, too."""
        super().refused(request_id, head, endpoint, error, address)
        if head is None:
            return
        ids = self.tracer.begin(head)
        if not self.tracer.wants(ids, failed=True, took_ns=0):
            return
        now_ns = ids.now()
        self.tracer.end(
            TraceRecord(
                ids.trace_id,
                ids.span_id,
                ids.parent_id,
                ids.state,
                ids.is_sampled,
                now_ns,
                now_ns,
                request_id.decode(),
                head.method.decode("ascii", "replace")[:MOST_CHARS],
                head.path.decode("ascii", "replace")[:MOST_CHARS],
                endpoint.name.lower(),
                error.status,
                error.reason.code,
                address=self._proxies.client_of(address, head.headers) or address,
            )
        )

    def ended(self, exchange: RequestContext, reason: Reason | None, status: int, now_ns: int) -> None:
        """As a Recorder does."""
        super().ended(exchange, reason, status, now_ns)
        ids = exchange.span_ids()
        if ids is None:  # nothing was noted of it
            return
        total_ns = now_ns - exchange.started_ns
        if not self.tracer.wants(ids, failed=reason is not None or status >= 400, took_ns=total_ns):
            return
        self.tracer.end(_record(exchange, ids, reason, status, now_ns, self._proxies))


def _record(
    exchange: RequestContext,
    ids: SpanIds,
    reason: Reason | None,
    status: int,
    now_ns: int,
    trusted: TrustedProxies,
) -> TraceRecord:
    end_ns = ids.at(now_ns)
    plan, reply, spent, caller = exchange.plan, exchange.reply, exchange.spent, exchange.plan.caller
    head, first_ns = exchange.head, None
    if reply is not None and reply.first_byte_ns:
        first_ns = reply.first_byte_ns - exchange.started_ns
    if ids.attempts:
        last, is_open = ids.attempts[-1], exchange.is_tunnel and first_ns is not None
        # That of a WebSocket is over with the upstream's 101, or its refusal.
        last.end_ns = last.end_ns or (ids.at(exchange.started_ns + (first_ns or 0)) if is_open else end_ns)
        if reply is not None and reply.started:
            last.status = last.status or reply.status
        if reason is not None and not is_open and not last.error and not (last.status >= 400):
            last.error = reason.code
    address = exchange.client.address
    return TraceRecord(
        ids.trace_id,
        ids.span_id,
        ids.parent_id,
        ids.state,
        ids.is_sampled,
        ids.at(exchange.started_ns),
        end_ns,
        exchange.id.decode(),
        head.method.decode("ascii", "replace"),
        head.path.decode("ascii", "replace")[:MOST_CHARS],
        plan.endpoint.name.lower(),
        reply.status if reply is not None and reply.started else status,
        "" if reason is None else reason.code,
        (exchange.fields.model or "")[:MOST_CHARS],
        exchange.fields.stream,
        exchange.is_tunnel,
        exchange.call_kind()[0] if exchange.n_attempts else "",
        caller.account or caller.id.hex(),
        caller.name,
        caller.terms.team,
        (session_of(head, None if exchange.is_large else exchange.body) or "")[:MOST_CHARS],
        trusted.client_of(address, head.headers) or address,
        first_ns,
        *_spent(spent),
        ", ".join(exchange.tried),
        ids.attempts,
        exchange.content(),
    )


def _spent(spent: Spending | None) -> tuple[int | None, int | None, int | None, int | None, int | None, int | None]:
    """Return what a request took, as a record has it: kinds of tokens, and the cost."""
    if spent is None:
        return None, None, None, None, None, None
    return spent.input, spent.output, spent.cached, spent.cache_written, spent.reasoning, spent.cost_nano
