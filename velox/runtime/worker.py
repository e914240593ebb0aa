"""A worker: the composition root. Settings become an object graph, the graph runs on a loop, until it drains.

Knows: how all parts are put together, and in which order they start and stop. Does not know: what any of them does.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import select
import signal
import socket
import sys
import time
from typing import Final

import uvloop

from velox.errors import Reason, VeloxError
from velox.gateway.auth import Authenticator
from velox.gateway.exchange import Exchange
from velox.gateway.forward import Forwarder
from velox.gateway.intake import Gateway
from velox.gateway.parts import GatewayLimits, Parts
from velox.gateway.recorder import Recorder
from velox.gateway.routes import Routes
from velox.gateway.upstreams import Upstream, Upstreams
from velox.net.application import ClientTimeouts
from velox.net.body_budget import BodyBudget
from velox.net.dialer import Dialer, DialTarget
from velox.net.ingress import Ingress
from velox.net.pool import Upkeep, UpstreamPool
from velox.net.resolver import Resolver
from velox.net.tls import upstream_context
from velox.net.upstream import ReadBuffer
from velox.observe.access_log import AccessLog
from velox.observe.metrics import WorkerMetrics
from velox.observe.oplog import operations_logger
from velox.policy.admission import AdmissionQueue
from velox.policy.breaker import Breaker
from velox.policy.retry import RetryRules
from velox.policy.retry_budget import RetryBudget
from velox.policy.token_bucket import BucketRate
from velox.profiling.remote import ProfileAgent
from velox.protocol.body import BodyReader
from velox.protocol.http1 import Http1Limits
from velox.protocol.http2_engines import engine_factory
from velox.providers.openai import OPENAI
from velox.runtime.process import return_large_blocks
from velox.runtime.shares import share
from velox.settings import Origin, Settings
from velox.settings.parse import origin as parse_origin
from velox.shm.bucket import SharedBucket
from velox.shm.segment import Segment
from velox.shm.status import WorkerState, WorkerStatus

__all__ = ["run_worker"]

_TICK_S: Final = 0.1
_TICKS_PER_SWEEP: Final = 3
_FLUSH_S: Final = 0.5
# Draining: how long connections that keep coming are still taken.
_BACKLOG_S: Final = 1.0
# Requests make few reference cycles: collecting less often keeps the collector off the path of a request.
_GC_THRESHOLDS: Final = (50_000, 20, 100)


def run_worker(
    slot: int,
    settings: Settings,
    segment: Segment,
    listener: socket.socket,
    channel: socket.socket,
    notify: int,
    *,
    sim_origin: str | None,
) -> int:
    """Run one worker to its end; return the exit code. notify: a pipe that wakes the supervisor."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        origins = settings.upstream_origins if sim_origin is None else (parse_origin(sim_origin),)
        worker = Worker(slot, settings, segment, origins, runner.get_loop())
        runner.run(worker.run(listener, channel, notify))
    return 0


