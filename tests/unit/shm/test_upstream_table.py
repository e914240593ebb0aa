"""The table of upstreams: rows enrolled, looked up, counted in, given up and used again."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from velox.observe import series
from velox.outcomes import AttemptOutcome
from velox.policy.balance.candidates import Candidates, LeastInflight
from velox.policy.balance.prefix import CELLS as PREFIX_CELLS
from velox.policy.balance.prefix import PrefixTable
from velox.policy.health.member import State
from velox.shm import upstream_table as layout
from velox.shm.upstream_table import (
    LEAVING_S,
    MOST_GROUPS,
    MOST_ROWS,
    ROW_CELLS,
    RowTotals,
    TableFullError,
    UpstreamCells,
    UpstreamMemory,
    UpstreamTable,
)

ONE, TWO, OTHER = ("one", "http://a"), ("one", "http://b"), ("other", "http://a")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def counted(table: UpstreamTable, upstream: str, cell: int) -> int:
    """Return what was counted in one cell of all members of an upstream."""
    return sum(each.cells[cell] for each in table.totals() if each.upstream == upstream)


def resident_bytes(name: str) -> int:
    """Return the memory that this process has of its memfds of that name."""
    maps = Path("/proc/self/smaps").read_text()
    return sum(int(size) for size in re.findall(rf"memfd:{name} \(deleted\)\n(?:.*\n)*?Rss: +(\d+) kB", maps)) * 1024


# -- in flight --------------------------------------------------------------------------------------


def test_inflight_is_added_up_over_workers() -> None:
    """Each worker sees what all of them have in flight, and counts only in its own cell."""
    table = UpstreamTable(3)
    table.enroll([ONE, TWO])
    first, second = table.row(*ONE), table.row(*TWO)
    workers = [UpstreamCells(table, block) for block in range(3)]

    for worker in workers:
        worker.began(second)
    workers[0].began(second)
    workers[0].began(first)
    workers[1].ended(second)

    assert [(worker.inflight(first), worker.inflight(second)) for worker in workers] == [(1, 3)] * 3
    assert [table.inflight(row) for row in (first, second)] == [1, 3]
    assert [*table.memory.inflight(second)] == [2, 0, 1]


def test_inflight_of_rows_is_what_it_is_when_looked_at() -> None:
    """The sequence that a balancer gets is made once, and is never stale."""
    table = UpstreamTable(2)
    table.enroll([ONE, TWO, OTHER])
    mine, its = UpstreamCells(table, 0), UpstreamCells(table, 1)
    seen = mine.inflight_of([table.row(*label) for label in (OTHER, ONE)])
    assert [*seen] == [0, 0]

    its.began(table.row(*ONE))
    mine.began(table.row(*TWO))

    assert ([*seen], len(seen), seen[1], seen[-2], [*seen[1:]], sum(seen)) == ([0, 1], 2, 1, 0, [1], 1)
    with pytest.raises(IndexError):
        seen[2]
    balancer = LeastInflight()
    assert balancer.pick(Candidates([1.0, 1.0], seen), 0.0, 0.5) == 0
    for _ in range(2):
        its.began(table.row(*OTHER))
    assert balancer.pick(Candidates([1.0, 1.0], seen), 0.0, 0.5) == 1


def test_end_without_begin_is_an_error() -> None:
    """What is told twice is a bug, and says so: a count below zero would send everything there."""
    table = UpstreamTable(2)
    table.enroll([ONE])
    UpstreamCells(table, 1).began(0)

    with pytest.raises(ValueError, match="no request had begun in row 0"):
        UpstreamCells(table, 0).ended(0)

    assert table.inflight(0) == 1


def test_dead_workers_requests_are_taken_back_and_its_counts_stay() -> None:
    """Nothing is in flight for it any more, nobody has a state by it; what it counted did happen."""
    table = UpstreamTable(2)
    table.enroll([ONE, TWO])
    dead, alive = UpstreamCells(table, 0), UpstreamCells(table, 1)
    for worker in (dead, alive):
        worker.began(0)
        worker.began(1)
        worker.count_attempt(1, AttemptOutcome.RESET)
        worker.set_state(1, State.OUT)
        worker.set_keys(1, 1, 2)

    assert table.reclaim(0) == 2

    assert [table.inflight(row) for row in (0, 1)] == [1, 1]
    cells = table.totals()[1].cells
    assert cells[layout.ATTEMPTS + AttemptOutcome.RESET] == 2
    assert cells[layout.STATES + State.OUT] == 1
    assert (cells[layout.KEYS_OUT], cells[layout.KEYS_RESTING]) == (1, 2)
    assert table.reclaim(0) == 0


def test_new_worker_begins_with_nothing_in_flight() -> None:
    """Whatever its block held before: nobody will end those."""
    table = UpstreamTable(1)
    table.enroll([ONE])
    UpstreamCells(table, 0).began(0)

    assert UpstreamCells(table, 0).inflight(0) == 0


def test_reclaim_of_a_block_that_nobody_used_does_nothing() -> None:
    """A worker that died before it counted anything leaves nothing."""
    table = UpstreamTable(2)
    table.enroll([ONE])

    assert table.reclaim(1) == 0
    with pytest.raises(IndexError):
        table.reclaim(2)


# -- counters and gauges ----------------------------------------------------------------------------


def test_cells_of_a_row_do_not_overlap() -> None:
    """Each event has a cell of its own, in each row and block."""
    table = UpstreamTable(2)
    table.enroll([ONE, TWO])
    for block in range(2):
        cells = UpstreamCells(table, block)
        for row in range(2):
            for outcome in AttemptOutcome:
                cells.count_attempt(row, outcome)
            cells.count_ejection(row)
            for bound in (*layout.FIRST_BYTE_NS, 10**12):
                cells.observe_ttfb(row, bound)
            cells.set_keys(row, 1, 1)
            cells.count_call(row, (1, 1, 1, None, 1), 1)
            cells.count_call(row, (None, None, None, 1, None), None)

    sum_ns = sum(layout.FIRST_BYTE_NS) + 10**12
    for each in table.totals():
        outcomes = each.cells[: layout.EJECTIONS]
        assert outcomes == [2] * len(AttemptOutcome) + [0] * (layout.N_OUTCOMES - len(AttemptOutcome))
        assert each.cells[layout.EJECTIONS] == 2
        assert each.cells[layout.TTFB : layout.UNPRICED] == [2] * (len(layout.FIRST_BYTE_NS) + 1) + [2 * sum_ns]
        assert each.cells[layout.STATES : layout.KEYS_OUT] == [0] * layout.N_STATES
        assert each.cells[layout.UNPRICED : layout.STATES] == [2] * (2 + len(layout.TOKEN_KINDS))
        assert each.cells[layout.KEYS_OUT : layout.KEYS_RESTING + 1] == [2, 2]


def test_layout_has_room_for_what_is_counted() -> None:
    """The floor of shared memory does not know the lists of the floors above; here they meet."""
    assert len(AttemptOutcome) <= layout.N_OUTCOMES
    assert [*State] == [*range(layout.N_STATES)]
    assert series.TTFT.bounds_ns == layout.FIRST_BYTE_NS
    assert all(a < b for a, b in pairwise(layout.FIRST_BYTE_NS))
    assert layout.KEYS_RESTING < ROW_CELLS and ROW_CELLS % 8 == 0


@pytest.mark.parametrize(("ns", "bucket"), [(0, 0), (10**6, 0), (10**6 + 1, 1), (60 * 10**9 + 1, 21)])
def test_first_byte_bound_is_inclusive(ns: int, bucket: int) -> None:
    """As Prometheus defines `le`."""
    table = UpstreamTable(1)
    table.enroll([ONE])

    UpstreamCells(table, 0).observe_ttfb(0, ns)

    (found,) = table.totals()
    assert found.cells[layout.TTFB + bucket] == 1
    assert found.cells[layout.UNPRICED - 1] == ns


def test_state_is_one_at_a_time_and_can_be_forgotten() -> None:
    """A member is in one state by each worker, or in none when the worker has it no more."""
    table = UpstreamTable(2)
    table.enroll([ONE])
    workers = [UpstreamCells(table, block) for block in range(2)]

    def states() -> list[int]:
        return table.totals()[0].cells[layout.STATES : layout.KEYS_OUT]

    for state in State:
        workers[0].set_state(0, state)
        assert states() == [int(state == other) for other in State]
    workers[1].set_state(0, State.IN)
    workers[1].set_keys(0, 3, 4)
    assert states() == [1, 0, 1]
    workers[1].forget(0)
    assert states() == [0, 0, 1]
    assert table.totals()[0].cells[layout.KEYS_OUT :][:2] == [0, 0]


# -- who has which row ------------------------------------------------------------------------------


def test_member_keeps_its_row_over_reloads() -> None:
    """An upstream of which only the keys or the order change goes on counting."""
    table = UpstreamTable(1)
    table.enroll([ONE, TWO])
    row = table.row(*TWO)

    table.enroll([OTHER, TWO, ONE, TWO])

    assert table.row(*TWO) == row
    assert {(upstream, origin) for _, upstream, origin in table.labels()} == {ONE, TWO, OTHER}
    assert len({found for found, *_ in table.labels()}) == 3


def test_member_that_was_not_enrolled_is_no_row() -> None:
    """Nobody counts in a row that is not a member's."""
    table = UpstreamTable(1)
    table.enroll([ONE])

    with pytest.raises(KeyError):
        table.row("one", "http://b")
    with pytest.raises(KeyError):
        table.prefixes("chat")


