"""One database of PostgreSQL: brought to the newest schema, asked by blocking calls, opened anew after a failure.

Knows: connections, transactions, and the lock of migrations. Does not know: which tables there are, or in which order
migrations run (migrations.py).

asyncpg needs an event loop, and those who ask (the ledger's process, the threads of the admin process, commands) block.
So each database has a loop in a thread of its own, and one connection. Threads may share it, one at a time.

Each part of the schema has a number of its own (`velox_schema`). Migrations run under an advisory lock [1].

A transaction that commits is on the disk, whatever the role has set: without `synchronous_commit` a ring would forget
records that a power loss takes back. Nothing is prepared by name, so a pooler that shares connections between
transactions (PgBouncer) may stand between.

[1] https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from velox.ledger.migrations import migrate
from velox.ledger.postgres_url import driver_url
from velox.ledger.store import StoreError

__all__ = ["FAILURES", "PostgresDatabase", "Row", "Transaction", "open_connection", "reachable"]

Row = Sequence[Any]
T = TypeVar("T")

_CONNECT_S: Final = 5.0
_COMMAND_S: Final = 15.0
_CLOSE_S: Final = 2.0
_MIGRATION_S: Final = 3600.0  # an index over millions of rows takes minutes
# What asyncpg tells of a URL that it can't read may show the password.
_EXPECTED: Final = "VELOX_LEDGER_DATABASE: expected postgresql://user:password@host/database"
# Of all advisory locks of a database, ours for migrations: "velox" in ASCII.
_MIGRATION_LOCK: Final = 0x76656C6F78
# Somebody who stops in the middle, or whose host is gone, must not hold locks for ever.
_LIMITS: Final = (
    "SET LOCAL idle_in_transaction_session_timeout = '30s'; SET LOCAL lock_timeout = '10s';"
    " SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
# Whatever the database has set: who waits for a lock must then see what the one before has changed.
_BEGIN: Final = f"BEGIN ISOLATION LEVEL READ COMMITTED; {_LIMITS}"
# Which of several hosts is meant, in a URL and in the environment.
_ROLE: Final = "target_session_attrs="
_ROLE_VARIABLE: Final = "PGTARGETSESSIONATTRS"
_WRITES: Final = SessionAttribute.read_write
_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS velox_schema (part text PRIMARY KEY, version integer NOT NULL)"
_VERSION: Final = "SELECT version FROM velox_schema WHERE part = $1"
_ENCODING: Final = "SELECT current_setting('server_encoding')"
# Of any other, one name with a letter that it has not would stop all records behind it.
_ENCODINGS: Final = ("UTF8", "SQL_ASCII")
_MAY_MAKE: Final = (
    "SELECT to_regclass('velox_schema') IS NOT NULL, coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),"
    " current_setting('server_encoding')"
)
FAILURES: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what is asked of a connection in the moment that it ends
    OSError,
    TimeoutError,
    EOFError,
)


class PostgresDatabase:
    """A part of the schema in one database. Raises StoreError, with the place of the database and never its password.

    part: what these migrations are of. is_reader: nothing is made or changed; the schema must be there. connect_s: that
    each host has to answer.
    """

    def __init__(
        self,
        url: str,
        part: str,
        migrations: Sequence[str],
        *,
        is_reader: bool = False,
        connect_s: float = _CONNECT_S,
    ) -> None:
        try:
            self._url: Final = driver_url(url, ssl.get_default_verify_paths().cafile or "")
        except ValueError as exc:
            raise StoreError(f"{_place(url)}: {exc}") from None
        self._connect_s: Final = connect_s
        self._part: Final = part
        self._migrations: Final = migrations
        self._is_reader: Final = is_reader
        self._place: Final = _place(url)
        self._lock: Final = threading.RLock()
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever, daemon=True, name="postgres")
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._thread.start()
        try:
            self._connected()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<PostgresDatabase {self._place}, {self._part}>"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commit at the end, and undo everything on an error."""
        with self._begun(_BEGIN) as transaction:
            yield transaction

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Read from the database as it is at one moment."""
        with self._begun(_SNAPSHOT) as transaction:
            yield transaction

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Return the rows that one statement gives."""
        with self._lock, self._failing():
            connection = self._connected()
            return list(self._wait(lambda: connection.fetch(sql, *values)))

    def close(self) -> None:
        """Let go of the connection and the thread."""
        with self._lock:
            if self._loop.is_closed():
                return
            self._drop()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @contextlib.contextmanager
    def _begun(self, begin: str) -> Iterator[Transaction]:
        with self._lock, self._failing():
            connection = self._connected()
            self._wait(lambda: connection.execute(begin))
            try:
                yield Transaction(connection, self._wait)
                self._wait(lambda: connection.execute("COMMIT"))
            except FAILURES:
                raise  # the connection is dropped, and the server undoes what it was in the middle of
            except BaseException:
                with contextlib.suppress(StoreError), self._failing():
                    self._wait(lambda: connection.execute("ROLLBACK"))
                raise

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Say where it failed. What the connection was in the middle of is not known: the next call has a new one."""
        try:
            yield
        except FAILURES as exc:
            self._drop()
            why = str(exc).strip() or ("it does not answer in time" if isinstance(exc, TimeoutError) else repr(exc))
            raise StoreError(f"{self._place}: {why}") from exc

    def _wait(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do what a coroutine does, in the thread of the loop."""
        if self._loop.is_closed():
            raise StoreError(f"{self._place}: it is closed")
        return asyncio.run_coroutine_threadsafe(begin(), self._loop).result()

    def _connected(self) -> asyncpg.Connection[asyncpg.Record]:
        """Return the connection, with all migrations done; a new one where the last was lost."""
        connection = self._connection
        if connection is not None and not connection.is_closed():
            return connection
        self._drop()
        with self._failing():
            try:
                connection = self._wait(self._connect)
            except (ValueError, asyncpg.ClientConfigurationError):
                raise StoreError(_EXPECTED) from None
            self._connection = connection
            try:
                schema = _PartSchema(connection, self._wait, self._place, self._part)
                migrate(schema, self._migrations, is_reader=self._is_reader)
            except StoreError:
                self._drop()
                raise
        return connection

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        try:
            return await _connect(self._url, self._connect_s, is_reader=self._is_reader)
        except asyncpg.TargetServerAttributeNotMatched:
            role = _ROLE in self._url or _ROLE_VARIABLE in os.environ
            what = f"is what the URL wants ({_ROLE[:-1]})" if role else "takes writes"
            raise StoreError(f"{self._place}: none of the hosts {what}") from None

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*FAILURES):
                self._wait(lambda: _closed(connection))


