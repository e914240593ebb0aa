"""Frames, calls and objects of a request: what `python -m bench.instructions --frames` prints.

    frames        Python functions of `velox` that were entered; a coroutine counts again each time it is resumed
    calls of C    from such frames
    constructors  of the frames: `__init__` and `__new__` of classes of `velox`
    tracked       objects that the garbage collector tracks and that live while the upstream has not answered yet, for
                  each request in flight: more than lived before; of `velox`: those whose class is defined there
    blocks        blocks of memory that are held then (sys.getallocatedblocks)

Knows: sys.setprofile, the garbage collector. Does not know: what is run.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

__all__ = ["Calls", "Held", "count_calls"]

_PACKAGE: Final = "velox"
_MADE_BY: Final = ("__init__", "__new__")


class Calls:
    """How often each function was entered, and from how many frames of ours C was called."""

    def __init__(self) -> None:
        self.frames: Final[Counter[str]] = Counter()
        self.n_c_calls = 0
        self._names: Final[dict[CodeType, str]] = {}

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Count one event of sys.setprofile."""
        if event not in ("call", "c_call"):
            return
        name = self._names.get(frame.f_code)
        if name is None:
            module = str(frame.f_globals.get("__name__", ""))
            is_ours = module.partition(".")[0] == _PACKAGE
            name = self._names[frame.f_code] = f"{module}.{frame.f_code.co_qualname}" if is_ours else ""
        if not name:
            return
        if event == "call":
            self.frames[name] += 1
        else:
            self.n_c_calls += 1

    @property
    def n_frames(self) -> int:
        return self.frames.total()

    @property
    def n_constructors(self) -> int:
        return sum(n for name, n in self.frames.items() if name.rpartition(".")[2] in _MADE_BY)


def count_calls(work: Callable[[], object]) -> Calls:
    """Do the work once and count."""
    calls = Calls()
    sys.setprofile(calls.see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


class Held:
    """What is held at one moment beside what was held before: made at the one, looked at in the other."""

    def __init__(self) -> None:
        self._before: Counter[str] = Counter()
        self._blocks_before = 0
        self.tracked: Counter[str] = Counter()
        self.blocks = 0

    def before(self) -> None:
        """Look for the first time."""
        gc.collect()
        self._before = _by_class()
        self._blocks_before = sys.getallocatedblocks()

    def look(self) -> None:
        """Look for the second time."""
        self.blocks = sys.getallocatedblocks() - self._blocks_before
        self.tracked = _by_class() - self._before

    @property
    def n_ours(self) -> int:
        return sum(n for name, n in self.tracked.items() if name.partition(".")[0] == _PACKAGE)


def _by_class() -> Counter[str]:
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