def test_row_of_a_member_that_is_gone_is_free_after_a_while() -> None:
    """Not before all workers have taken over the new configuration; then somebody else may have it."""
    clock = Clock()
    table = UpstreamTable(1, now_s=clock)
    table.enroll([ONE, OTHER])
    row = table.row(*OTHER)
    UpstreamCells(table, 0).count_attempt(row, AttemptOutcome.OK)

    table.enroll([ONE])
    assert table.row(*OTHER) == row, "a worker that has not heard of it still finds it"
    clock.now_s += LEAVING_S - 1
    table.enroll([ONE, TWO])
    assert table.row(*TWO) != row
    assert table.sweep() == 0
    clock.now_s += 1
    assert table.sweep() == 1

    with pytest.raises(KeyError):
        table.row(*OTHER)
    table.enroll([ONE, TWO, ("third", "http://c")])
    assert table.row("third", "http://c") == row
    assert counted(table, "third", AttemptOutcome.OK) == 0, "a new owner begins at zero"


def test_row_is_not_free_while_requests_are_in_flight() -> None:
    """A stream may go on for an hour after its upstream was taken out of the file."""
    clock = Clock()
    table = UpstreamTable(2, now_s=clock)
    table.enroll([ONE, OTHER])
    row = table.row(*OTHER)
    cells = UpstreamCells(table, 1)
    cells.began(row)

    table.enroll([ONE])
    clock.now_s += 100 * LEAVING_S
    assert table.sweep() == 0
    table.enroll([ONE, TWO])
    assert table.row(*TWO) != row
    assert next(each.inflight for each in table.totals() if each.upstream == "other") == 1

    cells.ended(row)
    assert table.sweep() == 1


