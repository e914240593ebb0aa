"""The settings themselves.

Knows: every field and its unit. Does not know: variables, files, defaults (see `variables`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from velox.policy.limit_rules import LimitRule
from velox.policy.routes import RouteEntry, UpstreamEntry
from velox.settings.rates import filled
from velox.types import Address, KeyEntry, Origin, Rates, Scope, Secret, SocketOwner

__all__ = ["Settings"]

_OPEN_PROFILE_PAUSE_S: Final = 60.0  # R-ADM-1


@dataclass(frozen=True, slots=True)
class Settings:
    """What one gateway is told. Made by `load`, which has checked every field and their agreement.

    Names ending in _s are seconds, in _bytes bytes. Over all workers: egress_pool_connections, queue_depth,
    queue_bytes, max_inflight, max_connections, max_tunnels, upstream_concurrency and all limits; each worker's own:
    queue_batch, body_budget_bytes, max_connections_per_address, memory_*_bytes.
    """

    listen: tuple[Address, ...]
    listen_mode: int  # of unix sockets
    listen_owner: SocketOwner | None
    listen_http2: bool
    tls_cert_file: str | None  # with its key: every TCP address of `listen` speaks TLS
    tls_key_file: str | None
    tls_client_ca_file: str | None  # clients must show a certificate that one of its authorities signed
    admin_listen: Address | None  # None: off
    admin_token: Secret | None  # from VELOX_ADMIN_TOKEN or the file; None: nothing is asked for
    admin_token_file: str | None
    admin_hosts: frozenset[str]  # lower-case, besides IP addresses and localhost
    profiling: bool
    profile_interval_s: float | None  # None: see profile_pause_s
    workers: int
    pin_cpus: bool
    # The first one is used while it works; the others, in their order, when it does not.
    upstream_origins: tuple[Origin, ...]
    upstream_request_path: str
    # Prefixes without a trailing slash; ("/",) is every path. "/v1" is for /v1 and /v1/..., not for /v1x.
    paths: tuple[str, ...]
    upstream_warmup_path: str
    http2_engine: Literal["ngh2", "h2"]
    upstream_http2: Literal["auto", "on", "off"]
    upstream_ca_file: str | None  # None: the system's trust store
    upstream_cert_file: str | None  # what the upstream is shown if it asks for a client certificate (mTLS)
    upstream_key_file: str | None
    upstream_stream_window_bytes: int
    egress_pool_connections: int
    rate_limit_rpm: int  # 0: off
    rate_limit_burst: int
    rate_limit_tpm: int  # 0: off
    rate_limit_tpm_burst: int | None  # None: rate_limit_tpm
    rate_limit_concurrency: int  # 0: off
    rate_limit_max_wait_s: float
    # Of each key that has no such limit of its own; 0: off.
    key_rpm: int
    key_burst: int | None  # None: see rates.filled
    key_tpm: int
    key_tpm_burst: int | None
    key_concurrency: int
    limits: tuple[LimitRule, ...]  # those of the list; limit_rules is all
    limit_buckets: int
    bytes_per_token: int
    default_max_tokens: int
    queue_depth: int
    queue_bytes: int
    queue_batch: int
    queue_timeout_s: float
    queue_floor_percent: int
    upstream_concurrency: int | Literal["auto"]  # 0: off
    redis_url: Secret | None
    redis_prefix: str
    redis_timeout_s: float
    redis_fallback: Literal["local", "refuse"]
    replicas: int  # 0: as many as Redis last told of
    max_body_bytes: int
    body_budget_bytes: int
    max_inflight: int
    max_connections: int
    max_tunnels: int
    tunnel_idle_timeout_s: float
    tunnel_timeout_s: float  # 0: none
    max_connections_per_address: int  # 0: no limit
    memory_soft_bytes: int | None  # None: off
    memory_hard_bytes: int | None
    config_file: str | None
    # Each key that a client may present, from both VELOX_API_KEYS and the file as it was at the start; none is needed
    # where there is none.
    api_keys: tuple[KeyEntry, ...]
    api_keys_file: str | None
    auth: Literal["keys", "none"]
    drain_timeout_s: float
    openai_api_key: Secret | None
    upstream_account_headers: Literal["drop", "pass"]
    access_log: Literal["off", "errors", "all"]
    header_timeout_s: float
    body_timeout_s: float
    keepalive_timeout_s: float
    write_stall_timeout_s: float
    client_min_rate_bytes: int  # a second; 0: none
    upstream_connect_timeout_s: float
    upstream_tls_timeout_s: float
    upstream_first_byte_timeout_s: float
    upstream_idle_timeout_s: float
    upstream_write_timeout_s: float
    upstream_total_timeout_s: float  # of a reply that is no stream; 0: none
    stream_timeout_s: float  # of a stream; 0: none
    sse_keepalive_s: float  # 0: off
    egress_max_age_s: float
    egress_max_requests: int
    egress_idle_timeout_s: float
    egress_ping_interval_s: float
    dns_refresh_s: float
    ready_requires_upstream: bool
    retries: int
    retry_statuses: frozenset[int]
    retry_max_wait_s: float
    retry_budget_percent: int
    retry_budget_per_s: int
    # From the file's lists, or from the variables above alone (see routing.py); at least one of each.
    upstreams: tuple[UpstreamEntry, ...]
    routes: tuple[RouteEntry, ...]
    # Variable -> "command line", "environment", "file" or "default".
    origins: Mapping[str, str]

    @property
    def limit_rules(self) -> tuple[LimitRule, ...]:
        """Return the gateway's own limit, the one for every key, then those of the list.

        The first two are there even if they limit nothing: a key may have rates of its own (`limits.rules_of`).
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
