"""One choice of a member: whatever becomes of it, all that were told of its begin are told of its end, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from tests.sockets.gateway.composed import Counted, group_of
from tests.sockets.gateway.core_attempts import run
from tests.sockets.gateway.core_plans import (
    NotedBalancer,
    NotedHealth,
    NotedKeys,
    fail,
    member,
    plan,
    refuse_key,
    route,
    tables,
)
from velox.errors import Reason
from velox.gateway.cluster.group import Attempt
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamConnection, UpstreamFailure
from velox.net.upstream.pool import OpenUpstream, PoolStatistics
from velox.outcomes import Retry
from velox.policy.balance.peak_ewma import PeakEwma, PeakLatency
from velox.policy.health.keys import Keys
from velox.policy.health.member import SILENT_S

Way = Callable[[Attempt, float], None]


class IdlePool:
    """A pool that nobody leases from. retired_s: when it was to retire what may be dead."""

    is_warm = True

    def __init__(self) -> None:
        self.retired_s: list[float] = []

    def retire_stale_idle(self, now_s: float, least_s: float = 1.0) -> None:
        self.retired_s.append(now_s)

    def lease_nowait(self) -> None: ...

    async def lease(self) -> UpstreamConnection:
        raise AssertionError("nobody leases")

    def give_back(self, connection: UpstreamConnection) -> None: ...

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(0, 0, 0, 0)

    def open_connections(self) -> list[OpenUpstream]:
        return []

    def start(self) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def keep_none(self) -> None: ...

    def close(self) -> None: ...


def answer(status: int, *, body: bool = True) -> Way:
    """Return the way of a whole reply."""

    def way(pick: Attempt, now_s: float) -> None:
        pick.answers(ReplyHead.of(status, [], None), now_s)
        if body and status < 400:
            pick.has_first(0.1, now_s)
        pick.answered(status, now_s)

    return way


def breaks(reason: Reason, *, after: int = 0, unprocessed: Retry | None = None, status: int | None = None) -> Way:
    """Return the way of one that breaks. after: 0: before a reply, 1: with its head, 2: inside its body."""

    def way(pick: Attempt, now_s: float) -> None:
        if after:
            pick.answers(ReplyHead.of(status or 200, [], None), now_s)
        if after > 1:
            pick.has_first(0.1, now_s)
        pick.broke(UpstreamFailure(reason, "broken", unprocessed=unprocessed, status=status), now_s)

    return way


def turns_out(head: int, status: int) -> Way:
    """Return the way of one whose body tells another status than its head; it is refused for another attempt."""

    def way(pick: Attempt, now_s: float) -> None:
        pick.answers(ReplyHead.of(head, [], None), now_s)
        pick.broke(UpstreamFailure(Reason.UPSTREAM_STATUS, "refused", status=status), now_s)

    return way


def leaves(after: int, *, late_s: float = 0.0, status: int = 200) -> Way:
    """Return the way of one that is given up."""

    def way(pick: Attempt, now_s: float) -> None:
        if after:
            pick.answers(ReplyHead.of(status, [], None), now_s)
        if after > 1:
            pick.has_first(0.1, now_s)
        pick.gave_up(now_s + late_s)

    return way


# What health is told, and the balancer, and the keys.
WAYS: Final[dict[str, tuple[Way, str, str, str]]] = {
    "200": (answer(200), "answers WELL", "answered", "200"),
    "204": (answer(204, body=False), "answers WELL", "answered", "204"),
    "304": (answer(304, body=False), "answers WELL", "answered", "304"),
    "400": (answer(400), "WELL", "gave up", "400"),
    "401": (answer(401), "KEY", "gave up", "401"),
    "403": (answer(403), "KEY", "gave up", "403"),
    "429": (answer(429), "QUOTA", "gave up", "429"),
    "500": (answer(500), "FAULT", "failed", "500"),
    "503": (answer(503), "BUSY", "gave up", "503"),
    "500 refused for another": (breaks(Reason.UPSTREAM_STATUS, after=1, status=500), "FAULT", "failed", "500"),
    "429 refused for another": (breaks(Reason.UPSTREAM_STATUS, after=1, status=429), "QUOTA", "gave up", "429"),
    "429 in place of the first event": (turns_out(200, 429), "answers QUOTA", "gave up", "200 429"),
    "400 that means 429": (turns_out(400, 429), "QUOTA", "gave up", "400 429"),
    "no open file": (breaks(Reason.CONN_LIMIT, unprocessed=Retry.CONNECT), "NOTHING", "gave up", "gave up"),
    "no connection": (breaks(Reason.UPSTREAM_CONNECT, unprocessed=Retry.CONNECT), "FAULT", "failed", "gave up"),
    "no TLS": (breaks(Reason.UPSTREAM_TLS, unprocessed=Retry.CONNECT), "FAULT", "failed", "gave up"),
    "stale": (breaks(Reason.UPSTREAM_RESET, unprocessed=Retry.STALE), "NOTHING", "gave up", "gave up"),
    "stream refused": (breaks(Reason.UPSTREAM_RESET, unprocessed=Retry.REFUSED), "NOTHING", "gave up", "gave up"),
    "reset": (breaks(Reason.UPSTREAM_RESET), "FAULT", "failed", "gave up"),
    "silent": (breaks(Reason.UPSTREAM_TTFB_TIMEOUT), "FAULT", "failed", "gave up"),
    "no protocol": (breaks(Reason.UPSTREAM_PROTOCOL), "FAULT", "failed", "gave up"),
    "redirect": (breaks(Reason.UPSTREAM_REDIRECT), "WELL", "gave up", "gave up"),
    "cut before its first byte": (
        breaks(Reason.UPSTREAM_TRUNCATED, after=1),
        *("answers CUT", "failed", "200"),
    ),
    "cut": (breaks(Reason.UPSTREAM_TRUNCATED, after=2), "answers CUT", "answered", "200"),
    "stalled": (breaks(Reason.UPSTREAM_IDLE_TIMEOUT, after=2), "answers CUT", "answered", "200"),
    "too long": (breaks(Reason.UPSTREAM_TOTAL_TIMEOUT, after=2), "answers NOTHING", "answered", "200"),
    "client left at once": (leaves(0), "NOTHING", "gave up", "gave up"),
    "client left after a long silence": (leaves(0, late_s=SILENT_S), "SILENT", "failed", "gave up"),
    "client left with the head": (leaves(1), "answers NOTHING", "gave up", "200"),
    "client left with an error's head": (leaves(1, status=429), "NOTHING", "gave up", "429"),
    "client left in the body": (leaves(2), "answers NOTHING", "answered", "200"),
    "tunnel": (answer(101, body=False), "answers WELL", "answered", "101"),
    "tunnel that was cut": (
        breaks(Reason.UPSTREAM_RESET, after=1, status=101),
        *("answers FAULT", "answered", "101"),
    ),
    "tunnel that was given up": (leaves(1, status=101), "answers NOTHING", "answered", "101"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_end_is_told_once_to_all(way: tuple[Way, str, str, str]) -> None:
    """Health, balancer, key and the shared count hear of one begin and of one end; nothing is in flight afterwards."""

    async def main() -> None:
        end, by_health, by_balancer, by_key = way
        keys, counts, balancer = NotedKeys(2), Counted(), NotedBalancer()
        health = NotedHealth(keys)
        group = group_of([replace(member("a", n_keys=2, counts=counts), health=health)], balancer)
        now_s = asyncio.get_running_loop().time()
        pick = group.pick(now_s)
        assert pick is not None
        pick.begin(now_s)
        pick.begin(now_s)  # who begins it early, so that others see it, and the attempt itself
        assert counts.inflight(0) == 1

        end(pick, now_s + 1.0)

        assert health.told == ["begin", *by_health.split()]
        assert balancer.told == ["began", by_balancer]
        assert keys.told == ["begin", *([by_key] if by_key == "gave up" else by_key.split())]
        assert counts.inflight(0) == 0

    run(main)


@pytest.mark.parametrize(
    ("failure", "has_head", "retires"),
    [
        (UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, "no reply"), False, True),
        (UpstreamFailure(Reason.UPSTREAM_TTFB_TIMEOUT, "no event"), True, False),
        (UpstreamFailure(Reason.UPSTREAM_RESET, "reset", unprocessed=Retry.STALE), False, True),
        (UpstreamFailure(Reason.UPSTREAM_RESET, "reset"), False, False),
    ],
    ids=["no reply", "no event", "stale", "reset"],
)
def test_connections_that_may_be_dead_as_well_are_retired(
    failure: UpstreamFailure, has_head: bool, retires: bool
) -> None:
    """F-10, and what a NAT has forgotten: each would cost another request an attempt, or its whole time-out."""

    async def main() -> None:
        pool = IdlePool()
        group = group_of([replace(member("a"), pool=pool)], NotedBalancer())
        now_s = asyncio.get_running_loop().time()
        pick = group.pick(now_s)
        assert pick is not None
        pick.begin(now_s)
        if has_head:
            pick.answers(ReplyHead.of(200, [], None), now_s)

        pick.broke(failure, now_s + 1.0)

        assert pool.retired_s == ([now_s + 1.0] if retires else [])

    run(main)


def test_key_is_back_when_a_reply_begins_though_streams_outlast_the_probes() -> None:
    """Each stream takes half a minute, and there is always a request that could be the next probe."""

    async def main() -> None:
        keys, now_s = Keys(2), asyncio.get_running_loop().time()
        group = group_of([replace(member("a", n_keys=2), health=NotedHealth(keys))], NotedBalancer())
        keys.begin(0, now_s)
        keys.answered(0, 401, [], now_s, now_s, 0.0)
        assert keys.n_out() == 1
        now_s += 20.0
        pick = Attempt(group, 0, 0)
        pick.begin(now_s)

        pick.answers(ReplyHead.of(200, [(b"x-ratelimit-remaining-requests", b"0")], None), now_s + 0.5)

        assert keys.n_out() == 0
        assert {keys.pick(now_s + 0.5, n / 100) for n in range(99)} == {0, 1}
        keys.answered(1, 200, [(b"x-ratelimit-remaining-requests", b"100")], now_s, now_s + 1.0, 0.0)
        keys.answered(0, 200, [(b"x-ratelimit-remaining-requests", b"100")], now_s, now_s + 2.0, 0.0)
        pick.answered(200, now_s + 30.0)
        shares = [keys.pick(now_s + 30.0, n / 100) for n in range(100)]
        assert shares.count(0) == 50, "what is left is what the latest reply says, not what the last one to end does"

    run(main)


def test_choice_that_was_never_begun_ends_in_silence() -> None:
    """A second attempt that waits for its time, and whose client leaves meanwhile, was never one."""

    async def main() -> None:
        keys, counts, balancer = NotedKeys(1), Counted(), NotedBalancer()
        health = NotedHealth(keys)
        group = group_of([replace(member("a", n_keys=1, counts=counts), health=health)], balancer)
        now_s = asyncio.get_running_loop().time()
        pick = group.pick(now_s)
        assert pick is not None

        pick.gave_up(now_s)

        assert (health.told, balancer.told, keys.told, counts.inflight(0)) == ([], [], [], 0)

    run(main)


def test_tunnel_is_no_slow_reply() -> None:
    """A WebSocket that was open for an hour took as long as its handshake, also while it is open."""

    async def main() -> None:
        latency, other = PeakLatency(), PeakLatency()
        now_s = asyncio.get_running_loop().time()
        other.heard(0.5, now_s)
        group = group_of([member("a")], PeakEwma([latency, other]))
        pick = group.take(0, now_s)
        pick.begin(now_s)
        pick.answers(ReplyHead.of(101, [], None), now_s + 0.02)

        assert latency.cost_s(now_s + 3600.0) <= 0.02

        pick.answered(101, now_s + 3600.0)
        assert latency.cost_s(now_s + 3600.0) <= 0.02

    run(main)


def test_busy_member_rests_for_minutes_at_most() -> None:
    """503 with a Retry-After of thirty years does not put a server away for thirty years."""

    async def main() -> None:
        group = group_of([busy := member("a"), member("b")], NotedBalancer())
        now_s = asyncio.get_running_loop().time()
        for _ in range(3):
            pick = group.take(0, now_s)
            pick.begin(now_s)
            pick.answers(ReplyHead.of(503, [(b"retry-after", b"999999999")], None), now_s)
            pick.answered(503, now_s)
        assert busy.health.state(now_s + 60.0).name == "RESTING"

        assert busy.health.state(now_s + 301.0).name == "IN"

    run(main)


def test_one_that_is_put_out_is_counted_once() -> None:
    """velox_upstream_ejections_total: of several attempts that end when it is out already, the first counts."""

    async def main() -> None:
        counts = Counted()
        members = [member(name, counts=counts) for name in "ab"]
        group = group_of(members, NotedBalancer())
        now_s = asyncio.get_running_loop().time()
        picks = [group.take(0, now_s) for _ in range(8)]
        for pick in picks:
            pick.begin(now_s)

        for pick in picks:
            pick.broke(UpstreamFailure(Reason.UPSTREAM_RESET, "broken"), now_s)

        assert counts.n_ejections == 1

    run(main)


def test_probe_goes_first_and_only_once() -> None:
    """One that was put out is asked by a request that can go elsewhere; until that ends, by no other."""

    async def main() -> None:
        group = group_of([member("a"), bad := member("b")], NotedBalancer())
        fail(bad)
        soon_s = asyncio.get_running_loop().time() + 2.0

        assert "b" not in {chosen.member.name for _ in range(4) if (chosen := group.pick(soon_s)) is not None}
        probe = group.pick(soon_s, may_probe=True)
        assert probe is not None and probe.member is bad
        probe.begin(soon_s)
        other = group.pick(soon_s, may_probe=True)

        assert other is not None and other.member is not bad

    run(main)


def test_lone_key_that_rests_at_a_member_that_is_out_is_used_anyway() -> None:
    """Nobody else has the model: the upstream's own answer says more than a wait for room that never comes."""

    async def main() -> None:
        peers = [member(f"peer-{n}", models=("other",)) for n in range(3)]
        lone = member("lone", n_keys=1)
        routing = tables([*peers, lone], route("r", *(each.name for each in peers), "lone"))
        refuse_key(lone, 0, 60.0)
        fail(lone)

        chosen = plan(routing).first(asyncio.get_running_loop().time())
        assert chosen is not None and chosen.member is lone

    run(main)
