"""One file of SQLite: opened safely, brought to the newest schema, and never left with half of a change.

Knows: how a file is opened, migrated and locked. Does not know: which tables are in it.

Migrations are numbered from 1, and `user_version` is the number of the last one. Each runs in a transaction of its own
that begins with the lock, so two processes that open a new file do not both make it. They only add: a Velox of the
version before can go on with the file, but not open it anew.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from velox.ledger.store import StoreError

__all__ = ["connect", "failing", "transaction"]

_BUSY_S: Final = 5.0


def connect(path: Path, migrations: Sequence[str], *, is_reader: bool) -> sqlite3.Connection:
    """Open a file, with all migrations done. Raises sqlite3.Error, StoreError. is_reader: nothing is made or changed.

    Another thread may use the connection, one at a time.
    """
    newest = len(migrations)
    where = f"{path.absolute().as_uri()}?mode={'ro' if is_reader else 'rwc'}"
    db = sqlite3.connect(where, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        version = _version(db)
        if version > newest:
            raise StoreError(
                f"{path} has schema {version}, written by a newer Velox; this one knows {newest}: run the newer one,"
                " or name another folder"
            )
        if is_reader and not version:
            raise StoreError(f"{path} is just being made: try again in a moment")
        if is_reader and version < newest:
            raise StoreError(f"{path} has schema {version}, of an earlier Velox: start this one with its folder once")
        if not is_reader:
            path.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            for number in range(version + 1, newest + 1):
                with transaction(db):
                    if _version(db) < number:
                        for statement in migrations[number - 1].split(";"):
                            db.execute(statement)
                        db.execute(f"PRAGMA user_version = {number}")
    except BaseException:
        db.close()
        raise
    return db


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock; commit at the end, and undo everything on an error."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def failing(path: Path) -> Iterator[None]:
    """Say which file it is that failed. Raises StoreError."""
    try:
        yield
    except (sqlite3.Error, OverflowError) as exc:  # the latter: a number of more than 64 bits
        raise StoreError(f"{path}: {exc}") from exc
    except OSError as exc:
        raise StoreError(f"{path}: {exc.strerror}") from exc
