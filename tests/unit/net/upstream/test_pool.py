"""The pool with a dialer that does what a test says: who gets which connection, and who is never left waiting."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit import virtual_time
from tests.unit.net.upstream.pool_bench import (
    REQUEST,
    Bench,
    FakeConnection,
    Make,
    Sink,
    closes_after_warmup,
    closes_at_once,
    connects,
    never,
    refuses,
    turns,
)
from velox.errors import Reason
from velox.net.upstream.connection_budget import ConnectionBudget
from velox.net.upstream.interface import UpstreamFailure
from velox.outcomes import Retry


def test_start_warms_the_connections_that_were_asked_for() -> None:
    """Each keeper dials one, passes one HEAD, and then waits."""

    async def main() -> None:
        bench = Bench(warm=3)
        bench.pool.start()
        await asyncio.sleep(100)
        assert (len(bench.made), bench.pool.statistics().connections, bench.pool.is_warm) == (3, 3, True)
        bench.pool.close()

    virtual_time.run(main())


def test_room_is_handed_out_round_robin() -> None:
    """No connection gets a second stream before each has one."""

    async def main() -> None:
        bench = Bench(warm=3, capacity=5)
        bench.pool.start()
        await asyncio.sleep(1)
        taken = [await bench.take() for _ in range(6)]
        assert len(set(taken[:3])) == 3 and taken[:3] == taken[3:]
        bench.pool.close()

    virtual_time.run(main())


def test_callers_of_one_pool_get_the_idle_connections_of_another() -> None:
    """The worker has all the connections that it may have: the warm ones of a pool that is not asked make room."""

    async def main() -> None:
        budget = ConnectionBudget(4)
        quiet, busy = Bench(warm=3, budget=budget), Bench(warm=1, budget=budget)
        for bench in (quiet, busy):
            bench.pool.start()
        await asyncio.sleep(1)
        taken = [await busy.take() for _ in range(4)]
        assert (len(quiet.usable), len(busy.usable), repr(budget)) == (0, 4, "<ConnectionBudget 4 of 4>")

        waiting = asyncio.create_task(quiet.take())
        await quiet.pass_time(5.0)
        assert not waiting.done() and len(quiet.usable) == 0
        taken.pop().reply_all()
        await quiet.pass_time(0.5)
        assert await waiting and (len(quiet.usable), len(busy.usable)) == (1, 3)

        for connection in taken:
            connection.reply_all()
        for bench in (quiet, busy):
            bench.pool.close()
        assert repr(budget) == "<ConnectionBudget 0 of 4>"

    virtual_time.run(main())


@pytest.mark.parametrize("n_clients", [(7, 7, 7), (40, 40, 1), (12, 12, 0)])
def test_pools_that_are_all_busy_share_the_budget(n_clients: tuple[int, ...]) -> None:
    """None starves, and a connection that was given to a caller is not closed before the caller wakes."""

    async def main() -> None:
        budget = ConnectionBudget(16)
        benches = [Bench(budget=budget, most=8) for _ in n_clients]
        served = [0] * len(benches)

        async def client(at: int) -> None:
            bench = benches[at]
            while True:
                connection = bench.pool.lease_nowait() or await bench.pool.lease()
                assert isinstance(connection, FakeConnection)
                sink = Sink()
                connection.open(REQUEST, sink)
                bench.pool.give_back(connection)
                await asyncio.sleep(0.01)
                connection.reply(sink)
                served[at] += 1

        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(client(at)) for at, n in enumerate(n_clients) for _ in range(n)]
            for bench in benches:
                group.create_task(bench.pass_time(10.0))
            await asyncio.sleep(10.0)
            for each in clients:
                each.cancel()
        made = [connection for bench in benches for connection in bench.made]
        n_unused = sum(connection.end is not None and not connection.n_begun for connection in made)
        n_demanded = [min(n, 16 // len(n_clients)) for n in n_clients]

        assert all(n >= 0.7 * 1000 * demanded for n, demanded in zip(served, n_demanded, strict=True)), served
        assert len(made) < 0.05 * sum(served) and n_unused < 0.02 * sum(served), (len(made), n_unused, served)

    virtual_time.run(main())


def test_worker_without_open_files_says_nothing_of_the_upstream() -> None:
    """The request fails, or goes elsewhere; the upstream is not down."""

    async def main() -> None:
        failure = UpstreamFailure(Reason.CONN_LIMIT, "Too many open files", unprocessed=Retry.CONNECT)
        budget = ConnectionBudget(4)
        bench = Bench(refuses(failure), budget=budget)
        with pytest.raises(UpstreamFailure, match="Too many open files"):
            await bench.take()
        assert not bench.pool.is_down
        assert await bench.take() and repr(budget) == "<ConnectionBudget 1 of 4>"
        bench.pool.close()

    virtual_time.run(main())


def test_failing_upstream_is_dialed_with_growing_pauses() -> None:
    """F-9, F-27: back-off from 0.1 s, doubling, 27 s at most with its jitter; every failure is told."""

    async def main() -> None:
        bench = Bench(*[refuses() for _ in range(1000)], warm=1)
        bench.pool.start()
        await asyncio.sleep(600)
        gaps = [after - before for before, after in zip(bench.dialed_s, bench.dialed_s[1:], strict=False)]
        assert 0.05 <= gaps[0] <= 0.16
        assert all(9.0 <= gap <= 27.1 for gap in gaps[12:])
        assert len(bench.failures) in (len(bench.dialed_s), len(bench.dialed_s) - 1)
        assert set(bench.failures) == {Reason.UPSTREAM_CONNECT} and not bench.pool.is_warm
        bench.pool.close()

    virtual_time.run(main())


@pytest.mark.parametrize("exc", [OSError(24, "Too many open files"), UnicodeError("label too long")])
def test_keeper_survives_whatever_a_dial_raises(exc: Exception) -> None:
    """A keeper that died would be missed for ever: the pool could never become warm again."""

    async def main() -> None:
        bench = Bench(refuses(exc), warm=1)
        bench.pool.start()
        await asyncio.sleep(5)
        assert bench.pool.is_warm and len(bench.failures) == 1
        bench.pool.close()

    virtual_time.run(main())


def test_keeper_survives_a_connection_that_is_closed_before_its_warm_up() -> None:
    """TLS 1.3 refuses a client after the handshake: the connection is dead when the dial returns."""

    async def main() -> None:
        bench = Bench(closes_at_once, warm=1)
        bench.pool.start()
        await asyncio.sleep(5)
        assert bench.pool.is_warm and bench.failures == [Reason.UPSTREAM_CONNECT]
        bench.pool.close()

    virtual_time.run(main())


def test_upstream_that_closes_after_each_reply_is_not_dialed_in_a_loop() -> None:
    """It counts as warm, since its last answer came; the pauses grow as after failures."""

    async def main() -> None:
        bench = Bench(*[closes_after_warmup for _ in range(1000)], warm=1)
        bench.pool.start()
        await asyncio.sleep(600)
        assert len(bench.dialed_s) < 60 and bench.pool.is_warm
        assert bench.pool.statistics().connections == 0
        bench.pool.close()

    virtual_time.run(main())


def test_warm_up_without_answer_is_given_up() -> None:
    """The connection is closed, and the place is dialed again."""

    async def main() -> None:
        bench = Bench(connects(answers=False), warm=1)
        bench.pool.start()
        await asyncio.sleep(20)
        assert bench.failures == [Reason.UPSTREAM_TTFB_TIMEOUT]
        assert bench.made[0].is_closed and bench.pool.is_warm
        bench.pool.close()

    virtual_time.run(main())


def test_lost_connection_is_replaced_and_forgotten() -> None:
    """An idle gateway whose upstream closes idle connections must not gather their remains."""

    async def main() -> None:
        bench = Bench(warm=2)
        bench.pool.start()
        await asyncio.sleep(2)
        for _ in range(50):
            bench.made[-1].close()
            await asyncio.sleep(5)
        assert (len(bench.made), bench.pool.statistics().connections) == (52, 2)
        assert len(bench.pool._available) == 2
        bench.pool.close()

    virtual_time.run(main())


def test_connection_is_used_while_its_warm_up_is_under_way() -> None:
    """HTTP/2: what is dialed already serves at once; a request never dials beside it."""

    async def main() -> None:
        bench = Bench(connects(10, answers=False), warm=1)
        bench.pool.start()
        await asyncio.sleep(1)
        assert not bench.pool.is_warm, "nothing was answered yet"
        assert await bench.take() is bench.made[0]
        bench.made[0].reply(bench.made[0].sinks[0])
        await turns()
        assert bench.pool.is_warm and len(bench.dialed_s) == 1
        bench.pool.close()

    virtual_time.run(main())


def test_waiters_count_on_the_dials_for_warm_connections() -> None:
    """Whoever comes while the first connection is being dialed waits for it: there is one dial for all."""

    async def main() -> None:
        bench = Bench(warm=1, capacity=100)
        bench.pool.start()
        taken = await asyncio.gather(*(bench.take() for _ in range(50)))
        assert set(taken) == {bench.made[0]} and len(bench.dialed_s) == 1
        assert bench.made[0].n_begun == 51, "with its HEAD"
        bench.pool.close()

    virtual_time.run(main())


def test_http1_connection_goes_to_who_waits_for_it_without_a_warm_up() -> None:
    """Nobody waits behind a HEAD; it is sent when there is room for it, and only then the pool is warm."""

    async def main() -> None:
        bench = Bench(warm=1)
        bench.pool.start()
        taken = await bench.take()
        assert (taken.n_begun, len(bench.dialed_s), bench.pool.is_warm) == (1, 1, False)
        await bench.pass_time(1)
        assert not bench.pool.is_warm
        taken.reply_all()
        await bench.pass_time(1)
        assert bench.pool.is_warm and taken.n_begun == 2 and len(bench.dialed_s) == 1
        bench.pool.close()

    virtual_time.run(main())


def test_all_waiters_share_the_room_of_one_connection() -> None:
    """HTTP/2: the first who wakes opens its stream and passes the rest of the room on, not only into the line."""

    async def main() -> None:
        bench = Bench(connects(100), most=1)
        waiting = [asyncio.create_task(bench.take()) for _ in range(50)]
        async with asyncio.timeout(5):
            assert set(await asyncio.gather(*waiting)) == {bench.made[0]}
        bench.pool.close()

    virtual_time.run(main())


def test_raised_stream_limit_serves_all_who_wait() -> None:
    """F-36: SETTINGS that allow more streams wake as many as there is room for."""

    async def main() -> None:
        bench = Bench(most=1, capacity=1)
        await bench.take()
        waiting = [asyncio.create_task(bench.take()) for _ in range(3)]
        await turns()
        bench.made[0].grow(4)
        async with asyncio.timeout(5):
            await asyncio.gather(*waiting)
        bench.pool.close()

    virtual_time.run(main())


def test_waiter_gets_the_room_of_an_exchange_that_ended() -> None:
    """At most `max_connections` are dialed; beyond, it is first come, first served."""

    async def main() -> None:
        bench = Bench(most=2)
        taken = [await bench.take(), await bench.take()]
        waiting = [asyncio.create_task(bench.take()) for _ in range(2)]
        await turns()
        assert bench.pool.statistics().waiting == 2 and len(bench.made) == 2
        taken[1].reply(taken[1].sinks[0])
        assert await waiting[0] is taken[1] and not waiting[1].done()
        taken[0].reply(taken[0].sinks[0])
        assert await waiting[1] is taken[0]
        bench.pool.close()

    virtual_time.run(main())


def test_failed_dial_is_told_to_one_waiter_and_the_next_one_gets_its_own() -> None:
    """With every place taken, those behind the first have no dial of their own; they must not wait for nothing."""

    async def main() -> None:
        bench = Bench(connects(), refuses(), refuses(), connects(), most=2)
        await bench.take()
        waiting = [asyncio.create_task(bench.take()) for _ in range(3)]
        async with asyncio.timeout(5):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [UpstreamFailure, UpstreamFailure, FakeConnection]
        bench.pool.close()

    virtual_time.run(main())


def test_upstream_that_is_down_fails_all_who_wait_at_once() -> None:
    """Nobody waits for a time-out after another: one dial is made for all, and its failure is the failure of all."""

    async def main() -> None:
        bench = Bench(connects(), *[refuses() for _ in range(40)])
        (await bench.take()).close()
        for n_dials in (2, 3):
            waiting = [asyncio.create_task(bench.take()) for _ in range(20)]
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(result) for result in results} == {UpstreamFailure}
            assert len({id(result) for result in results}) == 20, "each has a traceback of its own"
            if n_dials == 3:
                assert (len(bench.dialed_s), bench.pool.is_down) == (22, True)
        bench.pool.close()

    virtual_time.run(main())


@pytest.mark.parametrize("first", [closes_at_once, refuses(OSError(24, "Too many open files"))])
def test_dial_that_brings_nothing_is_an_answer_too(first: Make) -> None:
    """A connection that is closed when it is made, or an error nobody expected: the waiter is told."""

    async def main() -> None:
        bench = Bench(first)
        with pytest.raises(UpstreamFailure) as caught:
            async with asyncio.timeout(5):
                await bench.take()
        assert (caught.value.reason, caught.value.unprocessed) == (Reason.UPSTREAM_CONNECT, Retry.CONNECT)
        bench.pool.close()

    virtual_time.run(main())


def test_warm_up_that_leaves_no_connection_does_not_strand_who_waits() -> None:
    """The only place was being warmed: when its connection is gone, a dial is made for the waiter."""

    async def main() -> None:
        bench = Bench(connects(answers=False), warm=1, most=1)
        bench.pool.start()
        await asyncio.sleep(1)
        waiting = asyncio.create_task(bench.take())
        await turns()
        bench.made[0].close()
        async with asyncio.timeout(5):
            assert await waiting is bench.made[1]
        bench.pool.close()

    virtual_time.run(main())


def test_lost_connection_makes_place_for_who_waits() -> None:
    """The upstream closed a busy connection: its place is dialed for the next waiter."""

    async def main() -> None:
        bench = Bench(most=1)
        taken = await bench.take()
        waiting = asyncio.create_task(bench.take())
        await turns()
        taken.close()
        async with asyncio.timeout(5):
            assert await waiting is bench.made[1]
        bench.pool.close()

    virtual_time.run(main())


@pytest.mark.parametrize("after_it_was_served", [False, True])
def test_waiter_that_leaves_takes_no_room_with_it(after_it_was_served: bool) -> None:
    """Also when its connection was handed over and it has not woken yet."""

    async def main() -> None:
        bench = Bench(most=1)
        taken = await bench.take()
        leaving = asyncio.create_task(bench.take())
        await turns()
        staying = asyncio.create_task(bench.take())
        await turns()
        if after_it_was_served:
            taken.reply(taken.sinks[0])
            leaving.cancel()
        else:
            leaving.cancel()
            taken.reply(taken.sinks[0])
        async with asyncio.timeout(5):
            assert await staying is taken
        assert leaving.cancelled() and bench.pool.statistics().waiting == 0
        bench.pool.close()

    virtual_time.run(main())


def test_waiter_whose_connection_lost_its_room_finds_another_that_is_in_line() -> None:
    """Between being served and waking, the connection closed; one with room may stand in line already."""

    async def main() -> None:
        bench = Bench(connects(), connects(), never, most=2)
        first, second = await bench.take(), await bench.take()
        waiting = asyncio.create_task(bench.take())
        await turns()
        first.reply(first.sinks[0])
        second.reply(second.sinks[0])
        first.close()
        async with asyncio.timeout(5):
            assert await waiting is second
        bench.pool.close()

    virtual_time.run(main())


def test_close_ends_keepers_dials_and_connections() -> None:
    """Nothing is dialed after it."""

    async def main() -> None:
        bench = Bench(connects(), never, warm=2)
        bench.pool.start()
        await asyncio.sleep(1)
        bench.pool.close()
        await asyncio.sleep(60)
        assert len(bench.dialed_s) == 2 and bench.made[0].is_closed
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtual_time.run(main())
