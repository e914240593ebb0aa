"""The fixed set of metric series, and the cell of the slab in which each number is.

Knows: names, labels, buckets, offsets. Does not know: how a cell is written (velox.observe.metrics) or shown
(velox.admin.metrics_page).

Label values come from closed lists only, never from a request, so no client can add a series. Names follow
OpenTelemetry's GenAI conventions in Prometheus spelling where one fits; `velox_*` is our own.
Each family begins where the one before it ends; CELLS is the size of the whole.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final, Literal, TypeAlias

from velox import outcomes
from velox.errors import Reason
from velox.observe import genai
from velox.types import ApiKind, Endpoint, Priority, Scope

__all__ = ["CELLS", "FAMILIES", "GAUGES", "OVERHEAD_NS", "Family"]


def _ns(*seconds: float) -> tuple[int, ...]:
    return tuple(round(s * 1e9) for s in seconds)


# What Velox adds is tens of microseconds when all is well, and seconds in a full queue.
OVERHEAD_NS: Final = _ns(
    *(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1, 2.5, 5)
)


# A label and all the values that it can have.
Label: TypeAlias = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """Counters, gauges or histograms of times: one for each combination of label values, the last label changes first.

    first: its first cell. bounds_ns: upper bounds of a histogram, inclusive as in Prometheus. A histogram is its
    buckets (not cumulative, +Inf last), then its sum in nanoseconds; a counter or a gauge is one cell. A gauge is
    summed over the workers. sparse: most combinations never happen; a series is shown from its first event on.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    first: int
    labels: tuple[Label, ...] = ()
    bounds_ns: tuple[int, ...] = ()
    sparse: bool = False

    @property
    def stride(self) -> int:
        """Return the number of cells of one series."""
        return len(self.bounds_ns) + 2 if self.kind == "histogram" else 1

    @property
    def end(self) -> int:
        """Return the cell after the last one."""
        return self.first + self.stride * prod(len(values) for _, values in self.labels)

    def series(self) -> list[tuple[str, ...]]:
        """Return the label values of each series, in the order of the cells."""
        return list(product(*(values for _, values in self.labels)))


class _Layout:
    """Places the families one after the other."""

    def __init__(self) -> None:
        self.families: Final[list[Family]] = []

    @property
    def end(self) -> int:
        return self.families[-1].end if self.families else 0

    def counter(self, name: str, text: str, *labels: Label, sparse: bool = False) -> Family:
        return self._add(Family("counter", name, text, self.end, labels, sparse=sparse))

    def gauge(self, name: str, text: str, *labels: Label) -> Family:
        return self._add(Family("gauge", name, text, self.end, labels))

    def times(self, name: str, text: str, bounds_ns: tuple[int, ...], *labels: Label, sparse: bool = False) -> Family:
        return self._add(Family("histogram", name, text, self.end, labels, bounds_ns, sparse))

    def _add(self, family: Family) -> Family:
        self.families.append(family)
        return family


def _label(name: str, members: type[enum.IntEnum]) -> Label:
    """Return the label whose values are the members of an enum that counts from 0."""
    return name, tuple(member.name.lower() for member in members)


_PRIORITY: Final = _label("class", Priority)
_ROUTE: Final = _label("route", Endpoint)
_CLASS: Final[Label] = ("class", ("2xx", "3xx", "4xx", "5xx"))
_REASON: Final[Label] = ("reason", ("ok", *(reason.code for reason in Reason)))
_API_KINDS: Final = (_label("client", ApiKind), _label("upstream", ApiKind))
_SHED: Final[Label] = ("reason", tuple(reason.code for reason in outcomes.SHED_REASONS))

_layout: Final = _Layout()