async def open_connection(url: str, *, connect_s: float) -> asyncpg.Connection[asyncpg.Record]:
    """Return a connection to the first host of a URL that takes writes. Raises one of FAILURES.

    connect_s: that each host has to answer.
    """
    try:
        return await _connect(driver_url(url, ssl.get_default_verify_paths().cafile or ""), connect_s, is_reader=False)
    except (ValueError, asyncpg.ClientConfigurationError) as exc:
        raise OSError("its URL can't be used") from exc


async def _connect(url: str, connect_s: float, *, is_reader: bool) -> asyncpg.Connection[asyncpg.Record]:
    """Return a connection to the first host that gives one: to one that takes writes, unless the URL says which.

    Each has a timeout of its own. asyncpg has one for all together, and asks none behind one that does not answer.
    """
    *others, last = _urls(url)
    wants = None if not others or is_reader or _ROLE in url or _ROLE_VARIABLE in os.environ else _WRITES
    for each in others:
        with contextlib.suppress(*FAILURES):
            return await _connect_to(each, connect_s, wants)
    return await _connect_to(last, connect_s, wants)


async def _connect_to(url: str, connect_s: float, wants: SessionAttribute | None) -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(
        url,
        timeout=connect_s,
        command_timeout=_COMMAND_S,
        statement_cache_size=0,
        server_settings={"application_name": "velox"},
        target_session_attrs=wants,
    )


