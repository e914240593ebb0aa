"""What the machine or the container grants: cores and memory, and the defaults that follow from them.

Knows: the affinity mask and the limits of cgroups, versions 1 and 2. Does not know: what is done with the numbers.

A sidecar with `cpu: 2` on a 64-core node sees 64 cores in its mask: 64 workers there would share two cores' time, and
each be stopped for most of every 100 ms period. At the limit of memory the kernel kills without a word, and with the
worker dies the whole container; a worker that stops before it refuses new requests for a second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["available_cores", "container_memory", "hard_default", "most_watched_workers", "soft_default"]

_CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")
# cgroup v1; -1 is no quota.
_CPU_V1: Final = Path("/sys/fs/cgroup/cpu")
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
# cgroup v1 says "none" with a number near 2^63.
_UNLIMITED: Final = 1 << 60
# In per cent of a worker's share: pages that the kernel counts and the worker does not see (sockets) need the rest.
_SOFT: Final = 75
_HARD: Final = 90
# A worker needs about 50 MiB for itself: with less than this it would refuse all its life.
_LEAST_SHARE: Final = 128 * 2**20


def available_cores(cpu_max: Path = _CPU_MAX, cpu_v1: Path = _CPU_V1) -> int:
    """Return the cores in the affinity mask, or fewer where a quota allows fewer (rounded up). At least 1."""
    cores = len(os.sched_getaffinity(0))
    allowed = _quota(cpu_max) or _quota(cpu_v1 / "cpu.cfs_quota_us", cpu_v1 / "cpu.cfs_period_us")
    return max(1, min(cores, allowed)) if allowed else cores


def _quota(*paths: Path) -> int:
    """Return the cores that the quota and the period in these files allow, rounded up; 0: no quota is known."""
    try:
        quota, period = " ".join(path.read_text("ascii") for path in paths).split()
        # "max 100000" is no quota: int() refuses it, like anything else these files never hold.
        return max(0, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return 0


def container_memory(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Return the bytes that all processes in this container may use together; 0: no limit is known."""
    for path in limits:
        try:
            n_bytes = int(path.read_text("ascii"))
        except (OSError, ValueError):  # "max" is no number
            continue
        return n_bytes if n_bytes < _UNLIMITED else 0
    return 0


def soft_default(container_bytes: int, n_workers: int) -> str:
    """Return the default of VELOX_MEMORY_SOFT, as text: three quarters of the worker's share, or off."""
    return _part(container_bytes // n_workers, _SOFT)


def hard_default(container_bytes: int, n_workers: int) -> str:
    """Return the default of VELOX_MEMORY_HARD, as text: nine tenths of the worker's share, or off."""
    return _part(container_bytes // n_workers, _HARD)


def most_watched_workers(container_bytes: int) -> int:
    """Return how many workers a container has memory for, each with the two limits by default."""
    return container_bytes // _LEAST_SHARE


def _part(share_bytes: int, percent: int) -> str:
    return "off" if share_bytes < _LEAST_SHARE else str((share_bytes * percent // 100) >> 20 << 20)
