"""A gateway as a daemon: `velox start`, `stop`, `restart`, `status`, `logs`, as an operator types them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.harness import REPOSITORY, LineLog, read_reply, until
from tests.e2e.steady_load import SteadyLoad
from tests.e2e.tools import CHAT, covers, free_port, request_bytes
from tests.patience import NEVER_S, PATIENCE_S
from velox.runtime.processes.pid_file import find

_SLOW: Final = ("--timeout", "120s")


class Daemon:
    """The files and addresses of one gateway, and the commands that are typed for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.pid_file = folder / "run/velox.pid"
        self.log_file = folder / "log/velox.log"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "VELOX_LISTEN": f"127.0.0.1:{self.port}",
            "VELOX_ADMIN_LISTEN": f"127.0.0.1:{free_port()}",
            "VELOX_WORKERS": "1",
            "VELOX_DRAIN_TIMEOUT": "120s",
            "VELOX_ACCESS_LOG": "all",
            "VELOX_CONFIG": str(folder / "velox.yaml"),
        }
        self.configure()

    def configure(self, **settings: object) -> None:
        """Write the file of settings, which has the places of the files besides."""
        file = self.folder / "velox.yaml"
        file.write_text(
            json.dumps({"pid_file": str(self.pid_file), "log_file": str(self.folder / "log/velox.log"), **settings})
        )

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "velox", *words],
            cwd=REPOSITORY,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE_S,
            check=False,
        )

    def start(self, *words: str) -> int:
        """Start it; return its process id."""
        done = self.run("start", "--sim", *_SLOW, *words)
        assert done.returncode == 0, (done, self.log())
        return self.pid

    @property
    def pid(self) -> int:
        """The process that has the pid file; 0: none."""
        return find(str(self.pid_file)).pid

    def ask(self, body: bytes = CHAT) -> int:
        """Send one request; return its status."""
        with self.connect() as sock:
            sock.sendall(request_bytes("POST", "/v1/chat/completions", body))
            return read_reply(sock).status

    def connect(self) -> socket.socket:
        """Return a connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def log(self) -> str:
        """Return the log so far."""
        return self.log_file.read_text() if self.log_file.exists() else ""

    def kill(self) -> None:
        """End what is left."""
        pid = self.pid
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            until(lambda: not self.pid, "it is gone")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    found = Daemon(tmp_path)
    (tmp_path / "log").mkdir()
    yield found
    found.kill()


@covers("VELOX_PID_FILE", "VELOX_LOG_FILE")
def test_daemon_is_started_upgraded_and_stopped(daemon: Daemon) -> None:
    """Each command says what it did; a restart fails nothing, and the pid file stays that of the first process."""
    assert (daemon.run("status").returncode, daemon.run("stop").returncode) == (3, 0)

    done = daemon.run("start", "--sim", *_SLOW)
    pid = daemon.pid
    assert done.returncode == 0 and f"process {pid}, listening on http://127.0.0.1:{daemon.port}" in done.stdout, done
    assert daemon.pid_file.read_text() == f"{pid}\n" and os.getsid(pid) == pid
    assert daemon.ask() == 200, "it is ready when the command ends"

    again = daemon.run("start", "--sim")
    assert again.returncode == 1 and f"a gateway runs already: process {pid}" in again.stderr, again
    by_hand = daemon.run("serve", "--sim")
    assert by_hand.returncode == 1 and f"process {pid} has the pid file" in daemon.log(), by_hand

    told = json.loads(daemon.run("status", "--json").stdout)
    assert (told["is_running"], told["pid"], told["ready"], told["serving"], told["workers"]) == (True, pid, True, 1, 1)
    assert told["listening"] == [f"http://127.0.0.1:{daemon.port}"] and told["upstreams"][0]["state"] == "in use"

    daemon.configure(workers=2)
    with SteadyLoad(daemon.port, rate=10, streams=1) as load:
        done = daemon.run("restart", VELOX_WORKERS="")
        assert done.returncode == 0 and "serves now" in done.stdout, (done, daemon.log())
    assert load.failures == [] and load.done["request"], load.done
    assert daemon.pid == pid and daemon.run("status").returncode == 0
    other = daemon.run("restart", "--port", "1")
    assert other.returncode == 2 and "--port" in other.stderr and "keeps the command line" in other.stderr

    done = daemon.run("stop")
    assert done.returncode == 0 and done.stdout == f"velox has ended: process {pid}\n", done
    assert not daemon.pid_file.exists()
    assert daemon.run("status").returncode == 3
    lines = [json.loads(line) for line in daemon.log().splitlines()]
    assert any("shutdown complete" in line.get("message", "") for line in lines)
    assert any(line.get("path") == "/v1/chat/completions" for line in lines), "the access log is in the same file"


def test_pid_file_of_the_dead_and_of_others_is_taken_over(daemon: Daemon) -> None:
    """Neither is taken for a gateway, and another program gets no signal."""
    daemon.pid_file.parent.mkdir()
    with subprocess.Popen(["sleep", str(10 * NEVER_S)]) as other:
        daemon.pid_file.write_text(f"{other.pid}\n")
        done = daemon.run("status")
        assert done.returncode == 1 and "is gone" in done.stdout, done
        done = daemon.run("stop")
        assert done.returncode == 0 and "does not run" in done.stdout, done
        first = daemon.start()
        assert first != other.pid and other.poll() is None
        other.kill()
    os.kill(first, signal.SIGKILL)
    until(lambda: not daemon.pid, "the kernel has let go of the lock")
    assert daemon.run("status").returncode == 1
    second = daemon.start()
    assert second != first and daemon.ask() == 200


def test_start_that_fails_says_why_and_leaves_nothing(daemon: Daemon) -> None:
    """Settings: exit code 2. A port that is taken, a time that is over: 1."""
    done = daemon.run("start", VELOX_WORKERS="many")
    assert done.returncode == 2 and "VELOX_WORKERS is 'many'" in done.stderr, done
    with socket.create_server(("127.0.0.1", daemon.port)):
        done = daemon.run("start", "--sim", *_SLOW)
    assert done.returncode == 1 and f"can't listen on 127.0.0.1:{daemon.port}" in done.stderr, done
    done = daemon.run("start", "--sim", "--timeout", "1ms")
    assert done.returncode == 1 and "was not ready within 0.001 s (--timeout), and is stopped" in done.stderr, done
    assert not daemon.pid
    done = daemon.run("start", "--pid-file", str(daemon.folder / "velox.yaml"))
    assert done.returncode == 1 and "something else than a pid file" in done.stderr, done


def test_stop_waits_for_what_runs_unless_it_is_told_not_to(daemon: Daemon) -> None:
    """A request without an answer holds the drain up: after the time the command says so, and --now cuts it."""
    with socket.create_server(("127.0.0.1", 0)) as silent, contextlib.ExitStack() as held:
        daemon.configure(upstreams=[{"name": "silent", "origin": f"http://127.0.0.1:{silent.getsockname()[1]}"}])
        done = daemon.run("start", *_SLOW)
        assert done.returncode == 0, (done, daemon.log())
        pid = daemon.pid
        client = held.enter_context(daemon.connect())
        client.sendall(request_bytes("POST", "/v1/chat/completions", CHAT))
        silent.settimeout(PATIENCE_S)
        while True:  # others warm its connections up
            upstream = held.enter_context(silent.accept()[0])
            if upstream.recv(65536).startswith(b"POST "):
                break
        done = daemon.run("stop", "--timeout", "200ms")
        assert done.returncode == 1 and f"process {pid} has not ended within 0.2 s" in done.stderr, done
        assert daemon.pid == pid
        done = daemon.run("stop", "--now")
        assert done.returncode == 0, done
    assert not daemon.pid and not daemon.pid_file.exists()


def test_logs_are_rotated_and_followed(daemon: Daemon) -> None:
    """Both logs are in one file; `velox logs -f` goes on over the rotation, and shows what is asked for."""
    daemon.start()
    process = subprocess.Popen(
        # What a shell runs in the background ignores SIGINT, and so does all that it starts in turn.
        ["env", "--default-signal=INT", sys.executable, "-m", "velox", "logs", "-f", "--errors"],
        cwd=REPOSITORY,
        env=daemon.env,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    seen = LineLog(process.stdout, "velox-logs")
    try:
        assert (daemon.ask(), daemon.ask(b"{")) == (200, 400)
        seen.wait(lambda line: " 400 " in line and "POST /v1/chat/completions" in line, PATIENCE_S)
        old = daemon.log_file.with_suffix(".1")
        daemon.log_file.rename(old)
        os.kill(daemon.pid, signal.SIGUSR1)
        until(daemon.log_file.exists, "SIGUSR1 has opened the file anew")
        assert daemon.ask(b"{}") == 400
        seen.wait(lambda line: len(seen.lines) == 2, PATIENCE_S)
        assert all(" 400 " in line for line in seen.lines)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        seen.close()
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: "configuration" in daemon.log(), "the operations log is in the new file, too")

    def shown(*words: str) -> list[str]:
        done = daemon.run("logs", *words, "--file", str(old), "--file", str(daemon.log_file))
        assert done.returncode == 0, done
        return done.stdout.splitlines()

    assert [line.split()[1] for line in shown("--errors", "--model", "m")] == []
    assert [line.split()[1] for line in shown("--model", "m")] == ["200"]
    assert shown("--slow", "1h") == []
    found: list[dict[str, Any]] = [json.loads(line) for line in shown("--errors", "--json")]
    assert [line["status"] for line in found] == [400, 400]
    done = daemon.run("logs", "--file", "/nowhere")
    assert done.returncode == 1 and "there is no /nowhere" in done.stderr


def test_restart_without_an_admin_listener_goes_by_signal(daemon: Daemon) -> None:
    """What came of it is read from the log; a version that does not get ready changes nothing. It also starts."""
    daemon.env["VELOX_ADMIN_LISTEN"] = "off"
    done = daemon.run("restart", "--sim", *_SLOW)
    assert done.returncode == 0 and "velox runs: process" in done.stdout, done
    pid = daemon.pid
    done = daemon.run("restart")
    assert done.returncode == 0 and "serves now" in done.stdout, (done, daemon.log())
    until(lambda: "upgrade complete" in daemon.log(), "the version before has ended")
    daemon.configure(queue_depth="many")
    done = daemon.run("restart")
    assert done.returncode == 1 and "queue_depth is 'many'" in done.stderr, done
    status = daemon.run("status")
    assert (status.returncode, daemon.pid) == (0, pid) and "admin listener is off" in status.stdout, status
    assert daemon.ask() == 200
