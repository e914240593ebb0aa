"""A gateway whose client and upstream do what a test says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tests.sockets.gateway.composed import TIMEOUTS, Dial, Stand, composed, in_order, settings_with, upstream_of
from velox.gateway.cache.request_key import RequestKeys
from velox.gateway.front.admission import admission
from velox.gateway.front.intake import Gateway
from velox.gateway.join.joining import Joining
from velox.gateway.limits.limiter import QuotaTable
from velox.gateway.reply.outcome import ErrorReply, Failed
from velox.gateway.reply.reply import Reply
from velox.heads import Header, ReplyHead, RequestHead, WebSocketOffer
from velox.net.application import ChunkWriter, Successor
from velox.net.client.http1 import Http1Replies
from velox.net.upstream.interface import (
    ConnectionOwner,
    ReplySink,
    UpstreamFailure,
    UpstreamRequest,
)
from velox.outcomes import ConnectionEnd
from velox.policy.join.rules import JoinRule
from velox.policy.join.table import JoinBounds, JoinTable
from velox.policy.limits.estimate import Estimator
from velox.policy.limits.limit_rules import LimitRule
from velox.policy.queue.concurrency import ConcurrencyLimit
from velox.policy.retries.retry import RetryBudget, RetryRules
from velox.policy.routes.entries import Timeouts
from velox.types import ANYONE, Caller, KeyEntry, Rates, Scope

__all__ = [
    "LIMITS",
    "NO_RETRIES",
    "FakeClient",
    "ScriptedUpstream",
    "Step",
    "end_of",
    "full_in_minutes",
    "gateway",
    "one_a_minute",
    "request_head",
]


async def end_of(reply: Reply) -> None:
    """Return when a reply is whole. Raises what broke it; an error that nobody else takes is passed on."""
    ended = await reply.ended
    while isinstance(ended, ErrorReply):
        reply.pass_on()
        ended = await reply.ended
    if isinstance(ended, Failed):
        raise ended.failure


class FakeClient(Http1Replies):
    """A client's connection that notes what it is told, framed as HTTP/1.1."""

    will_close = True
    is_http_1_0 = False
    protocol = "HTTP/1.1"
    state = "answering"
    n_streams = 1
    is_busy = True

    def __init__(self) -> None:
        self._transport, self._chunked, self.ends_at_close = None, False, False  # it is no connection of an ingress
        self.is_write_paused = False
        self.address = "192.0.2.7"
        self.written = b""
        self.finished: Final = asyncio.Event()
        self.cuts: Final[list[tuple[bytes, bool]]] = []

    @property
    def direct_write(self) -> ChunkWriter | None:
        return None if self.is_write_paused else self.write

    def write(self, data: bytes) -> None:
        self.written += data

    def finish(self, *, close: bool = False) -> None:
        self.finished.set()

    def cut_off(self, last: bytes, *, reset: bool) -> None:
        self.cuts.append((last, reset))
        self.finished.set()

    def on_deadline(self) -> None: ...

    def close_if_idle(self) -> None: ...

    def turn_came(self) -> None: ...

    def release_body(self) -> None: ...

    def hand_over(self, successor: Successor) -> None: ...


JSON_BODY: Final = (b"content-type", b"application/json")


def request_head(
    method: bytes = b"POST",
    path: bytes = b"/v1/chat/completions",
    more: Sequence[Header] = (),
    *,
    media: Header = JSON_BODY,
    offer: WebSocketOffer | None = None,
    http_1_0: bool = False,
) -> RequestHead:
    """Return the head of a request. more: fields beside the media type."""
    return RequestHead.of(method, path, [media, *more], offer=offer, http_1_0=http_1_0)


@dataclass(frozen=True)
class Limits:
    """Settings of a worker, by their names."""

    max_inflight: int = 8
    queue_timeout_s: float = 60.0
    stream_timeout_s: float = 0.0
    sse_keepalive_s: float = 0.0


# Nothing is near: a test that wants a limit replaces it.
LIMITS: Final = Limits()
# None but the free ones.
NO_RETRIES: Final = RetryRules(0, frozenset(), 0.0)


