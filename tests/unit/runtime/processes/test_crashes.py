"""What a child says of its end: read by its parent, in lines that tell of code and of nothing else."""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from velox.runtime.processes.crashes import CrashReports, crash_report

SEGFAULT = b"""Fatal Python error: Segmentation fault

Current thread 0x00007f1c8e7fc740 (most recent call first):
  File "/opt/velox/lib/python3.11/site-packages/velox/runtime/worker.py", line 190 in run_worker
  File "/opt/velox/lib/python3.11/site-packages/velox/__main__.py", line 10 in <module>

Extension modules: orjson, uvloop.loop (total: 2)
"""


def test_report_has_where_it_stood_and_nothing_that_may_be_a_value() -> None:
    """Of other lines only their number is told: an exception's last line may hold a client's bytes."""
    secret = (
        b'Fatal Python error: _Py_CheckFunctionResult: a function returned sk-123 "x"\nValueError: sk-123\nsk-123: y\n'
    )
    lines = crash_report(secret + SEGFAULT).splitlines()
    assert lines == [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f1c8e7fc740 (most recent call first):",
        '  File "/opt/velox/lib/python3.11/site-packages/velox/runtime/worker.py", line 190 in run_worker',
        '  File "/opt/velox/lib/python3.11/site-packages/velox/__main__.py", line 10 in <module>',
        "(4 more lines)",
    ]
    assert crash_report(b"free(): invalid pointer\n") == "free(): invalid pointer"
    assert crash_report(b"double free or corruption (out)\n") == "double free or corruption (out)"
    assert crash_report(b"") == crash_report(b"anything\n\xff\n") == ""


FATAL = """
import ctypes, os
from velox.runtime.processes.crashes import CrashReports

def fails_here():
    ctypes.pythonapi.Py_FatalError(b"no more frames")

reports = CrashReports()
pid = reports.fork(fails_here)
print(os.waitpid(pid, 0)[1] & 0x7F, reports.take(pid))
"""


def test_fatal_error_of_python_itself_is_told() -> None:
    """It writes to descriptor 2 by itself, before it aborts. In a process of its own: pytest has threads."""
    command = [sys.executable, "-c", FATAL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith(f"{signal.SIGABRT:d} Fatal Python error: ") and "no more frames" in done.stdout
    assert "in fails_here" in done.stdout and done.stderr == ""


def test_long_report_is_cut() -> None:
    """A line of the log must go through a pipe in one piece; what was called last is kept."""
    frame = '  File "/\u00e4.py", line %d in f' + "x" * 500 + "\n"
    told = crash_report("".join(frame % n for n in range(300)).encode())
    lines = told.splitlines()
    assert "line 0 in" in lines[0] and max(map(len, lines)) == 160
    assert 10 < len(lines) < 30 and lines[-1] == f"({300 - (len(lines) - 1)} more lines)"
    assert len(json.dumps({"message": "m" * 256, "traceback": told})) < 3700


def test_child_that_is_aborted_says_where_it_stood() -> None:
    """By faulthandler, into a pipe of its own; what it writes more than the pipe holds does not stop it."""

    def hangs_here() -> int:
        os.write(2, b"noise\n" * 10)
        os.kill(os.getpid(), signal.SIGABRT)
        return 0

    def is_loud() -> int:
        for _ in range(100):
            try:
                os.write(2, b"x" * 4096)
            except BlockingIOError:
                return 0
        return 1

    reports = CrashReports()
    aborted, loud = reports.fork(hangs_here), reports.fork(is_loud)
    assert os.waitpid(aborted, 0)[1] & 0x7F == signal.SIGABRT
    assert os.waitpid(loud, 0)[1] == 0
    told = reports.take(aborted)
    assert told.startswith("Fatal Python error: Aborted\n") and "in hangs_here" in told and "noise" not in told
    assert reports.take(loud) == reports.take(aborted) == ""
    assert not faulthandler.is_enabled() or sys.stderr is not None  # the parent's own is untouched


def test_fork_that_fails_leaves_no_descriptor() -> None:
    """A supervisor tries again and again: what each try left would use up what it has."""

    def fails(_work: Callable[[], int]) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    reports = CrashReports(fails)
    before = sorted(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            reports.fork(lambda: 0)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert repr(reports) == "<CrashReports of 0>"
