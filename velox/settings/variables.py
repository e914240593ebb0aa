"""The one table of variables: it drives parsing, `velox check` and README's table.

Knows: name, field, parser, default and meaning of each; those of the clients' listeners stand in
variables_listen, those of the upstream side in variables_upstream, those of limits and queue in variables_limits. Does
not know: where a value came from. In the YAML file a variable is called by its name in lower case without VELOX_
(`Variable.key`).
"""

from __future__ import annotations

from typing import Final

from velox.settings import parse
from velox.settings.variable import CORES, DAY_S, MEMORY_HARD, MEMORY_SOFT, TIMEOUT, Variable
from velox.settings.variables_access import ADMIN_VARIABLES, KEY_VARIABLES
from velox.settings.variables_limits import LIMIT_VARIABLES
from velox.settings.variables_listen import LISTEN_VARIABLES
from velox.settings.variables_tunnel import TUNNEL_VARIABLES
from velox.settings.variables_upstream import UPSTREAM_VARIABLES

__all__ = ["VARIABLES"]

_GIB: Final = 2**30
# A worker needs more than this for itself.
_LEAST_MEMORY: Final = 32 * 2**20

VARIABLES: Final = (
    *LISTEN_VARIABLES,
    *ADMIN_VARIABLES,
    Variable("VELOX_WORKERS", "workers", parse.integer(1, 512), CORES, "worker processes"),
    Variable("VELOX_PIN_CPUS", "pin_cpus", parse.switch, "on", "pin each worker to one core: `on` or `off`"),
    *UPSTREAM_VARIABLES,
    Variable(
        "VELOX_PATHS",
        "paths",
        parse.prefixes,
        "*",
        "path prefixes that pass, commas between them; others get 404 `unknown_route`",
        plural=True,
    ),
    *LIMIT_VARIABLES,
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
    Variable(
        "VELOX_MAX_CONNECTIONS_PER_ADDRESS",
        "max_connections_per_address",
        parse.integer(0, 10_000_000),
        "0",
        "client connections from one IP address (IPv6: one /64) that a worker takes; 0: no limit",
    ),
    Variable(
        "VELOX_MEMORY_SOFT",
        "memory_soft_bytes",
        parse.size_or_off(_LEAST_MEMORY, 1024 * _GIB),
        MEMORY_SOFT,
        "resident memory from which on a worker refuses new requests: 503 `overload_memory`; or `off`",
    ),
    Variable(
        "VELOX_MEMORY_HARD",
        "memory_hard_bytes",
        parse.size_or_off(_LEAST_MEMORY, 1024 * _GIB),
        MEMORY_HARD,
        "resident memory at which a worker is replaced; what runs in it ends first; or `off`",
    ),
    Variable("VELOX_HEADER_TIMEOUT", "header_timeout_s", TIMEOUT, "10s", "longest wait for a request's whole head"),
    Variable("VELOX_BODY_TIMEOUT", "body_timeout_s", TIMEOUT, "15s", "longest silence inside a request's body"),
    Variable(
        "VELOX_KEEPALIVE_TIMEOUT",
        "keepalive_timeout_s",
        TIMEOUT,
        "75s",
        "how long an idle client connection is kept",
    ),
    Variable(
        "VELOX_CLIENT_WRITE_TIMEOUT",
        "write_stall_timeout_s",
        TIMEOUT,
        "30s",
        "how long a client may leave its reply unread",
    ),
    Variable(
        "VELOX_CLIENT_MIN_RATE",
        "client_min_rate_bytes",
        parse.size(0, _GIB),
        "1KiB",
        "bytes a second that a client must send of a body, and take of a reply that waits; 0: only silence counts",
    ),
    *TUNNEL_VARIABLES,
    *KEY_VARIABLES,
    Variable(
        "VELOX_DRAIN_TIMEOUT",
        "drain_timeout_s",
        parse.duration(0.0, DAY_S),
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
        "YAML file with any of these, named in lower case without `VELOX_`, and with [upstreams](docs/upstreams.md) and"
        " [routes](docs/routes.md); the environment beats it",
    ),
)
