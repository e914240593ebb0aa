"""`velox restart`: the installed version in the place of the running one, without a refused connection.

An upgrade (velox.runtime.upgrade), asked for through the admin listener; where that is off by a signal, whose outcome
is read from the log.

Knows: both ways. Does not know: what an upgrade does.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Final

from velox.runtime.daemon.logs import LogReader
from velox.runtime.processes.pid_file import signalled

__all__ = ["outcome_of", "upgrade_by_signal"]

_LOOK_S: Final = 0.1
_DONE: Final = "is the gateway now"
_NOT_DONE: Final = ("upgrade: the next version did not get ready", "no upgrade:", "an upgrade is under way already")


def upgrade_by_signal(
    pid_file: str, log_file: str, timeout_s: float, say: Callable[[str], None], tell: Callable[[str], None]
) -> int:
    """Send SIGUSR2, and wait for what the log says of it; return the exit code: 0: the next version serves; 1: not."""
    log = LogReader(log_file)
    try:
        for _ in log.lines():
            pass
        with signalled(pid_file, signal.SIGUSR2) as (pid, _):
            if not pid:
                tell("velox has ended meanwhile")
                return 1
            until_s = time.monotonic() + timeout_s
            while time.monotonic() < until_s:
                for raw in log.lines():
                    found = outcome_of(raw)
                    if found is not None:
                        is_done, text = found
                        (say if is_done else tell)(text)
                        return 0 if is_done else 1
                time.sleep(_LOOK_S)
    finally:
        log.close()
    tell(f"{log_file} says nothing of an upgrade within {timeout_s:g} s")
    return 1


def outcome_of(raw: bytes) -> tuple[bool, str] | None:
    """Return whether an upgrade was done, and what is said of it, by a line of the log; None: it tells of none."""
    try:
        line = json.loads(raw)
        message = str(line["message"])
    except (ValueError, LookupError, TypeError):
        return None
    if _DONE in message and "next_pid" in line:
        return True, f"velox {line['version']} serves now (process {line['next_pid']})"
    if message.startswith(_NOT_DONE):
        return False, f"no upgrade, the running gateway goes on as before: {line.get('error', message)}"
    return None
