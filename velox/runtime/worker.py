"""A worker: the composition root. Settings become an object graph, the graph runs on a loop until it drains.

Knows: which setting goes to which part, and the order in which parts start and stop. Does not know: what a part does.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import uvloop

from velox.errors import Reason, VeloxError
from velox.gateway.access.access import Access
from velox.gateway.access.endpoints import Routes
from velox.gateway.access.places import SharedObjects
from velox.gateway.access.plan import TimingRule
from velox.gateway.answers.answers import Answers
from velox.gateway.auth import Authenticator
from velox.gateway.cluster.models import Describe, ModelsPage
from velox.gateway.cpu_work import TranslationThread
from velox.gateway.front.cors import CrossOrigin
from velox.gateway.front.intake import Gateway, MakeExchange
from velox.gateway.limits.budgets import BudgetGate
from velox.gateway.limits.calls import CallLog
from velox.gateway.limits.lease_wait import LeaseWait
from velox.gateway.limits.limiter import Limiter
from velox.gateway.limits.limiter import QuotaTable as LimiterTable
from velox.gateway.limits.usage_drain import DrainRules
from velox.gateway.recorder import Recorder
from velox.gateway.reply.addresses import PublicOrigin
from velox.gateway.reply.headers import ReplyFields
from velox.gateway.request.exchange import Exchange
from velox.gateway.request.parts import GatewayLimits, Parts
from velox.gateway.request.tunnels import Tunnels
from velox.gateway.upstreams.model_sources import ModelSources, fetch_list, fetch_model
from velox.ledger.writer import CallWriter
from velox.net.application import ClientTimeouts
from velox.net.client.body_budget import BodyBudget
from velox.net.client.ingress import Ingress
from velox.net.client.tls import TlsIngress
from velox.net.tunnel import TunnelLimits
from velox.net.turn_budget import TURN_S, TurnBudget
from velox.net.upstream.connection_budget import ConnectionBudget
from velox.net.upstream.interface import ReadBuffer
from velox.observe.access_log import AccessLog, AccessRules, LineForm, json_line
from velox.observe.call_series import series_table
from velox.observe.handshake_log import HandshakeLog
from velox.observe.log_output import open_log, own_descriptor
from velox.observe.metrics import CallSeries, WorkerMetrics
from velox.observe.oplog import operations_logger
from velox.outcomes import KeyHolder, SpanEnd
from velox.policy.limits.estimate import Estimator
from velox.policy.proxies import TrustedProxies
from velox.policy.queue.fair_queue import FairQueue
from velox.policy.request_tags import RequestTags
from velox.policy.resources import MemoryWatch
from velox.policy.retries.retry import RetryBudget, RetryRules
from velox.policy.routes.entries import UpstreamEntry
from velox.policy.web_origins import WebOrigins
from velox.profiling.loop_watch import LoopWatch
from velox.profiling.remote import ProfileAgent
from velox.protocol.http1.request import Http1Limits
from velox.protocol.http2.engines import engine_factory
from velox.protocol.json.body import BodyReader
from velox.protocol.model_list import ModelDetails
from velox.runtime.capacity import MemoryGuard, ResidentMemory, descriptors_of, open_files_limit, share
from velox.runtime.configuration import ConfigFollower, ConfigSnapshot
from velox.runtime.inspection import Inspection
from velox.runtime.keys.corrections import KeyCorrections
from velox.runtime.keys.credentials import Certificates, KeyWatch
from velox.runtime.keys.follower import KeyFollower
from velox.runtime.leases.lease_client import BudgetClient, LeaseClient, LeasePipes
from velox.runtime.on_demand import has_adapter, importing, shares_answers, shares_objects
from velox.runtime.priced import call_prices, making_call_prices, model_names
from velox.runtime.processes.listeners import ClientListener
from velox.runtime.processes.process import return_large_blocks, wake
from velox.runtime.processes.takeover import ListenerTakeover
from velox.runtime.signing.authorities import Authorities
from velox.runtime.upstreams.members import MemberMaker, health_checks_of
from velox.runtime.upstreams.upstream_manager import UpstreamManager
from velox.settings import Settings
from velox.shm.answer_ring import AnswerMemory, AnswerRing
from velox.shm.budget_table import BudgetMemory, BudgetTable
from velox.shm.change_log import LogReader
from velox.shm.join_index import JoinMemory
from velox.shm.leased import LeasedTable
from velox.shm.leased_budget import LeasedBudgetTable
from velox.shm.object_table import ObjectMemory, ObjectTable
from velox.shm.quota_table import QuotaMemory
from velox.shm.quotas import QuotaTable
from velox.shm.record_ring import RecordRing
from velox.shm.segment import Segment
from velox.shm.series_table import SeriesBlock, SeriesTable
from velox.shm.span_ring import SpanRing
from velox.shm.status import GatewayStatus, WorkerState, WorkerStatus
from velox.shm.upstream_table import UpstreamCells, UpstreamTable
from velox.types import Timing

if TYPE_CHECKING:  # loads a dialect or a library, which most gateways don't need
    from velox.gateway.answers.kept_answers import KeptAnswers
    from velox.gateway.cache.response_cache import ResponseCache
    from velox.gateway.join.joining import Joining
    from velox.gateway.tracing import Tracer
    from velox.runtime.shared.answers import AnswerSharing
    from velox.runtime.shared.objects import ObjectSharing
    from velox.runtime.shared.postgres_pool import PostgresPool

__all__ = ["Worker", "WorkerContext", "gateway_parts", "queue_of", "run_worker"]


def gateway_parts(
    settings: Settings,
    slot: int,
    loop: asyncio.AbstractEventLoop,
    *,
    auth: Authenticator,
    quotas: LimiterTable,
    leases: LeaseWait | None,
    max_tunnels: int,
    bodies: BodyBudget,
    connections: ConnectionBudget | None = None,
    metrics: WorkerMetrics,
    objects: ObjectTable | None = None,
    share: Callable[[], SharedObjects] | None = None,
    answers: Answers | None = None,
    cache: Callable[[], ResponseCache] | None = None,
    joining: Callable[[], Joining] | None = None,
    records: RecordRing | None = None,
    budgets: BudgetTable | None = None,
    series: CallSeries | None = None,
    tracer: Tracer | None = None,
    log: AccessLog,
    logger: logging.Logger,
) -> Parts:
    """Return the parts. series: those of this worker; None: nobody reads them.

    max_tunnels: as many as there are descriptors for. bodies: the room for them.

    connections: the room for those to upstreams; None: no bound.
    """
    if series is None:
        series = call_series_of(settings, series_table(1).block(0))
    prefix, trusted = secrets.token_hex(4), TrustedProxies(settings.trusted_proxies)
    if tracer is None:
        recorder = Recorder(metrics, log, logger, prefix, series, trusted)
    else:
        from velox.gateway.tracing import TracingRecorder  # few gateways trace

        recorder = TracingRecorder(metrics, log, logger, prefix, series, trusted, tracer=tracer)
    return Parts(
        endpoints=Routes(settings.paths, settings.websocket_paths),
        auth=auth,
        access=Access(objects, auth, refuses_unknown=settings.unknown_objects == "refuse", share=share),
        reader=BodyReader(),
        limiter=Limiter(settings.limit_rules, quotas, settings.rate_limit_max_wait_s, metrics.limit_counter),
        retry_rules=RetryRules(
            settings.retries, settings.retry_statuses, settings.retry_max_wait_s, settings.retry_before_fallback_s
        ),
        retry_budget=RetryBudget(settings.retry_budget_percent, settings.retry_budget_per_s / settings.workers),
        recorder=recorder,
        limits=_limits(settings, slot),
        estimator=Estimator(settings.bytes_per_token, settings.default_max_tokens),
        tunnels=_tunnels(settings, slot, max_tunnels, bodies, connections, tracer),
        leases=leases,
        calls=None if records is None else _call_log(settings, records, budgets, recorder),
        answers=answers,
        cache=cache,
        joining=joining,
        models=_models(settings, recorder, logger, loop),
        timing=_TIMING_RULES[settings.server_timing],
        is_litellms=settings.litellm_headers,
        request_tags=_request_tags(settings),
        reply_fields=ReplyFields(_public(settings)),
    )


def _request_tags(settings: Settings) -> RequestTags | None:
    """Return what reads tags of requests; None: nobody does."""
    if not settings.request_tags:
        return None
    return RequestTags(settings.request_tags, is_litellms=settings.litellm_headers)


def call_series_of(settings: Settings, block: SeriesBlock) -> CallSeries:
    """Return the series of calls of one worker. block: where they are."""
    return CallSeries(
        block,
        model_names(settings),
        settings.metric_models,
        by_team="team" in settings.metric_labels,
        by_key="key" in settings.metric_labels,
    )


def queue_of(settings: Settings, slot: int) -> FairQueue[Exchange]:
    """Return the queue of one worker: its share of the places and bytes."""
    return FairQueue(
        share(settings.queue_depth, settings.workers, slot),
        share(settings.queue_bytes, settings.workers, slot),
        settings.queue_batch,
        round(settings.queue_timeout_s * 1e9),
        settings.queue_floor_percent / 100,
    )


def _call_log(settings: Settings, records: RecordRing, budgets: BudgetTable | None, recorder: Recorder) -> CallLog:
    records.begin()
    prices, gate = call_prices(settings), None
    if budgets is not None:
        gate = BudgetGate(
            settings.budgets, budgets, prices, time.time, settings.default_max_tokens, settings.budgets_unread
        )
    return CallLog(
        CallWriter(records, recorder.process), prices, budgets=gate, refuses=settings.ledger_full == "refuse"
    )


def _public(settings: Settings) -> PublicOrigin:
    url = "" if settings.public_url is None else str(settings.public_url)
    return PublicOrigin(url.encode("ascii"), has_tls=settings.tls_cert_file is not None)


def _limits(settings: Settings, slot: int) -> GatewayLimits:
    return GatewayLimits(
        max_inflight=share(settings.max_inflight, settings.workers, slot),
        queue_timeout_s=settings.queue_timeout_s,
        stream_timeout_s=settings.stream_timeout_s,
        sse_keepalive_s=settings.sse_keepalive_s,
        drains=DrainRules(
            settings.usage_drain,
            settings.usage_drain_timeout_s,
            settings.usage_drain_bytes,
            share(settings.usage_drains, settings.workers, slot),
        ),
    )


def _models(
    settings: Settings, recorder: Recorder, logger: logging.Logger, loop: asyncio.AbstractEventLoop
) -> ModelsPage:
    def on_problem(upstream: str, problem: str | None) -> None:
        if problem is None:
            logger.info("the models of upstream %(upstream)s can be read again", {"upstream": upstream})
        else:
            logger.warning(
                "the models of upstream %(upstream)s can't be read: %(error)s", {"upstream": upstream, "error": problem}
            )

    sources = ModelSources(loop, fetch_list, fetch_model=fetch_model, on_problem=on_problem, on_bug=recorder.crashed)
    return ModelsPage(sources, settings.paths, _describing(settings))


def _describing(settings: Settings) -> Describe:
    """Return what describes the models of lists; it reads the price table when it is first asked."""
    made: list[Describe] = []

    def describe(entry: UpstreamEntry, model: str) -> ModelDetails:
        if not made:
            # Here, not above: few gateways are asked for a list.
            from velox.runtime.upstreams.model_details import describer

            made.append(describer(settings))
        return made[0](entry, model)

    return describe


def _own_hosts(settings: Settings) -> frozenset[bytes]:
    """Return the names of this gateway, as a URL has them."""
    addresses = [address.host for address in settings.listen if address.kind == "tcp"]
    names = {"localhost", socket.gethostname(), *_FROM_CONTAINERS, *settings.hosts}
    names |= {f"[{host}]" if ":" in host else host for host in addresses}
    return frozenset(name.lower().encode("ascii", "ignore") for name in names)


def _guarded(settings: Settings) -> frozenset[str]:
    """Return the addresses at which a web page could use this gateway's keys under a name of its own.

    Beyond this machine, others call the gateway by names that nobody has told it.
    """
    if settings.requires_keys or settings.tls_cert_file is not None:  # a certificate is for no such name
        return frozenset()
    return frozenset(
        str(ipaddress.ip_address(each.host)) for each in settings.listen if each.kind == "tcp" and each.is_loopback
    )


def _access_rules(settings: Settings) -> AccessRules:
    slow_ns, share_of_all = round(settings.access_log_slow_s * 1e9), settings.access_log_sample_percent / 100
    return AccessRules(settings.access_log, slow_ns, share_of_all)


def _access_log_path(settings: Settings) -> str | None:
    """Return the access log's file; None: it goes to standard output."""
    return settings.access_log_file or settings.log_file


