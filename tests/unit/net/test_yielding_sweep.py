"""A few in each turn of the loop, all in the end, whatever one of them does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import uvloop

from velox.net.yielding_sweep import YieldingSweep


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    uvloop.run(main())


def test_items_are_done_in_order_a_few_a_turn() -> None:
    """n - 1, n, n + 1 of a turn's number: the first turn is the caller's own."""

    async def main() -> None:
        for n_items, at_once in ((3, 3), (4, 4), (5, 4)):
            done: list[int] = []
            turns = YieldingSweep(done.append, 4, asyncio.get_running_loop())
            turns.begin(range(n_items))
            assert done == list(range(at_once))
            await asyncio.sleep(0)
            assert done == list(range(n_items))

    run(main)


def test_others_get_their_turn_in_between() -> None:
    """What is ready at the beginning waits for no more than one turn's worth."""

    async def main() -> None:
        done: list[int] = []
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        turns = YieldingSweep(done.append, 4, loop)
        loop.call_soon(lambda: seen.append(len(done)))
        turns.begin(range(100))
        while len(done) < 100:
            seen.append(len(done))
            await asyncio.sleep(0)
        assert seen[:4] == [4, 4, 8, 12], seen

    run(main)


def test_sweep_that_comes_before_the_last_has_ended_changes_nothing() -> None:
    """Nothing is done twice; the sweep after it begins anew."""

    async def main() -> None:
        done: list[int] = []
        turns = YieldingSweep(done.append, 4, asyncio.get_running_loop())
        turns.begin(range(10))
        turns.begin(range(10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == list(range(10))
        turns.begin([7])
        assert done[10:] == [7]

    run(main)


def test_error_in_one_is_reported_and_the_others_are_done() -> None:
    """The first turn's goes to the caller, a later one's to the loop; also when it is the last that fails."""

    async def main() -> None:
        done: list[int] = []
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

        def act(item: int) -> None:
            done.append(item)
            if item in (1, 7, 9):
                raise ValueError(item)

        turns = YieldingSweep(act, 4, loop)
        try:
            turns.begin(range(10))
        except ValueError as exc:
            reported.append(exc)
        for _ in range(6):
            await asyncio.sleep(0)
        assert done == list(range(10))
        assert [str(exc) for exc in reported] == ["1", "7", "9"]
        turns.begin([3])
        assert done[10:] == [3], "it is not stuck"

    run(main)


def test_stop_leaves_the_rest_undone() -> None:
    """And a stopped one may begin again."""

    async def main() -> None:
        done: list[int] = []
        turns = YieldingSweep(done.append, 2, asyncio.get_running_loop())
        turns.begin(range(10))
        turns.stop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == [0, 1]
        turns.begin([5])
        assert done == [0, 1, 5]

    run(main)
