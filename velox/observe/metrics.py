"""The writing side of metrics: one worker counts into its own slab of shared memory.

Knows: which cell an event belongs to. Does not know: names and layout (velox.observe.series), or who reads.

A slab belongs to a worker slot and has one writer, and a reader in another process never stops it. A worker that takes
a dead one's place counts on from its numbers. Nothing here needs to be atomic, but for Segment.other_metrics(): an
atomic add is taken because it is one call of C, for half of what it takes to read a cell of a memoryview and write it
again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from atomicshm import AtomicView

from velox import outcomes
from velox.errors import Reason
from velox.memo import Memo
from velox.observe import call_series, genai, series
from velox.observe.series import Family
from velox.shm.segment import CELL_BYTES, atomic_view
from velox.shm.series_table import SeriesBlock
from velox.types import ApiKind, Caller, Endpoint, Priority, Scope

__all__ = ["CallKind", "CallRow", "CallSeries", "ModelName", "Times", "WorkerMetrics"]

# Route, upstream, and the model that it was asked for.
CallKind: TypeAlias = tuple[str, str, str]
# The name that metrics have for a model of an upstream; "": they do not know it.
ModelName: TypeAlias = Callable[[str, str], str]

# By code, because the hash of a string is kept and that of an enum member is computed each time.
_REASON_INDEX: Final = {reason.code: index for index, reason in enumerate(Reason, start=1)}
_SHED_CELL: Final = {reason.code: series.SHED.first + i for i, reason in enumerate(outcomes.SHED_REASONS)}

_N_REASONS: Final = len(Reason) + 1
_N_ENDS: Final = 4 * _N_REASONS  # 2xx to 5xx
_ENDS_BYTES: Final = CELL_BYTES * _N_ENDS
_N_UNITS: Final = len(outcomes.Unit)
_N_DECISIONS: Final = len(outcomes.Decision)

# Plain integers: an attribute of another module's dataclass costs more than the count itself.
_CELL: Final = CELL_BYTES
_N_API_KINDS: Final = len(ApiKind)
_OVERHEAD_BOUNDS_NS: Final = series.OVERHEAD.bounds_ns
_QUEUE_WAIT_BOUNDS_NS: Final = series.QUEUE_WAIT.bounds_ns
_TOKENS: Final = _CELL * series.TOKENS.first
_ESTIMATED: Final = _TOKENS + _CELL * int(outcomes.TokenCount.ESTIMATED)
_INPUT: Final = _TOKENS + _CELL * int(outcomes.TokenCount.INPUT)
_OUTPUT: Final = _TOKENS + _CELL * int(outcomes.TokenCount.OUTPUT)
_REFUNDED: Final = _TOKENS + _CELL * int(outcomes.TokenCount.REFUNDED)
_QUEUE_DEPTH: Final = series.QUEUE_DEPTH.first
_INFLIGHT: Final = series.INFLIGHT.first
_CONNECTIONS: Final = series.CONNECTIONS.first
_HTTP2_CONNECTIONS: Final = series.HTTP2_CONNECTIONS.first
# Of the series by route, upstream and model.
_MOST_KINDS: Final = 2048
_N_LABELS: Final = 5  # beside those of the caller
_MODEL: Final = 4  # its place among them
_CALL_DURATION_NS: Final = genai.DURATION_NS
_CALL_DURATION_SUM: Final = _CELL * (call_series.FIRST_TOKEN - 1)
_CALL_FIRST: Final = _CELL * call_series.FIRST_TOKEN
_CALL_FIRST_NS: Final = genai.TTFT_NS
_CALL_FIRST_SUM: Final = _CELL * (call_series.OUTPUT_TOKEN - 1)

# A name of this module's own: compiled code looks up what is imported each time it is called.
_bucket: Final = bisect_left


def _places(slab_at: int, histogram: Family, index: int) -> tuple[int, ...]:
    """Return where the buckets of one series lie, +Inf's last, and behind them its sum."""
    first = slab_at + _CELL * (histogram.first + index * histogram.stride)
    return tuple(range(first, first + _CELL * histogram.stride, _CELL))


