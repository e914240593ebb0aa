"""The settings: each field with its type, its unit, its variable and default, and what it means.

Knows: what there is to set; loading, `velox check` and docs/settings.md go by it. Does not know: where a value is from.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from velox.policy.budgets.rules import BudgetRule
from velox.policy.limits.limit_rules import LimitRule
from velox.policy.request_tags import TagSource
from velox.policy.routes.entries import Http2Use, RouteEntry, UpstreamEntry
from velox.policy.routes.proxies import NO_PROXIES, EnvironmentProxies
from velox.policy.spellings import MOST_BURST, MOST_CONCURRENCY, MOST_RPM, MOST_TPM, filled
from velox.prices.book import Override
from velox.settings import parse
from velox.settings.callers.budgets import parse_budget_list, parse_budgets, parse_scopes
from velox.settings.callers.keys import parse_entries, parse_items
from velox.settings.callers.limits import parse_limits, parse_list
from velox.settings.telemetry import TraceSettings
from velox.settings.variable import CORES, MEMORY_HARD, MEMORY_SOFT, live_setting, setting, variables_of
from velox.settings.yaml.tree import NO_END, FileEnd
from velox.types import Address, KeyEntry, Origin, Rates, Scope, Secret, SocketOwner

__all__ = ["VARIABLES", "Settings"]

_OPEN_PROFILE_PAUSE_S: Final = 60.0
_GIB: Final = 2**30
# A worker needs more than this for itself.
_LEAST_MEMORY: Final = 32 * 2**20
_MANY: Final = parse.integer(1, 10_000_000)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one gateway. Made by `load`, which has checked each field and their consistency.

    Names ending in _s are seconds, in _bytes bytes. Over all workers: egress_pool_connections, queue_depth,
    queue_bytes, max_inflight, max_connections, max_tunnels, upstream_concurrency and all limits; each worker's own:
    queue_batch, body_budget_bytes, max_connections_per_address, memory_*_bytes.
    """

    # -- The listeners for clients --
    listen: tuple[Address, ...] = setting(
        "127.0.0.1:8080",
        "addresses for clients, separated by commas: `IP:PORT`, `IP` or `unix:PATH`. The variable `PORT` is the port of"
        " those that name none; of the command line `velox serve --port`, `--host` and `--listen` say it",
        parse.addresses,
        shown_default="127.0.0.1:8080 (image: 0.0.0.0:8080)",
    )
    listen_mode: int = setting(
        "0600", "file mode of unix sockets in VELOX_LISTEN; write permission allows connecting", parse.file_mode
    )
    listen_owner: SocketOwner | None = setting(
        "",
        "owner of unix sockets in VELOX_LISTEN: `USER`, `USER:GROUP` or `:GROUP`, names or ids",
        parse.socket_owner,
        shown_default="who runs Velox",
    )
    # lower-case, besides localhost, the addresses of `listen` and the machine's name
    hosts: frozenset[str] = setting(
        "",
        "more names of this gateway, commas between them, besides `localhost`, the addresses of VELOX_LISTEN and the"
        " machine's name. A request line may have a URL with one of them; with another name it is refused. Where no"
        " key is required, [web pages](docs/keys.md#web-pages) of these names may ask, and a browser by one of them"
        " on loopback",
        parse.host_names,
    )
    cors_origins: tuple[str, ...] = setting(
        "",
        "origins of [web pages of elsewhere](docs/keys.md#web-pages-of-elsewhere) that may use this gateway and read"
        " its replies, commas between them: `https://app.example`, `http://localhost:*`, `null`; `*` is every page,"
        " only where keys are required. In the file also `cors: {origins: [...]}`",
        parse.web_origins,
    )
    public_url: Origin | None = setting(
        "",
        "how clients reach this gateway, `https://HOST[/PATH]`: the begin of [addresses](docs/keys.md#addresses) in"
        " replies. Set it behind a proxy that ends TLS or changes the host",
        parse.public_url,
        shown_default="the request's `Host`",
    )
    trusted_proxies: tuple[str, ...] = setting(
        "",
        "proxies in front of Velox, separated by commas: addresses, networks such as `10.0.0.0/8`, or `unix` for all"
        " clients of a unix socket. Their `X-Forwarded-For` is trusted for the client's address in the"
        " [access log](docs/logs.md)",
        parse.networks,
    )
    listen_http2: bool = setting(
        "off",
        "`on`: clients may use [HTTP/2](docs/http2-ingress.md), by prior knowledge or, over TLS, by ALPN",
    )
    tls_cert_file: str | None = setting(
        "",
        "PEM file with the server certificate and its chain; every `IP:PORT` of VELOX_LISTEN then uses"
        " [TLS](docs/tls.md); watched for changes",
        name="VELOX_TLS_CERT",
    )
    tls_key_file: str | None = setting("", "PEM file with its private key, without a password", name="VELOX_TLS_KEY")
    tls_client_ca_file: str | None = setting(
        "",
        "PEM file with authorities; clients must then present a certificate signed by one of them",
        name="VELOX_TLS_CLIENT_CA",
    )

    # -- The admin listener --
    # None: off
    admin_listen: Address | None = setting(
        "127.0.0.1:6060",
        "address for metrics, health and profiling, `IP:PORT` or `unix:PATH`; or `off`",
        parse.address_or_off,
    )
    # from VELOX_ADMIN_TOKEN or the file; None: nothing is asked for
    admin_token: Secret | None = setting(
        "", "bearer token of the admin listener, for everything but probes; required beyond loopback"
    )
    admin_token_file: str | None = setting("", "file with the admin token, in place of the variable")
    # None: there is none
    admin_viewer_token: Secret | None = setting(
        "", "bearer token that may only read the [admin listener](docs/admin.md): no profile, no reload, no change"
    )
    admin_tls_cert_file: str | None = setting(
        "",
        "PEM file with the admin listener's certificate and its chain; it then uses TLS; watched for changes",
        name="VELOX_ADMIN_TLS_CERT",
    )
    admin_tls_key_file: str | None = setting(
        "", "PEM file with its private key, without a password", name="VELOX_ADMIN_TLS_KEY"
    )
    # lower-case, besides IP addresses and localhost
    admin_hosts: frozenset[str] = setting(
        "",
        "host names that the admin listener accepts besides IP addresses and `localhost`, separated by commas",
        parse.host_names,
    )
    profiling: bool = setting("on", "`off`: the admin listener takes no profiles, `/debug/pprof/` is 404")
    # None: see profile_pause_s
    profile_interval_s: float | None = setting(
        "",
        "minimum time between the starts of two profiles; earlier requests get 429",
        parse.OPTIONAL_TIMEOUT,
        shown_default="60s; on loopback 0s",
    )

    # -- Processes --
    workers: int = setting(CORES, "worker processes", parse.integer(1, 512))
    # None: where the cores are this gateway's (machine.py)
    pin_cpus: bool | None = setting(
        "auto",
        "pin each worker to one core: `on`, `off` or `auto`, which pins where there is a worker for each core, or the"
        " container or service has cores of its own, and no quota of their time"
        " ([where](docs/processes.md#cores))",
        parse.switch_or_auto,
    )

    # -- Upstreams --
    # The first one is used while it works; the others, in their order, when it does not.
    upstream_origins: tuple[Origin, ...] = live_setting(
        "https://api.openai.com",
        "where requests go: `http(s)://HOST[:PORT][/PATH]` or `unix:PATH`; of several, separated by commas, each is"
        " used when those before it fail",
        parse.origins,
        name="VELOX_UPSTREAM_ORIGIN",
        shown_default="https://api.openai.com (`velox serve --sim`: the built-in simulator)",
    )
    upstream_request_path: str = setting("/v1/responses", "where a bare `POST /` goes", parse.path)
    upstream_warmup_path: str = setting("/v1/models", "path of the HEAD request that warms a connection", parse.path)
    http2_engine: Literal["ngh2", "h2"] = setting("ngh2", "engine for HTTP/2, to upstreams and clients: `ngh2` or `h2`")
    upstream_http2: Http2Use = live_setting(
        "auto", "`auto` (ALPN on https, HTTP/1.1 on http), `on` (prior knowledge) or `off`"
    )
    upstream_ca_file: str | None = live_setting(
        "", "PEM file with the authorities that may sign the upstream's certificate", shown_default="the system's"
    )
    upstream_cert_file: str | None = live_setting(
        "", "PEM file with the client certificate for upstreams that require one"
    )
    upstream_key_file: str | None = live_setting("", "PEM file with its private key, if that is not in the same file")
    upstream_stream_window_bytes: int = setting(
        "128KiB",
        "HTTP/2 window per upstream stream: bytes of a reply that may be in flight to a slow client",
        parse.size(65_535, 16 << 20),
    )

    # -- Timeouts of upstreams --
    upstream_connect_timeout_s: float = live_setting(
        "3s", "longest wait for a connection to the upstream", parse.TIMEOUT
    )
    upstream_tls_timeout_s: float = live_setting("5s", "longest wait for the TLS handshake with it", parse.TIMEOUT)
    upstream_first_byte_timeout_s: float = live_setting(
        "60s", "longest wait for the first byte of a reply", parse.TIMEOUT
    )
    upstream_thinking_timeout_s: float = live_setting(
        "600s",
        "the same where [a model may think before it](docs/upstreams.md#silence): for a plain answer, and for a stream"
        " of a model that reasons; where the first-byte time-out alone is set, that",
        parse.TIMEOUT,
    )
    upstream_first_event_timeout_s: float = live_setting(
        "0s",
        "longest wait for [the first event](docs/upstreams.md#the-first-event) of a stream; the client gets the head"
        " together with it; 0: no limit, and the head is forwarded after 1 s at most",
        parse.OPTIONAL_TIMEOUT,
    )
    upstream_idle_timeout_s: float = live_setting(
        "600s", "longest [silence](docs/upstreams.md#silence) after the first byte of a reply", parse.TIMEOUT
    )
    upstream_stall_timeout_s: float = live_setting(
        "40s",
        "the same in a streamed chat completion of which over 2 KiB have come, where comments are silence, too; where"
        " the idle time-out alone is set, that",
        parse.TIMEOUT,
    )
    upstream_write_timeout_s: float = live_setting(
        "30s", "longest time in which an upstream reads nothing of a request's body", parse.TIMEOUT
    )
    upstream_total_timeout_s: float = live_setting(
        "600s",
        "longest time for a whole plain reply, all attempts together; 0: no limit",
        parse.OPTIONAL_TIMEOUT,
    )
    stream_timeout_s: float = setting("0s", "the same for a streamed reply; 0: no limit", parse.OPTIONAL_TIMEOUT)
    sse_keepalive_s: float = setting(
        "0s",
        "silence in a stream after which Velox [sends a comment](docs/upstreams.md#comments-in-a-silence), for proxies"
        " that drop idle connections; 0: never",
        parse.OPTIONAL_TIMEOUT,
    )

    # -- Usage of streams that clients leave --
    usage_drain: Literal["off", "reasoning", "all"] = setting(
        "reasoning",
        "streams that are read on after their client has left, [for their usage](docs/tokens.md#clients-that-leave):"
        " `reasoning` of models that reason, `all`, or `off`",
    )
    usage_drain_timeout_s: float = setting("10s", "longest time for which one is read on", parse.TIMEOUT)
    usage_drain_bytes: int = setting(
        "1MiB", "most bytes that are read on of one", parse.size(1024, 1 << 30), name="VELOX_USAGE_DRAIN_BYTES"
    )
    usage_drains: int = setting(
        "256", "most that are read on at once, over all workers; 0: none", parse.integer(0, 1_000_000)
    )

    # -- Retries --
    retries: int = setting(
        "1",
        "retries of a request that the upstream may have begun, before the first byte of a reply",
        parse.integer(0, 5),
    )
    retry_statuses: frozenset[int] = setting(
        "408,429,500,502,503,504,529",
        "upstream statuses that are retried, separated by commas, or `none`",
        parse.statuses,
    )
    retry_max_wait_s: float = setting(
        "10s",
        "longest Retry-After that Velox waits for; a longer one is passed to the client",
        parse.duration(0.0, 3600.0),
    )
    retry_before_fallback_s: float = setting(
        "3s",
        "longest wait before a retry at the same upstream, after a 429 with Retry-After or a single 500, if the next"
        " target is a fallback with another model; 0: the fallback is used at once",
        parse.duration(0.0, 60.0),
    )
    retry_budget_percent: int = setting(
        "20", "retries allowed, in percent of the requests of the last 10 seconds", parse.integer(0, 1000)
    )
    retry_budget_per_s: int = setting(
        "10",
        "additional retries per second, over all workers",
        parse.integer(0, 1_000_000),
        name="VELOX_RETRY_BUDGET_MIN",
    )

    # -- Connections to upstreams --
    ready_requires_upstream: bool = setting(
        "on", "`/readyz` returns 503 until an upstream has answered a warm-up: `on` or `off`"
    )
    egress_pool_connections: int = live_setting(
        CORES, "connections to each upstream that are kept warm, over all workers", parse.integer(1, 4096)
    )
    egress_max_age_s: float = setting("3600s", "age at which an upstream connection is replaced, ±10 %", parse.TIMEOUT)
    egress_max_requests: int = setting(
        "1000000",
        "requests after which an upstream connection is replaced, ±10 %",
        parse.integer(1, 1_000_000_000),
    )
    egress_idle_timeout_s: float = setting(
        "60s", "how long an idle upstream connection beyond the warm ones is kept", parse.TIMEOUT
    )
    egress_ping_interval_s: float = setting(
        "30s", "silence after which an HTTP/2 upstream connection gets a PING", parse.TIMEOUT
    )
    dns_refresh_s: float = setting("15s", "interval of DNS lookups for upstreams", parse.duration(0.1, 3600.0))

    # -- What upstreams and clients are told of each other --
    openai_api_key: Secret | None = live_setting(
        "", "key for the upstream; without it the client's `Authorization` is forwarded", name="OPENAI_API_KEY"
    )
    upstream_account_headers: Literal["drop", "pass"] = setting(
        "drop",
        "the client's `OpenAI-Organization`, `OpenAI-Project` and, to Google, `x-goog-user-project` if its key is"
        " replaced: `drop` or `pass`",
    )
    server_timing: Literal["asked", "all", "off"] = setting(
        "asked",
        "replies that tell [what took how long](docs/timing.md): `asked` for by `x-velox-timing`, `all`, or `off`",
    )
    litellm_headers: bool = setting(
        "off",
        "`on`: [LiteLLM's headers](docs/moving-in.md#headers) are read of requests and told with replies",
    )

    # -- Objects of clients --
    unknown_objects: Literal["pass", "refuse"] = setting(
        "pass",
        "files, responses, batches and other [objects](docs/keys.md#objects) whose owner is not known: `pass` to who"
        " knows the id, or `refuse` with 404",
    )
    object_rows: int = setting(
        "1048576",
        "objects whose owner and place are remembered, in a table that all workers share; 32 bytes each once used",
        parse.integer(1024, 67_108_864),
    )

    # -- Answers that are kept --
    kept_bytes: int = setting(
        "64MiB",
        "answers of `/v1/responses` that are [kept](docs/dialects.md#kept-answers) where they are translated, in memory"
        " that all workers share; the newest take the place of the oldest; 0: none is kept",
        parse.size(0, 64 << 30),
        name="VELOX_KEPT_BYTES",
    )
    kept_answers: int = setting(
        "16384", "the same: how many have room, in 256 bytes each once used", parse.integer(64, 16_777_216)
    )
    kept_for_s: float = setting(
        "3600s", "the same: how long one is kept that nobody asks for", parse.duration(1.0, 31 * 86_400.0)
    )
    kept_database_bytes: int = setting(
        "0",
        "the same: room for those of all gateways with one VELOX_LEDGER_DATABASE, in it and so on a disk, where no"
        " VELOX_REDIS_URL is set; the newest take the place of the oldest; 0: each gateway keeps its own, in memory",
        parse.size(0, 1 << 40),
        name="VELOX_KEPT_DATABASE_BYTES",
    )

    # -- The response cache --
    cache_bytes: int = setting(
        "64MiB",
        "answers that routes with a [`cache`](docs/cache.md) keep, in memory that all workers share; the newest take"
        " the place of the oldest; 0: there is no room for any",
        parse.size(0, 64 << 30),
        name="VELOX_CACHE_BYTES",
    )
    cache_answers: int = setting(
        "16384", "the same: how many have room, in 256 bytes each once used", parse.integer(64, 16_777_216)
    )
    cache_answer_bytes: int = setting(
        "256KiB",
        "the same: the longest answer that is kept",
        parse.size(1024, 16 << 20),
        name="VELOX_CACHE_ANSWER_BYTES",
    )
    cache_share_percent: int = setting(
        "25",
        "the same: how much of it the answers of one `scope`, such as a key, may take while they live, in percent",
        parse.integer(1, 100),
    )

    # -- Joined calls --
    join_bytes: int = setting(
        "64MiB",
        "what routes that [`join`](docs/joined-calls.md) calls hold of their replies, all workers together; over it a"
        " request has a call of its own; 0: there is no room for any",
        parse.size(0, 64 << 30),
        name="VELOX_JOIN_BYTES",
    )
    join_call_bytes: int = setting(
        "1MiB",
        "the same: of one call; a longer one is joined no more, and of one that is joined a follower may be so much"
        " behind",
        parse.size(1 << 20, 64 << 20),
        name="VELOX_JOIN_CALL_BYTES",
    )

    # -- Records of calls, and keys that are kept with them --
    # None: calls are not recorded
    ledger: str | None = setting(
        "", "folder for [records](docs/ledger.md) of what calls of upstreams took; nothing is recorded without it"
    )
    ledger_ring_bytes: int = setting(
        "16MiB",
        "records that may wait for the disk, for each of two processes a worker; on the disk, 128 bytes a record",
        parse.size(1 << 20, 1 << 30),
    )
    # None: in the folder of the ledger
    ledger_rings: str | None = setting(
        "",
        "folder for the records that wait, if the disk of VELOX_LEDGER may hang: one in memory, such as /dev/shm/velox",
    )
    ledger_full: Literal["drop", "refuse"] = setting(
        "drop",
        "when no more records can wait: `drop` serves on and keeps their sums; `refuse` answers 503 `ledger_full`",
    )
    ledger_days: int = setting(
        "30", "days for which each call is kept; sums by day are kept for ever", parse.integer(1, 3650)
    )
    ledger_database: Secret | None = setting(
        "",
        "[PostgreSQL](docs/postgres.md) that keeps records and managed keys instead of files in the folder, for one"
        " gateway or several: `postgresql://USER:PASSWORD@HOST/NAME`; needs VELOX_LEDGER and"
        " the package `asyncpg` (it is in `requirements.lock`)",
        parse.database_url,
    )
    managed_keys: bool = setting(
        "off",
        "clients must present a key that was made while Velox runs ([`velox key`](docs/keys.md#managed-keys)), or one"
        " of the others; needs VELOX_LEDGER",
        parse.switch,
    )

    # -- Paths that pass --
    # Prefixes without a trailing slash; ("/",) is every path. "/v1" is for /v1 and /v1/..., not for /v1x.
    paths: tuple[str, ...] = setting(
        "*", "allowed path prefixes, separated by commas; others get 404 `unknown_route`", parse.prefixes
    )
    # ("*",) is every path
    websocket_paths: tuple[str, ...] = setting(
        "",
        "additional paths that accept a [WebSocket](docs/websocket.md), separated by commas: whole paths, `*` for one"
        " segment; `*` alone for every path",
        parse.path_patterns,
    )

    # -- Limits --
    rate_limit_rpm: int = live_setting(
        "0",
        "requests per minute, over all workers; 0: no limit. See [limits](docs/limits.md)",
        parse.count(0, MOST_RPM),
    )
    rate_limit_burst: int = live_setting("500", "requests that may come at once", parse.count(1, MOST_BURST))
    rate_limit_tpm: int = live_setting(
        "0",
        "tokens per minute, over all workers, prompts and answers together; 0: no limit",
        parse.count(0, MOST_TPM),
    )
    # None: rate_limit_tpm
    rate_limit_tpm_burst: int | None = live_setting(
        "", "burst of tokens", parse.count(1, MOST_TPM), shown_default="those of a minute"
    )
    rate_limit_concurrency: int = live_setting(
        "0",
        "concurrent requests, over all workers; more get 429; 0: no limit",
        parse.count(0, MOST_CONCURRENCY),
    )
    rate_limit_max_wait_s: float = setting(
        "1s", "longest wait of a request for a rate limit; beyond it, 429", parse.duration(0.0, 3600.0)
    )
    # Of each key that has no such limit of its own; 0: off.
    key_rpm: int = live_setting(
        "0", "requests per minute of each key without its own `rpm`; 0: no limit", parse.count(0, MOST_RPM)
    )
    # None: see limits.filled
    key_burst: int | None = live_setting(
        "",
        "burst of requests of a key",
        parse.count(1, MOST_BURST),
        shown_default="a sixth of its minute's, at least 10",
    )
    key_tpm: int = live_setting(
        "0", "tokens per minute of each key without its own `tpm`; 0: no limit", parse.count(0, MOST_TPM)
    )
    key_tpm_burst: int | None = live_setting(
        "", "burst of tokens of a key", parse.count(1, MOST_TPM), shown_default="those of its minute"
    )
    key_concurrency: int = live_setting(
        "0",
        "concurrent requests of each key without its own `concurrency`; 0: no limit",
        parse.count(0, MOST_CONCURRENCY),
    )
    # those of the list; limit_rules is all
    limits: tuple[LimitRule, ...] = live_setting(
        "",
        "further limits, for keys, models, or both, as a YAML list ([rules](docs/limits.md#rules))",
        parse_list,
        parse_items=parse_limits,
    )

    # -- Budgets --
    budgets: tuple[BudgetRule, ...] = live_setting(
        "",
        "[budgets](docs/budgets.md): dollars or tokens for keys, teams, users, tags, models, or all, as a YAML list",
        parse_budget_list,
        parse_items=parse_budgets,
    )
    budgets_unread: Literal["strict", "refuse", "allow"] = setting(
        "strict",
        "which [budgets](docs/budgets.md#without-the-ledger) refuse requests (503) while nobody knows what was spent of"
        " them before the start: the `strict` ones, all (`refuse`), none (`allow`)",
    )
    budget_metrics: frozenset[str] = setting(
        "gateway,team",
        "whose [budgets](docs/budgets.md) are in the metrics: any of gateway, key, team, user, tag and model, or `off`;"
        " each has a series of its own",
        parse_scopes,
    )
    # None: alerts are logged and counted only
    alert_webhook: Secret | None = setting(
        "",
        "URL that is told, by POST, when a [budget](docs/budgets.md#alerts) reaches a threshold (`soft`); or who is"
        " [mailed](docs/budgets.md#mail): `smtps://USER:PASSWORD@HOST/?to=ADDRESS`",
        parse.webhook_url,
    )
    # None: they are not signed
    alert_secret: Secret | None = setting(
        "",
        "secret with which what is sent to `VELOX_ALERT_WEBHOOK` is signed (HMAC-SHA256); for `pagerduty` the routing"
        " key",
        parse.secret,
    )
    alert_format: Literal["velox", "slack", "teams", "pagerduty"] = setting(
        "velox",
        "what is sent there: `velox` ([its JSON](docs/budgets.md#alerts)), or what `slack` (also Mattermost, Discord),"
        " `teams` or `pagerduty` take",
    )

    # -- How limits are counted --
    # None: see runtime/buckets.py
    limit_buckets: int | None = setting(
        "",
        "rows of the table that all workers share; a limit has one for each key, model, or both that it counts",
        parse.integer(64, 4_194_304),
        shown_default="as the configuration needs",
    )
    bytes_per_token: int = setting("4", "bytes of a request's body per token, for the estimate", parse.integer(1, 64))
    default_max_tokens: int = setting(
        "1024",
        "tokens of an answer, for the estimate, if the request sets no limit",
        parse.count(0, 10_000_000),
    )

    # -- The queue --
    queue_depth: int = setting("16384", "queued requests, over all workers; more get 503 `queue_full`", _MANY)
    queue_bytes: int = setting(
        "256MiB",
        "bytes of queued bodies, over all workers; more get 503 `queue_full`",
        parse.size(1, 1024 * _GIB),
        name="VELOX_QUEUE_BYTES",
    )
    queue_batch: int = setting("64", "requests that a worker admits per turn of its loop", parse.integer(1, 65_536))
    queue_timeout_s: float = setting("5s", "longest wait for admission; then 503 `queue_timeout`", parse.TIMEOUT)
    queue_floor_percent: int = setting(
        "10",
        "minimum share of each lower queue class while higher ones have more than enough, in percent",
        parse.integer(0, 30),
    )

    # -- Concurrency, and limits over several gateways --
    upstream_concurrency: int | Literal["auto"] = live_setting(
        "off",
        "concurrent requests per upstream, over all workers: a number, [`auto`](docs/concurrency.md) or `off`",
        parse.concurrency,
    )
    redis_url: Secret | None = setting(
        "",
        "Redis or Valkey with which several gateways [share limits](docs/limits-replicas.md): `redis://`, `rediss://`"
        " or `unix://`; needs the package `redis` (it is in `requirements.lock`)",
        parse.redis_url,
    )
    redis_prefix: str = setting("velox:", "prefix of all keys in Redis", parse.redis_prefix)
    redis_timeout_s: float = setting(
        "50ms",
        "longest wait of a request for Redis; for a [strict budget](docs/budgets.md#several-gateways), 2 s at least",
        parse.duration(0.001, 5.0),
    )
    redis_fallback: Literal["local", "refuse"] = setting(
        "local",
        "while Redis is down: `local` (each gateway has its share of the limit; of a strict budget what it was granted)"
        " or `refuse` (503)",
    )
    # 0: the number that Redis reported last
    replicas: int = setting(
        "0",
        "number of gateways, for the share of each while Redis is down; 0: as many as Redis last reported",
        parse.integer(0, 10_000),
    )

    # -- Sizes and counts of one gateway --
    max_body_bytes: int = setting("64MiB", "largest request body; more gets 413", parse.size(1, 4 * _GIB))
    body_budget_bytes: int = setting(
        "256MiB",
        "bytes of request bodies per worker; more get 503 `overload_memory`",
        parse.size(1, 1024 * _GIB),
    )
    max_inflight: int = setting("8192", "concurrent upstream requests, over all workers; more wait", _MANY)
    max_connections: int = setting("16384", "client connections, over all workers; more get 503 `conn_limit`", _MANY)
    max_connections_per_address: int = setting(
        "0",
        "client connections per worker from one IP address (IPv6: one /64); 0: no limit",
        parse.integer(0, 10_000_000),
    )
    # None: off
    memory_soft_bytes: int | None = setting(
        MEMORY_SOFT,
        "resident memory above which a worker refuses new requests: 503 `overload_memory`; or `off`",
        parse.size_or_off(_LEAST_MEMORY, 1024 * _GIB),
    )
    memory_hard_bytes: int | None = setting(
        MEMORY_HARD,
        "resident memory above which a worker is replaced, after its running requests; or `off`",
        parse.size_or_off(_LEAST_MEMORY, 1024 * _GIB),
    )

    # -- Timeouts of clients --
    header_timeout_s: float = setting("10s", "longest wait for a request's whole head", parse.TIMEOUT)
    body_timeout_s: float = setting("15s", "longest silence inside a request's body", parse.TIMEOUT)
    keepalive_timeout_s: float = setting("75s", "how long an idle client connection is kept", parse.TIMEOUT)
    write_stall_timeout_s: float = setting(
        "30s",
        "longest time in which a client reads nothing of its reply",
        parse.TIMEOUT,
        name="VELOX_CLIENT_WRITE_TIMEOUT",
    )
    client_min_rate_bytes: int = setting(
        "1KiB",
        "minimum bytes per second of a client, for sending a body and for reading a buffered reply; 0: none",
        parse.size(0, _GIB),
    )

    # -- WebSockets --
    max_tunnels: int = setting(
        "1024",
        "open WebSockets, over all workers; each counts for VELOX_MAX_INFLIGHT too; more get 503 `conn_limit`",
        _MANY,
    )
    tunnel_idle_timeout_s: float = setting(
        "300s", "longest silence of a WebSocket in both directions; pings count as data", parse.TIMEOUT
    )
    tunnel_timeout_s: float = setting("0s", "longest life of a WebSocket; 0: no limit", parse.OPTIONAL_TIMEOUT)

    # -- Keys of clients --
    # Each key that a client may present, from both VELOX_API_KEYS and the file as it was at the start; none is needed
    # where there is none.
    api_keys: tuple[KeyEntry, ...] = setting(
        "",
        "keys that clients must present, separated by commas; `sha256:HEX` hides the key itself",
        parse_entries,
        secret=True,
        parse_items=parse_items,
    )
    api_keys_file: str | None = setting(
        "", "file with more [keys](docs/keys.md), one per line or a YAML list; watched for changes"
    )
    auth: Literal["keys", "none"] = setting("keys", "`none` lets every client in without a key, beyond loopback too")

    # -- Traces --
    traces_errors: bool = setting(
        "off", "[traces](docs/traces.md) of requests that failed are exported, though the sampler would leave them out"
    )
    traces_slow_s: float = setting("0s", "so are those that took so long; 0: none", parse.OPTIONAL_TIMEOUT)
    traces_content: tuple[str, ...] = setting(
        "",
        "[routes](docs/routes.md), commas between them, whose requests and answers are in the traces"
        " ([content](docs/traces.md#content)); `*`: all",
        parse.route_names,
    )
    traces_content_bytes: int = setting(
        "16KiB",
        "of each of them, the characters that are exported at most",
        parse.size(1024, 256 * 1024),
        name="VELOX_TRACES_CONTENT_SIZE",
    )
    # None: nothing besides
    traces_redact: str | None = setting(
        "",
        "regular expression of what is taken out of them, besides credentials, e-mail addresses and card numbers",
        parse.pattern,
    )

    # -- Metrics and prices --
    metric_models: int = setting(
        "200",
        "models that have a name of their own in the [metrics](docs/metrics.md#models): of the configuration, or of the"
        " price table; all others are `other`",
        parse.integer(0, 10_000),
    )
    metric_labels: tuple[str, ...] = setting(
        "", "labels of these metrics that tell of the caller, commas between them: `team`, `key`", parse.caller_labels
    )
    request_tags: tuple[TagSource, ...] = setting(
        "",
        "what of a request its calls count under in the ledger, beside the tags of its key, commas between them:"
        " [`tags`, `user`, `session`](docs/ledger.md#tags-of-requests)",
        parse.tag_sources,
    )
    prices: str | None = live_setting(
        "", "YAML file with [prices](docs/prices.md) of your own, which count before those that come with Velox"
    )

    # -- Ends and upgrades --
    drain_timeout_s: float = setting(
        "25s",
        "time for running replies at SIGTERM; must be shorter than the container's stop time",
        parse.OPTIONAL_TIMEOUT,
    )
    upgrade_timeout_s: float = setting(
        "60s", "time for the next version to get ready at an [upgrade](docs/deploy.md#upgrades)", parse.TIMEOUT
    )
    upgrade_drain_timeout_s: float = setting(
        "4h", "time for running replies and WebSockets of the version before, after an upgrade", parse.TIMEOUT
    )

    # -- Logs --
    access_log: Literal["off", "errors", "all"] = live_setting(
        "errors", "requests in the access log: `off`, `errors` or `all`"
    )
    access_log_sample_percent: float = live_setting(
        "100%", "of the requests that `all` logs and that ended well, the share that is logged", parse.percent(0, 100)
    )
    access_log_slow_s: float = live_setting(
        "0s",
        "of the requests that `all` logs and that ended well, only those that took so long; 0: all of them",
        parse.OPTIONAL_TIMEOUT,
    )
    access_log_file: str | None = setting(
        "", "file of the access log, which SIGUSR1 [opens anew](docs/logs.md#rotation); standard output without it"
    )
    access_log_format: Literal["auto", "json", "text"] = setting(
        "auto", "lines of the access log: `json`, `text` for a person; `auto`: `text` on a terminal"
    )
    # None: standard error
    log_file: str | None = setting(
        "",
        "file of the [operations log](docs/logs.md#operations-log), and of the access log where that has none of its"
        " own, which may be [rotated](docs/logs.md#rotation); standard error without it. `velox start` has a"
        " [default](docs/deploy.md#as-a-daemon)",
    )

    # -- Files of the gateway --
    # None: there is none
    pid_file: str | None = setting(
        "",
        "file with the process id of the gateway, which it holds a lock of; a second gateway with the same file does"
        " not start. `velox start` has a [default](docs/deploy.md#as-a-daemon)",
    )
    config_file: str | None = setting(
        "",
        "YAML file with any of these, named in lower case without `VELOX_`, and with [upstreams](docs/upstreams.md)"
        " and [routes](docs/routes.md); the environment overrides it",
        name="VELOX_CONFIG",
    )

    # -- No variable has these: lists of the file, and what was seen while it was loaded --
    # From the file's lists, or from the variables above alone (see routing/routing.py); at least one of each.
    upstreams: tuple[UpstreamEntry, ...]
    routes: tuple[RouteEntry, ...]
    # Variable -> "command line", "environment", "file" or "default".
    origins: Mapping[str, str]
    # What is wrong with providers' keys, where none is needed now (routing/upstreams.py).
    missing_keys: tuple[str, ...] = ()
    # What variables of other programs say, and nothing here (checks/unused.py).
    unused_variables: tuple[str, ...] = ()
    # What HTTPS_PROXY and the like say (routing/proxies.py).
    proxies: EnvironmentProxies = NO_PROXIES
    # What OTEL_EXPORTER_OTLP_ENDPOINT and the like say (telemetry.py); None: nothing is traced.
    traces: TraceSettings | None = None
    # Variables of providers that are set, and of no use (routing/found.py).
    unusable_variables: tuple[str, ...] = ()
    # Variables that are set to nothing, as they are called where they stand, each with the default that is used.
    empty_variables: tuple[tuple[str, str], ...] = ()
    # How the file, and that of the keys, ended when it was read.
    file_end: FileEnd = NO_END
    key_file_end: FileEnd = NO_END
    # Of the file of prices, and a digest of it.
    own_prices: tuple[Override, ...] = ()
    prices_version: str = ""

    @property
    def requires_keys(self) -> bool:
        """True if clients must present a key, also while there is none."""
        return bool(self.api_keys) or self.managed_keys

    @property
    def found_upstreams(self) -> tuple[UpstreamEntry, ...]:
        """Return the upstreams that variables of providers made (routing/found.py); `where` names the variables."""
        return () if self.upstreams[0].where else tuple(entry for entry in self.upstreams if entry.where)

    @property
    def limit_rules(self) -> tuple[LimitRule, ...]:
        """Return the gateway's own limit, the one for every key, then those of the list.

        The first two are there even if they limit nothing: a key may have rates of its own (`rules_of`).
        """
        gateway = Rates(
            self.rate_limit_rpm,
            self.rate_limit_burst,
            self.rate_limit_tpm,
            self.rate_limit_tpm_burst or 0,
            self.rate_limit_concurrency,
        )
        key = Rates(self.key_rpm, self.key_burst or 0, self.key_tpm, self.key_tpm_burst or 0, self.key_concurrency)
        return (
            LimitRule("VELOX_RATE_LIMIT", Scope.GATEWAY, filled(gateway)),
            LimitRule("VELOX_KEY", Scope.KEY, filled(key), of_key=True),
            *self.limits,
        )

    @property
    def profile_pause_s(self) -> float:
        """Return the least time between the starts of two profiles: none where only this machine can ask for them."""
        if self.profile_interval_s is not None:
            return self.profile_interval_s
        is_open = self.admin_listen is not None and not self.admin_listen.is_loopback
        return _OPEN_PROFILE_PAUSE_S if is_open else 0.0


# In the YAML file a variable is called by its name in lower case without VELOX_ (`Variable.key`).
VARIABLES: Final = variables_of(Settings)
