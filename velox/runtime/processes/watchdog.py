"""When a child process counts as stuck: it shows no sign of life for too long.

A process that gets no processor is not stuck: on a busy machine a step of a few milliseconds may take seconds. So the
time in which it was runnable and waited for one does not count; that in which it ran, slept or was stopped does.

Knows: heartbeats, what the kernel says of a process's main thread (/proc/PID/schedstat and /proc/PID/stat: proc(5),
Documentation/scheduler/sched-stats), and that a supervisor which stood still itself can't tell. Does not know: what a
process does, or who starts the next one.
"""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

__all__ = [
    "ADMIN_STUCK_AFTER_S",
    "LEASE_MANAGER_STUCK_AFTER_S",
    "LEDGER_STUCK_AFTER_S",
    "CpuUse",
    "Watchdog",
    "Watched",
    "cpu_use",
]

# Its pages take milliseconds, a profile's picture up to a second or two; and probes wait for it.
ADMIN_STUCK_AFTER_S: Final = 5.0
# It has no loop: a look-up of Redis' name may take long, and requests go on without it meanwhile.
LEASE_MANAGER_STUCK_AFTER_S: Final = 30.0
# Between two heartbeats it keeps a batch of one ring, which may have calls of several days, or drops what is old: that
# is several statements and commits. One of PostgreSQL ends after 15 s.
LEDGER_STUCK_AFTER_S: Final = 60.0
# What an aborted process gets to say where it stood.
_ABORT_GRACE_S: Final = 1.0
# The supervisor looks four times a second. After a longer pause all processes may have stood still, as when a container
# is paused or a virtual machine is moved: each gets all its time again.
_PAUSE_S: Final = 2.0
# A silence that is looked into. All that are well beat more often.
_SILENT_S: Final = 1.0
_NS_PER_S: Final = 1e9


class CpuUse(NamedTuple):
    """Since its start, in nanoseconds. is_runnable: it runs, or waits for a processor; not if it sleeps or is stopped.

    waited_ns: told when it gets a processor again.
    """

    ran_ns: int
    waited_ns: int
    is_runnable: bool


def cpu_use(pid: int) -> CpuUse | None:
    """Return what is known of a process; None: nothing is. It is gone, or the kernel does not count this."""
    try:
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_bytes().split()
        # The name of a process may hold anything; its state follows the last bracket.
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return CpuUse(int(ran), int(waited), state == b"R")


class Watched(Protocol):
    """A process. started_s: for one without a heartbeat yet. aborted: it was told to end."""

    pid: int
    started_s: float
    aborted: bool

    @property
    def heartbeat_ns(self) -> int:
        """Monotonic time of the last one; 0: none yet."""


@dataclass(slots=True)
class _Silence:
    """Of one process, since its last heartbeat. looked_s: when its use of the processor was read last."""

    looked_s: float
    use: CpuUse | None
    starved_s: float = 0.0


class Watchdog:
    """Ends processes that are stuck. kill: os.kill(), or a test's. use: tells a process's use of the processor."""

    def __init__(
        self,
        logger: logging.Logger,
        kill: Callable[[int, int], None] = os.kill,
        use: Callable[[int], CpuUse | None] = cpu_use,
    ) -> None:
        self._logger: Final = logger
        self._kill: Final = kill
        self._use: Final = use
        self._silences: Final[dict[int, _Silence]] = {}  # by pid
        self._looked_s = -math.inf
        self._since_s = -math.inf  # when the supervisor had last stood still

    def __repr__(self) -> str:
        return f"<Watchdog since={self._since_s:.1f}>"

    def look(self, now_s: float) -> None:
        """Begin a round."""
        if now_s - self._looked_s > _PAUSE_S:
            self._since_s = now_s
        for pid in [pid for pid, silence in self._silences.items() if silence.looked_s < self._looked_s]:
            del self._silences[pid]  # nobody asks for it any more
        self._looked_s = now_s

    def check(self, process: Watched, name: str, stuck_after_s: float, now_s: float) -> None:
        """Abort a process that has not moved for so long, and kill it when that does not help."""
        silent_s = now_s - max(process.heartbeat_ns / 1e9 or process.started_s, self._since_s)
        stuck_s = silent_s - self._starved(process.pid, silent_s, now_s)
        if stuck_s > stuck_after_s and not process.aborted:
            process.aborted = True
            self._logger.error(
                "%(process)s is stuck, no heartbeat for %(seconds)g s: aborted",
                {"process": name, "seconds": stuck_after_s},
            )
            # SIGABRT: faulthandler says where it stood. SIGCONT: a stopped process takes no other signal.
            self._kill(process.pid, signal.SIGABRT)
            self._kill(process.pid, signal.SIGCONT)
        elif stuck_s > stuck_after_s + _ABORT_GRACE_S:
            self._kill(process.pid, signal.SIGKILL)

    def _starved(self, pid: int, silent_s: float, now_s: float) -> float:
        """Return how much of a silence a process has waited for a processor, as far as it was looked into."""
        if silent_s <= _SILENT_S:
            self._silences.pop(pid, None)
            return 0.0
        use = self._use(pid)
        silence = self._silences.get(pid)
        if silence is None:
            silence = self._silences[pid] = _Silence(now_s, use)
        silence.starved_s += _starved_s(silence.use, use, now_s - silence.looked_s)
        silence.looked_s, silence.use = now_s, use
        return silence.starved_s


def _starved_s(before: CpuUse | None, after: CpuUse | None, seconds: float) -> float:
    """Return how many of these seconds a process waited for a processor, and could do nothing else."""
    if before is None or after is None:
        return 0.0
    waited_ns = after.waited_ns - before.waited_ns
    if not waited_ns and after.ran_ns == before.ran_ns and before.is_runnable and after.is_runnable:
        return seconds  # it waits still: the kernel has not counted it
    return min(seconds, max(0.0, waited_ns / _NS_PER_S))
