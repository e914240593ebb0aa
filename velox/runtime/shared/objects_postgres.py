"""Owners and places of objects in the ledger's PostgreSQL (shared/objects.py).

Knows: statements. Does not know: connections (postgres_pool.py), what makes and prunes the table (ledger/postgres.py),
or what the numbers stand for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from velox.runtime.shared.postgres_pool import Connection, PostgresPool

__all__ = ["PostgresObjects"]

_READ: Final = "SELECT tag, owner, place FROM velox_object WHERE tag = ANY($1::bigint[])"
# What is known of an object stays so.
_WRITE: Final = (
    "INSERT INTO velox_object (tag, owner, place)"
    " SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) ON CONFLICT (tag) DO NOTHING"
)
_SIGN: Final = 1 << 63


class PostgresObjects:
    """Of one worker; see ObjectStore."""

    name: Final = PostgresPool.name

    def __init__(self, pool: PostgresPool) -> None:
        self._pool: Final = pool

    def __repr__(self) -> str:
        return f"<PostgresObjects {self._pool!r}>"

    async def read(self, tags: Sequence[int]) -> dict[int, tuple[int, int]]:
        """See ObjectStore."""
        found = await self._pool.ask(lambda connection: connection.fetch(_READ, [_signed(tag) for tag in tags]))
        return {_unsigned(tag): (_unsigned(owner), _unsigned(place)) for tag, owner, place in found}

    async def write(self, rows: Mapping[int, tuple[int, int]]) -> None:
        """See ObjectStore."""
        await self._pool.ask(partial(_write, rows))

    async def close(self) -> None:
        """See ObjectStore."""
        await self._pool.close()


async def _write(rows: Mapping[int, tuple[int, int]], connection: Connection) -> None:
    # In one order: two workers that tell of the same objects would wait for each other.
    signed = sorted((_signed(tag), _signed(owner), _signed(place)) for tag, (owner, place) in rows.items())
    await connection.execute(_WRITE, *map(list, zip(*signed, strict=True)))


def _signed(number: int) -> int:
    return (number ^ _SIGN) - _SIGN


def _unsigned(number: int) -> int:
    return number & (2 * _SIGN - 1)
