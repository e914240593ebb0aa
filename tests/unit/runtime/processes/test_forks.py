"""What becomes of a supervisor that can start no process: it says so once, and goes on."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable

import pytest

from velox.observe.oplog import operations_logger
from velox.runtime.processes.forks import Forks


class Machine:
    """What a fork meets. problem: its error number; 0: it goes well."""

    def __init__(self, problem: int = 0) -> None:
        self.problem = problem
        self._log = io.StringIO()
        self.forks = Forks(self._fork, operations_logger(self._log))

    def _fork(self, work: Callable[[], int]) -> int:
        if self.problem:
            raise OSError(self.problem, os.strerror(self.problem))
        return work()

    def start(self) -> int:
        return self.forks.start("worker 0", lambda: 7)

    @property
    def lines(self) -> list[str]:
        return [json.loads(line)["message"] for line in self._log.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        (errno.EAGAIN, "; raise the limit of processes (pids.max of the container, ulimit -u)"),
        (errno.EMFILE, "; raise the limit of open files (ulimit -n)"),
        (errno.ENFILE, "; raise the limit of open files (ulimit -n)"),
        (errno.ENOMEM, "; there is too little memory for another process"),
        (errno.EPERM, ""),
    ],
)
def test_process_that_can_not_be_started_is_said_once(problem: int, hint: str) -> None:
    """With what to do; and that it is over, so that nobody has to look."""
    machine = Machine(problem)
    assert [machine.start() for _ in range(3)] == [0, 0, 0]
    assert machine.lines == [f"worker 0 can't be started, and is tried again: {os.strerror(problem)}{hint}"]
    machine.problem = 0
    assert [machine.start() for _ in range(2)] == [7, 7]
    assert machine.lines[1:] == ["processes can be started again"]


def test_process_that_can_not_be_started_for_another_cause_is_said_again() -> None:
    machine = Machine(errno.EAGAIN)
    machine.start()
    machine.problem = errno.EMFILE
    assert machine.start() == 0
    assert len(machine.lines) == 2 and "ulimit -n" in machine.lines[1]


def test_process_that_can_be_started_says_nothing() -> None:
    machine = Machine()
    assert (machine.start(), machine.lines) == (7, [])
