"""The ledger's process.

Knows: what is kept when, and what is done when the store can't be used. Does not know: what a record is (velox.ledger),
or when a process is started (supervisor.py).

    supervisor    makes the rings before it forks; puts what a dead worker had open among its records
    workers       each writes into the ring of its block
    ledger        five times a second: takes what is there, and has it kept; at its end until the rings are empty

While the store can't be used, nothing is lost until a ring is full: then only sums are kept, and counted. Requests
never wait for any of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from velox.accounts.snapshot import KeySnapshot, SnapshotError
from velox.accounts.snapshot_check import SnapshotCheck
from velox.accounts.store import AccountStore
from velox.ledger.collector import MOST_OF_BATCH, Collector
from velox.ledger.store import Store, StoreError
from velox.ledger.totals import DAY_S
from velox.observe.metrics import WorkerMetrics
from velox.observe.oplog import operations_logger
from velox.outcomes import KeyHolder
from velox.runtime.keys.corrections import CHANGED, COMPARE_S, LEFT, MISSING, KeyCorrections, named
from velox.runtime.ledger.alerts import AlertWatch
from velox.runtime.ledger.budget_snapshot import BudgetSnapshot
from velox.runtime.ledger.folder import LedgerFolder
from velox.runtime.ledger.stores import account_store, record_store
from velox.settings import Settings
from velox.shm.budget_table import BudgetMemory

__all__ = ["LedgerLoop", "Pruner", "run_ledger"]

_TURN_S: Final = 0.2
_RETRY_S: Final = 1.0
_PRUNE_S: Final = 3600.0
# By so much the clock may be set, within that time, and still be one that goes as it should.
_SET_S: Final = 60.0
_KEYS_S: Final = 0.1  # in each turn
_KEYS_AGAIN_S: Final = 1.0  # after a comparison that found more to write


def run_ledger(
    settings: Settings,
    folder: LedgerFolder,
    metrics: WorkerMetrics,
    budgets: BudgetMemory | None,
    beat: Callable[[], None],
    open_store: Callable[[Settings], Store] = record_store,
    *,
    fails: Callable[[bool], None] = lambda _fails: None,
) -> int:
    """Keep what is recorded until SIGTERM, and then what is left; return the exit code. beat: a sign of life.

    fails: is told whether records can't be stored now.
    """
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    # A signal between the look and the sleep would be slept over.
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    logger = operations_logger(sys.stderr)
    LedgerLoop(settings, folder, metrics, logger, wake_read, budgets, open_store, beat=beat, fails=fails).run(stopped)
    return 0


class LedgerLoop:
    """The work of the ledger's process. wake: a descriptor that can be read when a signal has come.

    beat: called in each turn, and after each batch. Not before the store was open once: a migration may take long.
    fails: as for run_ledger().
    """

    def __init__(
        self,
        settings: Settings,
        folder: LedgerFolder,
        metrics: WorkerMetrics,
        logger: logging.Logger,
        wake: int,
        budgets: BudgetMemory | None = None,
        open_store: Callable[[Settings], Store] = record_store,
        *,
        beat: Callable[[], None] = lambda: None,
        fails: Callable[[bool], None] = lambda _fails: None,
    ) -> None:
        self._fails: Final = fails
        self._settings: Final = settings
        self._folder: Final = folder
        self._logger: Final = logger
        self._wake: Final = wake
        self._open_store: Final = open_store
        self._beat: Final = beat
        self._alerts: Final = AlertWatch.of(settings, budgets, folder.path, logger)
        self._store: Store | None = None
        self._collector: Collector | None = None
        self._was_open = False
        self._problem = ""  # as logged last; "": all is well
        self._pruner: Final = Pruner()
        self._budgets: Final = None if budgets is None else BudgetSaver(folder, budgets, logger)
        corrections = KeyCorrections(KeyHolder.FILES, metrics, logger)
        self._keys: Final = KeyWriter(settings, folder.path, corrections, logger) if settings.managed_keys else None

    def run(self, stopped: list[int]) -> None:
        """Work until `stopped` holds a signal, and then until nothing is left, or the store fails."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not stopped:
            is_well = self._turn()
            if self._budgets is not None:
                self._budgets.turn(time.monotonic(), time.time(), self._collector)
            has_more = self._keys is not None and self._keys.turn(time.monotonic())
            if self._alerts is not None:
                self._alerts.turn(time.monotonic(), time.time())
            pause_s = 0.0 if has_more else _TURN_S if is_well else _RETRY_S
            if poll.poll(pause_s * 1000):
                os.read(self._wake, 4096)  # what stays there would end each pause to come
        while self._turn() and self._collector is not None and self._collector.n_waiting > 0:
            pass
        if self._budgets is not None:
            self._budgets.close(time.time(), self._collector)
        self._close()
        if self._keys is not None:
            self._keys.close()
        if self._alerts is not None:
            self._alerts.close()

    def _turn(self) -> bool:
        """Take what is there. False: the store can't be used now."""
        if self._was_open:
            self._beat()
        try:
            if self._store is None or self._collector is None:
                self._store = self._open_store(self._settings)
                tell = partial(self._logger.warning, "%s")
                self._collector = Collector(self._folder.all, self._store, time.time, self._beat, tell)
                self._was_open = True
            # First: what comes now may tell a wrong time.
            self._prune(self._store)
            self._beat()
            # Of rows that come all the time, what came during a commit waits for the next turn: each commit is a write
            # to the disk, whether it holds one row or a thousand.
            while self._collector.collect() >= MOST_OF_BATCH:
                pass
        except StoreError as exc:
            self._close()
            self._fails(True)
            if str(exc) != self._problem:
                self._problem = str(exc)
                self._logger.error(
                    "ledger: records can't be stored: %(error)s; they wait in the ring files", {"error": exc}
                )
            return False
        self._fails(False)
        if self._problem:
            self._problem = ""
            self._logger.warning("ledger: records can be stored again")
        return True

    def _prune(self, store: Store) -> None:
        """Have what is old dropped if it is time. Records are kept all the same if that fails."""
        try:
            self._pruner.turn(store, time.monotonic(), time.time())
        except StoreError as exc:
            self._logger.error("ledger: old records can't be deleted: %(error)s; next try in an hour", {"error": exc})

    def _close(self) -> None:
        store, self._store, self._collector = self._store, None, None
        if store is not None:
            with contextlib.suppress(Exception):
                store.close()


