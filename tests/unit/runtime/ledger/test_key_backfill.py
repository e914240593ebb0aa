"""Managed keys at the start: those of the database, whatever a gateway has left in its folder."""

from __future__ import annotations

import io
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.unit.runtime.ledger.test_budget_backfill import fork
from velox.accounts.service import Accounts
from velox.accounts.sqlite import SqliteAccounts
from velox.observe.metrics import WorkerMetrics
from velox.observe.series import CELLS
from velox.runtime.keys.credentials import KeyWatch
from velox.runtime.ledger.key_backfill import open_keys
from velox.settings import load
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus

ACTOR = "tests"


def hang(_run: Callable[[], int]) -> int:
    """Start a child that never ends by itself."""
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(1)
    return pid


def opened(
    folder: Path, start: Callable[[Callable[[], int]], int] = fork, start_s: float = 10.0
) -> tuple[set[str], str]:
    """Start in a folder; return the ids of the keys that hold before the first request, and the log."""
    settings = load({"VELOX_LEDGER": str(folder), "VELOX_MANAGED_KEYS": "on"})
    lines = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(lines))
    segment = Segment(1, CELLS)
    keys = KeyWatch(settings, GatewayStatus(segment), WorkerMetrics(segment.other_metrics()), logger)
    reaped: list[int] = []
    open_keys(settings, keys, logger, start, lambda: False, reaped.append, start_s)
    assert len(reaped) == 1 and keys.take_changes() == {}
    return {key.name for key in keys.keys}, lines.getvalue()


def test_keys_of_a_new_folder_hold_from_the_first_request(tmp_path: Path) -> None:
    """As after `velox key create`, or in a folder beside a database that others use."""
    accounts = Accounts(SqliteAccounts(tmp_path))
    accounts.create_key({"name": "shop"}, ACTOR)
    assert opened(tmp_path) == ({"shop"}, "")


def test_key_that_was_blocked_while_no_gateway_ran_never_holds(tmp_path: Path) -> None:
    """The folder still says that it does."""
    accounts = Accounts(SqliteAccounts(tmp_path))
    shop, _ = accounts.create_key({"name": "shop"}, ACTOR)
    accounts.create_key({"name": "job"}, ACTOR)
    assert opened(tmp_path) == ({"shop", "job"}, "")
    accounts.block("key", shop.id, ACTOR)
    assert opened(tmp_path) == ({"job"}, "")


def test_database_that_hangs_or_fails_holds_no_start_up(tmp_path: Path) -> None:
    """The keys that were active last stay so."""
    store = SqliteAccounts(tmp_path)
    shop, _ = Accounts(store).create_key({"name": "shop"}, ACTOR)
    assert opened(tmp_path) == ({"shop"}, "")
    Accounts(store).block("key", shop.id, ACTOR)
    keys, log = opened(tmp_path, hang, 0.05)
    assert keys == {"shop"} and "could not be read in 0.05 s" in log
    store.close()
    (tmp_path / "accounts.db").write_bytes(b"no database" * 1000)
    assert opened(tmp_path) == ({"shop"}, "")
