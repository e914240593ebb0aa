"""Starts the supervisor's children. Where a process can't be had now, the gateway goes on with those that it has.

Knows: that a fork may fail, what to do about it, and that it is said once. Does not know: what a child is for, or when
its start is tried again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["Forks"]

_FILES: Final = "raise the limit of open files (ulimit -n)"
_HINTS: Final = {
    errno.EAGAIN: "raise the limit of processes (pids.max of the container, ulimit -u)",
    errno.ENOMEM: "there is too little memory for another process",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}


class Forks:
    """The forks of one supervisor. fork: makes a child and returns its process id, or raises OSError."""

    def __init__(self, fork: Callable[[Callable[[], int]], int], logger: logging.Logger) -> None:
        self._fork: Final = fork
        self._logger: Final = logger
        self._problem = 0  # error number, as logged last; 0: the last one went well

    def __repr__(self) -> str:
        return f"<Forks problem={self._problem}>"

    def start(self, name: str, work: Callable[[], int]) -> int:
        """Start a child that runs `work`; return its process id, 0 if there can be none now. name: for the log."""
        # Else the child would write it, too. What can't be written, as to a terminal that is gone, holds up no child.
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        try:
            pid = self._fork(work)
        except OSError as exc:
            self._failed(name, exc)
            return 0
        if self._problem:
            self._problem = 0
            self._logger.warning("processes can be started again")
        return pid

    def _failed(self, name: str, exc: OSError) -> None:
        number = exc.errno or errno.EIO
        if number == self._problem:
            return
        self._problem = number
        hint = _HINTS.get(number)
        more = "" if hint is None else f"; {hint}"
        self._logger.error(
            "%(process)s can't be started, and is tried again: %(error)s%(hint)s",
            {"process": name, "error": exc.strerror, "hint": more},
        )
