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
from typing import Final, TypeAlias

from velox.errors import Reason
from velox.outcomes import (
    SHED_REASONS,
    AttemptOutcome,
    ConnectionEnd,
    Decision,
    DnsResult,
    Hedged,
    LeaseResult,
    Mirrored,
    Phase,
    Retry,
    RetryDenied,
    StreamEnd,
    TokenCount,
    Unit,
)
from velox.shm.upstream_table import FIRST_BYTE_NS
from velox.types import Endpoint, Priority, Scope

__all__ = [
    "CELLS",
    "COUNTERS",
    "DURATION_NS",
    "GAUGES",
    "HISTOGRAMS",
    "OVERHEAD_NS",
    "Counter",
    "Gauge",
    "Histogram",
    "Label",
    "TlsFailure",
]


def _ns(*seconds: float) -> tuple[int, ...]:
    return tuple(round(s * 1e9) for s in seconds)


# Those of gen_ai.server.request.duration in OpenTelemetry's conventions. Those of its time_to_first_token are in
# velox.shm.upstream_table, where the first bytes of each upstream are counted in them, too.
DURATION_NS: Final = _ns(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
# What Velox adds is tens of microseconds when all is well, and seconds in a full queue.
OVERHEAD_NS: Final = _ns(
    *(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1, 2.5, 5)
)


class TlsFailure(enum.IntEnum):
    """Why a TLS handshake with a client did not end well."""

    PLAIN_HTTP = 0  # a request in plain text
    NOT_TLS = 1  # neither that nor a handshake
    VERSION = 2  # the client knows no TLS as new as 1.2
    CIPHER = 3  # no cipher, group or signature in common
    CLIENT_CERTIFICATE = 4  # none, or none that VELOX_TLS_CLIENT_CA signed
    REFUSED = 5  # by the client; mostly it does not trust our certificate
    TIMEOUT = 6
    CLOSED = 7  # by the client, in the middle
    LIMIT = 8  # too many connections
    OTHER = 9


# A label and all the values that it can have.
Label: TypeAlias = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Counter:
    """A family of counters: a cell for each combination of label values, the last label changes fastest.

    sparse: most combinations never happen; a series is shown from its first event on.
    """

    name: str
    help: str
    first: int
    labels: tuple[Label, ...] = ()
    sparse: bool = False

    @property
    def end(self) -> int:
        """Return the cell after the last one."""
        return self.first + prod(len(values) for _, values in self.labels)

    def series(self) -> list[tuple[str, ...]]:
        """Return the label values of each cell, in the order of the cells."""
        return list(product(*(values for _, values in self.labels)))


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge, or one for each value of a label; the gateway's value is the sum over its workers."""

    name: str
    help: str
    first: int
    label: Label | None = None

    @property
    def end(self) -> int:
        """Return the cell after the last one."""
        return self.first + (len(self.label[1]) if self.label else 1)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A family of histograms of times.

    A series is its buckets (not cumulative, +Inf last), then its sum in nanoseconds.
    bounds_ns: upper bounds, inclusive as Prometheus has them. label: at most one.
    """

    name: str
    help: str
    first: int
    bounds_ns: tuple[int, ...]
    label: Label | None = None
    sparse: bool = False

    @property
    def stride(self) -> int:
        """Return the number of cells of one series."""
        return len(self.bounds_ns) + 2

    @property
    def end(self) -> int:
        """Return the cell after the last one."""
        return self.first + self.stride * (len(self.label[1]) if self.label else 1)


def _names(members: type[enum.IntEnum]) -> tuple[str, ...]:
    """Return the label values of an enum whose members count from 0."""
    return tuple(member.name.lower() for member in members)


_PRIORITY: Final[Label] = ("class", _names(Priority))
_ROUTE: Final[Label] = ("route", _names(Endpoint))
_CLASS: Final[Label] = ("class", ("2xx", "3xx", "4xx", "5xx"))
_REASON: Final[Label] = ("reason", ("ok", *(reason.code for reason in Reason)))

_SHED: Final[Label] = ("reason", tuple(reason.code for reason in SHED_REASONS))

REQUESTS: Final = Counter(
    "velox_requests",
    "Requests answered, by route, status class and reason.",
    0,
    (_ROUTE, _CLASS, _REASON),
    True,
)
ATTEMPTS: Final = Counter(
    "velox_upstream_attempts",
    "Attempts at the upstream, by outcome.",
    REQUESTS.end,
    (("outcome", _names(AttemptOutcome)),),
)
STREAM_ENDS: Final = Counter(
    "velox_stream_end", "Streamed replies, by how they ended.", ATTEMPTS.end, (("reason", _names(StreamEnd)),)
)
SHED: Final = Counter("velox_shed", "Requests and connections refused under load.", STREAM_ENDS.end, (_SHED,))
LIMIT: Final = Counter(
    "velox_limit_decisions",
    "What the limits said of requests, by what they are counted for and what they count.",
    SHED.end,
    (("scope", _names(Scope)), ("unit", _names(Unit)), ("decision", _names(Decision))),
)
TOKENS: Final = Counter(
    "velox_tokens",
    "Tokens of models, of requests whose tokens a limit counts.",
    LIMIT.end,
    (("kind", _names(TokenCount)),),
)
WARM_FAILURES: Final = Counter("velox_upstream_warm_failures", "Warm-ups of a connection that failed.", TOKENS.end)
LOG_DROPPED: Final = Counter("velox_log_dropped", "Log lines dropped.", WARM_FAILURES.end)
RETRIES: Final = Counter(
    "velox_retries",
    "Further attempts at a request, by what the one before ended in.",
    LOG_DROPPED.end,
    (("cause", _names(Retry)),),
)
RETRIES_DENIED: Final = Counter(
    "velox_retries_denied",
    "Requests that could have been tried again and were not, by what forbade it.",
    RETRIES.end,
    (("by", _names(RetryDenied)),),
)
CONNECTION_ENDS: Final = Counter(
    "velox_upstream_connections_ended",
    "Upstream connections that take no more requests, by why.",
    RETRIES_DENIED.end,
    (("cause", _names(ConnectionEnd)),),
)
DNS_REFRESH: Final = Counter(
    "velox_dns_refresh",
    "Look-ups of an upstream's name, by result.",
    CONNECTION_ENDS.end,
    (("result", _names(DnsResult)),),
)
STREAM_ERRORS: Final = Counter(
    "velox_stream_error_events", "Error events of upstreams inside streams, passed on unchanged.", DNS_REFRESH.end
)
AUTH_FAILURES: Final = Counter(
    "velox_upstream_auth_failures", "Replies 401 and 403 of upstreams: look at their key.", STREAM_ERRORS.end
)

TLS_HANDSHAKES: Final = Counter(
    "velox_tls_handshakes",
    "TLS handshakes with clients that ended well, by whether they resumed a session.",
    AUTH_FAILURES.end,
    (("resumed", ("no", "yes")),),
)
TLS_FAILURES: Final = Counter(
    "velox_tls_handshake_failures",
    "TLS handshakes with clients that failed, by cause.",
    TLS_HANDSHAKES.end,
    (("cause", _names(TlsFailure)),),
)

TUNNEL_BYTES: Final = Counter(
    "velox_tunnel_bytes",
    "Bytes that went through WebSockets.",
    TLS_FAILURES.end,
    (("to", ("upstream", "client")),),
)

LEASES: Final = Counter(
    "velox_leases",
    "What came of permits that were asked for in Redis, by limit, or brought back there; failed: by question.",
    TUNNEL_BYTES.end,
    (("result", _names(LeaseResult)),),
)

HEDGES: Final = Counter(
    "velox_hedges", "Second tries while the first had not answered.", LEASES.end, (("outcome", _names(Hedged)),)
)
MIRRORED: Final = Counter(
    "velox_mirrored_requests", "Copies of requests.", HEDGES.end, (("outcome", _names(Mirrored)),)
)
CANARY: Final = Counter("velox_canary_requests", "Requests that went to a canary.", MIRRORED.end)

QUEUE_DEPTH: Final = Gauge("velox_queue_depth", "Requests in the admission queues, by priority.", CANARY.end, _PRIORITY)
INFLIGHT: Final = Gauge("velox_inflight_requests", "Requests admitted and not yet answered.", QUEUE_DEPTH.end)
CONNECTIONS: Final = Gauge("velox_client_connections", "Open connections of clients.", INFLIGHT.end)
HTTP2_CONNECTIONS: Final = Gauge(
    "velox_client_http2_connections", "Open connections of clients that speak HTTP/2.", CONNECTIONS.end
)
POOL_READY: Final = Gauge("velox_upstream_connections", "Upstream connections ready for use.", HTTP2_CONNECTIONS.end)
POOL_STREAMS: Final = Gauge("velox_upstream_streams", "Exchanges on upstream connections.", POOL_READY.end)
UPSTREAMS_OUT: Final = Gauge(
    "velox_upstreams_out", "Upstreams passed over because they fail, counted in each worker.", POOL_STREAMS.end
)
TUNNELS: Final = Gauge("velox_tunnels", "Open WebSockets.", UPSTREAMS_OUT.end)
UPSTREAM_LIMIT: Final = Gauge(
    "velox_upstream_concurrency_limit",
    "Requests that may run on the upstreams at once, over all of them; 0: any number.",
    TUNNELS.end,
)
UPSTREAM_INFLIGHT: Final = Gauge(
    "velox_upstream_inflight", "Requests that count for that limit; 0 while there is none.", UPSTREAM_LIMIT.end
)

DURATION: Final = Histogram(
    "gen_ai_server_request_duration_seconds",
    "Time from the moment a request is whole to the end of its reply.",
    UPSTREAM_INFLIGHT.end,
    DURATION_NS,
    _ROUTE,
    sparse=True,
)
TTFT: Final = Histogram(
    "gen_ai_server_time_to_first_token_seconds",
    "Time from the moment a request is whole to the first bytes of its reply, streamed or not.",
    DURATION.end,
    FIRST_BYTE_NS,
    _ROUTE,
    sparse=True,
)
OVERHEAD: Final = Histogram(
    "velox_overhead_seconds",
    "Time that Velox itself adds, by phase; the queue's is velox_queue_wait_seconds.",
    TTFT.end,
    OVERHEAD_NS,
    ("phase", _names(Phase)),
)
LOOP_LAG: Final = Histogram(
    "velox_event_loop_lag_seconds", "How late the event loop runs a timer.", OVERHEAD.end, OVERHEAD_NS
)
QUEUE_WAIT: Final = Histogram(
    "velox_queue_wait_seconds",
    "Time in the admission queue, by priority, of requests that left it to be sent.",
    LOOP_LAG.end,
    OVERHEAD_NS,
    _PRIORITY,
)
LEASE_ROUND_TRIP: Final = Histogram(
    "velox_lease_round_trip_seconds", "Time for one question to Redis, about many limits.", QUEUE_WAIT.end, OVERHEAD_NS
)

COUNTERS: Final = (
    REQUESTS,
    ATTEMPTS,
    STREAM_ENDS,
    SHED,
    LIMIT,
    TOKENS,
    WARM_FAILURES,
    LOG_DROPPED,
    RETRIES,
    RETRIES_DENIED,
    CONNECTION_ENDS,
    DNS_REFRESH,
    STREAM_ERRORS,
    AUTH_FAILURES,
    TLS_HANDSHAKES,
    TLS_FAILURES,
    TUNNEL_BYTES,
    LEASES,
    HEDGES,
    MIRRORED,
    CANARY,
)
GAUGES: Final = (
    QUEUE_DEPTH,
    INFLIGHT,
    CONNECTIONS,
    HTTP2_CONNECTIONS,
    POOL_READY,
    POOL_STREAMS,
    UPSTREAMS_OUT,
    TUNNELS,
    UPSTREAM_LIMIT,
    UPSTREAM_INFLIGHT,
)
HISTOGRAMS: Final = (DURATION, TTFT, OVERHEAD, LOOP_LAG, QUEUE_WAIT, LEASE_ROUND_TRIP)
CELLS: Final = LEASE_ROUND_TRIP.end
