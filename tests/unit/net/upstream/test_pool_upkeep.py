"""How many connections a pool keeps, for how long, and how they are replaced before they are missed."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit import virtual_time
from tests.unit.net.upstream.pool_bench import Bench, connects, never, refuses, turns
from velox.errors import Reason, VeloxError
from velox.net.upstream.interface import UpstreamFailure
from velox.net.upstream.pool import Upkeep
from velox.outcomes import ConnectionEnd

IDLE = Upkeep(idle_timeout_s=60.0)


def test_idle_connections_are_left_when_one_was_found_closed() -> None:
    """F-10: a load balancer drops all that idled at once; what is in use or was used just now stays."""

    async def main() -> None:
        bench = Bench(warm=4, upkeep=IDLE)
        bench.pool.start()
        await bench.pass_time(5)
        busy = await bench.take()
        lately = await bench.take()
        lately.reply(lately.sinks[0])
        bench.pool.retire_stale_idle(asyncio.get_running_loop().time())
        assert (busy.end, lately.end) == (None, None)
        assert [each.end for each in bench.made].count(ConnectionEnd.CLOSED) == 2
        bench.pool.retire_stale_idle(asyncio.get_running_loop().time(), 0.0)
        assert (busy.end, lately.end) == (None, ConnectionEnd.CLOSED)
        await bench.pass_time(5)
        assert bench.pool.statistics().connections == 4
        bench.pool.close()

    virtual_time.run(main())


# -- growth and idle close -----------------------------------------------------------------------------------


def test_another_connection_is_made_before_the_streams_run_out() -> None:
    """HTTP/2: at a tenth of the rooms left, one dial; no request ever waits for it."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=100)
        bench.pool.start()
        await asyncio.sleep(1)
        for _ in range(90):
            await bench.take()
        await asyncio.sleep(1)
        assert len(bench.dialed_s) == 1
        for n_taken in range(90, 500):
            began_s = asyncio.get_running_loop().time()
            await bench.take()
            assert asyncio.get_running_loop().time() == began_s, f"request {n_taken} waited for a dial"
            await asyncio.sleep(0.01)
            assert bench.most_dialing == 1
        assert (len(bench.made), bench.pool.statistics().streams) == (6, 500)
        bench.pool.close()

    virtual_time.run(main())


def test_http1_connections_are_not_made_ahead() -> None:
    """Each carries one exchange: a connection in use is no sign that the next one is needed."""

    async def main() -> None:
        bench = Bench(warm=2)
        bench.pool.start()
        await asyncio.sleep(1)
        await bench.take()
        await bench.take()
        await bench.pass_time(5)
        assert len(bench.made) == 2
        bench.pool.close()

    virtual_time.run(main())


@pytest.mark.parametrize("capacity", [1, 10])
def test_surplus_connections_are_closed_when_they_idle(capacity: int) -> None:
    """After a burst the pool is back at its warm connections, though light traffic goes on."""

    async def main() -> None:
        bench = Bench(warm=2, capacity=capacity, upkeep=IDLE)
        bench.pool.start()
        await asyncio.sleep(1)
        warm = bench.usable
        taken = [await bench.take() for _ in range(10 * capacity)]
        assert len(bench.usable) >= 10
        for connection in taken:
            connection.reply_all()
        await bench.pass_time(50)
        assert len(bench.usable) >= 10, "60 s are not over"
        for _ in range(25):
            (await bench.take()).reply_all()
            await bench.pass_time(1)
        assert set(bench.usable) == set(warm)
        assert set(bench.ends) == {ConnectionEnd.IDLE} and len(bench.ends) == len(bench.made) - 2
        bench.pool.close()

    virtual_time.run(main())


def test_connection_with_an_exchange_is_not_idle() -> None:
    """A stream that is silent for hours keeps its connection."""

    async def main() -> None:
        bench = Bench(warm=1, upkeep=IDLE)
        bench.pool.start()
        await asyncio.sleep(1)
        await bench.take()
        surplus = await bench.take()
        await bench.pass_time(1000)
        assert surplus.end is None
        bench.pool.close()

    virtual_time.run(main())


