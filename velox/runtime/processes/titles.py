"""What `ps` and `top` show of a child process: `velox: worker 0`, in place of the supervisor's command line.

Knows: where a process has its command line, and its name in the kernel. Does not know: what a child is for.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from velox.runtime.processes.forks import Forks

__all__ = ["TitledForks", "set_title"]

_PR_SET_NAME: Final = 15
_MOST_NAME: Final = 15  # bytes: the kernel keeps no more
# Of /proc/self/stat, counted behind the process's name: where the command line begins and ends (proc(5)).
_ARGUMENTS: Final = slice(45, 47)


def set_title(name: str) -> None:
    """Have this process called so, as far as there is room. Where the system does not allow it, nothing changes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"velox {name}".encode()[:_MOST_NAME], 0, 0, 0)
    with contextlib.suppress(OSError, ValueError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        begin, end = map(int, fields[_ARGUMENTS])
        title = f"velox: {name}".encode()[: max(0, end - begin - 1)]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123 - no other way is unbuffered
            memory.seek(begin)
            memory.write(title.ljust(end - begin, b"\0"))


class TitledForks(Forks):
    """Forks whose children are called by their names in the log."""

    def start(self, name: str, work: Callable[[], int]) -> int:
        """See Forks."""
        return super().start(name, partial(_titled, name.removeprefix("the "), work))


def _titled(name: str, work: Callable[[], int]) -> int:
    set_title(name)
    return work()
