"""What budgets have spent, in a file, and a start that has nothing else but the rings."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.ledger.made import NOON_S, begin, made_call, write
from velox.ledger.collector import Collector
from velox.ledger.sqlite import SqliteStore
from velox.ledger.writer import CallWriter
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule, BudgetScope
from velox.runtime.ledger.budget_backfill import BudgetBackfill, restore_spent
from velox.runtime.ledger.budget_snapshot import BudgetSnapshot, SnapshotError, known_rules, learn_rules, read_snapshot
from velox.runtime.ledger.folder import LedgerFolder
from velox.settings import load
from velox.shm.budget_table import BudgetMemory, BudgetTable, rule_digest
from velox.shm.record_ring import RecordRing

NOW_S = float(NOON_S + 60)
US = 1_000_000


def rule(scope: BudgetScope, window: str = "day", **more: object) -> BudgetRule:
    return BudgetRule("budgets[0]", scope, parse_budget({"usd": 1, "window": window, **more}))


RULES = [rule("gateway"), rule("team"), rule("model", "month")]


class Run:
    """One run of a gateway: its budgets, its ring, and what writes the snapshot."""

    def __init__(self, folder: Path, rules: list[BudgetRule]) -> None:
        self.folder = folder
        self.memory = BudgetMemory(1000, 1)
        self.ring = RecordRing(folder / "0.ring", 1000)
        self.ring.start()
        self.ring.recover()
        self.writer = CallWriter(self.ring, os.getpid())
        self.rules = rules
        self.table = BudgetTable(self.memory, 0)
        self.saver = BudgetSnapshot(folder, self.memory, [self.ring])

    def call(self, number: int, nano: int, team: str = "red", model: str = "gpt") -> None:
        """Record a call, and count it where it counts."""
        call = made_call(number, cost_nano=nano, team=team, model=model, started_us=int(NOW_S * US))
        write(self.writer, call)
        for each, subject in zip(self.rules, ("", team, model), strict=False):
            budget = self.table.budget(each, subject, subject, NOW_S)
            hold = budget.hold(0, NOW_S)
            assert hold is not None
            budget.spend(hold, nano)

    def spent(self) -> dict[tuple[str, str], int]:
        return {(each.label.scope, each.label.who): each.spent for each in self.memory.states(NOW_S)}

    def restored(self) -> bool:
        """Begin with what is saved; return whether it is all."""
        return restore_spent(self.memory, read_snapshot(self.folder), [self.ring], self.rules, [], NOW_S)[1]


def saved(run: Run, store: SqliteStore | None = None) -> None:
    run.saver.save(NOW_S, None if store is None else Collector([run.ring], store, lambda: NOW_S))


def test_start_has_what_was_saved_and_what_the_rings_had_since(tmp_path: Path) -> None:
    """Each call once, with names that were recorded before the snapshot and after it."""
    before = Run(tmp_path, RULES)
    before.call(1, 5)
    before.call(2, 70, "blue", "claude")
    saved(before)
    before.call(3, 100)
    before.call(4, 2000, "green")
    begin(before.writer, made_call(5, team="red", model="gpt", started_us=int(NOW_S * US)))  # killed: counts as begun
    after = Run(tmp_path, RULES)
    assert after.restored()
    assert after.spent() == {
        ("gateway", ""): 5 + 70 + 100 + 2000 + 900,
        ("team", "red"): 5 + 100 + 900,
        ("team", "blue"): 70,
        ("team", "green"): 2000,
        ("model", "gpt"): 5 + 100 + 2000 + 900,
        ("model", "claude"): 70,
    }


def test_names_that_the_ledger_has_taken_out_of_the_ring_are_in_the_snapshot(tmp_path: Path) -> None:
    """Later records refer to them by number, and the ledger can't be asked."""
    store = SqliteStore(tmp_path, days=30)
    before = Run(tmp_path, RULES)
    before.call(1, 5)
    collector = Collector([before.ring], store, lambda: NOW_S)
    while collector.collect():
        pass
    for n in range(1000 // 2):  # the first records are not in the ring any more
        before.call(2 + n, 1)
        collector.collect()
    before.saver.save(NOW_S, collector)
    before.call(1000, 300)
    store.close()
    after = Run(tmp_path, RULES)
    assert after.restored() and after.spent()["team", "red"] == 5 + 500 + 300


def test_records_that_are_there_no_more_are_told(tmp_path: Path) -> None:
    """The ring went round, or had no room: what the snapshot lacks can't be known."""
    before = Run(tmp_path, RULES)
    before.call(1, 5)
    saved(before)
    n = 2
    while before.ring.n_dropped == 0:
        before.call(n, 1)
        n += 1
    after = Run(tmp_path, RULES)
    assert not after.restored() and after.spent()["gateway", ""] > 5


def test_spend_of_a_window_that_is_over_is_not_taken(tmp_path: Path) -> None:
    before = Run(tmp_path, RULES)
    before.call(1, 5)
    saved(before)
    memory = BudgetMemory(1000, 1)
    restore_spent(memory, read_snapshot(tmp_path), [before.ring], RULES, [], NOW_S + 86_400)
    found = {each.label.scope: each.spent for each in memory.states(NOW_S + 86_400)}
    assert found == {"gateway": 0, "team": 0, "model": 5}


def test_second_start_without_the_ledger_goes_on_where_the_first_one_was(tmp_path: Path) -> None:
    runs = [Run(tmp_path, RULES)]
    runs[0].call(1, 5)
    saved(runs[0])
    for n in (2, 3, 4):
        runs.append(Run(tmp_path, RULES))
        assert runs[-1].restored()
        runs[-1].call(n, 10)
        if n != 3:
            saved(runs[-1])
    assert runs[-1].spent()["gateway", ""] == 35


def test_snapshot_is_written_when_something_has_changed_and_not_while_nobody_knows(tmp_path: Path) -> None:
    run, path = Run(tmp_path, RULES), tmp_path / "budgets.snapshot"
    run.saver.turn(10.0, NOW_S, None)
    assert not path.exists(), "nothing is spent"
    run.call(1, 5)
    run.saver.turn(11.0, NOW_S, None)
    assert not path.exists(), "not all the time"
    run.saver.turn(20.0, NOW_S, None)
    written = path.stat().st_mtime_ns
    run.saver.turn(30.0, NOW_S + 10, None)
    assert path.stat().st_mtime_ns == written
    run.memory.set_lacking(None)
    run.call(2, 5)
    run.saver.turn(40.0, NOW_S, None)
    assert path.stat().st_mtime_ns == written, "the one that is there knows more"
    run.memory.set_lacking({rule_digest(RULES[0].identity)})
    run.saver.turn(50.0, NOW_S, None)
    found = read_snapshot(tmp_path)
    assert found.lacking == {rule_digest(RULES[0].identity)}
    assert {each.rule for each in found.budgets} == {rule_digest(each.identity) for each in RULES[1:]}


@pytest.mark.parametrize("damage", ["cut", "flipped", "other", "empty", "later"])
def test_file_that_is_not_whole_is_no_snapshot(tmp_path: Path, damage: str) -> None:
    run, path = Run(tmp_path, RULES), tmp_path / "budgets.snapshot"
    run.call(1, 5)
    saved(run)
    content = path.read_bytes()
    at = content.index(b"budgets[0]")
    path.write_bytes(
        {
            "cut": content[:-20],
            "flipped": content[:at] + b"B" + content[at + 1 :],
            "other": b"{}\n[]",
            "empty": b"",
            "later": content.replace(b'"version":1', b'"version":2', 1),
        }[damage]
    )
    with pytest.raises(SnapshotError):
        read_snapshot(tmp_path)


def test_known_rules_are_those_that_were_read(tmp_path: Path) -> None:
    assert known_rules(tmp_path) == frozenset()
    learn_rules(tmp_path, [1, 2], is_start=True)
    learn_rules(tmp_path, [2**64 - 1], is_start=False)
    assert known_rules(tmp_path) == {1, 2, 2**64 - 1}
    learn_rules(tmp_path, [5], is_start=True)
    assert known_rules(tmp_path) == {5}
    (tmp_path / "budgets.known").write_bytes(b"0\n[5]")
    assert known_rules(tmp_path) == frozenset()


class Start:
    """A start whose ledger's database is no database. rules: of the settings."""

    def __init__(self, folder: Path, budgets: str, fork: Callable[[Callable[[], int]], int]) -> None:
        self.settings = load({"VELOX_LEDGER": str(folder), "VELOX_BUDGETS": budgets})
        self.folder = LedgerFolder(folder, 1, 8192)
        self.memory = BudgetMemory(1000, 1)
        self.backfill = BudgetBackfill(self.settings, self.memory, self.folder, logging.Logger("test"), fork)

    def begin(self) -> None:
        self.backfill.begin([], lambda: False, lambda _pid: None)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Start]]:
    made: list[Start] = []

    def make(budgets: str) -> Start:
        def fork(run: Callable[[], int]) -> int:
            pid = os.fork()
            if not pid:
                os._exit(run())
            return pid

        for each in made:
            each.folder.release()
        made.append(Start(tmp_path, budgets, fork))
        return made[-1]

    yield make
    made[-1].folder.release()


