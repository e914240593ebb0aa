"""The store of accounts in PostgreSQL, which several gateways may share.

Knows: its tables, and that changes are made one after the other. Does not know: what is in a document.

Each change holds one advisory lock until it is committed. So what a change is checked against stays as it is, and the
numbers of changes become visible in their order: who has seen one has seen all before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from velox.accounts.model import KINDS, Change, Digest, Kind
from velox.accounts.store import Conflict, ConflictError, Touched, Write
from velox.ledger.postgres import safe_text
from velox.ledger.postgres_database import PostgresDatabase, Row, Transaction

__all__ = ["PostgresAccounts"]

_MIGRATIONS: Final = (
    """
CREATE TABLE velox_account (kind text NOT NULL, id text COLLATE "C" NOT NULL, version bigint NOT NULL,
    name text NOT NULL, team text NOT NULL, "user" text NOT NULL, document text NOT NULL, PRIMARY KEY (kind, id));
CREATE INDEX velox_account_team ON velox_account (kind, team, id);
CREATE INDEX velox_account_user ON velox_account (kind, "user", id);
CREATE INDEX velox_account_name ON velox_account (kind, name, id);
CREATE TABLE velox_digest (digest bytea PRIMARY KEY, key text NOT NULL, until_s bigint);
CREATE INDEX velox_digest_key ON velox_digest (key);
CREATE TABLE velox_change (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, time_s bigint NOT NULL,
    actor text NOT NULL, action text NOT NULL, kind text NOT NULL, object_id text NOT NULL, before text NOT NULL,
    after text NOT NULL);
CREATE INDEX velox_change_object ON velox_change (kind, object_id, number)
""",
    """
CREATE TABLE velox_digest_seen (digest bytea PRIMARY KEY);
INSERT INTO velox_digest_seen SELECT digest FROM velox_digest
""",
)
# Of all advisory locks of a database, ours for changes of accounts: "vacct" in ASCII.
_LOCK: Final = 0x7661636374
_COLUMNS: Final[Mapping[str, str]] = {"name": "name", "team": "team", "user": '"user"'}
_CHANGES_BY: Final = ("kind", "object_id", "actor")
# Each statement is a wait for the database while the lock is held, in which all other changes wait: few, and large.
_CHECK: Final = """
SELECT (SELECT version FROM velox_account WHERE kind = $1::text AND id = $2::text),
    EXISTS (SELECT 1 FROM velox_digest WHERE digest = ANY($3::bytea[]) AND key <> $2),
    ($4::text = '' OR EXISTS (SELECT 1 FROM velox_account WHERE kind = 'team' AND id = $4))
        AND ($5::text = '' OR EXISTS (SELECT 1 FROM velox_account WHERE kind = 'user' AND id = $5)),
    CASE $1 WHEN 'team' THEN EXISTS (SELECT 1 FROM velox_account WHERE kind = 'key' AND team = $2)
        WHEN 'user' THEN EXISTS (SELECT 1 FROM velox_account WHERE kind = 'key' AND "user" = $2)
        ELSE false END
"""
_TELL: Final = """
INSERT INTO velox_change (time_s, actor, action, kind, object_id, before, after) VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
_PUT: Final = f"""
WITH put AS (
    INSERT INTO velox_account VALUES ($4, $5, $8, $9, $10, $11, $12) ON CONFLICT (kind, id)
    DO UPDATE SET version = $8, name = $9, team = $10, "user" = $11, document = $12
), held AS (
    INSERT INTO velox_digest SELECT digest, $5, until_s FROM unnest($13::bytea[], $14::bigint[]) AS _ (digest, until_s)
), seen AS (
    INSERT INTO velox_digest_seen SELECT unnest($13::bytea[]) ON CONFLICT DO NOTHING
){_TELL}"""  # noqa: S608 - of our own
_NUMBER: Final = "SELECT coalesce(max(number), 0) FROM velox_change"


