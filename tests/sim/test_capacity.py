"""The simulator with a capacity: more answers wait in line, or all get slower; and none is forgotten."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from tests.sim.harness import FAST, wait_until, with_sim
from velox_sim.engine import Engine
from velox_sim.options import SimOptions
from velox_sim.server import SimServer

ASK: Final = (
    b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 43\r\n\r\n{"model": "m", "prompt": "", "stream":true}'
)
# An answer that lasts until its client leaves.
LONG: Final = replace(FAST, token_rate=0.01, capacity=2)


async def ask(sim: SimServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
    writer.write(ASK)
    return reader, writer


async def has_begun(reader: asyncio.StreamReader) -> None:
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


def test_more_than_the_capacity_wait_in_line() -> None:
    """Two run; the third begins when one of them is gone, and not before."""

    async def talk(sim: SimServer) -> None:
        (first, leaves), (second, stays) = await ask(sim), await ask(sim)
        await asyncio.gather(has_begun(first), has_begun(second))
        third, waits = await ask(sim)
        await wait_until(lambda: sim.statistics().n_requests == 3)
        begun = asyncio.ensure_future(has_begun(third))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not begun.done()

        leaves.close()

        await begun
        stays.close()
        waits.close()
        await wait_until(lambda: not sim.statistics().n_connections)

    with_sim(LONG, talk)


def test_one_that_leaves_the_line_is_skipped() -> None:
    """Its place goes to the one behind it, and no slot is lost."""

    async def talk(sim: SimServer) -> None:
        (first, running), (_, leaves), (last, waits) = await ask(sim), await ask(sim), await ask(sim)
        await has_begun(first)
        await wait_until(lambda: sim.statistics().n_requests == 3)
        leaves.close()
        await wait_until(lambda: sim.statistics().n_connections == 2)

        running.close()

        await has_begun(last)
        waits.close()
        await wait_until(lambda: not sim.statistics().n_connections)

    with_sim(replace(LONG, capacity=1), talk)


def test_line_is_left_without_a_trace() -> None:
    """Who leaves it frees no slot, for it had none."""
    loop = asyncio.new_event_loop()
    engine, begun = Engine(loop, 1), list[str]()
    for name in "abc":
        engine.enter(name, functools.partial(begun.append, name))

    engine.leave("b")
    assert (engine.n_running, engine.n_waiting, begun) == (1, 1, ["a"])
    engine.leave("a")

    assert (engine.n_running, engine.n_waiting, begun) == (1, 0, ["a", "c"])
    loop.close()


@pytest.mark.parametrize("options", [replace(FAST, capacity=2), replace(FAST, capacity=2, batch_slowdown=True)])
def test_all_are_answered_whole_in_the_end(options: SimOptions) -> None:
    """Five hundred at once, each takes no time: the line is worked off without one call inside the other."""

    async def talk(sim: SimServer) -> None:
        opened = [await ask(sim) for _ in range(500)]
        for reader, writer in opened:
            await reader.readuntil(b"data: [DONE]")
            writer.close()
        assert sim.statistics().n_cancelled == 0

    with_sim(options, talk)


def test_line_is_worked_off_in_a_flat_loop() -> None:
    """Two thousand that take no time wait for one: endings that called each other would run out of stack."""
    loop = asyncio.new_event_loop()
    engine = Engine(loop, 1)
    ended: list[int] = []

    def begin(n: int) -> Callable[[], None]:
        def at_once() -> None:
            ended.append(n)
            engine.leave(n)

        return at_once

    engine.enter(-1, lambda: None)
    for n in range(2000):
        engine.enter(n, begin(n))
    assert engine.n_waiting == 2000

    engine.leave(-1)

    assert ended == list(range(2000))
    assert (engine.n_running, engine.n_waiting) == (0, 0)
    loop.close()


class HandLoop(asyncio.SelectorEventLoop):
    """A loop whose clock is moved by hand."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


def test_time_passes_slower_in_proportion_to_what_is_too_much() -> None:
    """Capacity two: at two a second is a second, at four half of one, and again a whole one when two have left."""
    loop = HandLoop()
    engine = Engine(loop, 2, shares=True)
    for n in range(4):
        engine.enter(n, lambda: None)
        if n == 1:
            loop.now_s = 1.0
    assert engine.time() == 1.0
    loop.now_s = 2.0
    assert engine.time() == 1.5

    engine.leave(0)
    engine.leave(1)
    loop.now_s = 3.0

    assert engine.time() == 2.5
    assert engine.n_waiting == 0
    loop.close()


def test_answers_that_share_the_speed_take_longer() -> None:
    """Four at a capacity of one: each takes four times as long as alone, by the loop's clock."""

    async def take_s(sim: SimServer, n: int) -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        opened = [await ask(sim) for _ in range(n)]
        for reader, writer in opened:
            await reader.readuntil(b"data: [DONE]")
            writer.close()
        return loop.time() - began_s

    async def talk(sim: SimServer) -> None:
        assert await take_s(sim, 4) >= 4 * 0.2 - 0.01  # never sooner; how much later is the machine's affair

    options = replace(FAST, ttft_s=0.1, token_rate=20, capacity=1, batch_slowdown=True)
    with_sim(options, talk)
