"""The supervisor: binds and holds the sockets, owns the shared memory, starts processes and replaces those that die.

Knows: processes and signals, and that a slot has one worker that serves and, for a while, a successor that starts or a
worker that leaves. Does not know: HTTP; it parses no client's bytes, has one thread and no event loop, so that nothing
a client does can reach it and a fork is always safe.

    signals      SIGTERM, SIGINT: drain, then exit; a second one: exit now. SIGCHLD: a child died. SIGHUP: reload.
                 SIGUSR2: upgrade.
    deaths       a worker is replaced at once, one that keeps dying after 0.1 s, doubling to 5 s
    heartbeats   a worker whose loop stands still for 10 s is aborted, and replaced; so are other processes
    keys         the file of keys is read again when it changes (keys/credentials.py)
    reloads      so is the configuration, in a process of its own (reload.py)
    memory       a worker that asks for a successor is stopped when the successor serves
    records      what a dead worker had open is put among them (velox.shm.record_ring)
    quotas       what a dead worker held is taken back; unused rows are freed (velox.shm.quota_table)
    upgrades     another version is started beside this one, which then ends what it has begun (upgrade.py)
    upstreams    each member gets a row before a worker looks for it; unused rows are freed (velox.shm.upstream_table)
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from velox.admin.health import STUCK_AFTER_S
from velox.build import VERSION
from velox.observe.call_series import series_table
from velox.observe.log_output import LogStream
from velox.observe.metrics import WorkerMetrics
from velox.observe.oplog import operations_logger, take_over
from velox.observe.series import CELLS
from velox.runtime import children
from velox.runtime.admin_tls import AdminCertificate
from velox.runtime.buckets import BucketWatch
from velox.runtime.capacity import open_files_limit, raise_open_files, shortages
from velox.runtime.children import AdminProcess, ExporterProcess, LeaseProcess, LedgerProcess, SimulatorProcess
from velox.runtime.kept_tables import answer_table, budget_table, cache_table, join_memory, quota_table
from velox.runtime.keys.credentials import Certificates, KeyWatch
from velox.runtime.ledger.budget_backfill import BudgetBackfill, KeyChanges
from velox.runtime.ledger.key_backfill import has_keys, open_keys
from velox.runtime.on_demand import importing
from velox.runtime.processes.activation import Activation, ActivationError
from velox.runtime.processes.anchor import Anchor, adopt_orphans, end_with_parent
from velox.runtime.processes.child_table import Child, ChildTable, Ended
from velox.runtime.processes.crashes import CrashReports, follow_log, own_log, own_stderr
from velox.runtime.processes.handover import HandoverError, State
from velox.runtime.processes.listeners import BindError, Listeners
from velox.runtime.processes.memories import Memories
from velox.runtime.processes.notify import Notifier
from velox.runtime.processes.pid_file import PidFileError, PidMark
from velox.runtime.processes.predecessor import Predecessor
from velox.runtime.processes.starter import Starter
from velox.runtime.processes.titles import TitledForks
from velox.runtime.processes.watchdog import Watchdog
from velox.runtime.reload import ConfigSource, Reload
from velox.runtime.shared.object_memory import object_memory
from velox.runtime.upgrade import Taken, Upgrade, UpgradeError, own_command
from velox.runtime.upstreams.members import labels_of, prefix_groups, upstreams_of
from velox.runtime.worker import WorkerContext
from velox.settings import Settings
from velox.settings.checks.advice import advice
from velox.settings.checks.certificates import CertificateError
from velox.settings.machine import container_memory
from velox.shm.quota_table import QuotaSweeper
from velox.shm.record_ring import RingError
from velox.shm.segment import Segment, SharedMemoryError
from velox.shm.status import GatewayStatus, RedisLink, RestartCause, WorkerState, WorkerStatus
from velox.shm.upstream_table import UpstreamTable

__all__ = ["SPARES", "Slot", "WorkerProcess", "serve"]

# Blocks of shared memory that a slot needs beside its first: one process may leave while another one serves.
SPARES: Final = 1


class WorkerProcess:
    """One process of a slot, and its block of shared memory; the block outlives the processes that use it."""

    def __init__(self, segment: Segment, block: int) -> None:
        self.block: Final = block
        self.status: Final = WorkerStatus(segment, block)
        self.pid = 0  # 0: none
        self.started_s = 0.0
        self.leave_by_s = 0.0  # 0: it was not asked to stop
        self.aborted = False
        self.status.vacate()

    @property
    def heartbeat_ns(self) -> int:
        """Monotonic time of its last sign of life; 0: none yet."""
        return self.status.heartbeat_ns

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.block} pid={self.pid} {self.status.state.name}>"


class Slot:
    """A place for a worker. blocks: those that its processes may have, in the order in which they are taken."""

    def __init__(self, index: int, segment: Segment, blocks: Sequence[int] | None = None) -> None:
        self.index: Final = index
        every = segment.blocks_of(index)
        self.serving, self.other = [WorkerProcess(segment, block) for block in blocks or every][: 1 + SPARES]
        for block in every:
            WorkerStatus(segment, block).vacate()
        self.backoff_s = 0.0
        self.respawn_at_s = 0.0
        self.replace_at_s = 0.0  # not before: a worker that can't help its memory must not be replaced all the time

    def __repr__(self) -> str:
        return f"<Slot {self.index} serving={self.serving!r} other={self.other!r}>"

    @property
    def processes(self) -> tuple[WorkerProcess, WorkerProcess]:
        """Both processes, the one that serves first."""
        return self.serving, self.other

    @property
    def has_successor(self) -> bool:
        """True while a process starts that will serve in the place of this slot's worker."""
        return bool(self.other.pid) and not self.other.leave_by_s

    def change_over(self) -> None:
        """The other one serves from now on."""
        self.serving, self.other = self.other, self.serving


