"""The time of a turn of the loop that connections with many small messages share (net/turn_budget.py)."""

from __future__ import annotations

from typing import Final

from tests.unit.net.upstream_wire import Loop
from velox.net.turn_budget import TURN_S, TurnBudget


class Waiter:
    """Has so many steps to do, each of which takes a while."""

    def __init__(self, stand: Stand, n_left: int) -> None:
        self.stand: Final = stand
        self.n_left = n_left

    def turn_came(self) -> None:
        while self.n_left:
            if not self.stand.budget.has_time():
                self.stand.budget.wait(self)
                return
            self.n_left -= 1
            self.stand.now_s += TURN_S / 4


class Stand:
    """A budget with a clock that work moves."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.loop: Final = Loop()
        self.budget: Final = TurnBudget(self.loop, lambda: self.now_s)


def test_time_of_a_turn_ends_and_the_next_one_has_its_own() -> None:
    """The first question begins a turn; who never asks again costs one call of the loop."""
    stand = Stand()
    assert stand.budget.has_time()
    stand.now_s += TURN_S
    assert not stand.budget.has_time()
    stand.loop.turn()
    assert stand.budget.has_time()
    stand.loop.turn()
    assert not stand.loop.soon


def test_those_in_line_are_served_in_order_and_none_starves() -> None:
    """Each turn goes on where the one before has ended."""
    stand = Stand()
    waiters = [Waiter(stand, 6) for _ in range(4)]
    for waiter in waiters:
        waiter.turn_came()
    turns = 0
    while stand.loop.soon:
        began_s = stand.now_s
        stand.loop.turn()
        assert stand.now_s - began_s < 1.1 * TURN_S
        turns += 1
        if turns == 4:
            assert all(waiter.n_left < 6 for waiter in waiters)
    assert [waiter.n_left for waiter in waiters] == [0, 0, 0, 0]
