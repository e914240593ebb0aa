"""What each process of the gateway says about itself in shared memory: state, heartbeat, readiness.

Knows: which cell holds what, and who writes it. Does not know: when a state changes or what follows from it.
Each cell has one writer at a time and a meaning of its own: no reader needs two of them to agree.
"""

from __future__ import annotations

import enum
from typing import Final, Generic, Protocol, TypeVar

from velox.shm.segment import Segment

__all__ = ["GatewayStatus", "RedisLink", "RestartCause", "WorkerState", "WorkerStatus", "serving"]


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
    MEMORY = 3  # it was over VELOX_MEMORY_HARD; not killed, but followed by another one while it ended its work


class RedisLink(enum.IntEnum):
    """Whether Redis can be asked for permits."""

    NONE = 0  # VELOX_REDIS_URL is not set
    UP = 1
    DOWN = 2


_BY_USE: Final = (WorkerState.READY, WorkerState.STARTING, WorkerState.DRAINING, WorkerState.STOPPED)

T = TypeVar("T", bound=int)


class _HasCells(Protocol):
    @property
    def cells(self) -> memoryview[int]: ...


class _Cell(Generic[T]):
    """An attribute that is one cell. kind: what a reader gets: int, bool or an enum."""

    def __init__(self, index: int, kind: type[T]) -> None:
        self._index: Final = index
        self._kind: Final = kind

    def __get__(self, status: _HasCells, _owner: type) -> T:
        return self._kind(status.cells[self._index])

    def __set__(self, status: _HasCells, value: T) -> None:
        status.cells[self._index] = value


class WorkerStatus:
    """The status of one block: of one process at a time. It outlives the process."""

    __slots__ = ("cells",)

    # The first cache line is the worker's. The supervisor writes it while the slot has no worker.
    state = _Cell(0, WorkerState)
    # Monotonic time of the last heartbeat; 0: none yet.
    heartbeat_ns = _Cell(1, int)
    # True while the worker can reach an upstream: a warm-up was answered.
    upstream_ready = _Cell(2, bool)
    # Resident memory, updated four times a second.
    resident_bytes = _Cell(3, int)
    # True while the worker refuses new requests, because it is short of memory.
    refuses = _Cell(4, bool)
    # True when the worker can't go on for long and asks to be replaced.
    wants_successor = _Cell(5, bool)
    # Number of the configuration that the worker works with; 0: none yet.
    configuration = _Cell(6, int)
    # True when the worker accepts other keys than the supervisor, and asks for all of them. The supervisor clears it.
    wants_keys = _Cell(7, bool)

    # The second line is the supervisor's. pid 0: the slot has no worker.
    pid = _Cell(8, int)
    _RESTARTS: Final = 9  # one cell a RestartCause

    def __init__(self, segment: Segment, block: int) -> None:
        self.cells: Final = segment.status(block)

    def __repr__(self) -> str:
        return f"<WorkerStatus pid={self.pid} {self.state.name} upstream_ready={self.upstream_ready}>"

    def restarts(self, cause: RestartCause) -> int:
        """Return how often the slot's worker was replaced for `cause`."""
        return self.cells[self._RESTARTS + cause]

    def count_restart(self, cause: RestartCause) -> None:
        """Count one replacement. For the supervisor."""
        self.cells[self._RESTARTS + cause] += 1

    def vacate(self) -> None:
        """Mark the slot as without a worker. For the supervisor, after it has reaped one."""
        self.state = WorkerState.STOPPED
        self.pid = self.heartbeat_ns = self.resident_bytes = self.configuration = 0
        self.upstream_ready = self.refuses = self.wants_successor = self.wants_keys = False


def serving(segment: Segment, worker: int) -> WorkerStatus:
    """Return the status of the process that serves in a worker slot, or will; of its first block when none does."""
    blocks = [WorkerStatus(segment, block) for block in segment.blocks_of(worker)]
    return min(blocks, key=lambda status: (_BY_USE.index(status.state), not status.upstream_ready))


