"""What the kernel lets a process have, and what it has: open files and memory.

Knows: rlimits, /proc, the allocator's trim. Does not know: what follows from them (policy/).
"""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Final

__all__ = ["ResidentMemory", "open_files_limit", "raise_open_files"]

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