def test_surplus_takes_the_place_of_a_warm_connection_that_is_lost() -> None:
    """It is kept from then on, and nothing is dialed."""

    async def main() -> None:
        bench = Bench(warm=1, upkeep=IDLE)
        bench.pool.start()
        await asyncio.sleep(2)
        first, second = await bench.take(), await bench.take()
        second.reply_all()
        first.close()
        await bench.pass_time(200)
        assert bench.usable == [second] and len(bench.dialed_s) == 2
        assert await bench.take() is second
        bench.pool.close()

    virtual_time.run(main())


# -- replacement ---------------------------------------------------------------------------------------------


def test_aged_connection_is_replaced_before_it_is_given_up() -> None:
    """Age, give or take a tenth: there is always one to use, and the old one ends with its last exchange."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=10, upkeep=Upkeep(max_age_s=100.0))
        bench.pool.start()
        await asyncio.sleep(0.5)
        old = await bench.take()
        for _ in range(int(89 / 0.3)):
            await bench.pass_time(0.3)
        assert bench.usable == [old]
        for _ in range(int(23 / 0.3)):
            assert bench.usable, "never without"
            await bench.pass_time(0.3)
        assert len(bench.made) == 2 and bench.usable == bench.made[1:]
        assert (old.end, old.is_closed, bench.pool.statistics().streams) == (ConnectionEnd.AGE, False, 1)
        old.reply_all()
        assert old.is_closed
        await bench.pass_time(1)
        assert bench.pool.statistics().streams == 0
        bench.pool.close()

    virtual_time.run(main())


@pytest.mark.slow
def test_ages_differ_so_that_connections_do_not_end_together() -> None:
    """Jitter of a tenth either way, each connection its own."""

    async def main() -> None:
        bench = Bench(warm=50, upkeep=Upkeep(max_age_s=1000.0))
        bench.pool.start()
        await bench.pass_time(899)
        assert not bench.ends
        seen = []
        for _ in range(20):
            await bench.pass_time(10)
            seen.append(len(bench.ends))
        assert seen[-1] >= 50 and len(set(seen)) > 8
        bench.pool.close()

    virtual_time.run(main())


def test_connection_is_replaced_after_its_requests() -> None:
    """Give or take a tenth; the next one takes over without a wait."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=10, upkeep=Upkeep(max_requests=100))
        bench.pool.start()
        await asyncio.sleep(1)
        for _ in range(1000):
            assert bench.usable
            (await bench.take()).reply_all()
            await asyncio.sleep(0.01)
        assert all(90 <= connection.n_begun <= 112 for connection in bench.made[:-1])
        assert set(bench.ends) == {ConnectionEnd.REQUESTS} and 8 <= len(bench.ends) <= 12
        bench.pool.close()

    virtual_time.run(main())


def test_connection_is_kept_while_nothing_stands_in_for_it() -> None:
    """An upstream that lets nobody in any more still serves on what is open."""

    async def main() -> None:
        bench = Bench(connects(10), *[refuses() for _ in range(12)], warm=1, capacity=10, upkeep=Upkeep(max_age_s=10.0))
        bench.pool.start()
        await bench.pass_time(11.5)
        assert bench.usable == bench.made[:1] and bench.failures
        assert await bench.take() is bench.made[0]
        await bench.pass_time(600, 3.0)
        assert bench.made[0].end is ConnectionEnd.AGE
        bench.pool.close()

    virtual_time.run(main())


def test_connections_to_old_addresses_are_left_for_new_ones() -> None:
    """F-4: the replacement first, then the old one ends with its exchanges; what still arrives there goes too."""

    async def main() -> None:
        old, new = "192.0.2.1", "192.0.2.2"
        bench = Bench(connects(5, address=old), connects(5, address=old), connects(5, address=new), warm=1, capacity=5)
        bench.pool.start()
        await asyncio.sleep(2)
        first = await bench.take()
        bench.pool.keep_only(frozenset({new}))
        assert await bench.take() is first, "nothing stands in for it yet"
        await bench.pass_time(5)
        assert [connection.address for connection in bench.usable] == [new]
        assert [connection.end for connection in bench.made[:2]] == [ConnectionEnd.MOVED] * 2
        assert not first.is_closed
        bench.pool.close()

    virtual_time.run(main())


