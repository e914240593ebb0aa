"""A sampler of the CPU time of this process, by stack of its main thread.

Knows: SIGPROF, ITIMER_PROF and Python's frames. Does not know: who asked, how long, or what a profile looks
like.

ITIMER_PROF counts the process's CPU time, so a process that waits is never interrupted, and nothing at all
runs while the sampler is off. Python runs a signal's handler between two bytecodes of the main thread: a
tick that comes in the middle of a long call into C is handled when that call returns, and further ticks
meanwhile are lost. So a sample is not worth one period but all CPU time since the sample before it, and a
long C call is charged in full, to the line that made it. A tick costs about 10 us, which is 0.1 % at 99 per
second.

Limits: one sampler per process, in the main thread; other threads' CPU time is charged to the main thread's
stack; what uvloop does by itself shows as the function that runs the loop.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, TypeAlias

from velox.profiling.samples import Cost, Frame, Samples, merge, short_file

__all__ = ["MAX_DEPTH", "MAX_STACKS", "Sampler", "source_roots"]

MAX_DEPTH: Final = 128  # frames kept of a stack, from the function that runs outwards
MAX_STACKS: Final = 20_000  # distinct stacks kept; 60 s at 500 Hz are 30,000 ticks at most

_CUT: Final = Frame("(callers cut off)", "", 0, 0)
_OVERFLOW: Final = Frame("(stacks beyond the limit)", "", 0, 0)

# The function that runs first: the order in which a walk finds them.
_RawStack: TypeAlias = tuple[tuple[CodeType, int], ...]


class Sampler:
    """Collects samples between start() and stop(); can be used again after that."""

    def __init__(self, max_stacks: int = MAX_STACKS) -> None:
        self._max_stacks = max_stacks
        self._costs: dict[_RawStack, list[int]] = {}
        self._last_ns = 0
        self._running = False

    @property
    def is_running(self) -> bool:
        """True between start() and stop()."""
        return self._running

    def start(self, hz: int) -> None:
        """Begin to take `hz` samples per second of CPU time.

        The kernel's tick bounds the true rate (250 Hz is usual); the CPU times stay right.
        Raises RuntimeError when it runs already, ValueError outside the main thread.
        """
        if self._running:
            raise RuntimeError("the sampler runs already")
        self._costs = {}
        signal.signal(signal.SIGPROF, self._on_tick)
        # System calls made by C libraries are resumed instead of failing with EINTR.
        signal.siginterrupt(signal.SIGPROF, False)
        self._running = True
        self._last_ns = time.process_time_ns()
        signal.setitimer(signal.ITIMER_PROF, 1 / hz, 1 / hz)

    def stop(self) -> Samples:
        """End sampling and return what was seen. Raises RuntimeError when it does not run."""
        if not self._running:
            raise RuntimeError("the sampler does not run")
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not the default action: that would end the process if a tick is still on its way.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        self._running = False
        costs, self._costs = self._costs, {}
        return _resolve(costs)

    def _on_tick(self, _signum: int, frame: FrameType | None) -> None:
        now_ns = time.process_time_ns()
        spent_ns = now_ns - self._last_ns
        self._last_ns = now_ns
        found: list[tuple[CodeType, int]] = []
        while frame is not None and len(found) < MAX_DEPTH:
            found.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        stack = tuple(found)
        cost = self._costs.get(stack)
        if cost is None:
            if len(self._costs) >= self._max_stacks:
                stack = ()
            cost = self._costs.setdefault(stack, [0, 0])
        cost[0] += 1
        cost[1] += spent_ns


def source_roots() -> tuple[str, ...]:
    """Return the folders that modules are named from: `sys.path`, and where Velox itself lies.

    An editable install is found by an import hook, and its folder is not in `sys.path`.
    """
    return (*sys.path, str(Path(__file__).parents[2]))


def _resolve(costs: dict[_RawStack, list[int]]) -> Samples:
    """Turn code objects into names, once, after the sampling."""
    roots = source_roots()
    files: dict[str, str] = {}

    def frame_of(code: CodeType, line: int) -> Frame:
        path = code.co_filename
        if path not in files:
            files[path] = short_file(path, roots)
        return Frame(code.co_qualname, files[path], code.co_firstlineno, line or code.co_firstlineno)

    def stack_of(raw: _RawStack) -> tuple[Frame, ...]:
        if not raw:
            return (_OVERFLOW,)
        stack = tuple(frame_of(code, line) for code, line in reversed(raw))
        return (_CUT, *stack) if len(raw) == MAX_DEPTH else stack

    return merge((stack_of(raw), Cost(count, cpu_ns)) for raw, (count, cpu_ns) in costs.items())
