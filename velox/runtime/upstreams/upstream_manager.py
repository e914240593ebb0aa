"""The upstreams of one worker, and the tables that lead there: made from the settings, and made anew at a reload.

    replace()  members whose entry and origin are the same are kept, with their connections and all that is known of
               them; others begin; what the new settings no longer name ends with its last exchange

A part of the composition root (worker.py). Knows: which setting goes to which part. Does not know: what a part does, or
who asks for a reload.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from velox.gateway.cluster.capacity import CapacityWaiters
from velox.gateway.cluster.group import Group
from velox.gateway.cluster.routing import RouteParts, Routing
from velox.gateway.upstreams.member import Member
from velox.net.upstream.connection_budget import ConnectionBudget
from velox.net.upstream.pool import OpenUpstream
from velox.net.yielding_sweep import YieldingSweep
from velox.policy.balance.bounded_hash import BoundedHash, Ring
from velox.policy.balance.candidates import Balancer, LeastInflight
from velox.policy.balance.peak_ewma import PeakEwma
from velox.policy.balance.prefix import PrefixAffinity, PrefixTable, member_ids
from velox.policy.balance.round_robin import RoundRobin
from velox.policy.health.keys import Keys
from velox.policy.health.member import State
from velox.policy.queue.concurrency import ConcurrencyLimit
from velox.policy.retries.hedge import Hedging
from velox.policy.routes.entries import Hedge, KeyRef, ModelName, RouteEntry, Target, UpstreamEntry
from velox.policy.routes.index import indexing
from velox.policy.routes.match import RouteTable
from velox.policy.routes.split import CanarySplit, MirrorGate
from velox.protocol.slices import finished
from velox.runtime.capacity import share
from velox.runtime.upstreams.members import MemberMaker, keys_of
from velox.settings import Settings
from velox.shm.upstream_table import UpstreamTable

__all__ = ["RouteMaker", "UpstreamManager"]

# Copies under way in one worker: beyond, a slow mirror would hold memory without end. Arbitrary.
_MOST_MIRRORED: Final = 64
_MOST_MIRRORED_BYTES: Final = 16 * 1024 * 1024

# Of what may run, those who wait for room at an upstream of their own may be one in so many. Arbitrary.
_LINES_PART: Final = 4

# Members whose connections are looked after, or begun, in one turn of the loop: some 0.5 ms.
_PER_TURN: Final = 128

_Place: TypeAlias = tuple[UpstreamEntry, str]
_Credentials: TypeAlias = tuple[str, tuple[KeyRef, ...]]
_Hedged: TypeAlias = tuple[str, Hedge | None]


class _Retired(NamedTuple):
    """What an old configuration had alone. routings: whose plans may still lead there."""

    member: Member
    routings: Sequence[Routing]

    @property
    def is_done(self) -> bool:
        """True once nothing is on its way there."""
        return not any(routing.n_open for routing in self.routings) and not self.member.pool.statistics().streams


class UpstreamManager:
    """The members and the routing of one worker."""

    def __init__(
        self,
        settings: Settings,
        maker: MemberMaker,
        table: UpstreamTable,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._maker: Final = maker
        self._table: Final = table
        self._loop: Final = loop
        self._members: dict[_Place, Member] = {}
        self._keys: dict[_Credentials, Keys] = {}
        self._hedging: dict[_Hedged, Hedging] = {}
        self._retired: list[_Retired] = []
        self._old: list[Routing] = []  # whose plans are not all closed
        self._leaving: list[Member] = []  # retired, or done with but for WebSockets
        most_waiting = max(1, share(settings.max_inflight, settings.workers, 0) // _LINES_PART)
        self._lines: Final = CapacityWaiters(most_waiting, settings.queue_floor_percent / 100)
        self._failing: Final[set[Member]] = set()  # as the log has it
        self._is_started = False
        self._must_collect = False  # a member has gone, and was not collected
        self._starts: Final = YieldingSweep(_start, _PER_TURN, loop)
        self._ticks: Final = YieldingSweep(self._tick_pool, _PER_TURN, loop)
        self.routing = finished(self._making(settings, []))

    def __repr__(self) -> str:
        return f"<UpstreamManager {len(self._members)} members, {len(self._retired)} retired>"

    @property
    def members(self) -> Sequence[Member]:
        """The members of the present configuration."""
        return self.routing.members

    def open_connections(self) -> list[tuple[str, OpenUpstream]]:
        """Return the connections to upstreams, each with the upstream's name, also of those that are retired."""
        members = [*self.members, *(each.member for each in self._retired)]
        return [(member.name, found) for member in members for found in member.pool.open_connections()]

    @property
    def connections(self) -> ConnectionBudget:
        """The room for connections to upstreams, of all members."""
        return self._maker.budget

    def start(self) -> None:
        """Make the warm connections."""
        self._is_started = True
        self._starts.begin(self.members)

    def replace(self, settings: Settings) -> Routing:
        """Take other settings; return the new tables. What is unchanged goes on as it is.

        The members have their rows in the table already.
        """
        return finished(self.replacing(settings))

    def replacing(self, settings: Settings) -> Generator[None, None, Routing]:
        """Do the same in steps: 10,000 routes, or hundreds of members, are too much for one turn of the loop.

        The tables change with the last step.
        """
        new: list[Member] = []
        try:
            made = yield from self._making(settings, new)
        except BaseException:
            for member in new:
                member.pool.close()
                self._forget(member)
            raise
        old, self.routing = self.routing, made
        before, now = set(old.members), set(self.members)
        self._old.append(old)
        self._retired += [_Retired(member, tuple(self._old)) for member in before - now]
        if self._is_started:
            for member in now - before:
                member.pool.start()
        self._leaving += before - now
        self._note_leaving()
        self._maker.authorities.keep_only(member.entry for member in self.members)
        return self.routing

    def tick(self, now_s: float) -> None:
        """Look after the connections; every 0.25 s or so. now_s: the loop's time."""
        self._ticks.begin(self.members)
        if self._must_collect:
            # A pool, its dialer and their callbacks hold each other, and a read buffer. The collector would come to
            # them after hours; by hand it takes 2 ms, and 20 ms beside 10,000 routes. A tick later, as the loop closes
            # connections in a turn of their own.
            self._must_collect = False
            gc.collect()
        for retired in tuple(self._retired):
            retired.member.pool.tick(now_s)
            retired.member.pool.keep_none()
            if retired.is_done:
                retired.member.pool.close()
                self._retired.remove(retired)
                self._forget(retired.member)
                self._must_collect = True
        self._old = [routing for routing in self._old if routing.n_open]
        if self._leaving:
            self._note_leaving()

    def _tick_pool(self, member: Member) -> None:
        member.pool.tick(self._loop.time())
        if member.health.fails_requests is not (member in self._failing):
            (self._failing.add if member.health.fails_requests else self._failing.discard)(member)
            self._maker.tell_failing(member)

    def _note_leaving(self) -> None:
        """Tell the tables what runs elsewhere: it is not on its way to a member of theirs."""
        retired = {retired.member for retired in self._retired}
        kept = {id(member.concurrency) for member in self.members}  # what runs under these is counted there
        alone = [member for member in self._leaving if id(member.concurrency) not in kept]
        running = {member for member in alone if member.concurrency.n_begun}
        self._leaving = [member for member in self._leaving if member in running or member in retired]
        self.routing.retired = tuple(member for member in alone if member in running or member in retired)

    def close(self) -> None:
        """Abort every connection."""
        self._starts.stop()
        self._ticks.stop()
        self._maker.authorities.close()
        for member in (*self.members, *(retired.member for retired in self._retired)):
            member.pool.close()

    def _forget(self, gone: Member) -> None:
        """Give up its row, unless another one has it: one of other keys, say."""
        self._failing.discard(gone)
        others = (*self.members, *(retired.member for retired in self._retired))
        if all(member.row != gone.row for member in others):
            gone.counts.forget(gone.row)

    # -- making -----------------------------------------------------------------------------------

    def _making(self, settings: Settings, new: list[Member]) -> Generator[None, None, Routing]:
        """Make the tables for some settings. new: gets the members that were not there."""
        upstreams = self._maker.entries(settings)
        keys = {(entry.name, entry.keys): self._keys_of(entry) for entry in upstreams if _rotates(entry)}
        is_new = bool(self._members)
        before = {(member.name, member.address): member for member in self._members.values()}
        members: dict[_Place, Member] = {}
        by_name: dict[str, list[Member]] = {}
        for entry in upstreams:
            for origin in entry.origins:
                place = entry, str(origin)
                member = self._members.get(place)
                if member is None:
                    more = (self._table.row(entry.name, str(origin)), keys.get((entry.name, entry.keys)))
                    limit = _limit_of(before.get((entry.name, str(origin))), entry)
                    member = self._maker.make(settings, entry, origin, *more, is_new=is_new, limit=limit)
                    new.append(member)
                    member.counts.set_state(member.row, State.IN)  # from now on the row is not given to another one
                    yield
                members[place] = member
                by_name.setdefault(entry.name, []).append(member)
        index = yield from indexing([route.match for route in settings.routes])
        self._members, self._keys = members, keys
        hedged = {(route.name, route.hedge) for route in settings.routes}
        self._hedging = {each: hedging for each, hedging in self._hedging.items() if each in hedged}
        routes = RouteMaker(by_name, self._table, self._hedging, self._loop)
        table = RouteTable(settings.routes, index, is_litellms=settings.litellm_headers)
        return Routing(table, tuple(members.values()), routes.route, self._lines)

    def _keys_of(self, entry: UpstreamEntry) -> Keys:
        """Return the state of its keys: of each that was there the same, as it rests for as long as it was told."""
        found = self._keys.get((entry.name, entry.keys))
        if found is None:
            found = keys_of(entry, self._maker.changes, self._maker.logger)
            for (name, before), keys in self._keys.items():
                if name == entry.name:
                    found.keep(keys, {n: before.index(key) for n, key in enumerate(entry.keys) if key in before})
        return found


