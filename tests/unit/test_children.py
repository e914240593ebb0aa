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
from velox.shm.record_ring import RingError
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


def test_folder_of_records_that_can_not_be_had_is_told_with_its_setting(tmp_path: Path) -> None:
    """A path alone does not say what to change."""
    (tmp_path / "file").write_text("")
    settings = load({"VELOX_LEDGER": str(tmp_path / "file")})
    with pytest.raises(RingError, match=r"^VELOX_LEDGER can't be used: /.*/file: File exists$"):
        LedgerProcess.of(settings, 1, logging.Logger("test"))
