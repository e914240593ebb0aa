"""A gateway that collects no garbage, and says on a signal what a collection would free.

    with tempfile.TemporaryDirectory() as folder, VeloxProcess(env, launcher=uncollected(folder)) as velox:
        ...
        unreachable(velox.worker_pids()[0], folder)     {"Attempt": 3, "TranslatedReply": 3, ...}

What only the collector frees is in a reference cycle. A worker must make none: its collector practically never runs, as
what it allocates and what it frees are in balance.

Knows: the collector, a signal. Does not know: what was asked of the gateway.
"""

from __future__ import annotations

import collections
import gc
import signal
import sys
from collections.abc import Mapping
from typing import Final

from tests.e2e import launching

__all__ = ["uncollected", "unreachable"]

_SIGNAL: Final = signal.SIGRTMIN + 7  # one that neither Velox nor Python has a use for
_SHOWN: Final = 40


def uncollected(folder: str) -> tuple[str, ...]:
    """Return what the command line of such a gateway begins with (VeloxProcess.launcher). folder: of its answers."""
    return launching.command("tests.e2e.collecting", folder)


def unreachable(pid: int, folder: str) -> Mapping[str, int]:
    """Have one of its processes collect; return how many objects of which types only that has freed."""
    found: dict[str, int] = launching.ask(pid, _SIGNAL, folder)
    return found


def _collect(folder: str) -> None:
    gc.collect()
    # With what the worker's own collections have found meanwhile.
    types = collections.Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    launching.answer(folder, dict(types.most_common(_SHOWN)))


def _prepare(folder: str) -> None:
    """Have no process collect by itself."""
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    signal.signal(_SIGNAL, lambda *_: _collect(folder))


if __name__ == "__main__":
    sys.exit(launching.main(_prepare))
