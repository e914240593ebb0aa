"""How a worker follows changes of the keys: those that are gone first, those that have come a few at a time.

Knows: that 100,000 new keys are too many for one turn of the loop. Does not know: where changes come from
(credentials.py), or what a key is for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from velox.runtime.credentials import COME, GONE, gone_of, some_of
from velox.shm.change_log import Frame, LogReader, LostChangesError
from velox.types import KeyEntry

__all__ = ["KeyFollower"]

# A request takes several turns of the loop: a third of its time is for this, the rest for them.
_STEP_S: Final = 0.002
_PAUSE_S: Final = 0.004


class KeyFollower:
    """Of one worker. log: of changes since it was forked.

    change: has the worker know keys: digests that are gone, and entries that have come. on_lost: changes were missed,
    and nobody can say which keys hold: the worker must be replaced. clock: seconds, of any beginning.
    """

    def __init__(
        self,
        log: LogReader,
        change: Callable[[Iterable[bytes], Iterable[KeyEntry]], None],
        on_lost: Callable[[], None],
        logger: logging.Logger,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._log: Final = log
        # Goes ahead: what is revoked does not wait for all that came before it. Then it is revoked once more in its
        # turn, for keys that come and go.
        self._ahead: Final = log.copy()
        self._change: Final = change
        self._on_lost: Final = on_lost
        self._logger: Final = logger
        self._loop: Final = loop
        self._clock: Final = clock
        self._is_working = False

    def __repr__(self) -> str:
        return f"<KeyFollower {self._log!r}>"

    @property
    def is_behind(self) -> bool:
        """True while there are changes that the worker does not know."""
        return self._log.is_behind

    def look(self) -> None:
        """Take over what is new. For the worker's tick: mostly there is nothing."""
        if self._is_working or not self._log.is_behind:
            return
        self._is_working = True
        self._step()

    def _step(self) -> None:
        until_s = self._clock() + _STEP_S
        try:
            while (frame := self._next()) is not None:
                if frame.kind == GONE:
                    self._change(gone_of(frame.said), ())
                elif frame.said:
                    self._change((), some_of(frame.said))
                if self._clock() >= until_s and self._log.is_behind:
                    self._loop.call_later(_PAUSE_S, self._step)
                    return
        except LostChangesError:
            self._logger.error("changes of the keys were missed: this worker is replaced")
            self._on_lost()
            return
        self._is_working = False

    def _next(self) -> Frame | None:
        """Return what to do next; what was skipped says nothing."""
        return self._ahead.read(skipped=COME) or self._log.read()
