"""How a worker follows changes of the keys: those that are gone at once, those that have come a few at a time.

Knows: that 100,000 new keys are too many for one turn of the loop. Does not know: where changes come from
(credentials.py), or what a key is for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from velox.runtime.credentials import KeyWatch, LostKeysError, gone_of, some_of
from velox.types import KeyEntry

__all__ = ["KeyFollower"]

# A request takes several turns of the loop: a third of its time is for this, the rest for them.
_STEP_S: Final = 0.002
_PAUSE_S: Final = 0.004


class KeyFollower:
    """Of one worker. change: has the worker know keys: digests that are gone, and entries that have come.

    on_lost: changes were missed, and nobody can say which keys hold: the worker must be replaced.
    """

    def __init__(
        self,
        watch: KeyWatch,
        change: Callable[[Iterable[bytes], Iterable[KeyEntry]], None],
        on_lost: Callable[[], None],
        logger: logging.Logger,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._watch: Final = watch
        self._change: Final = change
        self._on_lost: Final = on_lost
        self._logger: Final = logger
        self._loop: Final = loop
        self._left: Final[deque[tuple[bytes, bytes]]] = deque()  # digests that are gone, or entries that have come

    def __repr__(self) -> str:
        return f"<KeyFollower left={len(self._left)}>"

    def look(self) -> None:
        """Take over what is new. For the worker's tick: mostly there is nothing."""
        is_busy = bool(self._left)
        try:
            changes = self._watch.take_over()
        except LostKeysError:
            self._logger.error("changes of the keys were missed: this worker is replaced")
            self._on_lost()
            return
        for change in changes:
            if change.gone:
                # At once, whatever is left to do; and in its turn, for keys that come and go.
                self._change(gone_of(change.gone), ())
                if is_busy:
                    self._left.append((change.gone, b""))
            self._left.extend((b"", chunk) for chunk in change.come)
            is_busy = bool(self._left)
        if self._left and changes:
            self._step(is_first=True)

    def _step(self, *, is_first: bool = False) -> None:
        until_s = time.perf_counter() + _STEP_S
        while self._left:
            gone, come = self._left.popleft()
            self._change(gone_of(gone), some_of(come) if come else ())
            if time.perf_counter() >= until_s:
                break
        if self._left:
            self._loop.call_later(_PAUSE_S, self._step)
