"""Any order of what callers, upstreams and the clock can do leaves the pool in a legal state (hypothesis)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit import virtual_time
from tests.unit.net.upstream.pool_bench import REQUEST, Bench, FakeConnection, Sink, connects, refuses
from velox.errors import VeloxError
from velox.net.upstream.connection_budget import ConnectionBudget
from velox.net.upstream.pool import Upkeep
from velox.outcomes import ConnectionEnd

ADDRESSES: Final = ("192.0.2.1", "192.0.2.2")

# A step and a number that picks among what is there.
STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["lease"] * 4,
                *["reply"] * 2,
                *["turn"] * 3,
                "cancel",
                "goaway",
                "close",
                "abort",
                "room",
                "tick",
                "wait",
                "moved",
            ]
        ),
        st.integers(0, 1000),
    ),
    max_size=60,
)
# What dials do: room of the connection that is made, or -1: it fails.
DIALS: Final = st.lists(st.sampled_from([-1, 0, 1, 1, 2, 10, 10]), max_size=12)


class Play:
    """A pool in the hands of a script, and what its callers were told."""

    def __init__(self, dials: Sequence[int], warm: int, most: int) -> None:
        script = [refuses() if room < 0 else connects(room, address=ADDRESSES[0]) for room in dials]
        upkeep = Upkeep(max_age_s=20.0, max_requests=7, idle_timeout_s=5.0)
        self.budget: Final = ConnectionBudget(most + 20)  # and those that end with their last exchange
        self.bench: Final = Bench(*script, warm=warm, most=most, capacity=3, upkeep=upkeep, budget=self.budget)
        self.tasks: Final[list[asyncio.Task[None]]] = []
        self.served: Final[list[int]] = []
        self.n_failed = 0
        self.cancelled: Final[set[int]] = set()
        self.pool: Final = self.bench.pool

    async def _exchange(self, number: int) -> None:
        try:
            connection = self.pool.lease_nowait() or await self.pool.lease()
        except VeloxError:
            self.n_failed += 1
            return
        assert connection.has_room, "a lease is of a connection with room"
        connection.open(REQUEST, Sink())
        self.pool.give_back(connection)
        self.served.append(number)

    async def step(self, kind: str, pick: int) -> None:
        """Do one thing."""
        here = [connection for connection in self.bench.made if not connection.is_closed]
        if kind == "lease":
            self.tasks.append(asyncio.create_task(self._exchange(len(self.tasks))))
        elif kind == "turn":
            await asyncio.sleep(0)
        elif kind == "wait":
            await asyncio.sleep(pick / 100)
        elif kind == "tick":
            self.pool.tick(asyncio.get_running_loop().time())
        elif kind == "moved":
            self.pool.keep_only(frozenset(ADDRESSES[: 1 + pick % 2]))
        elif kind == "cancel":
            live = [number for number, task in enumerate(self.tasks) if not task.done()]
            for number in live[pick % len(live) :][:1] if live else ():
                self.tasks[number].cancel()
                self.cancelled.add(number)
        elif here:
            upset(here[pick % len(here)], kind, pick)
        self.check()

    def check(self) -> None:
        """What must hold at every instant."""
        told = self.pool.statistics()
        usable = [connection for connection in self.bench.made if connection.end is None]
        assert told.connections + told.dialing <= self.bench_most
        assert told.streams == sum(connection.n_streams for connection in self.bench.made)
        # A dial that has returned may not be adopted before the next turn of the loop.
        assert told.connections <= len(usable) <= told.connections + told.dialing
        in_line = [connection for connection in usable if connection.queued]
        assert len(self.pool._available) == len(in_line)

    @property
    def bench_most(self) -> int:
        return self.pool._max

    async def settle(self) -> None:
        """The upstream behaves from now on: everybody is served or told, and nothing is left over."""
        for _ in range(400):
            for connection in self.bench.made:
                if connection.end is None and connection.capacity == 0:
                    connection.grow(2)
                connection.reply_all()
            await asyncio.sleep(0.05)
            self.pool.tick(asyncio.get_running_loop().time())
            self.check()
        assert all(task.done() for task in self.tasks), "a caller waits for nothing"
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), results
        assert len(self.served) + self.n_failed + len(self.cancelled) >= len(self.tasks)
        told = self.pool.statistics()
        assert (told.streams, told.waiting) == (0, 0)
        # Nothing is lost: each connection with room can be had.
        rooms = sum(connection.n_rooms for connection in self.bench.usable)
        for _ in range(rooms):
            connection = self.pool.lease_nowait()
            assert connection is not None, "room that nobody can have"
            connection.open(REQUEST, Sink())
            self.pool.on_room(connection)


def upset(connection: FakeConnection, kind: str, pick: int) -> None:
    """The upstream does something to a connection."""
    if kind == "reply" and connection.sinks:
        connection.reply(connection.sinks[pick % len(connection.sinks)])
    elif kind == "goaway":
        connection.retire(ConnectionEnd.GOAWAY)
    elif kind == "close":
        connection.close()
    elif kind == "abort":
        connection.abort(ConnectionEnd.PROTOCOL)
    elif kind == "room":
        connection.grow(pick % 5)


async def play(dials: Sequence[int], warm: int, most: int, steps: Sequence[tuple[str, int]]) -> None:
    """Start, do the steps, let it settle, close."""
    game = Play(dials, warm, most)
    game.pool.start()
    for kind, pick in steps:
        await game.step(kind, pick)
    await game.settle()
    game.pool.tick(asyncio.get_running_loop().time())
    n_open = sum(not connection.is_closed for connection in game.bench.made) + game.pool.statistics().dialing
    assert repr(game.budget) == f"<ConnectionBudget {n_open} of {most + 20}>"
    game.pool.close()
    await asyncio.sleep(1)
    assert repr(game.budget).startswith("<ConnectionBudget 0 ")
    assert all(connection.is_closed for connection in game.bench.made)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "no task outlives the pool"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(DIALS, st.integers(1, 3), st.integers(0, 4), STEPS)
@pytest.mark.more
def test_pool_is_legal_after_any_order_of_events(
    dials: list[int], warm: int, spare: int, steps: list[tuple[str, int]]
) -> None:
    """Every caller is served or told, no room is lost or given twice, counts agree, the maximum holds."""
    virtual_time.run(play(dials, warm, warm + spare, steps))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(["reply", "close", "turn"]), st.integers(0, 9))))
def test_callers_are_served_in_the_order_in_which_they_came(most: int, steps: list[tuple[str, int]]) -> None:
    """First come, first served, as long as no dial fails."""

    async def main() -> None:
        game = Play([1] * 200, 1, most)
        for _ in range(20):
            await game.step("lease", 0)
        for kind, pick in steps:
            await game.step(kind, pick)
        await game.settle()
        assert game.served == sorted(game.served)
        game.pool.close()

    virtual_time.run(main())
