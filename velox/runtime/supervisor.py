"""The supervisor: binds and holds the sockets, owns the shared memory, starts processes and replaces those that die.

Knows: processes and signals. Does not know: HTTP; it parses no client's bytes, has one thread and no event loop, so
that nothing a client does can reach it and a fork is always safe.

    signals      SIGTERM, SIGINT: drain, then leave; a second one: leave now. SIGCHLD: somebody died.
    deaths       a worker is replaced at once, one that keeps dying after 0.1 s, doubling to 5 s (R-PROC-2)
    heartbeats   a worker whose loop stands still for 10 s is aborted, and replaced (R-PROC-3)
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Final

from velox import __version__
from velox.admin.health import STUCK_AFTER_S
from velox.observe.metrics import WorkerMetrics
from velox.observe.oplog import operations_logger
from velox.observe.series import CELLS
from velox.policy.token_bucket import BucketRate
from velox.runtime import children
from velox.runtime.listeners import BindError, Listeners, bind_one
from velox.runtime.process import spawn
from velox.settings import Settings
from velox.shm.bucket import reclaim
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, RestartCause, WorkerState, WorkerStatus

__all__ = ["serve"]

_TICK_S: Final = 0.25
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 5.0
# A worker that lived this long was well: its death is no crash loop.
_HEALTHY_AFTER_S: Final = 5.0
# What an aborted worker gets to say where it stood.
_ABORT_GRACE_S: Final = 1.0
# After the drain window, what a worker gets to tell its clients and leave.
_LEAVE_GRACE_S: Final = 1.0


def serve(settings: Settings, *, sim: bool) -> int:
    """Run the gateway until it is told to stop; return the exit code."""
    logger = operations_logger(sys.stderr)
    try:
        return Supervisor(settings, logger, with_simulator=sim).run()
    except BindError as exc:
        logger.error("%s", exc)
        return 1


class _Slot:
    """A place for a worker: it outlives the processes that fill it."""

    def __init__(self, index: int, segment: Segment) -> None:
        self.index: Final = index
        self.status: Final = WorkerStatus(segment, index)
        self.pid = 0
        self.started_s = 0.0
        self.backoff_s = 0.0
        self.respawn_at_s = 0.0
        self.aborted = False


class Supervisor:
    """The parent of all other processes of a gateway."""

    def __init__(self, settings: Settings, logger: logging.Logger, *, with_simulator: bool) -> None:
        self._settings: Final = settings
        self._logger: Final = logger
        self._rate: Final = BucketRate.from_rpm(
            settings.rate_limit_rpm, settings.rate_limit_burst, settings.rate_limit_max_wait_s
        )
        self._segment: Final = Segment(settings.workers, CELLS)
        self._gateway: Final = GatewayStatus(self._segment)
        self._listeners: Final = Listeners(settings.listen, settings.workers)
        self._admin_socket: Final = None if settings.admin_listen is None else bind_one(settings.admin_listen)
        # One pair per slot, made once: a successor finds the same end that the admin process speaks to.
        self._channels: Final = [
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(settings.workers)
        ]
        self._slots: Final = [_Slot(index, self._segment) for index in range(settings.workers)]
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._with_simulator: Final = with_simulator
        self._sim_origin: str | None = None
        self._sim_pid = 0
        self._admin_pid = 0
        self._admin_respawn_at_s = 0.0
        self._n_stops = 0
        self._drain_until_s = 0.0
        self._announced = False

    def run(self) -> int:
        """Start everything, watch it, and leave when told to and all are gone."""
        self._gateway.supervisor_pid = os.getpid()
        self._gateway.started_ns = time.monotonic_ns()
        self._take_signals()
        if self._with_simulator:
            self._sim_pid, self._sim_origin = children.start_simulator(self._listeners)
        # What is loaded now is never garbage; frozen, the children share its pages for as long as they live.
        gc.collect()
        gc.freeze()
        self._start_admin()
        for slot in self._slots:
            self._start_worker(slot)
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._is_over():
                if selector.select(_TICK_S):
                    self._clear_wake()
                self._turn(time.monotonic())
        self._leave()
        return 0

    # -- signals ----------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        """Signals only write to the pipe and count: all work is done in the loop."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, lambda _number, _frame: self._logger.warning("SIGHUP: reload is not built yet"))

    def _on_stop(self, _number: int, _frame: object) -> None:
        self._n_stops += 1

    def _clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    # -- one turn of the loop ---------------------------------------------------------------------

    def _turn(self, now_s: float) -> None:
        self._reap(now_s)
        if self._n_stops and not self._gateway.draining:
            self._begin_drain(now_s)
        if self._gateway.draining:
            self._watch_drain(now_s)
            return
        for slot in self._slots:
            if not slot.pid and now_s >= slot.respawn_at_s:
                self._start_worker(slot)
            elif slot.pid:
                self._check_heartbeat(slot, now_s)
        if not self._admin_pid and now_s >= self._admin_respawn_at_s:
            self._start_admin()
        if not self._announced and all(slot.status.state is WorkerState.READY for slot in self._slots):
            self._announced = True
            self._announce()

    def _reap(self, now_s: float) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._admin_pid:
                self._admin_pid = 0
                self._admin_respawn_at_s = now_s + _BACKOFF_FIRST_S
                if not self._gateway.draining and not self._n_stops:
                    self._logger.error("the admin process died (%s)", _how(status))
            elif pid == self._sim_pid:
                self._sim_pid = 0
                if not self._gateway.draining:
                    self._logger.error("the simulator died (%s)", _how(status))
            else:
                self._bury(pid, status, now_s)

    def _bury(self, pid: int, status: int, now_s: float) -> None:
        """Clean up after a worker, and say when the next one starts."""
        slot = next((slot for slot in self._slots if slot.pid == pid), None)
        if slot is None:
            return
        slot.pid = 0
        slot.status.vacate()
        reclaim(self._segment, self._rate, slot.index)
        WorkerMetrics(self._segment.metrics(slot.index)).reset_gauges()
        if self._gateway.draining:
            return
        was_well = now_s - slot.started_s >= _HEALTHY_AFTER_S
        slot.backoff_s = 0.0 if was_well else min(max(slot.backoff_s * 2, _BACKOFF_FIRST_S), _BACKOFF_MAX_S)
        slot.respawn_at_s = now_s + slot.backoff_s
        cause = RestartCause.EXIT if os.WIFEXITED(status) else RestartCause.SIGNAL
        slot.status.count_restart(RestartCause.STUCK if slot.aborted else cause)
        self._logger.error("worker %d died (%s); the next one starts in %g s", slot.index, _how(status), slot.backoff_s)

    def _check_heartbeat(self, slot: _Slot, now_s: float) -> None:
        heartbeat_s = slot.status.heartbeat_ns / 1e9 or slot.started_s
        stuck_s = now_s - heartbeat_s
        if stuck_s > STUCK_AFTER_S and not slot.aborted:
            slot.aborted = True
            self._logger.error("worker %d has not moved for %g s: aborted", slot.index, STUCK_AFTER_S)
            # SIGABRT: faulthandler prints where it stood. SIGCONT: a stopped worker takes no other signal.
            os.kill(slot.pid, signal.SIGABRT)
            os.kill(slot.pid, signal.SIGCONT)
        elif stuck_s > STUCK_AFTER_S + _ABORT_GRACE_S:
            os.kill(slot.pid, signal.SIGKILL)

    # -- children -----------------------------------------------------------------------------------

    def _start_worker(self, slot: _Slot) -> None:
        slot.status.state = WorkerState.STARTING
        slot.started_s = time.monotonic()
        slot.aborted = False
        slot.pid = self._fork(
            lambda: children.worker(
                slot.index,
                self._settings,
                self._segment,
                self._listeners,
                self._channels[slot.index][1],
                self._wake_write,
                sim_origin=self._sim_origin,
            )
        )
        slot.status.pid = slot.pid

    def _start_admin(self) -> None:
        sock = self._admin_socket
        if sock is None:
            return
        ends = [pair[0] for pair in self._channels]
        requires_upstream = self._settings.ready_requires_upstream
        self._admin_pid = self._fork(
            lambda: children.admin(self._segment, self._listeners, sock, ends, requires_upstream=requires_upstream)
        )

    def _fork(self, work: Callable[[], int]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        return spawn(work)

    # -- the end ------------------------------------------------------------------------------------

    def _begin_drain(self, now_s: float) -> None:
        """Tell the workers. The sockets stay open until each worker has emptied its queue of connections."""
        self._gateway.draining = True
        self._drain_until_s = now_s + self._settings.drain_timeout_s + _LEAVE_GRACE_S
        self._logger.info("draining: running requests have %g s", self._settings.drain_timeout_s)
        for slot in self._slots:
            if slot.pid:
                os.kill(slot.pid, signal.SIGTERM)

    def _watch_drain(self, now_s: float) -> None:
        running = [slot for slot in self._slots if slot.pid]
        if not any(slot.status.state in (WorkerState.STARTING, WorkerState.READY) for slot in running):
            self._listeners.close()
        if now_s >= self._drain_until_s or self._n_stops > 1:
            for slot in running:
                os.kill(slot.pid, signal.SIGKILL)

    def _is_over(self) -> bool:
        return self._gateway.draining and not any(slot.pid for slot in self._slots)

    def _leave(self) -> None:
        self._listeners.close()
        for pid in (self._admin_pid, self._sim_pid):
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                    os.waitpid(pid, 0)
        self._logger.info("drained; bye")

    def _announce(self) -> None:
        upstream = self._sim_origin or ", ".join(map(str, self._settings.upstream_origins))
        admin = "off" if self._settings.admin_listen is None else str(self._admin_address())
        took_ms = (time.monotonic_ns() - self._gateway.started_ns) / 1e6
        self._logger.info(
            "velox %s ready in %.0f ms: listening on %s, admin on %s, %d workers, upstream %s",
            *(__version__, took_ms, self._listeners.url, admin, self._settings.workers, upstream),
        )
        if self._settings.auth == "none":
            self._logger.warning("VELOX_AUTH=none: clients need no key")
        if self._settings.admin_listen is not None and not self._settings.admin_listen.is_loopback:
            self._logger.warning("the admin listener is open beyond this machine and asks for no key")

    def _admin_address(self) -> str:
        assert self._admin_socket is not None, "asked only when there is one"
        name = self._admin_socket.getsockname()
        return name if isinstance(name, str) else f"http://{name[0]}:{name[1]}"


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.WEXITSTATUS(status)}"
