"""When the ledger's process writes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from tests.unit.ledger.made import NOON_S, made_call, write
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch
from velox.ledger.writer import CallWriter
from velox.runtime.ledger import LedgerLoop
from velox.runtime.ledger_folder import LedgerFolder
from velox.settings import load


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


def test_process_ends_where_the_store_is_ahead_of_the_ring(tmp_path: Path) -> None:
    """As after a power failure: nothing waits there, and it does not wait for it."""
    settings = load({"VELOX_LEDGER": str(tmp_path)}, cores=1, memory_bytes=0)
    folder = LedgerFolder(tmp_path, 1, 1000)
    store = SqliteStore(tmp_path, days=30)
    store.add(Batch(folder[0].name, 100, [], {}, NOON_S))
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    LedgerLoop(settings, folder, logging.getLogger("test"), wake_read, None, lambda _settings: store).run([15])

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

    LedgerLoop(settings, folder, logging.getLogger("test"), wake_read, None, lambda _settings: store).run(turns)

    assert (store.n_batches, folder[0].tail) == (4, folder[0].head)
    os.close(wake_read)
    os.close(wake_write)
    folder.release()
