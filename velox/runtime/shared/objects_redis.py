"""Owners and places of objects in Redis (shared/objects.py).

    {prefix}{velox}:object:TAG  ->  OWNER PLACE     numbers, as in the table of objects; each ends after 30 days

The numbers are hashes with a key that all gateways of one Redis have alike (object_memory.py).

Knows: keys. Does not know: connections (redis_pool.py), or what the numbers stand for.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from velox.runtime.shared.objects import KEPT_S
from velox.runtime.shared.redis_pool import RedisPool

__all__ = ["RedisObjects"]

_CONNECTIONS: Final = 4
_ROW: Final = struct.Struct("<QQ")


class RedisObjects:
    """Of one worker; see ObjectStore."""

    name: Final = RedisPool.name

    def __init__(self, url: str, prefix: str, timeout_s: float) -> None:
        self._prefix: Final = f"{prefix}{{velox}}:object:".encode()
        self._pool: Final = RedisPool(url, timeout_s, _CONNECTIONS)

    def __repr__(self) -> str:
        return f"<RedisObjects {self._pool!r}>"

    async def read(self, tags: Sequence[int]) -> dict[int, tuple[int, int]]:
        """See ObjectStore."""
        keys = [self._key(tag) for tag in tags]
        found = await self._pool.ask(lambda client: client.mget(keys))
        rows = zip(tags, found, strict=True)
        return {tag: _ROW.unpack(row) for tag, row in rows if row is not None and len(row) == _ROW.size}

    async def write(self, rows: Mapping[int, tuple[int, int]]) -> None:
        """See ObjectStore."""
        await self._pool.ask(partial(self._write, rows))

    async def close(self) -> None:
        """See ObjectStore."""
        await self._pool.close()

    async def _write(self, rows: Mapping[int, tuple[int, int]], client: Any) -> None:
        pipe = client.pipeline(transaction=False)
        for tag, row in rows.items():
            pipe.set(self._key(tag), _ROW.pack(*row), ex=KEPT_S)
        await pipe.execute()

    def _key(self, tag: int) -> bytes:
        return self._prefix + b"%016x" % tag
