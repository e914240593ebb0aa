"""Members and tables that lead to them, for gateways whose upstreams do what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from velox.gateway.forward import Forwarder
from velox.gateway.group import Group
from velox.gateway.member import Member
from velox.gateway.routing import RouteParts, Routing
from velox.net.upstream.interface import ConnectionOwner, UpstreamConnection
from velox.net.upstream.pool import UpstreamPool
from velox.outcomes import AttemptOutcome
from velox.policy.balance.round_robin import RoundRobin
from velox.policy.concurrency import ConcurrencyLimit, Unlimited
from velox.policy.health.keys import Keys
from velox.policy.health.member import MemberHealth, MemberRules
from velox.policy.route_match import RouteTable
from velox.policy.routes import ANYTHING, RouteEntry, Target, Timeouts, UpstreamEntry
from velox.providers.openai import OPENAI
from velox.settings.parse import origin

__all__ = ["TIMEOUTS", "Counted", "Dial", "in_order", "member_of"]

Dial = Callable[[ConnectionOwner], Awaitable[UpstreamConnection]]

# Nothing is near: a test that wants a time-out replaces it.
TIMEOUTS: Final = Timeouts(connect_s=30.0, tls_s=0.0, first_byte_s=60.0, idle_s=60.0, write_s=60.0, total_s=0.0)
_KEY: Final = "sk-of-the-gateway-{}"


class _Running(Sequence[int]):
    def __init__(self, counted: Counted, rows: Sequence[int]) -> None:
        self._counted, self._rows = counted, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, n):  # type: ignore[no-untyped-def]  # a slice is never asked for
        return self._counted.inflight(self._rows[n])


class Counted:
    """Counts requests in flight by row, as the table of all workers does."""

    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.n_ejections = 0

    def began(self, row: int) -> None:
        self.running[row] = self.running.get(row, 0) + 1

    def ended(self, row: int) -> None:
        self.running[row] -= 1

    def inflight(self, row: int) -> int:
        return self.running.get(row, 0)

    def inflight_of(self, rows: Sequence[int]) -> Sequence[int]:
        return _Running(self, rows)

    def count_attempt(self, row: int, outcome: AttemptOutcome) -> None: ...

    def count_ejection(self, row: int) -> None:
        self.n_ejections += 1

    def observe_ttfb(self, row: int, ns: int) -> None: ...

    def set_state(self, row: int, state: int) -> None: ...

    def set_keys(self, row: int, out: int, resting: int) -> None: ...

    def forget(self, row: int) -> None: ...


def member_of(
    name: str,
    dial: Dial,
    *,
    row: int = 0,
    concurrency: ConcurrencyLimit | None = None,
    timeouts: Timeouts = TIMEOUTS,
    counts: Counted | None = None,
    n_keys: int = 0,
    pool: UpstreamPool | None = None,
) -> Member:
    """Make a member whose connections `dial` makes. n_keys: of its upstream; 0: the client's own key goes up."""
    entry = UpstreamEntry(name, (origin("http://127.0.0.1:1"),), (), "off", None, None, None, timeouts, 1)
    forwarders = tuple(
        Forwarder(
            OPENAI,
            base_path="",
            root_path="/",
            key=_KEY.format(n) if n_keys else None,
            client_keys_are_ours=False,
        )
        for n in range(max(1, n_keys))
    )
    keys = Keys(n_keys) if n_keys else None
    health = MemberHealth(MemberRules(), asyncio.get_running_loop().time(), keys=keys, is_new=False)
    if pool is None:

        def on_change() -> None:
            health.is_reachable = not made.is_down

        made = pool = UpstreamPool(
            dial,
            forwarders[0].warmup("/v1/models"),
            warm_connections=1,
            max_connections=8,
            warmup_timeout_s=60.0,
            on_change=on_change,
            on_warm_failure=lambda _failure: None,
        )
    bound = concurrency or Unlimited()
    return Member(entry, "http://127.0.0.1:1", row, forwarders, pool, health, counts or Counted(), None, bound)


def in_order(members: Sequence[Member]) -> Routing:
    """Return tables with one route: to the first member, and to the others when that one can't answer."""
    first, *others = [Target(member.name) for member in members]
    entry = RouteEntry("*", ANYTHING, (first,), fallback=tuple(others))

    def build(route: RouteEntry) -> RouteParts:
        return RouteParts(route, tuple(Group([member], [None], [1.0], RoundRobin()) for member in members))

    return Routing(RouteTable((entry,)), members, build)
