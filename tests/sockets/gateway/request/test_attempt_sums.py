"""Whatever becomes of requests, nothing is in flight anywhere afterwards: by row, key, limit, plan or line."""

from __future__ import annotations

import asyncio
import random
from typing import Final

import pytest

from tests.patience import PATIENCE_S
from tests.sockets.gateway.composed import Counted, Stand, member_of, routing_of, upstream_of
from tests.sockets.gateway.core_attempts import SILENT, broken, run, whole
from tests.sockets.gateway.core_gateway import FakeClient, ScriptedUpstream, Step, gateway, request_head
from velox.errors import Reason, VeloxError
from velox.gateway.cluster.routing import Routing
from velox.gateway.front.intake import Gateway
from velox.gateway.upstreams.member import Member
from velox.heads import Header, ReplyHead
from velox.outcomes import Retry
from velox.policy.queue.concurrency import FixedLimit
from velox.policy.retries.retry import RetryRules
from velox.policy.routes.entries import ANYTHING, Canary, Delay, Hedge, RouteEntry, Target
from velox.types import ANYONE

EVENTS: Final = [(b"content-type", b"text/event-stream")]
N_REQUESTS: Final = 400
N_WAVES: Final = 20
STREAMED: Final = b'{"model":"m","stream":true,"messages":[]}'


def stream(*pieces: bytes, end: bool = False) -> list[Step]:
    head: Step = (ReplyHead.of(200, EVENTS, None), b"", False)
    return [head, *[(None, piece, False) for piece in pieces], *([(None, b"", True)] if end else [])]


CUT: Final = broken(Reason.UPSTREAM_TRUNCATED)
SCRIPTS: Final[list[list[Step]]] = [
    *([whole()] * 6),
    stream(b"data: 1\n\n", b"data: [DONE]\n\n", end=True),
    stream(b"data: 1\n\n"),
    stream(),
    [*stream(b"data: 1\n\n"), *CUT],
    [*stream(), *CUT],
    [(ReplyHead.of(204, [], None), b"", True)],
    [(ReplyHead.of(302, [(b"location", b"/")], 0), b"", True)],
    *(whole(status) for status in (400, 401, 403, 429, 500, 503)),
    whole(429, b"no", (b"retry-after", b"0.01")),
    whole(503, b"no", (b"retry-after", b"0.01")),
    SILENT,
    broken(),
    broken(Reason.UPSTREAM_PROTOCOL),
    broken(Reason.UPSTREAM_TTFB_TIMEOUT),
    broken(Reason.UPSTREAM_CONNECT, Retry.CONNECT),
    broken(unprocessed=Retry.STALE),
    broken(unprocessed=Retry.REFUSED),
    broken(unprocessed=Retry.GOAWAY),
]


def tables(members: list[Member], *, hedged: bool) -> Routing:
    """Return tables with all that a route may have: three that are balanced, a fallback, a canary."""
    *balanced, spare, canary = members
    entry = RouteEntry(
        "*",
        ANYTHING,
        tuple(Target(each.name) for each in balanced),
        balance="peak_ewma",
        fallback=(Target(spare.name, "another"),),
        hedge=Hedge(Delay(seconds=0.002), 50.0) if hedged else None,
        canary=Canary(Target(canary.name, "another"), 20.0),
    )
    return routing_of(members, entry)


async def one(made: Gateway, chance: random.Random) -> None:
    """Send a request and, mostly, leave or be told to end while it is somewhere."""
    client, more = FakeClient(), list[Header]()
    if chance.random() < 0.3:
        more.append((b"x-request-timeout-ms", b"%d" % chance.randint(1, 60)))
    exchange = made.submit(client, request_head(more=more), STREAMED, ANYONE)
    if exchange is None:
        return  # the queue is full, or its time would be over
    for _ in range(chance.choice((0, 1, 2, 3, 5, 8, 13, 100))):
        await asyncio.sleep(0)
    how = chance.random()
    if how < 0.3:
        exchange.client_gone()
        return
    if how < 0.4:
        exchange.fail(VeloxError(Reason.DRAINING, "the gateway is shutting down"))
    await asyncio.sleep(chance.random() * 0.02)
    if not client.finished.is_set():
        exchange.client_gone(stalled=chance.random() < 0.5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hedged", [False, True], ids=["alone", "hedged"])
@pytest.mark.more
def test_nothing_is_left_in_flight(seed: int, hedged: bool) -> None:
    """Hundreds of requests that end in all ways, at any moment, while upstreams fail in all ways."""
    chance = random.Random(seed)

    async def main() -> None:
        upstreams = [ScriptedUpstream(*(chance.choice(SCRIPTS) for _ in range(N_REQUESTS))) for _ in range(5)]
        counts = Counted()
        rules = RetryRules(2, frozenset({429, 500, 503}), 1.0)
        with gateway(upstreams[0].dial, rules=rules) as made:
            members = [
                member_of(
                    *(upstream_of(str(n), n_keys=n % 3), Stand(each.dial, FixedLimit(6 - n))), row=n, counts=counts
                )
                for n, each in enumerate(upstreams)
            ]
            routing = made.routing = tables(members, hedged=hedged)
            for _ in range(N_WAVES):
                async with asyncio.TaskGroup() as group:
                    for _ in range(N_REQUESTS // N_WAVES):
                        group.create_task(one(made, chance))
            async with asyncio.timeout(PATIENCE_S):
                while made.n_active or len(made.queue):
                    made.sweep(asyncio.get_running_loop().time())
                    await asyncio.sleep(0.001)

            assert [counts.inflight(n) for n in range(5)] == [0] * 5
            assert [each.concurrency.n_begun for each in members] == [0] * 5
            assert [each.health._n_waiting for each in members] == [0] * 5
            assert ["0 asked" in repr(each.latency) for each in members] == [True] * 5
            assert [each.n_open for each in upstreams] == [0] * 5
            assert (routing.n_open, made.n_hedges, repr(routing.waiters)) == (0, 0, "<CapacityWaiters []>")
            for each in members:
                each.pool.close()

    run(main)


def test_two_ends_in_one_turn_are_one() -> None:
    """The drain is over and the client leaves, in either order: one account, and no error that nobody asks for."""

    async def main() -> None:
        one = ScriptedUpstream(SILENT)
        stop = VeloxError(Reason.DRAINING, "the gateway is shutting down")
        with gateway(one.dial) as made:
            for order in ((0, 1), (1, 0)):
                client = FakeClient()
                exchange = made.submit(client, request_head(), STREAMED, ANYONE)
                assert exchange is not None
                async with asyncio.timeout(PATIENCE_S):
                    while not one.n_open:
                        await asyncio.sleep(0.001)
                ends = (lambda exchange=exchange: exchange.fail(stop), exchange.client_gone)
                for n in order:
                    ends[n]()
                async with asyncio.timeout(PATIENCE_S):
                    while made.n_active:
                        await asyncio.sleep(0.001)
                assert not one.n_open

    run(main)
