"""No process can be started, for nothing is left that one needs: the gateway serves on with those that it has.

At its start it says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import REPOSITORY, START_S, VeloxProcess, until
from tests.e2e.tools import clients, run_velox


@contextlib.contextmanager
def no_descriptor_free(pid: int) -> Iterator[None]:
    """Let a process open nothing more for the block. What a limit of processes does too, but holds for root as well."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def is_served(velox: VeloxProcess) -> bool:
    return velox.request("GET", "/v1/models").status == 200


def test_worker_that_can_not_be_replaced_is_waited_for() -> None:
    """The other one serves all the while; when there can be processes again, it is replaced."""
    with VeloxProcess({"VELOX_WORKERS": "2"}, ("serve", "--sim")) as velox, clients(velox, 1) as (client,):
        other = client.worker()
        (victim,) = [pid for pid in velox.worker_pids() if pid != other]
        with no_descriptor_free(velox.pid):
            os.kill(victim, signal.SIGKILL)
            velox.wait_log(lambda line: "can't be started, and is tried again: Too many open files" in line)
            # A connection of its own might wait in the socket of the slot for the next worker.
            assert client.ask().status == 200
            assert velox.worker_pids() == [other]
        velox.wait_log(lambda line: "processes can be started again" in line)
        until(lambda: len(velox.worker_pids()) == 2, "the worker is replaced")
        assert is_served(velox)
        assert sum("can't be started" in line for line in velox.stderr.lines) == 1


def test_admin_process_that_can_not_be_replaced_is_waited_for() -> None:
    with VeloxProcess({"VELOX_WORKERS": "1"}, ("serve", "--sim")) as velox:
        workers = velox.worker_pids()
        (admin,) = [pid for pid in velox.child_pids()[1:] if pid not in workers]
        with no_descriptor_free(velox.pid):
            os.kill(admin, signal.SIGKILL)
            velox.wait_log(lambda line: "the admin process can't be started" in line)
            assert is_served(velox)
        assert velox.admin("/readyz").status == 200
        assert velox.worker_pids() == workers


def test_reload_without_a_process_is_refused_and_made_up_for(tmp_path: Path) -> None:
    """Who asks is told; the gateway reads it by itself when it can."""
    file = tmp_path / "velox.yaml"
    file.write_text("access_log: off\n")
    with VeloxProcess({"VELOX_WORKERS": "1", "VELOX_CONFIG": str(file)}, ("serve", "--sim")) as velox:
        with no_descriptor_free(velox.pid):
            file.write_text("access_log: all\n")
            done = run_velox({}, "reload", "--admin", velox.admin_url.removeprefix("http://"))
            assert done.returncode == 1 and "no process could be started to read it" in done.stderr
            assert velox.metric("velox_config_bad") == 1
            assert is_served(velox)
        velox.wait_log(lambda line: "configuration 2 is in use" in line)
        assert velox.metric("velox_config_bad") == 0


@pytest.mark.parametrize(
    ("soft", "hard", "reason"),
    [
        ("24", "24", "Too many open files; raise the limit of open files (ulimit -n)"),
        # The soft one is raised before anything is opened: what stops this start is the address.
        ("24", "4096", "can't listen on 192.0.2.1:1: Cannot assign requested address"),
    ],
)
def test_start_with_few_open_files_says_what_to_raise(soft: str, hard: str, reason: str) -> None:
    """Many workers and addresses need hundreds, before any of them serves."""
    command = f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$0" -m velox serve --sim'
    many = ",".join(["127.0.0.1:0"] * 15)
    done = subprocess.run(
        ["sh", "-c", command, sys.executable],
        cwd=REPOSITORY,
        env={
            "VELOX_ADMIN_LISTEN": "192.0.2.1:1",
            "VELOX_ADMIN_TOKEN": "admin-of-this-test",
            "VELOX_LISTEN": many,
            "VELOX_WORKERS": "2",
        },
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 1 and "bug" not in done.stderr
    assert reason in done.stderr


def test_shortage_is_told_before_the_first_worker_serves() -> None:
    """As `velox check` would: what is too little may end the gateway before it is ready."""
    launcher = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    with VeloxProcess({"VELOX_WORKERS": "1"}, ("serve", "--sim"), launcher=launcher) as velox:
        told, ready = (
            next(at for at, line in enumerate(velox.stderr.lines) if words in line)
            for words in ("64 open files are allowed (ulimit -n)", "ready in")
        )
        assert told < ready


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("-v 250000", "Cannot allocate memory; raise the limit of address space (ulimit -v)"),
        ("-f 0", "File too large; raise the limit of file sizes (ulimit -f), which counts for it, too"),
    ],
)
def test_start_without_shared_memory_says_what_to_raise(limit: str, reason: str) -> None:
    command = f'ulimit {limit}; exec "$0" -m velox serve --sim'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable],
        cwd=REPOSITORY,
        env={"VELOX_ADMIN_LISTEN": "off", "VELOX_LISTEN": "127.0.0.1:0"},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 1 and "of shared memory" in done.stderr
    assert reason in done.stderr and "bug" not in done.stderr
