"""The stores in which several gateways know and keep things together: a Redis, or the PostgreSQL of the ledger.

    STORES                      the name of each
    with shared_store(name, tmp_path) as store:
        routed(config, **store.settings())    one gateway; each call has a folder of its own

Knows: how a gateway is pointed at one, how it hangs, how many rows it has. Does not know: what is kept.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import asyncpg

from tests.e2e.redis_server import RedisServer, redis_server
from tests.postgres_server import PostgresServer, postgres_server

__all__ = ["STORES", "SharedStore", "shared_store"]

STORES: Final = ("redis", "postgres")


class SharedStore(Protocol):
    """One of them."""

    def settings(self) -> dict[str, str]:
        """Return the settings of one more gateway."""

    def n_objects(self) -> int:
        """Return how many objects are known."""

    def n_answers(self) -> int:
        """Return how many answers are kept, and ids of their items."""

    def longest_s(self, what: str) -> float:
        """Return in how many seconds the last `object`, or `answer`, is forgotten."""

    def is_ready(self) -> bool:
        """Say whether rows can be kept there: the ledger's process makes the tables of a new database."""

    def pause(self) -> None:
        """Let it hang."""

    def resume(self) -> None:
        """Let it go on."""


class _Redis:
    def __init__(self, server: RedisServer) -> None:
        self._server: Final = server
        self.pause: Final = server.pause
        self.resume: Final = server.resume

    def settings(self) -> dict[str, str]:
        return {"redis_url": self._server.url, "redis_timeout": "1s"}

    def is_ready(self) -> bool:
        return True

    def _ends(self, what: str) -> list[int]:
        with self._server.client() as client:
            return [int(client.ttl(key)) for key in client.keys(f"*:{what}:*")]

    def n_objects(self) -> int:
        return len(self._ends("object"))

    def n_answers(self) -> int:
        return len(self._ends("answer"))

    def longest_s(self, what: str) -> float:
        ends = self._ends(what)
        assert all(end > 0 for end in ends), "a key without an end"
        return max(ends)


class _Postgres:
    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._server: Final = server
        self._database: Final = server.database()
        self._folders: Final = (folder / f"ledger-{n}" for n in itertools.count())
        self.pause: Final = server.pause
        self.resume: Final = server.resume

    def settings(self) -> dict[str, str]:
        return {
            "ledger": str(next(self._folders)),
            "ledger_database": self._database,
            "kept_database_bytes": "64MiB",
            "redis_timeout": "1s",
        }

    def _count(self, table: str) -> int:
        try:
            return int(self._server.sql(self._database, f"SELECT count(*) FROM {table}")[0][0])
        except asyncpg.UndefinedTableError:
            return 0  # the ledger's process is about to make it

    def is_ready(self) -> bool:
        return bool(self._server.sql(self._database, "SELECT to_regclass('velox_answer') IS NOT NULL")[0][0])

    def n_objects(self) -> int:
        return self._count("velox_object")

    def n_answers(self) -> int:
        return self._count("velox_answer")

    def longest_s(self, what: str) -> float:
        column = "noted + interval '30 days'" if what == "object" else "until"
        sql = f"SELECT extract(epoch FROM max({column}) - now())::float8 FROM velox_{what}"
        return float(self._server.sql(self._database, sql)[0][0])


@contextlib.contextmanager
def shared_store(name: str, folder: Path) -> Iterator[SharedStore]:
    """Run a store for one test. folder: for those of gateways."""
    if name == "redis":
        with redis_server() as redis:
            yield _Redis(redis)
    else:
        with postgres_server() as postgres:
            yield _Postgres(postgres, folder)
