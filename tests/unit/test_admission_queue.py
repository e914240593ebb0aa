"""The admission queue: first in first out, bounded, late ones out, gone ones gone."""

from __future__ import annotations

import tracemalloc
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velox.policy.admission import AdmissionQueue

TIMEOUT_NS = 100


def queue_of(*items: int, depth: int = 100, batch: int = 64) -> AdmissionQueue[int]:
    queue: AdmissionQueue[int] = AdmissionQueue(depth, batch, TIMEOUT_NS)
    for item in items:
        assert queue.offer(item, item)
    return queue


@pytest.mark.parametrize(("waiting", "accepted"), [(2, True), (3, False)])
def test_queue_full_refuses(waiting: int, accepted: bool) -> None:
    """The depth is exact: the last place is given, the one after it is not."""
    queue = queue_of(*range(waiting), depth=3)

    assert queue.offer(99, 0) is accepted
    assert len(queue) == 3


@pytest.mark.parametrize(("room", "taken"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2]), (-1, [])])
def test_queue_take_is_limited_by_room_and_batch(room: int, taken: list[int]) -> None:
    """One turn takes the oldest, no more than there is room for, and no more than a batch."""
    queue = queue_of(1, 2, 3, batch=2)

    assert [item for item, _ in queue.take(room, 3)] == taken


def test_queue_take_tells_how_long_each_waited() -> None:
    """Time in the queue is part of what Velox adds, so it is measured for each."""
    assert queue_of(1, 5).take(10, 20) == [(1, 19), (5, 15)]


@pytest.mark.parametrize(("now_ns", "late"), [(100, []), (101, [1]), (102, [1, 2]), (500, [1, 2, 50])])
def test_queue_late_items_leave_at_their_deadline(now_ns: int, late: list[int]) -> None:
    """An item leaves at its time-out, not before; the ones behind it stay."""
    queue = queue_of(1, 2, 50)

    assert queue.late(now_ns) == late
    assert len(queue) == 3 - len(late)


def test_queue_next_deadline_is_that_of_the_oldest() -> None:
    """A timer set to the next deadline finds an item late, and none once all are gone."""
    queue = queue_of(7, 9)

    assert queue.next_deadline_ns == 107
    assert queue.late(107) == [7]
    assert queue.next_deadline_ns == 109
    assert queue.take(1, 108) == [(9, 99)]
    assert queue.next_deadline_ns is None


def test_queue_discarded_item_is_not_taken_and_gives_its_place_back() -> None:
    """A client that left in the queue is never served, and does not keep others out."""
    queue = queue_of(1, 2, 3, depth=3)

    assert queue.discard(2)
    assert not queue.discard(2)
    assert queue.offer(4, 4)
    assert [item for item, _ in queue.take(10, 5)] == [1, 3, 4]


def test_queue_many_discards_behind_a_waiting_item_keep_memory_bounded() -> None:
    """Clients that come and go cost nothing that stays, even while the oldest item waits."""
    queue = queue_of(0, depth=10)
    tracemalloc.start()
    for item in range(1, 20_000):
        queue.offer(item, item)
        queue.discard(item)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(queue) == 1
    assert used < 16_384


operations = st.lists(st.tuples(st.sampled_from(["offer", "take", "late", "discard"]), st.integers(0, 40)), max_size=60)


@given(operations, st.integers(1, 8), st.integers(1, 4))
def test_queue_any_operations_behaves_like_a_plain_list(steps: list[tuple[str, int]], depth: int, batch: int) -> None:
    """Whatever is done to it, the queue holds what a simple list would hold, in the same order."""
    queue: AdmissionQueue[int] = AdmissionQueue(depth, batch, TIMEOUT_NS)
    model: deque[tuple[int, int]] = deque()
    now_ns = 0

    for item, (operation, argument) in enumerate(steps):
        now_ns += argument
        if operation == "offer":
            assert queue.offer(item, now_ns) is (len(model) < depth)
            if len(model) < depth:
                model.append((item, now_ns))
        elif operation == "take":
            expected = [model.popleft() for _ in range(min(argument, batch, len(model)))]
            assert queue.take(argument, now_ns) == [(i, now_ns - at) for i, at in expected]
        elif operation == "late":
            late = [i for i, at in model if now_ns - at >= TIMEOUT_NS]
            model = deque((i, at) for i, at in model if i not in late)
            assert queue.late(now_ns) == late
        else:
            present = argument in [i for i, _ in model]
            model = deque((i, at) for i, at in model if i != argument)
            assert queue.discard(argument) is present
        assert len(queue) == len(model)
