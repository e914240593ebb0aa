"""Kept answers in Redis (shared/answers.py).

    {prefix}{velox}:answer:DIGEST  ->  VALUE     each ends by itself (VELOX_KEPT_FOR), counted anew when it is asked for

Knows: keys. Does not know: connections (redis_pool.py), or what a value is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from velox.runtime.shared.redis_pool import RedisPool

__all__ = ["RedisAnswers"]

_CONNECTIONS: Final = 8
# KEYS: the one that changes, then all that are written. ARGV: what it has now, the milliseconds, a value for each key.
_SWAP: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for n = 2, #KEYS do redis.call('SET', KEYS[n], ARGV[n + 1], 'PX', ARGV[2]) end
return 1
"""


class RedisAnswers:
    """Of one worker; see AnswerBytes."""

    name: Final = RedisPool.name

    def __init__(self, url: str, prefix: str, kept_s: float, timeout_s: float) -> None:
        self._prefix: Final = f"{prefix}{{velox}}:answer:".encode()
        self._kept_ms: Final = max(1, round(kept_s * 1000))
        self._pool: Final = RedisPool(url, timeout_s, _CONNECTIONS)

    def __repr__(self) -> str:
        return f"<RedisAnswers {self._pool!r}>"

    async def read(self, digest: bytes) -> bytes | None:
        """See AnswerBytes."""
        key = self._key(digest)
        found: bytes | None = await self._pool.ask(lambda client: client.getex(key, px=self._kept_ms))
        return found

    async def write(self, values: Mapping[bytes, bytes]) -> None:
        """See AnswerBytes."""
        await self._pool.ask(partial(self._write, values))

    async def swap(self, digest: bytes, value: bytes, values: Mapping[bytes, bytes]) -> bool:
        """See AnswerBytes."""
        keys = [self._key(each) for each in (digest, *values)]
        given = (value, self._kept_ms, *values.values())
        return bool(await self._pool.ask(lambda client: client.eval(_SWAP, len(keys), *keys, *given)))

    async def close(self) -> None:
        """See AnswerBytes."""
        await self._pool.close()

    async def _write(self, values: Mapping[bytes, bytes], client: Any) -> None:
        pipe = client.pipeline(transaction=False)
        for digest, value in values.items():
            pipe.set(self._key(digest), value, px=self._kept_ms)
        await pipe.execute()

    def _key(self, digest: bytes) -> bytes:
        return self._prefix + digest.hex().encode()
