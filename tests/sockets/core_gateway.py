"""A gateway whose client and upstream do what a test says."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tests.sockets.core_routing import TIMEOUTS, Dial, in_order, member_of
from velox.gateway.auth import Authenticator
from velox.gateway.endpoints import Routes
from velox.gateway.exchange import Exchange
from velox.gateway.intake import Gateway
from velox.gateway.limiter import Limiter
from velox.gateway.limiter import QuotaTable as LimiterTable
from velox.gateway.parts import GatewayLimits, Parts
from velox.gateway.recorder import Recorder
from velox.net.application import ChunkWriter
from velox.net.client.http1_reply import Http1Replies
from velox.net.upstream.interface import (
    ConnectionOwner,
    ReplySink,
    UpstreamFailure,
    UpstreamRequest,
)
from velox.observe.access_log import AccessLog
from velox.observe.metrics import WorkerMetrics
from velox.observe.series import CELLS
from velox.outcomes import ConnectionEnd
from velox.policy.concurrency import ConcurrencyLimit, Unlimited
from velox.policy.estimate import Estimator
from velox.policy.fair_queue import FairQueue
from velox.policy.limit_rules import LimitRule
from velox.policy.retry import RetryRules
from velox.policy.retry_budget import RetryBudget
from velox.policy.routes import Timeouts
from velox.protocol.body import BodyReader
from velox.shm.quota_memory import QuotaMemory
from velox.shm.quotas import QuotaTable
from velox.shm.segment import Segment
from velox.types import ANYONE, Caller, KeyEntry, Rates, ReplyHead, RequestHead, Scope

__all__ = [
    "LIMITS",
    "NO_RETRIES",
    "FakeClient",
    "ScriptedUpstream",
    "Step",
    "full_in_minutes",
    "gateway",
    "one_a_minute",
    "request_head",
]


class FakeClient(Http1Replies):
    """A client's connection that notes what it is told, framed as HTTP/1.1."""

    will_close = True
    is_http_1_0 = False

    def __init__(self) -> None:
        super().__init__()
        self.is_write_paused = False
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

    def release_body(self) -> None: ...


def request_head(method: bytes = b"POST", path: bytes = b"/v1/chat/completions") -> RequestHead:
    return RequestHead(
        method=method,
        target=path,
        path=path,
        query=b"",
        http_1_0=False,
        headers=[(b"content-type", b"application/json")],
        keep_alive=True,
        content_length=None,
        chunked=False,
        expect_continue=False,
    )


# Nothing is near: a test that wants a limit replaces it.
LIMITS: Final = GatewayLimits(
    max_inflight=8,
    queue_timeout_s=60.0,
    stream_timeout_s=0.0,
)
# None but the free ones.
NO_RETRIES: Final = RetryRules(0, frozenset(), 0.0)


@contextmanager
def gateway(
    *dials: Dial,
    limits: GatewayLimits = LIMITS,
    rules: RetryRules = NO_RETRIES,
    budget: RetryBudget | None = None,
    limited: Sequence[LimitRule] = (),
    max_wait_s: float = 0.0,
    keys: tuple[KeyEntry, ...] = (),
    estimator: Estimator | None = None,
    concurrency: Sequence[ConcurrencyLimit] = (),
    timeouts: Timeouts = TIMEOUTS,
    table: LimiterTable | None = None,
) -> Iterator[Gateway]:
    """Build a gateway that logs everything to nowhere, with an upstream for each dial. It limits nothing by itself.

    concurrency: of each upstream; none: no limit.
    """
    log_fd = os.open(os.devnull, os.O_WRONLY)
    segment = Segment(1, CELLS)
    metrics = WorkerMetrics(segment.metrics(0))
    recorder = Recorder(metrics, AccessLog(log_fd, "all", metrics.count_log_dropped), logging.Logger("t"), "t")
    queue: FairQueue[Exchange] = FairQueue(16, 2**20, 16, round(limits.queue_timeout_s * 10**9), 0.1)
    bounds = concurrency or [Unlimited() for _ in dials]
    members = [
        member_of(str(number), dial, row=number, concurrency=bound, timeouts=timeouts)
        for number, (dial, bound) in enumerate(zip(dials, bounds, strict=True))
    ]
    parts = Parts(
        routes=Routes(("*",)),
        auth=Authenticator(keys),
        reader=BodyReader(),
        queue=queue,
        limiter=Limiter(limited, table or QuotaTable(QuotaMemory(64, 1), 0), max_wait_s, metrics.count_limit),
        retry_rules=rules,
        retry_budget=budget or RetryBudget(0, 1000.0),
        recorder=recorder,
        limits=limits,
        estimator=estimator or Estimator(),
    )
    try:
        yield Gateway(parts, in_order(members), asyncio.get_running_loop())
    finally:
        for member in members:
            member.pool.close()
        os.close(log_fd)


def one_a_minute(scope: Scope = Scope.GATEWAY) -> LimitRule:
    """A limit that lets one request pass at once, and another one each minute."""
    return LimitRule("VELOX_RATE_LIMIT", scope, Rates(rpm=1, burst=1))


def full_in_minutes(made: Gateway, caller: Caller = ANYONE, model: str | None = None) -> list[int]:
    """Return for each of a caller's quotas in how many minutes, rounded up, all that was taken of it is made good."""
    limits = made.parts.limiter.limits(caller, request_head(), model)
    return [-(-bound.quota.full_in_ns(time.monotonic_ns()) // (60 * 10**9)) for bound in limits.bounds]


Step = tuple[ReplyHead | None, bytes, bool] | UpstreamFailure


class ScriptedUpstream:
    """An upstream that answers its nth request with the nth script, and what comes after with the last one.

    An empty script is silence. n_unsent: what is left of a request's body, for all its streams.
    """

    def __init__(self, *scripts: Sequence[Step]) -> None:
        self._scripts: Final = scripts
        self.opened_s: Final[list[float]] = []
        self.n_unsent = 0
        self.n_open = 0
        self.n_cancelled = 0

    async def dial(self, owner: ConnectionOwner) -> ScriptedConnection:
        return ScriptedConnection(self)

    def open(self, request: UpstreamRequest, sink: ReplySink) -> ScriptedStream:
        loop = asyncio.get_running_loop()
        if request.method == b"HEAD":  # the pool's warm-up
            stream = ScriptedStream(self, sink)
            stream.play((ReplyHead(200, [], 0), b"", True))
            return stream
        script = self._scripts[min(len(self.opened_s), len(self._scripts) - 1)]
        self.opened_s.append(loop.time())
        stream = ScriptedStream(self, sink)
        for step in script:
            loop.call_soon(stream.play, step)
        return stream


class ScriptedStream:
    """One exchange at a ScriptedUpstream."""

    def __init__(self, upstream: ScriptedUpstream, sink: ReplySink) -> None:
        self._upstream: Final = upstream
        self._sink: ReplySink | None = sink
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

    def pause(self) -> None: ...

    def resume(self) -> None: ...

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
