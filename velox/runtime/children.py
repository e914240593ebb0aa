"""The child processes: worker, admin, simulator, lease manager, ledger, reader of budgets. What each does at first.

Knows: what a child inherits and must close. Does not know: when one is started (child_table.py, supervisor.py).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from socket import socket
from typing import Final, Self

from velox import __version__
from velox.admin import metrics_page
from velox.admin import server as admin_server
from velox.admin.app import AdminApp, Api, LateApi
from velox.admin.health import Readiness, WorkerHealth, readiness
from velox.admin.message import Reply
from velox.admin.playground import Playground, SendChat
from velox.admin.pprof import ProfilePage
from velox.admin.problems import problems
from velox.admin.reload import ReloadAnswers, ReloadPage
from velox.admin.running.pages import Ask, RunningPages
from velox.admin.upgrades.page import UpgradeAnswers, UpgradePage
from velox.observe.metrics import WorkerMetrics
from velox.observe.oplog import operations_logger
from velox.profiling.workers import Workers
from velox.runtime.admin_tls import AdminCertificate
from velox.runtime.leases.lease_client import LeasePipes
from velox.runtime.ledger.folder import LedgerFolder
from velox.runtime.processes.child_table import Child, Ended
from velox.runtime.processes.listeners import Listeners, bind_one
from velox.runtime.processes.process import pin_to_core, wake
from velox.runtime.processes.watchdog import ADMIN_STUCK_AFTER_S, LEASE_MANAGER_STUCK_AFTER_S, LEDGER_STUCK_AFTER_S
from velox.runtime.worker import WorkerContext, run_worker
from velox.settings import Settings
from velox.settings.machine import has_own_cores
from velox.settings.telemetry import TraceSettings
from velox.shm.answer_ring import AnswerMemory
from velox.shm.budget_table import BudgetMemory
from velox.shm.quota_table import QuotaMemory
from velox.shm.record_ring import RecordRing
from velox.shm.segment import Segment
from velox.shm.series_table import SeriesTable
from velox.shm.span_ring import span_rings
from velox.shm.status import GatewayStatus, RedisLink, serving
from velox.shm.upstream_table import UpstreamTable
from velox.types import Address

__all__ = [
    "AdminProcess",
    "ExporterProcess",
    "LeaseProcess",
    "LedgerProcess",
    "SimulatorProcess",
    "admin",
    "reader",
    "worker",
]

# A ledger's process that lived this long was fast enough at its start, and at what is done once an hour.
_WELL_AFTER_S: Final = 7200.0
_MOST_STUCK_AFTER_S: Final = 3600.0
# Some thousands of requests on their way to the exporter of traces, of each worker; untouched pages take no memory.
_SPAN_BYTES: Final = 2**20
# With content, some hundreds.
_CONTENT_BYTES: Final = 2**24


class AdminProcess(Child):
    """The admin process of one gateway. serve: serves its listener until SIGTERM (admin())."""

    def __init__(self, segment: Segment, serve: Callable[[Listeners], int], logger: logging.Logger) -> None:
        super().__init__("the admin process", logger, is_needed_last=False)
        self._serve: Final = serve
        self._status: Final = GatewayStatus(segment)

    def run(self, listeners: Listeners) -> int:
        """See Child."""
        return self._serve(listeners)

    @property
    def heartbeat_ns(self) -> int:
        """See Child."""
        return self._status.admin_heartbeat_ns

    @property
    def stuck_after_s(self) -> float:
        """See Child."""
        return ADMIN_STUCK_AFTER_S

    def ended(self, ended: Ended, *, is_expected: bool) -> None:
        """See Child."""
        self._status.admin_heartbeat_ns = 0
        self._status.admin_restarts += 1
        super().ended(ended, is_expected=is_expected)


class LedgerProcess(Child):
    """The process that keeps records."""

    def __init__(
        self,
        settings: Settings,
        segment: Segment,
        folder: LedgerFolder,
        budgets: BudgetMemory | None,
        logger: logging.Logger,
    ) -> None:
        super().__init__("the ledger process", logger, is_needed_last=True)
        self._settings: Final = settings
        self._budgets: Final = budgets
        self._status: Final = GatewayStatus(segment)
        self._metrics: Final = WorkerMetrics(segment.other_metrics())
        self.folder: Final = folder
        self._stuck_after_s = LEDGER_STUCK_AFTER_S

    @classmethod
    def of(
        cls,
        settings: Settings,
        segment: Segment,
        budgets: BudgetMemory | None,
        logger: logging.Logger,
        handed: Callable[[str], int] = lambda _folder: -1,
    ) -> Self | None:
        """Return that of a gateway; None: it records nothing. handed: as for LedgerFolder. Raises RingError."""
        folder = LedgerFolder.of(settings, segment.blocks, handed)
        return None if folder is None else cls(settings, segment, folder, budgets, logger)

    def run(self, listeners: Listeners) -> int:
        """Keep records."""
        # One that comes while the modules are loaded must not end it before it has kept what waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        listeners.close_all()
        # Here, not above: no other process needs it.
        from velox.runtime.ledger.ledger_process import run_ledger

        return run_ledger(self._settings, self.folder, self._metrics, self._budgets, self._beat, fails=self._fails)

    def _fails(self, fails: bool) -> None:
        self._status.ledger_is_failing = fails

    def _beat(self) -> None:
        self._status.ledger_heartbeat_ns = time.monotonic_ns()

    @property
    def heartbeat_ns(self) -> int:
        """See Child."""
        return self._status.ledger_heartbeat_ns

    @property
    def stuck_after_s(self) -> float:
        """How long it may be without a sign of life. Before the first one it opens its store, however long it takes."""
        return self._stuck_after_s if self.heartbeat_ns else math.inf

    def started(self, pid: int, now_s: float) -> None:
        """See Child."""
        super().started(pid, now_s)
        self._status.ledger_pid = pid

    def ended(self, ended: Ended, *, is_expected: bool) -> None:
        """See Child. What was aborted may have been slow, not stuck: the next one has twice the time."""
        was_well = ended.now_s - self.started_s >= _WELL_AFTER_S
        longer_s = min(2 * self._stuck_after_s, _MOST_STUCK_AFTER_S)
        self._stuck_after_s = longer_s if self.aborted and not was_well else LEDGER_STUCK_AFTER_S
        self._status.ledger_pid = self._status.ledger_heartbeat_ns = 0
        self._status.ledger_restarts += 1
        super().ended(ended, is_expected=is_expected)


class ExporterProcess(Child):
    """The process that exports traces. rings: one for each block, in which workers put what they note."""

    def __init__(
        self,
        traces: TraceSettings,
        settings: Settings,
        segment: Segment,
        logger: logging.Logger,
    ) -> None:
        super().__init__("the exporter of traces", logger, is_needed_last=True)
        self._traces: Final = traces
        self._settings: Final = settings
        self._status: Final = GatewayStatus(segment)
        self._metrics: Final = WorkerMetrics(segment.other_metrics())
        self.rings: Final = span_rings(segment.blocks, _CONTENT_BYTES if settings.traces_content else _SPAN_BYTES)

    @classmethod
    def of(cls, settings: Settings, segment: Segment, logger: logging.Logger) -> Self | None:
        """Return that of a gateway; None: it traces nothing."""
        return None if settings.traces is None else cls(settings.traces, settings, segment, logger)

    def run(self, listeners: Listeners) -> int:
        """Export."""
        # One that comes while the modules are loaded must not end it before it has sent what waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        listeners.close_all()
        # Here, not above: no other process needs it.
        from velox.observe.traces.redaction import Redaction
        from velox.runtime.traces.exporter import Contents, run_exporter

        own = self._settings.traces_redact
        redaction = Redaction(None if own is None else re.compile(own))
        contents = Contents(self._settings.traces_content_bytes, redaction.of)
        logger = operations_logger(sys.stderr)
        proxies = self._settings.proxies
        return run_exporter(self._traces, contents, proxies, self.rings, self._metrics, self._beat, logger)

    def _beat(self) -> None:
        self._status.exporter_heartbeat_ns = time.monotonic_ns()

    @property
    def heartbeat_ns(self) -> int:
        """See Child."""
        return self._status.exporter_heartbeat_ns

    @property
    def stuck_after_s(self) -> float:
        """See Child."""
        return LEASE_MANAGER_STUCK_AFTER_S if self.heartbeat_ns else math.inf

    def ended(self, ended: Ended, *, is_expected: bool) -> None:
        """See Child."""
        self._status.exporter_heartbeat_ns = 0
        super().ended(ended, is_expected=is_expected)


class LeaseProcess(Child):
    """The lease manager of one gateway. reclaim: takes back the quota that it held when it ended."""

    def __init__(
        self,
        settings: Settings,
        segment: Segment,
        quotas: QuotaMemory,
        budgets: BudgetMemory | None,
        reclaim: Callable[[], object],
        logger: logging.Logger,
    ) -> None:
        super().__init__("the lease manager", logger, is_needed_last=True)
        self._settings: Final = settings
        self._segment: Final = segment
        self._quotas: Final = quotas
        self._budgets: Final = budgets
        self._reclaim: Final = reclaim
        self._status: Final = GatewayStatus(segment)
        # Until the lease manager has tried, requests wait for it instead of going on without.
        self._status.redis = RedisLink.UP
        self.pipes: Final = LeasePipes(segment.blocks)

    @classmethod
    def of(
        cls,
        settings: Settings,
        segment: Segment,
        quotas: QuotaMemory,
        budgets: BudgetMemory | None,
        reclaim: Callable[[], object],
        logger: logging.Logger,
    ) -> Self | None:
        """Return the lease manager of a gateway; None: it needs none."""
        return None if settings.redis_url is None else cls(settings, segment, quotas, budgets, reclaim, logger)

    def run(self, listeners: Listeners) -> int:
        """Be the lease manager."""
        listeners.close_all()
        # Here, not above: no other process needs it, and the package redis is an extra.
        from velox.runtime.leases.lease_manager import run_lease_manager

        return run_lease_manager(self._settings, self._segment, self._quotas, self.pipes, self._budgets)

    @property
    def heartbeat_ns(self) -> int:
        """See Child."""
        return self._status.lease_manager_heartbeat_ns

    @property
    def stuck_after_s(self) -> float:
        """See Child."""
        return LEASE_MANAGER_STUCK_AFTER_S

    def started(self, pid: int, now_s: float) -> None:
        """See Child."""
        super().started(pid, now_s)
        self._status.lease_manager_pid = pid

    def stop(self, timeout_s: float) -> None:
        """See Child. If Redis is down it can return nothing, and may be in the middle of a slow DNS lookup."""
        has_budgets = self._budgets is not None and not self._budgets.away_ns
        if self.pid and not self._status.redis_is_up and not has_budgets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        super().stop(timeout_s)

    def ended(self, ended: Ended, *, is_expected: bool) -> None:
        """See Child."""
        self._reclaim()
        self._status.lease_manager_pid = self._status.lease_manager_heartbeat_ns = 0
        super().ended(ended, is_expected=is_expected)


class SimulatorProcess(Child):
    """The simulator of `velox serve --sim`. origin: where it listens, for life.

    simulate: serves on a bound socket until SIGTERM.
    """

    def __init__(self, simulate: Callable[[socket], None], logger: logging.Logger) -> None:
        super().__init__("the simulator", logger, is_needed_last=False)
        self._simulate: Final = simulate
        # A free port of loopback. Held here, so that the next process has it too.
        self._sock: Final = bind_one(Address(kind="tcp", host="127.0.0.1", port=0))
        self.origin: Final = f"http://127.0.0.1:{self._sock.getsockname()[1]}"

    def run(self, listeners: Listeners) -> int:
        """Be the simulator."""
        listeners.close_all()
        self._simulate(self._sock)
        return 0

    def close(self) -> None:
        """Let go of its address."""
        self._sock.close()


def reader(read: Callable[[], int], listeners: Listeners) -> int:
    """Read managed keys, or what budgets have spent, however long it takes."""
    listeners.close_all()
    return read()


def worker(context: WorkerContext) -> int:
    """Serve clients on the slot's sockets until SIGTERM."""
    settings = context.settings
    pins = settings.pin_cpus
    if pins is None:
        pins = has_own_cores(settings.workers, os.sched_getaffinity(0))
    if pins:
        pin_to_core(context.slot)
    return run_worker(context)


