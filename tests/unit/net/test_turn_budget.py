"""The time of a turn of the loop that connections with many small messages share (net/turn_budget.py)."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.net.upstream_wire import Loop
from velox.net.turn_budget import TurnBudget

TURN_S: Final = 2.0**-10  # its quarters add up


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
        self.budget: Final = TurnBudget(self.loop, lambda: self.now_s, share_s=TURN_S)


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


class Piece:
    """One piece of work that begins when there is room for it; or `fails`."""

    def __init__(self, stand: Stand, begun: list[Piece], *, fails: bool = False) -> None:
        self.stand: Final = stand
        self.begun: Final = begun
        self.fails: Final = fails

    def come(self) -> None:
        if self.stand.budget.has_room():
            self.turn_came()
        else:
            self.stand.budget.wait(self)

    def turn_came(self) -> None:
        self.stand.now_s += TURN_S / 4
        self.begun.append(self)
        if self.fails:
            raise RuntimeError


@given(st.lists(st.integers(0, 9), max_size=12), st.floats(0.0, 0.002))
def test_a_turn_begins_few_and_all_begin_in_the_order_in_which_they_came(bursts: list[int], later_s: float) -> None:
    """Those in line first, then those that come in the turn; each once. The loop's time need not go on."""
    stand = Stand()
    begun: list[Piece] = []
    pieces: list[Piece] = []
    for n in [*bursts, *[0] * 60]:
        stand.loop.now_s += later_s
        before = len(begun)
        stand.loop.turn()
        for _ in range(n):
            piece = Piece(stand, begun)
            pieces.append(piece)
            piece.come()
        assert len(begun) - before <= 1 + 4, "the first one is not timed"
    assert begun == pieces
    assert not stand.loop.soon


def test_who_comes_alone_reads_no_clock_and_calls_nobody() -> None:
    """As most requests do."""
    stand = Stand()
    begun: list[Piece] = []
    for n in range(10):
        stand.loop.now_s += 0.001
        Piece(stand, begun).come()
        assert len(begun) == n + 1 and not stand.loop.soon


def test_loop_whose_time_goes_on_within_a_turn_begins_no_other_turn() -> None:
    """Each timer that is set moves it (libuv)."""
    stand = Stand()
    begun: list[Piece] = []
    for _ in range(2):
        Piece(stand, begun).come()
    for _ in range(20):
        stand.loop.now_s += 0.001
        Piece(stand, begun).come()
    assert len(begun) == 1 + 4
    while stand.loop.soon:
        stand.loop.turn()
    assert len(begun) == 22


def test_bug_of_one_keeps_no_other_in_line() -> None:
    stand = Stand()
    begun: list[Piece] = []
    for fails in (True, False):
        stand.budget.wait(Piece(stand, begun, fails=fails))
    with pytest.raises(RuntimeError):
        stand.loop.turn()
    stand.loop.turn()
    assert len(begun) == 2


class Known(Piece):
    """One of a connection that was served before."""

    def come(self) -> None:
        if self.stand.budget.has_room(is_known=True):
            self.turn_came()
        else:
            self.stand.budget.wait(self, is_known=True)


def test_who_was_served_before_waits_behind_its_like() -> None:
    """Not behind hundreds that were not: it begins in the next turn."""
    stand = Stand()
    begun: list[Piece] = []
    for _ in range(300):
        Piece(stand, begun).come()
    known = Known(stand, begun)
    known.come()
    assert known not in begun
    stand.loop.turn()
    assert known in begun and len(begun) < 12
    late = Known(stand, begun)
    late.come()
    stand.loop.turn()
    assert late in begun


@given(st.lists(st.booleans(), min_size=1, max_size=80))
def test_each_line_has_half_of_a_turn_and_all_of_it_where_the_other_is_empty(known: list[bool]) -> None:
    """Neither starves, no time is left over, and each line keeps its order."""
    stand = Stand()
    begun: list[Piece] = []
    assert stand.budget.has_time()
    stand.now_s += TURN_S  # over: all wait
    pieces = [(Known if each else Piece)(stand, begun) for each in known]
    for piece in pieces:
        piece.come()
    while stand.loop.soon:
        before = len(begun)
        waiting = [piece for piece in pieces if piece not in begun]
        stand.loop.turn()
        came = begun[before:]
        assert len(came) == min(4, len(waiting)) or not came
        n_known = sum(type(piece) is Known for piece in waiting)
        if came and 2 <= n_known <= len(waiting) - 2:
            assert sum(type(piece) is Known for piece in came) == 2
    for kind in (Known, Piece):
        assert [each for each in begun if type(each) is kind] == [each for each in pieces if type(each) is kind]
    assert len(begun) == len(pieces)