def test_row_is_not_free_while_a_worker_has_its_member() -> None:
    """A request that waits elsewhere may still be sent there: the worker says when it is done with it."""
    clock = Clock()
    table = UpstreamTable(2, now_s=clock)
    table.enroll([ONE, OTHER])
    workers = [UpstreamCells(table, block) for block in range(2)]
    for worker in workers:
        worker.set_state(table.row(*OTHER), State.IN)

    table.enroll([ONE])
    clock.now_s += 100 * LEAVING_S
    workers[0].forget(table.row(*OTHER))
    assert table.sweep() == 0
    table.reclaim(1)
    assert table.sweep() == 1


def test_member_that_comes_back_has_its_row_and_does_not_leave() -> None:
    """A reload that is taken back changes nothing."""
    clock = Clock()
    table = UpstreamTable(1, now_s=clock)
    table.enroll([ONE, OTHER])
    row = table.row(*OTHER)
    table.enroll([ONE])
    clock.now_s += LEAVING_S - 1

    table.enroll([ONE, OTHER])
    clock.now_s += 100 * LEAVING_S

    assert table.sweep() == 0
    assert table.row(*OTHER) == row


def test_upstreams_sums_do_not_fall_when_an_origin_goes() -> None:
    """What it counted is another one's from then on; what was now is nobody's."""
    clock = Clock()
    table = UpstreamTable(2, now_s=clock)
    table.enroll([ONE, TWO, OTHER])
    for block in range(2):
        cells = UpstreamCells(table, block)
        for label in (ONE, TWO):
            cells.count_attempt(table.row(*label), AttemptOutcome.TIMEOUT)
            cells.count_ejection(table.row(*label))
            cells.observe_ttfb(table.row(*label), 5)
            cells.set_state(table.row(*label), State.OUT)

    table.enroll([TWO, OTHER])
    clock.now_s += LEAVING_S
    for block in range(2):
        UpstreamCells(table, block).forget(table.row(*ONE))
        UpstreamCells(table, block).set_state(table.row(*TWO), State.OUT)
    assert table.sweep() == 1

    assert counted(table, "one", layout.ATTEMPTS + AttemptOutcome.TIMEOUT) == 4
    assert counted(table, "one", layout.EJECTIONS) == 4
    assert (counted(table, "one", layout.TTFB), counted(table, "one", layout.UNPRICED - 1)) == (4, 20)
    assert counted(table, "one", layout.STATES + State.OUT) == 2
    assert counted(table, "other", layout.ATTEMPTS + AttemptOutcome.TIMEOUT) == 0
    table.enroll([OTHER])
    clock.now_s += LEAVING_S
    for block in range(2):
        table.reclaim(block)
    assert table.sweep() == 1
    assert [each.upstream for each in table.totals()] == ["other"]
    table.enroll([OTHER, ONE, TWO])
    assert counted(table, "one", layout.ATTEMPTS + AttemptOutcome.TIMEOUT) == 0


