"""What one worker can hold, from settings and the kernel's limits: for the worker, the supervisor and `velox check`.

Knows: rlimits, /proc, the allocator's trim, and a worker's share of a limit. Does not know: how descriptors are
planned (policy/).
"""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Final

from velox.policy.descriptors import DescriptorPlan, plan_descriptors
from velox.runtime.memory_bound import MemoryBound, memory_bound
from velox.settings import Settings

__all__ = ["ResidentMemory", "descriptors_of", "memory_of", "open_files_limit", "raise_open_files", "share"]


def share(total: int, n_workers: int, slot: int) -> int:
    """Return the part of `total` that worker `slot` gets; the parts add up to it, and differ by at most one."""
    return total // n_workers + (1 if slot < total % n_workers else 0)


_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Where there is no limit: more than any worker opens.
_UNLIMITED: Final = 1 << 30


def raise_open_files() -> None:
    """Raise the soft limit on open files to the hard one; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass  # a sandbox may forbid it: the soft limit is what counts then


def open_files_limit() -> int:
    """Return how many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


class ResidentMemory:
    """This process's resident memory, read from one file that stays open."""

    def __init__(self) -> None:
        self._statm: Final = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._libc: Final = ctypes.CDLL(None)

    def read(self) -> int:
        """Return bytes, with the pages that are shared with the supervisor. Takes about 2 us."""
        # proc(5): size and resident set, in pages.
        return int(os.pread(self._statm, 64, 0).split(b" ", 2)[1]) * _PAGE_BYTES

    def trim(self) -> None:
        """Give what the allocator holds for later back to the kernel; a C library without that does nothing."""
        trim = getattr(self._libc, "malloc_trim", None)
        if trim is not None:
            trim(0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._statm)


def descriptors_of(settings: Settings, slot: int, limit: int) -> DescriptorPlan:
    """Return the connections that worker `slot` may have, with `limit` open files."""
    # HTTP/1.1 needs a connection for each exchange, and each member keeps some warm.
    warm = sum(len(entry.origins) * entry.connections for entry in settings.upstreams)
    upstream = share(settings.max_inflight, settings.workers, slot) + warm
    return plan_descriptors(limit, share(settings.max_connections, settings.workers, slot), upstream)


def memory_of(settings: Settings, limit: int) -> MemoryBound:
    """Return the bound for the worker with the largest shares, the first one."""
    plan = descriptors_of(settings, 0, limit)
    inflight = share(settings.max_inflight, settings.workers, 0)
    queued = share(settings.queue_depth, settings.workers, 0)
    return memory_bound(settings, plan.clients, plan.upstream, inflight, queued)
