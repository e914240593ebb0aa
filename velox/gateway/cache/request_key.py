"""What stands for a request: two that have the same key are equal, and may be given one answer.

Knows: what makes two requests equal beside their bodies: who asks, where it goes, which fields of its head may matter.
Does not know: how bodies are compared (policy/cache), or what is done with a key (response_cache.py, gateway/join).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from velox.gateway.access.plan import RequestPlan
from velox.gateway.cluster.routing import RouteParts
from velox.heads import RequestHead
from velox.policy.cache.canonical import MOST_OBJECTS, NotCanonicalError, read_canonical
from velox.policy.cache.requests import (
    LONGEST_BODY,
    Uncached,
    body_text,
    cache_key,
    credentials,
    may_cache_api,
    telling_headers,
    why_uncached,
)
from velox.policy.cache.rules import CacheScope, partition_of

__all__ = ["ANSWERS_BOUNDS", "KeyBounds", "RequestKey", "RequestKeys"]


class KeyBounds(NamedTuple):
    """How much of a body is read for its key: bytes, and objects in it."""

    n_bytes: int
    n_objects: int


ANSWERS_BOUNDS: Final = KeyBounds(LONGEST_BODY, MOST_OBJECTS)


class RequestKey(NamedTuple):
    """key: 32 bytes. body: as many, of its body alone. partition: who shares answers with its caller. is_sampled: its
    answers differ by chance."""

    partition: str
    key: bytes
    body: bytes
    is_sampled: bool


class RequestKeys:
    """Makes keys. requires_keys: clients present keys of this gateway; else their credentials go up, and are a part of
    a request.
    """

    def __init__(self, *, requires_keys: bool) -> None:
        self._requires_keys: Final = requires_keys
        self._accounts: Final[dict[str, tuple[RouteParts, bytes]]] = {}  # by route; of a reload's before, replaced

    def __repr__(self) -> str:
        return f"<RequestKeys {len(self._accounts)} accounts>"

    def key_of(
        self,
        head: RequestHead,
        plan: RequestPlan,
        body: bytes | bytearray | None,
        route: RouteParts,
        scope: CacheScope,
        bounds: KeyBounds = ANSWERS_BOUNDS,
        *,
        sampled: bool,
        more: tuple[bytes, ...] = (),
    ) -> RequestKey | None:
        """Return what stands for a request; None: its answer is not shared. sampled: also where it differs by chance.

        more: what else tells it from others.
        """
        api = plan.client_api
        if head.method != b"POST" or not plan.reads_body or not may_cache_api(api, plan.endpoint):
            return None
        body = body or b""
        if len(body) > bounds.n_bytes:
            return None
        try:
            found = read_canonical(body, bounds.n_objects)
            why: Uncached | None = why_uncached(api, found, sampled=False)
            if why is not None and not (sampled and why is Uncached.SAMPLED):
                return None
            text = body_text(api, found)
        except NotCanonicalError:
            return None
        partition = partition_of(scope, plan.caller)
        parts = [partition.encode(), self._account(route), head.target, *more]
        parts += telling_headers(head.headers, with_credentials=not self._requires_keys)
        digest = cache_key([text])
        return RequestKey(partition, cache_key([*parts, b"", digest]), digest, why is not None)

    def name_of(self, head: RequestHead, plan: RequestPlan, name: bytes) -> bytes:
        """Return what stands for a name that a caller has given to a request."""
        own = [] if self._requires_keys else [*credentials(head.headers), head.target.partition(b"?")[2]]
        return cache_key([partition_of(CacheScope.KEY, plan.caller).encode(), *own, b"", name])

    def _account(self, route: RouteParts) -> bytes:
        """Return what stands for where a request of a route goes first: upstreams, their keys, what they are asked."""
        known = self._accounts.get(route.entry.name)
        if known is None or known[0] is not route:
            known = self._accounts[route.entry.name] = route, _account_of(route)
        return known[1]


def _account_of(route: RouteParts) -> bytes:
    group = route.groups[0]
    told: list[str] = [route.entry.name, repr(route.entry.request_headers)]
    for member, model in zip(group.members, group.models, strict=True):
        entry = member.entry
        keys = [key.digest.hex() for key in entry.keys]
        told.append(repr((entry.name, member.address, model, keys, entry.provider, entry.parameters, entry.apis)))
        told.append(repr((entry.headers, entry.query)))
    return cache_key([each.encode("utf-8", "surrogatepass") for each in told])
