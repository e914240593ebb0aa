"""Which requests of one worker share a call: equal ones at the same time, and a client's retry with its first.

    look_up()   what a request is to do: begin a call that others may join, follow one, or neither

Knows: which requests may share, and how a retry is told. Does not know: what makes two requests equal (gateway/cache),
which calls there are and what is held of them (policy/join), or who writes a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from velox.gateway.access.plan import RequestPlan
from velox.gateway.cache.request_key import KeyBounds, RequestKey, RequestKeys
from velox.gateway.cluster.routing import RouteParts
from velox.gateway.join.following import Following
from velox.gateway.join.led_call import LedCall
from velox.heads import Headers, ReplyHead, RequestHead
from velox.outcomes import JoinResult
from velox.policy.cache.control import cache_control
from velox.policy.cache.endings import is_good_answer, is_good_stream
from velox.policy.cache.rules import CacheScope
from velox.policy.join.joined_call import JoinedCall
from velox.policy.join.rules import JoinRule
from velox.policy.join.table import JoinTable
from velox.protocol.reply_body import CodingError, plain_reply
from velox.types import ApiKind

__all__ = ["JOINED", "JoinLookup", "Joining"]

JOINED: Final[Headers] = [(b"x-velox-join", b"joined")]
# An agent's conversation is long, and just its calls are. What is longer takes a thread tens of milliseconds.
_BOUNDS: Final = KeyBounds(1024 * 1024, 20_000)
# As much as is read at once in the loop.
_LONG: Final = 64 * 1024
_CONTROL: Final = b"cache-control"
_CODINGS: Final = b"accept-encoding"
_NAMES: Final = frozenset({b"idempotency-key", b"x-idempotency-key"})
_RETRY_COUNT: Final = b"x-stainless-retry-count"


class JoinLookup(NamedTuple):
    """What a request is to do. led: it begins a call that others may join. following: it follows one.

    Neither: it has a call of its own.
    """

    result: JoinResult
    led: LedCall | None = None
    following: Following | None = None


_ALONE: Final = JoinLookup(JoinResult.ALONE)


class Joining:
    """Those of one worker."""

    __slots__ = ("_keys", "_loop", "_table")

    def __init__(self, table: JoinTable, keys: RequestKeys, loop: asyncio.AbstractEventLoop) -> None:
        self._table: Final = table
        self._keys: Final = keys
        self._loop: Final = loop

    def __repr__(self) -> str:
        return f"<Joining {self._table!r}>"

    def is_long(self, body: bytes | bytearray | None) -> bool:
        """Say whether to make the key of a request takes so long that it is done in a thread."""
        return body is not None and len(body) > _LONG

    def key_of(
        self, head: RequestHead, plan: RequestPlan, body: bytes | bytearray | None, route: RouteParts, rule: JoinRule
    ) -> RequestKey | None:
        """Return what stands for a request; None: it shares nothing. May run in a thread."""
        values = [value for name, value in head.headers if name == _CONTROL]
        if values:
            control = cache_control(values)
            if control.no_store or control.no_cache:
                return None
        codings = [value for name, value in head.headers if name == _CODINGS]
        sampled = rule.sampled or rule.retries
        return self._keys.key_of(
            head, plan, body, route, CacheScope.KEY, _BOUNDS, sampled=sampled, more=(b"join", *codings)
        )

    def look_up(self, head: RequestHead, plan: RequestPlan, key: RequestKey | None, rule: JoinRule) -> JoinLookup:
        """Say what a request is to do. key: of key_of(). Raises VeloxError."""
        if key is None:
            return _ALONE
        table = self._table
        name: bytes | None = None
        may_retry = False
        if rule.retries:
            given = [value for field, value in head.headers if field in _NAMES]
            if given:
                name = self._keys.name_of(head, plan, b",".join(given))
                found = table.find_named(name, key.key)
                if found is not None:
                    return self._follow(JoinResult.RETRY, found)
            if plan.terms.retries_itself:
                found = table.find_retry(key.key)
                if found is not None:
                    return self._follow(JoinResult.RETRY, found)
            may_retry = bool(given) or any(field == _RETRY_COUNT for field, _ in head.headers)
        may_share = rule.equal and (rule.sampled or not key.is_sampled)
        if may_share:
            found = table.find_equal(key.key)
            if found is not None:
                return self._follow(JoinResult.JOINED, found)
        if not (may_share or may_retry):
            return _ALONE
        call = table.begin(key.partition, key.key, name, may_retry=may_retry)
        if call is None:
            return _ALONE
        keeps = partial(self._keep, key.partition, plan.client_api, rule.keep_s, name is not None)
        return JoinLookup(JoinResult.LEADER, led=LedCall(call, rule.keep_s, self._loop, keeps))

    def _follow(self, result: JoinResult, call: JoinedCall) -> JoinLookup:
        return JoinLookup(result, following=Following(call, self._loop))

    def _keep(self, partition: str, api: ApiKind | None, keep_s: float, has_name: bool, call: JoinedCall) -> bool:
        """Keep the answer of a call for a retry, if one may come, and it may be given again.

        Where its client has had all of it, only the same Idempotency-Key tells a retry from another request.
        """
        head = call.head
        if head is None or not call.may_retry or (call.has_leader and not has_name) or not _is_good(api, head, call):
            return False
        self._table.keep(call, partition)
        timer = self._loop.call_later(keep_s, call.close)
        call.on_closed = partial(_close_both, timer.cancel, call.on_closed)
        return True


def _close_both(first: Callable[[], None], then: Callable[[], None] | None) -> None:
    first()
    if then is not None:
        then()


def _is_good(api: ApiKind | None, head: ReplyHead, call: JoinedCall) -> bool:
    body = call.reply
    if body is None:
        return False
    try:
        _, plain = plain_reply(head.headers, body)
    except CodingError:
        return False
    return is_good_stream(api, plain) if call.is_sse else is_good_answer(api, plain)
