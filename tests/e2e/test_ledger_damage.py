"""A gateway whose records were damaged on the disk: nothing of it is silent, and rows and sums agree."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.e2e.harness import until
from tests.e2e.test_ledger import ask, n_kept, recording, usage


def answered(folder: Path, n: int) -> None:
    """Answer so many calls, have them kept, and be killed with kill -9."""
    before = n_kept(folder)
    with contextlib.suppress(AssertionError), recording(folder, workers="1") as velox:
        for _ in range(n):
            ask(velox)
        until(lambda: n_kept(folder) == before + n, "all are kept")
        velox.kill()


def test_logs_that_are_gone_after_a_kill_cost_no_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The write-ahead logs of all files are removed: the rings give it once more. The log says so, and none is lost."""
    folder = tmp_path / "ledger"
    answered(folder, 8)
    answered(folder, 8)
    for path in (*folder.glob("*.db-wal"), *folder.glob("*.db-shm")):
        path.unlink()
    with recording(folder, workers="1") as velox:
        ask(velox)
        until(lambda: n_kept(folder) == 17, "all have a row again")
        assert velox.metric("velox_ledger_lost_records_total") == 0
        velox.wait_log(lambda line: "are read again" in line)
    assert len(usage(folder, capsys, "--calls")) == 17
    assert sum(row["calls"] for row in usage(folder, capsys)) == 17


def test_database_that_was_deleted_is_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums are those of the files of days, and the log says what happened."""
    folder = tmp_path / "ledger"
    with recording(folder, workers="1") as velox:
        for _ in range(5):
            ask(velox)
    before = usage(folder, capsys, "--by", "key,model,day")
    for path in folder.glob("ledger.db*"):
        path.unlink()
    with recording(folder, workers="1") as velox:
        velox.wait_log(lambda line: "was missing, or empty: sums of 5 calls" in line)
    assert usage(folder, capsys, "--by", "key,model,day") == before


def test_flipped_record_is_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record that waits, and whose bytes change on the disk: the metric has it, the log its ring and time."""
    folder = tmp_path / "ledger"
    with recording(folder, workers="1") as velox:
        for _ in range(3):
            ask(velox)
    heads = {path: int.from_bytes(path.read_bytes()[16:24], "little") for path in folder.glob("*.ring")}
    ((ring, head),) = ((path, head) for path, head in heads.items() if head)
    data = bytearray(ring.read_bytes())
    at = 4096 + 4096 * 128 + (head - 2) * 128
    data[at + 20] ^= 1
    data[24:32] = (head - 3).to_bytes(8, "little")
    ring.write_bytes(data)
    for path in folder.glob("*.db*"):
        path.unlink()
    with recording(folder, workers="1") as velox:
        velox.wait_log(lambda line: "1 of the records" in line and "are damaged" in line)
        until(lambda: velox.metric("velox_ledger_lost_records_total") == 1, "it is counted")
        until(lambda: n_kept(folder) == 2, "the others are kept")
    assert sum(row["calls"] for row in usage(folder, capsys)) == 2