class PostgresAccounts:
    """The accounts of all gateways that share a database. Threads may share it.

    is_reader: nothing is made or changed.
    """

    def __init__(self, url: str, *, is_reader: bool = False) -> None:
        self._database: Final = PostgresDatabase(url, "accounts", _MIGRATIONS, is_reader=is_reader)

    def __repr__(self) -> str:
        return f"<PostgresAccounts {self._database!r}>"

    def apply(self, write: Write) -> None:
        """Make a change and keep its record, both or none. Raises ConflictError."""
        change = write.change
        with self._database.transaction() as transaction:
            transaction.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            _check(transaction, write)
            if write.version and write.digests is not None:
                transaction.execute("DELETE FROM velox_digest WHERE key = $1", change.object_id)
            told = (
                change.time_s,
                safe_text(change.actor),
                change.action,
                change.kind,
                change.object_id,
                msgspec.json.encode(change.before).decode(),
                msgspec.json.encode(change.after).decode(),
            )
            if write.document:
                transaction.execute(
                    _PUT,
                    *told,
                    write.version + 1,
                    safe_text(write.name),
                    safe_text(write.team),
                    safe_text(write.user),
                    write.document.decode(),
                    [each.digest for each in write.digests or ()],
                    [each.until_s for each in write.digests or ()],
                )
            else:
                sql = "DELETE FROM velox_account WHERE kind = $1 AND id = $2"
                transaction.execute(sql, change.kind, change.object_id)
                transaction.execute(_TELL, *told)

    def number(self) -> int:
        """Return the number of the last change; 0: there was none."""
        return int(self._database.rows(_NUMBER)[0][0])

    def get(self, kind: Kind, id: str) -> bytes | None:  # noqa: A002 - the field's name
        """Return a document."""
        sql = "SELECT document FROM velox_account WHERE kind = $1 AND id = $2"
        rows = self._database.rows(sql, kind, safe_text(id))
        return str(rows[0][0]).encode() if rows else None

    def page(self, kind: Kind, after: str, limit: int, where: Mapping[str, str]) -> list[bytes]:
        """Return documents whose id is above `after`, in the order of their ids. where: name, team, user."""
        found = [(column, where[name]) for name, column in _COLUMNS.items() if name in where]
        conditions = "".join(f" AND {column} = ${n}" for n, (column, _) in enumerate(found, 4))
        sql = f"SELECT document FROM velox_account WHERE kind = $1 AND id > $2{conditions} ORDER BY id LIMIT $3"  # noqa: S608
        values = (safe_text(value) for _, value in found)
        return [str(row[0]).encode() for row in self._database.rows(sql, kind, safe_text(after), limit, *values)]

    def owner(self, digest: bytes) -> str | None:
        """Return the id of the key that has a digest."""
        rows = self._database.rows("SELECT key FROM velox_digest WHERE digest = $1", digest)
        return str(rows[0][0]) if rows else None

    def has_seen(self, digest: bytes) -> bool:
        """Tell whether a key has, or had, a digest."""
        return bool(self._database.rows("SELECT 1 FROM velox_digest_seen WHERE digest = $1", digest))

    def digests(self, key: str) -> list[Digest]:
        """Return those of a key."""
        sql = "SELECT digest, key, until_s FROM velox_digest WHERE key = $1 ORDER BY digest"
        return [Digest(*row) for row in self._database.rows(sql, safe_text(key))]

    def changes(self, before: int, limit: int, where: Mapping[str, str]) -> list[Change]:
        """Return changes with numbers below `before` (0: all), the last first. where: kind, object_id, actor."""
        found = [name for name in _CHANGES_BY if name in where]
        conditions = "".join(f" AND {name} = ${n}" for n, name in enumerate(found, 3))
        sql = (
            "SELECT number, time_s, actor, action, kind, object_id, before, after FROM velox_change"  # noqa: S608
            f" WHERE ($1 = 0 OR number < $1){conditions} ORDER BY number DESC LIMIT $2"
        )
        values = (safe_text(where[name]) for name in found)
        return [_change(row) for row in self._database.rows(sql, before, limit, *values)]

    def touched(self, after: int, most: int) -> list[Touched]:
        """Return what changes with numbers above `after` were of, in their order; at most so many."""
        sql = "SELECT number, kind, object_id FROM velox_change WHERE number > $1 ORDER BY number LIMIT $2"
        return [Touched(*row) for row in self._database.rows(sql, after, most)]

    def keys_of(self, kind: Kind, id: str, after: str, most: int) -> tuple[list[bytes], list[Digest]]:  # noqa: A002
        """Return documents of keys, with their digests: of the key of this id, or of those of a team or user."""
        held = f"kind = 'key' AND {'id' if kind == 'key' else _COLUMNS[kind]} = $1 AND id > $2"
        chosen = f"SELECT id, document FROM velox_account WHERE {held} ORDER BY id LIMIT $3"  # noqa: S608 - of our own
        of_them = (
            "SELECT digest, key, until_s FROM velox_account JOIN velox_digest ON key = id"  # noqa: S608
            f" WHERE {held} AND id <= $3 ORDER BY digest"
        )
        with self._database.snapshot() as snapshot:
            rows = snapshot.rows(chosen, safe_text(id), safe_text(after), most)
            if not rows:
                return [], []
            digests = snapshot.rows(of_them, safe_text(id), safe_text(after), rows[-1][0])
        return [str(row[1]).encode() for row in rows], [Digest(*row) for row in digests]

    def everything(self) -> tuple[int, dict[Kind, list[bytes]], list[Digest]]:
        """Return the number of the last change, all documents, and all digests, as they are at one moment."""
        documents: dict[Kind, list[bytes]] = {kind: [] for kind in KINDS}
        with self._database.snapshot() as snapshot:
            for kind, document in snapshot.rows("SELECT kind, document FROM velox_account ORDER BY kind, id"):
                documents[kind].append(document.encode())
            digests = [Digest(*row) for row in snapshot.rows("SELECT digest, key, until_s FROM velox_digest")]
            number = int(snapshot.rows(_NUMBER)[0][0])
        return number, documents, digests

    def close(self) -> None:
        """Let go of the connection."""
        self._database.close()


def _check(transaction: Transaction, write: Write) -> None:
    change, digests = write.change, [each.digest for each in write.digests or ()]
    owners = safe_text(write.team), safe_text(write.user)
    ((version, has_others, has_owners, is_in_use),) = transaction.rows(
        _CHECK, change.kind, change.object_id, digests, *owners
    )
    if version is not None and not write.version:
        raise ConflictError(Conflict.EXISTS)
    if (version or 0) != write.version:
        raise ConflictError(Conflict.STALE)
    if has_others:
        raise ConflictError(Conflict.DIGEST)
    if write.document and not has_owners:
        raise ConflictError(Conflict.OWNER)
    if not write.document and is_in_use:
        raise ConflictError(Conflict.IN_USE)


def _change(row: Row) -> Change:
    number, time_s, actor, action, kind, object_id, before, after = row
    was, now = msgspec.json.decode(before), msgspec.json.decode(after)
    return Change(number, time_s, actor, action, kind, object_id, was, now)
