"""When the simulator is down: a time up, a time down, and again, from its start on.

Knows: the two times. Does not know: what being down looks like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["Outage"]


class Outage:
    """The periods. clock: monotonic seconds."""

    def __init__(self, up_s: float, down_s: float, clock: Callable[[], float]) -> None:
        self._up_s: Final = up_s
        self._period_s: Final = up_s + down_s
        self._clock: Final = clock
        self._start_s: Final = clock()

    def __repr__(self) -> str:
        return f"<Outage {'now' if self.is_now() else f'in {self.change_in_s():.3f} s'}>"

    def is_now(self) -> bool:
        """Tell whether the simulator is down."""
        return self._at_s() >= self._up_s

    def change_in_s(self) -> float:
        """Return the seconds until it goes down, or comes up again."""
        at_s = self._at_s()
        return (self._up_s if at_s < self._up_s else self._period_s) - at_s

    def _at_s(self) -> float:
        return (self._clock() - self._start_s) % self._period_s
