"""The response cache of one worker: what an equal request was answered with before, in memory that all workers share.

    look_up()         whether the cache serves a request, and the answer that it has for it
    CacheStoreFilter  stores the answer of a request for which the cache had none

Knows: which answers a request may be given, and which are stored. Does not know: what makes two requests equal
(request_key.py), where bytes lie (shm/answer_ring.py), or who writes the reply.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, NamedTuple

from velox.gateway.access.plan import RequestPlan
from velox.gateway.cache.request_key import RequestKeys
from velox.gateway.cluster.routing import RouteParts
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import ReplyHead, RequestHead
from velox.net.client.body_budget import FREE_REPLY_BYTES, BodyBudget
from velox.outcomes import CacheResult
from velox.policy.cache.control import USUAL, CacheControl, cache_control
from velox.policy.cache.endings import is_good_answer, is_good_stream
from velox.policy.cache.entry import Entry, entry_bytes, read_entry
from velox.policy.cache.rules import CacheRule
from velox.policy.cache.shares import PartitionShares
from velox.shm.answer_ring import AnswerRing
from velox.types import ApiKind

__all__ = ["FIELD", "CacheBounds", "CacheHit", "CacheLookup", "CacheStoreFilter", "ResponseCache"]

FIELD: Final = b"x-velox-cache"
_CONTROL: Final = b"cache-control"
_TYPE: Final = b"content-type"
_JSON: Final = b"application/json"
_STORED: Final = b"stored"
_OK: Final = 200
_ERRORS_FROM: Final = 400


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """answer_bytes: of one answer. partition_bytes: that one partition keeps by one worker while its answers live."""

    answer_bytes: int
    partition_bytes: int


class CacheHit(NamedTuple):
    """A cached answer. age_s: seconds since it came."""

    entry: Entry
    age_s: float


class CacheLookup(NamedTuple):
    """The result of a look-up.

    found: its answer; None: an upstream is asked. reply_filter: what its reply passes then.
    is_unsatisfiable: the client accepts a cached answer only (only-if-cached, RFC 9111 §5.2.1.7), and there is none.
    """

    result: CacheResult
    found: CacheHit | None = None
    reply_filter: ReplyFilter | None = None
    is_unsatisfiable: bool = False


class ResponseCache:
    """Looks up and stores answers of requests.

    bodies: the memory budget of answers that are held. on_stored: called with the bytes of a stored answer, and the
    bytes of others that were evicted for it. now_s: a monotonic clock. keys: what stands for a request.
    """

    def __init__(
        self,
        ring: AnswerRing,
        bounds: CacheBounds,
        bodies: BodyBudget,
        on_stored: Callable[[int, int], None],
        now_s: Callable[[], float],
        keys: RequestKeys,
    ) -> None:
        self._ring: Final = ring
        self._bounds: Final = bounds
        self._bodies: Final = bodies
        self._on_stored: Final = on_stored
        self._now_s: Final = now_s
        self._keys: Final = keys
        self._shares: Final = PartitionShares(bounds.partition_bytes)

    def __repr__(self) -> str:
        return f"<ResponseCache {self._ring!r}>"

    def look_up(
        self,
        head: RequestHead,
        plan: RequestPlan,
        body: bytes | bytearray | None,
        route: RouteParts,
        rule: CacheRule,
        may_store: Callable[[], bool],
    ) -> CacheLookup:
        """Look up the answer of a request. may_store: returns at the end of its reply whether that may be stored."""
        headers = head.headers
        values = [value for name, value in headers if name == _CONTROL]
        control = cache_control(values) if values else USUAL
        if control.no_store:
            return _bypassed(control)
        request = self._keys.key_of(head, plan, body, route, rule.scope, sampled=rule.sampled)
        if request is None:
            return _bypassed(control)
        partition, key = request.partition, request.key
        if not control.no_cache:
            found = self._find(partition, key, min(rule.ttl_s, control.max_age_s))
            if found is not None:
                return CacheLookup(CacheResult.HIT, found)
        asked_ns = time.monotonic_ns()  # as the ring has times: a purge from now on is of this answer, too
        name, api = route.entry.name, plan.client_api
        store = partial(self._store, partition, key, name, rule.ttl_s, api, may_store, asked_ns)
        result = CacheResult.BYPASS if control.no_cache else CacheResult.MISS
        storing = CacheStoreFilter(store, self._bodies, self._bounds.answer_bytes, result)
        return CacheLookup(result, reply_filter=storing, is_unsatisfiable=control.only_if_cached)

    def _find(self, partition: str, key: bytes, most_age_s: float) -> CacheHit | None:
        kept = self._ring.get(partition, key.hex(), most_age_s)
        entry = None if kept is None else read_entry(key, kept.text)
        return None if entry is None or kept is None else CacheHit(entry, kept.age_s)

    def _store(
        self,
        partition: str,
        key: bytes,
        route: str,
        ttl_s: float,
        api: ApiKind | None,
        may_store: Callable[[], bool],
        asked_ns: int,
        entry: Entry,
        *,
        is_stream: bool,
    ) -> bool:
        """Store an answer, if it may be given again and its partition has bytes left."""
        is_good = is_good_stream(api, entry.body) if is_stream else is_good_answer(api, entry.body)
        if not is_good or not may_store():
            return False
        data, ring = entry_bytes(key, entry), self._ring
        if len(data) > ring.most_bytes or not self._shares.take(partition, len(data), ttl_s, self._now_s()):
            return False
        before = ring.written_bytes
        if not ring.put(partition, (key.hex(),), data, route, asked_ns):
            return False
        after = before + len(data)
        self._on_stored(len(data), max(0, after - ring.size) - max(0, before - ring.size))
        return True


class CacheStoreFilter(ReplyFilter):
    """Collects an answer as it passes, and stores it when it is complete. Of a short one that is no stream, the head is
    held until then, and says so.

    store: stores an answer; returns whether it did.
    """

    __slots__ = (
        *(
            "_bodies",
            "_head",
            "_is_given_up",
            "_is_sse",
            "_store",
            "_most_bytes",
            "_n_held",
            "_n_taken",
            "_pieces",
            "_told",
        ),
        "_type",
    )
    order: ClassVar[int] = FilterOrder.CACHE

    def __init__(self, store: Callable[..., bool], bodies: BodyBudget, most_bytes: int, result: CacheResult) -> None:
        super().__init__()
        self._store: Final = store
        self._bodies: Final = bodies
        self._most_bytes: Final = most_bytes
        self._told: Final = _told(result)
        self._type = b""
        self._is_sse = False
        self._is_given_up = False  # it is too long
        self._head: ReplyHead | None = None  # while it is held
        self._pieces: list[bytes] = []
        self._n_held = 0
        self._n_taken = 0  # of the room

    def __repr__(self) -> str:
        return f"<CacheStoreFilter {self._n_held} bytes>"

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Hold the head of an answer that is no stream."""
        self._drop()
        self._head, self.released, self._is_sse, self._is_given_up = None, None, is_sse, False
        if head.status >= _ERRORS_FROM:
            self.reads_body = False
            return head
        self._type = next((value for name, value in head.headers if name == _TYPE), b"")
        is_answer = head.status == _OK and is_plain and (is_sse or self._type.lower().startswith(_JSON))
        self.reads_body = is_answer and (head.content_length or 0) <= self._most_bytes
        if self.reads_body and not is_sse:
            self._head = head
            return None
        return _with_result(head, self._told)

    def feed(self, data: bytes, end: bool) -> bytes:
        """Return what goes on: nothing while an answer is held."""
        head = self._head
        if self._is_given_up or (head is None and not self._is_sse):
            return data
        self._pieces.append(data)
        self._n_held += len(data)
        if head is None:
            if not self._has_room():
                self._is_given_up = True
                self._drop()
            elif end:
                self._end(is_stream=True)
            return data
        if not end and self._has_room():
            return b""
        body = b"".join(self._pieces)
        is_stored = end and self._end(is_stream=False)
        self.released, self._head = _with_result(head, _STORED if is_stored else self._told), None
        self._drop()
        return body

    def close(self) -> None:
        """Nothing more comes."""
        self._drop()

    def _end(self, *, is_stream: bool) -> bool:
        body = b"".join(self._pieces)
        return len(body) <= self._most_bytes and self._store(Entry(self._type, body), is_stream=is_stream)

    def _has_room(self) -> bool:
        more = self._n_held - FREE_REPLY_BYTES - self._n_taken
        if self._n_held > self._most_bytes or (more > 0 and not self._bodies.take_for_reply(more)):
            return False
        self._n_taken += max(0, more)
        return True

    def _drop(self) -> None:
        """Hold nothing more."""
        self._pieces, self._n_held = [], 0
        n_bytes, self._n_taken = self._n_taken, 0
        if n_bytes:
            self._bodies.give_of_reply(n_bytes)


class _BypassFilter(ReplyFilter):
    """Writes into the head of a reply that the cache was bypassed."""

    __slots__ = ()
    order: ClassVar[int] = FilterOrder.CACHE

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        self.reads_body = False
        return head if head.status >= _ERRORS_FROM else _with_result(head, _told(CacheResult.BYPASS))


def _bypassed(control: CacheControl) -> CacheLookup:
    return CacheLookup(CacheResult.BYPASS, reply_filter=_BypassFilter(), is_unsatisfiable=control.only_if_cached)


def _told(result: CacheResult) -> bytes:
    return result.name.lower().encode()


def _with_result(head: ReplyHead, told: bytes) -> ReplyHead:
    return ReplyHead.of(head.status, [*head.headers, (FIELD, told)], head.content_length)
