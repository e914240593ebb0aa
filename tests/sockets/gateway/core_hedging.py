"""Two upstreams that do what a test says when it says it, a route that hedges between them, and what must be back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from tests.patience import PATIENCE_S
from tests.sockets.gateway.composed import routing_of
from tests.sockets.gateway.core_attempts import until
from tests.sockets.gateway.core_gateway import (
    NO_RETRIES,
    FakeClient,
    ScriptedConnection,
    ScriptedStream,
    ScriptedUpstream,
    Step,
    gateway,
    request_head,
)
from velox.errors import Reason
from velox.gateway.front.intake import Gateway
from velox.gateway.request.exchange import Exchange
from velox.heads import Header, ReplyHead
from velox.net.upstream.interface import ConnectionOwner, ReplySink, UpstreamFailure, UpstreamRequest
from velox.observe.series import HEDGES
from velox.outcomes import Hedged, Retry
from velox.policy.balance.round_robin import RoundRobin
from velox.policy.health.group import GroupRules
from velox.policy.queue.concurrency import ConcurrencyLimit, FixedLimit
from velox.policy.retries.hedge import Hedging
from velox.policy.retries.retry import RetryRules
from velox.policy.routes.entries import ANYTHING, Delay, Hedge, RouteEntry, Target, Timeouts
from velox.types import ANYONE

__all__ = ["AT_ONCE", "COMMENT", "EVENT", "NEVER", "Puppet", "Race", "event_head", "race"]

AT_ONCE: Final = Delay(seconds=0.0)
NEVER: Final = Delay(seconds=3600.0)
EVENT: Final = b'data: {"id":"c","choices":[]}\n\n'
COMMENT: Final = b": thinking\n\n"
_STREAM: Final = b'{"model":"m","messages":[],"stream":true}'


def event_head(*more: Header) -> ReplyHead:
    """Return the head of an event stream."""
    return ReplyHead.of(200, [(b"content-type", b"text/event-stream"), *more], None)


class _Stream(ScriptedStream):
    """One that knows whether it is held up."""

    is_paused = False
    is_whole = False
    n_pauses = 0

    def play(self, step: Step) -> None:
        self.is_whole |= self._sink is not None and not isinstance(step, UpstreamFailure) and step[2]
        super().play(step)

    def pause(self) -> None:
        self.is_paused = True
        self.n_pauses += 1

    def resume(self) -> None:
        self.is_paused = False

    def cancel(self) -> None:
        assert not self.is_whole, "its connection has another request by now"
        if self._sink is not None:  # else it has ended: nothing is left to cancel
            super().cancel()


class Puppet(ScriptedUpstream):
    """An upstream that says what it is told to. may_connect: cleared, connections to it take for ever.

    refuses: no connection can be made. bug: what a request to it raises, though nothing may.
    """

    def __init__(self) -> None:
        super().__init__([])
        self.may_connect: Final = asyncio.Event()
        self.may_connect.set()
        self.n_dials = 0
        self.refuses = False
        self.bug: Exception | None = None
        self.streams: Final[list[_Stream]] = []

    async def dial(self, owner: ConnectionOwner) -> ScriptedConnection:
        self.n_dials += 1
        await self.may_connect.wait()
        if self.refuses:
            raise UpstreamFailure(Reason.UPSTREAM_CONNECT, "refused", unprocessed=Retry.CONNECT)
        return await super().dial(owner)

    def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
        if request.method == b"HEAD":
            return super().open(request, sink)
        if self.bug is not None:
            raise self.bug
        self.opened_s.append(asyncio.get_running_loop().time())
        stream = _Stream(self, sink)
        self.streams.append(stream)
        return stream

    def says(self, *steps: Step, n: int = -1) -> None:
        """Bring these in the reply to its nth request."""
        for step in steps:
            self.streams[n].play(step)

    @property
    def is_asked(self) -> bool:
        """True while a request is in flight there."""
        return self.n_open > 0


@dataclass
class _Balance(RoundRobin):
    """Takes the first that may be taken, and counts what it is told."""

    learns: ClassVar[bool] = True

    running: dict[int, int] = field(default_factory=dict)

    def pick(self, candidates, now_s, random, key=b"", tried=()):  # type: ignore[no-untyped-def]
        return next((n for n, weight in enumerate(candidates.weights) if weight > 0 and n not in tried), None)

    def began(self, member: int, now_s: float) -> None:
        self.running[member] = self.running.get(member, 0) + 1

    def answered(self, member: int, waited_s: float, now_s: float) -> None:
        self.running[member] -= 1

    def failed(self, member: int, waited_s: float, now_s: float) -> None:
        self.running[member] -= 1

    def gave_up(self, member: int, waited_s: float, now_s: float) -> None:
        self.running[member] -= 1


@dataclass
class Race:
    """A gateway with one route, that hedges over all of its upstreams, and a client."""

    made: Gateway
    upstreams: Sequence[Puppet]
    balance: _Balance
    hedging: Hedging | None
    client: FakeClient = field(default_factory=FakeClient)
    body: bytes | bytearray = _STREAM

    @property
    def first(self) -> Puppet:
        return self.upstreams[0]

    @property
    def second(self) -> Puppet:
        return self.upstreams[1]

    def submit(self, *headers: Header, path: bytes = b"/v1/chat/completions") -> Exchange:
        """Ask for a stream, or for what `body` is."""
        head = request_head(path=path, more=headers)
        exchange = self.made.submit(self.client, head, self.body, ANYONE)
        assert exchange is not None
        return exchange

    async def both_asked(self, *headers: Header) -> Exchange:
        """Ask, and return when both have the request."""
        exchange = self.submit(*headers)
        await until(lambda: self.first.is_asked and self.second.is_asked)
        return exchange

    async def answer(self) -> FakeClient:
        """Return when the client has its reply, whole or cut, and nothing runs any more; all must be back."""
        await until(self.client.finished.is_set)
        await self.over()
        return self.client

    @property
    def runs(self) -> bool:
        """True while the gateway has a request."""
        return self.made.n_active > 0 or len(self.made.queue) > 0

    async def over(self) -> None:
        """Return when nothing runs any more; all must be back."""
        async with asyncio.timeout(PATIENCE_S):
            while self.runs:
                await asyncio.sleep(0)
        assert self.made.n_hedges == 0
        assert self.made.routing.n_open == 0
        for n, (member, upstream) in enumerate(zip(self.made.routing.members, self.upstreams, strict=True)):
            assert member.counts.inflight(member.row) == 0, member
            assert member.concurrency.n_begun == 0, member
            assert self.balance.running.get(n, 0) == 0, member
            assert member.health._n_waiting == 0, member
            assert member.pool.statistics().waiting == 0, member
            assert upstream.n_open == 0, member

    def hedges(self) -> dict[str, int]:
        """Return what came of second attempts, by outcome."""
        cells = self.made.parts.recorder.metrics._cells
        return {each.name: cells[HEDGES.first + each] for each in Hedged if cells[HEDGES.first + each]}

    def field(self, name: bytes) -> bytes:
        """Return a header of the client's reply; empty: it has none."""
        for line in self.client.written.partition(b"\r\n\r\n")[0].split(b"\r\n"):
            if line.lower().startswith(name + b":"):
                return line.partition(b":")[2].strip()
        return b""

    @property
    def way(self) -> tuple[bytes, bytes, bytes]:
        """What the client is told of the attempts: whose reply it is, how many there were, the others."""
        return self.field(b"x-velox-upstream"), self.field(b"x-velox-attempts"), self.field(b"x-velox-tried")


