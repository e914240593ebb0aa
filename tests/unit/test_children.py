"""When a process of the supervisor is started again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from velox.observe.series import CELLS
from velox.runtime.children import AdminProcess, LeaseProcess, LedgerProcess, SimulatorProcess
from velox.runtime.ledger_folder import LedgerFolder
from velox.settings import load
from velox.shm.quota_table import QuotaMemory
from velox.shm.segment import Segment


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[AdminProcess | LeaseProcess | LedgerProcess | SimulatorProcess, ...]]:
    settings, logger, segment = load({"VELOX_LEDGER": str(tmp_path)}), logging.Logger("test"), Segment(1, CELLS)
    folder = LedgerFolder(tmp_path, 1, 8192)
    simulator = SimulatorProcess(logger)
    yield (
        AdminProcess(segment),
        LeaseProcess(settings, segment, QuotaMemory(1024, 1), None, logger),
        LedgerProcess(settings, folder, logger),
        simulator,
    )
    simulator.close()
    folder.release()


def test_process_that_could_not_be_started_is_due_a_moment_later(
    processes: tuple[AdminProcess | LeaseProcess | LedgerProcess | SimulatorProcess, ...],
) -> None:
    """As one that died: the supervisor tries again, and not all the time."""
    for process in processes:
        assert process.is_due(100.0)
        process.started(0, 100.0)
        assert not process.is_due(100.05)
        assert process.is_due(100.15)
        process.started(7, 100.15)
        assert not process.is_due(200.0)
