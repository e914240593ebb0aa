"""The variables of the upstream side: where requests go, how, and what happens when that fails.

Knows: as for variables. Does not know: the clients' side.
"""

from __future__ import annotations

from typing import Final

from velox.settings import parse
from velox.settings.variable import CORES, DAY_S, TIMEOUT, Variable

__all__ = ["UPSTREAM_VARIABLES"]

UPSTREAM_VARIABLES: Final = (
    Variable(
        "VELOX_UPSTREAM_ORIGIN",
        "upstream_origins",
        parse.origins,
        "https://api.openai.com",
        "where requests go: `http(s)://HOST[:PORT][/PATH]` or `unix:PATH`; more of them, commas between, are used in"
        " their order when those before fail",
        shown_default="https://api.openai.com (`velox serve --sim`: the built-in simulator)",
        plural=True,
    ),
    Variable(
        "VELOX_UPSTREAM_REQUEST_PATH",
        "upstream_request_path",
        parse.path,
        "/v1/responses",
        "where a bare `POST /` goes",
    ),
    Variable(
        "VELOX_UPSTREAM_WARMUP_PATH",
        "upstream_warmup_path",
        parse.path,
        "/v1/models",
        "path of the HEAD request that warms a connection",
    ),
    Variable(
        "VELOX_HTTP2_ENGINE",
        "http2_engine",
        parse.one_of("ngh2", "h2"),
        "ngh2",
        "engine for HTTP/2, to upstreams and clients: `ngh2` or `h2`",
    ),
    Variable(
        "VELOX_UPSTREAM_HTTP2",
        "upstream_http2",
        parse.one_of("auto", "on", "off"),
        "auto",
        "`auto` (ALPN on https, HTTP/1.1 on http), `on` (prior knowledge) or `off`",
    ),
    Variable(
        "VELOX_UPSTREAM_CA_FILE",
        "upstream_ca_file",
        parse.file_path,
        "",
        "PEM file with the authorities that may sign the upstream's certificate",
        shown_default="the system's",
    ),
    Variable(
        "VELOX_UPSTREAM_CERT_FILE",
        "upstream_cert_file",
        parse.file_path,
        "",
        "PEM file with the client certificate for upstreams that ask for one",
    ),
    Variable(
        "VELOX_UPSTREAM_KEY_FILE",
        "upstream_key_file",
        parse.file_path,
        "",
        "PEM file with its private key, if that is not in the same file",
    ),
    Variable(
        "VELOX_UPSTREAM_STREAM_WINDOW",
        "upstream_stream_window_bytes",
        parse.size(65_535, 16 << 20),
        "128KiB",
        "bytes of one reply that an HTTP/2 upstream may send ahead of a client that reads slowly",
    ),
    Variable(
        "VELOX_UPSTREAM_CONNECT_TIMEOUT",
        "upstream_connect_timeout_s",
        TIMEOUT,
        "3s",
        "longest wait for a connection to the upstream",
    ),
    Variable(
        "VELOX_UPSTREAM_TLS_TIMEOUT",
        "upstream_tls_timeout_s",
        TIMEOUT,
        "5s",
        "longest wait for the TLS handshake with it",
    ),
    Variable(
        "VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT",
        "upstream_first_byte_timeout_s",
        TIMEOUT,
        "60s",
        "longest wait for the first byte of a reply",
    ),
    Variable(
        "VELOX_UPSTREAM_IDLE_TIMEOUT",
        "upstream_idle_timeout_s",
        TIMEOUT,
        "60s",
        "longest silence inside a reply; comments of an event stream count as silence",
    ),
    Variable(
        "VELOX_UPSTREAM_WRITE_TIMEOUT",
        "upstream_write_timeout_s",
        TIMEOUT,
        "30s",
        "how long an upstream may take nothing of a request's body",
    ),
    Variable(
        "VELOX_UPSTREAM_TOTAL_TIMEOUT",
        "upstream_total_timeout_s",
        parse.duration(0.0, DAY_S),
        "600s",
        "longest time for a whole reply that is no stream, all attempts together; 0: no limit",
    ),
    Variable(
        "VELOX_STREAM_TIMEOUT",
        "stream_timeout_s",
        parse.duration(0.0, DAY_S),
        "0s",
        "the same for a streamed reply; 0: no limit",
    ),
    Variable(
        "VELOX_SSE_KEEPALIVE",
        "sse_keepalive_s",
        parse.duration(0.0, DAY_S),
        "0s",
        "silence after which a comment is sent between two events of a stream, for proxies that drop idle connections;"
        " 0: never",
    ),
    Variable(
        "VELOX_RETRIES",
        "retries",
        parse.integer(0, 5),
        "1",
        "further attempts at a request that the upstream may have begun, before the first byte of a reply",
    ),
    Variable(
        "VELOX_RETRY_STATUSES",
        "retry_statuses",
        parse.statuses,
        "408,429,500,502,503,504",
        "statuses of an upstream that are tried again, commas between them, or `none`",
        plural=True,
    ),
    Variable(
        "VELOX_RETRY_MAX_WAIT",
        "retry_max_wait_s",
        parse.duration(0.0, 3600.0),
        "10s",
        "longest Retry-After that Velox waits for by itself; a longer one is passed on",
    ),
    Variable(
        "VELOX_RETRY_BUDGET",
        "retry_budget_percent",
        parse.integer(0, 1000),
        "20",
        "retries allowed, in percent of the requests of the last 10 seconds",
    ),
    Variable(
        "VELOX_RETRY_BUDGET_MIN",
        "retry_budget_per_s",
        parse.integer(0, 1_000_000),
        "10",
        "retries a second that are allowed besides, over all workers",
    ),
    Variable(
        "VELOX_READY_REQUIRES_UPSTREAM",
        "ready_requires_upstream",
        parse.switch,
        "on",
        "`/readyz` says 503 until an upstream has answered a warm-up: `on` or `off`",
    ),
    Variable(
        "VELOX_EGRESS_POOL_CONNECTIONS",
        "egress_pool_connections",
        parse.integer(1, 4096),
        CORES,
        "connections to each upstream that are kept warm, over all workers",
    ),
    Variable(
        "VELOX_EGRESS_MAX_AGE",
        "egress_max_age_s",
        TIMEOUT,
        "3600s",
        "age at which an upstream connection is replaced, give or take a tenth",
    ),
    Variable(
        "VELOX_EGRESS_MAX_REQUESTS",
        "egress_max_requests",
        parse.integer(1, 1_000_000_000),
        "1000000",
        "requests after which an upstream connection is replaced, give or take a tenth",
    ),
    Variable(
        "VELOX_EGRESS_IDLE_TIMEOUT",
        "egress_idle_timeout_s",
        TIMEOUT,
        "60s",
        "how long an upstream connection beyond the warm ones is kept unused",
    ),
    Variable(
        "VELOX_EGRESS_PING_INTERVAL",
        "egress_ping_interval_s",
        TIMEOUT,
        "30s",
        "silence after which an HTTP/2 upstream connection is asked for a sign of life (PING)",
    ),
    Variable(
        "VELOX_DNS_REFRESH",
        "dns_refresh_s",
        parse.duration(0.1, 3600.0),
        "15s",
        "how often an upstream's name is looked up again",
    ),
    Variable(
        "OPENAI_API_KEY",
        "openai_api_key",
        parse.secret,
        "",
        "bearer for the upstream; without it the client's own `Authorization` is passed on",
        secret=True,
    ),
    Variable(
        "VELOX_UPSTREAM_ACCOUNT_HEADERS",
        "upstream_account_headers",
        parse.one_of("drop", "pass"),
        "drop",
        "a client's `OpenAI-Organization` and `OpenAI-Project` where its own key does not go up: `drop` or `pass`",
    ),
)
