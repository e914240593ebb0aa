"""What a child process writes when it crashes, as a field of one line of the log.

    CrashReports.fork()   a child whose standard error is a pipe that only the supervisor reads
    CrashReports.take()   when the child was reaped: what it said of its end

Python and its faulthandler write many lines to descriptor 2 when a process is aborted, and some lines of C libraries go
there, too. The log has a descriptor of its own (own_stderr), so these never stand between its lines.

Knows: the pipe, and which lines tell where the process stood. Does not know: why it ended, or the log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Final

from velox.observe.log_file import LogFile
from velox.observe.log_output import LogStream, own_descriptor
from velox.runtime.processes.process import spawn

__all__ = ["CrashReports", "crash_report", "follow_log", "own_log", "own_stderr"]

_STDERR: Final = 2
_PIPE_BYTES: Final = 64 * 1024
# As a pipe takes up to 4,096 bytes of a line in one piece, and other processes write to the same log.
_MOST_BYTES: Final = 3200
_MOST_CHARS: Final = 160  # of a line: a path and a name
# What Python writes of a crash: code, and never values. Whatever else stands there may hold anything.
_TOLD: Final = re.compile(
    r"Fatal Python error: [A-Za-z_]+(?:[: ]+[A-Za-z_]+)*$|(?:Current thread|Thread) 0x[0-9a-f]+ .*:$"
    r'|Python runtime state: [a-z ]+$|  File "[^"]*", line \d+ in .+$|  <no Python frame>$|  \.\.\.$'
    # glibc, when it finds the heap or the stack damaged.
    r"|(?:free|malloc|calloc|realloc|munmap_chunk|malloc_consolidate)\(\): [a-z0-9_ .()]{1,60}$"
    r"|double free or corruption \([!a-z]{1,10}\)$|corrupted (?:size vs\. prev_size|double-linked list)[a-z ()]*$"
    r"|\*\*\* stack smashing detected \*\*\*: terminated$"
)


def own_stderr() -> LogStream:
    """Return standard error on a descriptor of its own, and let sys.stderr be that. Once, before the first fork."""
    stream = LogStream(own_descriptor(_STDERR))
    sys.stderr = stream
    return stream


def own_log(path: str) -> LogStream:
    """Return the log's file, which is standard error, too, from now on. Raises OSError. In place of own_stderr()."""
    stream = LogFile(path)
    os.dup2(stream.fileno(), _STDERR)
    sys.stderr = stream
    return stream


def follow_log(stream: LogStream) -> None:
    """Let go of a log's file that was renamed. For the supervisor: the standard error of its children is a pipe."""
    if isinstance(stream, LogFile):
        stream.follow()
        os.dup2(stream.fileno(), _STDERR)


class CrashReports:
    """The pipes of the supervisor's children, by process id. fork: spawn(), or a test's."""

    def __init__(self, fork: Callable[[Callable[[], int]], int] = spawn) -> None:
        self._fork: Final = fork
        self._pipes: Final[dict[int, int]] = {}

    def __repr__(self) -> str:
        return f"<CrashReports of {len(self._pipes)}>"

    def fork(self, work: Callable[[], int]) -> int:
        """Fork a child that runs `work`, as spawn() does; return its process id. Raises OSError, and leaves nothing."""
        # Not blocking: a child that writes much and is not read must go on.
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

        def child() -> int:
            os.dup2(theirs, _STDERR)
            for fd in (ours, theirs, *self._pipes.values()):
                os.close(fd)
            faulthandler.enable(_STDERR)  # not on sys.stderr, which is the log
            return work()

        try:
            pid = self._fork(child)
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._pipes[pid] = ours
        return pid

    def take(self, pid: int) -> str:
        """Return what a child that was reaped has said of its end, in lines; "" if it said nothing."""
        pipe = self._pipes.pop(pid, None)
        if pipe is None:
            return ""
        try:
            with contextlib.suppress(BlockingIOError):  # a process of its own holds the other end still
                return crash_report(os.read(pipe, _PIPE_BYTES))
            return ""
        finally:
            os.close(pipe)


def crash_report(text: bytes) -> str:
    """Return the lines that tell where a process stood, and how many others were left out."""
    lines = text.decode("utf-8", "replace").splitlines()
    told = [line[:_MOST_CHARS] for line in lines if _TOLD.match(line)]
    kept, n_bytes = [], 0
    for line in told:
        n_bytes += len(json.dumps(line))
        if n_bytes > _MOST_BYTES:
            break
        kept.append(line)
    n_left = sum(bool(line.strip()) for line in lines) - len(kept)
    return "\n".join((*kept, *([f"({n_left} more lines)"] if n_left and kept else [])))
