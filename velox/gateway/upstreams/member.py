"""One member of an upstream, in one worker: where requests go up, by which key, and what is known of it.

Knows: what an attempt needs of a member, and how many requests may run there. Does not know: which member a request
gets (group.py), what is sent, or how a reply comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from velox.errors import Reason, VeloxError
from velox.gateway.reply.addresses import UpstreamAddresses
from velox.gateway.reply.headers import AttemptFields
from velox.gateway.translation.forward import Forwarder
from velox.net.upstream.dialer import Dialer
from velox.net.upstream.interface import UpstreamConnection
from velox.net.upstream.pool import Pool
from velox.outcomes import AttemptOutcome
from velox.policy.balance.peak_ewma import PeakLatency
from velox.policy.balance.scraped import ScrapedLoad
from velox.policy.health.member import MemberHealth
from velox.policy.queue.concurrency import ConcurrencyLimit, Unlimited
from velox.policy.routes.entries import Timeouts, UpstreamEntry
from velox.shm.upstream_table import UpstreamCells

if TYPE_CHECKING:  # loads the dialects, which most gateways don't need
    from velox.gateway.translation.adapter import ProviderAdapter

__all__ = ["Member"]


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One origin of an upstream.

    address: the origin, for people. row: where it is counted. forwarders: one for each key of the upstream; one if it
    has none. websockets: makes the connections that become tunnels. load: what it tells of its own load, where it is
    asked for that.

    name: the upstream's. first_fields: what tells a client of its first attempt, which went there. began: called when
    an attempt begins. answered: called when one is over whose reply was whole, and no error.

    adapter: how requests are put into the APIs of its provider; None: all go up as they came. addresses: which are its.

    concurrency: how many requests may run there at once. It is asked for the first attempt only: one that follows
    another is kept from nothing, for its client has waited for a place already.
    """

    entry: UpstreamEntry
    address: str
    row: int
    forwarders: tuple[Forwarder, ...]
    pool: Pool
    health: MemberHealth
    counts: UpstreamCells
    websockets: Dialer | None = None
    concurrency: ConcurrencyLimit = field(default_factory=Unlimited)
    load: ScrapedLoad | None = None
    latency: PeakLatency = field(default_factory=PeakLatency)
    adapter: ProviderAdapter | None = None
    addresses: UpstreamAddresses | None = None
    name: str = field(init=False)
    first_fields: AttemptFields = field(init=False)
    began: Callable[[], object] = field(init=False)
    answered: Callable[[], object] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.entry.name)
        object.__setattr__(self, "first_fields", AttemptFields.of(self.entry.name, 1))
        object.__setattr__(self, "began", self.counts.counts_begun(self.row))
        object.__setattr__(self, "answered", self.counts.counts_attempts(self.row, AttemptOutcome.OK))

    def __repr__(self) -> str:
        return f"<Member {self.name} {self.address} {self.pool!r} {self.health!r}>"

    @property
    def timeouts(self) -> Timeouts:
        """How long it may take."""
        return self.entry.timeouts

    async def connection(self, queue_timeout_s: float) -> UpstreamConnection:
        """Wait for a connection with room for one request. Raises VeloxError.

        For as long as a request may wait in the queue, and a new connection may take on top of it: a name, then one
        address, then TLS. A dial that fails says why.
        """
        timeout_s = queue_timeout_s + 2 * self.timeouts.connect_s + self.timeouts.tls_s
        connection: UpstreamConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while connection is None or not connection.has_room:
                    connection = await self.pool.lease()
        except TimeoutError as exc:
            message = f"no upstream connection came free in {timeout_s:g} s"
            raise VeloxError(Reason.QUEUE_TIMEOUT, message, retry_after_s=1.0) from exc
        return connection
