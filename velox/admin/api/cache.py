"""Takes answers out of the response cache, at /api/v1/cache/purge.

Knows: what they may be named by, and who is told. Does not know: where answers are (shm/answer_ring.py), or which
routes and keys there are: that the workers say, as their configuration changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from velox.admin.api import schemas
from velox.admin.api.call import Answer, ApiCall, ApiError
from velox.admin.api.routes import ADMINS, Field, Route
from velox.policy.cache.rules import key_partition
from velox.profiling.running import CachedBy, CachedParts
from velox.shm.answer_ring import AnswerRing

__all__ = ["CachePages"]

_MOST_AGE_S: Final = 31 * 86_400  # no answer is given again for longer
_MOST_NAME: Final = 256


class CachePages:
    """The call. ring: None: there is no room for a cache. ask: asks the workers what, and which of it.

    managed_caller: returns what a managed key is counted by, also if it is blocked; None: there is none of this id. It
    may wait for the database. tell: called with how many answers a purge has taken out. logger: the operations log.
    """

    def __init__(
        self,
        ring: AnswerRing | None,
        ask: Callable[[str, str], Awaitable[list[bytes | None]]],
        managed_caller: Callable[[str], bytes | None],
        tell: Callable[[int], None],
        logger: logging.Logger,
    ) -> None:
        self._ring: Final = ring
        self._ask: Final = ask
        self._managed_caller: Final = managed_caller
        self._tell: Final = tell
        self._logger: Final = logger

    def __repr__(self) -> str:
        return f"<CachePages {self._ring!r}>"

    def routes(self) -> Iterator[Route]:
        """Return all of them."""
        text = {"type": "string", "minLength": 1, "maxLength": _MOST_NAME}
        age = {"type": "integer", "minimum": 1, "maximum": _MOST_AGE_S}
        query = (
            Field("route", text, "only answers of this route"),
            Field("key", text, "only answers that this key has for itself: its id, or its name"),
            Field("older_than", age, "only answers that were kept so long ago; seconds"),
        )
        about = "Take answers out of the response cache: all that every parameter is true of; without one, all."
        path, purged = "/api/v1/cache/purge", schemas.ref("Purged")
        yield Route("POST", path, "purgeCache", about, self._purge, purged, ADMINS, query, errors=(404,))

    def _purge(self, call: ApiCall) -> Coroutine[Any, Any, Answer]:
        ring = self._ring
        if ring is None:
            raise ApiError(404, "off", "there is no room for a cache here: set VELOX_CACHE_BYTES")
        route, key = (_name(call, name) for name in ("route", "key"))
        age_s = call.number("older_than", 0, _MOST_AGE_S)
        caller = self._managed_caller(key) if key else None
        partitions = set() if caller is None else {key_partition(caller)}
        return self._done(ring, call, CachedBy(route, key), partitions, age_s)

    async def _done(self, ring: AnswerRing, call: ApiCall, asked: CachedBy, partitions: set[str], age_s: int) -> Answer:
        answers = await self._ask("cached", msgspec.json.encode(asked).decode())
        found = [msgspec.json.decode(each, type=CachedParts) for each in answers if each]
        if not found:
            message = "no worker has told its routes and keys in time"
            raise ApiError(503, "busy", message, headers=(("Retry-After", "1"),))
        if not any(each.has_cache for each in found):
            raise ApiError(404, "off", "no route has a cache: give one `cache: {ttl: 10m}`")
        if asked.route and not any(each.has_route for each in found):
            raise ApiError(404, "not_found", f"there is no route {asked.route!r}", "route")
        partitions = partitions.union(*(each.partitions for each in found))
        if asked.key and not partitions:
            raise ApiError(404, "not_found", f"there is no key {asked.key!r}: give its id or its name", "key")
        n_purged = await asyncio.to_thread(partial(ring.forget_where, partitions, asked.route, float(age_s)))
        self._tell(n_purged)
        which = [f"{name} {value!r}" for name, value in (("route", asked.route), ("key", asked.key)) if value]
        which += [f"older than {age_s} s"] if age_s else []
        told = {"n": n_purged, "which": ", ".join(which) or "all", "who": call.asker.name}
        self._logger.info("cache: %(n)s answers were purged by %(who)s: %(which)s", told)
        return Answer(200, {"purged": n_purged})


def _name(call: ApiCall, name: str) -> str:
    """Return a name of the query, "" if it is not given. Raises ApiError: an empty one must not mean all."""
    text = call.query.get(name)
    if text is not None and not 1 <= len(text) <= _MOST_NAME:
        raise ApiError(400, "invalid", f"{name}: expected a name of 1 to {_MOST_NAME} characters", name)
    return text or ""
