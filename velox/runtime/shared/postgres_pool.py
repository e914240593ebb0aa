"""Connections of one worker to the ledger's PostgreSQL, for what a request waits for.

They have a loop in a thread of their own: to read certificates, to sign in, and to copy megabytes would hold up the
worker's. A connection that fails, or whose answer nobody waits for any more, is ended: what it was in the middle of is
not known.

Knows: connections. Does not know: tables.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

import asyncpg

from velox.ledger.postgres_database import FAILURES, open_connection
from velox.runtime.shared.store import StoreDownError

__all__ = ["Connection", "PostgresPool"]

_T = TypeVar("_T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
_CONNECTIONS: Final = 4
_CONNECT_S: Final = 5.0


class PostgresPool:
    """Connections are made when they are needed, and stay. What asks has a deadline of its own."""

    name: Final = "the database"

    def __init__(self, url: str) -> None:
        self._url: Final = url
        self._loop: asyncio.AbstractEventLoop | None = None  # of the thread, with the first question
        self._thread: threading.Thread | None = None
        self._room = asyncio.Semaphore(_CONNECTIONS)
        self._idle: Final[list[Connection]] = []

    def __repr__(self) -> str:
        return f"<PostgresPool idle={len(self._idle)}>"

    async def ask(self, work: Callable[[Connection], Awaitable[_T]]) -> _T:
        """Return what some work with a connection returns. Raises StoreDownError."""
        return await self._in_thread(self._asked(work))

    async def close(self) -> None:
        """End all connections, and the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        await self._in_thread(self._end_idle())
        self._thread = None  # a second call has nothing to do
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()

    async def _in_thread(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="postgres")
            self._thread.start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _asked(self, work: Callable[[Connection], Awaitable[_T]]) -> _T:
        async with self._room:
            try:
                connection = await self._connected()
                try:
                    found = await work(connection)
                except BaseException:
                    connection.terminate()
                    raise
            except FAILURES as exc:
                await self._end_idle()  # they are no better
                raise StoreDownError(type(exc).__name__) from exc
            self._idle.append(connection)
            return found

    async def _connected(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await open_connection(self._url, connect_s=_CONNECT_S)

    async def _end_idle(self) -> None:
        idle = list(self._idle)
        self._idle.clear()
        for each in idle:
            each.terminate()
