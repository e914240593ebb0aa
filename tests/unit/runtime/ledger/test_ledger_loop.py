"""When the ledger's process writes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tests.unit.ledger.made import NOON_S, made_call, write
from velox.ledger.record import row_of
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch, Store, StoreError, UsageQuery
from velox.ledger.writer import CallWriter
from velox.observe.metrics import WorkerMetrics
from velox.observe.series import CELLS
from velox.runtime.ledger.folder import LedgerFolder
from velox.runtime.ledger.ledger_process import LedgerLoop, Pruner
from velox.settings import Settings, load
from velox.shm.segment import Segment


class Turns(list[int]):
    """No signal has come for so many turns of the loop."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n_left = n

    def __bool__(self) -> bool:
        self.n_left -= 1
        return self.n_left < 0


class BusyStore(SqliteStore):
    """While it keeps a batch, one more call is recorded, until the last turn has been."""

    def __init__(self, folder: Path, writer: CallWriter, turns: Turns) -> None:
        super().__init__(folder, days=30)
        self.n_batches = 0
        self._writer = writer
        self._turns = turns

    def add(self, batch: Batch) -> None:
        super().add(batch)
        self.n_batches += 1
        assert self.n_batches < 20, "a turn never ends"
        if self._turns.n_left >= 0:
            write(self._writer, made_call(self.n_batches))


HOUR_S, DAY_S = 3600.0, 86_400.0


class Days:
    """A store of which only the days matter that it has calls of, and how much is dropped."""

    def __init__(self, tmp_path: Path, *days: int) -> None:
        self.store = SqliteStore(tmp_path, days=30)
        calls = [row_of(n, made_call(n, started_s=NOON_S + day * DAY_S)) for n, day in enumerate(days)]
        self.store.add(Batch("r", len(calls), calls, {}, NOON_S))

    @property
    def left(self) -> list[int]:
        calls = self.store.calls(UsageQuery(NOON_S - 400 * 86_400, NOON_S + 400 * 86_400))
        return [round((call.started_us / 1e6 - NOON_S) / DAY_S) for call in calls]


def metrics() -> WorkerMetrics:
    return WorkerMetrics(Segment(1, CELLS).other_metrics())


def test_old_calls_are_dropped_at_the_start_and_each_hour(tmp_path: Path) -> None:
    days, pruner = Days(tmp_path, -40, -29, -1), Pruner()
    pruner.turn(days.store, 10.0, NOON_S)
    assert days.left == [-29, -1]
    pruner.turn(days.store, 10.0 + HOUR_S - 1, NOON_S + 2 * DAY_S)
    assert days.left == [-29, -1], "an hour has not passed"


def test_clock_that_is_set_drops_nothing_until_it_has_gone_for_an_hour(tmp_path: Path) -> None:
    """Forward and back again: nothing is dropped. To stay there: what is old by then."""
    days, pruner = Days(tmp_path, -20, 0), Pruner()
    for hour, ahead_s in enumerate((0, 60 * DAY_S, 0)):
        pruner.turn(days.store, hour * HOUR_S, NOON_S + hour * HOUR_S + ahead_s)
        assert days.left == [-20, 0]
    for hour, left in ((3, [-20, 0]), (4, [0])):
        pruner.turn(days.store, hour * HOUR_S, NOON_S + hour * HOUR_S + 15 * DAY_S)
        assert days.left == left


def test_clock_that_is_wrong_at_the_start_drops_no_newer_calls_than_the_last_ones_tell(tmp_path: Path) -> None:
    """Some machines have none until they have asked the network."""
    days, pruner = Days(tmp_path, -40, -20, 0), Pruner()
    pruner.turn(days.store, 0.0, NOON_S + 9000 * DAY_S)
    assert days.left == [-20, 0]
    pruner.turn(days.store, HOUR_S, NOON_S + HOUR_S)
    assert days.left == [-20, 0]


def test_calls_of_a_gateway_that_is_idle_are_dropped_all_the_same(tmp_path: Path) -> None:
    """An hour after its start at the latest."""
    days, pruner = Days(tmp_path, 0), Pruner()
    for hour in (0, 1):
        assert days.left == [0]
        pruner.turn(days.store, hour * HOUR_S, NOON_S + 90 * DAY_S + hour * HOUR_S)
    assert days.left == []
    Pruner().turn(days.store, 0.0, NOON_S)  # nothing is there


