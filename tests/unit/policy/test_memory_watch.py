"""A worker that has too much memory refuses, and is replaced, at the right time."""

from __future__ import annotations

import io
from pathlib import Path

from velox.observe.oplog import operations_logger
from velox.policy.resources import MemoryState, MemoryWatch
from velox.runtime.capacity import MemoryGuard, ResidentMemory
from velox.settings.machine import container_memory, hard_default, soft_default
from velox.shm.segment import Segment
from velox.shm.status import WorkerStatus

MIB = 2**20


def test_watch_is_fine_below_short_at_and_full_at_its_limits() -> None:
    """n - 1, n, n + 1 of both."""
    watch = MemoryWatch(100, 200)

    found = [watch.look(n, is_idle=False) for n in (99, 100, 101, 199, 200, 201)]
    assert found == [MemoryState.FINE, *[MemoryState.SHORT] * 3, *[MemoryState.FULL] * 2]


def test_watch_without_limits_is_always_fine() -> None:
    """off and off."""
    assert MemoryWatch(None, None).look(2**60, is_idle=True) is MemoryState.FINE


def test_watch_takes_memory_for_lost_when_nothing_runs_and_it_does_not_come_back() -> None:
    """Otherwise a worker over its soft limit would refuse for ever."""
    watch = MemoryWatch(100, None)

    assert watch.look(150, is_idle=False) is MemoryState.SHORT
    found = [watch.look(150, is_idle=True) for _ in range(8)]
    assert found == [*[MemoryState.SHORT] * 7, MemoryState.FULL]
    assert watch.look(150, is_idle=False) is MemoryState.SHORT
    assert [watch.look(150, is_idle=True) for _ in range(7)] == [MemoryState.SHORT] * 7
    assert watch.look(99, is_idle=True) is MemoryState.FINE, "it came back: counted anew"
    assert watch.look(150, is_idle=True) is MemoryState.SHORT


class Memory:
    """A process's memory, as a test wants it."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self.n_kept = 0
        self.n_trims = 0
        self.n_garbage = 0
        self.n_collections = 0

    def read(self) -> int:
        return self.n_bytes

    def trim(self) -> None:
        self.n_trims += 1
        self.n_bytes -= self.n_kept

    def collect(self) -> float:
        self.n_collections += 1
        self.n_bytes -= self.n_garbage
        self.n_garbage = 0
        return 0.001


def test_guard_refuses_and_asks_and_says_so_once() -> None:
    """Refusing begins and ends with the memory; asking for a successor is not taken back."""
    memory, status, told = Memory(), WorkerStatus(Segment(1, 0), 0), list[object]()
    log = io.StringIO()
    guard = MemoryGuard(
        MemoryWatch(100 * MIB, 200 * MIB),
        memory,
        status,
        operations_logger(log),
        refuse=told.append,
        wake=lambda: told.append("wake"),
    )

    for n_mib in (50, 120, 120, 90, 120, 90):
        memory.n_bytes = n_mib * MIB
        guard.look(is_idle=False)
    assert told == [True, False, True, False]
    assert (status.resident_bytes, status.refuses, status.wants_successor) == (90 * MIB, False, False)
    assert log.getvalue().count("new requests are refused") == 1

    memory.n_bytes = 250 * MIB
    guard.look(is_idle=False)
    guard.look(is_idle=False)
    memory.n_bytes = 50 * MIB
    guard.look(is_idle=False)
    assert told[4:] == [True, "wake", False]
    assert status.wants_successor


def test_guard_gives_the_allocators_memory_back_once_a_second_while_it_is_short() -> None:
    """Five looks a second, and trimming takes time."""
    memory = Memory()
    guard = MemoryGuard(
        MemoryWatch(1, None),
        memory,
        WorkerStatus(Segment(1, 0), 0),
        operations_logger(io.StringIO()),
        refuse=lambda _: None,
        wake=lambda: None,
    )
    guard.look(is_idle=False)
    assert memory.n_trims == 0, "it is fine"

    memory.n_bytes = 2
    for _ in range(10):
        guard.look(is_idle=False)
    assert memory.n_trims == 2


def test_guard_refuses_nobody_for_what_only_the_allocator_keeps() -> None:
    """First it is given back, then judged."""
    memory, told = Memory(), list[object]()
    guard = MemoryGuard(
        MemoryWatch(100, 200),
        memory,
        WorkerStatus(Segment(1, 0), 0),
        operations_logger(io.StringIO()),
        refuse=told.append,
        wake=lambda: told.append("wake"),
    )
    memory.n_bytes, memory.n_kept = 250, 200

    for _ in range(10):
        guard.look(is_idle=True)
    assert told == []
    assert memory.n_trims == 1


def test_guard_refuses_nobody_for_what_is_garbage() -> None:
    """It is collected before new requests are refused, and not at each look while they are."""
    memory, told = Memory(), list[object]()
    guard = MemoryGuard(
        MemoryWatch(100, 200),
        memory,
        WorkerStatus(Segment(1, 0), 0),
        operations_logger(io.StringIO()),
        refuse=told.append,
        wake=lambda: told.append("wake"),
    )
    memory.n_bytes, memory.n_garbage = 250, 200

    guard.look(is_idle=False)
    assert (told, memory.n_collections) == ([], 1)

    memory.n_bytes = 150
    for _ in range(39):
        guard.look(is_idle=False)
    assert (told, memory.n_collections) == ([True], 2)


def test_process_tells_what_it_has_and_gives_back_what_it_does_not_need() -> None:
    """Against the real allocator: 64 MiB in pieces below the size that is mapped by itself."""
    memory = ResidentMemory()
    pieces = [bytes(100_000) for _ in range(640)]
    before = memory.read()
    del pieces[:-1]
    memory.trim()
    assert memory.read() < before - 30 * MIB
    memory.close()


def test_defaults_are_parts_of_what_the_container_grants(tmp_path: Path) -> None:
    """cgroup v2 says max for none, v1 a number near 2^63; the first that is there counts."""
    v2, v1 = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    assert container_memory((v2, v1)) == 0
    v1.write_text("9223372036854771712\n")
    assert container_memory((v2, v1)) == 0
    v1.write_text(f"{512 * MIB}\n")
    assert container_memory((v2, v1)) == 512 * MIB
    v2.write_text("max\n")
    assert container_memory((v2,)) == 0
    v2.write_text(f"{1024 * MIB}\n")
    assert container_memory((v2, v1)) == 1024 * MIB

    own, service = tmp_path / "own", tmp_path / "all.slice" / "velox.service"
    own.write_text("4:memory:/all.slice/velox.service\n0::/all.slice/velox.service\n")
    service.mkdir(parents=True)
    (service / v2.name).write_text("max\n")
    assert container_memory((v2, v1), own) == 1024 * MIB
    (service.parent / v2.name).write_text(f"{256 * MIB}\n")
    assert container_memory((v2, v1), own) == 256 * MIB, "as MemoryMax= of systemd says"
    (service / v1.name).write_text(f"{128 * MIB}\n")
    assert container_memory((tmp_path / "absent", v1), own) == 128 * MIB

    assert (soft_default(1024 * MIB, 2), hard_default(1024 * MIB, 2)) == (str(384 * MIB), str(460 * MIB))
    assert (soft_default(0, 2), hard_default(200 * MIB, 2)) == ("off", "off")
