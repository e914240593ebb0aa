"""The variables of the limits and of the queue before them; see variables.py.

Knows: name, field, parser, default and meaning of each. Does not know: how a rule of VELOX_LIMITS is written (limits).
"""

from __future__ import annotations

from typing import Final

from velox.settings import parse, parse_limit
from velox.settings.limits import parse_limits, parse_list
from velox.settings.rates import MOST_BURST, MOST_CONCURRENCY, MOST_RPM, MOST_TPM
from velox.settings.variable import TIMEOUT, Variable

__all__ = ["LIMIT_VARIABLES"]

_GIB: Final = 2**30

LIMIT_VARIABLES: Final = (
    Variable(
        "VELOX_RATE_LIMIT_RPM",
        "rate_limit_rpm",
        parse.count(0, MOST_RPM),
        "10000",
        "requests a minute, over all workers; 0: no limit. [docs/limits.md](docs/limits.md) tells of all limits",
    ),
    Variable(
        "VELOX_RATE_LIMIT_BURST",
        "rate_limit_burst",
        parse.count(1, MOST_BURST),
        "500",
        "requests that may come at once",
    ),
    Variable(
        "VELOX_RATE_LIMIT_TPM",
        "rate_limit_tpm",
        parse.count(0, MOST_TPM),
        "0",
        "tokens of models a minute, over all workers, prompts and answers together; 0: no limit",
    ),
    Variable(
        "VELOX_RATE_LIMIT_TPM_BURST",
        "rate_limit_tpm_burst",
        parse.count(1, MOST_TPM),
        "",
        "tokens that may be used at once",
        shown_default="those of a minute",
    ),
    Variable(
        "VELOX_RATE_LIMIT_CONCURRENCY",
        "rate_limit_concurrency",
        parse.count(0, MOST_CONCURRENCY),
        "0",
        "requests that may run at once, over all workers; more get 429; 0: no limit",
    ),
    Variable(
        "VELOX_RATE_LIMIT_MAX_WAIT",
        "rate_limit_max_wait_s",
        parse.duration(0.0, 3600.0),
        "1s",
        "how long a request may wait for its turn before it gets 429",
    ),
    Variable(
        "VELOX_KEY_RPM",
        "key_rpm",
        parse.count(0, MOST_RPM),
        "0",
        "requests a minute of each key that has no `rpm` of its own; 0: no limit",
    ),
    Variable(
        "VELOX_KEY_BURST",
        "key_burst",
        parse.count(1, MOST_BURST),
        "",
        "requests of a key that may come at once",
        shown_default="a sixth of its minute's, at least 10",
    ),
    Variable(
        "VELOX_KEY_TPM",
        "key_tpm",
        parse.count(0, MOST_TPM),
        "0",
        "tokens a minute of each key that has no `tpm` of its own; 0: no limit",
    ),
    Variable(
        "VELOX_KEY_TPM_BURST",
        "key_tpm_burst",
        parse.count(1, MOST_TPM),
        "",
        "tokens of a key that may be used at once",
        shown_default="those of its minute",
    ),
    Variable(
        "VELOX_KEY_CONCURRENCY",
        "key_concurrency",
        parse.count(0, MOST_CONCURRENCY),
        "0",
        "requests that may run at once of each key that has no `concurrency` of its own; 0: no limit",
    ),
    Variable(
        "VELOX_LIMITS",
        "limits",
        parse_list,
        "",
        "more limits, of keys, models, or both, as a YAML list: [docs/limits.md](docs/limits.md#rules)",
        plural=True,
        parse_items=parse_limits,
    ),
    Variable(
        "VELOX_LIMIT_BUCKETS",
        "limit_buckets",
        parse.integer(64, 4_194_304),
        "16384",
        "rows of the table that all workers share; a limit has one for each key, model, or both that it counts",
    ),
    Variable(
        "VELOX_BYTES_PER_TOKEN",
        "bytes_per_token",
        parse.integer(1, 64),
        "4",
        "bytes of a request's body that are taken for one token until the answer tells",
    ),
    Variable(
        "VELOX_DEFAULT_MAX_TOKENS",
        "default_max_tokens",
        parse.count(0, 10_000_000),
        "1024",
        "tokens that an answer is taken to need, until it tells, where the request names no limit",
    ),
    Variable(
        "VELOX_QUEUE_DEPTH",
        "queue_depth",
        parse.integer(1, 10_000_000),
        "16384",
        "requests that may wait for admission, over all workers; more get 503 `queue_full`",
    ),
    Variable(
        "VELOX_QUEUE_BYTES",
        "queue_bytes",
        parse.size(1, 1024 * _GIB),
        "256MiB",
        "bytes of bodies that may wait for admission, over all workers; more get 503 `queue_full`",
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
        TIMEOUT,
        "5s",
        "longest wait for admission; then 503 `queue_timeout`",
    ),
    Variable(
        "VELOX_QUEUE_FLOOR",
        "queue_floor_percent",
        parse.integer(0, 30),
        "10",
        "what each lower class of the queue gets at least while higher ones have more than enough, in percent",
    ),
    Variable(
        "VELOX_UPSTREAM_CONCURRENCY",
        "upstream_concurrency",
        parse_limit.concurrency,
        "off",
        "requests that may run at once on one upstream, over all workers; `auto` finds out how many; or `off`",
    ),
    Variable(
        "VELOX_REDIS_URL",
        "redis_url",
        parse_limit.redis_url,
        "",
        "Redis or Valkey through which several gateways hold one limit together: `redis://`, `rediss://` or `unix://`;"
        " needs `pip install velox-gateway[redis]`",
        secret=True,
    ),
    Variable(
        "VELOX_REDIS_PREFIX",
        "redis_prefix",
        parse_limit.redis_prefix,
        "velox:",
        "what the names of all keys in it begin with",
    ),
    Variable(
        "VELOX_REDIS_TIMEOUT",
        "redis_timeout_s",
        parse.duration(0.001, 5.0),
        "50ms",
        "the longest that a request waits for it",
    ),
    Variable(
        "VELOX_REDIS_FALLBACK",
        "redis_fallback",
        parse.one_of("local", "refuse"),
        "local",
        "while it can't be asked: `local` (each gateway its share of the limit) or `refuse` (503)",
    ),
    Variable(
        "VELOX_REPLICAS",
        "replicas",
        parse.integer(0, 10_000),
        "0",
        "gateways that share the limits, for the share of each while it can't be asked; 0: as many as it last told of",
    ),
)
