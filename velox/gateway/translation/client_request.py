"""What a provider adapter (adapter.py) is asked to prepare, and how a request is refused that can't be.

Knows: these values. Does not know: any dialect, which only members with an adapter need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from velox.dialects.canonical.errors import BadRequestError, UnknownPreviousError
from velox.errors import Reason, VeloxError
from velox.gateway.cpu_work import TranslationThread
from velox.gateway.translation.forward import Forwarder
from velox.heads import RequestHead
from velox.net.upstream.pool import Pool
from velox.policy.routes.entries import HeaderRules, Timeouts
from velox.protocol.usage.token_usage import TokenUsage
from velox.types import AnswerKeeper, ApiKind, BodyFields

__all__ = ["COUNTED_BY", "COUNTS", "ClientRequest", "refusal"]

# The API whose requests each counts.
COUNTED_BY: Final = {
    ApiKind.COUNT_MESSAGES: ApiKind.MESSAGES,
    ApiKind.COUNT_RESPONSES: ApiKind.RESPONSES,
    ApiKind.COUNT_GENERATE: ApiKind.GENERATE,
}
COUNTS: Final = frozenset(COUNTED_BY)


class ClientRequest(NamedTuple):
    """One request of a client, as far as its provider adapter depends on it, and where it goes.

    forwarder: of the attempt. pool, timeouts, most_at_once: of its upstream; most_at_once is 0 where any number of
    requests may run there.
    secret: the key that goes up, which no error may show; None: none.
    model: the one to ask for; None: none is named.
    rules: of its route, for the fields that go up.
    id, now_s, keeper: as in ClientCall (dialects/canonical/model.py).
    strict: a field that would be dropped is refused.
    has_limits: Velox reports its own limits with the reply.
    to_be_read: Velox reads the reply, which must not be compressed then.
    on_bug, on_tokens: as in TranslatedReply.
    on_translated: called with the client's API, the upstream's, and how many fields were left out.
    on_lost: called with both for each thing that the answer loses, in whichever thread that is found.
    thread: for what is large of an answer.
    """

    client_api: ApiKind
    forwarder: Forwarder
    pool: Pool
    timeouts: Timeouts
    most_at_once: int
    secret: bytes | None
    head: RequestHead
    fields: BodyFields
    body: bytes | bytearray | None
    model: str | None
    rules: HeaderRules
    id: str
    now_s: int
    strict: bool
    has_limits: bool
    to_be_read: bool
    on_bug: Callable[[Exception], None]
    on_tokens: Callable[[TokenUsage], None] | None
    on_translated: Callable[[ApiKind, ApiKind, int], None]
    on_lost: Callable[[ApiKind, ApiKind], None]
    thread: TranslationThread
    keeper: AnswerKeeper | None = None


def refusal(error: BadRequestError) -> VeloxError:
    """Return the error that a client gets for a request which its dialect, or the model's, does not allow."""
    reason = Reason.PREVIOUS_NOT_FOUND if isinstance(error, UnknownPreviousError) else Reason.BAD_REQUEST
    return VeloxError(reason, error.message, param=error.param or None, details=error.details)