class Worker:
    """The object graph of one worker process."""

    def __init__(
        self,
        slot: int,
        settings: Settings,
        segment: Segment,
        origins: tuple[Origin, ...],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settings: Final = settings
        self._loop: Final = loop
        self._status: Final = WorkerStatus(segment, slot)
        self._metrics: Final = WorkerMetrics(segment.metrics(slot))
        self._logger: Final = operations_logger(sys.stderr)
        self._log: Final = AccessLog(_stdout_nonblocking(), settings.access_log, self._metrics.count_log_dropped)
        self._told_to_drain: Final = asyncio.Event()
        self._lag_due_s = 0.0
        self._n_ticks = 0

        self._upstreams: Final = Upstreams([self._make_upstream(slot, origin) for origin in origins])
        self._gateway: Final = self._make_gateway(slot, segment)
        self._ingress: Final = self._make_ingress(slot)

    def _make_upstream(self, slot: int, origin: Origin) -> Upstream:
        settings = self._settings
        forwarder = Forwarder(
            OPENAI,
            base_path=origin.base_path,
            root_path=settings.upstream_request_path,
            key=None if settings.openai_api_key is None else settings.openai_api_key.reveal(),
            client_keys_are_ours=bool(settings.api_key_digests),
        )
        return Upstream(str(origin), forwarder, self._make_pool(slot, origin, forwarder), Breaker())

    def _make_pool(self, slot: int, origin: Origin, forwarder: Forwarder) -> UpstreamPool:
        settings = self._settings
        context = None
        if origin.scheme == "https":
            files = (settings.upstream_ca_file, settings.upstream_cert_file, settings.upstream_key_file)
            context = upstream_context(settings.upstream_http2, *files)
        target = DialTarget(
            host=origin.host,
            host_header=origin.host_header,
            http2=settings.upstream_http2,
            context=context,
            connect_timeout_s=settings.upstream_connect_timeout_s,
            tls_timeout_s=settings.upstream_tls_timeout_s,
            unix_path=origin.unix_path,
            stream_window_bytes=settings.upstream_stream_window_bytes,
        )
        resolver = Resolver(
            origin.host,
            origin.port,
            self._loop,
            refresh_s=settings.dns_refresh_s,
            on_result=self._metrics.count_dns_refresh,
            on_addresses=lambda addresses: pool.keep_only(addresses),  # noqa: PLW0108 - the pool is made below
        )
        dialer = Dialer(target, resolver, ReadBuffer(), self._loop, engine_factory(settings.http2_engine))
        pool = UpstreamPool(
            dialer.dial,
            forwarder.warmup(settings.upstream_warmup_path),
            warm_connections=max(1, share(settings.egress_pool_connections, settings.workers, slot)),
            # HTTP/1.1 needs a connection for each exchange; the keepers may dial a few more.
            max_connections=share(settings.max_inflight, settings.workers, slot) + settings.egress_pool_connections,
            warmup_timeout_s=settings.upstream_first_byte_timeout_s,
            on_change=self._on_pool_change,
            on_warm_failure=self._on_warm_failure,
            on_end=self._metrics.count_connection_end,
            upkeep=Upkeep(
                max_age_s=settings.egress_max_age_s,
                max_requests=settings.egress_max_requests,
                idle_timeout_s=settings.egress_idle_timeout_s,
                ping_interval_s=settings.egress_ping_interval_s,
            ),
        )
        return pool

    def _make_gateway(self, slot: int, segment: Segment) -> Gateway:
        settings = self._settings
        queue: AdmissionQueue[Exchange] = AdmissionQueue(
            share(settings.queue_depth, settings.workers, slot),
            settings.queue_batch,
            round(settings.queue_timeout_s * 1e9),
        )
        rate = BucketRate.from_rpm(settings.rate_limit_rpm, settings.rate_limit_burst, settings.rate_limit_max_wait_s)
        parts = Parts(
            routes=Routes(settings.paths),
            auth=Authenticator(settings.api_key_digests),
            reader=BodyReader(),
            queue=queue,
            bucket=SharedBucket(segment, rate, slot),
            upstreams=self._upstreams,
            retry_rules=RetryRules(settings.retries, settings.retry_statuses, settings.retry_max_wait_s),
            retry_budget=RetryBudget(settings.retry_budget_percent, settings.retry_budget_per_s / settings.workers),
            recorder=Recorder(self._metrics, self._log, self._logger, secrets.token_hex(4)),
            limits=GatewayLimits(
                max_inflight=share(settings.max_inflight, settings.workers, slot),
                queue_timeout_s=settings.queue_timeout_s,
                # Name, then one address, then TLS; and what the queue would have given it.
                lease_timeout_s=settings.queue_timeout_s
                + 2 * settings.upstream_connect_timeout_s
                + settings.upstream_tls_timeout_s,
                first_byte_timeout_s=settings.upstream_first_byte_timeout_s,
                idle_timeout_s=settings.upstream_idle_timeout_s,
                write_timeout_s=settings.upstream_write_timeout_s,
                total_timeout_s=settings.upstream_total_timeout_s,
                stream_timeout_s=settings.stream_timeout_s,
                sse_keepalive_s=settings.sse_keepalive_s,
            ),
        )
        return Gateway(parts, self._loop)

    def _make_ingress(self, slot: int) -> Ingress:
        settings = self._settings
        return Ingress(
            self._gateway,
            Http1Limits(body_bytes=settings.max_body_bytes),
            ClientTimeouts(
                header_s=settings.header_timeout_s,
                body_s=settings.body_timeout_s,
                keepalive_s=settings.keepalive_timeout_s,
                write_s=settings.write_stall_timeout_s,
            ),
            BodyBudget(settings.body_budget_bytes, settings.queue_timeout_s, self._loop.time),
            self._loop,
            max_connections=share(settings.max_connections, settings.workers, slot),
        )

    async def run(self, listener: socket.socket, channel: socket.socket, notify: int) -> None:
        """Serve until SIGTERM, then drain."""
        self._loop.add_signal_handler(signal.SIGTERM, self._told_to_drain.set)
        self._status.heartbeat_ns = time.monotonic_ns()
        self._status.upstream_ready = False
        self._metrics.reset_gauges()
        ProfileAgent(channel, self._loop).start()
        for upstream in self._upstreams:
            upstream.pool.start()
        self._ingress.start()
        self._lag_due_s = time.monotonic() + _TICK_S
        self._loop.call_later(_TICK_S, self._tick)
        server = await self._serve(listener)
        self._status.state = WorkerState.READY
        _wake(notify)
        await self._told_to_drain.wait()
        await self._drain(server, listener, notify)

    async def _serve(self, listener: socket.socket) -> asyncio.Server:
        # dup(): closing the server must not close what the supervisor's slot is known by in this process.
        sock = listener.dup()
        if listener.family == socket.AF_UNIX:
            return await self._loop.create_unix_server(self._ingress.connection, sock=sock)
        return await self._loop.create_server(self._ingress.connection, sock=sock)

    async def _drain(self, server: asyncio.Server, listener: socket.socket, notify: int) -> None:
        """Take the connections that are queued, stop, answer what runs, then tell the rest (R-PROC-4)."""
        self._ingress.draining = True
        until_s = self._loop.time() + _BACKLOG_S
        while select.select([listener], [], [], 0)[0] and self._loop.time() < until_s:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the last ones are accepted; now they become connections
        server.close()
        listener.close()
        self._status.state = WorkerState.DRAINING
        _wake(notify)
        self._ingress.drain()
        if not await self._wait_for_clients(self._settings.drain_timeout_s):
            self._gateway.fail_all(VeloxError(Reason.DRAINING, "the gateway is shutting down", close=True))
            await self._wait_for_clients(_FLUSH_S)
        self._ingress.stop()
        for upstream in self._upstreams:
            upstream.pool.close()
        self._log.flush()

    async def _wait_for_clients(self, timeout_s: float) -> bool:
        """Wait until no connection is open; False when the time is over before."""
        until_s = self._loop.time() + timeout_s
        while self._ingress.connections:
            if self._loop.time() >= until_s:
                return False
            await asyncio.sleep(0.02)
        return True

    # -- timers and callbacks -------------------------------------------------------------------------

    def _tick(self) -> None:
        """Every 0.1 s: how late is the loop, is there something to log; now and then, whose time is over."""
        now_s = time.monotonic()
        self._metrics.observe_loop_lag(max(0, round((now_s - self._lag_due_s) * 1e9)))
        # First: nothing that goes wrong below may end the timer that everything else depends on.
        self._lag_due_s = now_s + _TICK_S
        self._loop.call_later(_TICK_S, self._tick)
        self._status.heartbeat_ns = round(now_s * 1e9)
        self._log.flush()
        self._n_ticks += 1
        if self._n_ticks % _TICKS_PER_SWEEP == 0:
            self._gateway.sweep(self._loop.time())
            for upstream in self._upstreams:
                upstream.pool.tick(self._loop.time())
            self._metrics.set_connections(len(self._ingress.connections))

    def _on_pool_change(self) -> None:
        self._status.upstream_ready = any(upstream.pool.is_warm for upstream in self._upstreams)

    def _on_warm_failure(self, failure: VeloxError) -> None:
        self._metrics.count_warm_failure()
        self._logger.warning("no warm connection to the upstream: %s", failure.message)


def _wake(notify: int) -> None:
    try:
        os.write(notify, b"w")
    except BlockingIOError:
        pass  # the pipe is full of wake-ups already


def _stdout_nonblocking() -> int:
    """Return a descriptor of standard output that never blocks, without changing the one that others share."""
    try:
        return os.open("/proc/self/fd/1", os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return os.dup(1)  # a socket can't be opened again