@contextmanager
def gateway(
    *dials: Dial,
    limits: Limits = LIMITS,
    rules: RetryRules = NO_RETRIES,
    budget: RetryBudget | None = None,
    limited: Sequence[LimitRule] = (),
    max_wait_s: float = 0.0,
    keys: tuple[KeyEntry, ...] = (),
    estimator: Estimator | None = None,
    concurrency: Sequence[ConcurrencyLimit] = (),
    timeouts: Timeouts = TIMEOUTS,
    table: QuotaTable | None = None,
    n_keys: int = 0,
    accounts_pass: bool = False,
    join: JoinRule | None = None,
    join_bytes: int = 1 << 24,
) -> Iterator[Gateway]:
    """Build a gateway that logs everything to nowhere, with an upstream for each dial. It limits nothing by itself.

    concurrency: of each upstream; none: no limit. n_keys: of each upstream; 0: the client's own key goes up.
    accounts_pass: what a client says of its account at the provider goes up beside our key. join: of its route.
    join_bytes: that joined calls hold together.
    """
    names = [str(number) for number in range(len(dials))]
    settings = settings_with(
        upstreams=tuple(upstream_of(name, timeouts=timeouts, n_keys=n_keys) for name in names),
        routes=(replace(in_order(names), join=join),),
        limits=tuple(limited),
        api_keys=keys,
        rate_limit_max_wait_s=max_wait_s,
        queue_depth=16,
        queue_bytes=2**20,
        queue_batch=16,
        retries=rules.retries,
        retry_statuses=rules.statuses,
        retry_max_wait_s=rules.max_wait_s,
        upstream_account_headers="pass" if accounts_pass else "drop",
        **asdict(limits),
    )
    bounds = concurrency or [None] * len(dials)
    stands = {name: Stand(dial, bound) for name, dial, bound in zip(names, dials, bounds, strict=True)}
    parts: dict[str, Any] = {"retry_budget": budget or RetryBudget(0, 1000.0)}
    if join is not None:
        bounds_of_joins = JoinBounds(1 << 20, join_bytes)
        joining = Joining(JoinTable(bounds_of_joins), RequestKeys(requires_keys=bool(keys)), asyncio.get_running_loop())
        parts["joining"] = lambda: joining
    if estimator is not None:
        parts["estimator"] = estimator
    with composed(settings, stands, quotas=table, **parts) as made:
        yield made.gateway


def change_parts(made: Gateway, **parts: Any) -> None:
    """Give a gateway other parts before its first request."""
    made.parts = replace(made.parts, **parts)
    made.steps, made.local_steps = admission(made.parts), admission(made.parts, may_be_local=True)


def one_a_minute(scope: Scope = Scope.GATEWAY) -> LimitRule:
    """A limit that lets one request pass at once, and another one each minute."""
    return LimitRule("VELOX_RATE_LIMIT", scope, Rates(rpm=1, burst=1))


def full_in_minutes(made: Gateway, caller: Caller = ANYONE, model: str | None = None) -> list[int]:
    """Return for each of a caller's quotas in how many minutes, rounded up, all that was taken of it is made good."""
    limits = made.parts.limiter.limits(caller, model)
    return [-(-bound.quota.full_in_ns(time.monotonic_ns()) // (60 * 10**9)) for bound in limits.quotas]


Step = tuple[ReplyHead | None, bytes, bool] | UpstreamFailure


class ScriptedUpstream:
    """An upstream that answers its nth request with the nth script, and what comes after with the last one.

    An empty script is silence. n_unsent: what is left of a request's body, for all its streams.
    """

    def __init__(self, *scripts: Sequence[Step]) -> None:
        self._scripts: Final = scripts
        self.opened_s: Final[list[float]] = []
        self.streams: Final[list[ScriptedStream]] = []
        self.n_unsent = 0
        self.n_open = 0
        self.n_cancelled = 0

    async def dial(self, owner: ConnectionOwner) -> ScriptedConnection:
        return ScriptedConnection(self)

    def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
        loop = asyncio.get_running_loop()
        assert request.lines is not None  # what can't be written raises here, as on a real connection
        if request.method == b"HEAD":  # the pool's warm-up
            stream = ScriptedStream(self, sink)
            stream.play((ReplyHead.of(200, [], 0), b"", True))
            return stream
        script = self._scripts[min(len(self.opened_s), len(self._scripts) - 1)]
        self.opened_s.append(loop.time())
        stream = ScriptedStream(self, sink)
        self.streams.append(stream)
        for step in script:
            loop.call_soon(stream.play, step)
        return stream


class ScriptedStream:
    """One exchange at a ScriptedUpstream."""

    def __init__(self, upstream: ScriptedUpstream, sink: ReplySink) -> None:
        self._upstream: Final = upstream
        self._sink: ReplySink | None = sink
        self.is_paused = False
        upstream.n_open += 1

    @property
    def n_unsent(self) -> int:
        return self._upstream.n_unsent

    def play(self, step: Step) -> None:
        sink = self._sink
        if sink is None:
            return
        if isinstance(step, UpstreamFailure):
            self._end()
            sink.on_failure(step)
            return
        if step[2]:
            self._end()
        sink.on_reply(*step)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def cancel(self) -> None:
        self._end()
        self._upstream.n_cancelled += 1

    def _end(self) -> None:
        if self._sink is not None:  # one that broke is cancelled all the same
            self._sink = None
            self._upstream.n_open -= 1


class ScriptedConnection:
    """A connection with room for everybody."""

    queued = False
    address = ""
    has_room = True
    is_settled = True
    n_streams = 0
    n_rooms = 100
    n_begun = 0

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self._upstream: Final = upstream
        self.is_closed = False
        self.end: ConnectionEnd | None = None

    def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
        return self._upstream.open(request, sink)

    def retire(self, cause: ConnectionEnd) -> None: ...

    def check_alive(self, now_s: float, silence_s: float) -> None: ...

    def abort(self, cause: ConnectionEnd) -> None:
        self.is_closed = True
