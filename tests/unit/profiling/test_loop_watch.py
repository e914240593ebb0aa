"""What held the loop: the alarm that interrupts it, and what is kept of that."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from velox.profiling.loop_watch import LoopWatch


class Alarm:
    """Notes for when it was wound up."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    """An alarm that never rings by itself; the signal is the test's, and others' afterwards."""
    before = signal.getsignal(signal.SIGALRM)
    yield Alarm()
    signal.signal(signal.SIGALRM, before)


def hold_up() -> None:
    """Be what runs when the alarm rings."""
    signal.raise_signal(signal.SIGALRM)


def test_late_beat_is_kept_with_what_held_it_up(alarm: Alarm) -> None:
    """The stack is that of the alarm, the time that of the beat."""
    watch = LoopWatch(0.05, alarm, lambda: 1700.0)
    watch.start()
    watch.beat(0.0, 0.25)
    hold_up()
    watch.beat(0.4, 0.25)
    told = watch.turns()
    watch.stop()

    assert alarm.seconds == [0.3, 0.3, 0.0]
    assert (told.total, told.threshold_s) == (1, 0.05)
    (turn,) = told.rows
    assert (turn.at_s, turn.lasted_s) == (1700.0, 0.4)
    assert (
        turn.stack[-1].startswith("hold_up (tests/unit/profiling/test_loop_watch.py:") or "hold_up (" in turn.stack[-1]
    )
    assert "test_late_beat_is_kept" in turn.stack[-2]


def test_beats_in_time_leave_nothing(alarm: Alarm) -> None:
    """Also where the alarm rang just before a beat that was hardly late, whose stack is not the next one's."""
    watch = LoopWatch(0.05, alarm)
    watch.start()
    hold_up()
    watch.beat(0.049, 0.25)
    watch.beat(0.3, 0.25)
    told = watch.turns()
    watch.stop()

    assert told.total == 1
    assert told.rows[0].stack == ()


def test_only_the_last_ones_are_kept_the_newest_first(alarm: Alarm) -> None:
    watch = LoopWatch(0.05, alarm)
    for n in range(100):
        watch.beat(1.0 + n, 0.25)
    told = watch.turns()

    assert told.total == 100
    assert [row.lasted_s for row in told.rows] == [1.0 + n for n in range(99, 35, -1)]


def test_alarm_after_the_end_harms_nobody(alarm: Alarm) -> None:
    """Its default action would end the process."""
    watch = LoopWatch(0.05, alarm)
    watch.start()
    watch.stop()
    signal.raise_signal(signal.SIGALRM)
    assert watch.turns().total == 0