def test_goaway_is_answered_with_a_new_connection_while_the_old_one_empties() -> None:
    """Its streams go on, the next request finds a connection."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=10)
        bench.pool.start()
        await asyncio.sleep(2)
        old = await bench.take()
        old.retire(ConnectionEnd.GOAWAY)
        await asyncio.sleep(0.01)
        assert bench.pool.lease_nowait() is bench.made[1] and old.n_streams == 1
        assert bench.ends == [ConnectionEnd.GOAWAY]
        bench.pool.close()
        assert old.is_closed, "also what was leaving"

    virtual_time.run(main())


def test_upstream_that_goes_away_often_is_dialed_at_once_all_the_same() -> None:
    """F-33: keepalive_requests 5 is no failure; only what served next to nothing is followed by a pause."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=10)
        bench.pool.start()
        await asyncio.sleep(1)
        for _ in range(50):
            for _ in range(5):
                (await bench.take()).reply_all()
            bench.usable[0].retire(ConnectionEnd.GOAWAY)
            await asyncio.sleep(0.01)
            assert bench.usable
        bench.pool.close()

    virtual_time.run(main())


# -- life signs, failures, limits ----------------------------------------------------------------------------


def test_connections_are_asked_for_signs_of_life_also_while_they_leave() -> None:
    """A silent one among them would hold its exchanges for ever."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=10, upkeep=Upkeep(ping_interval_s=7.0))
        bench.pool.start()
        await asyncio.sleep(1)
        leaving = await bench.take()
        leaving.retire(ConnectionEnd.GOAWAY)
        await asyncio.sleep(1)
        bench.pool.tick(asyncio.get_running_loop().time())
        now_s = asyncio.get_running_loop().time()
        assert [connection.checked[-1] for connection in bench.made] == [(now_s, 7.0)] * 2
        bench.pool.close()

    virtual_time.run(main())


def test_pool_is_down_while_nothing_is_open_and_dials_fail() -> None:
    """Another upstream is to be used then; the first success ends it."""

    async def main() -> None:
        bench = Bench(connects(), refuses(), refuses(), connects(), warm=1)
        assert not bench.pool.is_down, "not known yet"
        bench.pool.start()
        await asyncio.sleep(2)
        assert bench.pool.is_warm
        bench.made[0].close()
        await asyncio.sleep(0.01)
        assert bench.pool.is_down and not bench.pool.is_warm
        await asyncio.sleep(2)
        assert not bench.pool.is_down and bench.pool.is_warm
        bench.pool.close()

    virtual_time.run(main())


def test_upstream_that_answers_requests_is_reached_though_no_connection_is_free_for_a_warm_up() -> None:
    """Busy from the first moment on, as after a restart: the gateway serves, so it must not be called not ready."""

    async def main() -> None:
        bench = Bench(warm=2, most=2)
        is_over = False

        async def push() -> None:
            while not is_over:
                connection = await bench.take()
                await asyncio.sleep(0.1)
                connection.reply_all()

        clients = [asyncio.create_task(push()) for _ in range(4)]
        await asyncio.sleep(0)
        bench.pool.start()
        await bench.pass_time(0.05, 0.01)
        assert not bench.pool.is_warm, "nothing has come back yet"
        await bench.pass_time(1)
        assert bench.pool.is_warm
        is_over = True
        await asyncio.gather(*clients)
        bench.pool.close()

    virtual_time.run(main())


def test_request_that_comes_while_it_is_down_finds_out_that_it_is_back() -> None:
    """The pause of up to 30 s is for dials that nobody waits for."""

    async def main() -> None:
        bench = Bench(*[refuses() for _ in range(12)], warm=1)
        bench.pool.start()
        while len(bench.failures) < 12:
            await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await bench.take()
        assert asyncio.get_running_loop().time() - began_s < 0.1
        bench.pool.close()

    virtual_time.run(main())


def test_dials_at_a_time_are_bounded() -> None:
    """Hundreds of requests over HTTP/1.1 are hundreds of dials, but not at once."""

    async def main() -> None:
        bench = Bench(most=400)
        await bench.take()
        taken = await asyncio.gather(*(bench.take() for _ in range(399)))
        assert len(set(taken)) == 399 and bench.most_dialing == 32
        bench.pool.close()

    virtual_time.run(main())


def test_dials_are_no_more_than_what_waits_needs() -> None:
    """HTTP/2: 95 callers need one more connection of 100 streams."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=100)
        bench.pool.start()
        await asyncio.sleep(1)
        await asyncio.gather(*(bench.take() for _ in range(195)))
        assert len(bench.made) == 2
        bench.pool.close()

    virtual_time.run(main())


