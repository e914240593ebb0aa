"""A gateway whose processes say on a signal which tasks they have, and on another give back what is free.

    VeloxProcess(env, launcher=telling(folder))
    tasks(pid, folder)          how many, by the coroutine's name
    trim(pid)                   the memory that its allocator keeps for later goes back: what is left is in use

Knows: a signal, asyncio's tasks. Does not know: what a task is for.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.e2e.watching import until

__all__ = ["tasks", "telling", "trim"]

# Two that neither Velox nor Python has a use for.
_TELL: Final = signal.SIGRTMIN + 8
_TRIM: Final = signal.SIGRTMIN + 9


def telling(folder: str) -> tuple[str, ...]:
    """Return what the command line of such a gateway begins with. folder: of its answers."""
    return (sys.executable, "-m", "tests.soak.launcher", folder)


def tasks(pid: int, folder: str) -> Mapping[str, int]:
    """Ask one of its processes."""
    path = Path(folder, str(pid))
    path.unlink(missing_ok=True)
    os.kill(pid, _TELL)
    until(path.exists, f"process {pid} tells its tasks")
    found: dict[str, int] = json.loads(path.read_text())
    return found


def trim(pid: int) -> None:
    """Have a process do that, as soon as it runs; it may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _TRIM)


def _tell(folder: str) -> None:
    names = collections.Counter(getattr(each.get_coro(), "__qualname__", "?") for each in asyncio.all_tasks())
    path = Path(folder, str(os.getpid()))
    new = path.with_suffix(".new")
    new.write_text(json.dumps(names))
    new.rename(path)


def main() -> int:
    """Be `velox WORDS`."""
    folder, *command = sys.argv[1:]
    libc = ctypes.CDLL(None)
    signal.signal(_TELL, lambda *_: _tell(folder))
    signal.signal(_TRIM, lambda *_: libc.malloc_trim(0))
    sys.argv[1:] = command[command.index("velox") + 1 :]
    from velox.cli import main as velox

    return velox()


if __name__ == "__main__":
    sys.exit(main())