class GatewayStatus:
    """What holds for the whole gateway. Written by the supervisor unless noted, read by all."""

    __slots__ = ("cells",)

    _KEY_FILE, _TLS, _REDIS, _RELOAD = 5, 8, 10, 16

    supervisor_pid = _Cell(0, int)
    # When the supervisor started, monotonic.
    started_ns = _Cell(1, int)
    # True once the gateway takes no new work.
    draining = _Cell(2, bool)
    # How many keys a client may present; 0: none is required, unless there are managed ones.
    n_keys = _Cell(3, int)
    # True while the file of keys can't be used, and the keys before it stay active.
    key_file_is_bad = _Cell(4, bool)
    # When the gateway's certificate expires, in seconds since 1970; 0: there is none.
    tls_not_after_s = _Cell(7, int)
    # Written by the lease manager, as are the next three: whether Redis can be asked,
    redis = _Cell(_REDIS, RedisLink)
    # how many gateways share the limits, by Redis' last answer; 0: none yet,
    replicas = _Cell(11, int)
    # and when Redis last answered, monotonic; 0: never.
    redis_answered_ns = _Cell(13, int)
    # Process id of the lease manager; 0: there is none.
    lease_manager_pid = _Cell(12, int)
    # Number of the configuration that holds: 1 at the start, one more for each that changed something.
    configuration = _Cell(14, int)
    # True while what was last read can't be used, and the configuration before it holds.
    configuration_is_bad = _Cell(15, bool)
    # How many reloads the admin listener was asked for. Written by the admin process, as are the next two.
    reloads_asked = _Cell(18, int)
    # Which of these was the last that takes a configuration also where it lost much. Written by the admin process.
    reloads_forced = _Cell(19, int)
    # Monotonic time of the admin process' last heartbeat; 0: none yet. The supervisor sets it back.
    admin_heartbeat_ns = _Cell(20, int)
    # How often the admin process was replaced.
    admin_restarts = _Cell(21, int)
    # Monotonic time of the lease manager's last heartbeat; 0: none yet. The supervisor sets it back.
    lease_manager_heartbeat_ns = _Cell(22, int)
    # Process id of the ledger's process; 0: there is none.
    ledger_pid = _Cell(23, int)
    # Monotonic time of its last heartbeat, which it writes; 0: none yet. The supervisor sets it back.
    ledger_heartbeat_ns = _Cell(24, int)
    # How often it was replaced.
    ledger_restarts = _Cell(25, int)
    # True once the next version is the gateway: workers accept no more, and end what they have begun.
    is_handed_over = _Cell(26, bool)
    # Of the exporter of traces: monotonic time of its last sign of life.
    exporter_heartbeat_ns = _Cell(30, int)
    # How many upgrades the admin listener was asked for. Written by the admin process.
    upgrades_asked = _Cell(27, int)
    # True while the ledger's process can't store records. It writes this.
    ledger_is_failing = _Cell(28, bool)

    def __init__(self, segment: Segment) -> None:
        self.cells: Final = segment.gateway()

    def __repr__(self) -> str:
        return f"<GatewayStatus supervisor={self.supervisor_pid} draining={self.draining}>"

    @property
    def redis_is_up(self) -> bool:
        """True while Redis can be asked: the only question on the path of a request."""
        return self.cells[self._REDIS] == RedisLink.UP

    # Each of the following has two cells: how often what changed could not be used, and how often it was taken.

    def key_file_changes(self, *, taken: bool) -> int:
        """Return how often the file of keys changed since the start, and was taken; or could not be used."""
        return self.cells[self._KEY_FILE + taken]

    def count_key_file(self, *, taken: bool) -> None:
        """Count one change of the file of keys."""
        self.cells[self._KEY_FILE + taken] += 1

    def tls_reloads(self, *, taken: bool) -> int:
        """Return how often the certificate's files changed since the start, and were taken; or could not be used."""
        return self.cells[self._TLS + taken]

    def count_tls_reload(self, *, taken: bool) -> None:
        """Count one change of the certificate's files."""
        self.cells[self._TLS + taken] += 1

    def reloads(self, *, taken: bool) -> int:
        """Return how often the configuration was read again since the start, and was good; or could not be used."""
        return self.cells[self._RELOAD + taken]

    def count_reload(self, *, taken: bool) -> None:
        """Count that the configuration was read again."""
        self.cells[self._RELOAD + taken] += 1
