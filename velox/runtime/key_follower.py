"""How a worker follows changes of the keys: revocations first, new entries a few at a time.

Knows: that 100,000 new keys are too many for one turn of the loop. Does not know: where changes come from
(credentials.py), or what a key is for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from velox.runtime.credentials import COME, GONE, gone_of, some_of
from velox.shm.change_log import LogReader, LostChangesError
from velox.types import KeyEntry, KeyUpdate

__all__ = ["KeyFollower"]

# A request takes several turns of the loop: a third of its time is for this, the rest for them.
_STEP_S: Final = 0.002
_PAUSE_S: Final = 0.004


class KeyFollower:
    """Of one worker. log: of changes since it was forked.

    change: has the worker accept keys as it is told. on_lost: changes were missed, and nobody can say which keys hold:
    the worker must be replaced. clock: seconds, of any beginning.
    """

    def __init__(
        self,
        log: LogReader,
        change: Callable[[KeyUpdate], None],
        on_lost: Callable[[], None],
        logger: logging.Logger,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._log: Final = log
        # Reads revocations, ahead of the entries before them, which may be many thousands. An entry that is read
        # after a later revocation of its digest does not count.
        self._ahead: Final = log.copy()
        self._revoked: Final[dict[bytes, int]] = {}  # by digest: the end of the last frame that revokes it
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
            while self._log.is_behind:
                # A look ahead comes first, so an entry is never read before a revocation that is there.
                if (frame := self._ahead.read(skipped=COME)) is not None:
                    if frame.kind == GONE:
                        self._revoke(gone_of(frame.said), frame.end)
                elif (frame := self._log.read(skipped=GONE)) is not None and frame.kind == COME:
                    self._accept(some_of(frame.said), frame.end)
                if self._clock() >= until_s and self._log.is_behind:
                    self._loop.call_later(_PAUSE_S, self._step)
                    return
        except LostChangesError:
            self._logger.error("changes of the keys were missed: this worker is replaced")
            self._on_lost()
            return
        self._revoked.clear()
        self._is_working = False

    def _revoke(self, digests: list[bytes], end: int) -> None:
        self._revoked.update(dict.fromkeys(digests, end))
        self._change(dict.fromkeys(digests))

    def _accept(self, entries: list[KeyEntry], end: int) -> None:
        """Accept the entries of a frame, but those that a later one revokes."""
        update = {key.digest: key for key in entries if self._revoked.get(key.digest, 0) < end}
        if update:
            self._change(update)
