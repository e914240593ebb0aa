"""What each process of the gateway says about itself in shared memory: state, heartbeat, readiness.

Knows: which cell holds what, and who writes it. Does not know: when a state changes or what follows from it.
Each cell has one writer at a time and a meaning of its own: no reader needs two of them to agree.
"""

from __future__ import annotations

import enum

from velox.shm.segment import Segment

__all__ = ["GatewayStatus", "RestartCause", "StatusCell", "WorkerState", "WorkerStatus"]


class WorkerState(enum.IntEnum):
    """Where a worker is in its life. A slot whose worker died is STOPPED until the next one starts."""

    STARTING = 0
    READY = 1
    DRAINING = 2
    STOPPED = 3


class RestartCause(enum.IntEnum):
    """Why the supervisor replaced a worker."""

    EXIT = 0  # it left by itself
    SIGNAL = 1  # something killed it
    STUCK = 2  # its heartbeat stopped, the supervisor killed it


class StatusCell(enum.IntEnum):
    """The cells of one worker's status block. The first line is the worker's, the second the supervisor's."""

    STATE = 0
    HEARTBEAT_NS = 1
    UPSTREAM_READY = 2
    WAITING = 3  # see velox.shm.bucket
    PID = 8
    RESTARTS = 9  # one cell a RestartCause


class WorkerStatus:
    """The status of one worker slot. It outlives the worker."""

    __slots__ = ("_cells",)

    def __init__(self, segment: Segment, worker: int) -> None:
        self._cells = segment.status(worker)

    def __repr__(self) -> str:
        return f"<WorkerStatus pid={self.pid} {self.state.name} upstream_ready={self.upstream_ready}>"

    @property
    def state(self) -> WorkerState:
        """Written by the worker, and by the supervisor while the slot has none."""
        return WorkerState(self._cells[StatusCell.STATE])

    @state.setter
    def state(self, state: WorkerState) -> None:
        self._cells[StatusCell.STATE] = state

    @property
    def heartbeat_ns(self) -> int:
        """Monotonic time of the worker's last sign of life; 0: none yet."""
        return self._cells[StatusCell.HEARTBEAT_NS]

    @heartbeat_ns.setter
    def heartbeat_ns(self, now_ns: int) -> None:
        self._cells[StatusCell.HEARTBEAT_NS] = now_ns

    @property
    def upstream_ready(self) -> bool:
        """True while the worker can reach an upstream: a warm-up was answered. Written by the worker."""
        return bool(self._cells[StatusCell.UPSTREAM_READY])

    @upstream_ready.setter
    def upstream_ready(self, ready: bool) -> None:
        self._cells[StatusCell.UPSTREAM_READY] = ready

    @property
    def pid(self) -> int:
        """Process id of the worker; 0: the slot has none. Written by the supervisor."""
        return self._cells[StatusCell.PID]

    @pid.setter
    def pid(self, pid: int) -> None:
        self._cells[StatusCell.PID] = pid

    def restarts(self, cause: RestartCause) -> int:
        """Return how often the slot's worker was replaced for `cause`."""
        return self._cells[StatusCell.RESTARTS + cause]

    def count_restart(self, cause: RestartCause) -> None:
        """Count one replacement. For the supervisor."""
        self._cells[StatusCell.RESTARTS + cause] += 1

    def vacate(self) -> None:
        """Say that the slot has no worker. For the supervisor, after it has reaped one."""
        self.state = WorkerState.STOPPED
        self.pid = 0
        self.heartbeat_ns = 0
        self.upstream_ready = False


class _GatewayCell(enum.IntEnum):
    SUPERVISOR_PID = 0
    STARTED_NS = 1
    DRAINING = 2


class GatewayStatus:
    """What holds for the whole gateway. Written by the supervisor, read by all."""

    __slots__ = ("_cells",)

    def __init__(self, segment: Segment) -> None:
        self._cells = segment.gateway()

    def __repr__(self) -> str:
        return f"<GatewayStatus supervisor={self.supervisor_pid} draining={self.draining}>"

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor."""
        return self._cells[_GatewayCell.SUPERVISOR_PID]

    @supervisor_pid.setter
    def supervisor_pid(self, pid: int) -> None:
        self._cells[_GatewayCell.SUPERVISOR_PID] = pid

    @property
    def started_ns(self) -> int:
        """When the supervisor started, in monotonic nanoseconds."""
        return self._cells[_GatewayCell.STARTED_NS]

    @started_ns.setter
    def started_ns(self, now_ns: int) -> None:
        self._cells[_GatewayCell.STARTED_NS] = now_ns

    @property
    def draining(self) -> bool:
        """True once the gateway takes no new work."""
        return bool(self._cells[_GatewayCell.DRAINING])

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._cells[_GatewayCell.DRAINING] = draining
