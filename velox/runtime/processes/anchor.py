"""The process that a gateway was started as, once another version serves: whoever started it knows no other pid.

A shell, a container (as process 1, or below tini), supervisord or a pid file stays with the process that it knows. So
this one stays, as the parent of whatever serves: it passes signals on, and ends with it, with its exit code. systemd is
told the new main process instead, and needs none of this.

A page of memory, which all versions share, has the pid of the supervisor that serves, and how often a signal asked the
gateway to stop. Not by another signal: Ctrl-C reaches the whole group, and two of them would mean to stop at once.

Knows: pids. Does not know: what a version does.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from velox.shm.segment import mapped, shared_descriptor

__all__ = ["Anchor", "adopt_orphans", "end_with_parent"]

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_NAME: Final = "velox-anchor"
_PID, _STOPS = 0, 1
_LOOK_S: Final = 0.1


def adopt_orphans() -> None:
    """Become the parent of what the children of this process leave behind (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Get SIGTERM when the parent dies, however it does: whoever killed it means the gateway (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Anchor:
    """The page. descriptor: as it was handed over; -1: a new one, of the first process."""

    def __init__(self, descriptor: int = -1) -> None:
        self.is_first: Final = descriptor < 0
        self.descriptor: Final = shared_descriptor(_NAME, mmap.PAGESIZE) if self.is_first else descriptor
        self._cells: Final = memoryview(mapped(self.descriptor, _NAME, mmap.PAGESIZE)).cast("Q")

    def __repr__(self) -> str:
        return f"<Anchor of {self.pid}>"

    @property
    def pid(self) -> int:
        """The supervisor that serves; 0: the first process itself."""
        return self._cells[_PID]

    @pid.setter
    def pid(self, pid: int) -> None:
        self._cells[_PID] = pid

    @property
    def n_stops(self) -> int:
        """How often a signal asked the first process to stop, since another one serves."""
        return self._cells[_STOPS]

    @n_stops.setter
    def n_stops(self, n: int) -> None:
        self._cells[_STOPS] = n

    def stay(self, n_stops: Callable[[], int]) -> int:
        """Wait until the supervisor that serves has ended; return its exit code. For the first process, at its end.

        n_stops: how often signals have asked this one to stop.
        """
        while True:
            self.n_stops = n_stops()
            code = self.reaped()
            if code is not None:
                return code
            time.sleep(_LOOK_S)  # signals end it early

    def reaped(self) -> int | None:
        """Reap what has ended; return the exit code if the one that serves is among it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if not pid:
                return None
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 1

    def pass_on(self, number: int) -> None:
        """Send a signal that this process got to the one that serves."""
        try:
            os.kill(self.pid, signal.Signals(number))
        except ProcessLookupError:
            pass  # it ends, and so will this one
