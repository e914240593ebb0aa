"""Processes that hang or crash: the admin process is replaced as workers are, and each death is one line of the log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.tools import CHAT, Client, wait_warm

pytestmark = pytest.mark.more

ONE = {"VELOX_WORKERS": "1"}


def admin_pid(velox: VeloxProcess) -> int:
    """Return the admin process: neither the simulator, which is the first, nor a worker."""
    workers = velox.worker_pids()
    (found,) = [pid for pid in velox.child_pids()[1:] if pid not in workers]
    return found


def test_admin_process_that_hangs_is_replaced_and_probes_are_answered() -> None:
    """After 5 s. A probe that was waiting in the socket's queue is answered by the next one; workers never notice."""
    with VeloxProcess(ONE, ("serve", "--sim")) as velox, Client(velox) as client:
        wait_warm(velox)
        workers, victim = velox.worker_pids(), admin_pid(velox)
        os.kill(victim, signal.SIGSTOP)
        began_s = time.monotonic()
        assert client.ask("GET", "/v1/models").status == 200
        # The harness waits for 10 s: the connection lies in the queue until somebody takes it.
        assert velox.admin("/readyz").status == 200
        assert 4.5 < time.monotonic() - began_s < 9
        assert velox.metric("velox_admin_restarts_total") == 1
        assert velox.worker_pids() == workers and admin_pid(velox) != victim
        velox.wait_log(lambda line: "the admin process is stuck, no heartbeat for 5 s: aborted" in line)
        line = json.loads(velox.wait_log(lambda line: "the admin process died (SIGABRT)" in line))
        assert line["reason"] == "stuck" and "Fatal Python error: Aborted" in line["traceback"]
        assert "in _serve" in line["traceback"] or "in run" in line["traceback"]


def test_ledger_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    """After a minute: until then records wait, and requests are served."""
    with VeloxProcess({**ONE, "VELOX_LEDGER": str(tmp_path)}, ("serve", "--sim")) as velox, Client(velox) as client:
        wait_warm(velox)
        assert velox.metric('process_open_fds{process="ledger"}') > 0
        assert client.ask("POST", "/v1/chat/completions", CHAT).status == 200
        until(lambda: velox.metric("velox_ledger_waiting_records") == 0, "it has opened its store, and is watched")
        _simulator, _admin, victim, *_workers = velox.child_pids()
        os.kill(victim, signal.SIGSTOP)
        assert client.ask("POST", "/v1/chat/completions", CHAT).status == 200
        line = json.loads(velox.wait_log(lambda line: "the ledger process died (SIGABRT)" in line, 90.0))
        assert line["reason"] == "stuck" and "in run_ledger" in line["traceback"]
        assert velox.metric("velox_ledger_restarts_total") == 1
        until(lambda: velox.metric("velox_ledger_waiting_records") == 0, "the next one keeps what waited")


def test_new_connections_pass_by_a_worker_that_hangs() -> None:
    """X12: after a second the other one accepts on its socket, too, also what was queued there; until it is back.

    Without that, half of all new connections wait until it is aborted, 10 s later.
    """
    with VeloxProcess({"VELOX_WORKERS": "2"}, ("serve", "--sim")) as velox:
        wait_warm(velox)
        victim, other = velox.worker_pids()
        os.kill(victim, signal.SIGSTOP)
        began_s = time.monotonic()
        try:
            with contextlib.ExitStack() as clients:
                early = [clients.enter_context(velox.connect()) for _ in range(20)]
                for sock in early:
                    sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
                for sock in early:
                    assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
            for _ in range(20):
                with velox.connect() as sock:
                    sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
                    assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
            assert time.monotonic() - began_s < 8, "not only once the worker was aborted"
        finally:
            os.kill(victim, signal.SIGCONT)
        assert velox.worker_pids() == [victim, other]

        def accept_alike() -> bool:
            """Whether each worker gets new connections again."""
            before = [n_sockets(pid) for pid in (victim, other)]
            with contextlib.ExitStack() as clients:
                for _ in range(40):
                    clients.enter_context(velox.connect())
                until(lambda: sum(map(n_sockets, (victim, other))) >= sum(before) + 40, "accepted")
                return all(n_sockets(pid) > n + 4 for pid, n in zip((victim, other), before, strict=True))

        until(accept_alike, "both accept")


def n_sockets(pid: int) -> int:
    """Return how many sockets a process has open."""
    links = [Path(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd")]
    return sum(os.readlink(link).startswith("socket:") for link in links if link.is_symlink())


def test_gateway_stops_though_its_admin_process_hangs() -> None:
    """It is asked to leave, and killed when it does not."""
    with VeloxProcess(ONE, ("serve", "--sim")) as velox:
        os.kill(admin_pid(velox), signal.SIGSTOP)
        began_s = time.monotonic()
        assert velox.stop() == 0
        assert time.monotonic() - began_s < 8


def test_crash_of_a_worker_is_one_line_with_reason_and_traceback() -> None:
    """SIGSEGV and SIGABRT from outside: Python's own lines stand in a field, never between those of the log."""
    with VeloxProcess(ONE, ("serve", "--sim")) as velox:
        for number, error in ((signal.SIGSEGV, "Segmentation fault"), (signal.SIGABRT, "Aborted")):
            (victim,) = velox.worker_pids()
            os.kill(victim, number)
            line = json.loads(velox.wait_log(lambda line, n=number: f"worker 0 died ({n.name})" in line))  # type: ignore[misc]
            assert line["reason"] == "signal" and line["level"] == "error"
            first, _, rest = line["traceback"].partition("\n")
            assert first == f"Fatal Python error: {error}"
            assert "in run_worker" in rest
            until(lambda pid=victim: velox.worker_pids() not in ([], [pid]), "the next one")  # type: ignore[misc]
        os.kill(velox.worker_pids()[0], signal.SIGKILL)
        line = json.loads(velox.wait_log(lambda line: "worker 0 died (SIGKILL)" in line))
        assert line["reason"] == "signal" and "traceback" not in line, "it had no chance to say anything"
    assert all(json.loads(line)["message"] for line in velox.stderr.lines)