@pytest.mark.slow
def test_table_that_is_full_says_so_and_changes_nothing() -> None:
    """All that a configuration may name fits twice, and a third one when the first has gone."""
    clock = Clock()
    table = UpstreamTable(1, now_s=clock)
    generations = [
        [(f"upstream-{i}", f"https://{name}-{j}.example.org/base") for i in range(256) for j in range(64)]
        for name in "abc"
    ]
    table.enroll(generations[0])
    table.enroll(generations[1])
    assert len(table.labels()) == MOST_ROWS == len({row for row, *_ in table.labels()})

    with pytest.raises(TableFullError, match="16384 members are new, and 0 rows are free"):
        table.enroll(generations[2])
    assert {(upstream, origin) for _, upstream, origin in table.labels()} == {*generations[0], *generations[1]}
    clock.now_s += LEAVING_S
    table.enroll(generations[2])
    assert {(upstream, origin) for _, upstream, origin in table.labels()} == {*generations[1], *generations[2]}


# -- prompts ----------------------------------------------------------------------------------------


def test_groups_have_tables_of_prompts_of_their_own() -> None:
    """As prefix_table.py wants them; a group keeps its own over reloads, and a new one begins empty."""
    table = UpstreamTable(1)
    table.enroll([ONE], groups=["chat", "code"])
    chat, code = PrefixTable(table.prefixes("chat")), PrefixTable(table.prefixes("code"))
    chat.sent(3, [1, 2], 100.0)
    assert (chat.holders(2), code.holders(2), len(table.prefixes("chat"))) == ([3], [], PREFIX_CELLS)

    table.enroll([ONE], groups=["new", "chat"])
    assert PrefixTable(table.prefixes("chat")).holders(2) == [3]
    table.enroll([ONE], groups=["new"])
    with pytest.raises(KeyError):
        table.prefixes("chat")
    table.enroll([ONE], groups=["new", "newer", "newest"])
    assert not any(table.prefixes("newer")) and not any(table.prefixes("newest"))