def _start(member: Member) -> None:
    member.pool.start()


def _limit_of(before: Member | None, entry: UpstreamEntry) -> ConcurrencyLimit | None:
    """Return the limit that a member goes on with: the server is the same, and works for the requests of before."""
    if before is None or not entry.concurrency or before.entry.concurrency != entry.concurrency:
        return None
    return before.concurrency


def _rotates(entry: UpstreamEntry) -> bool:
    """Say whether its keys are watched. The one that the variables name never rests: nothing could stand in for it."""
    return bool(entry.keys) and bool(entry.where)


class RouteMaker:
    """Makes the parts of routes, each when it is first used."""

    def __init__(
        self,
        members: dict[str, list[Member]],
        table: UpstreamTable,
        hedging: dict[_Hedged, Hedging],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """hedging: what is known of routes that were used already; gets what is made here."""
        self._members: Final = members
        self._table: Final = table
        self._hedging: Final = hedging
        self._loop: Final = loop

    def route(self, entry: RouteEntry) -> RouteParts:
        """Return the parts of one route."""
        fallbacks = [(target, self._lone(entry, target)) for target in entry.fallback]
        groups = (self._group(entry, entry.to), *(group for target, group in fallbacks if target.on_failure))
        for_refusals = tuple((target.refusals, group) for target, group in fallbacks if target.refusals)
        canary = mirror = hedging = None
        if entry.canary is not None:
            canary = CanarySplit(entry.name, entry.canary.percent), self._lone(entry, entry.canary.to)
        if entry.mirror is not None:
            gate = MirrorGate(entry.mirror.percent, _MOST_MIRRORED, _MOST_MIRRORED_BYTES)
            mirror = gate, self._lone(entry, entry.mirror.to)
        if entry.hedge is not None:
            # It knows how long first bytes take, and what of the budget is left.
            hedging = self._hedging.setdefault((entry.name, entry.hedge), Hedging(entry.hedge, self._loop.time()))
        return RouteParts(entry, groups, canary, mirror, hedging, for_refusals)

    def _lone(self, entry: RouteEntry, target: Target) -> Group:
        return self._group(entry, (target,), balance=False)

    def _group(self, entry: RouteEntry, targets: Sequence[Target], *, balance: bool = True) -> Group:
        """Return the group of some targets. balance: False: in turn, as there is nothing else to choose by."""
        found = list(self._weighted(targets))
        members = [member for member, _, _ in found]
        weights = [weight for _, _, weight in found]
        balancer = self.balancer(entry, members, weights) if balance else RoundRobin()
        return Group(members, [model for _, model, _ in found], weights, balancer, entry.request_headers)

    def _weighted(self, targets: Sequence[Target]) -> Iterator[tuple[Member, ModelName, float]]:
        """Yield member, model and weight: an upstream's weight is shared by its members."""
        for target in targets:
            members = self._members[target.upstream]
            for member in members:
                yield member, target.naming, member.entry.weight / len(members)

    def balancer(self, entry: RouteEntry, members: Sequence[Member], weights: Sequence[float]) -> Balancer:
        """Return what chooses among the members of `to`."""
        if len(members) == 1 or entry.balance == "round_robin":
            return RoundRobin()
        if entry.balance == "least_inflight":
            return LeastInflight()
        if entry.balance == "peak_ewma":
            return PeakEwma([member.latency for member in members])
        names = _names(members)
        if entry.balance == "prefix":
            return PrefixAffinity(PrefixTable(self._table.prefixes(entry.name)), member_ids(names))
        # With one upstream the points of its origins don't depend on their number: what the others have stays theirs.
        return BoundedHash(Ring(names, weights if len(entry.to) > 1 else [1.0] * len(names)))


def _names(members: Sequence[Member]) -> list[str]:
    """Return names of a group's members that differ, and stay as they are when others come or go."""
    n_same: Counter[str] = Counter()
    names = []
    for member in members:
        name = f"{member.name} {member.address}"
        names.append(f"{name} {n_same[name]}" if n_same[name] else name)  # it may be there twice, for two models
        n_same[name] += 1
    return names