async def turns(n: int = 5) -> None:
    """Let the loop go round a few times."""
    for _ in range(n):
        await asyncio.sleep(0)


@contextmanager
def race(
    n: int = 2,
    *,
    after: Delay = AT_ONCE,
    at_most: float = 100.0,
    rules: RetryRules = NO_RETRIES,
    concurrency: Sequence[ConcurrencyLimit] = (),
    timeouts: Timeouts | None = None,
    health: GroupRules | None = None,
    hedges: bool = True,
) -> Iterator[Race]:
    """Make `n` upstreams, "0", "1" and so on, asked in this order, and a route that hedges over them if `hedges`."""
    upstreams = [Puppet() for _ in range(n)]
    more = {} if timeouts is None else {"timeouts": timeouts}
    bounds = concurrency or [FixedLimit(100) for _ in upstreams]
    with gateway(*(each.dial for each in upstreams), rules=rules, concurrency=bounds, **more) as made:
        members = made.routing.members
        balance = _Balance()
        entry = RouteEntry("*", ANYTHING, tuple(Target(member.name) for member in members))
        if hedges:
            entry = replace(entry, hedge=Hedge(after, at_most))
        made.routing = routing_of(members, entry, balancer=balance, rules=health)
        yield Race(made, upstreams, balance, made.routing.parts(entry).hedging)
