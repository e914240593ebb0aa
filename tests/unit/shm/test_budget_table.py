"""The table of budgets: what several processes hold and spend at one time, and what a dead one leaves."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable

import pytest

from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetLabel, BudgetRule, BudgetScope
from velox.shm.budget_table import MOST_AHEAD_S, BudgetMemory, BudgetTable, SharedBudget

NOON = 1_795_435_200.0  # 2026-11-23T12:00Z
DAY = 86_400


def rule(scope: BudgetScope = "gateway", tokens: int = 100, window: str = "day", **more: object) -> BudgetRule:
    return BudgetRule("budgets[0]", scope, parse_budget({"tokens": tokens, "window": window, **more}))


def budgets(n: int, of: BudgetRule, memory: BudgetMemory | None = None) -> list[SharedBudget]:
    """Return the same budget as so many processes have it."""
    memory = memory or BudgetMemory(1000, n)
    return [BudgetTable(memory, block).budget(of, "", "", NOON) for block in range(n)]


def amounts(budget: SharedBudget, now_s: float = NOON) -> tuple[int, int]:
    return budget.amounts(now_s)


def test_hold_is_counted_by_all_and_settled_by_what_was_used() -> None:
    here, there = budgets(2, rule(tokens=100))
    hold = here.hold(60, NOON)
    assert hold is not None and amounts(there) == (0, 60)
    assert there.hold(41, NOON) is None and amounts(here) == (0, 60)
    assert there.hold(40, NOON) is not None
    here.spend(hold, 25)
    here.release(hold, 60)
    assert amounts(there) == (25, 40)
    assert there.hold(35, NOON) is not None and there.hold(1, NOON) is None


def test_case_01_parallel_holds_are_never_more_than_the_limit() -> None:
    """Forked processes that hold and settle as fast as they can: what is held and spent is never above the limit."""
    memory, of = BudgetMemory(1000, 4), rule(tokens=1000)
    read_fd, write_fd = os.pipe()
    children = []
    for block in range(4):
        pid = os.fork()
        if not pid:
            most = 0
            try:
                mine, rng = BudgetTable(memory, block).budget(of, "", "", NOON), random.Random(block)
                for _ in range(1500):
                    amount = rng.randint(1, 40)
                    hold = mine.hold(amount, NOON)
                    if hold is not None:
                        spent, held = mine.amounts(NOON)
                        most = max(most, spent)
                        mine.spend(hold, min(rng.randint(0, 1), amount))
                        mine.release(hold, amount)
                os.write(write_fd, most.to_bytes(8, "big"))
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    assert all(int.from_bytes(os.read(read_fd, 8), "big") <= 1000 for _ in children)
    (one,) = budgets(1, of, memory)
    spent, held = amounts(one)
    assert held == 0 and 900 < spent <= 1000
    os.close(read_fd)
    os.close(write_fd)


def test_case_07_dead_process_holds_nothing_and_its_open_calls_are_spent() -> None:
    """What was only held is free again; a call that was sent counts as it was estimated."""
    memory, of = BudgetMemory(1000, 2), rule(tokens=100)
    dies, lives = budgets(2, of, memory)
    never_sent, sent = dies.hold(50, NOON), dies.hold(30, NOON)
    assert never_sent is not None and sent is not None
    dies.begin(sent, 30)
    assert lives.hold(30, NOON) is None
    memory.reclaim(0)
    assert amounts(lives) == (30, 0)
    assert lives.hold(70, NOON) is not None
    # The next process in its place goes on with its cells.
    after = BudgetTable(memory, 0).budget(of, "", "", NOON)
    assert after.hold(1, NOON) is None and amounts(after) == (30, 70)
    memory.reclaim(0)
    assert amounts(after) == (30, 70)


def test_case_08_window_begins_once_and_old_holds_never_touch_it() -> None:
    """All processes come over midnight at once, with holds of the day before that end later."""
    memory, of = BudgetMemory(1000, 100), rule(tokens=1000)
    everyone = budgets(100, of, memory)
    old = [each.hold(10, NOON) for each in everyone]
    assert amounts(everyone[0]) == (0, 1000)
    midnight = NOON + DAY / 2
    new = [each.hold(5, midnight) for each in everyone]
    assert all(new) and amounts(everyone[7], midnight) == (0, 500)
    for each, hold in zip(everyone, old, strict=True):
        assert hold is not None
        each.spend(hold, 10)
        each.release(hold, 10, 1)
    assert amounts(everyone[7], midnight) == (0, 500)
    for each, hold in zip(everyone, new, strict=True):
        assert hold is not None
        each.spend(hold, 7)
        each.release(hold, 5)
    assert amounts(everyone[99], midnight) == (700, 0)


def test_case_08_process_whose_clock_is_behind_counts_in_the_new_window() -> None:
    """By some minutes: it was read just before midnight, or set back a little."""
    ahead, behind = budgets(2, rule(tokens=100))
    midnight = NOON + DAY / 2
    assert ahead.hold(60, midnight) is not None
    for before_s in (0.001, MOST_AHEAD_S):
        assert behind.hold(60, midnight - before_s) is None
    hold = behind.hold(40, midnight - 1)
    assert hold is not None and ahead.amounts(midnight) == (0, 100)


def test_clock_that_was_wrong_for_a_moment_moves_no_window_for_good() -> None:
    """One process comes with a time that is far ahead: all go on in the window of now, with what the others had."""
    memory = BudgetMemory(1000, 2)
    one, other = budgets(2, rule(tokens=100), memory)
    for each in (one, other):
        hold = each.hold(30, NOON)
        assert hold is not None
        each.spend(hold, 30)
        each.release(hold, 30)
    (row,) = memory.used_rows()
    memory.set_base(row, one.window(NOON).number, 5)
    open_call = one.hold(1, NOON)
    assert open_call is not None
    one.begin(open_call, 1)
    assert one.hold(1, NOON + 400 * DAY) is not None and memory.n_came_back == 0
    one.release(open_call, 1, 1)

    (state,) = memory.states(NOON)
    assert (state.spent, state.held, state.window) == (35, 0, one.window(NOON))
    assert memory.n_came_back == 1, "what `one` had counted must be read from the ledger"
    assert other.hold(66, NOON) is None and other.hold(1, NOON) is not None
    assert memory.window_of(row)[1:] == (one.window(NOON).number, one.window(NOON).end_s)
    assert one.hold(100, NOON + DAY) is not None and amounts(other, NOON + DAY) == (0, 100)
    assert memory.n_came_back == 1


def test_clock_that_is_set_back_by_a_day_counts_in_the_window_that_it_shows() -> None:
    (one,) = budgets(1, rule(tokens=100))
    assert one.hold(100, NOON) is not None
    assert one.hold(100, NOON - DAY) is not None and one.window(NOON - DAY).end_s == NOON - DAY / 2
    assert one.hold(1, NOON - DAY) is None


def test_case_09_changed_limit_keeps_what_was_spent_and_another_period_is_another_budget() -> None:
    memory = BudgetMemory(1000, 1)
    (before,) = budgets(1, rule(tokens=100), memory)
    hold = before.hold(100, NOON)
    assert hold is not None
    before.spend(hold, 100)
    before.release(hold, 100)
    (raised,) = budgets(1, rule(tokens=150, soft=80), memory)
    assert amounts(raised) == (100, 0) and raised.hold(51, NOON) is None and raised.hold(50, NOON) is not None
    (monthly,) = budgets(1, rule(tokens=100, window="month"), memory)
    assert amounts(monthly) == (0, 0)  # until the ledger has told (runtime/ledger/budget_backfill.py)


def test_base_counts_in_its_window_only() -> None:
    memory = BudgetMemory(1000, 1)
    (one,) = budgets(1, rule(tokens=100), memory)
    row = next(memory.used_rows())
    memory.set_base(row, one.window(NOON).number, 90)
    assert one.hold(11, NOON) is None and amounts(one) == (90, 0)
    assert one.hold(11, NOON + DAY) is not None and amounts(one, NOON + DAY) == (0, 11)


@pytest.mark.parametrize("n_steps", range(1, 12))
def test_process_killed_between_any_two_stores_leaves_a_table_that_can_be_used(n_steps: int) -> None:
    """Only stores into its own cells: after reclaim() nothing is held, and spent is at most what was begun."""
    memory, of = BudgetMemory(1000, 2), rule(tokens=100)
    dies, lives = budgets(2, of, memory)

    def life() -> None:
        hold = dies.hold(20, NOON)
        assert hold is not None
        dies.begin(hold, 20)
        dies.spend(hold, 15)
        dies.release(hold, 20, 1)

    run_steps(life, n_steps)
    memory.reclaim(0)
    spent, held = amounts(lives)
    assert held == 0 and spent in (0, 15, 20, 35)


def run_steps(life: Callable[[], None], n_steps: int) -> None:
    """Run until so many lines of the table's code were reached, and stop there as a kill would."""
    import sys
    from types import FrameType

    left = itertools.count(n_steps * 6, -1)

    class KilledError(BaseException):
        pass

    def trace(frame: FrameType, event: str, _arg: object) -> object:
        if "budget_table" not in frame.f_code.co_filename:
            return None
        if event == "line" and next(left) == 0:
            raise KilledError
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        life()
    except KilledError:
        pass
    finally:
        sys.settrace(None)