_TICK_S: Final = 0.25
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 5.0
# A worker that lived this long was well: its death is no crash loop.
_HEALTHY_AFTER_S: Final = 5.0
# Until a worker is tried again that could not be started.
_FORK_AGAIN_S: Final = 0.5
# A worker that asks for a successor again waits for it this long: what fills its memory would fill the next one's, too.
_REPLACE_AGAIN_S: Final = 10.0
# What a successor gets to reach the upstream before the worker that it replaces is stopped.
_WARM_S: Final = 3.0
# After the drain window, what a worker gets to tell its clients and leave.
_LEAVE_GRACE_S: Final = 1.0
# After an upgrade: until the admin process ends, whose page answers who asked for it.
_ADMIN_ENDS_S: Final = 2.0
# What the other processes get to leave when all workers have: the lease manager gives back what it holds.
_LEAVE_LAST_S: Final = 3.0


def serve(
    settings: Settings,
    source: ConfigSource,
    simulate: Callable[[socket.socket], None] | None,
    handed: str = "",
    starter: str = "",
) -> int:
    """Run the gateway until a signal stops it; return the exit code.

    source: where the settings can be read again. simulate: be the simulator on a socket, in place of the first
    upstream; None: there is none. handed: what the version before has put into the environment (handover.VARIABLE).
    starter: what `velox start` has put there (starter.VARIABLE).
    """
    try:
        predecessor = Predecessor.take(handed)  # first: the log is where the version before has it
        activation = Activation.of(os.environ, os.getpid())
    except (HandoverError, ActivationError) as exc:
        operations_logger(own_stderr()).error("%s", exc)
        return 1
    stream = _log(settings)
    take_over(stream)
    raise_open_files()  # first: on a machine of many cores the listeners alone are hundreds
    try:
        # What is bound when the start fails is let go: a unix socket would leave its file behind.
        with contextlib.ExitStack() as bound:
            mark = PidMark(settings.pid_file, is_first=predecessor is None)
            bound.callback(mark.release)
            supervisor = Supervisor(settings, source, stream, bound, simulate, predecessor, activation, mark)
            return supervisor.run(Starter.of(starter))
    except (BindError, CertificateError, PidFileError, RingError, SharedMemoryError) as exc:
        why = str(exc)
    except OSError as exc:
        if exc.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        why = f"{exc.strerror}; raise the limit of open files (ulimit -n)"
    operations_logger(stream).error("%s", why)
    if predecessor is not None:
        predecessor.failed(why)
    return 1


def _log(settings: Settings) -> LogStream:
    """Return the log of a gateway: standard error where its file can't be opened."""
    if settings.log_file is None:
        return own_stderr()
    try:
        return own_log(settings.log_file)
    except OSError as exc:
        stream = own_stderr()
        fields = {"file": settings.log_file, "error": exc.strerror}
        operations_logger(stream).error("%(file)s can't be opened: %(error)s; log on standard error", fields)
        return stream


