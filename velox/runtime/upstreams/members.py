"""Members of upstreams: the list that a configuration names, and how a worker makes one. Part of the composition root.

Knows: which setting goes to which part, what a worker's share of it is, and where the built-in simulator replaces an
upstream. Does not know: what a part does.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from velox.errors import VeloxError
from velox.gateway.reply.addresses import UpstreamAddresses
from velox.gateway.translation.forward import Forwarder
from velox.gateway.translation.own_query import OwnQuery
from velox.gateway.upstreams.health_checks import HealthChecks, load_every_s
from velox.gateway.upstreams.member import Member
from velox.net.upstream.connection_budget import ConnectionBudget
from velox.net.upstream.dialer import Dialer, DialTarget
from velox.net.upstream.http2 import NARROW_WINDOW_BYTES
from velox.net.upstream.interface import ReadBuffer
from velox.net.upstream.pool import Upkeep, UpstreamPool
from velox.net.upstream.resolver import Resolver
from velox.net.upstream.tls import SharedContexts
from velox.observe.metrics import WorkerMetrics
from velox.observe.oplog import crash_text
from velox.observe.trouble_log import TroubleLog
from velox.policy.balance.scraped import ScrapedLoad
from velox.policy.health.keys import Changes, Keys
from velox.policy.health.member import ActiveRules, MemberHealth, MemberRules, ProbeSchedule, State
from velox.policy.queue.concurrency import AdaptiveLimit, ConcurrencyLimit, FixedLimit, Unlimited
from velox.policy.routes.entries import ProbeEntry, UpstreamEntry
from velox.policy.routes.proxies import proxy_of
from velox.protocol.http2.engines import engine_factory
from velox.providers.authority import Authority
from velox.providers.provider import Provider
from velox.providers.rows import PROVIDERS
from velox.providers.target import origin_of
from velox.runtime.capacity import share
from velox.runtime.on_demand import has_adapter
from velox.runtime.signing.authorities import Authorities
from velox.settings import Settings
from velox.settings.parse import origin as parse_origin
from velox.shm.upstream_table import Label, UpstreamCells
from velox.types import Origin

if TYPE_CHECKING:
    from velox.gateway.translation.adapter import ProviderAdapter

__all__ = ["MemberMaker", "dial_targets", "health_checks_of", "keys_of", "labels_of", "prefix_groups", "upstreams_of"]


def upstreams_of(settings: Settings, sim_origin: str | None) -> tuple[UpstreamEntry, ...]:
    """Return the upstreams; with the built-in simulator the first of them is where it listens."""
    if sim_origin is None:
        return settings.upstreams
    first, *others = settings.upstreams
    return (replace(first, origins=(parse_origin(sim_origin),)), *others)


def labels_of(upstreams: tuple[UpstreamEntry, ...]) -> list[Label]:
    """Return the members of the upstreams, by the labels of their rows in the table that all workers share."""
    return [(upstream.name, str(origin)) for upstream in upstreams for origin in upstream.origins]


def prefix_groups(settings: Settings) -> list[str]:
    """Return the routes that choose by prompts: they have a table of them in that memory."""
    return [route.name for route in settings.routes if route.balance == "prefix"]


def keys_of(entry: UpstreamEntry, changes: Changes, logger: logging.Logger) -> Keys:
    """Return the state of the keys of an upstream. The log has those that it refuses: its clients can't mend it."""

    def on_out(key: int, is_out: bool) -> None:
        if is_out:
            text = "the upstream %(upstream)s refuses its key %(key)s: requests get others, if it has any"
            logger.warning(text, {"upstream": entry.name, "key": entry.keys[key]})
        else:
            logger.info(
                "the upstream %(upstream)s takes its key %(key)s again",
                {"upstream": entry.name, "key": entry.keys[key]},
            )

    return Keys(len(entry.keys), changes=changes, on_out=on_out)


