"""`velox stop`: the drain of a gateway that runs by itself, until it has ended.

Knows: the pid file, and how a process's end is waited for. Does not know: what a gateway does at its end.
"""

from __future__ import annotations

import math
import select
import signal
import time
from collections.abc import Callable
from typing import Final, TextIO

from velox.runtime.processes.pid_file import PidFileError, find, signalled

__all__ = ["progress_line", "stop"]

_LOOK_S: Final = 1.0


def stop(
    pid_file: str,
    timeout_s: float,
    say: Callable[[str], None],
    tell: Callable[[str], None],
    *,
    is_now: bool,
    in_flight: Callable[[], int | None],
    terminal: TextIO | None,
) -> int:
    """Have a gateway drain, and wait for its end; return the exit code.

    0: it has ended, or none ran. 1: it runs still. timeout_s: that is waited for; infinite: as long as it takes, which
    VELOX_DRAIN_TIMEOUT bounds. is_now: what runs is cut. in_flight: requests that run; None: nobody says. terminal: is
    told how it goes on; None: nobody is.
    """
    # The second one tells it to end at once; of two of the same number it would see one.
    numbers = (signal.SIGTERM, signal.SIGINT) if is_now else (signal.SIGTERM,)
    try:
        with signalled(pid_file, *numbers) as (pid, ended):
            if not pid:
                was_there = find(pid_file).is_there
                more = "the process that it named is gone" if was_there else "there is no such file"
                say(f"velox does not run ({pid_file}: {more})")
                return 0
            if _wait(pid, ended, timeout_s, in_flight, terminal):
                say(f"velox has ended: process {pid}")
                return 0
    except PidFileError as exc:
        tell(str(exc))
        return 1
    except KeyboardInterrupt:
        tell("not waited for any longer; it goes on draining")
        return 1
    tell(f"process {pid} has not ended within {timeout_s:g} s (--timeout); it goes on draining: --now ends it")
    return 1


def _wait(pid: int, ended: int, timeout_s: float, in_flight: Callable[[], int | None], terminal: TextIO | None) -> bool:
    began_s = time.monotonic()
    wait = select.poll()
    wait.register(ended, select.POLLIN)
    is_shown = False
    try:
        while (left_s := began_s + timeout_s - time.monotonic()) > 0:
            if wait.poll(1000 * min(_LOOK_S, left_s)):
                return True
            if terminal is not None:
                is_shown = True
                terminal.write(f"\r\x1b[K{progress_line(pid, time.monotonic() - began_s, in_flight())}")
                terminal.flush()
        return False
    finally:
        if is_shown and terminal is not None:
            terminal.write("\r\x1b[K")
            terminal.flush()


def progress_line(pid: int, waited_s: float, n_running: int | None) -> str:
    """Return what a terminal shows while a gateway drains."""
    waited = math.floor(waited_s)
    requests = "" if n_running is None else f", {n_running} request{'s' * (n_running != 1)} in flight"
    return f"process {pid} drains: {waited} s{requests}"
