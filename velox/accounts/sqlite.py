"""The store of accounts in SQLite: one file.

Knows: its tables. Does not know: what is in a document.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from velox.accounts.model import KINDS, Change, Digest, Kind
from velox.accounts.store import Conflict, ConflictError, Touched, Write
from velox.ledger.sqlite_file import connect, failing, make_folder, transaction

__all__ = ["SqliteAccounts"]

FILE: Final = "accounts.db"
_MIGRATIONS: Final = (
    """
CREATE TABLE account (kind TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, name TEXT NOT NULL,
    team TEXT NOT NULL, user TEXT NOT NULL, document BLOB NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
CREATE INDEX account_team ON account (kind, team, id);
CREATE INDEX account_user ON account (kind, user, id);
CREATE INDEX account_name ON account (kind, name, id);
CREATE TABLE digest (digest BLOB PRIMARY KEY, key TEXT NOT NULL, until_s INTEGER) WITHOUT ROWID;
CREATE INDEX digest_key ON digest (key);
CREATE TABLE change (number INTEGER PRIMARY KEY AUTOINCREMENT, time_s INTEGER NOT NULL, actor TEXT NOT NULL,
    action TEXT NOT NULL, kind TEXT NOT NULL, object_id TEXT NOT NULL, before BLOB NOT NULL, after BLOB NOT NULL);
CREATE INDEX change_object ON change (kind, object_id, number);
""",
    """
CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID;
INSERT INTO seen SELECT digest FROM digest;
""",
)
_TELL: Final = "INSERT INTO change (time_s, actor, action, kind, object_id, before, after) VALUES (?, ?, ?, ?, ?, ?, ?)"
_FOUND_BY: Final = ("name", "team", "user")
_CHANGES_BY: Final = ("kind", "object_id", "actor")


class SqliteAccounts:
    """The accounts of one gateway, in one folder. is_reader: nothing is made or changed. Threads may share it."""

    def __init__(self, folder: Path, *, is_reader: bool = False) -> None:
        self._path: Final = folder / FILE
        self._lock: Final = threading.Lock()
        with failing(self._path):
            if not is_reader:
                make_folder(folder)
            self._db: Final = connect(self._path, _MIGRATIONS, is_reader=is_reader)

    def __repr__(self) -> str:
        return f"<SqliteAccounts {self._path}>"

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock, failing(self._path):
            yield self._db

    def apply(self, write: Write) -> None:
        """Make a change and keep its record, both or none. Raises ConflictError."""
        with self._using() as db, transaction(db):
            change = write.change
            self._check(db, write)
            if write.document:
                version, document = write.version + 1, write.document
                row = (change.kind, change.object_id, version, write.name, write.team, write.user, document)
                db.execute("INSERT OR REPLACE INTO account VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            else:
                db.execute("DELETE FROM account WHERE kind = ? AND id = ?", (change.kind, change.object_id))
            if write.digests is not None:
                db.execute("DELETE FROM digest WHERE key = ?", (change.object_id,))
                db.executemany("INSERT INTO digest VALUES (?, ?, ?)", write.digests)
                db.executemany("INSERT OR IGNORE INTO seen VALUES (?)", ((each.digest,) for each in write.digests))
            before, after = msgspec.json.encode(change.before), msgspec.json.encode(change.after)
            told = (change.time_s, change.actor, change.action, change.kind, change.object_id, before, after)
            db.execute(_TELL, told)

    def _check(self, db: sqlite3.Connection, write: Write) -> None:
        change = write.change
        row = db.execute(
            "SELECT version FROM account WHERE kind = ? AND id = ?", (change.kind, change.object_id)
        ).fetchone()
        if row is not None and not write.version:
            raise ConflictError(Conflict.EXISTS)
        if (0 if row is None else row[0]) != write.version:
            raise ConflictError(Conflict.STALE)
        for digest in write.digests or ():
            other = db.execute("SELECT key FROM digest WHERE digest = ?", (digest.digest,)).fetchone()
            if other is not None and other[0] != change.object_id:
                raise ConflictError(Conflict.DIGEST)
        if write.document:
            for kind, id_ in (("team", write.team), ("user", write.user)):
                if id_ and not db.execute("SELECT 1 FROM account WHERE kind = ? AND id = ?", (kind, id_)).fetchone():
                    raise ConflictError(Conflict.OWNER)
        elif change.kind != "key":
            sql = f"SELECT 1 FROM account WHERE kind = 'key' AND {change.kind} = ? LIMIT 1"  # noqa: S608 - of our own
            if db.execute(sql, (change.object_id,)).fetchone():
                raise ConflictError(Conflict.IN_USE)

    def number(self) -> int:
        """Return the number of the last change; 0: there was none."""
        with self._using() as db:
            return _number(db)

    def get(self, kind: Kind, id: str) -> bytes | None:  # noqa: A002 - the field's name
        """Return a document."""
        with self._using() as db:
            row = db.execute("SELECT document FROM account WHERE kind = ? AND id = ?", (kind, id)).fetchone()
        return None if row is None else bytes(row[0])

    def page(self, kind: Kind, after: str, limit: int, where: Mapping[str, str]) -> list[bytes]:
        """Return documents whose id is above `after`, in the order of their ids. where: name, team, user."""
        found = [name for name in _FOUND_BY if name in where]
        conditions = "".join(f" AND {name} = ?" for name in found)
        sql = f"SELECT document FROM account WHERE kind = ? AND id > ?{conditions} ORDER BY id LIMIT ?"  # noqa: S608
        with self._using() as db:
            rows = db.execute(sql, (kind, after, *(where[name] for name in found), limit)).fetchall()
        return [bytes(row[0]) for row in rows]

    def owner(self, digest: bytes) -> str | None:
        """Return the id of the key that has a digest."""
        with self._using() as db:
            row = db.execute("SELECT key FROM digest WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else str(row[0])

    def has_seen(self, digest: bytes) -> bool:
        """Tell whether a key has, or had, a digest."""
        with self._using() as db:
            return db.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,)).fetchone() is not None

    def digests(self, key: str) -> list[Digest]:
        """Return those of a key."""
        with self._using() as db:
            return [Digest(*row) for row in db.execute("SELECT digest, key, until_s FROM digest WHERE key = ?", (key,))]

    def changes(self, before: int, limit: int, where: Mapping[str, str]) -> list[Change]:
        """Return changes with numbers below `before` (0: all), the last first. where: kind, object_id, actor."""
        found = [name for name in _CHANGES_BY if name in where]
        conditions = "".join(f" AND {name} = ?" for name in found)
        sql = f"SELECT * FROM change WHERE (? = 0 OR number < ?){conditions} ORDER BY number DESC LIMIT ?"  # noqa: S608
        with self._using() as db:
            rows = db.execute(sql, (before, before, *(where[name] for name in found), limit)).fetchall()
        return [_change(row) for row in rows]

    def touched(self, after: int, most: int) -> list[Touched]:
        """Return what changes with numbers above `after` were of, in their order; at most so many."""
        sql = "SELECT number, kind, object_id FROM change WHERE number > ? ORDER BY number LIMIT ?"
        with self._using() as db:
            return [Touched(*row) for row in db.execute(sql, (after, most))]

    def keys_of(self, kind: Kind, id: str, after: str, most: int) -> tuple[list[bytes], list[Digest]]:  # noqa: A002
        """Return documents of keys, with their digests: of the key of this id, or of those of a team or user."""
        held = f"kind = 'key' AND {'id' if kind == 'key' else kind} = ? AND id > ?"
        chosen = f"SELECT id, document FROM account WHERE {held} ORDER BY id LIMIT ?"  # noqa: S608 - of our own
        with self._using() as db:
            rows = db.execute(chosen, (id, after, most)).fetchall()
            if not rows:
                return [], []
            sql = f"SELECT digest, key, until_s FROM account JOIN digest ON key = id WHERE {held} AND id <= ?"  # noqa: S608
            return [row[1] for row in rows], [Digest(*row) for row in db.execute(sql, (id, after, rows[-1][0]))]

    def everything(self) -> tuple[int, dict[Kind, list[bytes]], list[Digest]]:
        """Return the number of the last change, all documents, and all digests, as they are at one moment."""
        documents: dict[Kind, list[bytes]] = {kind: [] for kind in KINDS}
        with self._using() as db:
            db.execute("BEGIN")
            try:
                for kind, document in db.execute("SELECT kind, document FROM account ORDER BY kind, id"):
                    documents[kind].append(document)
                digests = [Digest(*row) for row in db.execute("SELECT digest, key, until_s FROM digest")]
                return _number(db), documents, digests
            finally:
                db.execute("ROLLBACK")

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._db.close()


def _change(row: tuple[int, int, str, str, Kind, str, bytes, bytes]) -> Change:
    number, time_s, actor, action, kind, object_id, before, after = row
    seen = msgspec.json.decode(before), msgspec.json.decode(after)
    return Change(number, time_s, actor, action, kind, object_id, *seen)


def _number(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'change'").fetchone()
    return 0 if row is None else int(row[0])