REQUESTS: Final = _layout.counter(
    "velox_requests", "Requests answered, by route, status class and reason.", _ROUTE, _CLASS, _REASON, sparse=True
)
ATTEMPTS: Final = _layout.counter(
    "velox_upstream_attempts", "Attempts at the upstream, by outcome.", _label("outcome", outcomes.AttemptOutcome)
)
STREAM_ENDS: Final = _layout.counter(
    "velox_stream_end", "Streamed replies, by how they ended.", _label("reason", outcomes.StreamEnd)
)
SHED: Final = _layout.counter("velox_shed", "Refusals under load, or without Redis or ledger.", _SHED)
LIMIT: Final = _layout.counter(
    "velox_limit_decisions",
    "Decisions of the limits on requests, by scope and unit.",
    _label("scope", Scope),
    _label("unit", outcomes.Unit),
    _label("decision", outcomes.Decision),
)
TOKENS: Final = _layout.counter(
    "velox_tokens", "Model tokens of requests under a token limit.", _label("kind", outcomes.TokenCount)
)
WARM_FAILURES: Final = _layout.counter("velox_upstream_warm_failures", "Connection warm-ups that failed.")
LOG_DROPPED: Final = _layout.counter("velox_log_dropped", "Log lines dropped.")
TRACE_SPANS: Final = _layout.counter(
    "velox_trace_spans", "Spans of traces, by what became of them.", _label("result", outcomes.SpanEnd)
)
RETRIES: Final = _layout.counter(
    "velox_retries", "Retries, by how the attempt before failed.", _label("cause", outcomes.Retry)
)
RETRIES_DENIED: Final = _layout.counter(
    "velox_retries_denied", "Requests that were not retried, by what forbade it.", _label("by", outcomes.RetryDenied)
)
CONNECTION_ENDS: Final = _layout.counter(
    "velox_upstream_connections_ended",
    "Upstream connections that were closed or retired, by cause.",
    _label("cause", outcomes.ConnectionEnd),
)
DNS_REFRESH: Final = _layout.counter(
    "velox_dns_refresh", "DNS lookups of an upstream's name, by result.", _label("result", outcomes.DnsResult)
)
STREAM_ERRORS: Final = _layout.counter(
    "velox_stream_error_events", "Error events of upstreams inside streams, passed on unchanged."
)
AUTH_FAILURES: Final = _layout.counter(
    "velox_upstream_auth_failures", "Replies of upstreams with status 401 or 403, to keys of clients, too."
)
TLS_HANDSHAKES: Final = _layout.counter(
    "velox_tls_handshakes",
    "Successful TLS handshakes with clients, by whether they resumed a session.",
    ("resumed", ("no", "yes")),
)
TLS_FAILURES: Final = _layout.counter(
    "velox_tls_handshake_failures",
    "Failed TLS handshakes with clients, by cause.",
    _label("cause", outcomes.TlsFailure),
)
TUNNEL_BYTES: Final = _layout.counter(
    "velox_tunnel_bytes", "Bytes sent through WebSockets.", ("to", ("upstream", "client"))
)
LEASES: Final = _layout.counter(
    "velox_leases",
    "Permits requested from Redis or returned to it, by result, one per limit; failed: one per question.",
    _label("result", outcomes.LeaseResult),
)
KEY_CORRECTIONS: Final = _layout.counter(
    "velox_key_corrections",
    "Keys that were accepted, refused or limited wrongly, found by comparing, by whose view was corrected.",
    _label("held_by", outcomes.KeyHolder),
)
HEDGES: Final = _layout.counter(
    "velox_hedges",
    "Hedged requests: second attempts before the first had answered.",
    _label("outcome", outcomes.Hedged),
)
USAGE_DRAINS: Final = _layout.counter(
    "velox_usage_drains",
    "Streams that were to be read on for their usage after their clients had left, by what came of it.",
    _label("outcome", outcomes.Drained),
)
MIRRORED: Final = _layout.counter(
    "velox_mirrored_requests", "Mirrored requests, by outcome.", _label("outcome", outcomes.Mirrored)
)
CACHE_RESULTS: Final = _layout.counter(
    "velox_cache_requests",
    "Requests of routes with a cache, by what it had for them.",
    _label("result", outcomes.CacheResult),
)
CACHE_STORED: Final = _layout.counter("velox_cache_stored", "Answers that the cache has kept.")
CACHE_STORED_BYTES: Final = _layout.counter("velox_cache_stored_bytes", "Bytes of these.")
CACHE_EVICTED_BYTES: Final = _layout.counter(
    "velox_cache_evicted_bytes", "Bytes of kept answers that gave way to newer ones."
)
CACHE_PURGES: Final = _layout.counter("velox_cache_purges", "Purges of the cache.")
CACHE_PURGED: Final = _layout.counter("velox_cache_purged", "Kept answers that purges have taken out.")
JOIN_RESULTS: Final = _layout.counter(
    "velox_join_requests",
    "Requests of routes that join calls, by whose call gave them their reply.",
    _label("result", outcomes.JoinResult),
)
CANARY: Final = _layout.counter("velox_canary_requests", "Requests sent to a canary.")
TRANSLATIONS: Final = _layout.counter(
    "velox_translations",
    "Attempts whose request was put into another dialect, by the client's API and the upstream's.",
    *_API_KINDS,
    sparse=True,
)
DROPPED_FIELDS: Final = _layout.counter(
    "velox_translation_dropped_fields",
    "Fields of requests that were left out by a translation, because the upstream's API has none such.",
    *_API_KINDS,
    sparse=True,
)

