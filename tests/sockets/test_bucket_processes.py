"""The shared bucket in real processes: exact over workers, and whole when they are killed at any instant."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import NoReturn

import pytest

from velox.policy.token_bucket import BucketRate
from velox.shm.bucket import SharedBucket, reclaim
from velox.shm.segment import Segment

# Nothing but this test runs in the children, and they have one thread.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

WORKERS = 3
USED, ALIVE = 0, 1  # cells of a worker's slab, as the tests use it


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


def test_bucket_hammered_by_processes_grants_exactly_its_tokens() -> None:
    """With the clock standing still, all workers together get burst and waiting tokens, and not one more."""
    rate = BucketRate(interval_ns=1000, burst=100_000, max_wait_ns=20_000 * 1000)
    segment = Segment(WORKERS, metric_cells=8)

    def hammer(worker: int) -> None:
        bucket, slab, sizes = (
            SharedBucket(segment, rate, worker),
            segment.metrics(worker),
            random.Random(worker),
        )
        while granted := bucket.take(sizes.randint(1, 4), 10**12).granted:
            slab[USED] += granted

    pids = [fork(lambda worker=worker: hammer(worker)) for worker in range(WORKERS)]  # type: ignore[misc]
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]

    assert statuses == [0] * WORKERS
    assert sum(segment.metrics(worker)[USED] for worker in range(WORKERS)) == 120_000
    assert sum(SharedBucket(segment, rate, worker).waiting for worker in range(WORKERS)) == 20_000


def push(segment: Segment, rate: BucketRate, worker: int, batch: int) -> NoReturn:
    """Be a worker under as much load as it can take, whose clients sometimes leave while they wait."""
    bucket, slab, chance = SharedBucket(segment, rate, worker), segment.metrics(worker), random.Random()
    waiting: list[int] = []
    while True:
        now_ns = time.monotonic_ns()
        slab[ALIVE] = now_ns
        while waiting and waiting[0] <= now_ns:
            waiting.pop(0)
            bucket.used_wait()
            slab[USED] += 1
        if waiting and chance.random() < 0.1:
            waiting.pop(chance.randrange(len(waiting)))
            bucket.refund()
        taken = bucket.take(chance.randint(1, batch), now_ns)
        for i in range(taken.granted):
            if taken.wait_ns(i):
                waiting.append(now_ns + taken.wait_ns(i))
            else:
                slab[USED] += 1


def test_bucket_with_workers_killed_at_random_instants_stays_exact() -> None:
    """A killed worker blocks nobody, lets nobody exceed the limit, and takes no token with it for good."""
    batch, kills = 8, 40
    rate = BucketRate(interval_ns=125_000, burst=8000, max_wait_ns=20_000_000)  # 8,000 a second
    segment = Segment(WORKERS, metric_cells=8)
    buckets = [SharedBucket(segment, rate, worker) for worker in range(WORKERS)]
    chance = random.Random()

    def start(worker: int) -> int:
        return fork(lambda: push(segment, rate, worker, batch))

    # From here on the bucket never fills up again, so its state counts every token that is out.
    started_ns = time.monotonic_ns()
    assert buckets[0].take(rate.burst, started_ns).granted == rate.burst
    pids = [start(worker) for worker in range(WORKERS)]
    reclaimed = 0
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.01, 0.06))
            victim = chance.randrange(WORKERS)
            kill(pids[victim])
            reclaimed += reclaim(segment, rate, victim)
            pids[victim] = start(victim)
        killed_ns = time.monotonic_ns()
        while any(segment.metrics(worker)[ALIVE] < killed_ns for worker in range(WORKERS)):
            assert time.monotonic_ns() < killed_ns + 10 * 10**9, "a worker is blocked"
            time.sleep(0.01)
    finally:
        for pid in pids:
            kill(pid)
    ended_ns = time.monotonic_ns()

    used = sum(segment.metrics(worker)[USED] for worker in range(WORKERS))
    assert reclaimed > 0
    assert used <= (ended_ns - started_ns) / rate.interval_ns

    # Every token that is out was used, waits, or was in the hands of a worker that was killed.
    waiting = sum(bucket.waiting for bucket in buckets)
    out = (segment.bucket_tat().load() - started_ns) // rate.interval_ns - rate.burst
    in_hand = (kills + WORKERS) * batch
    assert used + waiting <= out <= used + waiting + in_hand
