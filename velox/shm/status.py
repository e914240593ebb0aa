"""What each process of the gateway says about itself in shared memory: state, heartbeat, readiness.

Knows: which cell holds what, and who writes it. Does not know: when a state changes or what follows from it.
Each cell has one writer at a time and a meaning of its own: no reader needs two of them to agree.
"""

from __future__ import annotations

import enum
from typing import Final

from velox.shm.segment import Segment

__all__ = ["GatewayStatus", "RedisLink", "RestartCause", "StatusCell", "WorkerState", "WorkerStatus", "serving"]


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


_BY_USE: Final = (WorkerState.READY, WorkerState.STARTING, WorkerState.DRAINING, WorkerState.STOPPED)


class StatusCell(enum.IntEnum):
    """The cells of one worker's status block. The first line is the worker's, the second the supervisor's."""

    STATE = 0
    HEARTBEAT_NS = 1
    UPSTREAM_READY = 2
    RESIDENT_BYTES = 3
    REFUSES = 4
    WANTS_SUCCESSOR = 5
    CONFIGURATION = 6
    PID = 8
    RESTARTS = 9  # one cell a RestartCause


class WorkerStatus:
    """The status of one block: of one process at a time. It outlives the process."""

    __slots__ = ("_cells",)

    def __init__(self, segment: Segment, block: int) -> None:
        self._cells = segment.status(block)

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
    def resident_bytes(self) -> int:
        """The worker's resident memory. Written by the worker, four times a second."""
        return self._cells[StatusCell.RESIDENT_BYTES]

    @resident_bytes.setter
    def resident_bytes(self, n_bytes: int) -> None:
        self._cells[StatusCell.RESIDENT_BYTES] = n_bytes

    @property
    def refuses(self) -> bool:
        """True while the worker refuses new requests, because it is short of memory. Written by the worker."""
        return bool(self._cells[StatusCell.REFUSES])

    @refuses.setter
    def refuses(self, refuses: bool) -> None:
        self._cells[StatusCell.REFUSES] = refuses

    @property
    def wants_successor(self) -> bool:
        """True when the worker can't go on for long and asks to be replaced. Written by the worker."""
        return bool(self._cells[StatusCell.WANTS_SUCCESSOR])

    @wants_successor.setter
    def wants_successor(self, wants: bool) -> None:
        self._cells[StatusCell.WANTS_SUCCESSOR] = wants

    @property
    def configuration(self) -> int:
        """Number of the configuration that the worker works with; 0: none yet. Written by the worker."""
        return self._cells[StatusCell.CONFIGURATION]

    @configuration.setter
    def configuration(self, number: int) -> None:
        self._cells[StatusCell.CONFIGURATION] = number

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
        self.resident_bytes = 0
        self.refuses = False
        self.wants_successor = False
        self.configuration = 0


def serving(segment: Segment, worker: int) -> WorkerStatus:
    """Return the status of the process that serves in a worker slot, or will; of its first block when none does."""
    blocks = [WorkerStatus(segment, block) for block in segment.blocks_of(worker)]
    return min(blocks, key=lambda status: (_BY_USE.index(status.state), not status.upstream_ready))


class _GatewayCell(enum.IntEnum):
    SUPERVISOR_PID = 0
    STARTED_NS = 1
    DRAINING = 2
    N_KEYS = 3
    KEY_FILE_IS_BAD = 4
    KEY_FILE_REFUSED = 5
    KEY_FILE_TAKEN = 6
    TLS_NOT_AFTER_S = 7
    TLS_RELOAD_REFUSED = 8
    TLS_RELOAD_TAKEN = 9
    REDIS = 10
    REPLICAS = 11
    KEEPER_PID = 12
    REDIS_TOLD_NS = 13
    CONFIGURATION = 14
    CONFIGURATION_IS_BAD = 15
    CONFIGURATION_REFUSED = 16
    CONFIGURATION_TAKEN = 17
    RELOADS_ASKED = 18  # by the admin process


class RedisLink(enum.IntEnum):
    """Whether Redis can be asked for permits."""

    NONE = 0  # VELOX_REDIS_URL is not set
    UP = 1
    DOWN = 2


