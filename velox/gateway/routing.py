"""Where requests may go: the tables of one configuration, and the way of one request through them.

    Routing.plan()   the request's route, and the stages of it that have its model         -> Plan
    Plan.first()     the first stage that has a member in good health; if none has, the first one all the same
    Plan.next()      after an attempt that failed: whoever has not been tried, in the same order
    Plan.other_key() the same member, with another of its upstream's keys

A stage is a group of members: those of `to` are the first, each fallback is one more; a canary goes before all of them.

Knows: the order of the stages, which of them have a model, what was tried. Does not know: how a member is chosen in its
group (group.py), who waits for room (room.py), or whether there may be another attempt (retries.py).

A configuration is never changed: a reload makes another Routing (runtime/fleet.py). What has begun ends on its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from velox.errors import Reason, VeloxError
from velox.gateway.group import Group, Pick, Stage, stage_of
from velox.gateway.member import Member
from velox.gateway.room import RoomLines
from velox.memo import Memo
from velox.net.upstream.pool_capacity import PoolStatistics
from velox.policy.balance.prefix import HASHED_BYTES, prompt_of
from velox.policy.health.member import State
from velox.policy.hedge import Hedging
from velox.policy.route_match import RouteTable
from velox.policy.routes import RouteEntry
from velox.policy.split import CanarySplit, MirrorGate
from velox.types import BodyFields, Caller, RequestHead

__all__ = ["Plan", "RouteParts", "Routing"]

_ANY: Final = 1 << 30
_KEPT_WAYS: Final = 4096
_KEPT_STAGES: Final = 256
_KEPT_PATH_BYTES: Final = 256  # of what a client may choose freely; API paths are short
_NONE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class RouteParts:
    """What one route is made of in one worker. groups: of `to`, then one for each fallback.

    canary, mirror: and the group that they send to.
    """

    entry: RouteEntry
    groups: tuple[Group, ...]
    canary: tuple[CanarySplit, Group] | None = None
    mirror: tuple[MirrorGate, Group] | None = None
    hedging: Hedging | None = None

    def stages(self, model: str | None) -> tuple[Stage, ...]:
        """Return the stages that have the model that they are asked for."""
        found = (stage_of(group, model) for group in self.groups)
        return tuple(stage for stage in found if stage.is_open)


_Way: TypeAlias = tuple[RouteParts, tuple[Stage, ...]]


class Routing:
    """The tables of one worker, for one configuration.

    build: makes the parts of a route, when its first request comes: of ten thousand routes few are used. lines: of
    those who wait for room; one configuration after the other has the same. n_plans: that are open. retired: members
    of configurations before this one, in which requests still run.
    """

    __slots__ = (
        *("_alike", "_build", "_has_unlimited", "_is_limited", "_parts", "_stages", "_table", "_ways"),
        *("lines", "members", "n_plans", "retired"),
    )

    def __init__(
        self,
        table: RouteTable,
        members: Sequence[Member],
        build: Callable[[RouteEntry], RouteParts],
        lines: RoomLines | None = None,
    ) -> None:
        assert members, "settings name one at least"
        self.members: Final = tuple(members)
        self.retired: Sequence[Member] = ()
        self.n_plans = 0
        self._table: Final = table
        self._build: Final = build
        self._parts: Final[dict[str, RouteParts]] = {}
        self._ways: Final[Memo[tuple[str | None, bytes, str], _Way]] = Memo(_KEPT_WAYS)
        self._stages: Final[Memo[tuple[str, str | None], tuple[Stage, ...]]] = Memo(_KEPT_WAYS)
        self._alike: Final[Memo[tuple[Stage, ...], tuple[Stage, ...]]] = Memo(_KEPT_STAGES)
        self._is_limited: Final = any(member.concurrency.limit for member in members)
        self._has_unlimited: Final = not all(member.concurrency.limit for member in members)
        self.lines: Final = lines or RoomLines(_ANY)

    def __repr__(self) -> str:
        return f"<Routing {self._table!r} {' '.join(map(repr, self.members))}>"

    @property
    def table(self) -> RouteTable:
        """Return its routes."""
        return self._table

    def plan(self, head: RequestHead, peek: BodyFields, caller: Caller, body: bytes | bytearray | None) -> Plan:
        """Return the way of a request; to be closed. Raises VeloxError if there is none."""
        model = peek.model
        asked = None if self._table.header_names else (model, head.path, caller.name)
        way = None if asked is None else self._ways.get(asked)
        if way is None:
            way = self._way(head, model, caller)
            if asked is not None and len(head.path) <= _KEPT_PATH_BYTES:
                self._ways.put(asked, way)
        parts, stages = way
        if not stages:
            message = "no upstream here serves this model; GET /v1/models lists those that are served"
            raise VeloxError(Reason.UNKNOWN_MODEL, message, param="model")
        return Plan(self, parts, stages, _affinity(parts.entry, head, peek, body), caller, model)

    def _way(self, head: RequestHead, model: str | None, caller: Caller) -> _Way:
        """Return the route of a request, and its stages that have the model. Raises VeloxError if it has no route."""
        parts = self._find(head, model, caller)
        stages = self._stages.get((parts.entry.name, model))
        if stages is None:
            stages = parts.stages(model)
            # One tuple for all models that are alike: a client may name any, and there may be hundreds of members.
            stages = self._stages.put((parts.entry.name, model), self._alike.get(stages) or stages)
            self._alike.put(stages, stages)
        return parts, stages

    def _find(self, head: RequestHead, model: str | None, caller: Caller) -> RouteParts:
        entry = self._table.match(model, head.path, head.headers, caller.name)
        if entry is not None:
            return self.parts(entry)
        if model is None:
            message = "no route of this gateway is for a request of this path that names no model"
            raise VeloxError(Reason.UNKNOWN_ROUTE, message)
        message = "no route of this gateway is for this model; GET /v1/models lists those that are served"
        raise VeloxError(Reason.UNKNOWN_MODEL, message, param="model")

    def parts(self, entry: RouteEntry) -> RouteParts:
        """Return what a route is made of."""
        found = self._parts.get(entry.name)
        if found is None:
            found = self._parts[entry.name] = self._build(entry)
        return found

    # -- room -------------------------------------------------------------------------------------

    def room(self, n_active: int, n_asleep: int, now_s: float) -> int:
        """Return how many more requests may leave the queue: for each there is room at some upstream.

        n_active: that have left the queue. Those of them that are in no attempt will be in one, too; but not those who
        wait in a line for another upstream than has room: a route must not wait for another one's upstream. n_asleep:
        of these, that wait for their time: others have their places meanwhile, but no more than the limit are lent, as
        nobody is asked when all wake at once.
        """
        if not self._is_limited or (self._has_unlimited and self._table.only is None):
            return _ANY
        members = self._used(now_s)
        limit = sum(member.concurrency.limit or _ANY for member in members)
        room = sum(max(0, member.concurrency.room) for member in members)
        n_begun = sum(member.concurrency.n_begun for member in (*self.members, *self.retired))
        return room - (n_active - n_begun - self.lines.n_waiting - min(n_asleep, limit))

    def _used(self, now_s: float) -> Sequence[Member]:
        """Return the members that requests go to now: those of the first stage that works, where all take one route."""
        entry = self._table.only
        if entry is None:
            return self.members
        groups = self.parts(entry).groups
        for group in groups:
            found = [member for member in group.members if member.health.state(now_s) is State.IN]
            if found:
                return found
        return groups[0].members

    async def wait_room(self, plan: Plan, until_s: float) -> Pick:
        """Wait until one of those that could take it has room for it. Raises VeloxError."""
        return await self.lines.wait(plan.stages, plan.first, until_s)

    def found_room(self, now_s: float) -> None:
        """An attempt has ended, or an upstream takes more: wake the first of each line."""
        self.lines.found_room(now_s)

    # -- for the gauges -----------------------------------------------------------------------------

    def concurrency(self) -> tuple[int, int]:
        """Sum up the limits, and how much of them is used; 0, 0 if there are none."""
        if not self._is_limited:
            return 0, 0
        limits = [member.concurrency for member in self.members]
        return sum(each.limit for each in limits), sum(each.in_flight for each in limits)

    def publish(self, now_s: float) -> int:
        """Tell the state of each member; return how many get no requests. A lone one always does."""
        n_out = 0
        for member in self.members:
            state = member.health.state(now_s)
            member.counts.set_state(member.row, state)
            if member.health.keys is not None:
                member.counts.set_keys(member.row, member.health.keys.n_out(), member.health.keys.n_resting(now_s))
            n_out += state is not State.IN
        return 0 if len(self.members) == 1 else n_out

    def statistics(self) -> PoolStatistics:
        """Sum up the pools."""
        found = [member.pool.statistics() for member in self.members]
        return PoolStatistics(
            sum(each.connections for each in found),
            sum(each.dialing for each in found),
            sum(each.streams for each in found),
            sum(each.waiting for each in found),
        )


class Plan:
    """The way of one request. It is open until close(): what a retired configuration still holds is known by that."""

    __slots__ = ("_is_open", "_key", "_n_passed", "_routing", "_tried", "_tried_keys", "is_canary", "parts", "stages")

    def __init__(
        self,
        routing: Routing,
        parts: RouteParts,
        stages: tuple[Stage, ...],
        key: bytes,
        caller: Caller,
        model: str | None,
    ) -> None:
        self._routing: Final = routing
        self.parts: Final = parts
        self._key: Final = key
        self._tried: Final[dict[Group, set[int]]] = {}
        self._tried_keys: Final[dict[Member, set[int]]] = {}
        self._n_passed = 0  # stages, up to the last one in which somebody was tried
        self.is_canary = False
        if parts.canary is not None:
            split, group = parts.canary
            on = parts.entry.hash_on
            # Not by a prompt: others would come to it with other words.
            is_sticky = bool(key) and on is not None and on.kind != "prefix"
            stage = stage_of(group, model)
            self.is_canary = stage.is_open and split.takes(key if is_sticky else caller.id, random.random())
            if self.is_canary:
                stages = (stage, *stages)
        self.stages: Final = stages
        self._is_open = True
        routing.n_plans += 1

    def __repr__(self) -> str:
        return f"<Plan {self.parts.entry.name} of {len(self.stages)} stages>"

    def close(self) -> None:
        """Nothing more is asked of it; only the first call counts."""
        if self._is_open:
            self._is_open = False
            self._routing.n_plans -= 1

    @property
    def routing(self) -> Routing:
        """What it was made from."""
        return self._routing

    @property
    def _has_others(self) -> bool:
        return len(self.stages) > 1 or len(self.stages[0].group.members) - len(self.stages[0].closed) > 1

    def first(self, now_s: float) -> Pick | None:
        """Return the first choice, which has begun; None: those that could take it have no room now.

        Raises VeloxError when the keys of all rest.
        """
        simple = self.stages[0].group
        if simple.is_simple and len(self.stages) == 1:
            if simple.is_limited and simple.members[0].concurrency.room <= 0:
                return None
            lone = Pick(simple, 0, 0)
            lone.begin(now_s)
            return lone
        may_probe = self._has_others
        for anyhow in (False, True):
            for group, closed in self.stages:
                pick = group.pick(
                    *(now_s, self._key, closed),
                    may_probe=may_probe and not anyhow,
                    anyhow=anyhow,
                    within_limits=True,
                )
                if pick is not None:
                    pick.begin(now_s)
                    return pick
                if group.is_limited and group.has_room(now_s, closed, anyhow=anyhow) is False:
                    return None
        return self._last_resort(now_s)

    def next(
        self, now_s: float, *, anyhow: bool = False, within_limits: bool = False, beyond: bool = False
    ) -> Pick | None:
        """Return the first usable choice that was not tried; None if there is none.

        anyhow: then the first that was not tried, usable or not. within_limits: only one that has room. beyond: only of
        stages after all in which somebody was tried.
        """
        for group, closed in self.stages[self._n_passed :] if beyond else self.stages:
            tried = closed | self._tried.get(group, _NONE)
            pick = group.pick(now_s, self._key, tried, again=True, within_limits=within_limits)
            if pick is not None:
                return pick
        if anyhow:
            for group, closed in self.stages:
                left = set(range(len(group.members))) - closed - self._tried.get(group, _NONE)
                if left:
                    return group.take(min(left), now_s)
        return None

    def other_key(self, pick: Pick, now_s: float) -> Pick | None:
        """Return the same member with another key, that was not tried and may be used; None if there is none."""
        tried = self._tried_keys.setdefault(pick.member, set())
        if pick.keys is None or pick.keys.pick(now_s, 0.0, tried) is None:
            return None
        return pick.group.take(pick.n, now_s, tried)

    def same(self, pick: Pick, now_s: float) -> Pick:
        """Return the same member once more; with the same key if none may be used, as that is the one to wait for."""
        if pick.keys is None or pick.keys.is_usable(now_s):
            return pick.group.take(pick.n, now_s)
        return Pick(pick.group, pick.n, pick.key)

    def tried(self, pick: Pick, *, is_silent: bool = False) -> None:
        """An attempt has failed there. is_silent: without a reply: it would be no better with another model."""
        groups = {stage.group for stage in self.stages} if is_silent else {pick.group}
        for group in groups:
            found = (n for n, member in enumerate(group.members) if member is pick.member)
            self._tried.setdefault(group, set()).update(found if is_silent else (pick.n,))
        n = next((n for n, stage in enumerate(self.stages) if stage.group is pick.group), 0)
        self._n_passed = max(self._n_passed, n + 1)
        self._tried_keys.setdefault(pick.member, set()).add(pick.key)

    def _last_resort(self, now_s: float) -> Pick:
        """All keys rest. One that is all there is may be asked all the same: its limit may be another model's."""
        members = [
            (group, n, member)
            for group, closed in self.stages
            for n, member in enumerate(group.members)
            if n not in closed
        ]
        group, n, member = members[0]
        if len(members) == 1 and len(member.forwarders) == 1:
            pick = group.take(n, now_s)
            pick.begin(now_s)
            return pick
        wait_s = min((wait for _, _, each in members if (wait := each.health.rests_s(now_s))), default=1.0)
        message = (
            f"every key of this request's upstreams rests, as the upstreams asked; the first is back in {wait_s:.1f} s"
        )
        raise VeloxError(Reason.RATE_LIMITED, message, retry_after_s=math.ceil(wait_s * 10.0) / 10.0)


def _affinity(entry: RouteEntry, head: RequestHead, peek: BodyFields, body: bytes | bytearray | None) -> bytes:
    """Return what decides where a request goes; empty: nothing does."""
    if entry.balance == "prefix":
        return b"" if body is None else bytes(prompt_of(body))
    on = entry.hash_on
    if entry.balance != "hash" or on is None:
        return b""
    if on.kind == "header":
        return head.header(on.header) or b""
    if on.kind == "prefix":
        return b"" if body is None else bytes(prompt_of(body, HASHED_BYTES))
    return b"" if peek.user is None else peek.user.encode("utf-8", "surrogatepass")