def _line_form(settings: Settings) -> LineForm:
    """Return how lines of the access log are written."""
    form = settings.access_log_format
    if form == "json" or (form == "auto" and (_access_log_path(settings) is not None or not os.isatty(_STDOUT))):
        return json_line
    from velox.observe.access_text import text_line  # few gateways have a terminal

    return text_line


def _tunnels(
    settings: Settings,
    slot: int,
    most: int,
    bodies: BodyBudget,
    connections: ConnectionBudget | None,
    tracer: Tracer | None,
) -> Tunnels:
    return Tunnels(
        # Each has a connection to the upstream of its own, beside the pools', which keep half of all at least.
        min(share(settings.max_tunnels, settings.workers, slot), most),
        TunnelLimits(
            idle_s=settings.tunnel_idle_timeout_s,
            total_s=settings.tunnel_timeout_s,
            client_write_s=settings.write_stall_timeout_s,
            upstream_write_s=settings.upstream_write_timeout_s,
            min_rate_bytes=settings.client_min_rate_bytes,
            message_idle_s=settings.body_timeout_s,
            body_bytes=settings.max_body_bytes,
        ),
        bodies,
        connections,
        None if tracer is None or not tracer.content.routes else tracer.capture,
    )


_TIMING_RULES: Final = {
    "asked": TimingRule(),
    "all": TimingRule(least=Timing.HEAD),
    "off": TimingRule(most=Timing.NOTHING),
}
# The memory is looked at four times a second. One timer for all that is due so often: each time that a worker at
# rest wakes up costs about 0.25 ms, as all that is touched has left the caches.
_TICK_S: Final = 0.25
_CONTENT_FACTOR: Final = 16
_SOCKET_SHARE: Final = 4  # of that, for each side of a WebSocket
_STDOUT: Final = 1
# How containers of Docker Desktop and of Podman reach the machine that they run on, its loopback too.
_FROM_CONTAINERS: Final = ("host.docker.internal", "host.containers.internal")
# After the drain window, what clients get to take what they are told. With _QUEUED_S, less than the supervisor's grace.
_FLUSH_S: Final = 0.5
# And then who reads the log. With both, less, too.
_LOG_S: Final = 0.1
_LOOK_S: Final = 0.02
# Those who are queued are told, too, however short the window is.
_QUEUED_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What one worker process starts with. What it shares with others was made by the supervisor before it forked.

    block: of shared memory, this process's own. sockets: to accept connections on. others_sockets: those of the other
    workers, by slot, for when they do not. channel: for requests for profiles. notify: a pipe that wakes the
    supervisor. read_clock: times reads of upstreams, in seconds. share_s: of each turn of the loop, for each kind of
    work that requests share.
    """

    slot: int
    block: int
    settings: Settings
    sockets: Sequence[socket.socket]
    others_sockets: Mapping[int, Sequence[socket.socket]]
    channel: socket.socket
    notify: int
    segment: Segment
    quotas: QuotaMemory
    upstreams: UpstreamTable
    series: SeriesTable
    objects: ObjectMemory
    answers: AnswerMemory | None
    cache: AnswerMemory | None
    joins: JoinMemory | None
    leases: LeasePipes | None
    records: RecordRing | None
    spans: SpanRing | None
    budgets: BudgetMemory | None
    keys: KeyWatch
    configuration: ConfigSnapshot
    certificates: Certificates | None
    sim_origin: str | None
    read_clock: Callable[[], float] = time.perf_counter
    share_s: float = TURN_S


def run_worker(context: WorkerContext) -> int:
    """Run one worker to its end; return the exit code."""
    gc.freeze()
    gc.disable()  # it would collect in the middle of requests; MemoryGuard does, when that is due
    return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Worker(context, runner.get_loop()).run())
    return 0


class Worker:
    """The object graph of one worker process."""

    def __init__(self, context: WorkerContext, loop: asyncio.AbstractEventLoop) -> None:
        settings, block = context.settings, context.block
        self._context: Final = context
        self._settings: Final = settings
        self._loop: Final = loop
        self._status: Final = WorkerStatus(context.segment, block)
        self._shared: AnswerSharing | None = None  # once it is needed
        self._objects: ObjectSharing | None = None  # the same
        self._database: PostgresPool | None = None  # the same, of both
        self._joining: Final[list[Joining]] = []  # one, once it is needed
        self._takeover: ListenerTakeover | None = None  # once it accepts itself
        self._metrics: Final = WorkerMetrics(context.segment.metrics(block))
        self._logger: Final = operations_logger(sys.stderr)
        loop.add_signal_handler(signal.SIGUSR1, self._rotate_log)  # before the file is opened: then none is missed
        self._log_at = self._open_log()
        self._log: Final = AccessLog(
            self._log_at, _access_rules(settings), self._metrics.count_log_dropped, _line_form(settings)
        )
        self._handshakes: Final = HandshakeLog(self._metrics, self._logger)
        self._must_drain: Final = asyncio.Event()
        self._gateway_status: Final = GatewayStatus(context.segment)
        self._is_handed_over = False
        self._is_stopped = False
        self._lag_due_s = 0.0
        self._is_pool_check_due = False
        self._budget: Final = BodyBudget(settings.body_budget_bytes, settings.queue_timeout_s, loop.time)
        self._descriptors: Final = descriptors_of(settings, context.slot, open_files_limit())
        self._series: Final = call_series_of(settings, context.series.block(context.block))
        self._upstream_manager: Final = self._make_upstream_manager()
        self._health_checks: Final = health_checks_of(settings.workers, self._logger, loop)
        self._tracer: Final = self._make_tracer()
        self._client_turns: Final = TurnBudget(self._loop, share_s=self._context.share_s)
        self._gateway: Final = self._make_gateway()
        self._keys: Final = KeyFollower(
            LogReader(context.keys.log, context.keys.log.end),
            context.keys.auth,
            self._gateway.change_keys,
            self._ask_for_keys,
            KeyCorrections(KeyHolder.WORKER, self._metrics, self._logger),
            self._stop,
            self._logger,
            loop,
        )
        self._configuration: Final = ConfigFollower(
            context.configuration, settings, self._change, self._status, self._logger, loop
        )
        self._ingress: Final = self._make_ingress()
        self._tls: Final = None if context.certificates is None else self._make_tls(context.certificates)
        self._memory: Final = self._make_memory_guard()
        self._loop_watch: Final = LoopWatch() if settings.profiling else None

    def _open_log(self) -> int:
        """Return the descriptor of the access log: standard output where its file can't be opened."""
        path = _access_log_path(self._settings)
        if path is not None:
            try:
                return open_log(path)
            except OSError as exc:
                fields = {"file": path, "error": exc.strerror}
                self._logger.error("%(file)s can't be opened: %(error)s; access log on standard output", fields)
        return own_descriptor(_STDOUT)

    def _rotate_log(self) -> None:
        """Open the access log's file anew: another name was given to the one that is open."""
        path = _access_log_path(self._settings)
        if path is None:
            return
        try:
            opened = open_log(path)
        except OSError as exc:
            fields = {"file": path, "error": exc.strerror}
            self._logger.error(
                "log rotation: %(file)s can't be opened: %(error)s; lines go on into the file that is open", fields
            )
            return
        self._log.move_to(opened)
        os.close(self._log_at)
        self._log_at = opened

    def _stop(self) -> None:
        self._is_stopped = True
        self._must_drain.set()

    def _ask_for_keys(self) -> None:
        self._status.wants_keys = True
        wake(self._context.notify)

    def _make_upstream_manager(self) -> UpstreamManager:
        context = self._context
        tell = context.upstreams.credentials.tell
        maker = MemberMaker(
            context.slot,
            UpstreamCells(context.upstreams, context.block),
            self._metrics,
            self._logger,
            self._loop,
            max_connections=self._descriptors.upstream,
            on_change=self._on_pool_change,
            authorities=Authorities(
                os.environ, self._loop, self._logger, partial(tell, context.block), context.settings.proxies
            ),
            sim_origin=context.sim_origin,
            buffer=ReadBuffer(clock=context.read_clock),
        )
        return UpstreamManager(self._settings, maker, context.upstreams, self._loop)

    def _make_gateway(self) -> Gateway:
        context, leases, budgets = self._context, None, None
        if context.budgets is not None:
            budgets = BudgetTable(context.budgets, context.block)
        quotas: LimiterTable = QuotaTable(context.quotas, context.block)
        if context.leases is not None:
            status = GatewayStatus(context.segment)
            leases = LeaseClient(self._settings, context.leases, context.block, status, self._loop)
            quotas = LeasedTable(context.quotas, context.block, leases)
            if context.budgets is not None:
                budgets = LeasedBudgetTable(context.budgets, context.block, BudgetClient(leases))
        parts = gateway_parts(
            self._settings,
            context.slot,
            self._loop,
            auth=context.keys.auth,
            quotas=quotas,
            leases=leases,
            max_tunnels=self._descriptors.upstream,
            bodies=self._budget,
            connections=self._upstream_manager.connections,
            metrics=self._metrics,
            objects=self._make_objects(),
            share=self._shared_objects if shares_objects(self._settings) else None,
            answers=self._make_answers(),
            cache=self._cache_maker(),
            joining=self._joining_maker(),
            records=context.records,
            budgets=budgets,
            series=self._series,
            tracer=self._tracer,
            log=self._log,
            logger=self._logger,
        )
        queue, routing = queue_of(self._settings, context.slot), self._upstream_manager.routing
        thread = TranslationThread(self._client_turns)
        return Gateway(parts, queue, routing, self._loop, share_s=context.share_s, traced=self._traced(), thread=thread)

    def _make_tracer(self) -> Tracer | None:
        """Return what notes traces; None: nothing is traced."""
        found, spans = self._settings.traces, self._context.spans
        if found is None or spans is None:
            return None
        from velox.gateway.tracing import ContentBounds, Tracer  # few gateways trace
        from velox.observe.traces.sampling import Sampler, TailRules

        tail = TailRules(self._settings.traces_errors, round(self._settings.traces_slow_s * 1e9))
        dropped = partial(self._metrics.count_spans, SpanEnd.NO_ROOM)
        # Of a stream a word takes many times its length.
        most = _CONTENT_FACTOR * self._settings.traces_content_bytes
        content = ContentBounds(frozenset(self._settings.traces_content), most, most, most // _SOCKET_SHARE)
        sampler = Sampler(found.sampler, found.ratio)
        return Tracer(sampler, tail, spans.put, dropped, content, reads_context=found.reads_context)

    def _traced(self) -> MakeExchange | None:
        """Return what makes exchanges that are traced; None: none is."""
        if self._tracer is None:
            return None
        from velox.gateway.front.traced import TracedMaker

        return TracedMaker(self._tracer)

    def _make_objects(self) -> ObjectTable:
        table = ObjectTable(self._context.objects, self._context.block)
        if shares_objects(self._settings):
            table.tell = lambda *row: self._shared_objects().put(*row)
        return table

    def _shared_objects(self) -> ObjectSharing:
        """Return where other gateways know the same objects."""
        if self._objects is None:
            from velox.runtime.shared.objects import LEAST_S, ObjectSharing, ObjectStore

            settings = self._settings
            timeout_s = max(settings.redis_timeout_s, LEAST_S)
            if settings.redis_url is not None:
                from velox.runtime.shared.objects_redis import RedisObjects

                store: ObjectStore = RedisObjects(settings.redis_url.reveal(), settings.redis_prefix, timeout_s)
            else:
                from velox.runtime.shared.objects_postgres import PostgresObjects

                store = PostgresObjects(self._ledger_database())
            self._objects = ObjectSharing(store, timeout_s, self._loop, self._logger)
        return self._objects

    def _ledger_database(self) -> PostgresPool:
        """Return the connections to the database that several gateways share."""
        if self._database is None:
            from velox.runtime.shared.postgres_pool import PostgresPool

            assert self._settings.ledger_database is not None, "asked for with one only"
            self._database = PostgresPool(self._settings.ledger_database.reveal())
        return self._database

    def _make_answers(self) -> Answers | None:
        memory, settings = self._context.answers, self._settings
        if memory is None:
            return None
        ring = AnswerRing(memory, self._context.block)
        asks_others = shares_answers(settings) and any(map(has_adapter, settings.upstreams))

        def make() -> KeptAnswers:
            from velox.gateway.answers.kept_answers import KeptAnswers

            self._shared = self._shared_answers()
            return KeptAnswers(ring, settings.kept_for_s, settings.max_body_bytes, self._shared)

        return Answers(make, lambda: asks_others or ring.is_used)

    def _cache_maker(self) -> Callable[[], ResponseCache] | None:
        """Return what makes the response cache when a route first asks it; None: there is no room for one."""
        memory, settings = self._context.cache, self._settings
        if memory is None:
            return None
        made: list[ResponseCache] = []

        def make() -> ResponseCache:
            if not made:
                from velox.gateway.cache.request_key import RequestKeys
                from velox.gateway.cache.response_cache import CacheBounds, ResponseCache

                ring = AnswerRing(memory, self._context.block)
                of_partition = settings.cache_bytes * settings.cache_share_percent // 100 // settings.workers
                bounds = CacheBounds(settings.cache_answer_bytes, of_partition)
                tell = self._metrics.count_kept
                keys = RequestKeys(requires_keys=self._context.keys.auth.requires_keys)
                made.append(ResponseCache(ring, bounds, self._budget, tell, time.monotonic, keys))
            return made[0]

        return make

    def _joining_maker(self) -> Callable[[], Joining] | None:
        """Return what makes that of joined calls when a route first asks it; None: there is no room for any."""
        settings = self._settings
        if not settings.join_bytes:
            return None
        made = self._joining

        def make() -> Joining:
            if not made:
                from velox.gateway.cache.request_key import RequestKeys
                from velox.gateway.join.joining import Joining
                from velox.gateway.join.peers import Peers
                from velox.policy.join.table import JoinBounds, JoinTable
                from velox.shm.join_index import JoinIndex

                table = JoinTable(JoinBounds(settings.join_call_bytes, settings.join_bytes // settings.workers))
                memory = self._context.joins
                index = None if memory is None else JoinIndex(memory, self._context.block)
                try:
                    peers = None if index is None else Peers(index, table, self._loop)
                except OSError as exc:
                    message = (
                        "this worker can't join calls of others, nor they its: it has no socket for them: %(error)s"
                    )
                    self._logger.warning(message, {"error": str(exc)})
                    peers = None
                keys = RequestKeys(requires_keys=self._context.keys.auth.requires_keys)
                made.append(Joining(table, keys, self._loop, peers))
            return made[0]

        return make

    def _shared_answers(self) -> AnswerSharing | None:
        """Return where other gateways have the same answers; None: nowhere."""
        settings = self._settings
        if not shares_answers(settings):
            return None
        from velox.runtime.shared.answers import LEAST_S, AnswerBytes, AnswerSharing

        timeout_s = max(settings.redis_timeout_s, LEAST_S)
        if settings.redis_url is not None:
            from velox.runtime.shared.answers_redis import RedisAnswers

            where = settings.redis_url.reveal(), settings.redis_prefix
            store: AnswerBytes = RedisAnswers(*where, settings.kept_for_s, timeout_s)
        else:
            from velox.runtime.shared.answers_postgres import PostgresAnswers

            bounds = settings.kept_for_s, settings.kept_database_bytes
            store = PostgresAnswers(self._ledger_database(), *bounds)
        return AnswerSharing(store, timeout_s, self._loop, self._logger)

    def _make_ingress(self) -> Ingress:
        settings = self._settings
        origins = WebOrigins(settings.cors_origins)
        return Ingress(
            CrossOrigin(self._gateway, origins) if origins else self._gateway,
            Http1Limits(body_bytes=settings.max_body_bytes, hosts=_own_hosts(settings)),
            ClientTimeouts(
                header_s=settings.header_timeout_s,
                body_s=settings.body_timeout_s,
                keepalive_s=settings.keepalive_timeout_s,
                write_s=settings.write_stall_timeout_s,
                min_rate_bytes=settings.client_min_rate_bytes,
            ),
            self._budget,
            self._loop,
            max_connections=self._descriptors.clients,
            max_per_address=settings.max_connections_per_address,
            http2=engine_factory(settings.http2_engine) if settings.listen_http2 else None,
            guarded=_guarded(settings),
            turns=self._client_turns,
        )

    async def run(self) -> None:
        """Serve until SIGTERM, then drain."""
        self._loop.add_signal_handler(signal.SIGTERM, self._stop)
        self._status.heartbeat_ns = time.monotonic_ns()
        self._status.upstream_ready = False
        self._metrics.reset_gauges()
        watch = self._loop_watch
        inspection = Inspection(
            self._gateway,
            self._ingress,
            self._upstream_manager,
            watch,
            self._loop,
            lambda: self._configuration.settings,
            self._context.keys.auth,
        )
        profiles = ProfileAgent(self._context.channel, self._loop, inspection.questions())
        profiles.start()
        if watch is not None:
            watch.start()
        self._upstream_manager.start()
        self._health_checks.replace(self._upstream_manager.members)
        self._lag_due_s = time.monotonic() + _TICK_S
        self._loop.call_later(_TICK_S, self._tick)
        listener = ClientListener(self._context.sockets, self._ingress, self._tls)
        await listener.open()
        context = self._context
        takeover = self._takeover = ListenerTakeover(listener, context.others_sockets, context.segment, self._loop)
        self._status.state = WorkerState.READY
        wake(self._context.notify)
        await self._must_drain.wait()
        if self._status.wants_successor:
            profiles.close()  # the channel is the successor's now
        if self._is_handed_over:
            profiles.close()
            await self._hand_over(listener, takeover)
        else:
            await self._drain(listener, takeover)

    def _make_tls(self, certificates: Certificates) -> TlsIngress:
        return TlsIngress(
            self._ingress,
            certificates.context,
            on_handshake=self._metrics.count_tls_handshake,
            on_failure=self._handshakes.failed,
        )

    def _make_memory_guard(self) -> MemoryGuard:
        settings = self._settings
        return MemoryGuard(
            MemoryWatch(settings.memory_soft_bytes, settings.memory_hard_bytes),
            ResidentMemory(),
            self._status,
            self._logger,
            refuse=self._gateway.refuse_new,
            wake=partial(wake, self._context.notify),
        )

    async def _hand_over(self, listener: ClientListener, takeover: ListenerTakeover) -> None:
        """Accept no more, for the next version does on the same sockets; end what clients have begun here.

        A connection ends with its next reply, which says so; one that its client leaves idle ends as it always does, so
        that no request meets a connection that is just being closed.
        """
        until_s = self._loop.time() + self._settings.upgrade_drain_timeout_s
        self._ingress.hand_over()
        await takeover.leave()
        await listener.leave()
        self._status.state = WorkerState.DRAINING
        wake(self._context.notify)
        while self._loop.time() < until_s and self._is_needed:
            if self._is_stopped:  # the whole gateway ends
                break
            await asyncio.sleep(_LOOK_S)
        self._ingress.draining = self._gateway.draining = True
        self._gateway.end_drains()
        await self._end(self._loop.time() + (self._settings.drain_timeout_s if self._is_stopped else 0.0))

    async def _drain(self, listener: ClientListener, takeover: ListenerTakeover) -> None:
        """Take the connections that are queued, stop, answer what runs, then tell the rest."""
        # From here on, as the supervisor counts, which kills what stays longer.
        until_s = self._loop.time() + self._settings.drain_timeout_s
        self._ingress.draining = self._gateway.draining = True
        self._gateway.end_drains()
        await takeover.serve_all()
        await listener.close(max(self._settings.drain_timeout_s, _QUEUED_S), takeover.served, takeover.close)
        self._status.state = WorkerState.DRAINING
        wake(self._context.notify)
        await self._end(until_s)

    async def _end(self, until_s: float) -> None:
        """Answer what runs until then, then tell the rest, and let everything go."""
        self._ingress.drain()
        if not await self._wait_for_clients(until_s):
            self._gateway.fail_all(VeloxError(Reason.DRAINING, "the gateway is shutting down", close=True))
            await self._wait_for_clients(self._loop.time() + _FLUSH_S)
        self._ingress.stop()
        self._health_checks.close()
        self._gateway.mirrors.close()
        if self._gateway.parts.models is not None:
            self._gateway.parts.models.close()
        self._upstream_manager.close()
        for each in self._joining:
            each.close()
        if self._shared is not None:
            await self._shared.close()
        if self._objects is not None:
            await self._objects.close()
        # The last lines tell what was cut: a reader that is slow just now has a moment for them.
        for _ in range(round(_LOG_S / _LOOK_S)):
            if self._log.flush():
                break
            await asyncio.sleep(_LOOK_S)
        self._log.close()
        if self._loop_watch is not None:
            self._loop_watch.stop()

    @property
    def _is_needed(self) -> bool:
        """True while a connection is open, a call is not accounted, or another worker's clients follow one of here."""
        in_use = self._ingress.connections or self._gateway.n_drains
        return bool(in_use) or any(each.n_links for each in self._joining)

    async def _wait_for_clients(self, until_s: float) -> bool:
        """Wait until no connection is open, and all is accounted; False when the time is over before."""
        while self._is_needed:
            if self._loop.time() >= until_s:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    # -- timers and callbacks -------------------------------------------------------------------------

    def _tick(self) -> None:
        """Every 0.25 s: how late is the loop, is there something to log or to take over, whose time is over."""
        now_s = time.monotonic()
        late_s = max(0.0, now_s - self._lag_due_s)
        self._metrics.loop_lag.observe(round(late_s * 1e9))
        # First: nothing that goes wrong below may end the timer that everything else depends on.
        self._lag_due_s = now_s + _TICK_S
        self._loop.call_later(_TICK_S, self._tick)
        # By itself, for the same reason: clients' time-outs hold whatever goes wrong here.
        self._loop.call_soon(self._ingress.sweep)
        if self._loop_watch is not None:
            self._loop_watch.beat(late_s, _TICK_S)
        self._status.heartbeat_ns = round(now_s * 1e9)
        if self._takeover is not None:
            self._takeover.look(self._status.heartbeat_ns)
        if self._gateway_status.is_handed_over and not self._is_handed_over:
            self._is_handed_over = True
            self._must_drain.set()
        self._log.flush()
        if self._context.certificates is not None and self._tls is not None:
            self._context.certificates.follow(self._tls)
            self._handshakes.flush(now_s)
        self._keys.look()
        self._configuration.look()
        self._health_checks.tick(self._loop.time())
        self._memory.look(is_idle=not self._gateway.n_active and not self._budget.taken_bytes)
        self._gateway.sweep(self._loop.time())
        self._upstream_manager.tick(self._loop.time())
        self._metrics.set_connections(len(self._ingress.connections), self._ingress.n_http2)

    def _change(self, settings: Settings) -> Generator[None, None, None]:
        """Work with other settings from the last step on: with what of them can change while a worker runs."""
        yield from importing(settings)
        calls = self._gateway.parts.calls
        prices = None if calls is None else (yield from making_call_prices(settings))
        routing = yield from self._upstream_manager.replacing(settings)
        self._gateway.route_by(routing)
        self._health_checks.replace(routing.members)
        self._gateway.parts.limiter.replace(settings.limit_rules)
        if calls is not None and prices is not None:
            calls.prices = prices
            if calls.budgets is not None:
                calls.budgets.prices = calls.prices
                calls.budgets.replace(settings.budgets)
        if self._gateway.parts.models is not None:
            self._gateway.parts.models.describe_by(_describing(settings))
        self._log.rules = _access_rules(settings)
        self._series.name_by(model_names(settings))
        self._on_pool_change()

    def _on_pool_change(self) -> None:
        """Look whether an upstream can be reached, once a turn: all of thousands of members may change together."""
        if not self._is_pool_check_due:
            self._is_pool_check_due = True
            self._loop.call_soon(self._look_at_pools)

    def _look_at_pools(self) -> None:
        self._is_pool_check_due = False
        self._status.upstream_ready = any(member.pool.is_warm for member in self._upstream_manager.members)
