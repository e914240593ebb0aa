"""When a process counts as stuck, and what is done about it."""

from __future__ import annotations

import io
import signal
from dataclasses import dataclass

from velox.observe.oplog import operations_logger
from velox.runtime.watchdog import Watchdog


@dataclass
class Process:
    pid: int = 7
    started_s: float = 100.0
    aborted: bool = False
    heartbeat_ns: int = 0


class Bench:
    """A watchdog that looks four times a second, as the supervisor does."""

    def __init__(self) -> None:
        self.killed: list[tuple[float, int]] = []
        self.now_s = 100.0
        self.log = io.StringIO()
        self.process = Process()
        self.dog = Watchdog(operations_logger(self.log), lambda pid, number: self.killed.append((self.now_s, number)))

    def pass_time(self, seconds: float, *, beats: bool = False) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.25
            if beats:
                self.process.heartbeat_ns = round(self.now_s * 1e9)
            self.dog.look(self.now_s)
            self.dog.check(self.process, "it", 5.0, self.now_s)


def test_silent_process_is_aborted_and_then_killed() -> None:
    """SIGCONT, too: a stopped one takes no other signal. If that does not help, a second later SIGKILL."""
    bench = Bench()
    bench.pass_time(20, beats=True)
    assert bench.killed == []
    bench.pass_time(5)
    assert bench.killed == []
    bench.pass_time(1)
    assert bench.killed == [(125.25, signal.SIGABRT), (125.25, signal.SIGCONT)]
    assert "it has not moved for 5 s: aborted" in bench.log.getvalue()
    bench.pass_time(0.5)
    assert bench.killed[2:] == [(126.25, signal.SIGKILL), (126.5, signal.SIGKILL)]


def test_process_that_never_beats_has_its_time_from_its_start() -> None:
    """It may hang before its loop runs."""
    bench = Bench()
    bench.pass_time(4.9)
    assert bench.killed == []
    bench.pass_time(1)
    assert bench.killed[0] == (105.5, signal.SIGABRT), "from its start, or the first look"


def test_pause_of_everything_is_nobodys_fault() -> None:
    """A container that is paused, a virtual machine that is moved: the supervisor stood still as well."""
    bench = Bench()
    bench.pass_time(2, beats=True)
    bench.now_s += 60.0
    bench.pass_time(4.5)
    assert bench.killed == []
    bench.pass_time(2)
    assert bench.killed[0][1] == signal.SIGABRT, "it has the usual time from then on"
