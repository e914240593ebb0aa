"""The start of a gateway: how fast, what stops it, what does not, and on which cores it ends up."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.harness import REPOSITORY, VeloxProcess, until
from tests.e2e.recording import RecordingUpstream
from tests.e2e.tools import covers, free_port, reason, run_velox
from velox.settings.machine import has_own_cores

START_TO_READY_S = 10.0


def assert_one_line(done: subprocess.CompletedProcess[str], address: str) -> None:
    """Check that a start failed with exit code 1 and one line which names the address and the cause."""
    assert done.returncode == 1, done
    (line,) = done.stderr.splitlines()
    assert f"can't listen on {address}: Address already in use" in line


def test_start_is_ready_within_bounds() -> None:
    """From the command to the first answer; the aim is one second, the bound is for a busy machine."""
    began_s = time.monotonic()
    with VeloxProcess({"VELOX_WORKERS": "2"}, ("serve", "--sim"), by_exec=True) as velox:
        until(lambda: velox.admin("/readyz").status == 200, "ready")
        took_s = time.monotonic() - began_s
        assert velox.request("GET", "/v1/models").status == 200
    print(f"start to ready: {took_s:.2f} s")
    assert took_s < START_TO_READY_S


# Sends SIGHUP again and again from when it is ignored, which is SigIgn's lowest bit, until the gateway is ready.
_HANG_UP = """
( until grep -q "^SigIgn:.*[13579bdf]$" /proc/$$/status; do sleep 0.01; done
  while kill -HUP $$ && ! grep -q "^SigCgt:.*[13579bdf]$" /proc/$$/status; do sleep 0.01; done ) &
exec "$@"
"""


def test_sighup_while_it_starts_does_not_end_it() -> None:
    """It asks for a reload; what reads its settings right now need not do it twice."""
    with VeloxProcess({"VELOX_WORKERS": "1"}, ("serve", "--sim"), launcher=("sh", "-c", _HANG_UP, "sh")) as velox:
        assert velox.request("GET", "/v1/models").status == 200


def test_start_on_a_port_in_use_says_so_and_exits() -> None:
    """One clear line and exit code 1, for the data port and for the admin port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        assert_one_line(run_velox({"VELOX_LISTEN": taken}, "serve", "--sim"), taken)
        env = {"VELOX_LISTEN": "127.0.0.1:0", "VELOX_ADMIN_LISTEN": taken}
        assert_one_line(run_velox(env, "serve", "--sim"), taken)


def test_start_on_the_port_of_another_gateway_says_so_and_exits() -> None:
    """SO_REUSEPORT must not let two gateways share a port without a word."""
    with VeloxProcess({"VELOX_WORKERS": "2"}, ("serve", "--sim"), by_exec=True) as velox:
        taken = f"127.0.0.1:{velox.port}"
        assert_one_line(run_velox({"VELOX_LISTEN": taken, "VELOX_WORKERS": "2"}, "serve", "--sim"), taken)
        assert velox.request("GET", "/v1/models").status == 200


def test_start_on_a_stale_unix_socket_replaces_it(tmp_path: object) -> None:
    """A gateway that was killed leaves its file; the next one starts all the same."""
    path = f"{tmp_path}/velox.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with VeloxProcess(
        {"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "2"}, ("serve", "--sim"), by_exec=True
    ) as velox:
        assert velox.request("GET", "/v1/models").status == 200
        done = run_velox({"VELOX_LISTEN": f"unix:{path}"}, "serve", "--sim")
        assert done.returncode == 1 and "Address already in use" in done.stderr


def test_start_that_fails_leaves_no_unix_socket(tmp_path: Path) -> None:
    """On another address, or later: no file of a gateway that never was."""
    path, folder = tmp_path / "velox.sock", tmp_path / "ledger"
    folder.write_text("no folder")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        assert_one_line(run_velox({"VELOX_LISTEN": f"unix:{path}", "VELOX_ADMIN_LISTEN": taken}, "serve"), taken)
    assert not path.exists()
    sockets = {"VELOX_LISTEN": f"unix:{path}", "VELOX_ADMIN_LISTEN": f"unix:{path}.admin"}
    done = run_velox({**sockets, "VELOX_LEDGER": str(folder)}, "serve")
    assert done.returncode == 1
    assert f"VELOX_LEDGER can't be used: {folder}: File exists" in done.stderr
    assert list(tmp_path.iterdir()) == [folder]


