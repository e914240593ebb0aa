"""What is recorded of an exchange: metrics, the access log, its id. Always from here, so that all tell the same.

Knows: which series and which line an end goes to. Does not know: how they are stored (observe/).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from velox.errors import Reason, VeloxError
from velox.gateway.limits.calls import Spending
from velox.gateway.limits.reservation import Spent
from velox.gateway.request_context import RequestContext
from velox.gateway.upstreams.member import Member
from velox.heads import RequestHead
from velox.net.upstream.interface import UpstreamFailure
from velox.net.upstream.pool import PoolStatistics
from velox.observe.access_log import AccessLog, AccessRecord
from velox.observe.log_time import log_time
from velox.observe.metrics import CallRow, CallSeries, WorkerMetrics
from velox.observe.oplog import crash_text
from velox.outcomes import (
    SHED_REASONS,
    AttemptOutcome,
    CacheResult,
    Drained,
    Hedged,
    JoinResult,
    Mirrored,
    Retry,
    RetryDenied,
    StreamEnd,
)
from velox.policy.budgets.budget import NANO_PER_USD
from velox.policy.proxies import NO_PROXIES, TrustedProxies
from velox.policy.routes.sessions import session_of
from velox.types import ApiKind, Endpoint, Priority

__all__ = ["Recorder", "outcome_of", "outcome_of_failure"]

_ATTEMPTS: Final = {
    Reason.UPSTREAM_DNS: AttemptOutcome.CONNECT_ERROR,
    Reason.UPSTREAM_CONNECT: AttemptOutcome.CONNECT_ERROR,
    Reason.UPSTREAM_TLS: AttemptOutcome.TLS_ERROR,
    Reason.UPSTREAM_CREDENTIALS: AttemptOutcome.CONNECT_ERROR,
    Reason.UPSTREAM_RESET: AttemptOutcome.RESET,
    Reason.UPSTREAM_PROTOCOL: AttemptOutcome.PROTOCOL,
    Reason.UPSTREAM_REDIRECT: AttemptOutcome.PROTOCOL,
    Reason.UPSTREAM_TTFB_TIMEOUT: AttemptOutcome.TIMEOUT,
    Reason.UPSTREAM_IDLE_TIMEOUT: AttemptOutcome.TIMEOUT,
    Reason.UPSTREAM_TOTAL_TIMEOUT: AttemptOutcome.TIMEOUT,
    Reason.BODY_TIMEOUT: AttemptOutcome.TIMEOUT,
    Reason.UPSTREAM_TRUNCATED: AttemptOutcome.TRUNCATED,
}
_DRAIN: Final = "drain"
_LEFT: Final = frozenset({Reason.CLIENT_CLOSED, Reason.CLIENT_SLOW})
_STREAM_ENDS: Final = {
    Reason.CLIENT_CLOSED: StreamEnd.CLIENT_ABORT,
    Reason.CLIENT_SLOW: StreamEnd.CLIENT_ABORT,
    Reason.UPSTREAM_TRUNCATED: StreamEnd.CUT,
    Reason.UPSTREAM_RESET: StreamEnd.CUT,
    Reason.UPSTREAM_IDLE_TIMEOUT: StreamEnd.STALL,
    Reason.UPSTREAM_TOTAL_TIMEOUT: StreamEnd.CUT,
    Reason.DRAINING: StreamEnd.DRAINING,
}


class Recorder:
    """Records for one worker. metrics: where it counts; what nothing else is recorded of is counted there directly.

    series: of what was sent to an upstream. proxies: whose word is taken for the addresses of clients.
    """

    def __init__(
        self,
        metrics: WorkerMetrics,
        log: AccessLog,
        logger: logging.Logger,
        id_prefix: str,
        series: CallSeries,
        proxies: TrustedProxies = NO_PROXIES,
    ) -> None:
        self._series: Final = series
        self._known_rows: Final = series.known
        self._proxies: Final = proxies
        self.metrics: Final = metrics
        self._log: Final = log
        self._logger: Final = logger
        self._id_prefix: Final = id_prefix
        self._id_start: Final = f"vx-{id_prefix}-".encode()
        self._n_ids = 0
        self._next_crowd_line_s = 0.0
        # Without a step in between: time that Velox itself took, by Phase; how long requests waited that are now sent,
        # by Priority.
        self.overhead: Final = metrics.overhead
        self.queued: Final = metrics.queue_wait

    @property
    def process(self) -> int:
        """Return the number of this process in the ids of its exchanges."""
        return int(self._id_prefix, 16)

    def next_id(self) -> bytes:
        """Return a new exchange id, unique over workers and restarts."""
        self._n_ids += 1
        # Not f"{n:x}": compiled, a format takes four times as long.
        return self._id_start + hex(self._n_ids)[2:].encode()

    def tokens(self, spent: Spent) -> None:
        """Note what became of a request's tokens."""
        self.metrics.count_tokens(spent.estimated, spent.input, spent.output)

    def attempt_answered(self, member: Member, status: int) -> None:
        """Note an attempt whose reply was whole."""
        if status < 400:
            self.metrics.attempt_answered()
            member.answered()
            return
        self._count_attempt(member, outcome_of(status))
        if status in (401, 403):
            self.metrics.count_auth_failure()

    def attempt_failed(self, member: Member, failure: UpstreamFailure) -> None:
        """Note an attempt that broke, or whose answer was refused for another one."""
        if failure.reason is Reason.UPSTREAM_STATUS:
            self.attempt_answered(member, failure.status)
        else:
            self._count_attempt(member, outcome_of_failure(failure))

    def attempt_given_up(self, member: Member) -> None:
        """Note an attempt that was ended from our side: the client left, its deadline, a drain, no connection."""
        self._count_attempt(member, AttemptOutcome.CANCELLED)

    def _count_attempt(self, member: Member, outcome: AttemptOutcome) -> None:
        self.metrics.count_attempt(outcome)
        member.counts.count_attempt(member.row, outcome)

    def hedged(self, outcome: Hedged) -> None:
        """Note what came of a second attempt beside the first, or that there was none though it was due."""
        self.metrics.count_hedge(outcome)

    def canary(self) -> None:
        """Note a request that goes to a canary first."""
        self.metrics.count_canary()

    def translated(self, client: ApiKind, upstream: ApiKind, n_dropped: int) -> None:
        """Note that a request is put into another dialect for an attempt, and how many fields were left out."""
        self.metrics.count_translation(client, upstream, n_dropped)

    def lost(self, client: ApiKind, upstream: ApiKind) -> None:
        """Note that a translated answer lost something."""
        self.metrics.count_dropped_field(client, upstream)

    def retried(self, cause: Retry) -> None:
        """Note that another attempt begins."""
        self.metrics.count_retry(cause)

    def drained(self, outcome: Drained) -> None:
        """Note what came of a stream that was to be read on for its usage."""
        self.metrics.count_drain(outcome)

    def cached(self, result: CacheResult) -> None:
        """Note what the cache said of a request."""
        self.metrics.count_cache(result)

    def joined(self, result: JoinResult) -> None:
        """Note how a request of a route that joins calls got its reply."""
        self.metrics.count_join(result)

    def mirrored(self, outcome: Mirrored) -> None:
        """Note what came of a copy of a request."""
        self.metrics.count_mirror(outcome)

    def retry_denied(self, by: RetryDenied) -> None:
        """Note that there is no other attempt, though there could have been."""
        self.metrics.count_retry_denied(by)

    def refused(
        self, request_id: bytes, head: RequestHead | None, endpoint: Endpoint, error: VeloxError, address: str
    ) -> None:
        """Note a request that was answered before it became an exchange. head: None when it could not be read.

        address: of its client; "" for a unix socket's.
        """
        self.metrics.count_request(endpoint, error.status, error.reason)
        if error.reason in SHED_REASONS:
            self.metrics.count_shed(error.reason)
        if self._log.wants(error.reason.code) and not self._is_crowd(error):
            self._log.write(
                AccessRecord(
                    time=log_time(time.time()),
                    id=request_id.decode(),
                    caller="",
                    method="" if head is None else head.method.decode("ascii"),
                    path="" if head is None else head.path.decode("ascii", "replace"),
                    endpoint=endpoint.name.lower(),
                    model=None,
                    stream=False,
                    status=error.status,
                    reason=error.reason.code,
                    phase="accept",
                    ttfb_ms=None,
                    total_ms=0.0,
                    bytes_in=0,
                    bytes_out=0,
                    attempts=0,
                    address=address or None,
                    forwarded_for=self._proxies.client_of(address, [] if head is None else head.headers),
                    sent_status=error.status,
                )
            )

    def _is_crowd(self, error: VeloxError) -> bool:
        """True for connections beyond the limit, but for one a second: a flood must not fill the log (F-58)."""
        if error.reason is not Reason.CONN_LIMIT:
            return False
        now_s = time.monotonic()
        if now_s < self._next_crowd_line_s:
            return True
        self._next_crowd_line_s = now_s + 1.0
        return False

    def ended(self, exchange: RequestContext, reason: Reason | None, status: int, now_ns: int) -> None:
        """Note the end of an exchange; called once for each."""
        endpoint, started_ns, reply = exchange.plan.endpoint, exchange.started_ns, exchange.reply
        total_ns, spent = now_ns - started_ns, exchange.spent
        row: CallRow | None = None
        if exchange.n_attempts:
            is_stream, kind = reply is not None and reply.is_sse, exchange.call_kind()
            row = self._known_rows[endpoint + endpoint + is_stream](kind)
            if row is None:
                row = self._series.row(endpoint, kind, exchange.plan.caller, is_stream=is_stream)
            if spent is not None:
                _count_spending(row, spent)
        if reason is None and status >= 400:
            reason = Reason.UPSTREAM_STATUS
        if reply is not None and reply.first_byte_ns:
            first_ns = reply.first_byte_ns - started_ns
            forward_ns = exchange.sent_ns - started_ns if exchange.sent_ns else 0
            self.metrics.record_reply(row, endpoint, status, reason, total_ns, first_ns, reply.relay_ns, forward_ns)
            if reply.is_sse:
                if spent is not None and row is not None and reason is None:
                    row.streamed(total_ns - first_ns, spent.output or 0)
                end = StreamEnd.DONE if reason is None else _STREAM_ENDS.get(reason, StreamEnd.ERROR)
                self.metrics.count_stream_end(end)
                for _ in range(reply.n_stream_errors):
                    self.metrics.count_stream_error()
        else:
            self.metrics.count_request(endpoint, status, reason)
            if row is None:
                self.metrics.duration[endpoint].observe(total_ns)
            else:
                row.failed(total_ns)
        if reason is not None and reason in SHED_REASONS:
            self.metrics.count_shed(reason)
        if self._log.rules.level != "off" and self._log.wants(_code(reason), total_ns):
            self._log.write(_record(exchange, reason, status, total_ns, spent, self._proxies))

    def gauges(self, queued: Sequence[int], active: int, pool: PoolStatistics, n_upstreams_out: int) -> None:
        """Publish what changes too often to be written at each change."""
        for priority in Priority:
            self.metrics.set_queue_depth(priority, queued[priority])
        self.metrics.set_inflight(active)
        self.metrics.set_pool(pool.connections, pool.streams)
        self.metrics.set_upstreams_out(n_upstreams_out)

    def upstream_concurrency(self, limit: int, in_flight: int) -> None:
        """Publish how many requests may run on the upstreams at once, and how many do."""
        self.metrics.set_upstream_concurrency(limit, in_flight)

    def tunnels(self, n_open: int, moved: tuple[int, int]) -> None:
        """Publish how many WebSockets are open, and count the bytes that went through them: up, down."""
        self.metrics.set_tunnels(n_open)
        self.metrics.count_tunnel_bytes(*moved)

    def crashed(self, exc: Exception) -> None:
        """Log an error that is a bug: where it was raised, never the values it was raised with."""
        self._logger.error("%s", crash_text(exc))


