"""Which requests of one worker share a call: equal ones at the same time, and a client's retry with its first.

    look_up()   what a request is to do: begin a call that others may join, follow one, or neither

Knows: which requests may share, and how a retry is told. Does not know: what makes two requests equal (gateway/cache),
which calls there are and what is held of them (policy/join), or who writes a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

from velox.gateway.access.plan import RequestPlan
from velox.gateway.cache.request_key import KeyBounds, RequestKey, RequestKeys
from velox.gateway.cluster.routing import RouteParts
from velox.gateway.join.following import Following
from velox.gateway.join.led_call import LedCall
from velox.gateway.join.peers import Peers
from velox.heads import ReplyHead, RequestHead
from velox.outcomes import JoinResult
from velox.policy.cache.control import cache_control
from velox.policy.cache.endings import is_good_answer, is_good_stream
from velox.policy.cache.rules import CacheScope
from velox.policy.join.frames import FrameKind, Wanted
from velox.policy.join.joined_call import JoinedCall
from velox.policy.join.rules import JoinRule
from velox.policy.join.table import JoinTable, join_key, mismatch
from velox.protocol.reply_body import CodingError, plain_reply
from velox.shm.join_index import JoinPlace
from velox.types import ApiKind

__all__ = ["JoinLookup", "Joining"]

# An agent's conversation is long, and just its calls are. What is longer takes a thread tens of milliseconds.
_BOUNDS: Final = KeyBounds(1024 * 1024, 20_000)
# As much as is read at once in the loop: of nothing but objects, a kilobyte takes a millisecond.
_LONG: Final = 4 * 1024
# As much of an answer as is judged at once there, and of one that is compressed at all: that may be of any length.
_JUDGED: Final = 32 * 1024
_CONTROL: Final = b"cache-control"
_CODINGS: Final = b"accept-encoding"
_CODING: Final = b"content-encoding"
_NAMES: Final = frozenset({b"idempotency-key", b"x-idempotency-key"})
_RETRY_COUNT: Final = b"x-stainless-retry-count"


class JoinLookup(NamedTuple):
    """What a request is to do. led: it begins a call that others may join. following: it follows one.

    elsewhere: another worker seems to have a call for it. That is to be awaited, and then looked up again. None of
    these: it has a call of its own.
    """

    result: JoinResult
    led: LedCall | None = None
    following: Following | None = None
    elsewhere: Callable[[], Coroutine[Any, Any, None]] | None = None


_ALONE: Final = JoinLookup(JoinResult.ALONE)


class Joining:
    """Those of one worker. peers: the other ones; None: there are none."""

    __slots__ = ("_keys", "_loop", "_peers", "_table")

    def __init__(
        self, table: JoinTable, keys: RequestKeys, loop: asyncio.AbstractEventLoop, peers: Peers | None = None
    ) -> None:
        self._peers: Final = peers
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
        found = self._keys.key_of(
            head, plan, body, route, CacheScope.KEY, _BOUNDS, sampled=sampled, more=(b"join", *codings)
        )
        return None if found is None else found._replace(key=join_key(found.key, found.body))

    def look_up(
        self,
        head: RequestHead,
        plan: RequestPlan,
        key: RequestKey | None,
        rule: JoinRule,
        *,
        asks_others: bool = True,
    ) -> JoinLookup:
        """Say what a request is to do. key: of key_of(). asks_others: False: they were asked. Raises VeloxError."""
        if key is None:
            return _ALONE
        given: list[bytes] = []
        if rule.retries:
            given = [value for field, value in head.headers if field in _NAMES and value]
        name = self._keys.name_of(head, plan, b",".join(given)) if given else None
        may_share = rule.equal and (rule.sampled or not key.is_sampled)
        wanted = _wanted(plan, rule, may_share=may_share, has_name=name is not None)
        for each in wanted:
            found = self._find(each, key.key, name)
            if found is not None:
                result = JoinResult.JOINED if each is Wanted.EQUAL else JoinResult.RETRY
                return JoinLookup(result, following=Following(found, self._loop))
        if asks_others and self._peers is not None:
            for each in wanted:
                places = self._peers.find(each, key.key, name)
                if places:
                    ask = partial(self._ask, self._peers, places, each, key, name)
                    return JoinLookup(JoinResult.ALONE, elsewhere=ask)
        may_retry = rule.retries and (bool(given) or any(field == _RETRY_COUNT for field, _ in head.headers))
        if not (may_share or may_retry):
            return _ALONE
        if name is not None and self._table.has_name(name):
            name = None  # of the same body in a request that differs otherwise: that one keeps it
        call = self._table.begin(key.partition, key.key, name, may_retry=may_retry)
        if call is None:
            return _ALONE
        if self._peers is not None:
            self._peers.publish(call, (key.key,) if name is None else (key.key, name))
        keeps = partial(self._keep, key.partition, plan.client_api, rule.keep_s, name is not None)
        return JoinLookup(JoinResult.LEADER, led=LedCall(call, rule.keep_s, self._loop, keeps))

    @property
    def n_links(self) -> int:
        """Connections to other workers, over which calls are followed."""
        return 0 if self._peers is None else self._peers.n_links

    def close(self) -> None:
        """The worker stops."""
        if self._peers is not None:
            self._peers.close()

    def _find(self, wanted: Wanted, key: bytes, name: bytes | None) -> JoinedCall | None:
        """Return a call of this worker. Raises VeloxError."""
        if wanted is Wanted.EQUAL:
            return self._table.find_equal(key)
        if wanted is Wanted.RETRY:
            return self._table.find_retry(key)
        return None if name is None else self._table.find_named(name, key)

    async def _ask(
        self, peers: Peers, places: list[JoinPlace], wanted: Wanted, key: RequestKey, name: bytes | None
    ) -> None:
        """Have a call of another worker in the own table, if that has it. Raises VeloxError."""
        begin = partial(self._table.begin, key.partition, key.key, name, may_retry=wanted is not Wanted.EQUAL)
        if await peers.join(places, wanted, key.key, name, begin) is FrameKind.MISMATCH:
            raise mismatch()

    def _keep(self, partition: str, api: ApiKind | None, keep_s: float, has_name: bool, call: JoinedCall) -> bool:
        """Keep the answer of a call for a retry, if one may come, and it may be given again.

        Where its client has had all of it, only the same Idempotency-Key tells a retry from another request.
        """
        head, body = call.head, call.reply
        if head is None or body is None or not call.may_retry or (call.has_leader and not has_name):
            return False
        is_long = len(body) > _JUDGED
        if is_long and any(field == _CODING for field, _ in head.headers):
            return False
        if not is_long and not _is_good(api, head, body, is_sse=call.is_sse):
            return False
        self._table.keep(call, partition)
        timer = self._loop.call_later(keep_s, call.close)
        call.on_closed = partial(_close_both, timer.cancel, call.on_closed)
        if is_long:  # a retry that comes meanwhile gets what the first client has got
            judging = self._loop.run_in_executor(None, partial(_is_good, api, head, body, is_sse=call.is_sse))
            judging.add_done_callback(partial(_judged, call))
        return True


def _wanted(plan: RequestPlan, rule: JoinRule, *, may_share: bool, has_name: bool) -> list[Wanted]:
    """Return which calls a request may join, in the order in which they are looked for."""
    found = []
    if has_name:
        found.append(Wanted.NAMED)
    elif rule.retries and plan.terms.retries_itself:
        found.append(Wanted.RETRY)
    if may_share:
        found.append(Wanted.EQUAL)
    return found


def _close_both(first: Callable[[], None], then: Callable[[], None] | None) -> None:
    first()
    if then is not None:
        then()


def _is_good(api: ApiKind | None, head: ReplyHead, body: bytes, *, is_sse: bool) -> bool:
    try:
        _, plain = plain_reply(head.headers, body)
    except CodingError:
        return False
    return is_good_stream(api, plain) if is_sse else is_good_answer(api, plain)


def _judged(call: JoinedCall, judging: asyncio.Future[bool]) -> None:
    """Keep a long answer no more that is none to be given again."""
    if judging.cancelled() or judging.exception() is not None or not judging.result():
        call.close()
