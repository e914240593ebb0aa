"""What held the event loop for too long: by a timer that the loop keeps winding up.

Knows: SIGALRM, ITIMER_REAL, Python's frames. Does not know: the loop, whose own timer calls beat() a few times a
second, or who asks.

Each beat winds an alarm up for a little after the next beat is due. A loop that turns in time winds it up again before;
one that does not is interrupted, and the alarm notes the stack of what it does just then. Python runs the handler of a
signal between two bytecodes of the main thread: what is noted of a long call into C is the line that made it. So
nothing at all is paid by requests, and one system call a beat by the loop. What is longer than a beat and the threshold
is always seen, what is shorter where it happens to hold up a beat.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final

from velox.build import UNSEEN_BY_PROFILES
from velox.profiling.running import LongTurn, LongTurns
from velox.profiling.sampler import MAX_DEPTH, source_roots
from velox.profiling.samples import short_file

__all__ = ["LoopWatch"]

_THRESHOLD_S: Final = 0.05
_KEPT: Final = 64
_RawStack = tuple[tuple[CodeType, int], ...]


class LoopWatch:
    """Between start() and stop(); one in a process, in its main thread.

    wind_up: has SIGALRM sent once after so many seconds; 0: never. unix_s: now, in Unix time.
    """

    def __init__(
        self,
        threshold_s: float = _THRESHOLD_S,
        wind_up: Callable[[float], object] = lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds),
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._threshold_s: Final = threshold_s
        self._wind_up: Final = wind_up
        self._unix_s: Final = unix_s
        self._seen: _RawStack = ()  # since the last beat
        self._turns: Final[deque[tuple[float, float, _RawStack]]] = deque(maxlen=_KEPT)
        self._total = 0

    def __repr__(self) -> str:
        return f"<LoopWatch {self._total} long turns>"

    def start(self) -> None:
        """Take the signal."""
        signal.signal(signal.SIGALRM, self._on_late)
        signal.siginterrupt(signal.SIGALRM, False)

    def stop(self) -> None:
        """Leave it: one that is still on its way does nothing."""
        self._wind_up(0.0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def beat(self, late_s: float, next_s: float) -> None:
        """The loop turns. late_s: how much later than it was due; next_s: when the next beat is due from now."""
        self._wind_up(next_s + self._threshold_s)
        seen, self._seen = self._seen, ()
        if late_s >= self._threshold_s:
            self._total += 1
            self._turns.append((self._unix_s(), late_s, seen))

    def turns(self) -> LongTurns:
        """Return the last turns that were too long, the newest first."""
        roots = source_roots()
        rows = [
            LongTurn(at_s=at_s, lasted_s=lasted_s, stack=_named(stack, roots))
            for at_s, lasted_s, stack in reversed(self._turns)
        ]
        return LongTurns(self._total, self._threshold_s, rows, UNSEEN_BY_PROFILES)

    def _on_late(self, _signum: int, frame: FrameType | None) -> None:
        found: list[tuple[CodeType, int]] = []
        while frame is not None and len(found) < MAX_DEPTH:
            found.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._seen = tuple(found)


def _named(stack: _RawStack, roots: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{code.co_qualname} ({short_file(code.co_filename, roots)}:{line})" for code, line in reversed(stack))
