"""A gateway that says on a signal what the longest turn of its worker's loop has been since it was last asked.

    VeloxProcess(env, launcher=timed(folder))
    longest(pid, folder)        its milliseconds of the loop's own thread, and where it was seen

What another thread does meanwhile is not counted, nor what other programs do.

Knows: a signal, turns, stacks. Does not know: what was asked of the gateway.
"""

from __future__ import annotations

import asyncio
import collections
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import uvloop

from tests.e2e import launching

__all__ = ["Longest", "longest", "timed"]

_SIGNAL: Final = signal.SIGRTMIN + 6  # one that neither Velox nor Python has a use for
_LONG_S: Final = 0.005
_SAMPLE_S: Final = 0.001
_FRAMES: Final = 6


class Longest(NamedTuple):
    """seen: the innermost functions of most samples in turns that were long."""

    ms: float
    seen: str


def timed(folder: str) -> tuple[str, ...]:
    """Return what the command line of such a gateway begins with (VeloxProcess.launcher). folder: of its answers."""
    return launching.command("tests.canary.turns", folder)


def longest(pid: int, folder: str) -> Longest:
    """Ask its worker, which forgets it."""
    return Longest(*launching.ask(pid, _SIGNAL, folder))


class _Beat:
    """Is called in each turn of a loop, which never waits so; takes the time from call to call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self.thread: Final = threading.get_ident()
        self.began_s = 0.0  # a monotonic time
        self._began_cpu_s = 0.0
        self.longest_s = 0.0
        self.seen: collections.Counter[str] = collections.Counter()

    def turn(self) -> None:
        now_s = time.thread_time()
        if self.began_s:
            self.longest_s = max(self.longest_s, now_s - self._began_cpu_s)
        self.began_s, self._began_cpu_s = time.monotonic(), now_s
        self._loop.call_soon(self.turn)

    def watch(self) -> None:
        """Look where the loop is, in turns that are long by now."""
        while True:
            time.sleep(_SAMPLE_S)
            began_s = self.began_s
            if began_s and time.monotonic() - began_s > _LONG_S:
                frame = sys._current_frames().get(self.thread)
                names = []
                while frame is not None and len(names) < _FRAMES:
                    names.append(frame.f_code.co_qualname)
                    frame = frame.f_back
                self.seen[" < ".join(names)] += 1


def _loop(folder: str, make: Callable[[], asyncio.AbstractEventLoop]) -> asyncio.AbstractEventLoop:
    loop = make()
    beat = _Beat(loop)

    def tell() -> None:
        (seen, _), *_ = [*beat.seen.most_common(1), ("", 0)]
        launching.answer(folder, [beat.longest_s * 1000, seen])
        beat.longest_s = 0.0
        beat.seen.clear()

    loop.add_signal_handler(_SIGNAL, tell)
    loop.call_soon(beat.turn)
    threading.Thread(target=beat.watch, daemon=True).start()
    return loop


def _prepare(folder: str) -> None:
    """Have workers run on such a loop."""
    make = uvloop.new_event_loop
    uvloop.new_event_loop = lambda: _loop(folder, make)  # type: ignore[assignment,return-value]


if __name__ == "__main__":
    sys.exit(launching.main(_prepare))
