"""What the processes of a gateway do first, and how the supervisor makes a child.

Knows: fork, signals, the death of the parent, processors. Does not know: what a child is for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

__all__ = [
    "begin",
    "end",
    "how_it_ended",
    "keep_modules",
    "pin_to_core",
    "return_large_blocks",
    "spawn",
    "wait_for",
    "wake",
]

_PR_SET_PDEATHSIG: Final = 1
_POLL_S: Final = 0.005
_STANDARD: Final = (0, 1, 2)  # descriptors of standard input, output, error
_M_MMAP_THRESHOLD: Final = -3  # mallopt(3)
# glibc's own first value. uvloop reads a TLS connection into 256 KiB; nearly all that a request needs is smaller.
_LARGE_BYTES: Final = 128 * 1024


def begin() -> None:
    """Be the first process of a gateway: called before it opens anything, or takes any time."""
    # What is opened next would get the number of one that is closed (`velox serve >&-`), and then have log lines in it.
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    # They mean a reload and an upgrade, and what begins reads all there is anyway. SIGUSR1 means nothing here, and
    # would end a process at once: logrotate and others send it to whatever writes a log. All processes are forks of
    # this one.
    for ignored in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, signal.SIG_IGN)


def keep_modules() -> None:
    """Load later modules from where those of now are, also when a symbolic link on the way leads elsewhere by then.

    A new version is put beside this one, and a link to it: what this version loads late is its own still.
    """
    sys.path[:] = [os.path.realpath(path) if path else path for path in sys.path]
    for module in tuple(sys.modules.values()):
        paths = getattr(module, "__path__", None)
        if isinstance(paths, list):
            paths[:] = [os.path.realpath(path) for path in paths]


def spawn(work: Callable[[], int]) -> int:
    """Fork a child that runs `work` and leaves with its result; return the child's pid. Raises OSError.

    The supervisor has one thread and no event loop, so a fork is safe, and a successor is there in milliseconds with
    all modules loaded. The child never returns from here.
    """
    libc = ctypes.CDLL(None)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # A worker must not outlive its supervisor, nor wait for one that died before the call.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # Ctrl-C reaches the whole process group, and so does the end of a terminal; the supervisor decides what it
        # means. It passes SIGUSR1 on to those who take it; an upgrade is its alone, too.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        code = work()
    except BaseException:
        with contextlib.suppress(Exception):
            sys.excepthook(*sys.exc_info())  # not a traceback, whose last line may hold anything: oplog.take_over()
    finally:
        os._exit(code)


def end(pid: int, timeout_s: float) -> None:
    """Ask a child to leave and wait for it; kill it when it has not left in time, as one that hangs."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        until_s = time.monotonic() + timeout_s
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() >= until_s:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(_POLL_S)


def wait_for(pid: int, timeout_s: float, is_stopped: Callable[[], bool]) -> int | None:
    """Wait for a child that leaves by itself; return its exit code. None: too late, or is_stopped; it is killed."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s and not is_stopped():
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def how_it_ended(status: int) -> str:
    """Return how a child ended, as a person calls it. status: of waitpid(2)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:  # of those for real time, the first and the last one have names
            return f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"


def pin_to_core(slot: int) -> int:
    """Bind this process to one core, spread over those it may use; return the core."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[slot % len(cores)]
    os.sched_setaffinity(0, {core})
    return core


def return_large_blocks() -> None:
    """Let malloc give a large block back to the system as soon as it is freed.

    glibc otherwise raises the size from which it does so to that of the first large block that is freed, and from then
    on the buffers of TLS connections that come and go lie scattered over its heap (docs/decisions/0017).
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # musl has none, and needs none
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def wake(notify: int) -> None:
    """Wake the supervisor. notify: the end of its pipe."""
    try:
        os.write(notify, b"w")
    except BlockingIOError:
        pass  # the pipe is full of wake-ups already
