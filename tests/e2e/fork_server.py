"""Starts gateways as forks of a process that has loaded their modules: most of what `python -m velox serve` costs.

Two thirds of a gateway's start are imports, and the end-to-end tests start some five hundred gateways. All else is as
from a command line: its environment, descriptors, session, signals and exit code are its own.

    tests            ForkServer.start(): the words, the environment and three descriptors go over a socket
    fork server      python -m tests.e2e.fork_server FD, one for each process that runs tests; it has one thread
    gateway          a fork of that, which runs velox.cli.main()

Knows: how a process becomes a gateway, and how its end is told. Does not know: what it says (harness.py). With
TESTS_BY_EXEC=1 the harness starts each gateway by exec instead.
"""

from __future__ import annotations

import array
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

__all__ = ["ForkServer", "Forked", "fork_server"]

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_MOST_BYTES: Final = 1 << 20
_STATUS: Final = struct.Struct("i")
_PID: Final = struct.Struct("i")
_READY: Final = b"ready"
# Tests start servers in threads, side by side: a second fork server would end with all that it has started.
_MAKING: Final = threading.Lock()
# What a gateway of one upstream loads, and nothing that it loads only for what is configured.
_MODULES: Final = "velox.cli", "velox.settings", "velox.runtime.supervisor", "velox.runtime.reload"


class Forked:
    """A gateway that is a fork of the fork server; what the harness uses of subprocess.Popen."""

    def __init__(self, pid: int, ended: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid: Final = pid
        self.stdout: Final = stdout
        self.stderr: Final = stderr
        self.returncode: int | None = None
        self._ended: Final = ended  # a pipe with its exit status, once it has been reaped

    def __repr__(self) -> str:
        return f"<Forked {self.pid} {self.returncode}>"

    def poll(self) -> int | None:
        """Return its exit code; None: it runs."""
        if self.returncode is None and select.select([self._ended], [], [], 0.0)[0]:
            self._read()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, as Popen does. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("velox", timeout or 0.0)
            self._read()
        assert self.returncode is not None, "it was read"
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send it SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _read(self) -> None:
        told = os.read(self._ended, _STATUS.size)
        os.close(self._ended)
        self.returncode = _STATUS.unpack(told)[0] if told else -signal.SIGKILL  # the fork server was killed


class ForkServer:
    """One fork server, as those who run tests see it."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process: Final = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.fork_server", str(theirs.fileno())],
                cwd=_REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the tests, which end what they have started
            )
        self._socket: Final = ours
        assert ours.recv(len(_READY)) == _READY, "the fork server has not loaded"

    def __repr__(self) -> str:
        return f"<ForkServer {self._process.pid}>"

    def start(self, words: Sequence[str], env: Mapping[str, str]) -> Forked:
        """Start `velox WORDS` with this environment, in the repository's folder and a session of its own."""
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        (out, _), (err, _), (ended, _) = pipes
        theirs = array.array("i", [write for _, write in pipes])
        request = json.dumps({"words": list(words), "env": dict(env)}).encode()
        assert len(request) <= _MOST_BYTES, "one message"
        with self._lock:
            self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, theirs)])
            pid = _PID.unpack(self._socket.recv(_PID.size))[0]
        for _, write in pipes:
            os.close(write)
        return Forked(pid, ended, open(out, "rb"), open(err, "rb"))


def fork_server() -> ForkServer:
    """Return that of this process. It ends when this process does."""
    with _MAKING:
        return _only()


@functools.cache
def _only() -> ForkServer:
    return ForkServer()


class _Server:
    """The fork server itself: forks what is asked for, reaps, and tells each end. It is killed with its socket."""

    def __init__(self, fd: int) -> None:
        self._socket: Final = socket.socket(fileno=fd)
        self._ends: dict[int, int] = {}  # of each gateway that runs, by its pid

    def run(self) -> list[str]:
        """Serve until the tests have ended; return the words of the gateway that this process has become instead."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._socket.send(_READY)
        poll = select.poll()
        for each in (wake_read, self._socket.fileno()):
            poll.register(each, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    self._reap()
                    continue
                message, ancillary, _, _ = self._socket.recvmsg(_MOST_BYTES, socket.CMSG_SPACE(3 * _STATUS.size))
                if not message:
                    self._end_all()
                    sys.exit(0)
                descriptors = array.array("i", ancillary[0][2])
                words = self._fork(json.loads(message), list(descriptors))
                if words is not None:
                    return words

    def _fork(self, request: dict[str, object], descriptors: list[int]) -> list[str] | None:
        """Make a child, where this returns its words; None in the server."""
        out, err, ended = descriptors
        pid = os.fork()
        if pid:
            self._ends[pid] = ended
            os.close(out)
            os.close(err)
            self._socket.send(_PID.pack(pid))
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(out, 1)
        os.dup2(err, 2)
        self._socket.detach()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        env = request["env"]
        assert isinstance(env, dict), env
        os.environ.clear()
        os.environ.update(env)
        words = request["words"]
        assert isinstance(words, list), words
        return words

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                ended = self._ends.pop(pid)
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                    os.write(ended, _STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(ended)

    def _end_all(self) -> None:
        for pid in self._ends:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def main() -> int:
    """Be the fork server, and then, in each of its children, a gateway."""
    for name in _MODULES:
        __import__(name)
    gc.collect()
    gc.freeze()  # what is there stays there: no child is to touch it for nothing
    words = _Server(int(sys.argv[1])).run()
    sys.argv[1:] = words
    from velox.cli import main as velox

    return velox()


if __name__ == "__main__":
    sys.exit(main())
