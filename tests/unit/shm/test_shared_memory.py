"""The shared segment's layout, and what processes say of themselves in it."""

from __future__ import annotations

import pytest

from velox.shm.segment import Segment
from velox.shm.status import GatewayStatus, RestartCause, WorkerState, WorkerStatus, serving


@pytest.mark.parametrize("metric_cells", [0, 1, 8, 2414])
def test_segment_blocks_do_not_overlap(metric_cells: int) -> None:
    """Every block has cells of its own: what is written into one is seen in no other."""
    workers = 3
    segment = Segment(workers, metric_cells, spares=1)
    assert segment.blocks == 2 * workers
    blocks = [segment.gateway()]
    blocks += [segment.status(block) for block in range(segment.blocks)]
    blocks += [segment.metrics(block) for block in range(segment.blocks)]

    for number, block in enumerate(blocks, start=1):
        for cell in range(len(block)):
            assert block[cell] == 0
            block[cell] = number

    for number, block in enumerate(blocks, start=1):
        assert set(block) <= {number}
    assert all(len(segment.metrics(worker)) >= metric_cells for worker in range(workers))


def test_segment_blocks_have_cache_lines_of_their_own() -> None:
    """What one process writes shares its line with nothing that another one writes."""
    segment = Segment(2, 8)

    assert (len(segment.gateway()) * 8) % 64 == 0
    assert (len(segment.status(0)) * 8) % 64 == 0
    assert (len(segment.metrics(0)) * 8) % 64 == 0


@pytest.mark.parametrize("worker", [-1, 2])
def test_segment_slot_out_of_range_is_refused(worker: int) -> None:
    """There are as many slots as workers: a wrong slot never reaches another worker's cells."""
    segment = Segment(2, 8)

    with pytest.raises(IndexError):
        segment.status(worker)
    with pytest.raises(IndexError):
        segment.metrics(worker)


def test_worker_status_is_read_as_it_was_written() -> None:
    """Each fact has a cell of its own, in each slot."""
    segment = Segment(2, 8)
    mine, other = WorkerStatus(segment, 0), WorkerStatus(segment, 1)

    mine.state = WorkerState.READY
    mine.heartbeat_ns = 123
    mine.upstream_ready = True
    mine.pid = 4711
    mine.count_restart(RestartCause.SIGNAL)
    mine.count_restart(RestartCause.SIGNAL)
    mine.count_restart(RestartCause.STUCK)

    seen = WorkerStatus(segment, 0)
    assert (seen.state, seen.heartbeat_ns, seen.upstream_ready, seen.pid) == (
        WorkerState.READY,
        123,
        True,
        4711,
    )
    assert [seen.restarts(cause) for cause in RestartCause] == [0, 2, 1, 0]
    assert (other.state, other.heartbeat_ns, other.upstream_ready, other.pid) == (
        WorkerState.STARTING,
        0,
        False,
        0,
    )


def test_worker_status_vacated_slot_is_not_ready_and_keeps_its_restarts() -> None:
    """A dead worker must not look alive; how often it died is not forgotten."""
    status = WorkerStatus(Segment(1, 8), 0)
    status.state, status.heartbeat_ns, status.upstream_ready, status.pid = WorkerState.READY, 5, True, 4711
    status.count_restart(RestartCause.EXIT)

    status.vacate()

    assert (status.state, status.heartbeat_ns, status.upstream_ready, status.pid) == (
        WorkerState.STOPPED,
        0,
        False,
        0,
    )
    assert status.restarts(RestartCause.EXIT) == 1


def test_slot_is_what_the_process_in_it_is_that_serves() -> None:
    """While a worker is replaced there are two: the one that leaves, or starts, does not speak for the slot."""
    segment = Segment(2, 8, spares=1)
    first, second = (WorkerStatus(segment, block) for block in segment.blocks_of(1))
    assert [*segment.blocks_of(1)] == [1, 3]
    second.vacate()

    def pids() -> int:
        return serving(segment, 1).pid

    first.state, first.pid, second.pid = WorkerState.READY, 10, 20
    assert pids() == 10
    second.state = WorkerState.STARTING
    assert pids() == 10
    first.upstream_ready, second.state = True, WorkerState.READY
    assert pids() == 10, "its successor has not reached the upstream yet"
    second.upstream_ready, first.state = True, WorkerState.DRAINING
    assert pids() == 20
    first.vacate()
    second.state = WorkerState.DRAINING
    assert pids() == 20, "nobody serves, and this is all there is"


def test_gateway_status_is_seen_through_every_view() -> None:
    """The supervisor says it once, all processes read it."""
    segment = Segment(1, 8)
    status = GatewayStatus(segment)

    status.supervisor_pid, status.started_ns, status.draining = 77, 10**15, True

    seen = GatewayStatus(segment)
    assert (seen.supervisor_pid, seen.started_ns, seen.draining) == (77, 10**15, True)