def test_more_groups_than_tables_share_some() -> None:
    """Then some find less; none is without."""
    table = UpstreamTable(1)
    names = [f"route-{n}" for n in range(MOST_GROUPS + 10)]
    table.enroll([ONE], groups=names)
    PrefixTable(table.prefixes(names[-1])).sent(1, [7], 100.0)

    holders = [name for name in names if PrefixTable(table.prefixes(name)).holders(7)]
    assert len(holders) == 2
    table.enroll([ONE], groups=names[1:])
    assert len(table.prefixes(names[-1])) == PREFIX_CELLS


# -- memory -----------------------------------------------------------------------------------------


def test_rows_that_nobody_uses_take_no_memory() -> None:
    """There is room for more than anybody configures: a gateway with one upstream pays for pages, not for rows."""
    before = resident_bytes("velox-(?:upstreams|prefixes|board)")
    table = UpstreamTable(128)
    table.enroll([ONE], groups=["chat"])
    cells = UpstreamCells(table, 127)
    cells.began(0)
    cells.count_attempt(0, AttemptOutcome.OK)
    table.totals()

    found = resident_bytes("velox-(?:upstreams|prefixes|board)") - before
    assert 0 < found < 128 * 1024


def test_table_of_a_group_that_is_gone_gives_its_memory_back() -> None:
    """A route's megabyte is not kept for a route that is no more."""
    table = UpstreamTable(1)
    table.enroll([ONE], groups=["chat"])
    before = resident_bytes("velox-prefixes")
    table.prefixes("chat")[::512] = memoryview(bytes([1] * (PREFIX_CELLS // 512 * 8))).cast("Q")
    assert resident_bytes("velox-prefixes") - before >= 2**20 - 4096

    table.enroll([ONE])

    assert resident_bytes("velox-prefixes") == before


def test_rows_of_the_memory_do_not_overlap() -> None:
    """The last row of each part ends before the next part begins."""
    memory = UpstreamMemory(3)
    last = MOST_ROWS - 1
    for block in range(3):
        memory.use(block)
        memory.inflight_of_block(block)[last] = 5
        memory.slab(block)[last * ROW_CELLS + ROW_CELLS - 1] = 7
    memory.slab(3)[0] = 9

    assert [*memory.inflight(last)] == [5] * 3
    assert [*memory.inflight(0)] == [0] * 3
    assert memory.totals(last) == [0] * (ROW_CELLS - 1) + [21]
    assert memory.totals(0) == [9] + [0] * (ROW_CELLS - 1)
    assert memory.n_folding == 0
    memory.clear(last)
    assert not any(memory.inflight(last)) and not any(memory.totals(last))


def test_reader_sees_a_count_in_one_row_while_it_moves() -> None:
    """A page that is made meanwhile waits for the end of the move, and gives up if there is none."""
    table = UpstreamTable(1)
    table.enroll([ONE])
    table.memory.fold()

    assert table.totals() == []
    table.memory.fold()
    assert table.totals() == [RowTotals(*ONE, 0, [0] * ROW_CELLS)]
