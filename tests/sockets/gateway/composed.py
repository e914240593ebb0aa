"""A worker's upstreams and gateway, from the composition root (velox/runtime); a test puts its own things in place.

This module alone knows how the root is called, and what a member, a route and a gateway are made of: tests name
upstreams, routes and settings, and bring what connects to an upstream (`Dial`), a pool, a limit or a balancer where
these are to do what the test says. The clock is the running loop's; the shared memory is the worker's own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs

from velox.gateway.auth import Authenticator
from velox.gateway.cluster.capacity import CapacityWaiters
from velox.gateway.cluster.group import Group
from velox.gateway.cluster.routing import RouteParts, Routing
from velox.gateway.front.intake import Gateway
from velox.gateway.limits.limiter import QuotaTable as LimiterTable
from velox.gateway.upstreams.member import Member
from velox.net.client.body_budget import BodyBudget
from velox.net.upstream.interface import ConnectionOwner, UpstreamConnection
from velox.net.upstream.pool import UpstreamPool
from velox.observe.access_log import AccessLog, AccessRules
from velox.observe.metrics import WorkerMetrics
from velox.observe.series import CELLS
from velox.policy.balance.candidates import Balancer
from velox.policy.balance.round_robin import RoundRobin
from velox.policy.health.group import GroupRules
from velox.policy.health.keys import Keys
from velox.policy.queue.concurrency import ConcurrencyLimit
from velox.policy.routes.entries import ANYTHING, KeyRef, RouteEntry, Target, Timeouts, UpstreamEntry
from velox.policy.routes.match import RouteTable
from velox.policy.routes.split import MirrorGate
from velox.runtime.signing.authorities import Authorities
from velox.runtime.upstreams.members import MemberMaker, labels_of, prefix_groups
from velox.runtime.upstreams.upstream_manager import RouteMaker, UpstreamManager
from velox.runtime.worker import gateway_parts, queue_of
from velox.settings import Settings, load
from velox.shm.quota_table import QuotaMemory
from velox.shm.quotas import QuotaTable
from velox.shm.segment import Segment
from velox.shm.upstream_table import UpstreamCells, UpstreamTable
from velox.types import Origin, Secret

__all__ = [
    "TIMEOUTS",
    "Composed",
    "Counted",
    "Dial",
    "Stand",
    "composed",
    "group_of",
    "in_order",
    "member_of",
    "nowhere",
    "routing_of",
    "settings_with",
    "upstream_of",
]

Dial = Callable[[ConnectionOwner], Awaitable[UpstreamConnection]]

# Nothing is near: a test that wants a time-out replaces it.
TIMEOUTS: Final = Timeouts(connect_s=30.0, tls_s=0.0, first_byte_s=60.0, idle_s=60.0, write_s=60.0, total_s=0.0)
_ORIGIN: Final = Origin("http", "127.0.0.1", 1, "", b"127.0.0.1:1", "")
_KEY: Final = "sk-of-the-gateway-{}"
_LOGGER: Final = logging.Logger("t")


async def nowhere(owner: ConnectionOwner) -> UpstreamConnection:
    """A dial that never ends."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody ends it")


# -- settings ---------------------------------------------------------------------------------------


def settings_with(**fields: Any) -> Settings:
    """Return settings with these fields; all others have their defaults, but that nothing is limited."""
    made = load({"VELOX_RATE_LIMIT_RPM": "0", "VELOX_UPSTREAM_ORIGIN": str(_ORIGIN)}, cores=1)
    return structs.replace(made, **fields)


def upstream_of(
    name: str, *, timeouts: Timeouts = TIMEOUTS, n_keys: int = 0, models: tuple[str, ...] = ()
) -> UpstreamEntry:
    """Return an upstream of one member. n_keys: 0: the client's own key goes up."""
    keys = tuple(KeyRef(f"env:K{n}", b"%d" % n, Secret(_KEY.format(n))) for n in range(n_keys))
    return UpstreamEntry(name, (_ORIGIN,), keys, "off", None, None, None, timeouts, 1, models=models, where="a test")


def in_order(names: Sequence[str]) -> RouteEntry:
    """Return a route to the first upstream, and to the others when that one can't answer."""
    first, *others = map(Target, names)
    return RouteEntry("*", ANYTHING, (first,), fallback=tuple(others))


# -- members ----------------------------------------------------------------------------------------


class Counted(UpstreamCells):
    """The cells of a worker, in a memory of their own. n_ejections: that were counted."""

    def __init__(self) -> None:
        super().__init__(UpstreamTable(1), 0)
        self.n_ejections = 0

    def count_ejection(self, row: int) -> None:
        self.n_ejections += 1
        super().count_ejection(row)


@dataclass(frozen=True)
class Stand:
    """What stands in for the world at one upstream. None: what a worker would make."""

    dial: Dial = nowhere
    concurrency: ConcurrencyLimit | None = None
    pool: UpstreamPool | None = None


@dataclass(frozen=True)
class _Dialer:
    dial: Dial

    def close(self) -> None: ...


