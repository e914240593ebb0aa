"""The quota table in real processes: exact over workers, and whole when they are killed at any instant."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import NoReturn

import pytest

from velox.policy.limits.token_bucket import BucketRate
from velox.shm.quota_table import QuotaMemory, QuotaSweeper, TableSize
from velox.shm.quotas import QuotaTable, SharedQuota, SharedSlots
from velox.shm.segment import Segment

# Nothing but this test runs in the children, and they have one thread.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

WORKERS = 3
KEYS = 300
LIMIT = 3
# The first key is under load all the time, so its bucket never fills up again: that takes seconds without any load.
HOT = 0
# 1,000 a second. It is emptied first and not full again for ten minutes, however little a busy machine asks of it.
HOT_RATE = BucketRate(interval_ns=1_000_000, burst=600_000, max_wait_ns=20_000_000)
RATE = BucketRate(interval_ns=4_000_000, burst=5, max_wait_ns=20_000_000)  # 250 a second
# Cells of a worker's slab, as the tests use it.
ALIVE, FIRST_USED = 0, 8


def fork(child: Callable[[], None]) -> int:
    """Run `child` in a new process that never returns into the test runner."""
    pid = os.fork()
    if pid:
        return pid
    try:
        child()
        os._exit(0)
    finally:
        os._exit(1)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_quotas_hammered_by_processes_give_exactly_their_permits() -> None:
    """With the clock standing still, all workers together get each key's burst, and what may wait, to the last one."""
    rate = BucketRate(interval_ns=1000, burst=300, max_wait_ns=60 * 1000)
    memory, slabs = QuotaMemory(4096, WORKERS), Segment(WORKERS, FIRST_USED + KEYS)

    def hammer(worker: int) -> None:
        table, slab, chance = QuotaTable(memory, worker), slabs.metrics(worker), random.Random(worker)
        quotas = [table.quota(table.tag(b"%d" % key), rate) for key in range(KEYS)]
        left = list(range(KEYS))
        while left:
            key = chance.choice(left)
            n = chance.randint(1, 4)
            if quotas[key].take(n, 10**12) >= 0:
                slab[FIRST_USED + key] += n
            elif n == 1:
                left.remove(key)

    pids = [fork(lambda worker=worker: hammer(worker)) for worker in range(WORKERS)]  # type: ignore[misc]
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]

    assert statuses == [0] * WORKERS
    used = [sum(slabs.metrics(worker)[FIRST_USED + key] for worker in range(WORKERS)) for key in range(KEYS)]
    assert used == [360] * KEYS
    assert memory.statistics()[:4] == (4096, KEYS, KEYS, 0)
    # Every nanosecond that was waited for is somebody's, and comes back.
    sweeper, table = QuotaSweeper(memory), QuotaTable(memory, 0)
    returned_ns = sum(sweeper.reclaim(worker) for worker in range(WORKERS))
    owed_ns = sum(table.quota(table.tag(b"%d" % key), rate).full_in_ns(10**12) for key in range(KEYS))
    assert owed_ns + returned_ns == KEYS * 360 * 1000


def quota_of(table: QuotaTable, key: int) -> SharedQuota:
    return table.quota(table.tag(b"quota", b"%d" % key), HOT_RATE if key == HOT else RATE)


class Client:
    """What a worker under as much load as it can take does with one key."""

    def __init__(self, table: QuotaTable, slab: memoryview[int], key: int) -> None:
        self.quota: SharedQuota = quota_of(table, key)
        self.slots: SharedSlots = table.slots(table.tag(b"slots", b"%d" % key), LIMIT)
        self.slab = slab
        self.used = FIRST_USED + key
        self.held = FIRST_USED + KEYS + key
        self.waiting: list[int] = []
        self.n_held = 0

    def go_on(self, chance: random.Random, now_ns: int) -> None:
        while self.waiting and self.waiting[0] <= now_ns:
            self.waiting.pop(0)
            self.quota.used_wait(1)
            self.slab[self.used] += 1
        if self.waiting and chance.random() < 0.1:
            self.waiting.pop(chance.randrange(len(self.waiting)))
            self.quota.give_back(1, waiting=True)
        answer = self.quota.take(1, now_ns)
        if answer > 0:
            self.waiting.append(now_ns + answer)
        elif answer == 0:
            self.slab[self.used] += 1
        if self.n_held and chance.random() < 0.5:
            # Said before it is so: what the slabs say is never more than what is held.
            self.say_held(-1)
            self.slots.release()
        elif self.slots.take():
            self.say_held(1)

    def say_held(self, change: int) -> None:
        """With the number of changes, so that a reader sees that there was none."""
        self.n_held += change
        self.slab[self.held] = (self.slab[self.held] >> 8) + 1 << 8 | self.n_held


