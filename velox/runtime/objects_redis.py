"""Owners and places of objects in Redis, where several gateways know the same ones. A worker's side.

    {prefix}{velox}:object:TAG  ->  OWNER PLACE     numbers, as in the table of objects; each ends after 30 days

The numbers are hashes with a key that all gateways of one Redis have alike (object_memory.py). What can't be told or
asked in time is not: the gateway that made an object knows it all the same, another one does not.

Knows: keys, time-outs. Does not know: what the numbers stand for, or what follows from an object that nobody knows.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from typing import Any, Final, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

__all__ = ["RedisObjects"]

_CONNECTIONS: Final = 4
_LEAST_S: Final = 0.25
_DOWN_S: Final = 1.0  # after a failure nobody waits for the next one
_KEPT_S: Final = 30 * 86_400
_MOST_WAITING: Final = 10_000
_ROW: Final = struct.Struct("<QQ")


class RedisObjects:
    """Of one worker; see SharedObjects."""

    def __init__(
        self, url: str, prefix: str, timeout_s: float, loop: asyncio.AbstractEventLoop, logger: logging.Logger
    ) -> None:
        self._prefix: Final = f"{prefix}{{velox}}:object:".encode()
        self._timeout_s: Final = max(timeout_s, _LEAST_S)
        self._loop: Final = loop
        self._logger: Final = logger
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=self._timeout_s,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._client: Final[Any] = Redis(connection_pool=cast(Any, pool))  # the library's own types say little
        self._waiting: Final[dict[int, bytes]] = {}  # rows to be told
        self._telling: asyncio.Task[None] | None = None
        self._down_until_s = 0.0
        self._is_down = False

    def __repr__(self) -> str:
        return f"<RedisObjects {'down' if self._is_down else 'up'} waiting={len(self._waiting)}>"

    def put(self, tag: int, owner: int, place: int) -> None:
        """Tell other gateways of an object. Not waited for."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting[tag] = _ROW.pack(owner, place)
        if self._telling is None:
            self._telling = self._loop.create_task(self._tell())

    async def get(self, tags: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return owner and place of those that are known; of none while Redis can't be asked."""
        if self._loop.time() < self._down_until_s:
            return {}
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._client.mget([self._key(tag) for tag in tags])
        except (TimeoutError, RedisError, OSError) as exc:
            self._failed(type(exc).__name__)
            return {}
        self._is_up()
        rows = zip(tags, found, strict=True)
        return {tag: _ROW.unpack(row) for tag, row in rows if row is not None and len(row) == _ROW.size}

    async def close(self) -> None:
        """Let what is under way come to its end, and leave."""
        if self._telling is not None:
            await asyncio.wait((self._telling,), timeout=self._timeout_s)
        await self._client.aclose()

    # -- inside -------------------------------------------------------------------------------------

    def _key(self, tag: int) -> bytes:
        return self._prefix + b"%016x" % tag

    async def _tell(self) -> None:
        try:
            while self._waiting:
                rows = dict(self._waiting)
                self._waiting.clear()
                pipe = self._client.pipeline(transaction=False)
                for tag, row in rows.items():
                    pipe.set(self._key(tag), row, ex=_KEPT_S)
                try:
                    async with asyncio.timeout(self._timeout_s):
                        await pipe.execute()
                except (TimeoutError, RedisError, OSError) as exc:
                    self._failed(type(exc).__name__)  # a library's message may hold the URL
                else:
                    self._is_up()
        finally:
            self._telling = None

    def _is_up(self) -> None:
        if self._is_down:
            self._is_down = False
            self._logger.info("Redis can be asked for objects again")

    def _failed(self, why: str) -> None:
        self._down_until_s = self._loop.time() + _DOWN_S
        if not self._is_down:
            self._is_down = True
            self._logger.warning("Redis can't be asked for objects (%s): those of other gateways are not known", why)