class Times:
    """One series of a histogram: where each time is recorded that belongs to it."""

    __slots__ = ("_add", "_bounds_ns", "_first", "_sum")

    def __init__(self, memory: AtomicView, slab_at: int, histogram: Family, index: int = 0) -> None:
        """slab_at: where in the memory the slab begins. index: of its label."""
        self._add: Final = memory.fetch_add_u64
        self._bounds_ns: Final = histogram.bounds_ns
        self._first: Final = slab_at + _CELL * (histogram.first + index * histogram.stride)
        self._sum: Final = self._first + _CELL * (histogram.stride - 1)

    def observe(self, ns: int) -> None:
        """Record one."""
        add = self._add
        add(self._first + _CELL * _bucket(self._bounds_ns, ns), 1)
        add(self._sum, ns)


class WorkerMetrics:
    """The metrics of one worker. slab: at least series.CELLS cells, which nobody else writes.

    Making one zeroes the slab's gauges: they tell of a worker that is gone.

    Times are recorded where they belong, without a step in between (`metrics.duration[route].observe(ns)`):

    duration: of a request, from when all of it had come to its last byte out, by Route. ttft: to a streamed reply's
    first event, by Route. overhead: what Velox itself spent in one Phase of a request. queue_wait: of a request in the
    admission queue, which it then left to be sent, by Priority. loop_lag: how late the event loop ran a timer.
    lease_round_trip: one question to Redis.

    attempt_answered: counts one attempt whose reply was whole and no error, as count_attempt() does, but without a
    Python frame.
    """

    __slots__ = (
        *("_add", "_cells", "_forward", "_limit_time", "_parse", "_queue_wait", "_relay", "_requests", "_slab"),
        *("attempt_answered", "duration", "lease_round_trip", "loop_lag", "overhead", "queue_wait", "ttft"),
    )

    def __init__(self, slab: memoryview[int]) -> None:
        memory, at = atomic_view(slab)
        self._cells: Final = slab
        self._add: Final = memory.fetch_add_u64
        # Where they begin, in bytes of the memory.
        self._slab: Final = at
        self._requests: Final = at + _CELL * series.REQUESTS.first
        # Of what each request counts, the place of every bucket, and of the sum behind them.
        self._queue_wait: Final = tuple(_places(at, series.QUEUE_WAIT, priority) for priority in Priority)
        self._parse: Final = _places(at, series.OVERHEAD, outcomes.Phase.PARSE)
        self._limit_time: Final = _places(at, series.OVERHEAD, outcomes.Phase.LIMIT)
        self._relay: Final = _places(at, series.OVERHEAD, outcomes.Phase.RELAY)
        self._forward: Final = _places(at, series.OVERHEAD, outcomes.Phase.FORWARD)
        answered_at = at + _CELL * (series.ATTEMPTS.first + outcomes.AttemptOutcome.OK)
        self.attempt_answered: Final[Callable[[], object]] = partial(self._add, answered_at, 1)
        self.duration: Final = tuple(Times(memory, at, series.DURATION, route) for route in Endpoint)
        self.ttft: Final = tuple(Times(memory, at, series.TTFT, route) for route in Endpoint)
        self.overhead: Final = tuple(Times(memory, at, series.OVERHEAD, phase) for phase in outcomes.Phase)
        self.queue_wait: Final = tuple(Times(memory, at, series.QUEUE_WAIT, priority) for priority in Priority)
        self.loop_lag: Final = Times(memory, at, series.LOOP_LAG)
        self.lease_round_trip: Final = Times(memory, at, series.LEASE_ROUND_TRIP)
        self.reset_gauges()

    def reset_gauges(self) -> None:
        """Zero the gauges. For the supervisor too, when a worker died and before the next one starts."""
        for gauge in series.GAUGES:
            for cell in range(gauge.first, gauge.end):
                self._cells[cell] = 0

    def count_request(self, endpoint: Endpoint, status: int, reason: Reason | None) -> None:
        """Count one request that ended. status: what the client got; 101 counts as 2xx. reason None: all went well."""
        hundreds = status // 100 - 2 if 200 <= status < 600 else 0 if status == 101 else 3
        index = 0 if reason is None else _REASON_INDEX[reason.code]
        self._add(self._requests + _CELL * (endpoint * _N_ENDS + hundreds * _N_REASONS + index), 1)

    def record_reply(
        self,
        row: CallRow | None,
        endpoint: Endpoint,
        status: int,
        reason: Reason | None,
        total_ns: int,
        first_ns: int,
        relay_ns: int,
        forward_ns: int = 0,
    ) -> None:
        """Count one request that ended with a reply, as count_request() does, and record its times.

        row: its series; None: it was sent to no upstream. total_ns: from when all of it had come to its last byte out.
        first_ns: to the reply's first byte. relay_ns: what Velox took for that byte. forward_ns: from when all of it
        had come to its first attempt being sent; 0: none was. One call, because each request makes it.
        """
        add = self._add
        if status == 200 and reason is None:  # most of them
            add(self._requests + endpoint * _ENDS_BYTES, 1)
        else:
            self.count_request(endpoint, status, reason)
        places = self._relay
        add(places[_bucket(_OVERHEAD_BOUNDS_NS, relay_ns)], 1)
        add(places[-1], relay_ns)
        if forward_ns:
            places = self._forward
            add(places[_bucket(_OVERHEAD_BOUNDS_NS, forward_ns)], 1)
            add(places[-1], forward_ns)
        if row is None:
            self.duration[endpoint].observe(total_ns)
            self.ttft[endpoint].observe(first_ns)
            return
        add_to_row, at = row.add, row.at
        add_to_row(at + _CELL * _bucket(_CALL_DURATION_NS, total_ns), 1)
        add_to_row(at + _CALL_DURATION_SUM, total_ns)
        add_to_row(at + _CALL_FIRST + _CELL * _bucket(_CALL_FIRST_NS, first_ns), 1)
        add_to_row(at + _CALL_FIRST_SUM, first_ns)

    def record_admission(self, priority: Priority, queued_ns: int, parse_ns: int, limit_ns: int) -> None:
        """Record what the steps of one request took that has passed the gate: in the queue, its body, its limits."""
        add = self._add
        places = self._queue_wait[priority]
        if queued_ns:
            add(places[_bucket(_QUEUE_WAIT_BOUNDS_NS, queued_ns)], 1)
            add(places[-1], queued_ns)
        else:  # most of them found it empty
            add(places[0], 1)
        places = self._parse
        add(places[_bucket(_OVERHEAD_BOUNDS_NS, parse_ns)], 1)
        add(places[-1], parse_ns)
        places = self._limit_time
        add(places[_bucket(_OVERHEAD_BOUNDS_NS, limit_ns)], 1)
        add(places[-1], limit_ns)

    def count_attempt(self, outcome: outcomes.AttemptOutcome) -> None:
        """Count one attempt at the upstream."""
        self._add(self._slab + _CELL * (series.ATTEMPTS.first + outcome), 1)

    def count_stream_end(self, end: outcomes.StreamEnd) -> None:
        """Count the end of one streamed reply."""
        self._add(self._slab + _CELL * (series.STREAM_ENDS.first + end), 1)

    def count_shed(self, reason: Reason) -> None:
        """Count one refusal under load. Raises KeyError for a reason that is not in outcomes.SHED_REASONS."""
        self._add(self._slab + _CELL * _SHED_CELL[reason.code], 1)

    def limit_counter(self, scope: Scope, unit: outcomes.Unit, decision: outcomes.Decision) -> Callable[[], object]:
        """Return what counts one limit's decision about one request, each time it is called."""
        cell = series.LIMIT.first + (scope * _N_UNITS + unit) * _N_DECISIONS + decision
        return partial(self._add, self._slab + _CELL * cell, 1)

    def count_tokens(self, estimated: int, given: int, made: int) -> None:
        """Count the tokens of a request: taken in advance, of the prompt, of the answer; and what came back of them."""
        add, slab = self._add, self._slab
        add(slab + _ESTIMATED, estimated)
        add(slab + _INPUT, given)
        add(slab + _OUTPUT, made)
        if estimated > given + made:
            add(slab + _REFUNDED, estimated - given - made)

    def count_warm_failure(self) -> None:
        """Count one warm-up of an upstream connection that failed."""
        self._add(self._slab + _CELL * series.WARM_FAILURES.first, 1)

    def count_log_dropped(self, n: int) -> None:
        """Count log lines that were dropped."""
        self._add(self._slab + _CELL * series.LOG_DROPPED.first, n)

    def count_spans(self, end: outcomes.SpanEnd, n: int) -> None:
        """Count spans of traces, when it is known what became of them."""
        self._add(self._slab + _CELL * (series.TRACE_SPANS.first + end), n)

    def count_retry(self, cause: outcomes.Retry) -> None:
        """Count one further attempt at a request."""
        self._add(self._slab + _CELL * (series.RETRIES.first + cause), 1)

    def count_retry_denied(self, by: outcomes.RetryDenied) -> None:
        """Count one request that was not tried again."""
        self._add(self._slab + _CELL * (series.RETRIES_DENIED.first + by), 1)

    def count_connection_end(self, cause: outcomes.ConnectionEnd) -> None:
        """Count one upstream connection that takes no more requests."""
        self._add(self._slab + _CELL * (series.CONNECTION_ENDS.first + cause), 1)

    def count_dns_refresh(self, result: outcomes.DnsResult) -> None:
        """Count one look-up of an upstream's name."""
        self._add(self._slab + _CELL * (series.DNS_REFRESH.first + result), 1)

    def count_stream_error(self) -> None:
        """Count one error event inside an upstream's stream."""
        self._add(self._slab + _CELL * series.STREAM_ERRORS.first, 1)

    def count_auth_failure(self) -> None:
        """Count one 401 or 403 of an upstream."""
        self._add(self._slab + _CELL * series.AUTH_FAILURES.first, 1)

    def count_tls_handshake(self, resumed: bool) -> None:
        """Count one TLS handshake with a client that ended well."""
        self._add(self._slab + _CELL * (series.TLS_HANDSHAKES.first + resumed), 1)

    def count_tls_failure(self, cause: outcomes.TlsFailure) -> None:
        """Count one TLS handshake with a client that failed."""
        self._add(self._slab + _CELL * (series.TLS_FAILURES.first + cause), 1)

    def count_tunnel_bytes(self, up: int, down: int) -> None:
        """Count bytes that went through WebSockets: to upstreams, to clients."""
        self._add(self._slab + _CELL * series.TUNNEL_BYTES.first, up)
        self._add(self._slab + _CELL * (series.TUNNEL_BYTES.first + 1), down)

    def count_lease(self, result: outcomes.LeaseResult) -> None:
        """Count what came of one limit's permits in Redis."""
        self._add(self._slab + _CELL * (series.LEASES.first + result), 1)

    def count_key_corrections(self, holder: outcomes.KeyHolder, n: int) -> None:
        """Count keys that a holder was wrong about."""
        self._add(self._slab + _CELL * (series.KEY_CORRECTIONS.first + holder), n)

    def count_hedge(self, outcome: outcomes.Hedged) -> None:
        """Count one second try, when it is known what came of it."""
        self._add(self._slab + _CELL * (series.HEDGES.first + outcome), 1)

    def count_drain(self, outcome: outcomes.Drained) -> None:
        """Count one stream that was to be read on for its usage."""
        self._add(self._slab + _CELL * (series.USAGE_DRAINS.first + outcome), 1)

    def count_cache(self, result: outcomes.CacheResult) -> None:
        """Count what the cache said of one request."""
        self._add(self._slab + _CELL * (series.CACHE_RESULTS.first + result), 1)

    def count_join(self, result: outcomes.JoinResult) -> None:
        """Count how one request of a route that joins calls got its reply."""
        self._add(self._slab + _CELL * (series.JOIN_RESULTS.first + result), 1)

    def count_kept(self, n_bytes: int, n_evicted: int) -> None:
        """Count one answer that the cache keeps, and the bytes of others that gave way for it."""
        self._add(self._slab + _CELL * series.CACHE_STORED.first, 1)
        self._add(self._slab + _CELL * series.CACHE_STORED_BYTES.first, n_bytes)
        self._add(self._slab + _CELL * series.CACHE_EVICTED_BYTES.first, n_evicted)

    def count_purge(self, n_answers: int) -> None:
        """Count one purge of the cache, and the answers that it took out."""
        self._add(self._slab + _CELL * series.CACHE_PURGES.first, 1)
        self._add(self._slab + _CELL * series.CACHE_PURGED.first, n_answers)

    def count_mirror(self, outcome: outcomes.Mirrored) -> None:
        """Count one copy of a request, when it is over or was dropped."""
        self._add(self._slab + _CELL * (series.MIRRORED.first + outcome), 1)

    def count_canary(self) -> None:
        """Count one request that goes to a canary."""
        self._add(self._slab + _CELL * series.CANARY.first, 1)

    def count_translation(self, client: ApiKind, upstream: ApiKind, n_dropped: int) -> None:
        """Count one attempt whose request was put into another dialect, and the fields that were left out."""
        place = (client - 1) * _N_API_KINDS + upstream - 1  # APIs count from 1
        self._add(self._slab + _CELL * (series.TRANSLATIONS.first + place), 1)
        self._add(self._slab + _CELL * (series.DROPPED_FIELDS.first + place), n_dropped)

    def count_dropped_field(self, client: ApiKind, upstream: ApiKind) -> None:
        """Count what a translated answer lost."""
        self._add(self._slab + _CELL * (series.DROPPED_FIELDS.first + (client - 1) * _N_API_KINDS + upstream - 1), 1)

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


