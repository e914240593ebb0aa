"""When a process counts as stuck, and what is done about it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from velox.observe.oplog import operations_logger
from velox.runtime.processes.watchdog import CpuUse, Watchdog, cpu_use


@dataclass
class Process:
    pid: int = 7
    started_s: float = 100.0
    aborted: bool = False
    heartbeat_ns: int = 0


class Bench:
    """A watchdog that looks four times a second, as the supervisor does."""

    def __init__(self) -> None:
        self.use: CpuUse | None = None  # as the kernel has it
        self.killed: list[tuple[float, int]] = []
        self.now_s = 100.0
        self.log = io.StringIO()
        self.process = Process()
        self.dog = Watchdog(operations_logger(self.log), self._kill, lambda pid: self.use)

    def _kill(self, pid: int, number: int) -> None:
        self.killed.append((self.now_s, number))

    def pass_time(
        self, seconds: float, *, beats: bool = False, runs: float = 0.0, waits: float = 0.0, is_runnable: bool = True
    ) -> None:
        """Let time pass. runs, waits: which parts of it the process has a processor, and waits for one."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.25
            if self.use is not None:
                ran_ns, waited_ns = self.use.ran_ns + round(runs * 25e7), self.use.waited_ns + round(waits * 25e7)
                self.use = CpuUse(ran_ns, waited_ns, is_runnable)
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
    assert "it is stuck, no heartbeat for 5 s: aborted" in bench.log.getvalue()
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


def test_process_that_gets_no_processor_is_not_stuck() -> None:
    """On a busy machine: what it waited for one does not count. Then it has its usual time."""
    for runs, waits in ((0.1, 0.9), (0.0, 1.0), (0.0, 0.0)):  # the last: the kernel counts it when it gets one
        bench = Bench()
        bench.use = CpuUse(0, 0, is_runnable=True)
        bench.pass_time(1, beats=True)
        bench.pass_time(20, runs=runs, waits=waits)
        assert bench.killed == [], (runs, waits)
        bench.pass_time(5, runs=1.0)
        assert bench.killed, "it runs, and gets nowhere"


def test_process_that_has_a_processor_or_sleeps_is_stuck() -> None:
    """A loop without end, a lock, a stop: its own time, or nobody's."""
    for runs, waits, is_runnable in ((1.0, 0.0, True), (0.0, 0.0, False)):
        bench = Bench()
        bench.use = CpuUse(0, 0, is_runnable=is_runnable)
        bench.pass_time(1, beats=True)
        bench.pass_time(5, runs=runs, waits=waits, is_runnable=is_runnable)
        assert bench.killed == []
        bench.pass_time(0.5, runs=runs, waits=waits, is_runnable=is_runnable)
        assert bench.killed[0] == (106.25, signal.SIGABRT)


def test_starved_time_is_that_of_one_silence() -> None:
    """A heartbeat ends it."""
    bench = Bench()
    bench.use = CpuUse(0, 0, is_runnable=True)
    bench.pass_time(1, beats=True)
    bench.pass_time(20, waits=1.0)
    bench.pass_time(0.25, beats=True)
    bench.pass_time(5.5, runs=1.0)
    assert bench.killed[0][1] == signal.SIGABRT


def test_kernel_tells_of_a_process() -> None:
    """Of one that runs, of one that sleeps, and of none."""
    own = cpu_use(os.getpid())
    assert own is not None and own.ran_ns > 0 and own.is_runnable
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        os.kill(child.pid, signal.SIGSTOP)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        stopped = cpu_use(child.pid)
        assert os.WIFSTOPPED(status) and stopped is not None and not stopped.is_runnable
        os.kill(child.pid, signal.SIGCONT)
        child.kill()
    assert cpu_use(child.pid) is None