def reachable(url: str) -> str | None:
    """Return why a database can't be used now; None: it can, and tables can be made there, or are there."""
    try:
        database = PostgresDatabase(url, "", ())
        try:
            is_made, may_make, encoding = database.rows(_MAY_MAKE)[0]
        finally:
            database.close()
    except StoreError as exc:
        return str(exc)
    if not is_made and encoding not in _ENCODINGS:
        return f"{_place(url)}: {_letters(encoding)}"
    if is_made or may_make:
        return None
    return f"{_place(url)}: the user may not make tables: GRANT CREATE ON SCHEMA public TO it, or another schema"


class _PartSchema:
    """One part of a database's schema, with a number of its own (migrations.Schema)."""

    unit: Final = "database"

    def __init__(
        self,
        connection: asyncpg.Connection[asyncpg.Record],
        wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any],
        place: str,
        part: str,
    ) -> None:
        self._connection: Final = connection
        self._wait: Final = wait
        self._place: Final = place
        self._part: Final = part

    @property
    def place(self) -> str:
        """Host and database."""
        return self._place

    @property
    def part(self) -> str:
        """The part."""
        return f"of {self._part}"

    def not_the_newest(self, version: int, newest: int) -> str:
        """Name both numbers: gateways of several versions may share a database."""
        return (
            f"{self._place} has schema {version} of {self._part}, and this Velox needs {newest}: start its gateway once"
        )

    def version(self) -> int:
        """Return the part's number in `velox_schema`."""
        if self._value("SELECT to_regclass('velox_schema')") is None:
            return 0
        return int(self._value(_VERSION, self._part) or 0)

    def prepare(self, version: int) -> None:
        """Refuse an encoding that can't hold all names, before the first table is made."""
        if not version:
            encoding = self._value(_ENCODING)
            if encoding not in _ENCODINGS:
                raise StoreError(f"{self._place}: {_letters(encoding)}")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the advisory lock until the transaction ends."""
        self._execute("BEGIN")
        try:
            self._value("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
            self._execute(_SCHEMA)
            yield
            self._execute("COMMIT")
        except BaseException:
            with contextlib.suppress(*FAILURES):
                self._execute("ROLLBACK")
            raise

    def run(self, migration: str) -> None:
        """Run all statements of a migration."""
        self._execute(migration, timeout=_MIGRATION_S)

    def set_version(self, number: int) -> None:
        """Keep the part's number in `velox_schema`, in the transaction."""
        sql = "INSERT INTO velox_schema VALUES ($1, $2) ON CONFLICT (part) DO UPDATE SET version = $2"
        self._execute(sql, self._part, number)

    def _value(self, sql: str, *values: object) -> Any:
        return self._wait(lambda: self._connection.fetchval(sql, *values))

    def _execute(self, sql: str, *values: object, timeout: float | None = None) -> None:
        self._wait(lambda: self._connection.execute(sql, *values, timeout=timeout))


class Transaction:
    """Statements of one transaction."""

    def __init__(
        self,
        connection: asyncpg.Connection[asyncpg.Record],
        wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any],
    ) -> None:
        self._connection: Final = connection
        self._wait: Final = wait

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Return the rows that a statement gives."""
        return list(self._wait(lambda: self._connection.fetch(sql, *values)))

    def execute(self, sql: str, *values: object) -> None:
        """Run a statement."""
        self._wait(lambda: self._connection.execute(sql, *values))

    def execute_many(self, sql: str, rows: Iterable[Row]) -> None:
        """Run a statement once for each row of values."""
        self._wait(lambda: self._connection.executemany(sql, rows))

    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Add rows to a table by COPY."""
        self._wait(lambda: self._connection.copy_records_to_table(table, records=rows, columns=list(columns)))


def _letters(encoding: str) -> str:
    return f"its encoding is {encoding}, and names need UTF8: createdb --encoding UTF8 --template template0"


def _urls(url: str) -> list[str]:
    """Return a URL for each host of one."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts:
        return [url]
    return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]


async def _closed(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Say goodbye; without an answer, just end."""
    try:
        await connection.close(timeout=_CLOSE_S)
    except (TimeoutError, *FAILURES):
        connection.terminate()


def _place(url: str) -> str:
    """Return where a database is, without the user and the password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise StoreError(_EXPECTED) from None
    return f"PostgreSQL at {parts.netloc.rpartition('@')[2] or 'its socket'}, database {parts.path.strip('/') or '?'}"
