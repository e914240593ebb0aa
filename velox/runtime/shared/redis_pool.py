"""Connections of one worker to Redis, for what a request waits for. With lease_redis.py the only file that imports
`redis`, and with those that ask through it (objects_redis.py, answers_redis.py).

In a cluster all keys have one hash tag, {velox}, so one node has them all: the one that Redis names in MOVED. Where
that does not answer any more, the node of the URL says which one does.

Knows: connections, and which node is asked. Does not know: keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, RedisError

from velox.runtime.shared.store import StoreDownError

__all__ = ["RedisPool"]

_T = TypeVar("_T")


class RedisPool:
    """Connections are made when they are needed. timeout_s: for each of them, and for its answers."""

    name: Final = "Redis"

    def __init__(self, url: str, timeout_s: float, connections: int) -> None:
        self._url: Final = url
        self._timeout_s: Final = timeout_s
        self._connections: Final = connections
        self._is_moved = False
        self._client = self._open()

    def __repr__(self) -> str:
        return f"<RedisPool{' at another node' if self._is_moved else ''}>"

    async def ask(self, work: Callable[[Any], Awaitable[_T]]) -> _T:
        """Return what some work with a client returns. Raises StoreDownError."""
        try:
            try:
                return await work(self._client)
            except MovedError as exc:
                await self._change(host=exc.host, port=exc.port)
                return await work(self._client)
        except (RedisError, OSError) as exc:
            if self._is_moved and not isinstance(exc, MovedError):
                await self._change()
            raise StoreDownError(type(exc).__name__) from exc  # a library's message may hold the URL

    async def close(self) -> None:
        """Let go of all connections."""
        await self._client.aclose(close_connection_pool=True)

    async def _change(self, **node: object) -> None:
        """Ask another node; none: that of the URL."""
        old, self._client, self._is_moved = self._client, self._open(**node), bool(node)
        await old.aclose(close_connection_pool=True)

    def _open(self, **node: object) -> Any:  # the library's own types say little
        pool = BlockingConnectionPool.from_url(
            self._url,
            max_connections=self._connections,
            timeout=self._timeout_s,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        pool.connection_kwargs.update(node)
        return Redis(connection_pool=cast(Any, pool))