class Supervisor:
    """The parent of all other processes of a gateway.

    bound: closes what is listened on, whatever ends the gateway. simulate: as for serve(). predecessor: the version
    before, whose gateway this one takes over; None: it begins a gateway. activation: sockets of systemd. mark: its pid
    file.
    """

    def __init__(
        self,
        settings: Settings,
        source: ConfigSource,
        stream: LogStream,
        bound: contextlib.ExitStack,
        simulate: Callable[[socket.socket], None] | None,
        predecessor: Predecessor | None = None,
        activation: Activation | None = None,
        mark: PidMark | None = None,
    ) -> None:
        logger = operations_logger(stream)
        self._stream: Final = stream
        self._mark: Final = PidMark(None, is_first=True) if mark is None else mark
        self._starter = Starter(-1)
        self._predecessor: Final = predecessor
        self._memories: Final = Memories() if predecessor is None else predecessor.memories
        self._settings: Final = settings
        self._logger: Final = logger
        self._segment: Final = Segment(settings.workers, CELLS, spares=_spares(settings.workers, predecessor))
        stream.on_dropped = WorkerMetrics(self._segment.other_metrics()).count_log_dropped  # in all processes
        blocks = self._segment.blocks
        self._answers: Final = answer_table(settings, blocks, self._memories)
        self._cache: Final = cache_table(settings, blocks, self._memories)
        self._joins: Final = join_memory(settings, blocks)
        self._quotas: Final = quota_table(settings, blocks, self._memories)
        self._sweeper: Final = QuotaSweeper(self._quotas)
        self._buckets: Final = BucketWatch(self._quotas, settings, logger)
        self._upstreams: Final = UpstreamTable(self._segment.blocks)
        self._series: Final = series_table(self._segment.blocks)
        self._gateway: Final = GatewayStatus(self._segment)
        self._keys: Final = KeyWatch(settings, self._gateway, WorkerMetrics(self._segment.other_metrics()), logger)
        self._reload: Final = Reload(
            settings, source, self._gateway, self._keys, logger, enroll=self._enroll, used=self._used
        )
        self._certificates: Final = Certificates.of(settings, self._gateway, logger)
        given = predecessor or activation or Activation({})
        self._listeners: Final = Listeners(
            settings.listen,
            settings.workers,
            mode=settings.listen_mode,
            owner=settings.listen_owner,
            scheme="http" if self._certificates is None else "https",
            handed=given.sockets,
        )
        bound.callback(self._listeners.close)
        self._admin_certificate: Final = AdminCertificate.of(settings, logger)
        scheme = "http" if self._admin_certificate is None else "https"
        self._admin: Final = (
            None
            if settings.admin_listen is None
            else Listeners(
                (settings.admin_listen,),
                1,
                scheme=scheme,
                handed=given.sockets,
                use="admin",
            )
        )
        if self._admin is not None:
            bound.callback(self._admin.close)
        # One pair per slot, made once: a successor finds the same end that the admin process speaks to.
        self._channels: Final = [
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(settings.workers)
        ]
        self._slots: Final = [
            Slot(index, self._segment, _in_order(self._segment.blocks_of(index), predecessor))
            for index in range(settings.workers)
        ]
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watchdog: Final = Watchdog(logger)
        crashes = CrashReports()
        self._children: Final = ChildTable(
            TitledForks(crashes.fork, logger),
            crashes,
            self._watchdog,
            self._listeners,
            is_stopped=lambda: self._is_stopped,
            is_over=self._is_over,
            on_other=self._other_ended,
        )
        keeps_records = predecessor is not None and predecessor.has_lock(settings.ledger)
        self._budgets, self._counts_on = budget_table(settings, blocks, self._memories if keeps_records else Memories())
        reclaim = partial(self._sweeper.reclaim, self._quotas.lease_manager_block)
        self._leases: Final = LeaseProcess.of(settings, self._segment, self._quotas, self._budgets, reclaim, logger)
        handed = _no_lock if predecessor is None else predecessor.lock
        self._ledger: Final = LedgerProcess.of(settings, self._segment, self._budgets, logger, handed)
        folder = None if self._ledger is None else self._ledger.folder
        self._exporter: Final = ExporterProcess.of(settings, self._segment, logger)
        self._objects: Final = object_memory(settings, blocks, folder, self._memories, logger)
        self._backfill: Final = BudgetBackfill.of(settings, self._budgets, folder, logger, self._start_budget_reader)
        self._sim: Final = None if simulate is None else SimulatorProcess(simulate, logger)
        self._sim_origin: Final = None if self._sim is None else self._sim.origin
        for address in () if activation is None else activation.unused:
            logger.warning("systemd listens on %(address)s, which no setting names", {"address": address})
        self._memories.settle()
        if predecessor is not None:
            predecessor.settle()
        self._notifier: Final = Notifier.of(os.environ)
        self._ping_at_s = 0.0
        anchor = -1 if predecessor is None else predecessor.state.anchor
        self._anchor = None if anchor < 0 else Anchor(anchor)  # of the first process: once an upgrade begins
        self._upgrade: Final = Upgrade(
            self._gateway,
            logger,
            settings.upgrade_timeout_s,
            settings.drain_timeout_s + _LEAVE_GRACE_S + _LEAVE_LAST_S,
            state=self._state,
            hand_over=self._hand_over,
            failed=self._upgrade_failed,
            command=own_command(),
            environ=os.environ,
        )
        self._admin_child: AdminProcess | None = None
        self._admin_ends_s = 0.0
        self._is_alone_told = False
        self._told_ready = False
        self._successor_code: int | None = None  # of the version after this one, once it has ended
        self._n_stops = 0
        self._n_rotations = 0
        self._drain_until_s = 0.0
        self._announced = False

    def run(self, starter: Starter) -> int:
        """Start all processes, watch them, and return when the gateway was stopped and all are gone.

        starter: who waits until it is ready.
        """
        self._starter = starter
        self._gateway.supervisor_pid = os.getpid()
        self._gateway.started_ns = time.monotonic_ns()
        self._take_signals()
        if self._anchor is not None:
            end_with_parent()
        # Now, not when it is ready: with too little memory it may never be.
        for line in shortages(self._settings, open_files_limit(), container_memory()):
            self._logger.warning("%s", line)
        if self._sim is not None:
            self._children.keep(self._sim, time.monotonic())
        self._enroll(self._settings)
        for _ in importing(self._settings):
            pass
        # What is loaded now is never garbage; frozen, the children share its pages for as long as they live.
        gc.collect()
        gc.freeze()

        def is_stopped() -> bool:
            return bool(self._n_stops)

        forget = self._children.forget
        # After another version: its ledger's process writes them until it has ended.
        if self._predecessor is None or not has_keys(self._settings):
            open_keys(self._settings, self._keys, self._logger, self._start_key_reader, is_stopped, forget)
        if self._backfill is not None and self._counts_on:
            self._backfill.go_on(self._keys.keys)
        elif self._backfill is not None:
            self._backfill.begin(self._keys.keys, is_stopped, forget)
        if self._predecessor is None:
            self._start_admin()
            self._start_single()
        if self._exporter is not None:  # each version has one of its own
            self._children.keep(self._exporter, time.monotonic())
        for slot in self._slots:
            self._start_worker(slot, slot.serving)
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._is_over():
                if selector.select(0.0 if self._keys.is_busy else _TICK_S):
                    self._clear_wake()
                self._turn(time.monotonic())
        self._leave()
        if self._anchor is not None and self._anchor.is_first and self._upgrade.is_done:
            # Whoever has started this process knows no other one of the gateway.
            return self._anchor.stay(lambda: self._n_stops) if self._successor_code is None else self._successor_code
        return 0

    # -- signals ----------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        """Signals only write to the pipe and count: all work is done in the loop."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGUSR1, self._on_rotation)
        signal.signal(signal.SIGHUP, self._on_ask)
        signal.signal(signal.SIGUSR2, self._on_ask)

    def _on_ask(self, number: int, _frame: object) -> None:
        """Reload, or upgrade; once another version serves, it is asked."""
        if self._upgrade.is_done:
            if self._anchor is not None and self._anchor.is_first:
                self._anchor.pass_on(number)
        elif number == signal.SIGHUP:
            self._reload.ask()
        else:
            self._upgrade.ask()

    def _on_stop(self, _number: int, _frame: object) -> None:
        self._n_stops += 1

    def _on_rotation(self, number: int, _frame: object) -> None:
        self._n_rotations += 1
        if self._upgrade.is_done and self._anchor is not None and self._anchor.is_first:
            self._anchor.pass_on(number)
            follow_log(self._stream)  # it may only wait by now

    def _pass_on_rotations(self) -> None:
        """Let the workers open their log files anew, if that was asked for. One that starts now opens them anyway."""
        if self._n_rotations:
            self._n_rotations = 0
            follow_log(self._stream)
            for slot in self._slots:
                for process in slot.processes:
                    if process.pid:
                        os.kill(process.pid, signal.SIGUSR1)

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    # -- one turn of the loop ---------------------------------------------------------------------

    def _turn(self, now_s: float) -> None:
        self._children.reap(now_s)
        self._pass_on_rotations()
        self._share_stops()
        if self._is_in_charge and self._anchor is None:
            self._mark.take()
        if self._predecessor is not None:
            self._look_back(self._predecessor, now_s)
        self._keys.look(now_s)
        self._publish_keys()
        if self._is_in_charge:
            self._sweeper.sweep(time.monotonic_ns())
        # While many keys change, once at the end: a look may be at all of them.
        if self._is_in_charge and not self._keys.is_busy:
            self._buckets.look(self._reload.settings.limit_rules, self._keys.keys)
            changes = KeyChanges(self._keys.take_changes(), lambda: self._keys.keys)
            if self._backfill is not None:
                self._backfill.look(self._reload.settings.budgets, changes, now_s)
        self._upstreams.sweep()
        self._children.start_due(now_s)  # in the drain too: running requests need them to their end
        if self._n_stops and not self._gateway.draining:
            self._begin_drain(now_s)
        if self._is_leaving:
            self._watch_drain(now_s)
        elif self._is_in_charge:
            self._look_for_changes(now_s)
        self._look_for_upgrade(now_s)
        self._ping(now_s)
        self._watchdog.look(now_s)
        for slot in self._slots:
            for process in slot.processes:
                if process.pid:
                    self._watchdog.check(process, f"worker {slot.index}", STUCK_AFTER_S, now_s)
            if not self._is_leaving:
                self._fill(slot, now_s)
        self._children.check(now_s)
        if not self._announced and not self._is_leaving and self._are_ready(now_s):
            if self._is_in_charge:
                self._announced = True
                self._announce()
            elif self._predecessor is not None and not self._told_ready:
                self._told_ready = True
                self._predecessor.ready(VERSION, self._memories.lost, has_leases=self._leases is not None)

    def _are_ready(self, now_s: float) -> bool:
        """True when all workers serve; after another version with a way to an upstream, or when they have waited."""
        serving = [slot.serving for slot in self._slots]
        if not all(each.status.state is WorkerState.READY for each in serving):
            return False
        return self._predecessor is None or all(
            each.status.upstream_ready or now_s - each.started_s >= _WARM_S for each in serving
        )

    def _publish_keys(self) -> None:
        """Publish a snapshot of all keys if a worker asks for one."""
        asking = [each.status for slot in self._slots for each in slot.processes if each.status.wants_keys]
        for status in asking:
            status.wants_keys = False
        if asking:
            self._keys.publish_all()

    def _look_for_changes(self, now_s: float) -> None:
        if self._certificates is not None:
            self._certificates.look(now_s)
        if self._reload.is_due(now_s):
            work = partial(self._reload.run, self._listeners)
            pid = self._children.fork("the configuration loader", work, self._reload_ended)
            self._reload.started(pid, now_s)
            if pid:
                self._notifier.tell(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)

    def _ping(self, now_s: float) -> None:
        """Tell systemd that all is well, unless no worker shows a sign of life: then it ends the service."""
        if not self._notifier.ping_s or now_s < self._ping_at_s or not self._is_in_charge:
            return
        beats = [process.heartbeat_ns for process in self._running()]
        if self._is_leaving or any(now_s - beat / 1e9 <= STUCK_AFTER_S for beat in beats if beat):
            self._ping_at_s = now_s + self._notifier.ping_s
            self._notifier.tell(WATCHDOG=1)

    def _reload_ended(self, ended: Ended) -> None:
        self._notifier.tell(READY=1)
        self._reload.reaped(ended.pid, ended.how, ended.now_s, ended_well=not ended.status)

    def _budget_reader_ended(self, ended: Ended) -> None:
        if self._backfill is not None:
            self._backfill.died(ended.now_s, ended_well=not ended.status)
        if os.WIFSIGNALED(ended.status) and not self._is_stopped:
            fields = {"exit": ended.how}
            self._log_death("the budget loader died (%(exit)s)", fields, reason="died", traceback=ended.told)

    def _log_death(self, message: str, fields: Mapping[str, object], *, reason: str, traceback: str) -> None:
        """Log why a process died and where it stood, as one line."""
        self._logger.error(message, fields, extra={"reason": reason, "traceback": traceback})

    def _worker_ended(self, slot: Slot, process: WorkerProcess, ended: Ended) -> None:
        """Clean up after a worker, and say when the next one starts."""
        status, now_s, told = ended.status, ended.now_s, ended.told
        was_asked_to_stop, process.leave_by_s = bool(process.leave_by_s), 0.0
        process.pid = 0
        process.status.vacate()
        self._reclaim(process.block)
        self._upgrade.tell_freed(process.block)
        WorkerMetrics(self._segment.metrics(process.block)).reset_gauges()
        cause = RestartCause.EXIT if os.WIFEXITED(status) else RestartCause.SIGNAL
        cause = RestartCause.STUCK if process.aborted else cause
        if self._is_stopped:
            # SIGTERM ends one that did not serve yet. A second signal means that the rest is killed.
            if status not in (0, signal.SIGTERM) and self._n_stops == 1:
                how, reason = ended.how, cause.name.lower()
                fields = {"worker": slot.index, "exit": how}
                self._log_death(
                    "worker %(worker)d died during shutdown (%(exit)s)", fields, reason=reason, traceback=told
                )
            return
        if self._upgrade.is_done:
            if status:
                how, reason = ended.how, cause.name.lower()
                fields = {"worker": slot.index, "exit": how}
                message = "worker %(worker)d of the version before died (%(exit)s)"
                self._log_death(message, fields, reason=reason, traceback=told)
            return
        if was_asked_to_stop:
            self._logger.info(
                "worker %(worker)d: the replaced process has exited (%(exit)s)",
                {"worker": slot.index, "exit": ended.how},
            )
            return
        was_well = now_s - process.started_s >= _HEALTHY_AFTER_S
        slot.backoff_s = 0.0 if was_well else min(max(slot.backoff_s * 2, _BACKOFF_FIRST_S), _BACKOFF_MAX_S)
        slot.respawn_at_s = now_s + slot.backoff_s
        process.status.count_restart(cause)
        message = "worker %(worker)d died (%(exit)s); the next one starts in %(next_s)g s"
        died = {"worker": slot.index, "exit": ended.how, "next_s": slot.backoff_s}
        self._log_death(message, died, reason=cause.name.lower(), traceback=told)

    def _reclaim(self, block: int) -> None:
        """Give back what the process of a block had, which is gone."""
        self._sweeper.reclaim(block)
        self._upstreams.reclaim(block)
        if self._ledger is not None:
            self._ledger.folder[block].recover()
        if self._budgets is not None:
            self._budgets.reclaim(block)

    def _fill(self, slot: Slot, now_s: float) -> None:
        """Have one worker in the slot that serves, and another one when it asks for it."""
        serving, other = slot.processes
        if not serving.pid and slot.has_successor:
            slot.change_over()
        elif not serving.pid:
            if now_s >= slot.respawn_at_s:
                self._start_worker(slot, serving)
        elif slot.has_successor and self._may_take_over(slot, now_s):
            serving.status.count_restart(RestartCause.MEMORY)
            serving.leave_by_s = now_s + self._settings.drain_timeout_s + _LEAVE_GRACE_S
            os.kill(serving.pid, signal.SIGTERM)
            slot.change_over()
        elif serving.status.wants_successor and self._may_replace(slot) and now_s >= slot.replace_at_s:
            slot.replace_at_s = now_s + _REPLACE_AGAIN_S
            size = serving.status.resident_bytes >> 20
            self._logger.warning(
                "worker %(worker)d is replaced: it has %(memory_mib)d MiB of memory (VELOX_MEMORY_*)",
                {"worker": slot.index, "memory_mib": size},
            )
            self._start_worker(slot, other)
        if slot.other.leave_by_s and now_s >= slot.other.leave_by_s:
            os.kill(slot.other.pid, signal.SIGKILL)

    def _may_replace(self, slot: Slot) -> bool:
        """True while the slot's other block is nobody's: no worker's, and of no other version's during an upgrade."""
        is_busy = self._predecessor is not None and slot.other.block in self._predecessor.busy
        return not (slot.other.pid or is_busy or self._upgrade.is_under_way)

    def _may_take_over(self, slot: Slot, now_s: float) -> bool:
        """True when the successor is no worse than the one before: it has a way to the upstream, or waited for one."""
        serving, other = slot.serving.status, slot.other.status
        is_warm = other.upstream_ready or not serving.upstream_ready
        return other.state is WorkerState.READY and (is_warm or now_s - slot.other.started_s >= _WARM_S)

    # -- children -----------------------------------------------------------------------------------

    def _enroll(self, settings: Settings) -> None:
        members = labels_of(upstreams_of(settings, self._sim_origin))
        self._upstreams.enroll(members, groups=prefix_groups(settings))

    def _used(self) -> frozenset[str]:
        """Return the names of the upstreams that had requests."""
        return frozenset(each.upstream for each in self._upstreams.totals() if each.has_attempts)

    def _start_worker(self, slot: Slot, process: WorkerProcess) -> None:
        process.status.state = WorkerState.STARTING
        process.started_s = time.monotonic()
        process.aborted = False
        context = WorkerContext(
            slot=slot.index,
            block=process.block,
            settings=self._reload.settings,
            sockets=self._listeners[slot.index],
            others_sockets=self._listeners.of_others(slot.index),
            channel=self._channels[slot.index][1],
            notify=self._wake_write,
            segment=self._segment,
            quotas=self._quotas,
            upstreams=self._upstreams,
            series=self._series,
            objects=self._objects,
            answers=self._answers,
            cache=self._cache,
            joins=self._joins,
            leases=None if self._leases is None else self._leases.pipes,
            records=None if self._ledger is None else self._ledger.folder[process.block],
            spans=None if self._exporter is None else self._exporter.rings[process.block],
            budgets=self._budgets,
            keys=self._keys,
            configuration=self._reload.snapshot,
            certificates=self._certificates,
            sim_origin=self._sim_origin,
        )
        work = partial(children.worker, context)
        process.pid = self._children.fork(f"worker {slot.index}", work, partial(self._worker_ended, slot, process))
        if process.pid:
            process.status.pid = process.pid
        else:
            process.status.vacate()
            slot.respawn_at_s = process.started_s + _FORK_AGAIN_S

    def _start_admin(self) -> None:
        self._admin_child = self._admin_process()
        if self._admin_child is not None:
            self._children.keep(self._admin_child, time.monotonic())

    def _start_single(self) -> None:
        """Start those of which there may be one. In this order they are ended: what others still write is read last."""
        for child in (self._leases, self._ledger):
            if child is not None:
                self._children.keep(child, time.monotonic())

    def _admin_process(self) -> AdminProcess | None:
        if self._admin is None:
            return None
        (sock,) = self._admin[0]
        serve = partial(
            children.admin,
            self._settings,
            self._segment,
            sock,
            [pair[0] for pair in self._channels],
            quotas=self._quotas,
            upstreams=self._upstreams,
            series=self._series,
            budgets=self._budgets,
            cache=self._cache,
            records=None if self._ledger is None else self._ledger.folder.all,
            reloads=self._reload.answers,
            upgrades=self._upgrade.answers,
            notify=self._wake_write,
            certificate=self._admin_certificate,
        )
        return AdminProcess(self._segment, serve, self._logger)

    def _start_key_reader(self, read: Callable[[], int]) -> int:
        return self._children.fork("the key loader", partial(children.reader, read, self._listeners))

    def _start_budget_reader(self, read: Callable[[], int]) -> int:
        work = partial(children.reader, read, self._listeners)
        return self._children.fork("the budget loader", work, self._budget_reader_ended)

    # -- other versions -----------------------------------------------------------------------------

    @property
    def _is_in_charge(self) -> bool:
        """True while this version is the gateway: since the one before has gone, and until the next one takes over."""
        return not self._upgrade.is_done and (self._predecessor is None or self._predecessor.has_gone)

    @property
    def _is_leaving(self) -> bool:
        """True once no worker is to be started any more."""
        return self._gateway.draining or self._upgrade.is_done

    def _share_stops(self) -> None:
        """A signal to the first process stops the version that serves, and those before it."""
        if self._anchor is None:
            return
        if not self._anchor.is_first:
            self._n_stops = max(self._n_stops, self._anchor.n_stops)
        elif self._upgrade.is_done:
            self._anchor.n_stops = self._n_stops

    def _other_ended(self, ended: Ended) -> None:
        """See whether the version that serves has ended, of which this process is the parent."""
        if self._anchor is not None and self._anchor.is_first and ended.pid == self._anchor.pid:
            self._logger.error(
                "the serving version has ended (%(exit)s): its parent process ends, too", {"exit": ended.how}
            )
            code = os.waitstatus_to_exitcode(ended.status)
            self._successor_code = code if code >= 0 else 1
            self._n_stops = max(self._n_stops, 1)

    def _look_back(self, predecessor: Predecessor, now_s: float) -> None:
        """Follow the version before: it goes, or gives this one up."""
        had_gone, was_alone, was_gone = predecessor.has_gone, predecessor.is_alone, predecessor.is_gone
        if not predecessor.look(now_s, self._reclaim):
            if not self._n_stops:
                self._logger.error("upgrade failed: the running version has given this one up; it ends")
            self._n_stops = max(self._n_stops, 1)
            return
        if predecessor.has_gone and not had_gone and not self._n_stops:
            self._start_admin()
        if predecessor.is_alone and not was_alone and predecessor.has_gone:
            self._start_single()
            if self._backfill is not None and self._counts_on:
                self._backfill.read_again()
        if predecessor.is_gone and not was_gone:
            self._logger.info("upgrade complete: the version before has ended")
            if self._backfill is not None and self._counts_on:
                self._backfill.read_again()

    def _look_for_upgrade(self, now_s: float) -> None:
        if self._gateway.draining and not self._upgrade.is_done:
            self._upgrade.refuse("the gateway is shutting down")
        elif self._upgrade.look(now_s):
            self._n_stops = max(self._n_stops, 1)
        if not self._upgrade.is_done:
            return
        if self._admin_child is not None and now_s >= self._admin_ends_s:
            self._children.retire(self._admin_child)
            self._admin_child = None
        single: set[Child | None] = {self._leases, self._ledger}
        if not self._is_alone_told and single.isdisjoint(self._children.retired):
            self._is_alone_told = True
            self._upgrade.tell_alone()

    def _state(self) -> State:
        """Return what the next version takes over. Raises UpgradeError."""
        if not self._announced:
            raise UpgradeError("this gateway is not ready itself yet")
        if self._predecessor is not None and not self._predecessor.is_gone:
            n = len(self._predecessor.busy)
            raise UpgradeError(
                f"{n} worker{'s' * (n != 1)} of the version before still end what they have begun "
                "(VELOX_UPGRADE_DRAIN_TIMEOUT bounds that): try again when they have"
            )
        if any(slot.other.pid for slot in self._slots):
            raise UpgradeError("a worker is just being replaced: try again in a moment")
        if self._anchor is None and not (self._notifier.is_heard and os.getpid() != 1):
            self._anchor = Anchor()
            adopt_orphans()
        admin = {} if self._admin is None else self._admin.by_address()
        return State(
            version=VERSION,
            workers=self._settings.workers,
            blocks=self._segment.blocks,
            busy=tuple(process.block for process in self._running()),
            listeners={**self._listeners.by_address(), **admin},
            memories=self._memories.all,
            locks={} if self._ledger is None else self._ledger.folder.locks,
            anchor=-1 if self._anchor is None else self._anchor.descriptor,
        )

    def _hand_over(self, taken: Taken) -> None:
        """Be the version before: end what was begun, while the next one serves."""
        now_s = time.monotonic()
        if self._anchor is not None:
            self._anchor.pid = taken.pid
        else:
            self._notifier.tell(MAINPID=taken.pid)
            self._mark.let_go()
        self._reload.stop()
        self._gateway.is_handed_over = True
        self._drain_until_s = now_s + self._settings.upgrade_drain_timeout_s + _LEAVE_GRACE_S
        self._listeners.let_go(taken.listeners)
        if self._admin is not None:
            self._admin.let_go(taken.listeners)
        self._admin_ends_s = now_s + _ADMIN_ENDS_S
        if self._leases is not None and taken.has_leases:
            self._gateway.redis = RedisLink.DOWN  # requests that still come here go on without it
            self._children.retire(self._leases)
        if self._ledger is not None and taken.locks:
            self._children.retire(self._ledger)

    def _upgrade_failed(self) -> None:
        """Clean up after a version that was not to be: its workers had the blocks that are nobody's now."""
        for slot in self._slots:
            if not slot.other.pid:
                self._reclaim(slot.other.block)

    # -- the end ------------------------------------------------------------------------------------

    def _begin_drain(self, now_s: float) -> None:
        """Tell the workers. A socket stays open until its worker, which holds it too, has emptied its queue."""
        self._gateway.draining = True
        self._notifier.tell(STOPPING=1)
        self._upgrade.give_up("the gateway is shutting down", now_s)
        if self._predecessor is not None:
            self._predecessor.stop()
        self._reload.stop()
        self._drain_until_s = now_s + self._settings.drain_timeout_s + _LEAVE_GRACE_S
        self._logger.info(
            "shutdown begins: draining, running requests have %(seconds)g s",
            {"seconds": self._settings.drain_timeout_s},
        )
        # First: what connects to a socket that its worker has let go of would get no answer.
        self._listeners.close()
        for process in self._running():
            os.kill(process.pid, signal.SIGTERM)

    def _watch_drain(self, now_s: float) -> None:
        if now_s >= self._drain_until_s or (self._gateway.draining and self._n_stops > 1):
            for process in self._running():
                os.kill(process.pid, signal.SIGKILL)

    def _running(self) -> list[WorkerProcess]:
        """Return the workers that live, also those that leave."""
        return [process for slot in self._slots for process in slot.processes if process.pid]

    @property
    def _is_stopped(self) -> bool:
        """True since a signal that ends the gateway; the drain begins in the same turn."""
        return self._n_stops > 0

    def _is_over(self) -> bool:
        is_last = self._predecessor is None or self._predecessor.is_gone or not self._predecessor.has_gone
        return self._is_leaving and not self._running() and (self._n_stops > 1 or (is_last and self._has_told))

    @property
    def _has_told(self) -> bool:
        """True unless the next version waits for the ledger or the lease manager to end, or somebody for an answer."""
        return not self._upgrade.is_done or (self._is_alone_told and self._admin_child is None)

    def _leave(self) -> None:
        self._children.stop(_LEAVE_LAST_S)
        self._upgrade.close()
        if self._sim is not None:
            self._sim.close()
        if self._admin is not None:
            self._admin.close()
        if self._upgrade.is_done and not self._n_stops:
            self._logger.info("upgrade: velox %(version)s has finished its running requests", {"version": VERSION})
        else:
            self._logger.info("shutdown complete: drained")

    def _announce(self) -> None:
        upstream = ", ".join(origin for _, origin in labels_of(upstreams_of(self._settings, self._sim_origin)))
        admin = "off" if self._admin is None else self._admin.url
        took_ms = (time.monotonic_ns() - self._gateway.started_ns) / 1e6
        self._logger.info(
            "velox %(version)s ready in %(took_ms).0f ms: listening on %(listen)s, admin on %(admin)s, "
            "%(workers)d workers, upstream %(upstreams)s",
            {
                "version": VERSION,
                "took_ms": took_ms,
                "listen": self._listeners.url,
                "admin": admin,
                "workers": self._settings.workers,
                "upstreams": upstream,
            },
        )
        models = {route.name: route.match.models for route in self._settings.routes}
        for entry in self._settings.found_upstreams:
            names = ", ".join(pattern.replace("*", "...") for pattern in models[entry.name])
            self._logger.info(
                "found %(variable)s: models %(models)s go to %(origin)s",
                {"variable": entry.where, "models": names, "origin": entry.origins[0]},
            )
        self._notifier.tell(READY=1, MAINPID=os.getpid())
        self._starter.tell(self._listeners.url)
        for line in advice(self._settings, sim=self._sim_origin is not None):
            self._logger.warning("%s", line)
        if self._settings.auth == "none":
            self._logger.warning("VELOX_AUTH=none: clients need no key")


def _spares(workers: int, predecessor: Predecessor | None) -> int:
    """Return how many blocks each slot has beside its first: after another version, so that each has a free one."""
    if predecessor is None:
        return SPARES
    state = predecessor.state
    if state.workers == workers:
        return state.blocks // workers - 1
    spares = SPARES
    while any(predecessor.busy.issuperset(range(slot, workers * (1 + spares), workers)) for slot in range(workers)):
        spares += 1
    return spares


def _in_order(blocks: Sequence[int], predecessor: Predecessor | None) -> Sequence[int]:
    return blocks if predecessor is None else predecessor.free_first(blocks)


def _no_lock(_folder: str) -> int:
    return -1
