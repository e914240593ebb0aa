"""`velox usage --rebuild`: damaged files are set aside, what rings still have is kept, and sums are made anew.

Knows: in which order, and that no gateway may run meanwhile. Does not know: how sums are made (velox.ledger.sqlite).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from velox.ledger.collector import Collector
from velox.ledger.sqlite import set_damaged_aside
from velox.ledger.store import StoreError, UsageQuery
from velox.runtime.ledger.folder import LedgerFolder
from velox.runtime.ledger.stores import record_store
from velox.settings import Settings
from velox.shm.record_ring import RingError

__all__ = ["rebuild"]

_PAUSE_S: Final = 0.1
_ALL: Final = UsageQuery(0, 253_402_214_400)


def rebuild(settings: Settings, tell: Callable[[str], None]) -> None:
    """Do it; tell what was done. Raises StoreError."""
    if settings.ledger_database is not None:
        raise StoreError("--rebuild is for files: in PostgreSQL rows and sums are of one transaction")
    if settings.ledger is None or not Path(settings.ledger).is_dir():
        raise StoreError("--rebuild: VELOX_LEDGER names no folder that is there")
    try:
        folder = LedgerFolder.of(settings, 0)
    except RingError as exc:
        raise StoreError(f"{exc}; stop the gateway first") from exc
    assert folder is not None, "the setting names it"
    try:
        set_damaged_aside(folder.path, tell)
        with contextlib.closing(record_store(settings, tell=tell)) as store:
            collector = Collector(folder.all, store, time.time, tell=tell)
            while collector.collect() or collector.n_waiting:
                time.sleep(_PAUSE_S)
            found = store.totals(_ALL)
            n = found[0].sums.n if found else 0
        tell(f"sums have {n} calls")
    finally:
        folder.release()