class GatewayStatus:
    """What holds for the whole gateway. Written by the supervisor, read by all.

    Of Redis the keeper of leases writes; the admin process, for how many reloads it was asked.
    """

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

    @property
    def n_keys(self) -> int:
        """How many keys a client may present; 0: none is asked for."""
        return self._cells[_GatewayCell.N_KEYS]

    @n_keys.setter
    def n_keys(self, n: int) -> None:
        self._cells[_GatewayCell.N_KEYS] = n

    @property
    def key_file_is_bad(self) -> bool:
        """True while the file of keys can't be used, and the keys before it stay in force."""
        return bool(self._cells[_GatewayCell.KEY_FILE_IS_BAD])

    @key_file_is_bad.setter
    def key_file_is_bad(self, is_bad: bool) -> None:
        self._cells[_GatewayCell.KEY_FILE_IS_BAD] = is_bad

    def key_file_changes(self, *, taken: bool) -> int:
        """Return how often the file of keys changed since the start, and was taken; or could not be used."""
        return self._cells[_GatewayCell.KEY_FILE_REFUSED + taken]

    def count_key_file(self, *, taken: bool) -> None:
        """Count one change of the file of keys."""
        self._cells[_GatewayCell.KEY_FILE_REFUSED + taken] += 1

    @property
    def tls_not_after_s(self) -> int:
        """When the certificate that clients are shown ends, in seconds since 1970; 0: there is none."""
        return self._cells[_GatewayCell.TLS_NOT_AFTER_S]

    @tls_not_after_s.setter
    def tls_not_after_s(self, end_s: int) -> None:
        self._cells[_GatewayCell.TLS_NOT_AFTER_S] = end_s

    def tls_reloads(self, *, taken: bool) -> int:
        """Return how often the certificate's files changed since the start, and were taken; or could not be used."""
        return self._cells[_GatewayCell.TLS_RELOAD_REFUSED + taken]

    def count_tls_reload(self, *, taken: bool) -> None:
        """Count one change of the certificate's files."""
        self._cells[_GatewayCell.TLS_RELOAD_REFUSED + taken] += 1

    @property
    def redis(self) -> RedisLink:
        """Whether Redis can be asked. Written by the keeper."""
        return RedisLink(self._cells[_GatewayCell.REDIS])

    @redis.setter
    def redis(self, link: RedisLink) -> None:
        self._cells[_GatewayCell.REDIS] = link

    @property
    def redis_is_up(self) -> bool:
        """True while Redis can be asked: the one question that is asked on the way of a request."""
        return self._cells[_GatewayCell.REDIS] == RedisLink.UP

    @property
    def keeper_pid(self) -> int:
        """Process id of the keeper of leases; 0: there is none."""
        return self._cells[_GatewayCell.KEEPER_PID]

    @keeper_pid.setter
    def keeper_pid(self, pid: int) -> None:
        self._cells[_GatewayCell.KEEPER_PID] = pid

    @property
    def redis_told_ns(self) -> int:
        """When Redis last answered, in monotonic nanoseconds; 0: it never has. Written by the keeper."""
        return self._cells[_GatewayCell.REDIS_TOLD_NS]

    @redis_told_ns.setter
    def redis_told_ns(self, now_ns: int) -> None:
        self._cells[_GatewayCell.REDIS_TOLD_NS] = now_ns

    @property
    def replicas(self) -> int:
        """How many gateways share the limits, as Redis last told; 0: it has not. Written by the keeper."""
        return self._cells[_GatewayCell.REPLICAS]

    @replicas.setter
    def replicas(self, n: int) -> None:
        self._cells[_GatewayCell.REPLICAS] = n

    @property
    def configuration(self) -> int:
        """Number of the configuration that holds: 1 at the start, one more for each that changed something."""
        return self._cells[_GatewayCell.CONFIGURATION]

    @configuration.setter
    def configuration(self, number: int) -> None:
        self._cells[_GatewayCell.CONFIGURATION] = number

    @property
    def configuration_is_bad(self) -> bool:
        """True while what was last read can't be used, and the configuration before it holds."""
        return bool(self._cells[_GatewayCell.CONFIGURATION_IS_BAD])

    @configuration_is_bad.setter
    def configuration_is_bad(self, is_bad: bool) -> None:
        self._cells[_GatewayCell.CONFIGURATION_IS_BAD] = is_bad

    def reloads(self, *, taken: bool) -> int:
        """Return how often the configuration was read again since the start, and was good; or could not be used."""
        return self._cells[_GatewayCell.CONFIGURATION_REFUSED + taken]

    def count_reload(self, *, taken: bool) -> None:
        """Count that the configuration was read again."""
        self._cells[_GatewayCell.CONFIGURATION_REFUSED + taken] += 1

    @property
    def reloads_asked(self) -> int:
        """How many reloads the admin listener was asked for. Written by the admin process."""
        return self._cells[_GatewayCell.RELOADS_ASKED]

    @reloads_asked.setter
    def reloads_asked(self, n: int) -> None:
        self._cells[_GatewayCell.RELOADS_ASKED] = n
