"""The shared bucket: tokens that wait, are used, given back, or left behind by a dead worker."""

from __future__ import annotations

import pytest
from atomicshm import AtomicU64
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.token_bucket import UNLIMITED, BucketRate
from velox.shm.bucket import SharedBucket, reclaim
from velox.shm.segment import Segment

NOW = 10**12
RATE = BucketRate(interval_ns=100, burst=2, max_wait_ns=300)


def test_bucket_is_one_for_all_workers() -> None:
    """What one worker took, another one can't take."""
    segment = Segment(workers=2, metric_cells=0)
    first, second = (SharedBucket(segment, RATE, worker) for worker in range(2))

    assert first.take(2, NOW).first_wait_ns == 0
    assert second.take(1, NOW).first_wait_ns == 100
    assert (first.remaining(NOW), second.full_in_ns(NOW)) == (0, 300)


def test_bucket_counts_only_tokens_that_wait() -> None:
    """A token that is used at once needs no note: nothing of it can be given back."""
    bucket = SharedBucket(Segment(1, 0), RATE, 0)

    assert bucket.take(10, NOW).granted == 5
    assert bucket.waiting == 3

    bucket.used_wait()
    assert bucket.waiting == 2


def test_bucket_refund_lets_another_request_have_the_token() -> None:
    """A client that leaves while it waits for its token costs nobody anything."""
    bucket = SharedBucket(Segment(1, 0), RATE, 0)
    bucket.take(10, NOW)
    assert bucket.take(1, NOW).granted == 0

    bucket.refund(2)

    assert bucket.waiting == 1
    assert bucket.take(10, NOW).granted == 2


def test_bucket_refund_into_a_full_bucket_gives_no_more_than_burst() -> None:
    """A token given back late, when the bucket has filled up again, adds nothing."""
    bucket = SharedBucket(Segment(1, 0), RATE, 0)
    bucket.take(10, NOW)
    later = NOW + 10**9

    bucket.refund(3)

    assert bucket.remaining(later) == RATE.burst


def test_dead_worker_tokens_come_back_once() -> None:
    """What a killed worker had reserved is free again; what the others reserved stays theirs."""
    segment = Segment(workers=2, metric_cells=0)
    dead, alive = (SharedBucket(segment, RATE, worker) for worker in range(2))
    dead.take(4, NOW)
    alive.take(1, NOW)

    assert reclaim(segment, RATE, block=0) == 2
    assert reclaim(segment, RATE, block=0) == 0

    assert (dead.waiting, alive.waiting) == (0, 1)
    assert alive.take(10, NOW).granted == 2


def test_bucket_without_limit_keeps_no_state() -> None:
    """RPM 0: nothing is written to the shared line, nothing ever waits."""
    segment = Segment(1, 0)
    bucket = SharedBucket(segment, UNLIMITED, 0)

    assert bucket.take(64, NOW).granted == 64
    assert (segment.bucket_tat().load(), bucket.waiting) == (0, 0)
    assert reclaim(segment, UNLIMITED, 0) == 0


def test_bucket_used_twice_is_an_error() -> None:
    """A token can't be used or given back that nobody waits for: that is a bug, and says so."""
    bucket = SharedBucket(Segment(1, 0), RATE, 0)

    with pytest.raises(ValueError, match="format"):
        bucket.used_wait()


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the worker runs after it."""


class DyingCell:
    """The real TAT, whose user is killed right before or right after it moves."""

    def __init__(self, cell: AtomicU64, *, moved: bool) -> None:
        self.cell = cell
        self.moved = moved

    def load(self) -> int:
        return self.cell.load()

    def cas(self, expected: int, desired: int) -> int:
        if self.moved:
            self.cell.cas(expected, desired)
        raise Killed

    def fetch_sub(self, value: int) -> int:
        if self.moved:
            self.cell.fetch_sub(value)
        raise Killed


class DyingSegment(Segment):
    """A worker's view of a segment in which it dies at the TAT."""

    def __init__(self, real: Segment, *, moved: bool) -> None:
        self.real = real
        self.moved = moved

    def bucket_tat(self) -> AtomicU64:
        return DyingCell(self.real.bucket_tat(), moved=self.moved)  # type: ignore[return-value]

    def status(self, worker: int) -> memoryview[int]:
        return self.real.status(worker)


