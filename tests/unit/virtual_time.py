"""A loop on which waiting takes no time: when nothing is left to do, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

__all__ = ["run"]

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Asks the real one what is ready, and lets the clock pass instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if timeout is None and not ready:
            raise AssertionError("nothing will ever happen again: somebody waits for what nobody does")
        if not ready and timeout is not None and timeout > 0:
            self.now_s += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


def run(main: Coroutine[None, None, T]) -> T:
    """Run to the end. A test that would wait for ever fails at once."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)