def outcome_of(status: int) -> AttemptOutcome:
    """Return how an attempt ended whose reply was whole."""
    return (
        AttemptOutcome.OK if status < 400 else AttemptOutcome.STATUS_4XX if status < 500 else AttemptOutcome.STATUS_5XX
    )


def outcome_of_failure(failure: UpstreamFailure) -> AttemptOutcome:
    """Return how an attempt ended without one."""
    return _ATTEMPTS.get(failure.reason, AttemptOutcome.RESET)


def _count_spending(row: CallRow, spent: Spending) -> None:
    row.used((spent.input, spent.output, spent.cached, spent.cache_written, spent.reasoning))
    if spent.is_recorded:
        row.cost(spent.cost_nano)


def _code(reason: Reason | None) -> str:
    return "ok" if reason is None else reason.code


def _sent_status(exchange: RequestContext, status: int, reason: Reason | None) -> int | None:
    """Return the status that the client got; None: it left before."""
    if exchange.reply is not None and exchange.reply.started:
        return exchange.reply.status
    return None if reason in _LEFT else status


def _record(
    exchange: RequestContext,
    reason: Reason | None,
    status: int,
    total_ns: int,
    spent: Spending | None,
    proxies: TrustedProxies,
) -> AccessRecord:
    reply, plan, started_ns = exchange.reply, exchange.plan, exchange.started_ns
    caller, client = plan.caller, exchange.client
    session = session_of(exchange.head, None if exchange.is_large else exchange.body)
    ttfb_ns = reply.first_byte_ns - started_ns if reply is not None and reply.first_byte_ns else None
    return AccessRecord(
        time=log_time(time.time()),
        id=exchange.id.decode(),
        caller=caller.name,
        method=exchange.head.method.decode("ascii"),
        path=exchange.head.path.decode("ascii", "replace"),
        endpoint=plan.endpoint.name.lower(),
        model=exchange.fields.model,
        stream=exchange.fields.stream,
        status=status,
        reason=_code(reason),
        phase="stream" if reply is not None and reply.started and exchange.phase != _DRAIN else exchange.phase,
        ttfb_ms=None if ttfb_ns is None else round(ttfb_ns / 1e6, 3),
        total_ms=round(total_ns / 1e6, 3),
        bytes_in=(0 if exchange.body is None else len(exchange.body)) + (0 if reply is None else reply.bytes_in),
        bytes_out=0 if reply is None else reply.bytes_out,
        attempts=exchange.n_attempts,
        upstream=exchange.upstream or None,
        tried=", ".join(exchange.tried) or None,
        cache=None if exchange.cached is None else exchange.cached.name.lower(),
        join=None if exchange.joined is None else exchange.joined.name.lower(),
        close_code=None if reply is None else reply.close_code,
        key_id=(caller.account or caller.id.hex()) or None,
        address=client.address or None,
        forwarded_for=proxies.client_of(client.address, exchange.head.headers) if proxies else None,
        session=session or None,
        tags=",".join(caller.terms.tags) or None,
        sent_status=_sent_status(exchange, status, reason),
        input_tokens=None if spent is None else spent.input,
        output_tokens=None if spent is None else spent.output,
        cached_tokens=None if spent is None else spent.cached,
        cache_written_tokens=None if spent is None else spent.cache_written,
        reasoning_tokens=None if spent is None else spent.reasoning,
        cost_usd=None if spent is None or spent.cost_nano is None else spent.cost_nano / NANO_PER_USD,
        estimated=None if spent is None else spent.is_estimated,
    )