def admin(
    settings: Settings,
    segment: Segment,
    sock: socket,
    channels: Sequence[socket],
    listeners: Listeners,
    *,
    quotas: QuotaMemory,
    upstreams: UpstreamTable,
    series: SeriesTable,
    budgets: BudgetMemory | None,
    cache: AnswerMemory | None,
    records: Sequence[RecordRing] | None,
    reloads: ReloadAnswers,
    upgrades: UpgradeAnswers,
    notify: int,
    certificate: AdminCertificate | None = None,
) -> int:
    """Serve the admin listener until SIGTERM. notify: a pipe that wakes the supervisor."""
    listeners.close_all()
    status, workers = GatewayStatus(segment), Workers(channels)

    def beat() -> None:
        status.admin_heartbeat_ns = time.monotonic_ns()
        if certificate is not None:
            certificate.look(time.monotonic())

    app = AdminApp(
        metrics=partial(
            metrics_page.render,
            segment,
            quotas=quotas,
            upstreams=upstreams,
            calls=series,
            budgets=budgets,
            scopes=settings.budget_metrics,
            records=records,
            admin_not_after_s=None if certificate is None else lambda: certificate.not_after_s,
        ),
        ready=partial(_readiness, segment, upstreams, requires_upstream=settings.ready_requires_upstream),
        problems=lambda: problems(status, upstreams.totals(), budgets),
        profiles=ProfilePage(workers.profile, workers.heap, settings.profile_pause_s) if settings.profiling else None,
        running=RunningPages(workers.ask) if settings.profiling else None,
        reload=ReloadPage(segment, reloads, partial(wake, notify)),
        upgrade=UpgradePage(segment, upgrades, settings.upgrade_timeout_s, partial(wake, notify)),
        token=None if settings.admin_token is None else settings.admin_token.reveal(),
        viewer_token=None if settings.admin_viewer_token is None else settings.admin_viewer_token.reveal(),
        host_names=settings.admin_hosts,
        tls=None if certificate is None else lambda: certificate.context,
        api=_api(settings, budgets, cache, WorkerMetrics(segment.other_metrics()).count_purge, workers.ask),
        listening=listeners.url.split(","),
        pid=status.supervisor_pid,
        playground=_playground(listeners.url.partition(",")[0], settings.tls_cert_file),
    )
    admin_server.run(sock, app, beat, lambda: status.is_handed_over)
    return 0


