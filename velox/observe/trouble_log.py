"""A thing that is in trouble again and again, in the operations log: its begin, its end, and now and then how often.

An upstream that comes and goes fails many times a second; a line for each would fill a disk, and hide the others.

Knows: what was told, and when. Does not know: what the trouble is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

__all__ = ["TroubleLog"]

# Between two lines that tell of trouble.
_EVERY_S: Final = 60.0


class TroubleLog:
    """Of one thing. trouble, relief: the texts; that of the trouble is followed by its cause. clock: monotonic.

    logger: asked for with each line.
    """

    __slots__ = ("_clock", "_is_told", "_logger", "_n_untold", "_next_s", "_relief", "_trouble")

    def __init__(
        self,
        logger: Callable[[], logging.Logger],
        trouble: str,
        relief: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger: Final = logger
        self._trouble: Final = trouble
        self._relief: Final = relief
        self._clock: Final = clock
        self._is_told = False  # that there is trouble, and not yet that it is over
        self._n_untold = 0
        self._next_s = -float("inf")

    def __repr__(self) -> str:
        return f"<TroubleLog {self._trouble}: {'told' if self._is_told else 'well'}, {self._n_untold} untold>"

    def failed(self, cause: str) -> None:
        """Tell of it at once, or with the first one after a minute."""
        now_s = self._clock()
        if now_s < self._next_s:
            self._n_untold += 1
            return
        more = f" ({self._n_untold} times more since the last line)" if self._n_untold else ""
        self._next_s, self._n_untold, self._is_told = now_s + _EVERY_S, 0, True
        self._logger().warning("%s: %s%s", self._trouble, cause, more)

    def went_well(self) -> None:
        """Tell that it is over, where it was told that there is trouble."""
        if self._is_told:
            self._is_told = False
            self._logger().info("%s", self._relief)