class _Maker(MemberMaker):
    """Makes members as a worker does, but for what stands in."""

    def __init__(self, counts: UpstreamCells, metrics: WorkerMetrics, stands: Mapping[str, Stand]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            *(0, counts, metrics, _LOGGER, loop),
            max_connections=8,
            on_change=lambda: None,
            sim_origin=None,
            authorities=Authorities({}, loop, _LOGGER),
        )
        self._stands: Final = stands

    def _concurrency(self, settings: Settings, entry: UpstreamEntry) -> ConcurrencyLimit:
        return self._stands[entry.name].concurrency or super()._concurrency(settings, entry)

    def _pool(self, settings, entry, origin, dialer, forwarder, on_change):  # type: ignore[no-untyped-def]
        stand = self._stands[entry.name]
        return stand.pool or super()._pool(settings, entry, origin, _Dialer(stand.dial), forwarder, on_change)


def member_of(
    entry: UpstreamEntry, stand: Stand | None = None, *, row: int = 0, counts: UpstreamCells | None = None
) -> Member:
    """Make the member of an upstream by itself; its connections are `stand`'s."""
    metrics = WorkerMetrics(Segment(1, CELLS).metrics(0))
    maker = _Maker(counts or Counted(), metrics, {entry.name: stand or Stand()})
    keys = Keys(len(entry.keys), changes=maker.changes) if entry.keys else None
    return maker.make(settings_with(), entry, entry.origins[0], row, keys, is_new=False)


# -- routes -----------------------------------------------------------------------------------------


class _Routes(RouteMaker):
    """Makes routes as a worker does, but for what a test brings."""

    chosen: Balancer | None = None
    gate: MirrorGate | None = None
    rules: GroupRules | None = None

    def balancer(self, entry: RouteEntry, members: Sequence[Member], weights: Sequence[float]) -> Balancer:
        return self.chosen or super().balancer(entry, members, weights)

    def route(self, entry: RouteEntry) -> RouteParts:
        parts = super().route(entry)
        if self.rules is not None:
            groups = (group_of(group.members, group.balancer, self.rules) for group in parts.groups)
            parts = replace(parts, groups=tuple(groups))
        if self.gate is None or parts.mirror is None:
            return parts
        return replace(parts, mirror=(self.gate, parts.mirror[1]))


def routing_of(
    members: Sequence[Member],
    *routes: RouteEntry,
    balancer: Balancer | None = None,
    gate: MirrorGate | None = None,
    rules: GroupRules | None = None,
    waiters: CapacityWaiters | None = None,
) -> Routing:
    """Return the tables of some routes. balancer: of those in `to`. gate: of copies. rules: of the groups' health."""
    by_name: dict[str, list[Member]] = {}
    for member in members:
        by_name.setdefault(member.name, []).append(member)
    made = _Routes(by_name, UpstreamTable(1), {}, asyncio.get_running_loop())
    made.chosen, made.gate, made.rules = balancer, gate, rules
    return Routing(RouteTable(routes), members, made.route, waiters)


def group_of(members: Sequence[Member], balancer: Balancer | None = None, rules: GroupRules | None = None) -> Group:
    """Return the group of some members, of equal weight. rules: of their health."""
    n = len(members)
    return Group(members, [None] * n, [1.0] * n, balancer or RoundRobin(), rules=rules)


# -- the whole --------------------------------------------------------------------------------------


class Composed:
    """A worker without clients' connections and without a supervisor: the test does what these would do."""

    def __init__(
        self,
        settings: Settings,
        stands: Mapping[str, Stand] | None,
        log_fd: int,
        *,
        quotas: LimiterTable | None = None,
        maker: type[MemberMaker] = MemberMaker,
        **parts: Any,
    ) -> None:
        """stands: by the upstream's name; None: real sockets, and `maker` makes members. parts: instead of others."""
        self.loop: Final = asyncio.get_running_loop()
        self.table: Final = UpstreamTable(2)
        self.enroll(settings)
        self.metrics: Final = WorkerMetrics(Segment(1, CELLS).metrics(0))
        self.log: Final = AccessLog(log_fd, AccessRules("all"), self.metrics.count_log_dropped)
        counts = UpstreamCells(self.table, 0)
        if stands is None:
            self.maker = maker(
                *(0, counts, self.metrics, _LOGGER, self.loop),
                max_connections=8,
                on_change=lambda: None,
                sim_origin=None,
                authorities=Authorities({}, self.loop, _LOGGER),
            )
        else:
            self.maker = _Maker(counts, self.metrics, stands)
        self.manager: Final = UpstreamManager(settings, self.maker, self.table, self.loop)
        made = gateway_parts(
            *(settings, 0, self.loop),
            auth=Authenticator(settings.api_keys),
            quotas=quotas or QuotaTable(QuotaMemory(64, 1), 0),
            leases=None,
            max_tunnels=8,
            bodies=BodyBudget(1 << 30, 1.0, self.loop.time),
            metrics=self.metrics,
            log=self.log,
            logger=_LOGGER,
        )
        self.gateway: Final = Gateway(replace(made, **parts), queue_of(settings, 0), self.manager.routing, self.loop)

    def enroll(self, settings: Settings) -> None:
        """Do what the supervisor does before its workers have some settings."""
        self.table.enroll(labels_of(settings.upstreams), groups=prefix_groups(settings))


@contextmanager
def composed(settings: Settings, stands: Mapping[str, Stand], **more: Any) -> Iterator[Composed]:
    """A worker for the block, that logs to nowhere. more: as Composed takes it."""
    log_fd = os.open(os.devnull, os.O_WRONLY)
    made = Composed(settings, stands, log_fd, **more)
    try:
        yield made
    finally:
        made.manager.close()
        os.close(log_fd)