def dial_targets(
    settings: Settings, entry: UpstreamEntry, origin: Origin, contexts: SharedContexts
) -> tuple[DialTarget, DialTarget]:
    """Return the targets for requests and for WebSockets.

    A WebSocket begins on HTTP/1.1, whatever requests go over; a TLS context offers the same protocols to everybody, so
    it has another one.
    """
    files = (entry.ca_file, entry.cert_file, entry.key_file)
    is_tls = origin.scheme == "https"
    window_bytes = settings.upstream_stream_window_bytes
    target = DialTarget(
        host=origin.host,
        host_header=origin.host_header,
        http2=entry.http2,
        context=contexts.context(entry.http2, *files) if is_tls else None,
        connect_timeout_s=entry.timeouts.connect_s,
        tls_timeout_s=entry.timeouts.tls_s,
        unix_path=origin.unix_path,
        stream_window_bytes=window_bytes,
        # A client of HTTP/1.1 has one reply, which always may run ahead: nothing to widen, and no frame for it.
        narrow_window_bytes=NARROW_WINDOW_BYTES if settings.listen_http2 else window_bytes,
    )
    return target, replace(target, http2="off", context=contexts.context("off", *files) if is_tls else None)


# A probe takes no longer than until the next one, and a page of health hardly ever this long.
_PROBE_TIMEOUT_S: Final = 2.0
# Some scrapes may fail before the last load is forgotten.
_STALE_LOAD_S: Final = 10.0
# Heads that are kept, of all forwarders, and of one: some KiB each, and as many put aside.
_ALL_HEADS: Final = 2048
_MOST_HEADS: Final = 256
_LEAST_HEADS: Final = 16