def test_reader_sees_each_budget_by_its_name() -> None:
    """A process that knows no rule reads whose budget a row is, and what is left of it."""
    memory, of = BudgetMemory(1000, 2), rule("team", 1000, window="month", zone="Europe/Berlin", soft=[50, 90])
    one = BudgetTable(memory, 0).budget(of, "blue", "blue", NOON)
    hold = one.hold(300, NOON)
    assert hold is not None
    one.spend(hold, 100)
    (state,) = memory.states(NOON)
    assert state.label == BudgetLabel("budgets[0]", "team", "blue", True, "month", "Europe/Berlin", 0, (50, 90))
    assert (state.limit, state.spent, state.held, state.left) == (1000, 100, 300, 600)
    assert state.window == one.window(NOON)
    (later,) = memory.states(NOON + 40 * DAY)
    assert (later.spent, later.held, later.left) == (0, 0, 1000)


def test_names_of_any_length_fit_and_do_not_mix() -> None:
    memory = BudgetMemory(1000, 1)
    table, of = BudgetTable(memory, 0), rule("model")
    names = ["\ud800", "é" * 500, "é" * 501, "x", ""]
    for n, name in enumerate(names):
        one = table.budget(of, name, name, NOON)
        hold = one.hold(n + 1, NOON)
        assert hold is not None
    assert sorted(state.held for state in memory.states(NOON)) == [1, 2, 3, 4, 5]


