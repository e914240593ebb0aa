"""Which managed keys are active, as the database has them, before the first request is served.

The files of keys are what this gateway wrote last: keys may have been made or blocked since then, by a command while it
did not run, or at another gateway of the same database; a folder that is new has none. So a child writes them anew, as
the ledger's process does while the gateway runs. Without the database they stay as they are.

Knows: how long a start waits for that. Does not know: how the files are laid out (velox.accounts).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from velox.accounts.snapshot import MOST_SNAPSHOT_BYTES, KeySnapshot, SnapshotError, snapshot_number, snapshot_path
from velox.ledger.store import StoreError
from velox.runtime.keys.credentials import KeyWatch
from velox.runtime.ledger.stores import account_store
from velox.runtime.processes.process import wait_for
from velox.settings import Settings
from velox.settings.yaml.tree import read_regular_file

__all__ = ["has_keys", "open_keys"]

# A database that hangs must not hold the gateway up.
_START_S: Final = 10.0
# How the child ends.
_IS_NEW, _HAS_FAILED, _IS_OLD = range(3)


def has_keys(settings: Settings) -> bool:
    """Tell whether the files of keys are there."""
    return settings.ledger is not None and Path(snapshot_path(Path(settings.ledger))).exists()


def open_keys(
    settings: Settings,
    keys: KeyWatch,
    logger: logging.Logger,
    fork: Callable[[Callable[[], int]], int],
    is_stopped: Callable[[], bool],
    on_reaped: Callable[[int], object],
    start_s: float = _START_S,
) -> None:
    """Have `keys` be those of the database, and wait for that. fork: starts a child; 0: it can't now."""
    if not settings.managed_keys or settings.ledger is None:
        return
    pid = fork(partial(_write, settings, Path(settings.ledger)))
    if not pid:
        return
    code = wait_for(pid, start_s, is_stopped)
    if code is None and not is_stopped():
        logger.error(
            "managed keys could not be read in %(seconds)g s: the last known ones stay active", {"seconds": start_s}
        )
    on_reaped(pid)
    if code != _IS_NEW:
        return
    keys.look(time.monotonic())
    while keys.is_busy and not is_stopped():
        keys.look(time.monotonic())
    keys.take_changes()  # nobody knows any other keys yet


def _write(settings: Settings, folder: Path) -> int:
    """Be the child. What is wrong with the database, the ledger's process says in a moment."""
    try:
        with contextlib.closing(account_store(settings, is_reader=True)) as store:
            if store.number() == _written(folder):
                return _IS_OLD
            KeySnapshot(folder).turn(store)
    except (StoreError, OSError):
        return _HAS_FAILED
    return _IS_NEW


def _written(folder: Path) -> int:
    """Return the number of the last change in the file of all keys; -1: it can't be used."""
    try:
        return snapshot_number(read_regular_file(snapshot_path(folder), MOST_SNAPSHOT_BYTES))
    except (OSError, SnapshotError):
        return -1
