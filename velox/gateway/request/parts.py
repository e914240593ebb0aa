"""What a gateway is made of; the composition root (runtime/worker.py) puts it together.

Knows: the names of the parts. Does not know: how any of them is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from velox.gateway.access.access import Access
from velox.gateway.access.endpoints import Routes
from velox.gateway.access.plan import ANY_TIMING, TimingRule
from velox.gateway.answers.answers import Answers
from velox.gateway.auth import Authenticator
from velox.gateway.cluster.models import ModelsPage
from velox.gateway.limits.calls import CallLog
from velox.gateway.limits.lease_wait import LeaseWait
from velox.gateway.limits.limiter import Limiter
from velox.gateway.limits.usage_drain import NO_DRAINS, DrainRules
from velox.gateway.recorder import Recorder
from velox.gateway.reply.headers import ReplyFields
from velox.gateway.request.tunnels import Tunnels
from velox.policy.limits.estimate import Estimator
from velox.policy.retries.retry import RetryBudget, RetryRules
from velox.protocol.json.body import BodyReader

if TYPE_CHECKING:  # few gateways have one
    from velox.gateway.cache.response_cache import ResponseCache
    from velox.gateway.join.joining import Joining
    from velox.policy.request_tags import RequestTags

__all__ = ["GatewayLimits", "Parts"]


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """One worker's share of the limits.

    max_inflight: exchanges between queue and end of reply.
    queue_timeout_s: in the queue, for room at an upstream, and for a connection that is free.
    stream_timeout_s: for a whole reply that is a stream, all attempts together; 0: no limit.
    sse_keepalive_s: silence of a stream after which a comment is sent; 0: never.
    drains: of streams that are read on for their usage.
    """

    max_inflight: int
    queue_timeout_s: float
    stream_timeout_s: float
    sse_keepalive_s: float = 0.0
    drains: DrainRules = NO_DRAINS


@dataclass(frozen=True, slots=True)
class Parts:
    """What a gateway is made of; put together in the composition root."""

    endpoints: Routes
    auth: Authenticator
    reader: BodyReader
    limiter: Limiter
    retry_rules: RetryRules
    retry_budget: RetryBudget
    recorder: Recorder
    limits: GatewayLimits
    estimator: Estimator = field(default_factory=Estimator)
    access: Access = field(default_factory=Access)
    tunnels: Tunnels = field(default_factory=Tunnels)
    reply_fields: ReplyFields = field(default_factory=ReplyFields)
    leases: LeaseWait | None = None  # none: limits are this gateway's alone
    calls: CallLog | None = None  # none: calls of upstreams are not recorded
    answers: Answers | None = None  # none: no answers are kept
    timing: TimingRule = ANY_TIMING
    is_litellms: bool = False  # LiteLLM's fields are read and told
    request_tags: RequestTags | None = None  # none: calls count under the tags of their keys alone
    cache: Callable[[], ResponseCache] | None = None  # makes it when it is first asked; none: there is no room for it
    joining: Callable[[], Joining] | None = None  # as the cache
    models: ModelsPage | None = None  # none: questions for models go up like any request
