"""The table of the supervisor's children: real processes, which end in each way, at each time of a gateway's life."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import time
from collections.abc import Iterator

import pytest

from velox.observe.oplog import operations_logger
from velox.runtime.processes.child_table import Child, ChildTable, Ended
from velox.runtime.processes.crashes import CrashReports
from velox.runtime.processes.forks import Forks
from velox.runtime.processes.listeners import Listeners
from velox.runtime.processes.watchdog import Watchdog

_WAIT_S = 30.0


class Gateway:
    """A table, and the state of the gateway that it serves."""

    def __init__(self) -> None:
        self.log = io.StringIO()
        self.logger = operations_logger(self.log)
        self.is_stopped = False
        self.is_over = False
        self.stopped: list[str] = []
        self.children: list[Waiting] = []
        crashes = CrashReports()
        self.table = ChildTable(
            Forks(crashes.fork, self.logger),
            crashes,
            Watchdog(self.logger),
            Listeners((), 1),
            is_stopped=lambda: self.is_stopped,
            is_over=lambda: self.is_over,
        )

    def child(
        self, name: str = "the child", *, is_needed_last: bool = False, stuck_after_s: float = math.inf
    ) -> Waiting:
        made = Waiting(self, name, is_needed_last=is_needed_last, stuck_after_s=stuck_after_s)
        self.children.append(made)
        return made

    def reap(self, pid: int, now_s: float) -> None:
        """Wait until a process has ended, and have the table take it."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.table.reap(now_s)

    @property
    def lines(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.log.getvalue().splitlines()]


class Waiting(Child):
    """A child that waits for a signal: SIGTERM ends it well."""

    def __init__(self, gateway: Gateway, name: str, *, is_needed_last: bool, stuck_after_s: float) -> None:
        super().__init__(name, gateway.logger, is_needed_last=is_needed_last)
        self._gateway = gateway
        self._stuck_after_s = stuck_after_s
        self._is_waiting = os.pipe()

    def wait(self) -> None:
        """Return when its process waits: a signal before that would find it with nothing set up."""
        assert os.read(self._is_waiting[0], 1) == b"w"

    def close(self) -> None:
        for fd in self._is_waiting:
            os.close(fd)

    def run(self, listeners: Listeners) -> int:
        listeners.close_all()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.write(self._is_waiting[1], b"w")
        signal.sigwait({signal.SIGTERM})
        return 0

    @property
    def stuck_after_s(self) -> float:
        return self._stuck_after_s

    def stop(self, timeout_s: float) -> None:
        self._gateway.stopped.append(self.name)
        super().stop(timeout_s)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway()
    yield made
    made.table.stop(_WAIT_S)
    for child in made.children:
        child.close()


def test_child_that_ends_is_started_again_a_moment_later(gateway: Gateway) -> None:
    child = gateway.child()
    gateway.table.keep(child, 100.0)
    first = child.pid
    os.kill(first, signal.SIGKILL)

    gateway.reap(first, 101.0)

    assert child.pid == 0
    assert gateway.lines == ["the child died (SIGKILL); the next one starts in 0.1 s"]
    gateway.table.start_due(101.05)
    assert child.pid == 0
    gateway.table.start_due(101.15)
    assert child.pid not in (0, first)


@pytest.mark.parametrize(
    ("is_needed_last", "is_over", "number", "is_error"),
    [
        (False, False, signal.SIGKILL, False),
        (True, False, signal.SIGKILL, True),
        (True, False, signal.SIGTERM, False),
        (True, True, signal.SIGKILL, False),
    ],
)
def test_death_in_a_drain_is_an_error_of_those_that_are_needed_to_its_end(
    gateway: Gateway, number: signal.Signals, *, is_needed_last: bool, is_over: bool, is_error: bool
) -> None:
    """SIGTERM may reach the whole group: who leaves well was asked to. It comes back all the same."""
    child = gateway.child(is_needed_last=is_needed_last)
    gateway.table.keep(child, 100.0)
    child.wait()
    gateway.is_stopped, gateway.is_over = True, is_over
    os.kill(child.pid, number)

    gateway.reap(child.pid, 101.0)

    assert bool(gateway.lines) is is_error
    gateway.table.start_due(102.0)
    assert child.pid


def test_who_starts_a_process_is_told_of_its_end_once(gateway: Gateway) -> None:
    ends: list[Ended] = []
    pid = gateway.table.fork("a reader", lambda: 3, ends.append)

    gateway.reap(pid, 7.0)
    gateway.table.reap(8.0)

    assert [(each.pid, each.how, each.now_s) for each in ends] == [(pid, "exit code 3", 7.0)]


def test_process_that_was_waited_for_is_forgotten(gateway: Gateway) -> None:
    """Its number may be that of another process, later."""
    ends: list[Ended] = []
    pid = gateway.table.fork("a reader", lambda: 0, ends.append)
    os.waitpid(pid, 0)

    gateway.table.forget(pid)
    gateway.table.reap(7.0)

    assert not ends and "0 processes" in repr(gateway.table)


def test_child_without_a_sign_of_life_is_aborted_and_those_that_give_none_are_not(gateway: Gateway) -> None:
    watched, other = gateway.child("the watched", stuck_after_s=0.001), gateway.child("the other")
    now_s = time.monotonic()
    gateway.table.keep(watched, now_s - 10)
    gateway.table.keep(other, now_s - 10)

    until_s = now_s + _WAIT_S
    while not watched.aborted:
        gateway.table.check(time.monotonic())
        assert time.monotonic() < until_s
    gateway.reap(watched.pid, time.monotonic())

    assert gateway.lines == [
        "the watched is stuck, no heartbeat for 0.001 s: aborted",
        "the watched died (SIGABRT); the next one starts in 0.1 s",
    ]
    assert other.pid and not other.aborted


def test_children_are_stopped_in_the_order_in_which_they_were_added(gateway: Gateway) -> None:
    children = [gateway.child(name) for name in ("first", "second", "third")]
    for child in children:
        gateway.table.keep(child, 100.0)
    pids = [child.pid for child in children]

    gateway.table.stop(_WAIT_S)

    assert gateway.stopped == ["first", "second", "third"]
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
