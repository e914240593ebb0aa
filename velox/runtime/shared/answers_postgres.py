"""Kept answers in the ledger's PostgreSQL (shared/answers.py), for who sets VELOX_KEPT_DATABASE_BYTES.

The table is not logged: it is in no write-ahead log, at no standby, and empty after the server's crash. A row ends by
itself, as the database's clock has it. Whoever has written some megabytes takes out what has ended, and the oldest of
what is more than the bound.

Knows: statements, the bound. Does not know: connections (postgres_pool.py), what makes the table (ledger/postgres.py),
or what a value is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from velox.runtime.shared.postgres_pool import Connection, PostgresPool

__all__ = ["PostgresAnswers"]

# Its time begins anew once half of it is over: not each question is a write.
_READ: Final = (
    "SELECT value, until < now() + $2::float8 * interval '0.5 second' FROM velox_answer"
    " WHERE digest = $1 AND until > now()"
)
_RENEW: Final = "UPDATE velox_answer SET until = now() + $2::float8 * interval '1 second' WHERE digest = $1"
_LOCK: Final = "SELECT value FROM velox_answer WHERE digest = $1 AND until > now() FOR UPDATE"
_WRITE: Final = (
    "INSERT INTO velox_answer (digest, value, until, made)"
    " SELECT digest, value, now() + $3::float8 * interval '1 second', clock_timestamp()"
    " FROM unnest($1::bytea[], $2::bytea[]) AS given (digest, value)"
    " ON CONFLICT (digest) DO UPDATE SET value = excluded.value, until = excluded.until, made = excluded.made"
)
_END: Final = "DELETE FROM velox_answer WHERE until <= now()"
_BOUND: Final = (
    "DELETE FROM velox_answer WHERE made <= (SELECT max(made) FROM (SELECT made, sum(bytes) OVER (ORDER BY made DESC)"
    " AS total FROM velox_answer) AS newer WHERE total > $1)"
)
_PART: Final = 16  # of the bound, after which a worker looks at it


class PostgresAnswers:
    """Of one worker; see AnswerBytes. most_bytes: that all gateways keep together."""

    name: Final = PostgresPool.name

    def __init__(self, pool: PostgresPool, kept_s: float, most_bytes: int) -> None:
        self._pool: Final = pool
        self._kept_s: Final = kept_s
        self._most_bytes: Final = most_bytes
        self._n_written = most_bytes  # since it was last bounded; at the start others may have left too much

    def __repr__(self) -> str:
        return f"<PostgresAnswers {self._pool!r}>"

    async def read(self, digest: bytes) -> bytes | None:
        """See AnswerBytes."""
        return await self._pool.ask(partial(self._read, digest))

    async def write(self, values: Mapping[bytes, bytes]) -> None:
        """See AnswerBytes."""
        await self._pool.ask(partial(self._write, values))

    async def swap(self, digest: bytes, value: bytes, values: Mapping[bytes, bytes]) -> bool:
        """See AnswerBytes."""
        return await self._pool.ask(partial(self._swap, digest, value, values))

    async def close(self) -> None:
        """See AnswerBytes."""
        await self._pool.close()

    # -- with a connection ----------------------------------------------------------------------------

    async def _read(self, digest: bytes, connection: Connection) -> bytes | None:
        row = await connection.fetchrow(_READ, digest, self._kept_s)
        if row is None:
            return None
        value, is_due = row
        if is_due:
            await connection.execute(_RENEW, digest, self._kept_s)
        return bytes(value)

    async def _write(self, values: Mapping[bytes, bytes], connection: Connection) -> None:
        ordered = sorted(values.items())  # two that write the same ones would wait for each other
        await connection.execute(_WRITE, [each for each, _ in ordered], [each for _, each in ordered], self._kept_s)
        self._n_written += sum(map(len, values.values()))
        if self._n_written > self._most_bytes // _PART:
            self._n_written = 0
            await connection.execute(_END)
            await connection.execute(_BOUND, self._most_bytes)

    async def _swap(self, digest: bytes, value: bytes, values: Mapping[bytes, bytes], connection: Connection) -> bool:
        async with connection.transaction():
            row = await connection.fetchrow(_LOCK, digest)
            if row is None or row[0] != value:
                return False
            await self._write(values, connection)
            return True
