"""The children, but for lease_process.py: worker, admin, simulator. What each does in its process before it runs.

Knows: what a child inherits and must let go of. Does not know: when one is started (supervisor.py).
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Sequence
from functools import partial
from socket import socket

from velox.admin import main as admin_main
from velox.admin import metrics_page
from velox.admin.health import Readiness, WorkerHealth, readiness
from velox.admin.pprof import ProfilePage
from velox.admin.reload import AnswerBoard, ReloadPage
from velox.admin.server import AdminApp
from velox.profiling.remote import collect
from velox.runtime.certificates import Certificates
from velox.runtime.config_board import ConfigBoard
from velox.runtime.key_watch import KeyWatch
from velox.runtime.lease_pipes import LeasePipes
from velox.runtime.listeners import Listeners, bind_one
from velox.runtime.process import pin_to_core, spawn, wake
from velox.runtime.worker import run_worker
from velox.settings import Settings
from velox.shm.quota_memory import QuotaMemory
from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, serving
from velox.shm.upstream_table import UpstreamTable
from velox.sim import main as simulator
from velox.sim.options import SimOptions
from velox.types import Address

__all__ = ["admin", "start_simulator", "worker"]


def worker(
    slot: int,
    settings: Settings,
    segment: Segment,
    listeners: Listeners,
    channel: socket,
    notify: int,
    *,
    block: int,
    quotas: QuotaMemory,
    upstreams: UpstreamTable,
    leases: LeasePipes | None,
    keys: KeyWatch,
    configuration: ConfigBoard,
    certificates: Certificates | None,
    sim_origin: str | None,
) -> int:
    """Serve clients on the slot's sockets until told to drain. block: of shared memory, this process's own."""
    # A worker that is aborted because it hangs says where.
    faulthandler.enable()
    if settings.pin_cpus:
        pin_to_core(slot)
    listeners.close_others(slot)
    return run_worker(
        *(slot, settings, segment, listeners[slot], channel, notify),
        block=block,
        quotas=quotas,
        upstreams=upstreams,
        leases=leases,
        keys=keys,
        configuration=configuration,
        certificates=certificates,
        sim_origin=sim_origin,
    )


def admin(
    settings: Settings,
    segment: Segment,
    listeners: Listeners,
    sock: socket,
    channels: Sequence[socket],
    *,
    quotas: QuotaMemory,
    upstreams: UpstreamTable,
    reloads: AnswerBoard,
    notify: int,
) -> int:
    """Serve the admin listener until SIGTERM. notify: a pipe that wakes the supervisor."""
    listeners.close_others(None)
    app = AdminApp(
        metrics=partial(metrics_page.render, segment, quotas=quotas, upstreams=upstreams),
        ready=partial(_readiness, segment, requires_upstream=settings.ready_requires_upstream),
        profiles=ProfilePage(partial(collect, channels), settings.profile_pause_s) if settings.profiling else None,
        reload=ReloadPage(segment, reloads, partial(wake, notify)),
        token=None if settings.admin_token is None else settings.admin_token.reveal(),
        host_names=settings.admin_hosts,
    )
    admin_main.run(sock, app)
    return 0


def start_simulator(listeners: Listeners) -> tuple[int, str]:
    """Start the built-in simulator on a free loopback port; return its pid and its origin."""
    sock = bind_one(Address(kind="tcp", host="127.0.0.1", port=0))
    port = sock.getsockname()[1]
    pid = spawn(partial(_simulate, listeners, sock, port))
    sock.close()
    return pid, f"http://127.0.0.1:{port}"


def _simulate(listeners: Listeners, sock: socket, port: int) -> int:
    listeners.close_others(None)
    simulator.run(SimOptions(port=port), lambda _line: None, sock=sock)
    return 0


def _readiness(segment: Segment, *, requires_upstream: bool) -> Readiness:
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
    )
