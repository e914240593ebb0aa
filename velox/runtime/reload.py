"""Reloads: when the configuration is read again, and what comes of it. For the supervisor.

    asked by     SIGHUP, a file that changed (config_files.py), the admin listener (velox.admin.reload)
    read         in a process of its own, with a limit of time (config_reading.py)
    good         what can change while workers run goes to all of them (config_board.py); those that start later have it
    bad          nothing changes, every problem is logged

Knows: the order of all that. Does not know: what is in a configuration, or how a worker changes.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from velox.admin.reload import READING_S, AnswerBoard, ReloadAnswer
from velox.runtime.config_board import ConfigBoard
from velox.runtime.config_files import ConfigFiles
from velox.runtime.config_pieces import assembled
from velox.runtime.config_reading import ConfigSource, Found, Paper, read
from velox.runtime.key_watch import KeyWatch
from velox.runtime.listeners import Listeners
from velox.settings import Settings
from velox.settings.key_files import key_files
from velox.shm.status import GatewayStatus
from velox.shm.upstream_table import TableFullError

__all__ = ["Reload"]

# Of a file with more of them, the next reading tells the rest.
_MOST_LOGGED: Final = 20


class Reload:
    """Of one gateway. settings: those that hold now.

    enroll: gives each member of a configuration its place in the memory that all workers share, before they see it.
    """

    def __init__(
        self,
        settings: Settings,
        source: ConfigSource,
        status: GatewayStatus,
        keys: KeyWatch,
        logger: logging.Logger,
        *,
        enroll: Callable[[Settings], None],
    ) -> None:
        self.settings = settings
        self.board: Final = ConfigBoard()
        self.answers: Final = AnswerBoard()
        self._source: Final = source
        self._status: Final = status
        self._keys: Final = keys
        self._logger: Final = logger
        self._enroll: Final = enroll
        self._paper: Final = Paper()
        self._files: Final = ConfigFiles()
        self._follow(key_files(settings), source.began_ns)
        self._is_asked = False
        self._pid = 0  # 0: nothing is read
        self._began_ns = 0
        self._give_up_s = 0.0
        self._gave_up = False
        self._answers_upto = 0
        # What the configuration that holds has changed, and when it was taken; none and 0: it is that of the start.
        self._changes: tuple[str, ...] = ()
        self._taken_s = 0.0
        status.configuration = self.board.number

    def __repr__(self) -> str:
        return f"<Reload {self.board.number} {'reading' if self._pid else 'idle'}>"

    def ask(self) -> None:
        """Read everything again at the next turn. May be called by a signal's handler."""
        self._is_asked = True

    def is_due(self, now_s: float) -> bool:
        """Return True when a reading is to be started: then started() is called. For each turn. now_s: monotonic."""
        if self._pid:
            if now_s >= self._give_up_s:
                self._gave_up = True
                os.kill(self._pid, signal.SIGKILL)  # reaped() follows
            return False
        asked = self._status.reloads_asked
        if not self._files.have_changed(now_s) and not self._is_asked and asked == self._answers_upto:
            return False
        # All of this before it reads: what comes from now on is news for the next one.
        self._is_asked, self._answers_upto, self._began_ns = False, asked, time.time_ns()
        self._files.take()
        return True

    def run(self, listeners: Listeners) -> int:
        """Read, in a process of its own."""
        listeners.close_others(None)
        return read(self._source, self.settings, self._paper)

    def started(self, pid: int, now_s: float) -> None:
        """Note its process."""
        self._pid, self._give_up_s, self._gave_up = pid, now_s + READING_S, False

    def reaped(self, pid: int, how: str, now_s: float, *, ended_well: bool) -> bool:
        """Take what the process has found that was reaped; False if it was another one's."""
        if not pid or pid != self._pid:
            return False
        self._pid = 0
        if ended_well:
            found = self._paper.take()
            self._follow(found.files, self._began_ns)
            self._judge(found, now_s)
        else:
            self._paper.clear()
            more = f" within {READING_S:g} s" if self._gave_up else ""
            self._refuse((f"it could not be read{more} ({how})",))
        return True

    def stop(self) -> None:
        """Read no more: the gateway leaves."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._pid = 0

    def _follow(self, files: frozenset[str], since_ns: int) -> None:
        config_file = self.settings.config_file
        self._files.follow(files if config_file is None else {config_file, *files}, since_ns)

    # -- what was found -----------------------------------------------------------------------------

    def _judge(self, found: Found, now_s: float) -> None:
        if found.problems:
            self._refuse(found.problems)
            return
        if found.parts is not None:
            settings = replace(assembled(found.parts, self.settings), api_keys=found.keys)
            try:
                self._enroll(settings)
            except TableFullError as exc:
                self._refuse((f"there is no room for its upstreams yet: {exc}",))
                return
            self.settings = settings
            self._keys.replace_fixed(found.keys)
            self.board.publish(found.parts)
            self._changes, self._taken_s = found.changes, now_s
        self._status.configuration = self.board.number
        self._status.configuration_is_bad = False
        self._status.count_reload(taken=True)
        age_s = now_s - self._taken_s if self._changes else 0.0
        self._answer(ReloadAnswer(self._answers_upto, self.board.number, self._changes, found.restart, age_s=age_s))
        what = found.summary or "nothing has changed"
        more = f"; needs a restart: {', '.join(found.restart)}" if found.restart else ""
        self._logger.info("configuration %d is in use: %s%s", self.board.number, what, more)

    def _refuse(self, problems: tuple[str, ...]) -> None:
        self._status.configuration_is_bad = True
        self._status.count_reload(taken=False)
        self._answer(ReloadAnswer(self._answers_upto, self.board.number, problems=problems))
        n = len(problems)
        more = f", here the first {_MOST_LOGGED}" if n > _MOST_LOGGED else ""
        self._logger.error(
            "the configuration can't be used, number %d stays in use: %d problem%s%s",
            *(self.board.number, n, "s" * (n > 1), more),
        )
        for problem in problems[:_MOST_LOGGED]:
            self._logger.error("%s", problem)

    def _answer(self, answer: ReloadAnswer) -> None:
        self.answers.publish(answer)
