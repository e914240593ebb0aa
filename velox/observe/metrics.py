"""The writing side of metrics: one worker counts into its own slab of shared memory.

Knows: which cell an event belongs to. Does not know: names and layout (velox.observe.series), or who reads.

A slab belongs to a worker slot and has one writer, so a count is a plain load and store, 0.1 µs, and a reader
in another process never stops it. A worker that takes a dead one's place counts on from its numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from velox import outcomes
from velox.errors import Reason
from velox.observe import series
from velox.observe.series import Family
from velox.types import Endpoint, Priority, Scope, Surface

__all__ = ["Times", "WorkerMetrics"]

# By code, because the hash of a string is kept and that of an enum member is computed each time.
_REASON_INDEX: Final = {reason.code: index for index, reason in enumerate(Reason, start=1)}
_SHED_CELL: Final = {reason.code: series.SHED.first + i for i, reason in enumerate(outcomes.SHED_REASONS)}

_N_REASONS: Final = len(Reason) + 1
_N_ENDS: Final = 4 * _N_REASONS  # 2xx to 5xx
_N_UNITS: Final = len(outcomes.Unit)
_N_DECISIONS: Final = len(outcomes.Decision)

# Plain integers: an attribute of another module's dataclass costs more than the count itself.
_REQUESTS: Final = series.REQUESTS.first
_ATTEMPTS: Final = series.ATTEMPTS.first
_STREAM_ENDS: Final = series.STREAM_ENDS.first
_LIMIT: Final = series.LIMIT.first
_N_SURFACES: Final = len(Surface)
_DURATION: Final = series.DURATION.first
_N_DURATION: Final = series.DURATION.stride
_DURATION_BOUNDS_NS: Final = series.DURATION.bounds_ns
_TTFT: Final = series.TTFT.first
_N_TTFT: Final = series.TTFT.stride
_TTFT_BOUNDS_NS: Final = series.TTFT.bounds_ns
_N_OVERHEAD: Final = series.OVERHEAD.stride
_OVERHEAD_BOUNDS_NS: Final = series.OVERHEAD.bounds_ns
_PARSE: Final = series.OVERHEAD.first + outcomes.Phase.PARSE * _N_OVERHEAD
_LIMIT_TIME: Final = series.OVERHEAD.first + outcomes.Phase.LIMIT * _N_OVERHEAD
_RELAY: Final = series.OVERHEAD.first + outcomes.Phase.RELAY * _N_OVERHEAD
_QUEUE_WAIT: Final = series.QUEUE_WAIT.first
_N_QUEUE_WAIT: Final = series.QUEUE_WAIT.stride
_QUEUE_WAIT_BOUNDS_NS: Final = series.QUEUE_WAIT.bounds_ns
_QUEUE_DEPTH: Final = series.QUEUE_DEPTH.first
_INFLIGHT: Final = series.INFLIGHT.first
_CONNECTIONS: Final = series.CONNECTIONS.first
_HTTP2_CONNECTIONS: Final = series.HTTP2_CONNECTIONS.first


class Times:
    """One series of a histogram: where each time is recorded that belongs to it."""

    __slots__ = ("_bounds_ns", "_cells", "_first", "_sum")

    def __init__(self, cells: memoryview[int], histogram: Family, index: int = 0) -> None:
        """index: of its label."""
        self._cells: Final = cells
        self._bounds_ns: Final = histogram.bounds_ns
        self._first: Final = histogram.first + index * histogram.stride
        self._sum: Final = self._first + histogram.stride - 1

    def observe(self, ns: int) -> None:
        """Record one."""
        cells = self._cells
        cells[self._first + bisect_left(self._bounds_ns, ns)] += 1
        cells[self._sum] += ns


class WorkerMetrics:
    """The metrics of one worker. slab: at least series.CELLS cells, which nobody else writes.

    Making one zeroes the slab's gauges: they tell of a worker that is gone.

    Times are recorded where they belong, without a step in between (`metrics.duration[route].observe(ns)`):

    duration: of a request, from its first byte in to its last byte out, by Route. ttft: to a streamed reply's first
    event, by Route. overhead: what Velox itself spent in one Phase of a request. queue_wait: of a request in the
    admission queue, which it then left to be sent, by Priority. loop_lag: how late the event loop ran a timer.
    lease_round_trip: one question to Redis.
    """

    __slots__ = ("_cells", "duration", "lease_round_trip", "loop_lag", "overhead", "queue_wait", "ttft")

    def __init__(self, slab: memoryview[int]) -> None:
        self._cells = slab
        self.duration: Final = tuple(Times(slab, series.DURATION, route) for route in Endpoint)
        self.ttft: Final = tuple(Times(slab, series.TTFT, route) for route in Endpoint)
        self.overhead: Final = tuple(Times(slab, series.OVERHEAD, phase) for phase in outcomes.Phase)
        self.queue_wait: Final = tuple(Times(slab, series.QUEUE_WAIT, priority) for priority in Priority)
        self.loop_lag: Final = Times(slab, series.LOOP_LAG)
        self.lease_round_trip: Final = Times(slab, series.LEASE_ROUND_TRIP)
        self.reset_gauges()

    def reset_gauges(self) -> None:
        """Zero the gauges. For the supervisor too, when a worker died and before the next one starts."""
        for gauge in series.GAUGES:
            for cell in range(gauge.first, gauge.end):
                self._cells[cell] = 0

    def count_request(self, route: Endpoint, status: int, reason: Reason | None) -> None:
        """Count one request that ended. status: what the client got; 101 counts as 2xx. reason None: all went well."""
        if status == 200 and reason is None:  # most of them
            self._cells[_REQUESTS + route * _N_ENDS] += 1
            return
        hundreds = status // 100 - 2 if 200 <= status < 600 else 0 if status == 101 else 3
        index = 0 if reason is None else _REASON_INDEX[reason.code]
        self._cells[_REQUESTS + route * _N_ENDS + hundreds * _N_REASONS + index] += 1

    def record_reply(
        self, endpoint: Endpoint, status: int, reason: Reason | None, total_ns: int, first_ns: int, relay_ns: int
    ) -> None:
        """Count one request that ended with a reply, as count_request() does, and record its times.

        total_ns: from its first byte in to its last byte out. first_ns: to the reply's first byte. relay_ns: what Velox
        took for that byte. One call, because each request makes it.
        """
        cells = self._cells
        if status == 200 and reason is None:
            cells[_REQUESTS + endpoint * _N_ENDS] += 1
        else:
            self.count_request(endpoint, status, reason)
        at = _DURATION + endpoint * _N_DURATION
        cells[at + bisect_left(_DURATION_BOUNDS_NS, total_ns)] += 1
        cells[at + _N_DURATION - 1] += total_ns
        at = _TTFT + endpoint * _N_TTFT
        cells[at + bisect_left(_TTFT_BOUNDS_NS, first_ns)] += 1
        cells[at + _N_TTFT - 1] += first_ns
        cells[_RELAY + bisect_left(_OVERHEAD_BOUNDS_NS, relay_ns)] += 1
        cells[_RELAY + _N_OVERHEAD - 1] += relay_ns

    def record_admission(self, priority: Priority, queued_ns: int, parse_ns: int, limit_ns: int) -> None:
        """Record what the steps of one request took that has passed the gate: in the queue, its body, its limits."""
        cells = self._cells
        at = _QUEUE_WAIT + priority * _N_QUEUE_WAIT
        cells[at + bisect_left(_QUEUE_WAIT_BOUNDS_NS, queued_ns)] += 1
        cells[at + _N_QUEUE_WAIT - 1] += queued_ns
        cells[_PARSE + bisect_left(_OVERHEAD_BOUNDS_NS, parse_ns)] += 1
        cells[_PARSE + _N_OVERHEAD - 1] += parse_ns
        cells[_LIMIT_TIME + bisect_left(_OVERHEAD_BOUNDS_NS, limit_ns)] += 1
        cells[_LIMIT_TIME + _N_OVERHEAD - 1] += limit_ns

    def count_attempt(self, outcome: outcomes.AttemptOutcome) -> None:
        """Count one attempt at the upstream."""
        self._cells[_ATTEMPTS + outcome] += 1

    def count_stream_end(self, end: outcomes.StreamEnd) -> None:
        """Count the end of one streamed reply."""
        self._cells[_STREAM_ENDS + end] += 1

    def count_shed(self, reason: Reason) -> None:
        """Count one refusal under load. Raises KeyError for a reason that is not in outcomes.SHED_REASONS."""
        self._cells[_SHED_CELL[reason.code]] += 1

    def count_limit(self, scope: Scope, unit: outcomes.Unit, decision: outcomes.Decision) -> None:
        """Count what one limit said of one request."""
        self._cells[_LIMIT + (scope * _N_UNITS + unit) * _N_DECISIONS + decision] += 1

    def count_tokens(self, kind: outcomes.TokenCount, n: int) -> None:
        """Count `n` tokens of a model."""
        self._cells[series.TOKENS.first + kind] += n

    def count_warm_failure(self) -> None:
        """Count one warm-up of an upstream connection that failed."""
        self._cells[series.WARM_FAILURES.first] += 1

    def count_log_dropped(self, n: int) -> None:
        """Count log lines that were dropped."""
        self._cells[series.LOG_DROPPED.first] += n

    def count_retry(self, cause: outcomes.Retry) -> None:
        """Count one further attempt at a request."""
        self._cells[series.RETRIES.first + cause] += 1

    def count_retry_denied(self, by: outcomes.RetryDenied) -> None:
        """Count one request that was not tried again."""
        self._cells[series.RETRIES_DENIED.first + by] += 1

    def count_connection_end(self, cause: outcomes.ConnectionEnd) -> None:
        """Count one upstream connection that takes no more requests."""
        self._cells[series.CONNECTION_ENDS.first + cause] += 1

    def count_dns_refresh(self, result: outcomes.DnsResult) -> None:
        """Count one look-up of an upstream's name."""
        self._cells[series.DNS_REFRESH.first + result] += 1

    def count_stream_error(self) -> None:
        """Count one error event inside an upstream's stream."""
        self._cells[series.STREAM_ERRORS.first] += 1

    def count_auth_failure(self) -> None:
        """Count one 401 or 403 of an upstream."""
        self._cells[series.AUTH_FAILURES.first] += 1

    def count_tls_handshake(self, resumed: bool) -> None:
        """Count one TLS handshake with a client that ended well."""
        self._cells[series.TLS_HANDSHAKES.first + resumed] += 1

    def count_tls_failure(self, cause: outcomes.TlsFailure) -> None:
        """Count one TLS handshake with a client that failed."""
        self._cells[series.TLS_FAILURES.first + cause] += 1

    def count_tunnel_bytes(self, up: int, down: int) -> None:
        """Count bytes that went through WebSockets: to upstreams, to clients."""
        self._cells[series.TUNNEL_BYTES.first] += up
        self._cells[series.TUNNEL_BYTES.first + 1] += down

    def count_lease(self, result: outcomes.LeaseResult) -> None:
        """Count what came of one limit's permits in Redis."""
        self._cells[series.LEASES.first + result] += 1

    def count_hedge(self, outcome: outcomes.Hedged) -> None:
        """Count one second try, when it is known what came of it."""
        self._cells[series.HEDGES.first + outcome] += 1

    def count_mirror(self, outcome: outcomes.Mirrored) -> None:
        """Count one copy of a request, when it is over or was dropped."""
        self._cells[series.MIRRORED.first + outcome] += 1

    def count_canary(self) -> None:
        """Count one request that goes to a canary."""
        self._cells[series.CANARY.first] += 1

    def count_translation(self, client: Surface, upstream: Surface, n_dropped: int) -> None:
        """Count one attempt whose request was put into another dialect, and the fields that were left out."""
        place = (client - 1) * _N_SURFACES + upstream - 1  # APIs count from 1
        self._cells[series.TRANSLATIONS.first + place] += 1
        self._cells[series.DROPPED_FIELDS.first + place] += n_dropped

    def count_dropped_field(self, client: Surface, upstream: Surface) -> None:
        """Count what a translated answer lost."""
        self._cells[series.DROPPED_FIELDS.first + (client - 1) * _N_SURFACES + upstream - 1] += 1

    def set_queue_depth(self, priority: Priority, n: int) -> None:
        """Set the number of requests of one class in the admission queue."""
        self._cells[_QUEUE_DEPTH + priority] = n

    def set_inflight(self, n: int) -> None:
        """Set the number of admitted requests that are not answered yet."""
        self._cells[_INFLIGHT] = n

    def set_connections(self, n: int, n_http2: int = 0) -> None:
        """Set the number of open client connections, and of those among them that speak HTTP/2."""
        self._cells[_CONNECTIONS] = n
        self._cells[_HTTP2_CONNECTIONS] = n_http2

    def set_pool(self, ready: int, streams: int) -> None:
        """Set the number of usable upstream connections, and of exchanges on them."""
        self._cells[series.POOL_READY.first] = ready
        self._cells[series.POOL_STREAMS.first] = streams

    def set_upstreams_out(self, n: int) -> None:
        """Set the number of upstreams that this worker passes over because they fail."""
        self._cells[series.UPSTREAMS_OUT.first] = n

    def set_upstream_concurrency(self, limit: int, in_flight: int) -> None:
        """Set how many requests may run on the upstreams at once, and how many do."""
        self._cells[series.UPSTREAM_LIMIT.first] = limit
        self._cells[series.UPSTREAM_INFLIGHT.first] = in_flight

    def set_tunnels(self, n: int) -> None:
        """Set the number of open WebSockets."""
        self._cells[series.TUNNELS.first] = n
