"""Where requests may go: the tables of one configuration, and the cursor of one request through them.

    Routing.resolve()         the request's route, and the levels of it that have its model         -> ResolvedRoute
    ResolvedRoute.cursor()    the cursor of one request through these                               -> RouteCursor
    RouteCursor.first()       the first level that has a member in good health; if none has, the first one all the same
    RouteCursor.next()        after an attempt that failed: whoever has not been tried, in the same order
    RouteCursor.next_for()    after a refusal that says why: the fallbacks for that
    RouteCursor.other_key()   the same member, with another of its upstream's keys

Most routes lead to one upstream with one origin and one key (`ResolvedRoute.only`): a request needs no cursor there
until it fails.

A priority level is a group of members: those of `to` are the first, each fallback is one more; a canary goes before
all of them.

Knows: the order of the levels, which of them have a model, what was tried. Does not know: how a member is chosen in its
group (group.py), who waits for capacity (capacity.py), or whether there may be another attempt (retries.py).

A configuration is never changed: a reload makes another Routing (runtime/upstreams/upstream_manager.py). What has begun
ends on its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes

from velox.errors import Reason, VeloxError
from velox.gateway.cluster.capacity import CapacityWaiters, QueueTicket
from velox.gateway.cluster.group import Attempt, Group, PriorityLevel, level_of
from velox.gateway.upstreams.member import Member
from velox.heads import RequestHead
from velox.memo import Memo
from velox.net.upstream.pool import PoolStatistics
from velox.outcomes import Refusal
from velox.policy.api.rows import row_at
from velox.policy.balance.prefix import HASHED_BYTES, prompt_of
from velox.policy.health.member import State
from velox.policy.retries.hedge import Hedging
from velox.policy.routes.entries import ANYTHING, RouteEntry, Target, asked_model
from velox.policy.routes.match import RouteTable
from velox.policy.routes.sessions import session_of
from velox.policy.routes.split import CanarySplit, MirrorGate
from velox.types import BodyFields, Caller

__all__ = ["ResolvedRoute", "RouteCursor", "RouteParts", "Routing"]

_ANY: Final = 1 << 30
_KEPT_ROUTES: Final = 4096
_KEPT_LEVELS: Final = 256
_KEPT_DESTINATIONS: Final = 64  # of a route: models that clients named
_KEPT_PATH_BYTES: Final = 256  # of what a client may choose freely; API paths are short
_NONE: Final[frozenset[int]] = frozenset()
# What the routes look at of a request: its model, or also its path and its caller's name.
_Asked: TypeAlias = str | tuple[str | None, bytes, str]


@dataclass(frozen=True, slots=True)
class RouteParts:
    """What one route is made of in one worker. groups: of `to`, then one for each fallback that failures lead to.

    canary, mirror: and the group that they send to. for_refusals: the fallbacks for what models refuse.
    """

    entry: RouteEntry
    groups: tuple[Group, ...]
    canary: tuple[CanarySplit, Group] | None = None
    mirror: tuple[MirrorGate, Group] | None = None
    hedging: Hedging | None = None
    for_refusals: tuple[tuple[frozenset[Refusal], Group], ...] = ()

    def levels(self, model: str | None) -> tuple[PriorityLevel, ...]:
        """Return the levels that have the model that they are asked for."""
        found = (level_of(group, model) for group in self.groups)
        return tuple(level for level in found if level.is_open)

    def levels_for(self, refusal: Refusal, model: str | None) -> tuple[PriorityLevel, ...]:
        """Return those that are asked instead of who refused a request."""
        found = (level_of(group, model) for refusals, group in self.for_refusals if refusal in refusals)
        return tuple(level for level in found if level.is_open)


class ResolvedRoute:
    """The route of a kind of requests, and those of its levels that have their model; shared by all of them.

    only: the one member group, if no request of this kind has a choice.
    """

    __slots__ = ("_destinations", "levels", "only", "parts")

    def __init__(self, parts: RouteParts, levels: tuple[PriorityLevel, ...]) -> None:
        self._destinations: Final[Memo[str | None, tuple[tuple[str, str], ...]]] = Memo(_KEPT_DESTINATIONS)
        self.parts: Final = parts
        self.levels: Final = levels
        has_choice = len(levels) != 1 or parts.canary is not None or not levels[0].group.is_simple
        self.only: Final = None if has_choice else levels[0].group

    def cursor(
        self, head: RequestHead, fields: BodyFields, caller: Caller, body: bytes | bytearray | None
    ) -> RouteCursor:
        """Return the cursor of one request."""
        key = _affinity(self.parts.entry, head, fields, body, caller)
        return RouteCursor(self.parts, self.levels, key, caller, fields.model)

    def destinations(self, model: str | None) -> tuple[tuple[str, str], ...]:
        """Return the name of each upstream that a request may go to, with the model that it is asked for there.

        model: that the client named.
        """
        known = self._destinations.known.get(model)
        return self._destinations.put(model, tuple(self._find_destinations(model))) if known is None else known

    def _find_destinations(self, model: str | None) -> Iterable[tuple[str, str]]:
        found: dict[tuple[str, str], None] = {}
        levels = self.levels
        if self.parts.canary is not None:
            levels = (*levels, level_of(self.parts.canary[1], model))
        for group, closed in levels:
            for n, member in enumerate(group.members):
                if n not in closed:
                    wanted = group.models[n]
                    asked = model if wanted is None else asked_model(wanted, model)
                    found[(member.name, asked or "")] = None
        return found


class Routing:
    """The tables of one worker, for one configuration.

    build: makes the parts of a route, when its first request comes: of ten thousand routes few are used. lines: of
    those who wait for capacity; one configuration after the other has the same. n_open: requests that hold it. retired:
    members of configurations before this one, in which requests still run.
    """

    __slots__ = (
        *("_alike", "_build", "_is_by_model", "_is_limited", "_parts", "_levels", "_table", "_resolved"),
        *("always_has_capacity", "has_places"),
        *("members", "n_open", "retired", "waiters"),
    )

    def __init__(
        self,
        table: RouteTable,
        members: Sequence[Member],
        build: Callable[[RouteEntry], RouteParts],
        waiters: CapacityWaiters | None = None,
    ) -> None:
        assert members, "settings name one at least"
        self.members: Final = tuple(members)
        self.retired: Sequence[Member] = ()
        self.n_open = 0
        self._table: Final = table
        self._build: Final = build
        self._parts: Final[dict[str, RouteParts]] = {}
        self._resolved: Final[Memo[_Asked, ResolvedRoute]] = Memo(_KEPT_ROUTES)
        self._is_by_model: Final = not (table.header_names or table.asks_path or table.asks_key)
        self._levels: Final[Memo[tuple[str, str | None], ResolvedRoute]] = Memo(_KEPT_ROUTES)
        self._alike: Final[Memo[tuple[str, tuple[PriorityLevel, ...]], ResolvedRoute]] = Memo(_KEPT_LEVELS)
        self._is_limited: Final = any(member.concurrency.limit for member in members)
        has_unlimited = not all(member.concurrency.limit for member in members)
        # Requests may leave the queue whatever runs: their upstreams have no limits, or each has to look by itself.
        self.always_has_capacity: Final = not self._is_limited or (has_unlimited and table.only is None)
        self.waiters: Final = waiters or CapacityWaiters(_ANY)
        # An upstream's key: what is made with one, another one does not see.
        self.has_places: Final = len({(each.name, n) for each in members for n in range(len(each.forwarders))}) > 1

    def __repr__(self) -> str:
        return f"<Routing {self._table!r} {' '.join(map(repr, self.members))}>"

    @property
    def table(self) -> RouteTable:
        """Return its routes."""
        return self._table

    def resolve(self, head: RequestHead, model: str | None, caller: Caller) -> ResolvedRoute:
        """Return the route of requests of this kind. Raises VeloxError if there is none."""
        # Most tables look at the model alone. An empty name stands for none: no model has it.
        asked = (model or "") if self._is_by_model else self._asked(head, model, caller)
        route = None if asked is None else self._resolved.get(asked) or self._resolved.find(asked)
        if route is None:
            route = self._resolve(head, model, caller)
            if asked is not None:
                self._resolved.put(asked, route)
        if not route.levels:
            message = "no upstream here serves this model; GET /v1/models lists those that are served"
            raise VeloxError(Reason.UNKNOWN_MODEL, message, param="model")
        return route

    def _asked(self, head: RequestHead, model: str | None, caller: Caller) -> _Asked | None:
        """Return what the routes look at of a request; None: it is nothing to keep a route by."""
        table, path = self._table, head.shape.path
        if table.header_names or len(path) > _KEPT_PATH_BYTES:
            return None
        return model, path if table.asks_path else b"", caller.name if table.asks_key else ""

    def model_of_unnamed(self, head: RequestHead, caller: Caller) -> str | None:
        """Return the model that the route of a request which names none has for it; None: it has none."""
        entry = self._table.match(None, head.path, head.headers, caller.name)
        return None if entry is None else entry.model_of_unnamed

    def route_to(self, upstream: str) -> ResolvedRoute:
        """Return the route to one upstream, at which something has begun. Raises VeloxError if it is gone."""
        if all(member.name != upstream for member in self.members):
            message = "the upstream at which this has begun is not here any more; begin again"
            raise VeloxError(Reason.UNKNOWN_ROUTE, message)
        name = f"upstream {upstream}"  # no route has a space in its name
        route = self._levels.get((name, None))
        if route is None:
            parts = self.parts(RouteEntry(name, ANYTHING, (Target(upstream),)))
            route = self._levels.put((name, None), ResolvedRoute(parts, parts.levels(None)))
        return route

    def _resolve(self, head: RequestHead, model: str | None, caller: Caller) -> ResolvedRoute:
        """Return the route of a request, and its levels that have the model. Raises VeloxError if it has no route."""
        parts = self._find(head, model, caller)
        route = self._levels.get((parts.entry.name, model))
        if route is None:
            levels = parts.levels(model)
            # One route for all models that are alike: a client may name any, and there may be hundreds of members.
            route = self._alike.get((parts.entry.name, levels))
            if route is None:
                route = self._alike.put((parts.entry.name, levels), ResolvedRoute(parts, levels))
            self._levels.put((parts.entry.name, model), route)
        return route

    def _find(self, head: RequestHead, model: str | None, caller: Caller) -> RouteParts:
        headers = head.headers if self._table.header_names else []
        entry = self._table.match(model, head.path, headers, caller.name)
        if entry is not None:
            return self.parts(entry)
        if model is None:
            raise VeloxError(Reason.UNKNOWN_ROUTE, _without_model(head))
        message = "no route of this gateway is for this model; GET /v1/models lists those that are served"
        raise VeloxError(Reason.UNKNOWN_MODEL, message, param="model")

    def parts(self, entry: RouteEntry) -> RouteParts:
        """Return what a route is made of."""
        found = self._parts.get(entry.name)
        if found is None:
            found = self._parts[entry.name] = self._build(entry)
        return found

    # -- capacity -------------------------------------------------------------------------------------

    def free_slots(self, n_active: int, n_asleep: int, now_s: float) -> int:
        """Return how many more requests may leave the queue: for each there is room at some upstream.

        n_active: that have left the queue, with second attempts and copies for mirrors: whatever runs at an upstream.
        Those of them that are in no attempt will be in one, too; but not those who wait for another upstream
        than has room: a route must not wait for another one's upstream. n_asleep: of these, that wait for their time:
        others have their places meanwhile, but no more than the limit are lent, as nobody is asked when all wake at
        once.
        """
        if self.always_has_capacity:
            return _ANY
        members = self._used(now_s)
        limit = sum(member.concurrency.limit or _ANY for member in members)
        n_free = sum(max(0, member.concurrency.free_slots) for member in members)
        n_begun = sum(member.concurrency.n_begun for member in (*self.members, *self.retired))
        return n_free - (n_active - n_begun - self.waiters.n_waiting - min(n_asleep, limit))

    def _used(self, now_s: float) -> Sequence[Member]:
        """Return the members that requests go to now: those of the first level that works, where all take one route."""
        entry = self._table.only
        if entry is None:
            return self.members
        groups = self.parts(entry).groups
        for group in groups:
            found = [member for member in group.members if member.health.state(now_s) is State.IN]
            if found:
                return found
        return groups[0].members

    async def wait_for_capacity(self, cursor: RouteCursor, until_s: float, ticket: QueueTicket) -> Attempt:
        """Wait until one of those that could take it has room for it. Raises VeloxError."""
        return await self.waiters.wait(cursor.levels, cursor.first, until_s, ticket)

    def found_capacity(self, now_s: float) -> None:
        """An attempt has ended, or an upstream takes more: wake the first of each line."""
        self.waiters.notify(now_s)

    # -- for the gauges -----------------------------------------------------------------------------

    def concurrency(self) -> tuple[int, int]:
        """Sum up the limits, and how much of them is used; 0, 0 if there are none."""
        if not self._is_limited:
            return 0, 0
        limits = [member.concurrency for member in self.members]
        return sum(each.limit for each in limits), sum(each.in_flight for each in limits)

    def publish(self, now_s: float) -> int:
        """Tell the state of each member; return how many are out."""
        n_out = 0
        for member in self.members:
            state = member.health.state(now_s)
            member.counts.set_state(member.row, state)
            if member.health.keys is not None:
                member.counts.set_keys(member.row, member.health.keys.n_out(), member.health.keys.n_resting(now_s))
            n_out += state is State.OUT
        return n_out

    def statistics(self) -> PoolStatistics:
        """Sum up the pools."""
        found = [member.pool.statistics() for member in self.members]
        return PoolStatistics(
            sum(each.connections for each in found),
            sum(each.dialing for each in found),
            sum(each.streams for each in found),
            sum(each.waiting for each in found),
        )


def _without_model(head: RequestHead) -> str:
    """Say why a request that names no model has no route."""
    words = [word for word in unquote_to_bytes(head.path).decode("utf-8", "replace").lower().split("/") if word]
    if not words or row_at(words) is None:
        return (
            "no route of this gateway is for this path: no model is read from its requests, so it needs a route by"
            " `paths`, or one without `match`"
        )
    return (
        "this request names no model, and each route of this gateway that is for its path is for some models; name one"
        " of those that GET /v1/models lists"
    )


class RouteCursor:
    """The cursor of one request in the levels of its route: who comes first, and who next after a failure."""

    __slots__ = (
        "_home",
        "_key",
        "_key_at",
        "_model",
        "_n_passed",
        "_tried",
        "_tried_keys",
        "is_canary",
        "levels",
        "parts",
    )

    def __init__(
        self, parts: RouteParts, levels: tuple[PriorityLevel, ...], key: bytes, caller: Caller, model: str | None
    ) -> None:
        """key: what requests are kept together by; empty: nothing does."""
        self.parts: Final = parts
        self._key: Final = key
        self._model: Final = model
        self._tried: Final[dict[Group, set[int]]] = {}
        self._tried_keys: Final[dict[Member, set[int]]] = {}
        self._n_passed = 0  # levels, up to the last one in which somebody was tried
        self._key_at: int | None = None  # of the one upstream that it may go to
        self._home: tuple[str, int] | None = None  # the upstream and the key that it begins with
        self.is_canary = False
        if parts.canary is not None:
            split, group = parts.canary
            on = parts.entry.hash_on
            # Not by a prompt: others would come to it with other words.
            is_sticky = bool(key) and on is not None and on.kind != "prefix"
            level = level_of(group, model)
            self.is_canary = level.is_open and split.takes(key if is_sticky else caller.id, random.random())
            if self.is_canary:
                levels = (level, *levels)
        self.levels = levels

    def __repr__(self) -> str:
        return f"<RouteCursor {self.parts.entry.name} of {len(self.levels)} levels>"

    def keep_to(self, upstream: str, key: int) -> bool:
        """Lead to one upstream, with one of its keys, and nowhere else; False if its route does not lead there."""
        found = []
        for group, closed in self.levels:
            others = {n for n, member in enumerate(group.members) if member.name != upstream}
            level = PriorityLevel(group, closed | others)
            if level.is_open:
                found.append(level)
        if found:
            self.levels, self._key_at, self.is_canary = (found[0],), key, False
        return bool(found)

    def prefer(self, upstream: str, key: int) -> None:
        """Begin at one upstream, with one of its keys, as long as that is well; all else is as for any request."""
        self._home = upstream, key

    def _at_home(self, now_s: float) -> Attempt | None:
        """Return the choice that is preferred; None: there is none, or it is not well, or has no room."""
        if self._home is None or self._key_at is not None:
            return None
        upstream, key = self._home
        for group, closed in self.levels[:1]:  # a fallback is for those who have failed before
            others = {n for n, member in enumerate(group.members) if member.name != upstream}
            attempt = group.pick(now_s, self._key, closed | others, within_limits=True)
            keys = None if attempt is None else attempt.keys
            if attempt is not None and (keys is None or keys.is_usable_at(key, now_s)):
                return Attempt(group, attempt.n, key)
        return None

    def _kept(self, attempt: Attempt, now_s: float) -> Attempt:
        """Return a choice with the key that it is kept to, or the one that a session has at each of its upstreams."""
        key = self._key_at
        if key is None and self.session and attempt.keys is not None:
            key = attempt.keys.sticky(self.session, now_s, self._tried_keys.get(attempt.member, _NONE))
        return attempt if key is None or attempt.key == key else Attempt(attempt.group, attempt.n, key)

    @property
    def session(self) -> bytes:
        """What names the session that it belongs to; empty: nothing does, or nobody asks."""
        return self._key if self.parts.entry.balance == "session" else b""

    @property
    def has_others(self) -> bool:
        """True if more than one member could be asked."""
        return len(self.levels) > 1 or len(self.levels[0].group.members) - len(self.levels[0].closed) > 1

    def first(self, now_s: float) -> Attempt | None:
        """Return the first choice, which has begun; None: those that could take it have no room now.

        Raises VeloxError when the keys of all rest.
        """
        only = self.levels[0].group
        if only.is_simple and len(self.levels) == 1:
            return _begun(only.take(0, now_s), now_s) if only.has_capacity else None
        attempt = self._at_home(now_s)
        if attempt is not None:
            return _begun(attempt, now_s)
        may_probe = self.has_others
        for allow_unhealthy in (False, True):
            for group, closed in self.levels:
                attempt = group.pick(
                    now_s,
                    self._key,
                    closed,
                    may_probe=may_probe and not allow_unhealthy,
                    allow_unhealthy=allow_unhealthy,
                    within_limits=True,
                )
                if attempt is not None:
                    return _begun(self._kept(attempt, now_s), now_s)
                if group.is_limited and group.has_room(now_s, closed, allow_unhealthy=allow_unhealthy) is False:
                    return None
            attempt = self._with_lone_key(self.levels, now_s, within_limits=True, allow_unhealthy=allow_unhealthy)
            if attempt is not None:
                return _begun(self._kept(attempt, now_s), now_s)
        if self._has_lone_key and any(group.is_limited for group, _ in self.levels):
            return None  # else it would have been used
        raise self._all_in_cooldown(now_s)

    def next(
        self,
        now_s: float,
        *,
        may_probe: bool = False,
        allow_unhealthy: bool = False,
        within_limits: bool = False,
        beyond: bool = False,
    ) -> Attempt | None:
        """Return the first choice in good health that was not tried; None if there is none.

        Where all have one key and it rests, it says nothing of those that were not tried. may_probe: then one that is
        out and due for a test: a fallback is asked by no other requests while those before it are well, so it stays out
        until then. allow_unhealthy: then also any other, but none whose keys all rest. within_limits: only one that has
        room. beyond: only of levels after all in which somebody was tried.
        """
        levels = self.levels[self._n_passed :] if beyond else self.levels
        for group, closed in levels:
            attempt = group.pick(now_s, self._key, self._passed(group, closed), again=True, within_limits=within_limits)
            if attempt is not None:
                return self._kept(attempt, now_s)
        if not within_limits:
            attempt = self._with_lone_key(levels, now_s)
            if attempt is not None:
                return self._kept(attempt, now_s)
        if may_probe or allow_unhealthy:
            for group, closed in levels:
                attempt = group.probe(now_s, self._passed(group, closed))
                if attempt is not None:
                    return self._kept(attempt, now_s)
        if allow_unhealthy:
            for group, closed in levels:
                attempt = group.pick(now_s, self._key, self._passed(group, closed), again=True, allow_unhealthy=True)
                if attempt is not None:
                    return self._kept(attempt, now_s)
        return None

    def next_for(self, refusal: Refusal, now_s: float) -> Attempt | None:
        """Return the first choice of the fallbacks for this; None if there is none that was not tried.

        From then on the request goes through these alone: the others would refuse it, too.
        """
        before = self.levels, self._n_passed
        self.levels, self._n_passed = self.parts.levels_for(refusal, self._model), 0
        attempt = self.next(now_s, allow_unhealthy=True)
        if attempt is None:
            self.levels, self._n_passed = before
        return attempt

    def other_key(self, attempt: Attempt, now_s: float) -> Attempt | None:
        """Return the same member with another key, that was not tried and may be used; None if there is none."""
        if self._key_at is not None:
            return None
        tried = self._tried_keys.setdefault(attempt.member, set())
        if attempt.keys is None or attempt.keys.pick(now_s, 0.0, tried) is None:
            return None
        return attempt.group.take(attempt.n, now_s, tried)

    def same(self, attempt: Attempt, now_s: float) -> Attempt:
        """Return the same member once more; with the same key if none may be used, as that is the one to wait for."""
        if self._key_at is None and (attempt.keys is None or attempt.keys.is_usable(now_s)):
            return attempt.group.take(attempt.n, now_s)
        return Attempt(attempt.group, attempt.n, attempt.key)

    def is_as_good(self, other: Attempt, attempt: Attempt) -> bool:
        """Say whether the answer of another member is as good: it is one of `to`, or is asked for the same model."""
        groups = self.parts.groups
        if other.group is attempt.group or other.group is groups[0] or attempt.group not in groups:
            return True  # what fails in a canary goes back to `to`
        asked, wanted = (asked_model(each.group.models[each.n], self._model) for each in (other, attempt))
        return asked == wanted

    def tried(self, attempt: Attempt, *, is_silent: bool = False) -> None:
        """An attempt has failed there. is_silent: without a reply: it would be no better with another model."""
        groups = {level.group for level in self.levels} if is_silent else {attempt.group}
        for group in groups:
            found = (n for n, member in enumerate(group.members) if member is attempt.member)
            self._tried.setdefault(group, set()).update(found if is_silent else (attempt.n,))
        n = next((n for n, level in enumerate(self.levels) if level.group is attempt.group), 0)
        self._n_passed = max(self._n_passed, n + 1)
        self._tried_keys.setdefault(attempt.member, set()).add(attempt.key)

    def _passed(self, group: Group, closed: frozenset[int]) -> Collection[int]:
        """Return the members of a group that this request can't go to, or not again."""
        return closed | self._tried.get(group, _NONE)

    @property
    def _has_lone_key(self) -> bool:
        """True if all that it may go to have one key, and the same one: nothing could stand in for it."""
        keys = {member.health.keys if len(member.forwarders) == 1 else None for member in self._members()}
        return len(keys) == 1 and None not in keys

    def _members(self) -> Iterator[Member]:
        """Yield those that it may go to."""
        for group, closed in self.levels:
            yield from (member for n, member in enumerate(group.members) if n not in closed)

    def _with_lone_key(
        self,
        levels: Iterable[PriorityLevel],
        now_s: float,
        *,
        within_limits: bool = False,
        allow_unhealthy: bool = False,
    ) -> Attempt | None:
        """Return the first choice where the only key is in cooldown: it may be another model's, or server's.

        allow_unhealthy: also one that is out.
        """
        if not self._has_lone_key:
            return None
        for group, closed in levels:
            tried = self._passed(group, closed)
            attempt = group.pick_in_cooldown(
                now_s, self._key, tried, within_limits=within_limits, allow_unhealthy=allow_unhealthy
            )
            if attempt is not None:
                return attempt
        return None

    def _all_in_cooldown(self, now_s: float) -> VeloxError:
        """Return the error of a request while all keys are in cooldown."""
        wait_s = min((wait for each in self._members() if (wait := each.health.cooldown_left_s(now_s))), default=1.0)
        message = f"all keys of this request's upstreams are in cooldown after a 429, the first for {wait_s:.1f} s"
        return VeloxError(Reason.RATE_LIMITED, message, retry_after_s=math.ceil(wait_s * 10.0) / 10.0)


def _begun(attempt: Attempt, now_s: float) -> Attempt:
    attempt.begin(now_s)
    return attempt


def _affinity(
    entry: RouteEntry, head: RequestHead, fields: BodyFields, body: bytes | bytearray | None, caller: Caller
) -> bytes:
    """Return what decides where a request goes; empty: nothing does."""
    if entry.balance == "session":
        session = session_of(head, body)
        return f"{caller.id.hex()}\0{session}".encode("utf-8", "surrogatepass") if session else b""
    if entry.balance == "prefix":
        return b"" if body is None else bytes(prompt_of(body))
    on = entry.hash_on
    if entry.balance != "hash" or on is None:
        return b""
    if on.kind == "header":
        return head.header(on.header) or b""
    if on.kind == "prefix":
        return b"" if body is None else bytes(prompt_of(body, HASHED_BYTES))
    return b"" if fields.user is None else fields.user.encode("utf-8", "surrogatepass")
