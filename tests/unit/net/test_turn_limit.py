"""How many pieces of work begin in a turn of the loop (net/turn_limit.py)."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.net.upstream_wire import Loop
from velox.net.turn_limit import TurnLimit

MOST: Final = 4


class Waiter:
    """Begins one piece of work, or `fails`."""

    def __init__(self, begun: list[Waiter], *, fails: bool = False) -> None:
        self.begun: Final = begun
        self.fails: Final = fails

    def turn_came(self) -> None:
        self.begun.append(self)
        if self.fails:
            raise RuntimeError


def come(limit: TurnLimit, waiter: Waiter) -> None:
    """Have something begin as a connection does."""
    if limit.has_room():
        waiter.turn_came()
    else:
        limit.wait(waiter)


@given(st.lists(st.integers(0, 9), max_size=12))
def test_a_turn_begins_few_and_all_begin_in_the_order_in_which_they_came(bursts: list[int]) -> None:
    """Those in line first, then those that come in the turn; each once."""
    loop = Loop()
    begun: list[Waiter] = []
    all_waiters: list[Waiter] = []
    limit = TurnLimit(loop, MOST)
    for n in [*bursts, *[0] * 60]:
        loop.now_s += 0.001
        before = len(begun)
        loop.turn()
        for _ in range(n):
            waiter = Waiter(begun)
            all_waiters.append(waiter)
            come(limit, waiter)
        assert len(begun) - before <= MOST
    assert begun == all_waiters
    assert not loop.soon


def test_turn_is_not_over_while_the_time_is_the_same() -> None:
    loop = Loop()
    begun: list[Waiter] = []
    limit = TurnLimit(loop, MOST)
    for n in range(10):
        come(limit, Waiter(begun))
        assert len(begun) == min(n + 1, MOST)
    loop.turn()
    assert len(begun) == 2 * MOST
    come(limit, Waiter(begun))
    assert len(begun) == 2 * MOST, "others are in line"
    loop.turn()
    assert len(begun) == 11 and not loop.soon


def test_bug_of_one_keeps_no_other_in_line() -> None:
    loop = Loop()
    begun: list[Waiter] = []
    limit = TurnLimit(loop, MOST)
    for fails in (True, False):
        limit.wait(Waiter(begun, fails=fails))
    with pytest.raises(RuntimeError):
        loop.turn()
    loop.turn()
    assert len(begun) == 2
