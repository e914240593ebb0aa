"""What the machine, the container or the service grants: cores and memory, and the defaults that follow from them.

Knows: the affinity mask and the limits of cgroups, versions 1 and 2. Does not know: what is done with the numbers.

A sidecar with `cpu: 2` on a 64-core node sees 64 cores in its mask: 64 workers there would share two cores' time, and
each be stopped for most of every 100 ms period. At the limit of memory the kernel kills without a word, and with the
worker dies the whole container; a worker that stops before it refuses new requests for a second.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

__all__ = [
    "available_cores",
    "container_memory",
    "hard_default",
    "has_own_cores",
    "most_watched_workers",
    "soft_default",
]

_CPU_MAX: Final = Path("/sys/fs/cgroup/cpu.max")
# cgroup v1; -1 is no quota.
_CPU_V1: Final = Path("/sys/fs/cgroup/cpu")
# The groups that this process is in. A container sees its own as the root; a service of systemd is some way below it,
# and each group on the way bounds it.
_OWN: Final = Path("/proc/self/cgroup")
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
# cgroup v1 says "none" with a number near 2^63.
_UNLIMITED: Final = 1 << 60
# In per cent of a worker's share: pages that the kernel counts and the worker does not see (sockets) need the rest.
_SOFT: Final = 75
_HARD: Final = 90
# A worker needs about 50 MiB for itself: with less than this it would refuse all its life.
_LEAST_SHARE: Final = 128 * 2**20


def available_cores(cpu_max: Path = _CPU_MAX, cpu_v1: Path = _CPU_V1, own: Path = _OWN) -> int:
    """Return the cores in the affinity mask, or fewer where a quota allows fewer (rounded up). At least 1."""
    cores = len(os.sched_getaffinity(0))
    allowed = [_quota(folder / cpu_max.name) for folder in _folders(cpu_max.parent, "", own)]
    if not any(allowed):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        allowed = [_quota(*(folder / name for name in names)) for folder in _folders(cpu_v1, "cpu", own)]
    return max(1, min([cores, *filter(None, allowed)]))


def _folders(root: Path, controller: str, own: Path) -> Iterator[Path]:
    """Yield the folders of the groups that bound this process, the root first. controller: "": of version 2."""
    yield root
    try:
        lines = [os.fsdecode(line).split(":", 2) for line in own.read_bytes().split(b"\n") if line]
    except OSError:
        return
    folder = root
    for _, controllers, path in lines:
        if controller not in controllers.split(",") or "/.." in path:  # the latter: outside of what can be seen
            continue
        for name in Path(path).parts[1:]:
            folder /= name
            yield folder


def _quota(*paths: Path) -> int:
    """Return the cores that the quota and the period in these files allow, rounded up; 0: no quota is known."""
    try:
        quota, period = " ".join(path.read_text("ascii") for path in paths).split()
        # "max 100000" is no quota: int() refuses it, like anything else these files never hold.
        return max(0, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return 0


def has_own_cores(
    n_workers: int, cores: Collection[int], all_cores: int | None = None, available: int | None = None
) -> bool:
    """Say whether a worker may stay on one core: nobody else is likely to be bound to it, or each core has one.

    cores: the affinity mask. all_cores, available: of the machine, and what a quota leaves; None: ask the system.

    Gateways with fewer workers than there are cores, as sidecars on a node are, would all be bound to the first ones.
    A quota is used up by whoever runs, wherever: a worker that is bound waits for its core while others idle.
    """
    if (available_cores() if available is None else available) < len(cores):
        return False
    return n_workers >= len(cores) or len(cores) < (all_cores or os.cpu_count() or 1)


def container_memory(limits: tuple[Path, ...] = _LIMITS, own: Path = _OWN) -> int:
    """Return the bytes that all processes in this container or service may use together; 0: no limit is known."""
    for path, controller in zip(limits, ("", "memory"), strict=False):
        folders = _folders(path.parent, controller, own)
        found = [n_bytes for folder in folders if 0 < (n_bytes := _bytes(folder / path.name)) < _UNLIMITED]
        if found:
            return min(found)
    return 0


def _bytes(path: Path) -> int:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):  # "max" is no number
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
