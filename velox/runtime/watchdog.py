"""When a child process counts as stuck: it shows no sign of life for too long.

Knows: heartbeats, and that a supervisor which stood still itself can't tell. Does not know: what a process does, or who
starts the next one.
"""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["ADMIN_STUCK_AFTER_S", "KEEPER_STUCK_AFTER_S", "LEDGER_STUCK_AFTER_S", "Watchdog", "Watched"]

# Its pages take milliseconds, a profile's picture up to a second or two; and probes wait for it.
ADMIN_STUCK_AFTER_S: Final = 5.0
# It has no loop: a look-up of Redis' name may take long, and requests go on without it meanwhile.
KEEPER_STUCK_AFTER_S: Final = 30.0
# Between two heartbeats it keeps a batch of one ring, which may have calls of several days, or drops what is old: that
# is several statements and commits. One of PostgreSQL ends after 15 s.
LEDGER_STUCK_AFTER_S: Final = 60.0
# What an aborted process gets to say where it stood.
_ABORT_GRACE_S: Final = 1.0
# The supervisor looks four times a second. After a longer pause all processes may have stood still, as when a container
# is paused or a virtual machine is moved: each gets all its time again.
_PAUSE_S: Final = 2.0


class Watched(Protocol):
    """A process. started_s: for one without a heartbeat yet. aborted: it was told to end."""

    pid: int
    started_s: float
    aborted: bool

    @property
    def heartbeat_ns(self) -> int:
        """Monotonic time of the last one; 0: none yet."""


class Watchdog:
    """Ends processes that are stuck. kill: os.kill(), or a test's."""

    def __init__(self, logger: logging.Logger, kill: Callable[[int, int], None] = os.kill) -> None:
        self._logger: Final = logger
        self._kill: Final = kill
        self._looked_s = -math.inf
        self._since_s = -math.inf  # when the supervisor had last stood still

    def __repr__(self) -> str:
        return f"<Watchdog since={self._since_s:.1f}>"

    def look(self, now_s: float) -> None:
        """Begin a round."""
        if now_s - self._looked_s > _PAUSE_S:
            self._since_s = now_s
        self._looked_s = now_s

    def check(self, process: Watched, name: str, stuck_after_s: float, now_s: float) -> None:
        """Abort a process that has not moved for so long, and kill it when that does not help."""
        stuck_s = now_s - max(process.heartbeat_ns / 1e9 or process.started_s, self._since_s)
        if stuck_s > stuck_after_s and not process.aborted:
            process.aborted = True
            self._logger.error("%s has not moved for %g s: aborted", name, stuck_after_s)
            # SIGABRT: faulthandler says where it stood. SIGCONT: a stopped process takes no other signal.
            self._kill(process.pid, signal.SIGABRT)
            self._kill(process.pid, signal.SIGCONT)
        elif stuck_s > stuck_after_s + _ABORT_GRACE_S:
            self._kill(process.pid, signal.SIGKILL)