@covers("VELOX_PIN_CPUS", "VELOX_WORKERS")
def test_workers_are_pinned_one_to_a_core_unless_told_otherwise() -> None:
    """C32: worker n is on core n modulo the cores; `off`: on all; `auto`: a single one shares no core with others'."""
    cores = sorted(os.sched_getaffinity(0))
    for pin, n_workers in (("on", 3), ("off", 3), ("auto", 1)):
        env = {"VELOX_WORKERS": str(n_workers), "VELOX_PIN_CPUS": pin}
        with VeloxProcess(env, ("serve", "--sim"), by_exec=True) as velox:
            found = sorted(sorted(os.sched_getaffinity(pid)) for pid in velox.worker_pids())
            pinned = sorted([cores[slot % len(cores)]] for slot in range(n_workers))
            is_pinned = pin == "on" or (pin == "auto" and has_own_cores(n_workers, cores))
            assert found == (pinned if is_pinned else [cores] * n_workers)
            assert os.sched_getaffinity(velox.pid) == set(cores), "the supervisor is free"


def test_signals_of_users_end_nothing() -> None:
    """U5: SIGUSR1, of logrotate and others, to all processes, SIGUSR2 to all but the supervisor: none of them ends."""
    with VeloxProcess({"VELOX_WORKERS": "2"}, ("serve", "--sim"), by_exec=True) as velox:
        processes = [velox.pid, *velox.child_pids()]
        assert len(processes) == 5  # the supervisor, two workers, admin, the simulator
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            for pid in processes[number == signal.SIGUSR2 :]:  # to the supervisor it means an upgrade
                os.kill(pid, number)
        velox.request("GET", "/v1/models")
        assert [velox.pid, *velox.child_pids()] == processes
    assert velox.process.returncode == 0


def test_processes_are_told_apart_by_their_titles() -> None:
    """In `ps` and in `top`; the supervisor is found by its command line."""
    with VeloxProcess({"VELOX_WORKERS": "2"}, ("serve", "--sim"), by_exec=True) as velox:
        titles = {_command_line(pid): Path(f"/proc/{pid}/comm").read_text().strip() for pid in velox.child_pids()}
        assert titles == {
            "velox: simulator": "velox simulator",
            "velox: admin process": "velox admin pro",
            "velox: worker 0": "velox worker 0",
            "velox: worker 1": "velox worker 1",
        }
        assert _command_line(velox.pid).endswith("velox serve --sim")


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()


def test_start_without_upstream_serves_502_until_it_is_there() -> None:
    """Issue: a failed warm-up does not stop the start; it is retried, and readiness tells."""
    upstream = RecordingUpstream()
    upstream.port = free_port()
    settings = {"VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{upstream.port}", "VELOX_WORKERS": "2"}
    with VeloxProcess(settings, by_exec=True) as velox:
        state = velox.admin("/readyz")
        assert state.status == 503
        assert state.json()["reasons"] == [f"worker {n} has no connection to its upstream" for n in (0, 1)]
        reply = velox.request("GET", "/v1/models")
        assert (reply.status, reason(reply), reply.header("x-should-retry")) == (
            502,
            "upstream_connect",
            "true",
        )
        assert velox.metric("velox_upstream_warm_failures_total") > 0
        with upstream:
            # Back-off has doubled a few times by now: 0.1, 0.2, 0.4, 0.8 s, each up to half longer.
            until(lambda: velox.admin("/readyz").status == 200, "ready once the upstream is there", 5)
            assert velox.request("GET", "/v1/models").status == 200
        until(lambda: velox.admin("/readyz").status == 503, "not ready once it has gone", 5)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_start_with_closed_standard_streams_serves(closed: str) -> None:
    """Some supervisors of services start their programs so. Nothing else takes the numbers of what is closed."""
    launcher = ("sh", "-c", f'exec "$@" {closed}', "sh")
    with VeloxProcess(
        {"VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all"}, ("serve", "--sim"), launcher=launcher
    ) as velox:
        assert velox.request("GET", "/v1/models").status == 200
        for pid in (velox.pid, *velox.worker_pids()):
            links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1)]
            assert all(link == os.devnull or link.startswith("pipe:") for link in links), links
        assert velox.metric("velox_log_dropped_total") == 0


def answers(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == 200
        except ConnectionRefusedError:
            return False


def test_start_with_closed_standard_error_serves() -> None:
    """What it would say is lost, and no more than that."""
    port = free_port()
    env = {"PATH": os.environ["PATH"], "VELOX_WORKERS": "1", "VELOX_LISTEN": f"127.0.0.1:{port}"}
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-m", "velox", "serve", "--sim"]
    with subprocess.Popen(command, cwd=REPOSITORY, env={**env, "VELOX_ADMIN_LISTEN": "off"}) as process:
        try:
            until(lambda: answers(port), "it serves")
        finally:
            process.terminate()
        assert process.wait(START_TO_READY_S) == 0