def test_budget_without_a_row_is_the_same_each_time_that_it_is_asked_for() -> None:
    """By one process, as by another model's or a changed key's set of budgets; and it takes no descriptor."""
    memory = BudgetMemory(1000, 2)
    for n in range(4000):
        BudgetTable(memory, 0).row(rule("team"), str(n), "", NOON)
    table, of = BudgetTable(memory, 0), rule("key", tokens=100)
    first = table.budget(of, "key", "key", NOON)
    n_descriptors = len(os.listdir("/proc/self/fd"))
    hold = first.hold(70, NOON)
    assert hold is not None and memory.n_overflowed == 1
    first.spend(hold, 60)
    first.release(hold, 70)

    again = table.budget(rule("key", tokens=90), "key", "key", NOON)
    assert again.amounts(NOON) == (60, 0) and again.hold(31, NOON) is None and again.hold(30, NOON) is not None
    others = [table.budget(of, f"other-{n}", "", NOON) for n in range(1000)]
    assert all(each.hold(100, NOON) is not None and each.hold(1, NOON) is None for each in others)
    assert len(os.listdir("/proc/self/fd")) <= n_descriptors + 5, "a table for some hundreds of them"
    assert BudgetTable(memory, 1).budget(of, "key", "key", NOON).amounts(NOON) == (0, 0)


def test_full_half_shares_one_budget_and_a_full_table_counts_alone() -> None:
    """Models that clients make up fill their half only; then they have one budget together."""
    memory = BudgetMemory(0, 1)
    table, of = BudgetTable(memory, 0), rule("model", tokens=10)
    for n in range(400):
        table.budget(of, f"made-up-{n}", f"made-up-{n}", NOON)
    others = [state for state in memory.states(NOON) if state.label.who == "(others)"]
    assert len(others) == 1 and memory.n_overflowed == 0
    keys = [table.budget(rule("key"), str(n), str(n), NOON) for n in range(400)]
    assert memory.n_overflowed > 0
    assert all(each.hold(100, NOON) is not None and each.hold(1, NOON) is None for each in keys)
