"""What a pool makes of connections that tell too little: no SETTINGS, no streams allowed, an address that wavers."""

from __future__ import annotations

import asyncio

from tests.unit import virtual_time
from tests.unit.net.upstream.pool_bench import Bench, FakeConnection, connects, unsettled
from velox.net.upstream.pool import AvailableConnections, Upkeep
from velox.outcomes import ConnectionEnd


def test_callers_wait_for_settings_and_not_for_dials_of_their_own() -> None:
    """HTTP/2 over TLS: SETTINGS come a round trip after the dial has ended. Until then one stream is allowed."""

    async def main() -> None:
        bench = Bench(unsettled(), warm=1, capacity=100)
        bench.pool.start()
        waiting = [asyncio.create_task(bench.take()) for _ in range(50)]
        await asyncio.sleep(0.05)
        late = [asyncio.create_task(bench.take()) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert len(bench.dialed_s) == 1
        bench.made[0].grow(100)
        async with asyncio.timeout(1):
            assert set(await asyncio.gather(*waiting, *late)) == {bench.made[0]}
        assert len(bench.dialed_s) == 1
        bench.pool.close()

    virtual_time.run(main())


def test_growth_under_load_is_one_dial_though_its_settings_are_on_their_way() -> None:
    """What a connection takes is known from the others."""

    async def main() -> None:
        bench = Bench(connects(100), unsettled(), warm=1, capacity=100)
        bench.pool.start()
        await asyncio.sleep(1)
        waiting = [asyncio.create_task(bench.take()) for _ in range(150)]
        await asyncio.sleep(0.05)
        assert len(bench.dialed_s) == 2
        bench.made[1].grow(100)
        async with asyncio.timeout(1):
            await asyncio.gather(*waiting)
        assert len(bench.dialed_s) == 2
        bench.pool.close()

    virtual_time.run(main())


def test_settings_that_never_come_hold_nobody_up_for_long() -> None:
    """After a second the connection counts for the one stream that it takes."""

    async def main() -> None:
        bench = Bench(*[unsettled() for _ in range(30)], warm=1)
        bench.pool.start()
        waiting = [asyncio.create_task(bench.take()) for _ in range(20)]
        await bench.pass_time(5)
        assert all(task.done() for task in waiting)
        bench.pool.close()

    virtual_time.run(main())


def test_connection_that_allows_no_streams_is_given_up_in_the_end() -> None:
    """Also a warm one: an upstream that drains it so would else be out of reach until it is an hour old."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=10, upkeep=Upkeep(idle_timeout_s=60.0))
        bench.pool.start()
        await asyncio.sleep(1)
        bench.made[0].grow(0)
        waiting = asyncio.create_task(bench.take())
        await bench.pass_time(65)
        assert waiting.done() and await waiting is bench.made[1]
        assert bench.ends == [ConnectionEnd.IDLE]
        bench.pool.close()

    virtual_time.run(main())


def test_address_that_is_back_at_once_keeps_its_connections() -> None:
    """A name whose answers waver must not cost a dial at each look-up."""

    async def main() -> None:
        bench = Bench(warm=2)
        bench.pool.start()
        await asyncio.sleep(1)
        bench.pool.keep_only(frozenset({"192.0.2.2"}))
        bench.pool.keep_only(frozenset({"192.0.2.1", "192.0.2.2"}))
        await bench.pass_time(2)
        assert not bench.ends and bench.usable[:2] == bench.made[:2]
        bench.pool.close()

    virtual_time.run(main())


class _Nobody:
    def on_room(self, connection: object) -> None: ...

    def on_closed(self, connection: object) -> None: ...


class _Counting(FakeConnection):
    """Counts how often it is compared with another."""

    n_compared = 0

    def __eq__(self, other: object) -> bool:
        type(self).n_compared += 1
        return self is other

    __hash__ = FakeConnection.__hash__


def test_leaving_the_line_takes_no_search() -> None:
    """Thousands of idle connections may end together: that must not hold the loop up for a second."""
    available = AvailableConnections(1)
    connections = [_Counting(_Nobody()) for _ in range(1000)]
    for connection in connections:
        available.put(connection)
    for connection in connections[500:] + connections[:500]:
        available.remove(connection)
    assert not len(available) and _Counting.n_compared < 10_000
