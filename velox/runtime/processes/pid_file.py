"""The pid file of a gateway: which process it is, for those who stop it, and that there is one gateway at a time.

The gateway's first process holds a lock of the file (fcntl(2), F_SETLK) for life. The kernel takes it back however that
process ends, gives it to no child, and says who holds it. So the number in the file is for people and scripts only:
what asks for a gateway goes by the lock, and never takes another program for it that got the number of a dead one.

Knows: the file, its lock and its form. Does not know: who is asked for what.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

__all__ = ["Found", "PidFile", "PidFileError", "PidMark", "find", "signalled"]

_MODE: Final = 0o644  # whoever may see processes may know which one this is
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_LOCK: Final = struct.Struct("hhqqi0q")
_MOST_BYTES: Final = 32
_TRIES: Final = 10


class PidFileError(Exception):
    """The file can't be used, or another gateway has it. The message says why, and what to do."""


class Found(NamedTuple):
    """What a pid file says. pid: of the gateway that runs; 0: none does. is_there: whether there is a file."""

    pid: int
    is_there: bool


def find(path: str) -> Found:
    """Return which gateway has a pid file. Raises PidFileError for a file that is none, or can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return Found(0, is_there=False)
    except OSError as exc:
        raise PidFileError(f"the pid file {path} can't be read: {exc.strerror}") from exc
    try:
        _check(path, descriptor)
        return Found(_holder(path, descriptor), is_there=True)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def signalled(path: str, *numbers: signal.Signals) -> Iterator[tuple[int, int]]:
    """Send signals to the gateway that has a pid file; give its pid and a descriptor, readable once it has ended.

    Both are 0 and -1 where there is none. No other process is ever sent anything: it is the one that holds the lock
    after it was opened by its number (pidfd_open(2)). Raises PidFileError.
    """
    pid, descriptor = _opened(path)
    try:
        if pid:
            for number in numbers:
                signal.pidfd_send_signal(descriptor, number)
        yield pid, descriptor
    except ProcessLookupError:
        yield 0, -1
    except PermissionError as exc:
        raise PidFileError(f"process {pid} is another user's: it can't be signalled") from exc
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _opened(path: str) -> tuple[int, int]:
    for _ in range(_TRIES):
        pid = find(path).pid
        if not pid:
            return 0, -1
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        if find(path).pid == pid:
            return pid, descriptor
        os.close(descriptor)
    return 0, -1


class PidFile:
    """The file of this process, which holds its lock. Of one process: a child must not use it, nor open the file."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path: Final = path
        self._descriptor = descriptor

    def __repr__(self) -> str:
        return f"<PidFile {self.path}{'' if self._descriptor >= 0 else ' let go'}>"

    @classmethod
    def take(cls, path: str) -> Self:
        """Write this process into the file. One of a process that is gone is taken over. Raises PidFileError."""
        for _ in range(_TRIES):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, _MODE)
            except OSError as exc:
                hint = f": make the folder {Path(path).parent} first" if isinstance(exc, FileNotFoundError) else ""
                raise PidFileError(f"the pid file {path} can't be written: {exc.strerror}{hint}") from exc
            try:
                _check(path, descriptor)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(path, descriptor):  # else whoever had it has removed it meanwhile
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                    return cls(path, descriptor)
            except BlockingIOError:
                pid = _holder(path, descriptor)
                os.close(descriptor)
                if pid:
                    raise PidFileError(f"a gateway runs already: process {pid} has the pid file {path}") from None
                continue
            except OSError as exc:
                os.close(descriptor)
                raise PidFileError(f"the pid file {path} can't be written: {exc.strerror}") from exc
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise PidFileError(f"the pid file {path} is made and removed all the time: another gateway uses it")

    def release(self) -> None:
        """Remove the file, unless another one is there by now; let go of the lock."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                if _is_at(self.path, self._descriptor):
                    Path(self.path).unlink()
            self.let_go()

    def let_go(self) -> None:
        """Let another process take the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PidMark:
    """The pid file of a supervisor. path: None: it has none. is_first: no version was before it: it has the file now.

    Over an upgrade the gateway's first process keeps it, where that process stays (anchor.py). Where it does not, the
    next version takes it once it is let go. Raises PidFileError.
    """

    def __init__(self, path: str | None, *, is_first: bool) -> None:
        self._path: Final = path
        self._file = PidFile.take(path) if path is not None and is_first else None
        self._is_over = path is None

    def __repr__(self) -> str:
        return f"<PidMark {self._file!r}>"

    def take(self) -> None:
        """Have the file, if it is free now. For a version that serves, in each turn."""
        if self._path is not None and self._file is None and not self._is_over:
            with contextlib.suppress(PidFileError):  # the version before has it still
                self._file = PidFile.take(self._path)

    def let_go(self) -> None:
        """Let the next version have it."""
        self._is_over = True
        if self._file is not None:
            self._file.let_go()

    def release(self) -> None:
        """Remove it: the gateway has ended."""
        if self._file is not None:
            self._file.release()


def _check(path: str, descriptor: int) -> None:
    """Refuse what is no pid file, so that nothing else is ever written over. Raises PidFileError."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise PidFileError(f"{path} is no file: expected a pid file")
    text = os.pread(descriptor, _MOST_BYTES, 0).strip()
    if text and not text.isdigit():
        raise PidFileError(f"{path} is something else than a pid file: expected the number of a process in it")


def _holder(path: str, descriptor: int) -> int:
    """Return which process holds the lock; 0: none. Raises PidFileError for one of another container."""
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        return 0
    if pid <= 0:
        raise PidFileError(f"a process of another container has the pid file {path}")
    return int(pid)


def _is_at(path: str, descriptor: int) -> bool:
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
