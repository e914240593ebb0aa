"""The simulator's periods of being down, by a clock that the test moves."""

from __future__ import annotations

import pytest

from velox_sim.engine import Outage


class Clock:
    """Monotonic seconds, which begin anywhere."""

    def __init__(self) -> None:
        self.now_s = 12_345.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("after_s", "is_down", "change_in_s"),
    [
        (0, False, 20),
        (19.5, False, 0.5),
        (20, True, 5),
        (24.5, True, 0.5),
        (25, False, 20),
        (45, True, 5),
        (50, False, 20),
    ],
)
def test_outage_comes_and_goes_by_its_times(after_s: float, is_down: bool, change_in_s: float) -> None:
    """Up for 20 s from the start on, down for 5, and again."""
    clock = Clock()
    outage = Outage(20, 5, clock)
    clock.now_s += after_s

    assert outage.is_now() is is_down
    assert outage.change_in_s() == change_in_s
    assert repr(outage) == ("<Outage now>" if is_down else f"<Outage in {change_in_s:.3f} s>")


def test_outage_without_a_time_up_is_always() -> None:
    """A simulator that never comes up."""
    clock = Clock()
    outage = Outage(0, 5, clock)
    for _ in range(4):
        assert outage.is_now()
        clock.now_s += 2.5
