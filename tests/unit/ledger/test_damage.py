"""What becomes of records when a file is lost, cut or flipped: they are read again, or counted; never twice."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.unit.ledger.made import NOON_S, made_call, write, writer_of
from velox.cli import main
from velox.ledger.collector import Collector
from velox.ledger.record import Call
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import StoreError, Total, UsageQuery
from velox.runtime.ledger.folder import LedgerFolder
from velox.shm.record_ring import RecordRing

DAY_S: Final = 86_400
ALL: Final = UsageQuery(NOON_S - NOON_S % DAY_S - DAY_S, NOON_S - NOON_S % DAY_S + 2 * DAY_S)
DAY_FILE: Final = "calls-2026-11-23.db"
RING_AT: Final = 4096 + 4096 * 128


class Ledger:
    """The folder of a gateway that is started again and again. told: what its log has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.n = 0
        self.calls: list[Call] = []

    @property
    def ring(self) -> Path:
        return self.folder / "0.ring"

    def record(self, n: int, n_records: int = 1000) -> None:
        """Be a worker that records so many calls of two days, and ends."""
        writer = writer_of(self.ring, n_records)
        for _ in range(n):
            self.n += 1
            call = made_call(self.n, started_s=NOON_S + self.n % 2 * DAY_S, key=f"{self.n % 3:016x} k", tags=("a", "b"))
            write(writer, call)
            self.calls.append(call)

    def start(self) -> RecordRing:
        """Be a gateway from its start until all is kept; return its ring."""
        ring = RecordRing(self.ring, 1000)
        ring.start()
        ring.recover()
        store = SqliteStore(self.folder, days=30, tell=self.told.append)
        now_s = NOON_S
        collector = Collector([ring], store, lambda: now_s, tell=self.told.append)
        for _ in range(3):
            while collector.collect():
                pass
            now_s += 10
        store.close()
        return ring

    def killed_start(self) -> None:
        """Be a gateway whose ledger is killed after it has kept all: its files' logs stay."""
        child = os.fork()
        if not child:
            ring = RecordRing(self.ring, 1000)
            ring.start()
            ring.recover()
            store = SqliteStore(self.folder, days=30)
            Collector([ring], store, lambda: NOON_S).collect()
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)

    def rows(self) -> list[Call]:
        store = SqliteStore(self.folder, days=30, is_reader=True)
        found = list(store.calls(ALL))
        store.close()
        return sorted(found, key=lambda call: call.number)

    def sums(self, *by: str) -> list[Total]:
        store = SqliteStore(self.folder, days=30, is_reader=True)
        found = store.totals(UsageQuery(ALL.since_s, ALL.until_s, by))  # type: ignore[arg-type]
        store.close()
        return found

    def is_whole(self) -> bool:
        """All calls have a row, and sums by each period and by tags are those of the rows."""
        n, cost = len(self.calls), sum(call.cost_nano or 0 for call in self.calls)
        agree = all(
            (sum(each.sums.n for each in found), sum(each.sums.cost_nano for each in found))
            == (factor * n, factor * cost)
            for found, factor in ((self.sums("day"), 1), (self.sums("minute", "key"), 1), (self.sums("hour", "tag"), 2))
        )
        return agree and self.rows() == sorted(self.calls, key=lambda call: call.number)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("hurt", [remove, cut, flip])
@pytest.mark.parametrize("files", [(DAY_FILE,), ("ledger.db",), (DAY_FILE, "calls-2026-11-24.db", "ledger.db")])
def test_what_a_log_has_lost_is_read_again(
    ledger: Ledger, hurt: Callable[[Path], None], files: tuple[str, ...]
) -> None:
    """The log of a database is removed, cut or flipped after a kill: the rings still have what it had, and give it."""
    ledger.record(20)
    ledger.start()
    for _ in range(4):
        ledger.record(30)
        ledger.killed_start()
    for file in files:
        hurt(ledger.folder / f"{file}-wal")
        (ledger.folder / f"{file}-shm").unlink(missing_ok=True)
    ledger.record(10)
    ring = ledger.start()

    assert ledger.is_whole()
    assert ring.n_lost == 0
    assert any("are read again" in text or "made anew" in text for text in ledger.told)
    ledger.told.clear()
    ledger.start()
    assert ledger.is_whole() and not ledger.told


def test_what_a_ring_has_no_more_is_counted_and_told(ledger: Ledger) -> None:
    """It was written over since: so many records are lost. The others come again, and sums are those of rows."""
    ledger.record(5, 60)
    ledger.start()
    copies = list(ledger.folder.glob("*.db"))
    kept = ledger.folder / "copy"
    kept.mkdir()
    for path in copies:
        shutil.copy(path, kept)
    for _ in range(4):
        ledger.record(20, 60)
        ledger.start()
    assert ledger.is_whole()
    for path in ledger.folder.glob("*.db*"):
        path.unlink()
    for path in copies:
        shutil.copy(kept / path.name, path)
    ring = ledger.start()

    rows = ledger.rows()
    assert 0 < len(rows) < len(ledger.calls)
    assert sum(each.sums.n for each in ledger.sums("day")) == len(rows)
    assert ring.n_lost > 0
    assert any(f"{ring.n_lost} records are lost" in text for text in ledger.told)


def test_database_that_is_missing_is_made_anew(ledger: Ledger) -> None:
    """Sums from the files of days; records that waited are kept once; the log says it."""
    ledger.record(50)
    ledger.start()
    before = ledger.sums("day", "key"), ledger.sums("minute"), ledger.sums("hour", "tag", "model")
    for path in ledger.folder.glob("ledger.db*"):
        path.unlink()
    ledger.start()
    assert before == (ledger.sums("day", "key"), ledger.sums("minute"), ledger.sums("hour", "tag", "model"))
    assert any("was missing, or empty: sums of 50 calls since 2026-11-23" in text for text in ledger.told)

    ledger.record(7)
    for path in ledger.folder.glob("ledger.db*"):
        path.unlink()
    ledger.start()
    assert ledger.is_whole()