@dataclass(eq=False, slots=True)
class MemberMaker:
    """Makes the members of worker `slot`.

    max_connections: to one member; to all together twice as many. on_change: called when a pool has changed.
    authorities: sign requests in. changes: of the health of all members.
    """

    slot: int
    counts: UpstreamCells
    metrics: WorkerMetrics
    logger: logging.Logger
    loop: asyncio.AbstractEventLoop
    max_connections: int
    on_change: Callable[[], None]
    authorities: Authorities
    sim_origin: str | None
    buffer: ReadBuffer = field(default_factory=ReadBuffer)
    contexts: SharedContexts = field(default_factory=SharedContexts, init=False)
    changes: Changes = field(default_factory=Changes, init=False)
    budget: ConnectionBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = ConnectionBudget(2 * self.max_connections)

    def entries(self, settings: Settings) -> tuple[UpstreamEntry, ...]:
        """Return the upstreams of some settings."""
        return upstreams_of(settings, self.sim_origin)

    def make(
        self,
        settings: Settings,
        entry: UpstreamEntry,
        origin: Origin,
        row: int,
        keys: Keys | None,
        *,
        is_new: bool,
        limit: ConcurrencyLimit | None = None,
    ) -> Member:
        """Return a member, which has no connections yet.

        keys: of its upstream. is_new: others were there before. limit: of what runs there already; None: nothing does.
        """
        n_kept = _kept_heads(self.entries(settings))
        authority = self.authorities.of(entry)
        forwarders = tuple(
            _forwarder(settings, entry, origin, key, authority, n_kept=n_kept) for key in _credentials(entry)
        )
        proxy = proxy_of(entry.proxy, origin, settings.proxies)
        where = origin if proxy is None else proxy
        resolver = Resolver(
            where.host,
            where.port,
            self.loop,
            refresh_s=settings.dns_refresh_s,
            on_result=self.metrics.count_dns_refresh,
            on_addresses=lambda addresses: pool.keep_only(addresses),  # noqa: PLW0108 - the pool is made below
        )
        more = (resolver, self.buffer, self.loop, engine_factory(settings.http2_engine))
        targets = dial_targets(settings, entry, origin, self.contexts)
        if proxy is None:
            dialer, websockets = (Dialer(target, *more) for target in targets)
        else:
            # Here, not above: few gateways have one (on_demand.py).
            from velox.runtime.upstreams.proxied import proxied_dialers

            dialer, websockets = proxied_dialers(targets, entry, origin, proxy, more, self.contexts)
        health = self._health(entry, keys, is_new=is_new)

        def on_change() -> None:
            if health.is_reachable is pool.is_down:
                if pool.is_down and health.state(self.loop.time()) is not State.OUT:
                    self.counts.count_ejection(row)
                health.is_reachable = not pool.is_down
                self._tell_reachable(entry, origin, is_reachable=health.is_reachable)
            self.on_change()

        pool = self._pool(settings, entry, origin, dialer, forwarders[0], on_change)
        return Member(
            entry,
            str(origin),
            row,
            forwarders,
            pool,
            health,
            self.counts,
            websockets,
            limit or self._concurrency(settings, entry),
            None if entry.load == "off" else ScrapedLoad(_STALE_LOAD_S),
            adapter=_adapter(entry),
            addresses=_addresses(entry),
        )

    def _health(self, entry: UpstreamEntry, keys: Keys | None, *, is_new: bool) -> MemberHealth:
        now_s = self.loop.time()
        active = None if entry.probe is None else ProbeSchedule(_probe_rules(entry.probe), now_s, random.random())
        return MemberHealth(MemberRules(), now_s, keys=keys, active=active, is_new=is_new, changes=self.changes)

    def _concurrency(self, settings: Settings, entry: UpstreamEntry) -> ConcurrencyLimit:
        """Return the limit of one member: this worker's share of it, or one that finds out its share by itself."""
        if entry.concurrency == "auto":
            return AdaptiveLimit(share(settings.max_inflight, settings.workers, self.slot))
        if entry.concurrency:
            return FixedLimit(share(entry.concurrency, settings.workers, self.slot))
        return Unlimited()

    def _pool(
        self,
        settings: Settings,
        entry: UpstreamEntry,
        origin: Origin,
        dialer: Dialer,
        forwarder: Forwarder,
        on_change: Callable[[], None],
    ) -> UpstreamPool:
        called = f"the upstream {entry.name} ({origin})"
        trouble = TroubleLog(
            lambda: self.logger, f"no warm connection to {called}", f"there are warm connections to {called} again"
        )
        return UpstreamPool(
            dialer.dial,
            forwarder.warmup(settings.upstream_warmup_path),
            warm_connections=max(1, share(entry.connections, settings.workers, self.slot)),
            max_connections=self.max_connections,
            warmup_timeout_s=entry.timeouts.first_byte_s,
            on_change=on_change,
            on_warm_failure=lambda failure: self._warn(trouble, failure),
            on_warm=trouble.went_well,
            on_end=self.metrics.count_connection_end,
            on_close=dialer.close,
            upkeep=Upkeep(
                max_age_s=settings.egress_max_age_s,
                max_requests=settings.egress_max_requests,
                idle_timeout_s=settings.egress_idle_timeout_s,
                ping_interval_s=settings.egress_ping_interval_s,
            ),
            budget=self.budget,
        )

    def _warn(self, trouble: TroubleLog, failure: VeloxError) -> None:
        self.metrics.count_warm_failure()
        trouble.failed(failure.message)

    def _tell_reachable(self, entry: UpstreamEntry, origin: Origin, *, is_reachable: bool) -> None:
        if is_reachable:
            self.logger.info(
                "the upstream %(upstream)s (%(origin)s) can be reached again",
                {"upstream": entry.name, "origin": origin},
            )
        else:
            self.logger.warning(
                "the upstream %(upstream)s (%(origin)s) is ejected: no connection can be made",
                {"upstream": entry.name, "origin": origin},
            )

    def tell_failing(self, member: Member) -> None:
        """Say that a member is out for how its requests ended, or no longer."""
        if member.health.fails_requests:
            self.logger.warning(
                "the upstream %(upstream)s (%(origin)s) is ejected: its requests fail",
                {"upstream": member.name, "origin": member.address},
            )
        else:
            self.logger.info(
                "the upstream %(upstream)s (%(origin)s) answers requests again",
                {"upstream": member.name, "origin": member.address},
            )


def _probe_rules(entry: ProbeEntry) -> ActiveRules:
    return ActiveRules(every_s=entry.every_s, timeout_s=min(entry.every_s, _PROBE_TIMEOUT_S))


