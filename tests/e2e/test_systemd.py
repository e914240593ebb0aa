"""A gateway as a service of systemd: what it tells, and sockets that it is given. The manager is the test."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess
from tests.e2e.tools import stopped
from tests.patience import PATIENCE_S

_MOST_EXPOSURE = 3.0
# Binds a port, as a socket unit does, and becomes the gateway with it.
_ACTIVATED = """
import os, socket, sys
sock = socket.create_server(("127.0.0.1", 0))
os.dup2(sock.fileno(), 3)
os.set_inheritable(3, True)
address = f"127.0.0.1:{sock.getsockname()[1]}"
given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "VELOX_LISTEN": address}
os.execvpe(sys.argv[1], sys.argv[1:], {**os.environ, **given})
"""


class Manager:
    """The socket that systemd has for what a service tells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(str(path))
        self._sock.settimeout(PATIENCE_S)

    def close(self) -> None:
        self._sock.close()

    def wait(self, name: str) -> dict[str, str]:
        """Return the next message that has a field."""
        while True:
            fields = dict(line.partition("=")[::2] for line in self._sock.recv(4096).decode().splitlines())
            if name in fields:
                return fields


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """One that listens."""
    found = Manager(tmp_path / "notify")
    yield found
    found.close()


def test_service_tells_when_it_is_ready_reloads_is_upgraded_and_stops(manager: Manager) -> None:
    """READY with the main process; RELOADING with its time, then READY; after an upgrade the new main process."""
    env = {"VELOX_WORKERS": "1", "NOTIFY_SOCKET": str(manager.path)}
    with VeloxProcess(env, ("serve", "--sim"), by_exec=True) as velox:
        assert manager.wait("READY") == {"READY": "1", "MAINPID": str(velox.pid)}
        velox.signal(signal.SIGHUP)
        assert int(manager.wait("RELOADING")["MONOTONIC_USEC"]) > 0
        assert manager.wait("READY")["READY"] == "1"
        velox.signal(signal.SIGUSR2)
        pid = int(manager.wait("MAINPID")["MAINPID"])
        assert pid != velox.pid
        assert manager.wait("READY")["MAINPID"] == str(pid)
        assert velox.wait() == 0  # systemd has another main process; there is nobody to stay for
        assert velox.request("GET", "/v1/models").status == 200
        subprocess.run(["/bin/kill", str(pid)], check=True)
        manager.wait("STOPPING")
        velox.wait_log(lambda line: "shutdown complete" in line)


def test_watchdog_is_told_only_while_a_worker_answers(manager: Manager) -> None:
    """A worker that stands still for ten seconds is replaced by the supervisor itself: until then there is no ping."""
    env = {"VELOX_WORKERS": "1", "NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "600000"}
    with VeloxProcess(env, ("serve", "--sim"), by_exec=True) as velox:
        manager.wait("WATCHDOG")
        (worker,) = velox.worker_pids()
        with stopped(worker):
            velox.wait_log(lambda line: "is stuck" in line)
        manager.wait("WATCHDOG")


def test_socket_of_systemd_is_used(tmp_path: Path) -> None:
    """All workers accept on it; it is the one that was bound, and an upgrade goes on with it."""
    launcher = (sys.executable, "-c", _ACTIVATED)
    with VeloxProcess({"VELOX_WORKERS": "2"}, ("serve", "--sim"), launcher=launcher) as velox:
        assert velox.request("GET", "/v1/models").status == 200
        assert len(velox.worker_pids()) == 2
        assert len(velox._listener_inodes()) == 1
        velox.signal(signal.SIGUSR2)
        velox.wait_log(lambda line: "upgrade complete" in line, 2 * PATIENCE_S)
        assert velox.request("GET", "/v1/models").status == 200
        assert len(velox._listener_inodes()) == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_service_is_hardened() -> None:
    """As systemd itself judges it: 0 is the safest, 10 is without any protection."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "deploy/velox.service"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    told = next(line for line in done.stdout.splitlines() if "Overall exposure level" in line)
    assert float(told.partition("velox.service: ")[2].split()[0]) <= _MOST_EXPOSURE, told
