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
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

from tests.e2e import launching

__all__ = ["tasks", "telling", "trim"]

# Two that neither Velox nor Python has a use for.
_TELL: Final = signal.SIGRTMIN + 8
_TRIM: Final = signal.SIGRTMIN + 9


def telling(folder: str) -> tuple[str, ...]:
    """Return what the command line of such a gateway begins with. folder: of its answers."""
    return launching.command("tests.soak.launcher", folder)


def tasks(pid: int, folder: str) -> Mapping[str, int]:
    """Ask one of its processes."""
    found: dict[str, int] = launching.ask(pid, _TELL, folder)
    return found


def trim(pid: int) -> None:
    """Have a process do that, as soon as it runs; it may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _TRIM)


def _tell(folder: str) -> None:
    names = collections.Counter(getattr(each.get_coro(), "__qualname__", "?") for each in asyncio.all_tasks())
    launching.answer(folder, names)


def _prepare(folder: str) -> None:
    libc = ctypes.CDLL(None)
    signal.signal(_TELL, lambda *_: _tell(folder))
    signal.signal(_TRIM, lambda *_: libc.malloc_trim(0))


if __name__ == "__main__":
    sys.exit(launching.main(_prepare))
