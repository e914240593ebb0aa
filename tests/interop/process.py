"""A real server as the upstream, whose life a test decides: it is restarted, in good order or not, on one port.

Knows: the port, the folder of its configuration, the processes that were started and how they end. Does not know: any
server's configuration (servers.py), or what a test asks.
"""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from tests.e2e.harness import until
from tests.e2e.tools import free_port
from tests.e2e.upstreams import Certificates, Upstream, accepts

__all__ = ["Limits", "MasterServer", "Server", "children"]

_TRIES: Final = 5  # a port that was free may be taken before the server binds it
_RESTART_S: Final = 20.0


@dataclass(frozen=True)
class Limits:
    """What the server allows on one connection. requests: 0 for no limit."""

    streams: int = 128
    requests: int = 0


class Server(abc.ABC):
    """One server, HTTP/2 and HTTP/1.1 over TLS, chosen by ALPN; a context manager.

    It passes everything on to the origin `behind` without holding it back, as a provider's front door does.
    """

    name: ClassVar[str]
    is_proxy: ClassVar[bool] = True
    # Of restarting it in good order: what an operator calls it, and the method.
    ways: ClassVar[Mapping[str, str]] = {}
    # Those of them that leave nobody on the port for a moment.
    gaps: ClassVar[tuple[str, ...]] = ()

    def __init__(self, behind: Upstream, certificates: Certificates, limits: Limits) -> None:
        self.behind: Final = behind.url.removeprefix("http://")
        self.certificates: Final = certificates
        self.limits: Final = limits
        self.port = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder: Final = tempfile.TemporaryDirectory(prefix=f"velox-{self.name}-")
        self.folder: Final = Path(self._folder.name)
        self.log: Final = self.folder / "output.log"

    def __enter__(self) -> Self:
        for _ in range(_TRIES):
            self.port = free_port()
            if self._starts():
                return self
            self._end()
        output = self.log.read_text(errors="replace")
        self._folder.cleanup()
        raise AssertionError(f"{self.name} does not start:\n{output}")

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            print(self.log.read_text(errors="replace")[-10_000:])
        self._end()
        # A server may still have written into it when it was killed.
        shutil.rmtree(self.folder, ignore_errors=True)
        self._folder.cleanup()

    def __repr__(self) -> str:
        return f"<{self.name} port={self.port} processes={[process.pid for process in self._processes]}>"

    @property
    def upstream(self) -> Upstream:
        """Where it is, as settings of a gateway."""
        return Upstream(f"https://127.0.0.1:{self.port}", self.certificates.ca_file)

    def restart(self, way: str) -> None:
        """Restart it in good order; return once the successor accepts connections.

        What it replaced may still finish its streams; wait_retired() waits for its end.
        """
        getattr(self, self.ways[way])()

    def kill(self) -> None:
        """SIGKILL all of it, then start it anew."""
        self._end()
        self.start()

    def wait_retired(self) -> None:
        """Wait until what a graceful restart has replaced has ended by itself. Raises AssertionError."""
        *old, _ = self._processes
        until(lambda: all(process.poll() is not None for process in old), f"the old {self.name} ends", _RESTART_S)

    def wait_log(self, wanted: Callable[[str], bool]) -> None:
        """Wait until what the server has written is as wanted. Raises AssertionError."""
        until(lambda: wanted(self.log.read_text(errors="replace")), f"{self.name} writes it")

    # -- for the servers ------------------------------------------------------------------------------

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """Write the configuration for `self.port`; return what starts the server in the foreground."""

    def start(self) -> None:
        """Start one more process of it."""
        assert self._starts(), f"{self.name} does not start:\n{self.log.read_text(errors='replace')}"

    def run(self, command: Sequence[str]) -> None:
        """Start a process and leave it running; its output goes to the log."""
        with self.log.open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder)},
                    cwd=self.folder,
                    start_new_session=True,  # a group of its own: master and workers are killed as one
                )
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        return self._processes[-1]

    def workers(self) -> set[int]:
        """Return the living children of the process that was started last."""
        return children(self.process.pid)

    def _starts(self) -> bool:
        self.run(self.command())
        return accepts(self.port, self.process)

    def _end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes = []


class MasterServer(Server):
    """A server whose master replaces its workers at a signal."""

    reload_signal: ClassVar[signal.Signals]
    _replaced: frozenset[int] = frozenset()

    def reload(self) -> None:
        """Let the master start new workers; the old ones finish what they have."""
        before = self.workers()
        self._replaced = frozenset(before)
        self.process.send_signal(self.reload_signal)
        until(lambda: bool(self.workers() - before), f"{self.name} has a new worker", _RESTART_S)

    def wait_retired(self) -> None:
        super().wait_retired()
        until(lambda: not self._replaced & self.workers(), f"the old worker of {self.name} ends", _RESTART_S)


def children(pid: int) -> set[int]:
    """Return the living children of a process; none when it is gone."""
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()