class CallRow:
    """One series. add, at: of its row in shared memory. WorkerMetrics.record_reply() adds what each reply has."""

    __slots__ = ("add", "at")

    def __init__(self, add: Callable[[int, int], object], at: int) -> None:
        self.add: Final = add
        self.at: Final = at

    def failed(self, total_ns: int) -> None:
        """Record a request that got nothing from its upstream."""
        self.add(self.at + _CELL * _bucket(_CALL_DURATION_NS, total_ns), 1)
        self.add(self.at + _CALL_DURATION_SUM, total_ns)

    def streamed(self, ns: int, n_tokens: int) -> None:
        """Record how long each token of a stream took. ns: from its first bytes to its end."""
        if n_tokens > 1:
            self._observe(call_series.OUTPUT_TOKEN, genai.TPOT_NS, ns // (n_tokens - 1))

    def used(self, tokens: tuple[int | None, int | None, int | None, int | None, int | None]) -> None:
        """Count tokens, by KINDS; None: not told."""
        given, made = tokens[0], tokens[1]
        if given is not None:
            self._observe(call_series.INPUT_TOKENS, genai.TOKEN_BOUNDS, given)
        if made is not None:
            self._observe(call_series.OUTPUT_TOKENS, genai.TOKEN_BOUNDS, made)
        at = self.at + _CELL * call_series.KIND_TOKENS
        for n in tokens:
            if n:
                self.add(at, n)
            at += _CELL

    def cost(self, nano: int | None) -> None:
        """Count what it cost, in nano-dollars; None: its price is not known."""
        if nano is None:
            self.add(self.at + _CELL * call_series.UNPRICED, 1)
        else:
            self.add(self.at + _CELL * call_series.COST_NANO, nano)

    def _observe(self, first: int, bounds: tuple[int, ...], value: int) -> None:
        at = self.at + _CELL * first
        self.add(at + _CELL * _bucket(bounds, value), 1)
        self.add(at + _CELL * (len(bounds) + 1), value)


class CallSeries:
    """The series of one worker by route, upstream and model.

    The one of a kind of requests is found once; each request then adds numbers. What a client wrote is no label: a
    model is named as the configuration or the price table has it, else it is `other`; so is one beyond the bound.

    most_models: that get a name of their own, over all workers. by_team, by_key: labels that tell of the caller.

    known: by endpoint, that of plain replies before that of streams: returns the series of a kind without a Python
    frame; None for one that row() is to look for, as it does for all where labels tell of the caller.
    """

    __slots__ = (
        *("_block", "_by_key", "_by_team", "_kinds", "_models", "_most_models", "_name", "_rest_at", "_seen"),
        "known",
    )

    def __init__(
        self,
        block: SeriesBlock,
        name: ModelName,
        most_models: int,
        *,
        by_team: bool = False,
        by_key: bool = False,
    ) -> None:
        self._block: Final = block
        self._name = name
        self._most_models: Final = most_models
        self._by_team: Final = by_team
        self._by_key: Final = by_key
        self._kinds: Final[list[Memo[tuple[str, ...], CallRow]]] = [Memo(_MOST_KINDS) for _ in range(2 * len(Endpoint))]
        self.known: Final = tuple(kinds.get for kinds in self._kinds)
        self._models: Final[set[str]] = set()
        self._seen: Final = [0] * block.table.blocks
        rest_at = block.row((call_series.OTHER,) * _N_LABELS)  # of all that find no room: made while there is some
        assert rest_at is not None, "it is the first row"
        self._rest_at: Final = rest_at

    def __repr__(self) -> str:
        return f"<CallSeries {self._block!r} models={len(self._models)}>"

    def name_by(self, name: ModelName) -> None:
        """Name models otherwise from now on, as after a reload."""
        self._name = name
        for kinds in self._kinds:
            kinds.clear()

    def row(self, endpoint: Endpoint, kind: CallKind, caller: Caller, *, is_stream: bool) -> CallRow:
        """Return the series of a request."""
        kinds = self._kinds[2 * endpoint + is_stream]
        key: tuple[str, ...] = kind
        if self._by_team or self._by_key:
            key = (*kind, caller.terms.team if self._by_team else "", caller.name if self._by_key else "")
        found = kinds.get(key) or kinds.find(key)
        return kinds.put(key, self._made(endpoint, key, is_stream=is_stream)) if found is None else found

    def _made(self, endpoint: Endpoint, key: tuple[str, ...], *, is_stream: bool) -> CallRow:
        route, upstream, model, *caller = key
        what = endpoint.name.lower(), "yes" if is_stream else "no"
        at = self._block.row((*what, route, upstream, self._model(upstream, model), *caller))
        return CallRow(self._block.add, self._rest_at if at is None else at)

    def _model(self, upstream: str, model: str) -> str:
        """Return the label of a model; `other` for one that is not known, or beyond the bound."""
        if not model:
            return ""
        name = self._name(upstream, model)
        if not name:
            return call_series.OTHER
        if name not in self._models:
            for block, labels in self._block.others(tuple(self._seen)):
                self._seen[block] += 1
                self._models.add(labels[_MODEL])
            self._models.difference_update((call_series.OTHER, ""))
            if name not in self._models and len(self._models) >= self._most_models:
                return call_series.OTHER
            self._models.add(name)
        return name
