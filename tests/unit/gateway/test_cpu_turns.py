"""Long work that shares a part of each turn of the loop (gateway/cpu_work.py)."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest

from velox.gateway.cpu_work import in_turn, in_turns
from velox.net.turn_budget import TURN_S, TurnBudget

A_TURN: Final = 4  # steps that fit


class Stand:
    """Of one loop. clock: moved by each step. n_turn: how many turns of the loop there have been."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.loop: Final = asyncio.get_running_loop()
        self.turns: Final = TurnBudget(self.loop, lambda: self.now_s)
        self.n_turn = 0
        self.by_turn: Final[Counter[int]] = Counter()
        self.done: Final[list[str]] = []
        self._count()

    def _count(self) -> None:
        self.n_turn += 1
        self.loop.call_soon(self._count)

    def step(self) -> None:
        self.now_s += TURN_S / A_TURN
        self.by_turn[self.n_turn] += 1

    def steps(self, name: str, n: int) -> Generator[None, None, str]:
        for _ in range(n):
            self.step()
            yield
        self.done.append(name)
        return name

    def once(self, name: str) -> str:
        self.step()
        self.done.append(name)
        return name

    def fail(self) -> None:
        self.step()
        raise ValueError("wrong")


def test_many_at_once_share_each_turn_in_their_order() -> None:
    """A turn has as much work as fits into it, whoever's it is; what is one step is done in order."""

    async def main() -> Stand:
        stand = Stand()
        names = [f"{n}" for n in range(20)]
        work = [
            in_turns(stand.steps(name, 9), stand.turns)
            if n % 2
            else in_turn(lambda name=name: stand.once(name), stand.turns)  # type: ignore[misc]
            for n, name in enumerate(names)
        ]
        assert await asyncio.gather(*work) == names
        return stand

    stand = asyncio.run(main())

    assert max(stand.by_turn.values()) == A_TURN
    assert [name for name in stand.done if int(name) % 2 == 0] == [f"{n}" for n in range(0, 20, 2)]


def test_alone_it_is_done_in_the_turn_in_which_it_came() -> None:
    async def main() -> tuple[int, str]:
        stand = Stand()
        await in_turns(stand.steps("a", A_TURN - 1), stand.turns)
        return stand.n_turn, await in_turn(lambda: "b", stand.turns)

    assert asyncio.run(main()) == (1, "b")


def test_errors_come_back_and_leave_no_cycle() -> None:
    async def main() -> int:
        stand = Stand()
        stand.turns.has_time()
        gc.collect()
        for n in range(3):
            with pytest.raises(ValueError, match="wrong"):
                await in_turn(stand.fail, stand.turns)
            stand.now_s += n * TURN_S
        return gc.collect()

    gc.disable()
    try:
        assert asyncio.run(main()) == 0
    finally:
        gc.enable()


def test_who_is_cancelled_has_no_more_of_it_done() -> None:
    async def main() -> Stand:
        stand = Stand()
        task = asyncio.create_task(in_turns(stand.steps("a", 100), stand.turns))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        n_before = stand.by_turn.total()
        assert 0 < n_before < 100
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(3):
            await asyncio.sleep(0)
        assert stand.by_turn.total() == n_before
        return stand

    assert not asyncio.run(main()).done