@pytest.mark.parametrize(("moved", "left"), [(False, 5), (True, 0)])
def test_worker_killed_in_take_frees_no_token_that_it_may_have_used(moved: bool, left: int) -> None:
    """Killed before the TAT moves, nothing was taken; after it, the tokens are as good as used."""
    segment = Segment(2, 0)
    with pytest.raises(Killed):
        SharedBucket(DyingSegment(segment, moved=moved), RATE, 0).take(10, NOW)

    assert reclaim(segment, RATE, 0) == 0
    assert SharedBucket(segment, RATE, 1).take(10, NOW).granted == left


@pytest.mark.parametrize(("moved", "left"), [(False, 2), (True, 3)])
def test_worker_killed_in_refund_gives_no_token_back_twice(moved: bool, left: int) -> None:
    """Killed while it gives back one of three waiting tokens, a worker returns at most those three."""
    segment = Segment(2, 0)
    SharedBucket(segment, RATE, 0).take(10, NOW)
    with pytest.raises(Killed):
        SharedBucket(DyingSegment(segment, moved=moved), RATE, 0).refund()

    assert reclaim(segment, RATE, 0) == 2
    assert SharedBucket(segment, RATE, 1).take(10, NOW).granted == left


steps = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 10), st.sets(st.integers(0, 40))), max_size=25)


def play(rate: BucketRate, script: list[tuple[int, int, set[int]]]) -> list[int]:
    """Take batches, and give back those of the waiting tokens that the script names; return all uses."""
    bucket = SharedBucket(Segment(1, 0), rate, 0)
    now_ns = NOW
    used: list[int] = []
    waiting: list[int] = []
    for pause_ns, n, leavers in script:
        now_ns += pause_ns
        due = [at for at in waiting if at <= now_ns]
        waiting = [at for at in waiting if at > now_ns]
        for at in due:
            bucket.used_wait()
            used.append(at)
        left = {i for i in leavers if i < len(waiting)}
        if left:
            bucket.refund(len(left))
        waiting = [at for i, at in enumerate(waiting) if i not in left]
        taken = bucket.take(n, now_ns)
        for i in range(taken.granted):
            (waiting if taken.wait_ns(i) else used).append(now_ns + taken.wait_ns(i))
        assert bucket.waiting == len(waiting)
    return sorted(used + waiting)


@given(st.builds(BucketRate, st.integers(1, 50), st.integers(1, 8), st.integers(0, 400)), steps)
def test_bucket_with_refunds_never_exceeds_burst_plus_rate_from_the_start(
    rate: BucketRate, script: list[tuple[int, int, set[int]]]
) -> None:
    """Clients that leave never let more through than burst + rate x time."""
    uses = play(rate, script)

    for count, use in enumerate(uses, start=1):
        assert count <= rate.burst + (use - uses[0]) / rate.interval_ns


@given(st.integers(1, 50), st.integers(0, 9), st.integers(1, 5), steps)
def test_bucket_with_refunds_and_room_in_burst_keeps_the_bound_in_every_window(
    interval_ns: int, waits: int, spare: int, script: list[tuple[int, int, set[int]]]
) -> None:
    """From burst > max wait / interval on, refunds do not even move uses closer together."""
    rate = BucketRate(interval_ns, burst=waits + spare, max_wait_ns=waits * interval_ns)
    uses = play(rate, script)

    for first in range(len(uses)):
        for last in range(first, len(uses)):
            assert last - first + 1 <= rate.burst + (uses[last] - uses[first]) / interval_ns