ONE = "{per: gateway, usd: 1, window: total}"
OTHER = "{per: team, usd: 1, window: total}"


def test_rules_that_were_read_before_are_known_without_the_ledger_and_new_ones_are_not(
    tmp_path: Path, start: Callable[[str], Start]
) -> None:
    """Also one of which nothing was ever spent."""
    SqliteStore(tmp_path, days=30).close()
    first = start(f"[{ONE}]")
    first.begin()
    assert first.memory.lacking() == frozenset() and not first.memory.is_unread
    BudgetSnapshot(tmp_path, first.memory, first.folder.all).save(NOW_S, None)
    BudgetTable(first.memory, 0).budget(first.settings.budgets[0], "", "", NOW_S).spend(_hold(first), 7)
    BudgetSnapshot(tmp_path, first.memory, first.folder.all).save(NOW_S, None)
    for path in tmp_path.glob("ledger.db*"):
        path.write_bytes(b"this is no database" * 1000)
    again = start(f"[{ONE}, {OTHER}]")
    again.begin()
    one, other = again.settings.budgets
    assert again.memory.lacking() == frozenset({rule_digest(other.identity)}) and again.memory.is_unread
    assert [each.spent for each in again.memory.states(NOW_S)] == [7]
    assert not BudgetTable(again.memory, 0).budget(one, "", "", NOW_S).is_lacking
    assert BudgetTable(again.memory, 0).budget(other, "red", "red", NOW_S).is_lacking


def _hold(run: Start) -> int:
    hold = BudgetTable(run.memory, 0).budget(run.settings.budgets[0], "", "", NOW_S).hold(0, NOW_S)
    assert hold is not None
    return hold


def test_database_that_was_taken_away_gives_nothing_back(tmp_path: Path, start: Callable[[str], Start]) -> None:
    """A new one has no calls; what was saved says what they cost."""
    first = start(f"[{ONE}]")
    first.begin()
    BudgetTable(first.memory, 0).budget(first.settings.budgets[0], "", "", NOW_S).spend(_hold(first), 7)
    BudgetSnapshot(tmp_path, first.memory, first.folder.all).save(NOW_S, None)
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    again = start(f"[{ONE}]")
    again.begin()
    assert [each.spent for each in again.memory.states(NOW_S)] == [7]
    assert again.memory.lacking() == frozenset()
