"""Makes the exchanges of a gateway that traces: of most requests, nothing more is noted than where nobody does.

Knows: which class an exchange has. Does not know: which requests are traced (tracing.py).
"""

from __future__ import annotations

from typing import Final

from velox.gateway.access.plan import RequestPlan
from velox.gateway.front.intake import untraced_exchange
from velox.gateway.request.exchange import Exchange, ExchangeOwner
from velox.gateway.request.traced_exchange import TracedExchange
from velox.gateway.tracing import Tracer
from velox.gateway.websocket.traced_tunnel import TracedTunnel
from velox.heads import RequestHead
from velox.net.application import Client

__all__ = ["TracedMaker"]


class TracedMaker:
    """A MakeExchange (intake.py)."""

    __slots__ = ("_tracer", "_unsampled")

    def __init__(self, tracer: Tracer) -> None:
        self._tracer: Final = tracer
        self._unsampled: Final = tracer.unsampled

    def __call__(
        self,
        gateway: ExchangeOwner,
        client: Client,
        head: RequestHead,
        body: bytes | bytearray | None,
        plan: RequestPlan,
    ) -> Exchange:
        """Return the exchange of a request."""
        unsampled = self._unsampled(head)
        if isinstance(unsampled, RequestHead):
            return untraced_exchange(gateway, client, unsampled, body, plan)
        tracer = self._tracer
        ids = tracer.begin(head, unsampled)
        if head.shape.offer is not None:
            return TracedTunnel(gateway, client, head, body, plan, tracer, ids)
        return TracedExchange(gateway, client, head, body, plan, tracer, ids)