QUEUE_DEPTH: Final = _layout.gauge("velox_queue_depth", "Requests in the admission queues, by priority.", _PRIORITY)
INFLIGHT: Final = _layout.gauge("velox_inflight_requests", "Requests admitted and not yet answered.")
CONNECTIONS: Final = _layout.gauge("velox_client_connections", "Open client connections.")
HTTP2_CONNECTIONS: Final = _layout.gauge("velox_client_http2_connections", "Open client connections over HTTP/2.")
POOL_READY: Final = _layout.gauge("velox_upstream_connections", "Upstream connections ready for use.")
POOL_STREAMS: Final = _layout.gauge("velox_upstream_streams", "Exchanges on upstream connections.")
UPSTREAMS_OUT: Final = _layout.gauge(
    "velox_upstreams_out", "Members of upstreams that are ejected because they fail, counted in each worker."
)
TUNNELS: Final = _layout.gauge("velox_tunnels", "Open WebSockets.")
UPSTREAM_LIMIT: Final = _layout.gauge(
    "velox_upstream_concurrency_limit",
    "Requests that may run on the upstreams at once, over all of them; 0: unlimited.",
)
UPSTREAM_INFLIGHT: Final = _layout.gauge(
    "velox_upstream_inflight", "Requests that count towards that limit; 0 while there is none."
)

# Of requests that were sent to no upstream; those that were have series by route, upstream and model (call_series.py).
DURATION: Final = _layout.times(
    genai.DURATION,
    "Time from the complete request to the end of its reply.",
    genai.DURATION_NS,
    _ROUTE,
    sparse=True,
)
TTFT: Final = _layout.times(
    genai.TTFT,
    'Time from the complete request to the first bytes of its reply; streams have the label stream="yes".',
    genai.TTFT_NS,
    _ROUTE,
    sparse=True,
)
OVERHEAD: Final = _layout.times(
    "velox_overhead_seconds",
    "Time that Velox itself adds, by phase; for the queue see velox_queue_wait_seconds.",
    OVERHEAD_NS,
    _label("phase", outcomes.Phase),
)
LOOP_LAG: Final = _layout.times("velox_event_loop_lag_seconds", "How late the event loop runs a timer.", OVERHEAD_NS)
QUEUE_WAIT: Final = _layout.times(
    "velox_queue_wait_seconds",
    "Time in the admission queue, by priority, of requests that left it to be sent.",
    OVERHEAD_NS,
    _PRIORITY,
)
LEASE_ROUND_TRIP: Final = _layout.times(
    "velox_lease_round_trip_seconds", "Time of one question to Redis, about many limits.", OVERHEAD_NS
)

FAMILIES: Final = tuple(_layout.families)
GAUGES: Final = tuple(family for family in FAMILIES if family.kind == "gauge")
CELLS: Final = _layout.end
