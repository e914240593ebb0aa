"""Puts one member together, from its upstream's entry: a part of the composition root (fleet.py).

Knows: which setting goes to which part, and what a worker's share of it is. Does not know: what any of them does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

from velox.errors import VeloxError
from velox.gateway.forward import Forwarder
from velox.gateway.member import Member
from velox.net.upstream.dialer import Dialer
from velox.net.upstream.interface import ReadBuffer
from velox.net.upstream.pool import Upkeep, UpstreamPool
from velox.net.upstream.resolver import Resolver
from velox.observe.metrics import WorkerMetrics
from velox.policy.balance.scraped import ScrapedLoad
from velox.policy.concurrency import AdaptiveLimit, ConcurrencyLimit, FixedLimit, Unlimited
from velox.policy.health.active import ActiveRules, ProbeSchedule
from velox.policy.health.changes import Changes
from velox.policy.health.keys import Keys
from velox.policy.health.member import MemberHealth, MemberRules, State
from velox.policy.routes import ProbeEntry, UpstreamEntry
from velox.protocol.http2_engines import engine_factory
from velox.providers.openai import OPENAI
from velox.runtime.members import upstreams_of
from velox.runtime.shares import share
from velox.runtime.targets import dial_targets
from velox.settings import Settings
from velox.shm.upstream_table import UpstreamCells
from velox.types import Origin

__all__ = ["MemberMaker"]

# A probe takes no longer than until the next one, and a page of health hardly ever this long.
_PROBE_TIMEOUT_S: Final = 2.0
# Some scrapes may fail before what the last one told is forgotten.
_STALE_LOAD_S: Final = 10.0
# Heads that are kept, of all forwarders, and of one: some kB each, so some 16 MB.
_ALL_HEADS: Final = 4096
_MOST_HEADS: Final = 512
_LEAST_HEADS: Final = 16


class MemberMaker:
    """Makes the members of worker `slot`.

    max_connections: to one member. on_change: of a pool. on_warm_failure: told with the name of the upstream.
    """

    def __init__(
        self,
        slot: int,
        counts: UpstreamCells,
        metrics: WorkerMetrics,
        logger: logging.Logger,
        loop: asyncio.AbstractEventLoop,
        *,
        max_connections: int,
        on_change: Callable[[], None],
        sim_origin: str | None,
    ) -> None:
        self._slot: Final = slot
        self._counts: Final = counts
        self._metrics: Final = metrics
        self._logger: Final = logger
        self._loop: Final = loop
        self._max_connections: Final = max_connections
        self._on_change: Final = on_change
        self._sim_origin: Final = sim_origin
        self._buffer: Final = ReadBuffer()
        self.changes: Final = Changes()  # of the health of all that are made here

    def entries(self, settings: Settings) -> tuple[UpstreamEntry, ...]:
        """Return the upstreams of some settings."""
        return upstreams_of(settings, self._sim_origin)

    def make(
        self, settings: Settings, entry: UpstreamEntry, origin: Origin, row: int, keys: Keys | None, *, is_new: bool
    ) -> Member:
        """Return a member, which has no connections yet. keys: of its upstream. is_new: others were there before."""
        n_kept = _kept_heads(self.entries(settings))
        forwarders = tuple(_forwarder(settings, entry, origin, key, n_kept) for key in _credentials(entry))
        resolver = Resolver(
            origin.host,
            origin.port,
            self._loop,
            refresh_s=settings.dns_refresh_s,
            on_result=self._metrics.count_dns_refresh,
            on_addresses=lambda addresses: pool.keep_only(addresses),  # noqa: PLW0108 - the pool is made below
        )
        more = (resolver, self._buffer, self._loop, engine_factory(settings.http2_engine))
        dialer, websockets = (Dialer(target, *more) for target in dial_targets(settings, entry, origin))
        health = self._health(entry, keys, is_new=is_new)

        def on_change() -> None:
            if health.is_reachable and pool.is_down and health.state(self._loop.time()) is State.IN:
                self._counts.count_ejection(row)
            health.is_reachable = not pool.is_down
            self._on_change()

        pool = self._pool(settings, entry, dialer, forwarders[0], on_change)
        return Member(
            entry,
            str(origin),
            row,
            forwarders,
            pool,
            health,
            self._counts,
            websockets,
            self._concurrency(settings, entry),
            None if entry.load == "off" else ScrapedLoad(_STALE_LOAD_S),
        )

    def _health(self, entry: UpstreamEntry, keys: Keys | None, *, is_new: bool) -> MemberHealth:
        now_s = self._loop.time()
        active = None if entry.probe is None else ProbeSchedule(_probe_rules(entry.probe), now_s, random.random())
        return MemberHealth(MemberRules(), now_s, keys=keys, active=active, is_new=is_new, changes=self.changes)

    def _concurrency(self, settings: Settings, entry: UpstreamEntry) -> ConcurrencyLimit:
        """Return the limit of one member: this worker's share of it, or one that finds out its share by itself."""
        if entry.concurrency == "auto":
            return AdaptiveLimit(share(settings.max_inflight, settings.workers, self._slot))
        if entry.concurrency:
            return FixedLimit(share(entry.concurrency, settings.workers, self._slot))
        return Unlimited()

    def _pool(
        self,
        settings: Settings,
        entry: UpstreamEntry,
        dialer: Dialer,
        forwarder: Forwarder,
        on_change: Callable[[], None],
    ) -> UpstreamPool:
        return UpstreamPool(
            dialer.dial,
            forwarder.warmup(settings.upstream_warmup_path),
            warm_connections=max(1, share(entry.connections, settings.workers, self._slot)),
            max_connections=self._max_connections,
            warmup_timeout_s=entry.timeouts.first_byte_s,
            on_change=on_change,
            on_warm_failure=lambda failure: self._warn(entry.name, failure),
            on_end=self._metrics.count_connection_end,
            upkeep=Upkeep(
                max_age_s=settings.egress_max_age_s,
                max_requests=settings.egress_max_requests,
                idle_timeout_s=settings.egress_idle_timeout_s,
                ping_interval_s=settings.egress_ping_interval_s,
            ),
        )

    def _warn(self, name: str, failure: VeloxError) -> None:
        self._metrics.count_warm_failure()
        self._logger.warning("no warm connection to the upstream %s: %s", name, failure.message)


def _probe_rules(entry: ProbeEntry) -> ActiveRules:
    return ActiveRules(every_s=entry.every_s, timeout_s=min(entry.every_s, _PROBE_TIMEOUT_S))


def _credentials(entry: UpstreamEntry) -> list[str | None]:
    return [key.secret.reveal() for key in entry.keys] or [None]


def _kept_heads(upstreams: Iterable[UpstreamEntry]) -> int:
    """Return how many heads each forwarder of so many may keep: a client may see to it that all of them are full."""
    n_forwarders = sum(len(entry.origins) * max(1, len(entry.keys)) for entry in upstreams)
    return max(_LEAST_HEADS, min(_MOST_HEADS, _ALL_HEADS // n_forwarders))


def _forwarder(settings: Settings, entry: UpstreamEntry, origin: Origin, key: str | None, n_kept: int) -> Forwarder:
    return Forwarder(
        OPENAI,
        base_path=origin.base_path,
        root_path=settings.upstream_request_path,
        key=key,
        client_keys_are_ours=bool(settings.api_keys),
        account_headers_pass=settings.upstream_account_headers == "pass",
        added=entry.headers,
        kept_heads=n_kept,
    )
