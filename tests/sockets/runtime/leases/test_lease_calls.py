"""A worker and its lease manager over real pipes: who waits, for how long, and what a lease manager that is silent
means."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from velox.errors import Reason, VeloxError
from velox.gateway.limits.lease_wait import NotYet, wait_for_permits
from velox.policy.limits.quota import NOT_YET
from velox.policy.limits.token_bucket import BucketRate
from velox.runtime.leases.lease_client import ALIVE, EVERY_ROW, LeaseClient, LeasePipes
from velox.settings import load
from velox.shm.leased import Demand, LeasedQuota, LeasedTable
from velox.shm.quota_table import QuotaMemory
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, RedisLink

RATE = BucketRate(10**9, 10, 0)


@dataclass
class Stage:
    """One worker, and the lease manager's ends of its pipes."""

    calls: LeaseClient
    pipes: LeasePipes
    status: GatewayStatus
    quotas: list[LeasedQuota]

    async def demanded(self, n: int) -> list[Demand]:
        """Return what came to the lease manager, when it is as many."""
        found: list[Demand] = []
        while len(found) < n:
            found += self.pipes.demands()
            await asyncio.sleep(0)
        return found


def play(scene: Callable[[Stage], Awaitable[None]], timeout: str = "5s") -> None:
    """Play a scene on a loop of its own."""

    async def main() -> None:
        settings = load({"VELOX_REDIS_TIMEOUT": timeout}, {})
        pipes, status = LeasePipes(2), GatewayStatus(Segment(2, 8))
        status.redis = RedisLink.UP
        loop = asyncio.get_running_loop()
        calls = LeaseClient(settings, pipes, 1, status, loop)
        table = LeasedTable(QuotaMemory(64, 2), 1, calls)
        quotas = [table.quota(table.tag(name), RATE) for name in (b"one", b"two")]
        try:
            await scene(Stage(calls, pipes, status, quotas))
        finally:
            loop.remove_reader(pipes.answers_fd(1))
            pipes.close()

    asyncio.run(main())


def soon(calls: LeaseClient) -> float:
    return asyncio.get_running_loop().time() + calls.timeout_s


def test_demands_of_one_turn_are_one_message_and_each_waits_for_its_own_rows() -> None:
    """Two rows: the request that needs both goes on when it was told of both."""

    async def scene(stage: Stage) -> None:
        one, two = stage.quotas
        both = asyncio.ensure_future(stage.calls.wait_for_lease([(one, 1), (two, 2)], soon(stage.calls)))
        first = asyncio.ensure_future(stage.calls.wait_for_lease([(one, 3)], soon(stage.calls)))
        demands = await stage.demanded(3)
        assert [(demand.n, demand.block) for demand in demands] == [(1, 1), (2, 1), (3, 1)]

        stage.pipes.answer(1, (demands[0].row,))
        assert await first
        assert not both.done()
        stage.pipes.answer(1, (demands[1].row,))
        assert await both
        assert "waiting=0" in repr(stage.calls)

    play(scene)


def test_everybody_is_told_when_redis_goes_away() -> None:
    """EVERY_ROW ends all waits, ALIVE none."""

    async def scene(stage: Stage) -> None:
        waits = [
            asyncio.ensure_future(stage.calls.wait_for_lease([(quota, 1)], soon(stage.calls))) for quota in stage.quotas
        ]
        await stage.demanded(2)
        stage.pipes.answer_all(ALIVE)
        done, _ = await asyncio.wait(waits, timeout=0.05)
        assert not done
        stage.pipes.answer_all(EVERY_ROW)
        assert await asyncio.gather(*waits) == [True, True]

    play(scene)


def test_silent_lease_manager_counts_as_gone_until_it_is_heard() -> None:
    """Who waited in vain is the last one; a sign of life, and Redis is asked again."""

    async def scene(stage: Stage) -> None:
        assert not await stage.calls.wait_for_lease([(stage.quotas[0], 1)], soon(stage.calls))
        assert not stage.calls.is_up
        assert stage.quotas[0].take(1, 10**12) == 0  # the gateway's share
        stage.pipes.answer_all(ALIVE)
        while not stage.calls.is_up:
            await asyncio.sleep(0)
        assert stage.quotas[1].take(1, 10**12) == NOT_YET

    play(scene, timeout="20ms")


def test_client_that_leaves_meanwhile_is_forgotten() -> None:
    """A wait that is cancelled leaves nothing behind."""

    async def scene(stage: Stage) -> None:
        wait = asyncio.ensure_future(stage.calls.wait_for_lease([(stage.quotas[0], 1)], soon(stage.calls)))
        await stage.demanded(1)
        wait.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await wait
        assert "waiting=0" in repr(stage.calls)

    play(scene)


def test_full_pipe_blocks_nobody() -> None:
    """A lease manager that reads nothing: what does not fit is lost, and who waits for it waits for its time only."""

    async def scene(stage: Stage) -> None:
        demand = stage.quotas[0].demand(1)
        assert demand is not None
        for _ in range(20_000):
            stage.calls.send(demand)
        await asyncio.sleep(0)
        assert 900 <= len(stage.pipes.demands()) < 20_000
        for _ in range(100_000):
            stage.pipes.answer(0, (1,))

    play(scene)


def test_gate_that_never_opens_is_given_up_in_time() -> None:
    """A lease manager that answers, and others that are always faster: one bound for all the waiting of a request."""

    async def scene(stage: Stage) -> None:
        def reserve(_now_ns: int) -> NotYet:
            return NotYet([(stage.quotas[0], 1)])

        async def answer() -> None:
            while True:
                for demand in stage.pipes.demands():
                    stage.pipes.answer(1, (demand.row,))
                await asyncio.sleep(0.001)

        answering = asyncio.ensure_future(answer())
        with pytest.raises(VeloxError) as caught:
            await wait_for_permits(reserve, stage.calls, asyncio.get_running_loop())
        answering.cancel()
        assert caught.value.reason is Reason.LIMITS_UNAVAILABLE

    play(scene, timeout="50ms")