def test_day_that_can_not_be_dropped_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that may not be removed, say: others are dropped, the log names it, and records are kept."""
    (tmp_path / "calls-2020-01-01.db").mkdir()
    store = SqliteStore(tmp_path, days=30)
    calls = [made_call(n, started_s=NOON_S + day * DAY_S) for n, day in enumerate((-40, 0))]
    store.add(Batch("r", 2, [row_of(n, call) for n, call in enumerate(calls)], {}, NOON_S))
    folder = LedgerFolder(tmp_path, 1, 1000)
    folder[0].begin()
    write(CallWriter(folder[0], 0xABCD), made_call(7))
    settings = load({"VELOX_LEDGER": str(tmp_path)}, cores=1, memory_bytes=0)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    LedgerLoop(settings, folder, metrics(), logging.getLogger("test"), wake_read, None, lambda _settings: store).run(
        [15]
    )

    (told,) = caplog.messages
    assert "old records can't be deleted" in told and "calls-2020-01-01.db: Is a directory" in told
    question = UsageQuery(NOON_S - 400 * 86_400, NOON_S + 400 * 86_400)
    assert [call.number for call in SqliteStore(tmp_path, days=30).calls(question)] == [1, 7]
    os.close(wake_read)
    os.close(wake_write)
    folder.release()


def test_signal_that_ends_nothing_ends_one_pause(tmp_path: Path) -> None:
    """A byte that stayed in the pipe would end each pause to come: the process would never rest."""
    settings = load({"VELOX_LEDGER": str(tmp_path)}, cores=1, memory_bytes=0)
    folder = LedgerFolder(tmp_path, 1, 1000)
    store = SqliteStore(tmp_path, days=30)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(wake_write, b"*")
    stopped: list[int] = []

    def opened(_settings: Settings) -> SqliteStore:
        stopped.append(15)
        return store

    LedgerLoop(settings, folder, metrics(), logging.getLogger("test"), wake_read, None, opened).run(stopped)

    with pytest.raises(BlockingIOError):
        os.read(wake_read, 1)
    os.close(wake_read)
    os.close(wake_write)
    folder.release()


def test_process_ends_where_the_store_is_ahead_of_the_ring(tmp_path: Path) -> None:
    """As after a power failure: nothing waits there, and it does not wait for it."""
    settings = load({"VELOX_LEDGER": str(tmp_path)}, cores=1, memory_bytes=0)
    folder = LedgerFolder(tmp_path, 1, 1000)
    store = SqliteStore(tmp_path, days=30)
    store.add(Batch(folder[0].name, 100, [], {}, NOON_S))
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    LedgerLoop(settings, folder, metrics(), logging.getLogger("test"), wake_read, None, lambda _settings: store).run(
        [15]
    )

    assert folder[0].left is None
    os.close(wake_read)
    os.close(wake_write)
    folder.release()


def test_rows_that_come_during_a_commit_wait_for_the_next_turn(tmp_path: Path) -> None:
    """Else each few rows are a write to the disk of their own. At the end nothing is left."""
    environ = {"VELOX_LEDGER": str(tmp_path), "VELOX_API_KEYS": "k", "VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:9"}
    settings, turns = load(environ, cores=1, memory_bytes=0), Turns(3)
    folder = LedgerFolder(tmp_path, 1, 1000)
    folder[0].begin()
    writer = CallWriter(folder[0], 0xABCD)
    write(writer, made_call(0))
    store = BusyStore(tmp_path, writer, turns)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(wake_write, b"w")  # it need not sleep

    beats: list[int] = []
    more = (None, lambda _settings: store)
    LedgerLoop(
        settings, folder, metrics(), logging.getLogger("test"), wake_read, *more, beat=lambda: beats.append(1)
    ).run(turns)

    assert (store.n_batches, folder[0].tail) == (4, folder[0].head)
    assert len(beats) >= 4, "each turn is a sign of life"
    os.close(wake_read)
    os.close(wake_write)
    folder.release()


def test_each_batch_is_a_sign_of_life_but_not_the_opening_of_the_store(tmp_path: Path) -> None:
    """Many rings are no process that is stuck, nor is a long migration, or a database that is away later."""
    settings, n_rings = load({"VELOX_LEDGER": str(tmp_path)}, cores=1, memory_bytes=0), 5
    folder = LedgerFolder(tmp_path, n_rings, 1000)
    for n in range(n_rings):
        folder[n].begin()
        write(CallWriter(folder[n], 0xABCD + n), made_call(n))
    events: list[str] = []

    class Slow(SqliteStore):
        def newest_s(self) -> int | None:
            events.append("prune")
            return super().newest_s()

        def add(self, batch: Batch) -> None:
            if events.count("add") == n_rings:
                raise StoreError("it is away")
            events.append("add")
            super().add(batch)

    def open_store(_settings: Settings) -> Store:
        events.append("open")
        if events.count("open") == 1 or "add" in events:
            raise StoreError("it is away")
        return Slow(tmp_path, days=30)

    class Again(Turns):
        def __bool__(self) -> bool:
            if "add" in events:
                write(CallWriter(folder[0], 0xFFFF), made_call(99))
            return super().__bool__()

    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(wake_write, b"w")  # it need not sleep
    logger = logging.getLogger("test")
    loop = LedgerLoop(
        settings, folder, metrics(), logger, wake_read, None, open_store, beat=lambda: events.append("beat")
    )
    loop.run(Again(4))

    assert events[:2] == ["open", "open"] and events[2:4] == ["prune", "beat"]
    at = events.index("add")
    assert events[at : at + 2 * n_rings] == ["add", "beat"] * n_rings
    assert events[-4:] == ["beat", "open"] * 2
    os.close(wake_read)
    os.close(wake_write)
    folder.release()