def push(memory: QuotaMemory, slabs: Segment, worker: int) -> NoReturn:
    """Be a worker, whose clients sometimes leave while they wait."""
    table, slab, chance = QuotaTable(memory, worker), slabs.metrics(worker), random.Random()
    clients = [Client(table, slab, key) for key in range(KEYS)]
    while True:
        # One key for a while, then another: rows fall out of use and are freed.
        some = chance.sample(clients, 20)
        for _ in range(50):
            now_ns = time.monotonic_ns()
            slab[ALIVE] = now_ns
            chance.choice(some).go_on(chance, now_ns)
            clients[HOT].go_on(chance, now_ns)


def held_now(slabs: Segment) -> list[int]:
    """Return how many slots each key held at one moment; 0 where they changed while this was read."""
    first = FIRST_USED + KEYS
    once, again = ([slabs.metrics(worker)[first : first + KEYS].tolist() for worker in range(WORKERS)] for _ in "12")
    return [
        sum(cell & 255 for cell in cells) if cells == same else 0
        for cells, same in zip(zip(*once, strict=True), zip(*again, strict=True), strict=True)
    ]


@pytest.mark.parametrize(
    "rows", [TableSize.fixed(4096), TableSize(200, 200, 4096, 200)], ids=["roomy", "too small at first"]
)
@pytest.mark.more
def test_quotas_with_workers_killed_at_random_instants_stay_exact(rows: TableSize) -> None:
    """A killed worker blocks nobody, lets nobody exceed a limit, and takes no permit and no slot with it for good."""
    kills = 40
    memory, slabs = QuotaMemory(rows, WORKERS + 1), Segment(WORKERS, FIRST_USED + 2 * KEYS)
    sweeper, chance = QuotaSweeper(memory), random.Random()
    hot = quota_of(QuotaTable(memory, WORKERS), HOT)

    def start(worker: int) -> int:
        return fork(lambda: push(memory, slabs, worker))

    started_ns = time.monotonic_ns()
    assert hot.take(HOT_RATE.burst, started_ns) == 0
    pids = [start(worker) for worker in range(WORKERS)]
    most_held = returned_ns = 0
    try:
        for _ in range(kills):
            until_s = time.monotonic() + chance.uniform(0.01, 0.1)
            while time.monotonic() < until_s:
                sweeper.sweep(time.monotonic_ns())
                most_held = max(most_held, *held_now(slabs))
            victim = chance.randrange(WORKERS)
            kill(pids[victim])
            returned_ns += sweeper.reclaim(victim)
            slab = slabs.metrics(victim)
            for key in range(KEYS):
                slab[FIRST_USED + KEYS + key] = 0
            pids[victim] = start(victim)
        killed_ns = time.monotonic_ns()
        while any(slabs.metrics(worker)[ALIVE] < killed_ns for worker in range(WORKERS)):
            assert time.monotonic_ns() < killed_ns + 30 * 10**9, "a worker is blocked"
            time.sleep(0.01)
    finally:
        for pid in pids:
            kill(pid)
    ended_ns = time.monotonic_ns()
    used = [sum(slabs.metrics(worker)[FIRST_USED + key] for worker in range(WORKERS)) for key in range(KEYS)]
    returned_ns += sum(sweeper.reclaim(worker) for worker in range(WORKERS))
    assert returned_ns > 0

    # Never above; and nothing is missing but what the killed had in their hands: one permit each.
    assert max(used[HOT + 1 :]) <= RATE.burst + (ended_ns - started_ns) / RATE.interval_ns
    assert used[HOT] <= (ended_ns - started_ns) / HOT_RATE.interval_ns
    out = (hot.full_in_ns(ended_ns) + ended_ns - started_ns) // HOT_RATE.interval_ns - HOT_RATE.burst
    assert used[HOT] <= out <= used[HOT] + kills + WORKERS

    assert 0 < most_held <= LIMIT
    assert not any(any(memory.slots(row)) for row in range(memory.rows))
    assert not any(any(memory.waiting(row)) for row in range(memory.rows))
    tags = [tag for tag in memory.tags().tolist() if tag]
    assert len(tags) == len(set(tags))
    # A table that is too small frees rows, or has grown before one was idle long enough.
    found = memory.statistics()
    assert found.freed > 0 or found.rows > rows.named + rows.open or rows.named > 200
