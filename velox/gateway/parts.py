"""What a gateway is made of; the composition root (runtime/worker.py) puts it together.

Knows: the names of the parts. Does not know: how any of them is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from velox.gateway.auth import Authenticator
from velox.gateway.forward import Forwarder
from velox.gateway.recorder import Recorder
from velox.gateway.routes import Routes
from velox.net.pool import UpstreamPool
from velox.policy.admission import AdmissionQueue
from velox.protocol.body import BodyReader
from velox.shm.bucket import SharedBucket

if TYPE_CHECKING:  # the queue holds exchanges, and an exchange has the parts
    from velox.gateway.exchange import Exchange

__all__ = ["GatewayLimits", "Parts"]


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """One worker's share of the limits.

    max_inflight: exchanges between queue and end of reply.
    lease_timeout_s: wait for an upstream connection; longer than a dial may take, so that a failed dial says why.
    """

    max_inflight: int
    queue_timeout_s: float
    lease_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float


@dataclass(frozen=True, slots=True)
class Parts:
    """What a gateway is made of; put together in the composition root."""

    routes: Routes
    auth: Authenticator
    reader: BodyReader
    queue: AdmissionQueue[Exchange]
    bucket: SharedBucket
    forwarder: Forwarder
    pool: UpstreamPool
    recorder: Recorder
    limits: GatewayLimits