class BudgetSaver:
    """Has what budgets have spent saved, in every turn. While it can't be, the last file stays."""

    def __init__(self, folder: LedgerFolder, memory: BudgetMemory, logger: logging.Logger) -> None:
        self._snapshot: Final = BudgetSnapshot(folder.path, memory, folder.all)
        self._logger: Final = logger
        self._problem = ""  # as logged last; "": all is well

    def __repr__(self) -> str:
        return f"<BudgetSaver {self._snapshot!r}>"

    def turn(self, now_s: float, time_s: float, collector: Collector | None) -> None:
        """Save what has changed, if it is time. now_s: monotonic. time_s: Unix time."""
        self._save(lambda: self._snapshot.turn(now_s, time_s, collector))

    def close(self, time_s: float, collector: Collector | None) -> None:
        """Save all there is: nobody spends any more."""
        self._save(lambda: self._snapshot.save(time_s, collector))

    def _save(self, save: Callable[[], None]) -> None:
        try:
            save()
        except OSError as exc:
            why = exc.strerror or str(exc)
            if why != self._problem:
                self._problem = why
                self._logger.error(
                    "budgets.snapshot can't be written: %(error)s; a restart without the ledger knows less",
                    {"error": why},
                )
        else:
            self._problem = ""


class Pruner:
    """Has what is old dropped once an hour, by a clock that has not been set meanwhile.

    At the start nothing is known of the clock: then the last day that has calls tells what is surely old. A clock that
    is wrong for a moment, at the start or later, drops nothing that is to be kept.
    """

    def __init__(self) -> None:
        self._due_s = 0.0
        self._ahead_s: float | None = None  # the clock, of the monotonic one

    def __repr__(self) -> str:
        return f"<Pruner due={self._due_s:.0f}>"

    def turn(self, store: Store, now_s: float, time_s: float) -> None:
        """Have it done if it is time. now_s: monotonic. time_s: Unix time. Raises StoreError."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + _PRUNE_S
        before_s, self._ahead_s = self._ahead_s, time_s - now_s
        if before_s is None:
            newest_s = store.newest_s()
            if newest_s is not None:
                store.prune(int(min(time_s, newest_s + DAY_S)))
        elif abs(self._ahead_s - before_s) <= _SET_S:
            store.prune(int(time_s))


class KeyWriter:
    """Writes down which managed keys are active, whenever that has changed. While it can't, the last ones hold.

    Now and then it compares what is written with the database.
    """

    def __init__(self, settings: Settings, folder: Path, corrections: KeyCorrections, logger: logging.Logger) -> None:
        self._settings: Final = settings
        self._folder: Final = folder
        self._logger: Final = logger
        self._store: AccountStore | None = None
        self._snapshot: Final = KeySnapshot(folder)
        self._corrections: Final = corrections
        self._check: SnapshotCheck | None = None
        self._check_s = 0.0
        self._due_s = 0.0
        self._problem = ""  # as logged last; "": all is well

    def __repr__(self) -> str:
        return f"<KeyWriter {self._folder}>"

    def turn(self, now_s: float) -> bool:
        """Look if it is time, and write a part of what there is; True: there may be more. now_s: monotonic."""
        if now_s < self._due_s:
            return False
        try:
            if self._store is None:
                self._store = account_store(self._settings)
            has_more = self._snapshot.turn(self._store)
            if not has_more:
                self._compare(self._store, now_s)
        except (StoreError, OSError) as exc:
            self.close()
            self._due_s = now_s + _RETRY_S
            if str(exc) != self._problem:
                self._problem = str(exc)
                self._logger.error(
                    "managed keys can't be read: %(error)s; the last known ones stay active", {"error": exc}
                )
            return False
        self._due_s = now_s if has_more else now_s + _KEYS_S
        if self._problem:
            self._problem = ""
            self._logger.warning("managed keys can be read again")
        return has_more

    def _compare(self, store: AccountStore, now_s: float) -> None:
        """Compare a part of what is written with the database. Raises StoreError, OSError."""
        try:
            if self._check is None:
                if now_s >= self._check_s:
                    self._check = self._snapshot.check(store)
                    self._check_s = now_s + (_KEYS_AGAIN_S if self._check is None else COMPARE_S)
                return
            found = self._check.part()
        except (SnapshotError, msgspec.DecodeError) as exc:
            self._logger.error(
                "the files of managed keys are damaged, they are written anew: %(error)s", {"error": exc}
            )
            self._check = None
            self._snapshot.rewrite()
            return
        if found is None:
            return
        self._check, self._check_s = None, now_s + COMPARE_S
        for entries, what in zip(found, (LEFT, MISSING, CHANGED), strict=True):
            if entries:
                self._corrections.tell(map(named, entries), what)
                self._snapshot.rewrite()

    def close(self) -> None:
        """Let go of the store."""
        store, self._store, self._check = self._store, None, None
        if store is not None:
            with contextlib.suppress(Exception):
                store.close()
