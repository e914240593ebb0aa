"""How the supervisor calls the end of a child (runtime/processes/process.py)."""

from __future__ import annotations

import os
import signal

import pytest

from velox.runtime.processes.process import how_it_ended, spawn


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (int(signal.SIGKILL), "SIGKILL"),
        (int(signal.SIGRTMIN), "SIGRTMIN"),
        (signal.SIGRTMIN + 6, f"signal {signal.SIGRTMIN + 6}"),
    ],
)
def test_child_that_any_signal_ends_is_told(number: int, told: str) -> None:
    """Signals for real time have no names but two; the supervisor ended by the others."""

    def work() -> int:
        os.kill(os.getpid(), number)
        return 0

    _, status = os.waitpid(spawn(work), 0)
    assert how_it_ended(status) == told


def test_child_that_leaves_is_told_with_its_code() -> None:
    _, status = os.waitpid(spawn(lambda: 3), 0)
    assert how_it_ended(status) == "exit code 3"
