"""Where a log is written: standard output or standard error, without ever waiting for who reads it.

Knows: pipes, sockets, terminals and files, and how each is written to at once or not at all. Does not know: what a line
says. A reader that has stopped, or a full disk, must not stop a process (F-60): what can't be written is the caller's
to keep or to drop.

    LogOutput    for the access log, which keeps lines for a slow reader
    LogStream    for the operations log and all else that goes to standard error: it drops them, and counts
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import socket
import stat
from collections.abc import Callable
from typing import Final

__all__ = ["ATOMIC_BYTES", "LogOutput", "LogStream", "open_log", "own_descriptor"]

# PIPE_BUF: writes up to this size reach a pipe whole or not at all, so the lines of several processes never mix.
ATOMIC_BYTES: Final = 4096
_FILE_MODE: Final = 0o640


def own_descriptor(shared: int) -> int:
    """Return a new descriptor of what `shared` is open on, for LogOutput.

    Opened anew it does not block, and whoever else has that one notices nothing. A file never blocks: it stays as it
    was opened, but all append to it from now on. A shell that says more after us (`{ velox serve; echo done; } > log`)
    has the place where it began, and would write over what we say.
    """
    if stat.S_ISREG(os.fstat(shared).st_mode):
        fcntl.fcntl(shared, fcntl.F_SETFL, fcntl.fcntl(shared, fcntl.F_GETFL) | os.O_APPEND)
        return os.dup(shared)
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{shared}", flags)
    except OSError:
        return os.dup(shared)  # a socket; or another user's, as after root has started us by `su`


def open_log(path: str) -> int:
    """Return a descriptor that appends to a file, for LogOutput; the file is made if need be. Raises OSError.

    All workers have it open: each of their writes is appended as a whole.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(path, flags, _FILE_MODE)


class LogOutput:
    """Takes whole lines for a descriptor, which stays the caller's, and never waits."""

    def __init__(self, descriptor: int) -> None:
        self._fd: Final = descriptor
        mode = os.fstat(descriptor).st_mode
        self._is_socket: Final = stat.S_ISSOCK(mode)
        self._room: Final = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._must_ask: Final = os.get_blocking(descriptor) and not stat.S_ISREG(mode)
        self._rest = b""  # of a line that was begun

    @property
    def has_rest(self) -> bool:
        """True while a line is written in part."""
        return bool(self._rest)

    def write(self, lines: bytes = b"") -> bool:
        """Take lines, best ATOMIC_BYTES of them at most; False: none, nobody reads. Raises OSError: none, it fails.

        When only a part could be written, the rest goes before anything else, or by write() alone: no line is torn.
        """
        try:
            if self._rest:
                self._rest = self._rest[self._send(self._rest) :]
            if self._rest:
                return False
            if lines:
                self._rest = lines[self._send(lines) :]
        except BlockingIOError:
            return False
        return True

    def _send(self, data: bytes) -> int:
        if self._is_socket:
            sock = socket.socket(fileno=self._fd)
            try:
                # Not O_NONBLOCK: that would hold for all who share the socket.
                return sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            finally:
                sock.detach()
        # A pipe that could not be opened anew: where there is room, there is room for ATOMIC_BYTES. Another process may
        # take it in between; then we wait for the reader after all.
        if self._must_ask and not self._room.poll(0):
            raise BlockingIOError
        return os.write(self._fd, data)


class LogStream(io.TextIOWrapper):
    """A text stream over a descriptor, which is its own from now on. It never waits, and no write to it fails.

    on_dropped: gets the number of lines that could not be written at once; set it when there is who counts them.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(io.FileIO(descriptor, "w"), encoding="utf-8", errors="backslashreplace")
        self._output: Final = LogOutput(descriptor)
        self.on_dropped: Callable[[int], None] = lambda _n: None

    def write(self, text: str) -> int:
        """Write whole lines, or drop them."""
        data = text.encode("utf-8", "backslashreplace")
        try:
            is_taken = self._output.write(data)
        except OSError:
            is_taken = False
        if not is_taken:
            self.on_dropped(data.count(b"\n"))
        return len(text)

    def flush(self) -> None:
        """Write what is left of a line that was begun, if there is room."""
        with contextlib.suppress(OSError):
            self._output.write()