def presented(row: Provider, auth: str, key: str | None) -> tuple[Provider, str | None]:
    """Return a row that presents keys as an upstream wants them, and the key as it then is. auth: as of its entry."""
    if not auth or key is None:
        return row, key
    if auth == "basic":  # RFC 7617 §2
        plain = base64.b64encode(key.encode("latin-1")).decode("ascii")
        return replace(row, credential_header=b"authorization", credential_prefix=b"Basic ", credential_also=b""), plain
    if auth == "bearer":
        return replace(row, credential_header=b"authorization", credential_prefix=b"Bearer ", credential_also=b""), key
    return replace(row, credential_header=auth.encode("ascii"), credential_prefix=b"", credential_also=b""), key


def _credentials(entry: UpstreamEntry) -> list[str | None]:
    return [key.secret.reveal() for key in entry.keys] or [None]


def _kept_heads(upstreams: Iterable[UpstreamEntry]) -> int:
    """Return how many heads each forwarder of so many may keep: a client may see to it that all of them are full."""
    n_forwarders = sum(len(entry.origins) * max(1, len(entry.keys)) for entry in upstreams)
    return max(_LEAST_HEADS, min(_MOST_HEADS, _ALL_HEADS // n_forwarders))


def _addresses(entry: UpstreamEntry) -> UpstreamAddresses:
    """Return which addresses are an upstream's: those of its provider, too, where another server stands before it."""
    row = PROVIDERS[entry.provider]
    own = origin_of(row, dict(entry.parameters))
    origins = (*entry.origins, parse_origin(own)) if own else entry.origins
    return UpstreamAddresses(entry.name, origins, row.before)


def _forwarder(
    settings: Settings,
    entry: UpstreamEntry,
    origin: Origin,
    key: str | None,
    authority: Authority | None,
    *,
    n_kept: int,
) -> Forwarder:
    row, key = presented(PROVIDERS[entry.provider], entry.auth, key)
    return Forwarder(
        row,
        base_path=origin.base_path,
        root_path=settings.upstream_request_path,
        key=key,
        client_keys_are_ours=settings.requires_keys,
        account_headers_pass=settings.upstream_account_headers == "pass",
        added=entry.headers,
        usual=row.headers,
        authority=authority,
        host=origin.host_header,
        kept_heads=n_kept,
        query=OwnQuery(entry.query) if entry.query else None,
    )


def _adapter(entry: UpstreamEntry) -> ProviderAdapter | None:
    """Return how requests are put into the APIs of an upstream's provider; None: nothing is known of these."""
    if not has_adapter(entry):
        return None
    # Here, not above: it loads all dialects (on_demand.py).
    from velox.runtime.upstreams.dialects import adapter_of

    return adapter_of(entry)


def health_checks_of(n_workers: int, logger: logging.Logger, loop: asyncio.AbstractEventLoop) -> HealthChecks:
    """Return the health checks of one of so many workers."""
    return HealthChecks(
        loop,
        load_every_s=load_every_s(n_workers),
        on_health=_telling(
            logger,
            "the upstream %(upstream)s (%(origin)s) answers its probes again",
            "the upstream %(upstream)s (%(origin)s) is ejected: its probes fail: %(error)s",
        ),
        on_load=_telling(
            logger,
            "the load of upstream %(upstream)s (%(origin)s) can be read again",
            "the load of upstream %(upstream)s (%(origin)s) can't be read: %(error)s",
        ),
        on_bug=lambda exc: logger.error("%s", crash_text(exc)),
    )


def _telling(logger: logging.Logger, well: str, wrong: str) -> Callable[[Member, str | None], None]:
    """Return what logs the lines of a member: that something is wrong with it, and that it is well again."""

    def tell(member: Member, problem: str | None) -> None:
        subject = {"upstream": member.name, "origin": member.address}
        if problem is None:
            logger.info(well, subject)
        else:
            logger.warning(wrong, {**subject, "error": problem})

    return tell
