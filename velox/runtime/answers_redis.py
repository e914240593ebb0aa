"""Kept answers in Redis, where several gateways have the same ones. A worker's side; with lease_redis.py and
objects_redis.py the only file that imports `redis`.

    {prefix}{velox}:answer:DIGEST of owner and id  ->  =TEXT       an answer, by its own id
                                                       @DIGEST     the same, by the id of one of its items
                                                       !           it was deleted: no gateway may find its own copy

Each key ends by itself (VELOX_KEPT_FOR), counted anew when somebody asks for it. What Redis has no room for, or can't
be told in time, is not kept there: the gateway that made the answer still has it.

Knows: keys, time-outs, what is under way. Does not know: what an answer is, or what a request without one gets.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from velox.gateway.answers import AnswersDownError

__all__ = ["RedisAnswers"]

T = TypeVar("T")

_CONNECTIONS: Final = 8
_LEAST_S: Final = 1.0  # an answer may be megabytes, and nobody has it otherwise
_DOWN_S: Final = 1.0  # after a failure nobody waits for the next one
_MOST_UNDER_WAY: Final = 32 * 1024 * 1024
_TEXT, _LINK, _GONE = b"=", b"@", b"!"


class RedisAnswers:
    """Of one worker; see SharedAnswers."""

    def __init__(
        self,
        url: str,
        prefix: str,
        kept_s: float,
        timeout_s: float,
        loop: asyncio.AbstractEventLoop,
        logger: logging.Logger,
    ) -> None:
        self._prefix: Final = f"{prefix}{{velox}}:answer:".encode()
        self._kept_ms: Final = max(1, round(kept_s * 1000))
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
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._n_under_way = 0  # bytes
        self._down_until_s = 0.0
        self._is_down = False

    def __repr__(self) -> str:
        return f"<RedisAnswers {'down' if self._is_down else 'up'} under way={self._n_under_way}>"

    async def get(self, owner: str, object_id: str) -> bytes | None:
        """See SharedAnswers."""
        key = self._key(owner, object_id)
        value = await self._asking(lambda: self._read(key))
        if value is not None and value.startswith(_LINK):
            link = self._prefix + value[1:]
            value = await self._asking(lambda: self._read(link))
        if value is None or not value.startswith((_TEXT, _GONE)):
            return None
        return value[1:]

    def put(self, owner: str, ids: tuple[str, ...], text: bytes) -> None:
        """See SharedAnswers. In any thread."""
        self._loop.call_soon_threadsafe(self._begin, owner, ids, text)

    async def forget(self, owner: str, ids: tuple[str, ...]) -> None:
        """See SharedAnswers."""
        await self._asking(lambda: self._write({self._key(owner, each): _GONE for each in ids}))

    async def close(self) -> None:
        """Let what is under way come to its end, and leave."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._timeout_s)
        await self._client.aclose()

    # -- inside -------------------------------------------------------------------------------------

    def _key(self, owner: str, object_id: str) -> bytes:
        """Return the key of an id; its length and letters are not the client's to choose."""
        return self._prefix + _digest(owner, object_id)

    def _begin(self, owner: str, ids: tuple[str, ...], text: bytes) -> None:
        if self._n_under_way + len(text) > _MOST_UNDER_WAY:
            self._failed("it takes answers too slowly")
            return
        first, *others = ids
        values = {self._key(owner, first): _TEXT + text}
        values.update({self._key(owner, each): _LINK + _digest(owner, first) for each in others})
        self._n_under_way += len(text)
        task = self._loop.create_task(self._keep(values, len(text)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, values: dict[bytes, bytes], n_bytes: int) -> None:
        try:
            await self._asking(lambda: self._write(values))
        except AnswersDownError:
            pass  # it was told
        finally:
            self._n_under_way -= n_bytes

    async def _read(self, key: bytes) -> bytes | None:
        found: bytes | None = await self._client.getex(key, px=self._kept_ms)
        return found

    async def _write(self, values: dict[bytes, bytes]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for key, value in values.items():
            pipe.set(key, value, px=self._kept_ms)
        await pipe.execute()

    async def _asking(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask Redis. Raises AnswersDownError."""
        if self._loop.time() < self._down_until_s:
            raise AnswersDownError
        try:
            found = await asyncio.wait_for(ask(), self._timeout_s)
        except (TimeoutError, RedisError, OSError) as exc:
            self._failed(type(exc).__name__)  # a library's message may hold the URL
            raise AnswersDownError from None
        if self._is_down:
            self._is_down = False
            self._logger.info("Redis can be asked for kept answers again")
        return found

    def _failed(self, why: str) -> None:
        self._down_until_s = self._loop.time() + _DOWN_S
        if not self._is_down:
            self._is_down = True
            self._logger.warning("Redis can't be asked for kept answers (%s); those of other gateways get 503", why)


def _digest(owner: str, object_id: str) -> bytes:
    text = f"{owner}\0{object_id}".encode("utf-8", "replace")
    return hashlib.blake2b(text, digest_size=20).hexdigest().encode()