def _playground(url: str, cert: str | None) -> Playground:
    sender: SendChat | None = None

    async def send(key: str, body: bytes) -> Reply:
        nonlocal sender
        if sender is None:
            # Here, not above: few gateways are ever asked by the playground.
            from velox.runtime.playground import OwnGateway

            sender = OwnGateway(url, cert).send
        return await sender(key, body)

    return Playground(send)


def _api(
    settings: Settings,
    budgets: BudgetMemory | None,
    cache: AnswerMemory | None,
    count_purge: Callable[[int], None],
    ask: Ask,
) -> Api:
    def make() -> Api:
        # Here, not above: what records nothing loads no database (on_demand.py).
        from velox.runtime.admin_api import SharedParts, admin_api

        shared = SharedParts(budgets, cache, count_purge)
        return admin_api(settings, __version__, shared, ask, operations_logger(sys.stderr))

    return LateApi(make) if settings.ledger is None else make()


def _readiness(segment: Segment, upstreams: UpstreamTable, *, requires_upstream: bool) -> Readiness:
    now_ns = time.monotonic_ns()
    workers = []
    for slot in range(segment.workers):
        status = serving(segment, slot)
        age_s = (now_ns - status.heartbeat_ns) / 1e9 if status.heartbeat_ns else 0.0
        workers.append(WorkerHealth(status.state, status.upstream_ready, age_s))
    gateway = GatewayStatus(segment)
    return readiness(
        workers,
        draining=gateway.draining,
        requires_upstream=requires_upstream,
        configuration_is_bad=gateway.configuration_is_bad,
        credentials=upstreams.credentials.all(),
    )
