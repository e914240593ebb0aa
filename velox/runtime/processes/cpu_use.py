"""What the kernel says of a process's main thread: how long it ran, and how long it waited for a processor.

Knows: /proc/PID/schedstat and /proc/PID/stat (proc(5), Documentation/scheduler/sched-stats). Does not know: what
follows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["CpuUse", "cpu_use", "starved_s"]

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


def starved_s(before: CpuUse | None, after: CpuUse | None, seconds: float) -> float:
    """Return how many of these seconds a process waited for a processor, and could do nothing else."""
    if before is None or after is None:
        return 0.0
    waited_ns = after.waited_ns - before.waited_ns
    if not waited_ns and after.ran_ns == before.ran_ns and before.is_runnable and after.is_runnable:
        return seconds  # it waits still: the kernel has not counted it
    return min(seconds, max(0.0, waited_ns / _NS_PER_S))
