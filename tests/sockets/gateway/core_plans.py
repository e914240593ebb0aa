"""Tables of routes whose members never dial, and picks whose every word is noted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import ClassVar

from tests.sockets.gateway.composed import Counted, Stand, member_of, routing_of, upstream_of
from tests.sockets.gateway.core_gateway import request_head
from velox.gateway.cluster.capacity import CapacityWaiters
from velox.gateway.cluster.routing import RouteCursor, Routing
from velox.gateway.upstreams.member import Member
from velox.heads import Headers
from velox.policy.balance.candidates import Balancer, Candidates
from velox.policy.balance.round_robin import RoundRobin
from velox.policy.health.keys import Keys
from velox.policy.health.member import MemberHealth, MemberRules, Verdict
from velox.policy.queue.concurrency import ConcurrencyLimit
from velox.policy.routes.entries import ANYTHING, Canary, HashOn, Match, RouteEntry, Target
from velox.types import ANYONE, BodyFields, Caller

__all__ = [
    "Asked",
    "NotedBalancer",
    "NotedHealth",
    "NotedKeys",
    "fail",
    "member",
    "plan",
    "refuse_key",
    "route",
    "succeed",
    "tables",
]


class NotedHealth(MemberHealth):
    """Notes what it is told."""

    def __init__(self, keys: Keys | None) -> None:
        super().__init__(MemberRules(), asyncio.get_running_loop().time(), keys=keys, is_new=False)
        self.told: list[str] = []

    def begin(self, now_s: float) -> None:
        self.told.append("begin")
        super().begin(now_s)

    def answers(self, began_s: float, now_s: float) -> None:
        self.told.append("answers")
        super().answers(began_s, now_s)

    def succeeded(self, began_s: float, now_s: float, *, answered: bool = True) -> None:
        self.ended(Verdict.WELL, began_s, now_s, answered=answered)

    def ended(
        self,
        verdict: Verdict,
        began_s: float,
        now_s: float,
        *,
        answered: bool,
        cooldown_s: float | None = None,
        random: float = 0.5,
    ) -> None:
        assert answered is ("answers" in self.told)
        self.told.append(verdict.name)
        super().ended(verdict, began_s, now_s, answered=answered, cooldown_s=cooldown_s, random=random)


class NotedKeys(Keys):
    """Notes what it is told."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.told: list[str] = []

    def begin(self, key: int, now_s: float, tokens: float = 0.0) -> None:
        self.told.append("begin")
        super().begin(key, now_s, tokens)

    def answered(
        self,
        key: int,
        status: int,
        headers: Headers,
        began_s: float,
        now_s: float,
        unix_s: float,
        *,
        random: float = 0.5,
    ) -> None:
        self.told.append(str(status))
        super().answered(key, status, headers, began_s, now_s, unix_s, random=random)

    def gave_up(self, key: int, began_s: float) -> None:
        self.told.append("gave up")
        super().gave_up(key, began_s)


class NotedBalancer(RoundRobin):
    """Notes what it is told."""

    learns: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.waited_s: list[float] = []

    def began(self, member: int, now_s: float) -> None:
        self.told.append("began")

    def answered(self, member: int, waited_s: float, now_s: float) -> None:
        self.told.append("answered")
        self.waited_s.append(waited_s)

    def failed(self, member: int, waited_s: float, now_s: float) -> None:
        self.told.append("failed")

    def gave_up(self, member: int, waited_s: float, now_s: float) -> None:
        self.told.append("gave up")


class Asked(RoundRobin):
    """Notes by which keys it was asked to choose."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[bytes] = []

    def pick(
        self,
        candidates: Candidates,
        now_s: float,
        random: float,
        key: bytes | memoryview = b"",
        tried: Collection[int] = (),
    ) -> int | None:
        self.keys.append(bytes(key))
        return super().pick(candidates, now_s, random, key, tried)


def member(
    name: str,
    *,
    models: tuple[str, ...] = (),
    n_keys: int = 0,
    concurrency: ConcurrencyLimit | None = None,
    counts: Counted | None = None,
) -> Member:
    """Return a member that serves these models."""
    return member_of(upstream_of(name, models=models, n_keys=n_keys), Stand(concurrency=concurrency), counts=counts)


def route(
    name: str,
    *to: str,
    match: Match = ANYTHING,
    fallback: Sequence[str | Target] = (),
    canary: tuple[str, float] | None = None,
    hash_on: HashOn | None = None,
) -> RouteEntry:
    """Return a route to upstreams by their names."""
    return RouteEntry(
        name,
        match,
        tuple(Target(each) for each in to),
        fallback=tuple(Target(each) if isinstance(each, str) else each for each in fallback),
        canary=None if canary is None else Canary(Target(canary[0]), canary[1]),
        balance="round_robin" if hash_on is None else "hash",
        hash_on=hash_on,
    )


def tables(
    members: Sequence[Member],
    *routes: RouteEntry,
    balancer: Balancer | None = None,
    waiters: CapacityWaiters | None = None,
) -> Routing:
    """Return tables with some routes. balancer: of those that a route names in `to`. waiters: its wait queues."""
    return routing_of(members, *routes, balancer=balancer, waiters=waiters)


def plan(
    routing: Routing,
    model: str | None = "m",
    *,
    headers: Headers | None = None,
    body: bytes = b"",
    user: str | None = None,
    caller: Caller = ANYONE,
    path: bytes = b"/v1/chat/completions",
) -> RouteCursor:
    """Return the way of a request."""
    head = request_head(path=path, more=headers or ())
    return routing.resolve(head, model, caller).cursor(head, BodyFields(model=model, user=user), caller, body)


def fail(broken: Member) -> None:
    """Have a member be out, as after so many faults in a row."""
    now_s = asyncio.get_running_loop().time()
    for _ in range(5):
        broken.health.begin(now_s)
        broken.health.ended(Verdict.FAULT, now_s, now_s, answered=False)


def succeed(well: Member, later_s: float) -> None:
    """Have an attempt at a member end well, so many seconds from now."""
    then_s = asyncio.get_running_loop().time() + later_s
    well.health.begin(then_s)
    well.health.answers(then_s, then_s)
    well.health.ended(Verdict.WELL, then_s, then_s, answered=True)


def refuse_key(of: Member, key: int, seconds: float) -> None:
    """Have a key rest: 429, to come back in so many seconds."""
    now_s = asyncio.get_running_loop().time()
    keys = of.health.keys
    assert keys is not None, "it has keys"
    keys.begin(key, now_s)
    keys.answered(key, 429, [(b"retry-after", b"%d" % seconds)], now_s, now_s, 0.0)
