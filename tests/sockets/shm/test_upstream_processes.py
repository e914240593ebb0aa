"""The table of upstreams in real processes: what each of them counts, what a dead one leaves, what comes later."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Self

import pytest

from velox.outcomes import AttemptOutcome
from velox.policy.balance.prefix import PrefixTable
from velox.policy.health.member import State
from velox.shm.segment import Segment
from velox.shm.upstream_table import ATTEMPTS, LEAVING_S, STATES, UpstreamCells, UpstreamTable

# Nothing but this test runs in the children, and they have one thread.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

ONE, TWO, LATER = ("one", "http://a"), ("two", "http://b"), ("later", "unix:/run/ü.sock")
Steps = Callable[[], Iterator[None]]


class Child:
    """A process that goes on to the next yield when it is told to, and never returns into the test runner."""

    def __init__(self, steps: Steps) -> None:
        self._ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid:
            theirs.close()
            return
        try:
            self._ours.close()
            for _ in steps():
                theirs.send(b"x")
                if not theirs.recv(1):
                    break
            os._exit(0)
        finally:
            os._exit(1)

    def __enter__(self) -> Self:
        self.wait()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        self._ours.close()

    def wait(self) -> None:
        """Return when it is at a yield."""
        assert self._ours.recv(1) == b"x", "the child failed"

    def tell(self) -> None:
        """Let it go on, and wait for nothing."""
        self._ours.send(b"x")

    def go_on(self) -> None:
        """Let it go on to its next yield."""
        self.tell()
        self.wait()

    def kill(self) -> None:
        """Kill it, wherever it is, and reap it."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def test_killed_worker_leaves_nothing_in_flight() -> None:
    """Two workers count; what the one that is killed had begun is taken back, and only that."""
    segment = Segment(2, 8, spares=1)
    table = UpstreamTable(segment.blocks)
    table.enroll([ONE, TWO])
    row = table.row(*TWO)

    def worker(block: int) -> Iterator[None]:
        cells = UpstreamCells(table, block)
        for _ in range(3 + block):
            cells.began(row)
        cells.ended(row)
        cells.count_attempt(row, AttemptOutcome.OK)
        cells.set_state(row, State.OUT)
        yield
        assert cells.inflight(row) == 3, "the dead one's are gone"
        yield

    with Child(lambda: worker(0)) as first, Child(lambda: worker(1)) as second:
        assert table.inflight(row) == 2 + 3
        first.kill()
        assert table.reclaim(0) == 2
        assert table.inflight(row) == 3
        second.go_on()
        second.kill()
        assert table.reclaim(1) == 3
    assert table.inflight(row) == 0
    cells = table.totals()[1].cells
    assert (cells[ATTEMPTS + AttemptOutcome.OK], cells[STATES + State.OUT]) == (2, 0)


def test_successor_counts_in_another_block_than_the_one_that_leaves() -> None:
    """Both are in flight while a worker is replaced; the next process in a block begins at zero."""
    segment = Segment(1, 8, spares=1)
    table = UpstreamTable(segment.blocks)
    table.enroll([ONE])

    def worker(block: int, n: int) -> Iterator[None]:
        cells = UpstreamCells(table, block)
        assert cells.inflight(0) == table.inflight(0)
        for _ in range(n):
            cells.began(0)
        yield

    leaving, successor = segment.blocks_of(0)
    with Child(lambda: worker(leaving, 2)) as old, Child(lambda: worker(successor, 3)):
        assert table.inflight(0) == 5
        old.kill()  # and its seat is filled before anybody has reclaimed it
        with Child(lambda: worker(leaving, 1)):
            assert table.inflight(0) == 4


def test_running_worker_sees_members_that_are_enrolled_later() -> None:
    """A reload needs no new processes: labels and tables of prompts are in the memory that all share."""
    table = UpstreamTable(2)
    table.enroll([ONE])

    def worker() -> Iterator[None]:
        cells = UpstreamCells(table, 0)
        with pytest.raises(KeyError):
            table.row(*LATER)
        yield
        row = table.row(*LATER)
        cells.began(row)
        cells.count_attempt(row, AttemptOutcome.RESET)
        PrefixTable(table.prefixes("chat")).sent(5, [1, 2, 3], 10.0)
        assert [(upstream, origin) for _, upstream, origin in table.labels()] == [ONE, TWO, LATER]
        yield

    with Child(worker) as child:
        table.enroll([ONE, TWO], groups=["code"])
        table.enroll([ONE, TWO, LATER], groups=["code", "chat"])
        child.go_on()
        found = next(each for each in table.totals() if each.upstream == "later")
        assert (found.origin, found.inflight, found.cells[ATTEMPTS + AttemptOutcome.RESET]) == (LATER[1], 1, 1)
        assert PrefixTable(table.prefixes("chat")).holders(3) == [5]
        assert PrefixTable(table.prefixes("code")).holders(3) == []


def test_row_of_a_running_request_is_not_given_away() -> None:
    """Another process has a request there: the supervisor sees it, however long ago the member was taken out."""
    now_s = 1000.0
    table = UpstreamTable(1, now_s=lambda: now_s)
    table.enroll([ONE, TWO])
    row = table.row(*TWO)

    def worker() -> Iterator[None]:
        cells = UpstreamCells(table, 0)
        cells.began(row)
        yield
        cells.ended(row)
        yield

    with Child(worker) as child:
        table.enroll([ONE])
        now_s += LEAVING_S
        table.enroll([ONE, LATER])
        assert table.row(*LATER) != row
        child.go_on()
        table.enroll([ONE, LATER, ("new", "http://c")])
        assert table.row("new", "http://c") == row


def test_counts_of_two_workers_are_exact() -> None:
    """No count is lost although both write to one row at a time."""
    table = UpstreamTable(2)
    table.enroll([ONE])

    def worker(block: int) -> Iterator[None]:
        cells = UpstreamCells(table, block)
        yield
        for _ in range(20_000):
            cells.began(0)
            cells.count_attempt(0, AttemptOutcome.OK)
            cells.ended(0)
        yield

    with ExitStack() as stack:
        workers = [stack.enter_context(Child(lambda block=block: worker(block))) for block in range(2)]  # type: ignore[misc]
        for child in workers:
            child.tell()
        for child in workers:
            child.wait()
        (found,) = table.totals()
    assert (found.inflight, found.cells[ATTEMPTS + AttemptOutcome.OK]) == (0, 40_000)


def test_worker_killed_at_any_instant_leaves_nothing_after_reclaim() -> None:
    """Between any two instructions: its own cells hold all that it had begun."""
    table = UpstreamTable(2)
    table.enroll([ONE, TWO])
    other = UpstreamCells(table, 1)
    other.began(0)

    def worker() -> Iterator[None]:
        cells, chance, open_rows = UpstreamCells(table, 0), random.Random(1), list[int]()
        yield
        while True:
            row = chance.randrange(2)
            cells.began(row)
            open_rows.append(row)
            if len(open_rows) > 20:
                cells.ended(open_rows.pop(0))

    left = []
    for _ in range(10):
        with Child(worker) as child:
            child.tell()
            until_s = time.monotonic() + 10
            while sum(map(table.inflight, range(2))) < 20 and time.monotonic() < until_s:
                time.sleep(0)
            child.kill()
            left.append(table.reclaim(0))
        assert [table.inflight(row) for row in range(2)] == [1, 0]
    assert min(left) >= 19
