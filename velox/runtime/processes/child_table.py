"""The table of the supervisor's child processes: who is told when one ends, which are kept running, in which order.

    fork()                          starts a process; `on_end` is called when reap() has it
    keep()                          adds a child that is started whenever it does not run, until stop()
    reap(), start_due(), check()    once for each turn of the supervisor's loop: deaths, starts, what is stuck
    retire()                        ends a child, and keeps it no more
    stop()                          ends all that are kept, in the order in which they were added

Knows: pids, deaths, and the time until the next start. Does not know: what a child does (children.py), or the slots of
workers, which start and end by rules of their own (supervisor.py).
"""

from __future__ import annotations

import abc
import contextlib
import logging
import math
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from velox.runtime.processes.crashes import CrashReports
from velox.runtime.processes.forks import Forks
from velox.runtime.processes.listeners import Listeners
from velox.runtime.processes.process import end, how_it_ended
from velox.runtime.processes.watchdog import Watchdog

__all__ = ["Child", "ChildTable", "Ended"]

_RESTART_S: Final = 0.1


class Ended(NamedTuple):
    """A process that was reaped. status: of waitpid(2). now_s: monotonic. told: where it stood; "": it did not say."""

    pid: int
    status: int
    now_s: float
    told: str

    @property
    def how(self) -> str:
        """How it ended, as a person calls it."""
        return how_it_ended(self.status)


class Child(abc.ABC):
    """A process that is started again whenever it ends, which is an error in the log. name: there.

    is_needed_last: it serves those that drain, so that in the drain, too, its end is expected only if it was asked for.
    pid: 0: none runs. aborted: it was stuck, and told to end.
    """

    def __init__(self, name: str, logger: logging.Logger, *, is_needed_last: bool) -> None:
        self.name: Final = name
        self.is_needed_last: Final = is_needed_last
        self._logger: Final = logger
        self._start_at_s = 0.0
        self.pid = 0
        self.started_s = 0.0
        self.aborted = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} pid={self.pid}>"

    @abc.abstractmethod
    def run(self, listeners: Listeners) -> int:
        """Do the child's work in its process, until SIGTERM. listeners: of clients, which it has to close."""

    @property
    def heartbeat_ns(self) -> int:
        """Monotonic time of its last sign of life; 0: none yet."""
        return 0

    @property
    def stuck_after_s(self) -> float:
        """How long it may be without a sign of life; inf: it gives none."""
        return math.inf

    def is_due(self, now_s: float) -> bool:
        """True if it is to be started."""
        return not self.pid and now_s >= self._start_at_s

    def started(self, pid: int, now_s: float) -> None:
        """Note its process. pid: 0: there could be none, or it was reaped, and the next one may start in a moment."""
        self.pid, self._start_at_s = pid, now_s + _RESTART_S
        self.started_s, self.aborted = now_s, False

    def ended(self, ended: Ended, *, is_expected: bool) -> None:
        """Note that it was reaped; the next one may start."""
        reason = "stuck" if self.aborted else "died"
        Child.started(self, 0, ended.now_s)
        if not is_expected:
            message = "%(process)s died (%(exit)s); the next one starts in %(next_s)g s"
            fields = {"process": self.name, "exit": ended.how, "next_s": _RESTART_S}
            extra = {"reason": reason, "traceback": ended.told}
            self._logger.error(message, fields, extra=extra)

    def stop(self, timeout_s: float) -> None:
        """End it at the end of the gateway: it gets so long to leave."""
        pid, self.pid = self.pid, 0
        if pid:
            end(pid, timeout_s)


class ChildTable:
    """The children of one supervisor.

    is_stopped: says whether a signal has asked the gateway to stop. is_over: whether its last worker has left, too.
    on_other: called with a process that was reaped and that nobody here has started.
    """

    def __init__(
        self,
        forks: Forks,
        crashes: CrashReports,
        watchdog: Watchdog,
        listeners: Listeners,
        *,
        is_stopped: Callable[[], bool],
        is_over: Callable[[], bool],
        on_other: Callable[[Ended], None] = lambda _ended: None,
    ) -> None:
        self._forks: Final = forks
        self._crashes: Final = crashes
        self._watchdog: Final = watchdog
        self._listeners: Final = listeners
        self._is_stopped: Final = is_stopped
        self._is_over: Final = is_over
        self._on_other: Final = on_other
        self._kept: Final[list[Child]] = []
        self._retired: Final[list[Child]] = []  # told to end, and not ended yet
        self._on_end: Final[dict[int, Callable[[Ended], None]]] = {}  # by pid

    def __repr__(self) -> str:
        return f"<ChildTable {self._kept!r}, {len(self._on_end)} processes>"

    def fork(self, name: str, work: Callable[[], int], on_end: Callable[[Ended], None] | None = None) -> int:
        """Start a process; return its pid, 0 if there can be none now. name: for the log."""
        pid = self._forks.start(name, work)
        if pid and on_end is not None:
            self._on_end[pid] = on_end
        return pid

    def forget(self, pid: int) -> None:
        """Forget a process that somebody else has waited for."""
        self._on_end.pop(pid, None)
        self._crashes.take(pid)

    def keep(self, child: Child, now_s: float) -> None:
        """Start a child, and keep it running."""
        self._kept.append(child)
        self._start(child, now_s)

    def retire(self, child: Child) -> None:
        """Have a child end, and keep it no more: another gateway has one in its place."""
        if child not in self._kept:
            return
        self._kept.remove(child)
        if child.pid:
            self._retired.append(child)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)

    @property
    def retired(self) -> Sequence[Child]:
        """Those that were told to end, and have not ended yet."""
        return self._retired

    def start_due(self, now_s: float) -> None:
        """Start what does not run, and may be started."""
        for child in self._kept:
            if child.is_due(now_s):
                self._start(child, now_s)

    def _start(self, child: Child, now_s: float) -> None:
        work, on_end = partial(child.run, self._listeners), partial(self._ended, child)
        child.started(self.fork(child.name, work, on_end), now_s)

    def check(self, now_s: float) -> None:
        """Abort what shows no sign of life."""
        for child in (*self._kept, *self._retired):
            if child.pid and child.stuck_after_s < math.inf:
                self._watchdog.check(child, child.name, child.stuck_after_s, now_s)

    def reap(self, now_s: float) -> None:
        """Take all processes that have ended, and tell those who started them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            told = self._crashes.take(pid)
            self._on_end.pop(pid, self._on_other)(Ended(pid, status, now_s, told))

    def _ended(self, child: Child, ended: Ended) -> None:
        # SIGTERM to the whole group reaches each process by itself. Those that are needed till the end come back.
        is_asked = not ended.status or not child.is_needed_last
        if child in self._retired:
            self._retired.remove(child)
            child.ended(ended, is_expected=True)
            return
        child.ended(ended, is_expected=self._is_stopped() and (is_asked or self._is_over()))

    def stop(self, timeout_s: float) -> None:
        """End all that are kept, one after the other. timeout_s: that each of them gets to leave."""
        for child in (*self._retired, *self._kept):
            child.stop(timeout_s)
