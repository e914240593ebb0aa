"""What is known of a request while it runs: one object that its exchange writes, and its attempts and the log read.

Knows: these values, and what follows from them. Does not know: the steps of a request (exchange.py), or what is done
at an upstream (group.py).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from velox.errors import Reason, VeloxError
from velox.gateway.access.plan import RequestPlan
from velox.gateway.cpu_work import is_large
from velox.gateway.limits.calls import Spending
from velox.gateway.reply.headers import NO_ATTEMPTS, AttemptFields
from velox.gateway.reply.reply import Reply
from velox.heads import Headers, RequestHead
from velox.net.application import Client
from velox.observe.metrics import CallKind
from velox.outcomes import CacheResult, JoinResult
from velox.types import BodyFields

if TYPE_CHECKING:  # gateways that trace nothing have none
    from velox.observe.traces.record import ContentRecord, SpanIds

__all__ = ["RequestContext"]

# The client hears of one of these only if no attempt before has failed in a way that may pass.
_REFUSALS: Final = frozenset({400, 404, 413, 422})


class RequestContext:
    """One request while it runs. An exchange inherits from it, so that compiled code reads its attributes directly.

    is_tunnel: it asks for a WebSocket, and has a connection of its own. fields: what was read of its body.
    phase: what it waits for, for the log. started_ns: when it came, monotonic. sent_ns: when the first
    attempt was; 0: not yet. deadline_s: when its client stops
    waiting, on the loop's clock. was_sent: an upstream received the request and did not report it as unprocessed.
    may_have_begun: an upstream received it, may work on it, and has not answered. n_attempts: at upstreams. upstream:
    of the last one, or of the one whose reply it is; "" before the first. cached: what the cache said of it; None: its
    route has none. joined: whose call its reply is of; None: its route joins none. tried: the others, each
    "name=reason", "name=status", or "name=hedged" where another was faster. failed_before: how the last attempt ended
    that another one followed. spent: what it took, once it is over; None: nobody counts that.
    """

    __slots__ = (
        *("body", "cached", "client", "deadline_s", "failed_before", "fields", "head", "id", "joined"),
        *("loop", "may_have_begun", "was_sent"),
        *("n_attempts", "phase", "plan", "reply", "sent_ns", "spent", "started_ns", "tried", "upstream"),
    )

    is_tunnel: bool = False

    id: bytes
    plan: RequestPlan
    loop: asyncio.AbstractEventLoop
    client: Client
    head: RequestHead
    fields: BodyFields
    body: bytes | bytearray | None
    phase: str
    reply: Reply | None
    started_ns: int
    sent_ns: int
    deadline_s: float
    was_sent: bool
    may_have_begun: bool
    n_attempts: int
    upstream: str
    tried: tuple[str, ...]
    failed_before: VeloxError | None
    spent: Spending | None
    cached: CacheResult | None
    joined: JoinResult | None

    @property
    def is_streamed(self) -> bool:
        """True when the client gets an event stream."""
        return self.reply is not None and self.reply.is_sse

    @property
    def wants_stream(self) -> bool:
        """True when the client asked for an event stream."""
        return self.fields.stream and not self.is_tunnel

    @property
    def is_large(self) -> bool:
        """True where its body may take long to be put into another API, or to be given another model."""
        return self.body is not None and is_large((self.body,))

    def attempt_failed(self, upstream: str, failure: VeloxError) -> None:
        """Note how an attempt ended that another one follows, or is beside."""
        is_status = failure.reason is Reason.UPSTREAM_STATUS
        if self.failed_before is None or not (is_status and failure.status in _REFUSALS):
            self.failed_before = failure
        self.tried += (f"{upstream}={failure.status if is_status else failure.reason.code}",)

    def call_kind(self) -> CallKind:
        """Return its route, the upstream of its last attempt, and the model that this was asked for."""
        return "", self.upstream, self.fields.model or ""

    def attempt_fields(self) -> AttemptFields:
        """Return the fields of a reply that tell of the attempts so far."""
        return AttemptFields.of(self.upstream, self.n_attempts, self.tried) if self.n_attempts else NO_ATTEMPTS

    def span_ids(self) -> SpanIds | None:
        """Return its ids in its trace; None: it has noted none."""
        return None

    def content(self) -> ContentRecord | None:
        """Return what its trace tells of its content; None: nothing."""
        return None

    def error_fields(self) -> Headers:
        """Return the fields of an error of Velox's own that tell of the request."""
        return self.attempt_fields().headers
