"""Which connections read in a turn of the loop (net/read_turns.py)."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.net.upstream_wire import Loop
from velox.net.read_turns import READ_TURN_S, ReadTurns


class Flood:
    """A connection that always has something to read: so many reads, each of which takes so long."""

    def __init__(self, stand: Stand, cost_s: float, n_left: int) -> None:
        self.stand: Final = stand
        self.cost_s: Final = cost_s
        self.n_left = n_left
        self.is_reading = True

    def read_on(self) -> None:
        assert not self.is_reading, "called once for each stop"
        self.is_reading = True

    def poll(self) -> None:
        """Read as the loop does: up to 32 times in a row."""
        for _ in range(32):
            if not (self.is_reading and self.n_left):
                return
            self.n_left -= 1
            self.stand.now_s += self.cost_s
            self.is_reading = not self.stand.turns.took(
                self, self.cost_s, cast(asyncio.AbstractEventLoop, self.stand.loop)
            )


class Stand:
    """The connections of a worker."""

    def __init__(self, floods: list[tuple[float, int]]) -> None:
        self.now_s = 5.0
        self.loop: Final = Loop()
        self.turns: Final = ReadTurns()
        self.floods: Final = [Flood(self, cost_s, n) for cost_s, n in floods]

    def turn(self) -> float:
        """Take a turn of the loop; return how long it was."""
        began_s = self.now_s
        self.loop.turn()
        for flood in self.floods:
            flood.poll()
        return self.now_s - began_s


def test_reads_of_a_turn_are_counted_together() -> None:
    """X9: each takes a fifth of a turn, and the loop offers 32 in a row."""
    stand = Stand([(READ_TURN_S / 5, 100)])
    assert stand.turn() < 1.1 * READ_TURN_S
    assert stand.turn() < 1.1 * READ_TURN_S
    assert stand.floods[0].n_left in (90, 89, 88)


def test_connections_take_turns() -> None:
    """X9: fifty that flood: when all are in line, a turn has as many as fit into it, and none gets twice as much."""
    stand = Stand([(READ_TURN_S / 2, 1000)] * 50)
    stand.turn()
    for _ in range(500):
        assert stand.turn() < 2 * READ_TURN_S
    reads = [1000 - flood.n_left for flood in stand.floods]
    assert min(reads) >= 20 and max(reads) <= 2 * min(reads)


def test_short_reads_of_a_turn_stop_nobody() -> None:
    """What costs little is never in line, and at rest nothing is called."""
    stand = Stand([(READ_TURN_S / 1000, 10)] * 20)
    stand.turn()
    assert all(flood.is_reading for flood in stand.floods)
    stand.turn()
    assert not stand.loop.soon


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.floats(min_value=READ_TURN_S / 1000, max_value=READ_TURN_S), st.integers(min_value=0, max_value=40)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_all_is_read_and_turns_are_short(floods: list[tuple[float, int]]) -> None:
    """None is left behind, and no turn is long, once each has been read for the first time."""
    stand = Stand(floods)
    n = sum(count for _, count in floods)
    stand.turn()
    stand.turn()
    for _ in range(n):
        assert stand.turn() <= 4 * READ_TURN_S
    assert not any(flood.n_left for flood in stand.floods)
