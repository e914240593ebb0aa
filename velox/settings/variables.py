"""The one table of variables: it drives parsing, `velox check` and README's table.

Knows: name, field, parser, default and meaning of each. Does not know: where a value came from.
In the YAML file a variable is called by its name in lower case without VELOX_ (`Variable.key`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from velox.settings import parse

__all__ = ["CORES", "VARIABLES", "Variable"]

# A default that stands for the number of cores this process may use.
CORES: Final = "number of cores"

_GIB: Final = 2**30
_DAY_S: Final = 86_400.0
_SHORTEST_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable.

    default: text for `parse`; "" is none, the field is then None (or empty).  shown_default: what the table
    says instead of it.  plural: the file may give a list.  secret: the value is never shown.
    """

    name: str
    field: str
    parse: Callable[[str], object]
    default: str
    meaning: str
    shown_default: str = ""
    plural: bool = False
    secret: bool = False

    @property
    def key(self) -> str:
        """The variable's name in the YAML file."""
        return self.name.removeprefix("VELOX_").lower()


_TIMEOUT: Final = parse.duration(_SHORTEST_S, _DAY_S)

VARIABLES: Final = (
    Variable(
        "VELOX_LISTEN",
        "listen",
        parse.address,
        "127.0.0.1:8080",
        "address for clients: `IP:PORT` or `unix:PATH`",
        shown_default="127.0.0.1:8080 (image: 0.0.0.0:8080)",
    ),
    Variable(
        "VELOX_ADMIN_LISTEN",
        "admin_listen",
        parse.address_or_off,
        "127.0.0.1:6060",
        "address for metrics, health and profiling, or `off`",
    ),
    Variable("VELOX_WORKERS", "workers", parse.integer(1, 512), CORES, "worker processes"),
    Variable("VELOX_PIN_CPUS", "pin_cpus", parse.switch, "on", "pin each worker to one core: `on` or `off`"),
    Variable(
        "VELOX_UPSTREAM_ORIGIN",
        "upstream_origin",
        parse.origin,
        "https://api.openai.com",
        "where requests go; its path, if any, is put before theirs",
        shown_default="https://api.openai.com (`velox serve --sim`: the built-in simulator)",
    ),
    Variable(
        "VELOX_UPSTREAM_REQUEST_PATH",
        "upstream_request_path",
        parse.path,
        "/v1/responses",
        "where a bare `POST /` goes",
    ),
    Variable(
        "VELOX_PATHS",
        "paths",
        parse.prefixes,
        "*",
        "path prefixes that pass, commas between them; others get 404 `unknown_route`",
        plural=True,
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
        "engine for HTTP/2 to the upstream: `ngh2` or `h2`",
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
        "VELOX_UPSTREAM_CONNECT_TIMEOUT",
        "upstream_connect_timeout_s",
        _TIMEOUT,
        "3s",
        "longest wait for a connection to the upstream",
    ),
    Variable(
        "VELOX_UPSTREAM_TLS_TIMEOUT",
        "upstream_tls_timeout_s",
        _TIMEOUT,
        "5s",
        "longest wait for the TLS handshake with it",
    ),
    Variable(
        "VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT",
        "upstream_first_byte_timeout_s",
        _TIMEOUT,
        "60s",
        "longest wait for the first byte of a reply",
    ),
    Variable(
        "VELOX_UPSTREAM_IDLE_TIMEOUT",
        "upstream_idle_timeout_s",
        _TIMEOUT,
        "60s",
        "longest silence inside a reply",
    ),
    Variable(
        "VELOX_EGRESS_POOL_CONNECTIONS",
        "egress_pool_connections",
        parse.integer(1, 4096),
        CORES,
        "connections to the upstream that are kept warm, over all workers",
    ),
    Variable(
        "VELOX_RATE_LIMIT_RPM",
        "rate_limit_rpm",
        parse.integer(0, 60_000_000),
        "10000",
        "requests a minute, over all workers; 0: no limit",
    ),
    Variable(
        "VELOX_RATE_LIMIT_BURST",
        "rate_limit_burst",
        parse.integer(1, 10_000_000),
        "500",
        "requests that may come at once",
    ),
    Variable(
        "VELOX_RATE_LIMIT_MAX_WAIT",
        "rate_limit_max_wait_s",
        parse.duration(0.0, 3600.0),
        "1s",
        "how long a request may wait for its turn before it gets 429",
    ),
    Variable(
        "VELOX_QUEUE_DEPTH",
        "queue_depth",
        parse.integer(1, 10_000_000),
        "16384",
        "requests that may wait for admission, over all workers; more get 503 `queue_full`",
    ),
    Variable(
        "VELOX_QUEUE_BATCH",
        "queue_batch",
        parse.integer(1, 65_536),
        "64",
        "requests that a worker admits per turn of its loop",
    ),
    Variable(
        "VELOX_QUEUE_TIMEOUT",
        "queue_timeout_s",
        _TIMEOUT,
        "5s",
        "longest wait for admission; then 503 `queue_timeout`",
    ),
    Variable(
        "VELOX_MAX_BODY",
        "max_body_bytes",
        parse.size(1, 4 * _GIB),
        "64MiB",
        "largest request body; more gets 413",
    ),
    Variable(
        "VELOX_BODY_BUDGET",
        "body_budget_bytes",
        parse.size(1, 1024 * _GIB),
        "256MiB",
        "request bodies that a worker holds at once; more get 503 `overload_memory`",
    ),
    Variable(
        "VELOX_MAX_INFLIGHT",
        "max_inflight",
        parse.integer(1, 10_000_000),
        "8192",
        "exchanges with the upstream at once, over all workers; more wait",
    ),
    Variable(
        "VELOX_MAX_CONNECTIONS",
        "max_connections",
        parse.integer(1, 10_000_000),
        "16384",
        "client connections at once, over all workers; more get 503 `conn_limit`",
    ),
    Variable("VELOX_HEADER_TIMEOUT", "header_timeout_s", _TIMEOUT, "10s", "longest wait for a request's whole head"),
    Variable("VELOX_BODY_TIMEOUT", "body_timeout_s", _TIMEOUT, "15s", "longest silence inside a request's body"),
    Variable(
        "VELOX_KEEPALIVE_TIMEOUT",
        "keepalive_timeout_s",
        _TIMEOUT,
        "75s",
        "how long an idle client connection is kept",
    ),
    Variable(
        "VELOX_CLIENT_WRITE_TIMEOUT",
        "write_stall_timeout_s",
        _TIMEOUT,
        "30s",
        "how long a client may leave its reply unread",
    ),
    Variable(
        "VELOX_API_KEYS",
        "api_key_digests",
        parse.key_digests,
        "",
        "keys that clients must present, commas between them; `sha256:HEX` keeps a key out of sight",
        plural=True,
        secret=True,
    ),
    Variable(
        "VELOX_API_KEYS_FILE",
        "api_keys_file",
        parse.file_path,
        "",
        "more keys, one a line; `#` begins a comment",
    ),
    Variable(
        "VELOX_AUTH",
        "auth",
        parse.one_of("keys", "none"),
        "keys",
        "`none` lets every client in without a key, beyond loopback too",
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
        "VELOX_DRAIN_TIMEOUT",
        "drain_timeout_s",
        parse.duration(0.0, _DAY_S),
        "25s",
        "what running replies get at SIGTERM; must be shorter than the container's kill time",
    ),
    Variable(
        "VELOX_ACCESS_LOG",
        "access_log",
        parse.one_of("off", "errors", "all"),
        "errors",
        "requests that get a log line: `off`, `errors` or `all`",
    ),
    Variable(
        "VELOX_CONFIG",
        "config_file",
        parse.file_path,
        "",
        "YAML file with any of these, named in lower case without `VELOX_`; the environment beats it",
    ),
)
