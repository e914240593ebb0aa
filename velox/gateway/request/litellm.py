"""What a reply tells clients of LiteLLM's proxy: its `x-litellm-*` fields, those of which the truth is known here.

Knows: their names, and what LiteLLM means by them (docs.litellm.ai/docs/proxy/response_headers). Does not know: who
gathers what they tell (request/timed_exchange.py), or which gateways tell it.

    x-litellm-call-id               the request's id, as in x-velox-request-id
    x-litellm-model-id              MODEL@UPSTREAM, as /model/info of the admin listener has it
    x-litellm-model-api-base        scheme, host and port of the server that was asked last; none of a unix socket
    x-litellm-attempted-fallbacks   how often another upstream followed on one
    x-litellm-attempted-retries     further attempts at the same one
    x-litellm-response-duration-ms  from the whole request having come to this
    x-litellm-overhead-duration-ms  of that, what no upstream had the request for
    x-litellm-response-cost         dollars, of an answer whose head waits for its end
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from velox.gateway.limits.cost_filter import CostFilter
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import Headers, ReplyHead

__all__ = ["LitellmFilter", "attempt_counts", "cost_fields", "duration_fields", "place_fields"]

_START: Final = b"x-litellm-"
_NS_PER_MS: Final = 1_000_000
# A client's word for a model goes into a field of the reply: letters, digits and signs alone (RFC 9110 §5.5).
_SAYABLE: Final = re.compile(r"[!-~]{1,200}")
_AMOUNT: Final = re.compile(rb"[0-9]+\.[0-9]+")


def attempt_counts(tried: Sequence[str], upstream: str) -> tuple[int, int]:
    """Return the retries and the fallbacks. tried: NAME=HOW of the attempts before the last one, at upstream."""
    names = [*(each.partition("=")[0] for each in tried), upstream]
    n_fallbacks = sum(before != after for before, after in itertools.pairwise(names))
    return len(tried) - n_fallbacks, n_fallbacks


def place_fields(model: str | None, upstream: str, address: str, tried: Sequence[str]) -> Headers:
    """Return what tells where a request went. model: as the client named it. address: of the server, with its path.

    tried: NAME=HOW of the attempts before the last one.
    """
    fields: Headers = []
    if model is not None and _SAYABLE.fullmatch(model):
        fields.append((b"x-litellm-model-id", f"{model}@{upstream}".encode("ascii")))
    scheme, is_url, rest = address.partition("://")
    if is_url:  # its path may name an account
        fields.append((b"x-litellm-model-api-base", f"{scheme}://{rest.partition('/')[0]}".encode("ascii")))
    n_retries, n_fallbacks = attempt_counts(tried, upstream)
    return [
        *fields,
        (b"x-litellm-attempted-retries", b"%d" % n_retries),
        (b"x-litellm-attempted-fallbacks", b"%d" % n_fallbacks),
    ]


def duration_fields(total_ns: int, upstream_ns: int) -> Headers:
    """Return what tells how long it took. upstream_ns: of that, while an upstream had the request."""
    return [
        (b"x-litellm-response-duration-ms", _ms(total_ns)),
        (b"x-litellm-overhead-duration-ms", _ms(total_ns - upstream_ns)),
    ]


def cost_fields(cost: bytes) -> Headers:
    """Return what tells a cost, as CostFilter is told it; nothing for one that is not known."""
    amount = _AMOUNT.match(cost)
    return [] if amount is None else [(b"x-litellm-response-cost", amount.group())]


def _ms(ns: int) -> bytes:
    return f"{max(ns, 0) / _NS_PER_MS:.3f}".encode()


class LitellmFilter(ReplyFilter):
    """Adds the fields to a reply; an upstream's own of such names, which may be another gateway's, end here.

    fields: returns them but for the cost, at that moment. cost: stands before this one, where the cost may be told.
    """

    __slots__ = ("_cost", "_fields")
    order: ClassVar[int] = FilterOrder.LITELLM

    def __init__(self, fields: Callable[[], Headers], cost: CostFilter | None) -> None:
        super().__init__()
        self._fields: Final = fields
        self._cost: Final = cost
        self.reads_body = False

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Return the head with the fields."""
        told = b"" if self._cost is None else self._cost.known
        passed = [field for field in head.headers if not field[0].startswith(_START)]
        return ReplyHead.of(head.status, [*passed, *self._fields(), *cost_fields(told)], head.content_length)