def test_header_of_zeros_doubles_nothing(ledger: Ledger) -> None:
    """As a page that was never written after a power loss: the ring has another name, and the same calls."""
    ledger.record(40)
    ledger.start()
    ledger.record(5)
    for n_bytes in (64, 4096):
        with ledger.ring.open("r+b") as file:
            file.write(bytes(n_bytes))
        ledger.start()
        assert ledger.is_whole(), n_bytes
        assert any("its header was lost" in text for text in ledger.told)
        ledger.told.clear()
        ledger.record(3)
        ledger.start()
        assert ledger.is_whole() and not ledger.told


def test_header_of_zeros_is_found_again_in_a_ring_that_went_round(ledger: Ledger) -> None:
    """Each record tells its number, wherever it stands. Names that were written over are not known any more."""
    for _ in range(6):
        ledger.record(20, 60)
        ledger.start()
    with ledger.ring.open("r+b") as file:
        file.write(bytes(4096))
    ledger.start()
    assert ledger.is_whole()
    ledger.record(20, 60)
    ledger.start()
    assert ledger.is_whole()


@pytest.mark.parametrize("seed", range(5))
def test_flipped_records_are_left_out_counted_and_told(ledger: Ledger, seed: int) -> None:
    """Sums are those of the rows that are there; the metric and the log have the others."""
    ledger.record(100)
    chance = random.Random(seed)
    first = 17  # names come before
    flipped = sorted(chance.sample(range(first, 100), 9))
    data = bytearray(ledger.ring.read_bytes())
    for number in flipped:
        data[RING_AT + number * 128 + chance.randrange(124)] ^= 1 << chance.randrange(8)
    ledger.ring.write_bytes(data)
    ring = ledger.start()

    rows = ledger.rows()
    assert len(rows) == 100 - 9
    assert sum(each.sums.n for each in ledger.sums("day")) == len(rows)
    assert ring.n_lost == 9
    (text,) = ledger.told
    assert "9 of the records" in text and "2026-11-2" in text


def test_rows_that_are_lost_for_good_are_told_and_what_was_spent_stays(ledger: Ledger) -> None:
    """Sums tell of more calls than the file of a day has: it was spent, and the log says how many rows are missing."""
    ledger.record(30)
    ledger.start()
    with sqlite3.connect(ledger.folder / DAY_FILE) as db:
        db.execute("DELETE FROM call WHERE number > 20")
    ledger.start()
    assert any("5 calls are in the sums, and their rows are lost" in text for text in ledger.told)
    assert sum(each.sums.n for each in ledger.sums("day")) == 30


def test_sums_that_have_less_than_the_rows_are_made_anew(ledger: Ledger) -> None:
    """However that came about: what is carried from elsewhere, and what has no row, stays."""
    ledger.record(30)
    ledger.start()
    before = ledger.sums("day", "key", "tag"), ledger.sums("minute", "key")
    dropped = ("(not recorded)", "", "", "", "", 3, 0, 0, 3, 1, 1, 0, 0, 0, 0)
    with sqlite3.connect(ledger.folder / "ledger.db") as db:
        db.execute("UPDATE total SET n = n - 1, cost_nano = cost_nano - 1500 WHERE key LIKE '%1 k'")
        start = NOON_S - NOON_S % DAY_S
        db.execute(f"INSERT INTO total VALUES ('day', {start}, {', '.join('?' * 15)})", dropped)
    ledger.start()
    assert any("had less than its rows: made anew from 15 calls" in text for text in ledger.told)
    assert before == (ledger.sums("day", "key", "tag"), ledger.sums("minute", "key"))
    assert [each.sums.n for each in ledger.sums("key") if each.group == ("(not recorded)",)] == [3]


@pytest.mark.parametrize("name", ["ledger.db", DAY_FILE])
def test_command_mends_what_is_damaged(ledger: Ledger, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Files are set aside and made anew: sums from rows, rows from what the ring still has."""
    ledger.record(40)
    ledger.start()
    ledger.record(5)
    for path in ledger.folder.glob(f"{name}*"):
        path.write_bytes(b"no database at all" * 1000)
    environ = {"VELOX_LEDGER": str(ledger.folder)}
    assert main(["usage"], environ) == (1 if name == "ledger.db" else 0)
    capsys.readouterr()

    assert main(["usage", "--rebuild"], environ) == 0
    said = capsys.readouterr().out
    assert f"{name} is damaged (file is not a database): it is {name}.damaged now" in said
    assert "sums have 45 calls" in said
    assert ledger.is_whole()
    ledger.told.clear()
    ledger.start()
    assert ledger.is_whole() and not ledger.told


def test_command_wants_the_gateway_stopped(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """And files to work on."""
    folder = LedgerFolder(ledger.folder, 1, 100)
    assert main(["usage", "--rebuild"], {"VELOX_LEDGER": str(ledger.folder)}) == 1
    assert "stop the gateway first" in capsys.readouterr().err
    folder.release()
    assert main(["usage", "--rebuild"], {"VELOX_LEDGER": str(ledger.folder / "none")}) == 1
    assert "names no folder" in capsys.readouterr().err


def test_damaged_database_is_named_with_what_to_do(ledger: Ledger) -> None:
    """It is not made anew by itself: a copy may have more."""
    ledger.record(10)
    ledger.start()
    for path in ledger.folder.glob("ledger.db*"):
        path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreError, match=r"ledger\.db: file is not a database; .*velox usage --rebuild"):
        ledger.start()
