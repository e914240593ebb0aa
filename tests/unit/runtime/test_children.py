"""When a process of the supervisor is started again."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.ledger.made import made_call, write
from velox.ledger.writer import CallWriter
from velox.observe.oplog import operations_logger
from velox.observe.series import CELLS
from velox.runtime.children import AdminProcess, LeaseProcess, LedgerProcess, SimulatorProcess, reader
from velox.runtime.ledger.folder import LedgerFolder
from velox.runtime.processes.child_table import Child, Ended
from velox.runtime.processes.listeners import Listeners
from velox.runtime.processes.process import spawn
from velox.settings import load
from velox.shm.quota_table import QuotaMemory
from velox.shm.record_ring import RingError
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus
from velox.types import Address
from velox_sim.command import serve_on


class Leaving(Listeners):
    """A process that begins is told to leave."""

    def close_all(self) -> None:
        super().close_all()
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[Child, ...]]:
    settings, logger, segment = load({"VELOX_LEDGER": str(tmp_path)}), logging.Logger("test"), Segment(1, CELLS)
    folder = LedgerFolder(tmp_path, 1, 8192)
    simulator = SimulatorProcess(serve_on, logger)
    yield (
        AdminProcess(segment, lambda _: 0, logger),
        LeaseProcess(settings, segment, QuotaMemory(1024, 1), None, lambda: None, logger),
        LedgerProcess(settings, segment, folder, None, logger),
        simulator,
    )
    simulator.close()
    folder.release()


def test_process_that_could_not_be_started_is_due_a_moment_later(
    processes: tuple[Child, ...],
) -> None:
    """As one that died: the supervisor tries again, and not all the time."""
    for process in processes:
        assert process.is_due(100.0)
        process.started(0, 100.0)
        assert not process.is_due(100.05)
        assert process.is_due(100.15)
        process.started(7, 100.15)
        assert not process.is_due(200.0)


def test_folder_of_records_that_can_not_be_had_is_told_with_its_setting(tmp_path: Path) -> None:
    """A path alone does not say what to change."""
    (tmp_path / "file").write_text("")
    settings = load({"VELOX_LEDGER": str(tmp_path / "file")})
    with pytest.raises(RingError, match=r"^VELOX_LEDGER can't be used: /.*/file: File exists$"):
        LedgerProcess.of(settings, Segment(1, CELLS), None, logging.Logger("test"))


def test_ledger_process_that_was_stuck_is_counted_and_the_next_one_has_twice_the_time(tmp_path: Path) -> None:
    """It may have been slow, and must not be aborted at the same place for ever. One that was well for hours is not."""
    log, segment = io.StringIO(), Segment(1, CELLS)
    folder, status = LedgerFolder(tmp_path, 1, 8192), GatewayStatus(segment)
    process = LedgerProcess(load({"VELOX_LEDGER": str(tmp_path)}), segment, folder, None, operations_logger(log))
    process.started(7, 100.0)
    status.ledger_heartbeat_ns = 160_000_000_000
    assert (process.heartbeat_ns, status.ledger_pid, process.stuck_after_s) == (160_000_000_000, 7, 60.0)

    for n, stuck_after_s in enumerate((120.0, 240.0), 1):
        process.aborted = True
        process.ended(Ended(7, signal.SIGABRT, 300.0, ""), is_expected=False)
        assert (process.stuck_after_s, process.heartbeat_ns) == (math.inf, 0), "it opens its store first"
        status.ledger_heartbeat_ns = 300_000_000_000
        assert process.stuck_after_s == stuck_after_s
        assert (status.ledger_pid, status.ledger_restarts) == (0, n)
        assert json.loads(log.getvalue().splitlines()[-1])["reason"] == "stuck"
        process.started(8, 300.0)
        assert not process.aborted
    process.aborted = True
    process.ended(Ended(8, signal.SIGABRT, 9000.0, ""), is_expected=False)
    status.ledger_heartbeat_ns = 9_000_000_000_000
    assert process.stuck_after_s == 60.0
    process.started(9, 9000.0)
    process.ended(Ended(9, signal.SIGKILL, 9001.0, ""), is_expected=False)
    status.ledger_heartbeat_ns = 9_001_000_000_000
    assert process.stuck_after_s == 60.0
    assert json.loads(log.getvalue().splitlines()[-1])["reason"] == "died"
    folder.release()


def test_ledger_process_that_is_told_to_leave_while_it_starts_keeps_what_waits_first(tmp_path: Path) -> None:
    """A gateway that is stopped a moment after its start: SIGTERM comes while modules are loaded."""
    segment = Segment(1, CELLS)
    folder = LedgerFolder(tmp_path, 1, 8192)
    folder[0].begin()
    write(CallWriter(folder[0], 0xABCD), made_call(1))
    process = LedgerProcess(load({"VELOX_LEDGER": str(tmp_path)}), segment, folder, None, logging.Logger("test"))
    listeners = Leaving([Address(kind="tcp", host="127.0.0.1", port=0)], 1)

    _, status = os.waitpid(spawn(lambda: process.run(listeners)), 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert folder[0].tail == folder[0].head > 0
    listeners.close()
    folder.release()


def test_reader_of_budgets_holds_no_socket_of_clients() -> None:
    """In a drain it would keep them open after all workers have let go."""
    listeners = Listeners([Address(kind="tcp", host="127.0.0.1", port=0)], 2)
    sockets = (*listeners[0], *listeners[1])
    assert reader(lambda: sum(each.fileno() for each in sockets), listeners) == -2
