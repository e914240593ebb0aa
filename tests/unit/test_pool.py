"""The pool with a dialer that does what a test says: who gets which connection, and who is never left waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from tests.unit import virtual_time
from velox.errors import Reason, VeloxError
from velox.net.pool import UpstreamPool
from velox.net.upstream import ConnectionOwner, ReplySink, UpstreamFailure, UpstreamRequest
from velox.types import ReplyHead

WARMUP: Final = UpstreamRequest(b"HEAD", b"/v1/models", [], b"", None)
OK: Final = ReplyHead(200, [], 0)


class FakeConnection:
    """Has room for `capacity` streams; a test ends them. answers: a HEAD is answered as soon as it is sent."""

    def __init__(self, owner: ConnectionOwner, *, capacity: int = 1, answers: bool = True) -> None:
        self.queued = False
        self.capacity = capacity
        self.is_closed = False
        self.sinks: list[ReplySink] = []
        self.closes_after_reply = False
        self._owner: Final = owner
        self._answers: Final = answers

    @property
    def has_room(self) -> bool:
        return not self.is_closed and len(self.sinks) < self.capacity

    @property
    def n_streams(self) -> int:
        return len(self.sinks)

    def open(self, request: UpstreamRequest, sink: ReplySink) -> FakeStream:
        assert self.has_room, "opened without room"
        self.sinks.append(sink)
        if request is WARMUP and self._answers:
            asyncio.get_running_loop().call_soon(self.end, sink)
        return FakeStream()

    def end(self, sink: ReplySink) -> None:
        """The reply of one stream came to its end."""
        if sink in self.sinks:
            self.sinks.remove(sink)
            if self.closes_after_reply:
                self.close()
            sink.on_reply(OK, b"", True)
            if self.has_room and not self.queued:
                self._owner.on_room(self)

    def grow(self, capacity: int) -> None:
        """The peer allows more streams."""
        self.capacity = capacity
        self._owner.on_room(self)

    def close(self) -> None:
        """The upstream closed it."""
        if not self.is_closed:
            self.is_closed = True
            self._owner.on_closed(self)
            sinks, self.sinks = self.sinks, []
            for sink in sinks:
                sink.on_failure(UpstreamFailure(Reason.UPSTREAM_RESET, "closed"))

    def retire(self) -> None:
        raise AssertionError("the pool retires nothing")

    def abort(self) -> None:
        self.close()


class FakeStream:
    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def cancel(self) -> None: ...


class Sink:
    """One exchange of a test."""

    def __init__(self) -> None:
        self.failure: UpstreamFailure | None = None

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None: ...

    def on_failure(self, failure: UpstreamFailure) -> None:
        self.failure = failure


Make = Callable[[ConnectionOwner], Awaitable[FakeConnection]]


class Bench:
    """A pool and its dialer. script: what the dials do, in order; afterwards each makes a connection."""

    def __init__(self, *script: Make, warm: int = 0, most: int = 100, capacity: int = 1) -> None:
        self.dialed_s: Final[list[float]] = []
        self.made: Final[list[FakeConnection]] = []
        self.failures: Final[list[Reason]] = []
        self.capacity: Final = capacity
        self._script: Final = list(script)
        self.pool: Final = UpstreamPool(
            self.dial,
            WARMUP,
            warm_connections=warm,
            max_connections=most,
            warmup_timeout_s=10.0,
            on_change=lambda: None,
            on_warm_failure=self._note,
        )

    def _note(self, failure: VeloxError) -> None:
        self.failures.append(failure.reason)

    async def dial(self, owner: ConnectionOwner) -> FakeConnection:
        self.dialed_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.001)
        made = await (self._script.pop(0)(owner) if self._script else connects(self.capacity)(owner))
        self.made.append(made)
        return made

    async def take(self) -> FakeConnection:
        """Do what an exchange does: lease, open a stream, give the rest of the room back."""
        connection = self.pool.lease_nowait()
        while connection is None or not connection.has_room:
            connection = await self.pool.lease()
        assert isinstance(connection, FakeConnection)
        connection.open(UpstreamRequest(b"GET", b"/", [], b"", None), Sink())
        self.pool.give_back(connection)
        return connection


def connects(capacity: int = 1, *, answers: bool = True) -> Make:
    async def make(owner: ConnectionOwner) -> FakeConnection:
        return FakeConnection(owner, capacity=capacity, answers=answers)

    return make


def refuses(exc: Exception | None = None) -> Make:
    async def make(_owner: ConnectionOwner) -> FakeConnection:
        raise exc or UpstreamFailure(Reason.UPSTREAM_CONNECT, "refused", unprocessed=True)

    return make


async def closes_at_once(owner: ConnectionOwner) -> FakeConnection:
    connection = FakeConnection(owner)
    connection.close()
    return connection


async def closes_after_warmup(owner: ConnectionOwner) -> FakeConnection:
    connection = FakeConnection(owner)
    connection.closes_after_reply = True
    return connection


async def never(_owner: ConnectionOwner) -> FakeConnection:
    return await asyncio.Future[FakeConnection]()


async def turns(n: int = 10) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


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


def test_failing_upstream_is_dialed_with_growing_pauses() -> None:
    """F-9: back-off 0.1 s doubling to 30 s, with jitter; every failure is told."""

    async def main() -> None:
        bench = Bench(*[refuses() for _ in range(1000)], warm=1)
        bench.pool.start()
        await asyncio.sleep(600)
        gaps = [after - before for before, after in zip(bench.dialed_s, bench.dialed_s[1:], strict=False)]
        assert 0.05 <= gaps[0] <= 0.16
        assert all(15.0 <= gap <= 45.1 for gap in gaps[12:])
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
        assert len(bench.dialed_s) < 40 and bench.pool.is_warm
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
        assert len(bench.pool._ready) == 2
        bench.pool.close()

    virtual_time.run(main())


def test_connection_serves_nobody_before_its_warm_up_is_answered() -> None:
    """SETTINGS come during the warm-up and say that there is room; if the warm-up fails, nobody else fails with it."""

    async def main() -> None:
        bench = Bench(connects(10, answers=False), never, warm=1)
        bench.pool.start()
        await asyncio.sleep(1)
        waiting = asyncio.create_task(bench.take())
        await turns()
        bench.made[0].grow(20)
        await turns()
        assert not waiting.done()
        bench.made[0].end(bench.made[0].sinks[0])
        assert await waiting is bench.made[0]
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
        taken[1].end(taken[1].sinks[0])
        assert await waiting[0] is taken[1] and not waiting[1].done()
        taken[0].end(taken[0].sinks[0])
        assert await waiting[1] is taken[0]
        bench.pool.close()

    virtual_time.run(main())


def test_failed_dial_is_told_to_one_waiter_and_the_next_one_gets_its_own() -> None:
    """With every place taken, those behind the first have no dial of their own; they must not wait for nothing."""

    async def main() -> None:
        bench = Bench(refuses(), refuses(), connects(), most=1)
        waiting = [asyncio.create_task(bench.take()) for _ in range(3)]
        async with asyncio.timeout(5):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [UpstreamFailure, UpstreamFailure, FakeConnection]
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
        assert (caught.value.reason, caught.value.unprocessed) == (Reason.UPSTREAM_CONNECT, True)
        bench.pool.close()

    virtual_time.run(main())


def test_warm_up_that_leaves_no_connection_does_not_strand_who_waits() -> None:
    """The keeper took the only place: when its connection is gone, a dial is made for the waiter."""

    async def main() -> None:
        bench = Bench(closes_after_warmup, warm=1, most=1)
        bench.pool.start()
        await turns(1)
        async with asyncio.timeout(5):
            assert await bench.take() is bench.made[1]
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
    """R-CANCEL-1: also when its connection was handed over and it has not woken yet."""

    async def main() -> None:
        bench = Bench(most=1)
        taken = await bench.take()
        leaving = asyncio.create_task(bench.take())
        await turns()
        staying = asyncio.create_task(bench.take())
        await turns()
        if after_it_was_served:
            taken.end(taken.sinks[0])
            leaving.cancel()
        else:
            leaving.cancel()
            taken.end(taken.sinks[0])
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
        first.end(first.sinks[0])
        second.end(second.sinks[0])
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
