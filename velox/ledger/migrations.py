"""The runner of migrations, for every kind of database.

Knows: in which order migrations run, and what an older or a newer schema means. Does not know: SQL, locks, or where the
number of the schema is kept; each kind of database says that (sqlite_file.py, postgres_database.py).

Migrations are numbered from 1, and a schema's number is that of the last one that ran. Each runs in a transaction of
its own that begins with a lock and reads the number again, so several processes that open a new database at once run
it once. Migrations only add: a Velox of the version before can go on with a database that it has open, but not open it
anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from velox.ledger.store import StoreError

__all__ = ["Schema", "migrate"]


class Schema(Protocol):
    """One numbered schema in an open database, as the runner needs it. Any method may raise errors of its driver."""

    @property
    def place(self) -> str:
        """Where the database is, for errors: without a password."""

    @property
    def part(self) -> str:
        """Which of the database's schemas this is, for errors: "of accounts"; "": it has one."""

    @property
    def unit(self) -> str:
        """What to name instead of a database that is too new, for errors: "folder"."""

    def not_the_newest(self, version: int, newest: int) -> str:
        """Return what a reader is told of a schema that it may not migrate, and what brings it to the newest."""

    def version(self) -> int:
        """Return the number of the last migration that ran; 0: none."""

    def prepare(self, version: int) -> None:
        """Make the database ready for writing, before anything is migrated."""

    def locked(self) -> AbstractContextManager[None]:
        """Begin a transaction that no other process is in meanwhile; commit at the end, undo everything on an error."""

    def run(self, migration: str) -> None:
        """Run the statements of one migration."""

    def set_version(self, number: int) -> None:
        """Keep the number of the migration that ran, in its transaction."""


def migrate(schema: Schema, migrations: Sequence[str], *, is_reader: bool) -> None:
    """Bring a schema to the newest version. is_reader: change nothing.

    Raises StoreError for a schema of a newer Velox, and to a reader for one that is not the newest.
    """
    newest, version = len(migrations), schema.version()
    part = f" {schema.part}" * bool(schema.part)
    if version > newest:
        raise StoreError(
            f"{schema.place} has schema {version}{part}, written by a newer Velox; this one knows {newest}: run the"
            f" newer one, or name another {schema.unit}"
        )
    if is_reader:
        if version < newest:
            raise StoreError(schema.not_the_newest(version, newest))
        return
    schema.prepare(version)
    for number in range(version + 1, newest + 1):
        with schema.locked():
            if schema.version() < number:
                schema.run(migrations[number - 1])
                schema.set_version(number)
