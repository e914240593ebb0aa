"""How a worker follows changes of the keys: revocations first, new entries a few at a time.

Knows: that 100,000 new keys are too many for one turn of the loop. Does not know: where changes come from
(credentials.py), or what a key is for.

From time to time the log has a checksum of what the supervisor accepts. A worker whose own differs asks for all
keys, and corrects what is not as it should be.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from velox.gateway.auth import Authenticator, caller_of
from velox.runtime.keys.corrections import KeyCorrections
from velox.runtime.keys.frames import ADDED, CHECKSUM, REMOVED, SNAPSHOT, SNAPSHOT_END, digests_in, entries_in
from velox.shm.change_log import Frame, LogReader, LostChangesError
from velox.types import KeyEntry, KeyUpdate

__all__ = ["KeyFollower"]

# A request takes several turns of the loop: a third of its time is for this, the rest for them.
_STEP_S: Final = 0.002
_PAUSE_S: Final = 0.004
_AHEAD: Final = frozenset({REMOVED})
_USUAL: Final = frozenset({ADDED, CHECKSUM})
_ASKED: Final = _USUAL | {SNAPSHOT, SNAPSHOT_END}


class KeyFollower:
    """Of one worker. log: of changes since it was forked. auth: what the worker accepts.

    change: has the worker accept keys as it is told. ask: asks the supervisor for all keys. on_lost: changes were
    missed, and nobody can say which keys hold: the worker must be replaced. clock: seconds, of any beginning.
    """

    def __init__(
        self,
        log: LogReader,
        auth: Authenticator,
        change: Callable[[KeyUpdate], None],
        ask: Callable[[], None],
        corrections: KeyCorrections,
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
        self._auth: Final = auth
        self._change: Final = change
        self._ask: Final = ask
        self._corrections: Final = corrections
        self._on_lost: Final = on_lost
        self._logger: Final = logger
        self._loop: Final = loop
        self._clock: Final = clock
        self._is_working = False
        self._listed: set[bytes] | None = None  # of all keys that were asked for: those that have come; None: not asked

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
                if (frame := self._ahead.read(_AHEAD)) is not None:
                    if frame.kind == REMOVED:
                        self._revoke(digests_in(frame.said), frame.end)
                elif (frame := self._log.read(_USUAL if self._listed is None else _ASKED)) is not None:
                    self._take(frame)
                if self._clock() >= until_s and self._log.is_behind:
                    self._loop.call_later(_PAUSE_S, self._step)
                    return
        except LostChangesError:
            self._logger.error("this worker missed changes of client keys, and is replaced")
            self._on_lost()
            return
        self._revoked.clear()
        self._is_working = False

    def _revoke(self, digests: list[bytes], end: int) -> None:
        self._revoked.update(dict.fromkeys(digests, end))
        self._change(dict.fromkeys(digests))

    def _take(self, frame: Frame) -> None:
        if frame.kind == ADDED:
            update = {key.digest: key for key in self._unrevoked(frame)}
            if update:
                self._change(update)
        elif frame.kind == CHECKSUM:
            self._compare(frame)
        elif frame.kind == SNAPSHOT and self._listed is not None:
            self._correct(frame, self._listed)
        elif frame.kind == SNAPSHOT_END and self._listed is not None:
            self._end_leftovers(self._listed)
            self._listed = None

    def _unrevoked(self, frame: Frame) -> Iterable[KeyEntry]:
        """Return the entries of a frame, but those that a later one revokes."""
        return (key for key in entries_in(frame.said) if self._revoked.get(key.digest, 0) < frame.end)

    # -- comparing ----------------------------------------------------------------------------------

    def _compare(self, frame: Frame) -> None:
        """Ask for all keys where the checksum differs from the supervisor's in this frame."""
        is_ahead = any(end > frame.end for end in self._revoked.values())
        if not is_ahead and frame.said != self._auth.checksum:
            self._listed = set()
            self._ask()

    def _correct(self, frame: Frame, listed: set[bytes]) -> None:
        listed.update(key.digest for key in entries_in(frame.said))
        wrong = {key.digest: key for key in self._unrevoked(frame) if self._auth.caller(key.digest) != caller_of(key)}
        if wrong:
            self._corrections.report(wrong, self._auth)
            self._change(wrong)

    def _end_leftovers(self, listed: set[bytes]) -> None:
        left: KeyUpdate = dict.fromkeys(self._auth.beyond(listed))
        if left:
            self._corrections.report(left, self._auth)
            self._change(left)
