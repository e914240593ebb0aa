"""One file of SQLite: opened safely, brought to the newest schema, and never left with half of a change.

Knows: how a file is opened and locked, and whose it is. Does not know: which tables are in it, or in which order
migrations run (migrations.py). `user_version` is the number of the schema.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from velox.ledger.migrations import migrate
from velox.ledger.store import StoreError

__all__ = ["connect", "error_name", "failing", "make_folder", "transaction"]

_BUSY_S: Final = 5.0
# The index of the log, a file that is made anew at each opening, could not get its size: there is no room on the disk.
_NO_ROOM: Final = "SQLITE_IOERR_SHMSIZE"


def connect(
    path: Path, migrations: Sequence[str], *, is_reader: bool, without_room: bool = False
) -> sqlite3.Connection:
    """Open a file, with all migrations done. Raises sqlite3.Error, StoreError. is_reader: nothing is made or changed.

    without_room: of a reader, also where the disk is full; then nobody else can open the file until it is closed.
    Another thread may use the connection, one at a time.
    """
    try:
        return _connect(path, migrations, is_reader=is_reader)
    except sqlite3.Error as exc:
        if not without_room or error_name(exc) != _NO_ROOM:
            raise
        try:
            return _connect(path, migrations, is_reader=True, is_alone=True)
        except sqlite3.Error:
            raise exc from None


def _connect(path: Path, migrations: Sequence[str], *, is_reader: bool, is_alone: bool = False) -> sqlite3.Connection:
    """Open it. is_alone: with the log's index in memory, for which SQLite lets nobody else in meanwhile."""
    where = f"{path.absolute().as_uri()}?mode={'rw' if is_alone else 'ro' if is_reader else 'rwc'}"
    is_new = not path.exists()
    db = sqlite3.connect(where, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        if is_alone:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA query_only = ON")
        migrate(_FileSchema(db, path, is_new=is_new), migrations, is_reader=is_reader)
    except BaseException:
        db.close()
        raise
    return db


class _FileSchema:
    """The schema of one file (migrations.Schema). is_new: there was no file before this connection."""

    unit: Final = "folder"
    part: Final = ""

    def __init__(self, db: sqlite3.Connection, path: Path, *, is_new: bool) -> None:
        self._db: Final = db
        self._path: Final = path
        self._is_new: Final = is_new

    @property
    def place(self) -> str:
        """The file."""
        return str(self._path)

    def not_the_newest(self, version: int, newest: int) -> str:
        """Tell a file that is being made from one of an earlier Velox. Only who writes makes and migrates it."""
        if not version:
            return f"{self._path} is just being made: try again in a moment"
        return f"{self._path} has schema {version}, of an earlier Velox: start this one with its folder once"

    def version(self) -> int:
        """Return `user_version`."""
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def prepare(self, version: int) -> None:
        """Keep the file for its owner, with a write-ahead log whose commits are on the disk."""
        if self._is_new:
            _hand_over(self._path)
        self._path.chmod(0o600)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the file's write lock."""
        return transaction(self._db)

    def run(self, migration: str) -> None:
        """Run statements, one at a time: executescript() would commit first."""
        for statement in migration.split(";"):
            self._db.execute(statement)

    def set_version(self, number: int) -> None:
        """Set `user_version`, in the transaction."""
        self._db.execute(f"PRAGMA user_version = {number}")


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it is in, for one user only: as root, for the owner of the one that is there."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in reversed(missing):
        _hand_over(each)


def _hand_over(path: Path) -> None:
    """Give what root has just made to the owner of its folder: a command of root's must not lock the gateway out.

    SQLite gives its other files, the log and its index, to the owner of the database.
    """
    if os.geteuid() == 0:
        owner = path.parent.stat()
        with contextlib.suppress(OSError):  # as in a container that may not change owners
            os.chown(path, owner.st_uid, owner.st_gid)


def _whose(path: Path) -> str:
    """Return who owns a file, or its folder, that this user may not write to; "" where that is not so."""
    for place in (path, path.parent):
        with contextlib.suppress(OSError):
            found = place.stat()
            if os.access(place, os.W_OK) or found.st_uid == os.geteuid():  # the latter: a disk that is read-only
                return ""
            return f"; {place} belongs to {_user(found.st_uid)}, and this is {_user(os.geteuid())}"
    return ""


def _user(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"


def error_name(exc: BaseException | None) -> str | None:
    """Return SQLite's name of an error; None: it is none of SQLite's."""
    return getattr(exc, "sqlite_errorname", None)  # absent where no library's code was the reason


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
        why = "database or disk is full" if error_name(exc) == _NO_ROOM else exc
        raise StoreError(f"{path}: {why}{_whose(path)}") from exc
    except OSError as exc:
        raise StoreError(f"{path}: {exc.strerror}{_whose(path)}") from exc
