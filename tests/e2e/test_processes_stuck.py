"""Processes that hang or crash: the admin process is replaced as workers are, and each death is one line of the log."""

from __future__ import annotations

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
        velox.wait_log(lambda line: "the admin process has not moved for 5 s: aborted" in line)
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
        line = json.loads(velox.wait_log(lambda line: "the process that keeps records died (SIGABRT)" in line, 90.0))
        assert line["reason"] == "stuck" and "in run_ledger" in line["traceback"]
        assert velox.metric("velox_ledger_restarts_total") == 1
        until(lambda: velox.metric("velox_ledger_waiting_records") == 0, "the next one keeps what waited")


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
