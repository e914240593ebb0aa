"""`velox start`: a gateway that runs on by itself, and is ready when the command ends.

    start    `velox serve` in a session of its own, with the pid file and the log file
    ready    it says so by a pipe (processes/starter.py), or ends: then what it has said is shown

Knows: processes, the pipe, the end of the log. Does not know: settings, or what a gateway needs to be ready.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from velox.runtime.daemon.places import Places, make_folder
from velox.runtime.processes.pid_file import PidFileError, find
from velox.runtime.processes.starter import VARIABLE

__all__ = ["command_of", "start"]

_LOOK_S: Final = 0.05
_END_S: Final = 30.0
_MOST_BYTES: Final = 64 * 1024
_MOST_LINES: Final = 20
_TOLD: Final = frozenset({"error", "critical"})


def command_of(words: Sequence[str]) -> list[str]:
    """Return the command line that runs `velox WORDS` as this process was started: with the same links and Python."""
    own = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    return [sys.executable, *own, *words]


def start(
    command: Sequence[str],
    environ: Mapping[str, str],
    places: Places,
    timeout_s: float,
    say: Callable[[str], None],
    tell: Callable[[str], None],
) -> int:
    """Start a gateway and wait until it is ready; return the exit code.

    0: it is. 1: it is not, or there is one already. 2: it can't be with these settings. command: of the gateway. say,
    tell: of what was done, and of what went wrong.
    """
    try:
        running = find(places.pid_file).pid
        for path in (places.pid_file, places.log_file):
            make_folder(path)
    except PidFileError as exc:
        tell(str(exc))
        return 1
    except OSError as exc:
        tell(f"{exc.filename} can't be made: {exc.strerror}; --pid-file and --log-file name other places")
        return 1
    if running:
        tell(f"a gateway runs already: process {running} has the pid file {places.pid_file}")
        return 1
    log = _LogEnd(places.log_file)
    read, write = os.pipe()
    with subprocess.Popen(  # noqa: S603 - our own command line
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**environ, VARIABLE: str(write)},
        pass_fds=(write,),
        start_new_session=True,  # what ends the terminal, or is typed there, is not for it
    ) as process:
        os.close(write)
        try:
            url = _ready(process, read, timeout_s)
        except KeyboardInterrupt:
            url = ""
            _end(process)
        finally:
            os.close(read)
        if url:
            say(f"velox runs: process {process.pid}, listening on {url}, log in {places.log_file}")
            process.returncode = 0  # it is nobody's child from now on: there is nothing to wait for
            return 0
        if process.poll() is None:
            tell(f"it was not ready within {timeout_s:g} s (--timeout), and is stopped")
            _end(process)
        code = process.wait()
        assert process.stderr is not None, "it is a pipe"
        lines = [*_text(process.stderr.fileno()).splitlines(), *log.errors()]
    for line in lines or [f"it ended with {_how(code)} before it was ready; {places.log_file} says more"]:
        tell(line.removeprefix("velox: "))
    return 2 if code == 2 else 1


def _ready(process: subprocess.Popen[bytes], told: int, timeout_s: float) -> str:
    """Return where it listens, once it is ready; "": it has ended, or is late."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if select.select([told], [], [], _LOOK_S)[0]:
            text = os.read(told, _MOST_BYTES).decode().strip()
            if not text:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
            return text
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _text(descriptor: int) -> str:
    """Return what was written to a pipe until now."""
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(descriptor, _MOST_BYTES).decode("utf-8", "replace")
    return ""


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class _LogEnd:
    """What a log gets from now on."""

    def __init__(self, path: str) -> None:
        self._path: Final = Path(path)
        self._begin: Final = self._path.stat().st_size if self._path.is_file() else 0

    def errors(self) -> list[str]:
        """Return the messages of the lines that tell what went wrong, the last of them."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._begin)
                lines = file.read().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, AttributeError):
                fields = json.loads(line)
                if fields.get("level") in _TOLD:
                    found.append(str(fields["message"]))
        return found[-_MOST_LINES:]
