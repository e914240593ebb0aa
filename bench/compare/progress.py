"""A line for each measurement: what is measured now, and how long the rest takes.

Knows: how long each step was meant to take, and took. Does not know: what the steps are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Progress"]


class Progress:
    """What is left of a run. planned_s: how long all steps are meant to take."""

    def __init__(
        self, planned_s: float, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say: Final = say
        self._clock: Final = clock
        self._left_s = planned_s
        self._begun_s = clock()
        self._planned_s = 0.0  # of the steps that are over
        self._step_s = 0.0

    def step(self, what: str, planned_s: float) -> None:
        """Say that a step begins, which is meant to take so long; the one before it is over."""
        self._over()
        self._step_s = planned_s
        self._say(f"[{self.shown()} left] {what}")

    def skip(self, planned_s: float) -> None:
        """Note that steps which were planned will not be made."""
        self._left_s -= planned_s

    def shown(self) -> str:
        """Return what is left, as minutes and seconds, at the pace so far."""
        took_s = self._clock() - self._begun_s
        pace = took_s / self._planned_s if self._planned_s > 10.0 else 1.0
        left_s = max(0, round(self._left_s * pace))
        return f"{left_s // 60}:{left_s % 60:02d}"

    def _over(self) -> None:
        self._left_s -= self._step_s
        self._planned_s += self._step_s
        self._step_s = 0.0
