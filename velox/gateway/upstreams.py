"""Where requests may go: the upstreams in the order of the settings, and which of them is used now.

Knows: which upstream is passed over because it fails, and how many requests may run there. Does not know: what is
sent, or how a reply comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from velox.errors import Reason
from velox.gateway.forward import Forwarder
from velox.net.upstream.dialer import Dialer
from velox.net.upstream.interface import UpstreamFailure
from velox.net.upstream.pool import UpstreamPool
from velox.net.upstream.pool_capacity import PoolStatistics
from velox.observe.series import Retry
from velox.policy.breaker import Breaker
from velox.policy.concurrency import ConcurrencyLimit, Unlimited

__all__ = ["Upstream", "Upstreams"]

_ANY: Final = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Upstream:
    """One upstream. name: its origin, for people. websockets: makes the connections that become tunnels.

    concurrency: how many requests may run there at once. It is asked for the first attempt only: one that follows
    another is kept from nothing, for its client has waited for a place already.
    """

    name: str
    forwarder: Forwarder
    pool: UpstreamPool
    breaker: Breaker
    websockets: Dialer | None = None
    concurrency: ConcurrencyLimit = field(default_factory=Unlimited)

    def is_usable(self, now_s: float) -> bool:
        """True while nothing speaks against it."""
        return not self.pool.is_down and self.breaker.allows(now_s)

    def answered(self, status: int, began_s: float, now_s: float) -> None:
        """Judge it by a reply: back-pressure (429, 503) says nothing, other 5xx are its fault, all else is well."""
        if status < 500 and status != 429:
            self.breaker.succeeded(began_s)
        elif status in (429, 503):
            self.breaker.gave_up(began_s)
            self.concurrency.refused(began_s, now_s)
        else:
            self.breaker.failed(began_s, now_s)

    def broke(self, failure: UpstreamFailure, began_s: float, now_s: float) -> None:
        """Judge it by an attempt without a whole reply."""
        if failure.unprocessed is Retry.STALE:
            self.pool.doubt_idle(now_s)
        if failure.reason is Reason.UPSTREAM_STATUS:
            self.answered(failure.status, began_s, now_s)
        elif failure.reason is Reason.UPSTREAM_REDIRECT:
            self.breaker.succeeded(began_s)
        elif failure.reason is Reason.UPSTREAM_TOTAL_TIMEOUT or failure.unprocessed not in (None, Retry.CONNECT):
            # A reply may be long, and a stream refused, or a connection closed in time, by an upstream in good health.
            self.breaker.gave_up(began_s)
        else:
            if failure.reason is Reason.UPSTREAM_TTFB_TIMEOUT:
                self.concurrency.refused(began_s, now_s)
            cut = failure.reason in (Reason.UPSTREAM_TRUNCATED, Reason.UPSTREAM_IDLE_TIMEOUT)
            self.breaker.failed(began_s, now_s, cut=cut)


class Upstreams:
    """The upstreams of one worker, the preferred one first."""

    def __init__(self, members: Sequence[Upstream]) -> None:
        assert members, "settings name one at least"
        self._members: Final = tuple(members)
        self._only: Final = members[0] if len(members) == 1 else None
        self._is_limited: Final = any(member.concurrency.limit for member in members)

    def __repr__(self) -> str:
        return f"<Upstreams {' '.join(repr(member.pool) for member in self._members)}>"

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def first(self, now_s: float) -> Upstream:
        """Return where a request goes. When all are out, the first is used all the same."""
        if self._only is not None:
            return self._only  # its breaker has nobody to pass the request to
        for member in self._members:
            if member.is_usable(now_s):
                return member
        return self._members[0]

    def next(self, now_s: float, tried: Collection[Upstream], *, anyhow: bool = False) -> Upstream | None:
        """Return the first usable upstream that was not tried; None if there is none.

        anyhow: then the first that was not tried, usable or not.
        """
        if self._only is not None:
            return None
        left = [member for member in self._members if member not in tried]
        for member in left:
            if member.is_usable(now_s):
                return member
        return left[0] if left and anyhow else None

    def room(self, n_active: int, n_asleep: int, now_s: float) -> int:
        """Return how many more requests may go where the next one goes.

        n_active: that have left the queue. Those of them that are in no attempt will go there, too. n_asleep: of these,
        that wait for their time: others have their places meanwhile, but no more than the limit are lent, as nobody is
        asked when all wake at once.
        """
        if not self._is_limited:
            return _ANY
        concurrency = self.first(now_s).concurrency
        n_begun = sum(member.concurrency.n_begun for member in self._members)
        return concurrency.room - (n_active - n_begun - min(n_asleep, concurrency.limit))

    def concurrency(self) -> tuple[int, int]:
        """Sum up the limits, and how much of them is used; 0, 0 if there are none."""
        if not self._is_limited:
            return 0, 0
        limits = [member.concurrency for member in self._members]
        return sum(each.limit for each in limits), sum(each.in_flight for each in limits)

    def n_out(self, now_s: float) -> int:
        """Count those that are passed over now. A lone upstream never is."""
        return 0 if self._only is not None else sum(not member.is_usable(now_s) for member in self._members)

    def statistics(self) -> PoolStatistics:
        """Sum up the pools."""
        found = [member.pool.statistics() for member in self._members]
        return PoolStatistics(
            sum(each.connections for each in found),
            sum(each.dialing for each in found),
            sum(each.streams for each in found),
            sum(each.waiting for each in found),
        )
