"""How many cores this process may keep busy.

Knows: the affinity mask and cgroup v2's quota. Does not know: what is done with the number.
A sidecar with `cpu: 2` on a 64-core node sees 64 cores in its mask: 64 workers there would share two cores'
time, and each be stopped for most of every 100 ms period.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["available_cores"]

_CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")


def available_cores(cpu_max: Path = _CPU_MAX) -> int:
    """Return the cores in the affinity mask, or fewer where a quota allows fewer (rounded up). At least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text("ascii").split()
        # "max 100000" is no quota: int() refuses it, like anything else this file never holds.
        allowed = -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return cores
    return max(1, min(cores, allowed))