def test_upstream_that_allows_no_streams_is_not_dialed_again_and_again() -> None:
    """F-36: SETTINGS_MAX_CONCURRENT_STREAMS 0 on an idle connection says that others would not help."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=10)
        bench.pool.start()
        await asyncio.sleep(1)
        bench.made[0].grow(0)
        waiting = asyncio.create_task(bench.take())
        await bench.pass_time(20)
        assert len(bench.dialed_s) == 1 and not waiting.done()
        bench.made[0].grow(1)
        assert await waiting is bench.made[0]
        bench.pool.close()

    virtual_time.run(main())


def test_stream_limit_lowered_while_callers_wait_is_made_up_for() -> None:
    """They counted on room that is gone: another connection is made."""

    async def main() -> None:
        bench = Bench(connects(100), warm=1, capacity=100)
        bench.pool.start()
        await asyncio.sleep(1)
        taken = [await bench.take() for _ in range(50)]
        bench.made[0].grow(50)
        async with asyncio.timeout(1):
            other = await bench.take()
        assert other not in taken
        bench.pool.close()

    virtual_time.run(main())


def test_caller_served_in_vain_keeps_its_place() -> None:
    """First come, first served, also when the room was gone before the caller woke."""

    async def main() -> None:
        bench = Bench(connects(1), never, most=1)
        taken = await bench.take()
        waiting = [asyncio.create_task(bench.take()) for _ in range(3)]
        await turns()
        taken.reply_all()
        taken.grow(0)  # the first caller has the connection, and no room
        await turns()
        assert not waiting[0].done()
        taken.grow(1)
        await turns()
        assert [task.done() for task in waiting] == [True, False, False]
        for task in waiting:
            task.cancel()
        bench.pool.close()

    virtual_time.run(main())


def test_failed_warm_up_ends_no_exchange_beside_it() -> None:
    """HTTP/2: others use the connection by then; it takes no more, and they go on to their own ends."""

    async def main() -> None:
        bench = Bench(connects(10, answers=False), warm=1, capacity=10)
        bench.pool.start()
        await asyncio.sleep(1)
        await bench.take()
        await asyncio.sleep(15)
        assert bench.failures == [Reason.UPSTREAM_TTFB_TIMEOUT]
        first = bench.made[0]
        assert (first.end, first.is_closed, first.n_streams) == (ConnectionEnd.LOST, False, 1)
        bench.pool.close()

    virtual_time.run(main())


def test_close_tells_who_waits() -> None:
    """Nobody is left behind; and nobody comes in after it."""

    async def main() -> None:
        bench = Bench(never)
        waiting = asyncio.create_task(bench.take())
        await turns()
        bench.pool.close()
        for attempt in (waiting, asyncio.create_task(bench.take())):
            with pytest.raises(VeloxError) as caught:
                await attempt
            assert caught.value.reason is Reason.DRAINING and not isinstance(caught.value, UpstreamFailure)

    virtual_time.run(main())
