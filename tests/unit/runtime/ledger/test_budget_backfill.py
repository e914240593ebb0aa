"""What was spent before the start, as the ledger has it, in the rows of the budgets that count it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.ledger.made import NOON_S, begin, made_call, write, writer_of
from velox.gateway.auth import caller_of
from velox.heads import RequestHead
from velox.ledger.collector import Collector
from velox.ledger.record import Flag, recorded_key, row_of
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch, Store, StoreError, UsageQuery
from velox.policy.budgets.budget import parse_budget
from velox.policy.budgets.rules import BudgetRule, BudgetScope, spender_of, subjects
from velox.policy.request_tags import RequestTags
from velox.runtime.ledger import budget_backfill
from velox.runtime.ledger.budget_backfill import (
    BudgetBackfill,
    KeyChanges,
    RuleBook,
    budget_memory,
    read_spent,
    restore_spent,
)
from velox.runtime.ledger.budget_snapshot import Snapshot
from velox.runtime.ledger.folder import LedgerFolder
from velox.runtime.ledger.stores import record_store
from velox.settings import Settings, load
from velox.shm.budget_table import BudgetMemory, BudgetTable, rule_digest
from velox.shm.record_ring import RecordRing
from velox.types import Budget, KeyEntry, KeyTerms, KeyUpdate

US = 1_000_000
NOW_S = float(NOON_S + 60)
DAY_S = 86_400


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path, days=30)
    yield store
    store.close()


def came(*keys: KeyEntry) -> KeyUpdate:
    return {key.digest: key for key in keys}


def entry(n: int, id_: bytes = b"", **terms: Any) -> KeyEntry:
    return KeyEntry(bytes([n]) * 32, name=f"key-{n}", terms=KeyTerms(**terms), id=id_)


def spend(store: SqliteStore, *calls: tuple[KeyEntry, int]) -> None:
    """Record calls of keys with what they cost."""
    made = []
    for n, (key, nano) in enumerate(calls, 1):
        named = recorded_key(caller_of(key).id, key.caller_name)
        whose = {"team": key.terms.team, "user": key.terms.user, "tags": key.terms.tags}
        call = made_call(n, key=named, **whose, cost_nano=nano, started_us=NOON_S * US)
        made.append(row_of(n, call))
    store.add(Batch("0.ring", len(made) + 1, made, {}, NOON_S))


def rule(scope: BudgetScope, usd: int = 1, name: str = "budgets[0]") -> BudgetRule:
    return BudgetRule(name, scope, parse_budget({"usd": usd, "window": "day"}))


def spent(memory: BudgetMemory) -> dict[tuple[str, str], int]:
    return {(each.label.scope, each.label.who): each.spent for each in memory.states(NOW_S)}


def opened(store: SqliteStore, rules: Sequence[BudgetRule], keys: Sequence[KeyEntry]) -> dict[tuple[str, str], int]:
    memory = BudgetMemory(1000, 1)
    read_spent(memory, store, (*rules, *RuleBook().change(came(*keys))), keys, NOW_S)
    for row in memory.used_rows():
        assert memory.window_of(row)[1] > 0, "who shares it over gateways knows of it before anybody asks"
    return spent(memory)


def fork(run: Callable[[], int]) -> int:
    """Run it in a process of its own; return its process id."""
    pid = os.fork()
    if not pid:
        code = 1
        with contextlib.suppress(BaseException):
            code = run()
        os._exit(code)
    return pid


def test_own_budgets_count_what_is_theirs(store: SqliteStore) -> None:
    """Of keys, teams and users; and what a key that is gone spent for its team."""
    own, of_team, of_user = (Budget(n * 10**9, None, "day") for n in (1, 2, 3))
    alice = entry(1, team="web", budgets=(own,), team_budgets=(of_team,))
    bob = entry(2, team="web", user="bob", team_budgets=(of_team,), user_budgets=(of_user,))
    carol = entry(3, budgets=(own,))
    gone = entry(4, team="web")
    spend(store, (alice, 5), (alice, 6), (bob, 100), (carol, 1000), (gone, 10_000))
    found = opened(store, [rule("gateway")], [alice, bob, carol])
    assert found == {
        ("gateway", ""): 11_111,
        ("key", recorded_key(caller_of(alice).id, "key-1")): 11,
        ("key", recorded_key(caller_of(carol).id, "key-3")): 1000,
        ("team", "web"): 10_111,
        ("user", "bob"): 100,
    }


def test_two_limits_of_one_window_count_once(store: SqliteStore) -> None:
    alice = entry(1)
    spend(store, (alice, 7))
    assert list(opened(store, [rule("gateway", 1), rule("gateway", 9, "budgets[1]")], [alice]).values()) == [7]


def test_budget_that_comes_within_its_month_counts_all_of_the_month(store: SqliteStore) -> None:
    """Also what was spent when sums by minute and hour are not kept any more."""
    alice = entry(1)
    month = BudgetRule("budgets[0]", "gateway", parse_budget({"usd": 1, "window": "month"}))
    days = (NOON_S - 22 * DAY_S, NOON_S - 5 * DAY_S, NOON_S - 3600, NOON_S - 60)  # the 1st of the month, ...
    named = recorded_key(caller_of(alice).id, alice.caller_name)
    calls = [made_call(n, key=named, cost_nano=10**n, started_us=at * US) for n, at in enumerate(days)]
    store.add(Batch("0.ring", 5, [row_of(n, call) for n, call in enumerate(calls)], {}, NOON_S))
    store.prune(NOON_S)
    memory = BudgetMemory(1000, 1)
    read_spent(memory, store, [month], [alice], NOW_S, changed_s=NOON_S + 60.0)
    assert list(spent(memory).values()) == [1111]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_what_was_spent_counts_under_what_it_was_spent_under(store: SqliteStore, one_by_one: bool) -> None:
    """The key has another team, another user and other tags since then, or is gone. Also where calls are looked at one
    by one, because the budget came while the gateway ran."""
    before = entry(1, team="red", user="ann", tags=("eu", "batch"))
    now, gone = entry(1, team="blue", user="bob", tags=("us",)), entry(2, team="red", tags=("eu",))
    spend(store, (before, 5), (gone, 70))
    rules = [*map(rule, ("team", "user", "tag", "key", "model")), rule("gateway")]
    memory = BudgetMemory(1000, 1)
    if one_by_one:
        read_spent(memory, store, rules, [now], NOW_S, changed_s=float(NOON_S))
    else:
        read_spent(memory, store, rules, [now], NOW_S)
    assert spent(memory) == {
        ("team", "red"): 75,
        ("user", "ann"): 5,
        ("tag", "eu"): 75,
        ("tag", "batch"): 5,
        ("key", recorded_key(caller_of(now).id, "key-1")): 5,
        ("key", recorded_key(caller_of(gone).id, "key-2")): 70,
        ("model", made_call(1).model): 75,
        ("gateway", ""): 75,
    }


@pytest.mark.parametrize("how", ["sums", "one by one", "ring"])
def test_what_a_request_says_counts_for_no_budget(tmp_path: Path, store: SqliteStore, how: str) -> None:
    """A client that names another's tag uses up nothing of it from the next start on, and no row is claimed for what
    it makes up: while the gateway runs, budgets go by the tags of keys alone."""
    guest = entry(1, tags=("guests",))
    head = RequestHead.of(b"POST", b"/v1/chat/completions", [(b"x-velox-tags", b"prod,a1")], None)
    tags = tuple(RequestTags(("tags",)).of(head, None, caller_of(guest), 0.0).split(","))
    assert len(tags) == 3
    named = recorded_key(caller_of(guest).id, guest.caller_name)
    path = tmp_path / "0.ring"
    write(writer_of(path), made_call(1, key=named, tags=tags, cost_nano=5 * 10**9, started_us=NOON_S * US))
    of_prod = replace(rule("gateway", 9, "budgets[1]"), tags=("prod",))
    rules, memory = [rule("tag", 9), of_prod, rule("gateway", 9)], BudgetMemory(1000, 1)
    ring = RecordRing(path, 1)
    if how == "ring":
        restore_spent(memory, Snapshot.nothing(), [ring], rules, [guest], NOW_S)
    else:
        Collector([ring], store, lambda: NOON_S).collect()
        read_spent(memory, store, rules, [guest], NOW_S, float(NOON_S) if how == "one by one" else None)
    assert spent(memory) == {("tag", "guests"): 5 * 10**9, ("gateway", ""): 5 * 10**9}
    assert len(list(memory.used_rows())) == 2


@pytest.mark.parametrize("one_by_one", [False, True])
def test_copies_for_mirrors_count_for_no_budget(tmp_path: Path, store: SqliteStore, one_by_one: bool) -> None:
    """Neither those that ended, nor one that a killed worker left open. The gateway has no keys: calls have none."""
    path = tmp_path / "0.ring"
    nobody = {"key": "", "team": "", "user": "", "tags": ()}
    writer = writer_of(path)
    write(writer, made_call(1, **nobody, cost_nano=7))
    write(writer, made_call(1, **nobody, cost_nano=100, attempt=0, flags=Flag.MIRROR))
    begin(writer, made_call(2, **nobody, attempt=0))
    ring = RecordRing(path, 1)
    ring.recover()
    Collector([ring], store, lambda: NOON_S).collect()
    memory = BudgetMemory(1000, 1)

    read_spent(memory, store, [rule("gateway"), rule("model")], [], NOW_S, float(NOON_S) if one_by_one else None)

    assert sum(1 for _ in store.calls(UsageQuery(NOON_S - DAY_S, NOON_S + DAY_S))) == 3
    assert spent(memory) == {("gateway", ""): 7, ("model", made_call(1).model): 7}


@pytest.mark.parametrize(
    ("scope", "tags", "found"),
    [
        ("gateway", ["eu"], {"": 111}),
        ("gateway", ["batch"], {"": 10}),
        ("gateway", ["eu", "batch"], {"": 111}),
        ("gateway", ["none"], {}),
        ("team", ["us", "batch"], {"red": 1010}),
        ("tag", ["eu", "us"], {"eu": 111, "us": 1000}),
    ],
)
def test_rule_for_tags_counts_their_calls_once(
    store: SqliteStore, scope: BudgetScope, tags: list[str], found: dict[str, int]
) -> None:
    """Though one has two of them."""
    both = entry(1, team="red", tags=("eu", "batch"))
    eu, us = entry(2, tags=("eu",)), entry(3, team="red", tags=("us",))
    spend(store, (both, 10), (eu, 1), (us, 1000), (eu, 100), (entry(4, team="red"), 10_000))
    asked = BudgetRule("budgets[0]", scope, parse_budget({"usd": 1, "window": "day"}), tags=tuple(tags))
    memory = BudgetMemory(1000, 1)
    read_spent(memory, store, [asked], [], NOW_S)
    assert {who: nano for (_, who), nano in spent(memory).items()} == found


def test_table_has_room_for_the_budgets_of_all_keys_of_the_start() -> None:
    """Their own ones, those of their teams and users, and those by rules, in its half for them."""
    own, of_team = (Budget(10**9, None, "day"), Budget(10**9, None, "month")), (Budget(10**9, None, "week"),)
    keys = tuple(
        KeyEntry(
            n.to_bytes(32, "big"),
            terms=KeyTerms(team=f"{n // 2}", budgets=own, team_budgets=of_team),
            id=n.to_bytes(8, "big"),
        )
        for n in range(8000)
    )
    rules = (rule("key"), rule("team"), rule("gateway"))
    settings = msgspec.structs.replace(load({"VELOX_LEDGER": "/nowhere"}), api_keys=keys, budgets=rules)
    memory = budget_memory(settings, 1)
    assert memory is not None
    n_needed = 8000 * 2 + 4000 + 8000 + 4000 + 1

    assert memory.rows // 2 >= 4 * n_needed
    assert all(memory.claim(memory.tag(f"{n}")[0]) is not None for n in range(n_needed))


def test_rotated_key_goes_on_with_what_it_spent(store: SqliteStore) -> None:
    """A managed key is counted by its id, whichever secret it has."""
    before, after = (entry(n, b"same-key", budgets=(Budget(10**9, None, "day"),)) for n in (1, 2))
    spend(store, (before, 7))
    assert list(opened(store, [], [after]).values()) == [7]


def test_rules_of_changed_keys_are_the_new_ones() -> None:
    """What a team has is one rule for all of its keys, as long as one has it; a key that is gone leaves nothing."""
    book, own, of_team = RuleBook(), (Budget(10**9, None, "day"),), (Budget(10**9, None, "week"),)
    alice, bob = (entry(n, budgets=own, team="web", team_budgets=of_team) for n in (1, 2))

    def windows(rules: Iterable[BudgetRule]) -> list[str]:
        return sorted(str(each.budget.window) for each in rules)

    assert windows(book.change(came(alice, bob))) == ["day", "day", "week"]
    assert book.change(came(alice)) == [] and len(book.rules) == 3
    changed = entry(1, budgets=(Budget(10**9, None, "month"),))
    assert windows(book.change(came(changed))) == ["month"]
    assert windows(book.rules.values()) == ["day", "month", "week"]
    assert book.change({bob.digest: None}) == [] and windows(book.rules.values()) == ["month"]
    assert windows(book.change(came(bob))) == ["day", "week"], "they were gone: what was spent is read again"


def test_changed_limit_of_a_team_holds_whichever_of_its_keys_has_it(store: SqliteStore) -> None:
    """Keys change one after the other. What is read again later does not bring the limit back that was before."""
    book, memory = RuleBook(), BudgetMemory(1000, 1)

    def keys(usd: int) -> list[KeyEntry]:
        return [entry(n, team="web", team_budgets=(Budget(usd * 10**9, None, "day"),)) for n in (1, 2, 3)]

    spend(store, (keys(10)[0], 5))
    for usd in (10, 1000):
        added = [rule for key in keys(usd) for rule in book.change(came(key))]
        assert len(added) == (usd == 10), "another limit is the same budget"
        assert [each.budget.limit for each in book.rules.values()] == [usd * 10**9]
        read_spent(memory, store, book.rules.values(), keys(usd), NOW_S)
    assert [each.limit for each in memory.states(NOW_S)] == [1000 * 10**9]


def test_lower_of_two_limits_of_one_window_is_in_the_row(store: SqliteStore) -> None:
    """It is the one that holds, of rules and of a key's own budgets, whichever is written first."""
    memory, limits = BudgetMemory(1000, 1), (Budget(10**9, None, "day"), Budget(9 * 10**9, None, "day"))
    alice = entry(1, budgets=limits, team="web", team_budgets=limits[::-1])
    spend(store, (alice, 5))
    rules = [rule("gateway", 1), rule("gateway", 9, "budgets[1]"), *RuleBook().change(came(alice))]
    read_spent(memory, store, rules, [alice], NOW_S)
    assert [each.limit for each in memory.states(NOW_S)] == [10**9] * 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_what_could_not_be_read_at_the_start_is_read_later(tmp_path: Path, how: str) -> None:
    """The gateway serves meanwhile; nothing is read twice."""
    alice = entry(1)
    settings = load({"VELOX_LEDGER": str(tmp_path), "VELOX_BUDGETS": "[{per: gateway, usd: 1, window: total}]"})
    folder = LedgerFolder(tmp_path, 1, 8192)
    store = SqliteStore(tmp_path, days=30)
    spend(store, (alice, 7))
    store.close()
    memory, n_forks = BudgetMemory(1000, 1), 0

    def fork(run: Callable[[], int]) -> int:
        nonlocal n_forks
        n_forks += 1
        pid = os.fork()
        if not pid:
            code = 1
            with contextlib.suppress(BaseException):
                if n_forks > 1:
                    code = run()
                elif how == "hangs":
                    signal.pause()
            os._exit(code)
        return pid

    lines = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(lines))
    backfill = BudgetBackfill(settings, memory, folder, logger, fork, start_s=5.0 if how == "fails" else 0.05)
    no_changes = KeyChanges({}, lambda: [alice])
    backfill.begin([alice], lambda: False, lambda _pid: None)
    assert list(spent(memory).values()) in ([], [0])
    assert memory.is_unread
    backfill.look(settings.budgets, no_changes, time.monotonic())
    assert not backfill.pid, "calls before the start must be safe first"
    backfill.look(settings.budgets, no_changes, time.monotonic() + 60)
    assert os.waitpid(backfill.pid, 0)[1] == 0
    backfill.died(time.monotonic(), ended_well=True)
    assert list(spent(memory).values()) == [7]
    assert not memory.is_unread
    backfill.look(settings.budgets, no_changes, time.monotonic() + 120)
    assert n_forks == 3 and not backfill.pid, "at the start, for what was saved, and later"
    assert ("could not be read in 0.05 s" in lines.getvalue()) == (how == "hangs")
    folder.release()


@pytest.mark.parametrize("how", ["glimpse", "step"])
def test_what_a_wrong_clock_made_rows_forget_is_read_again(tmp_path: Path, how: str) -> None:
    """One request under it, which nobody but its worker sees; or some seconds, in which each budget was asked."""
    settings = load({"VELOX_LEDGER": str(tmp_path), "VELOX_BUDGETS": "[{per: gateway, usd: 1, window: day}]"})
    folder = LedgerFolder(tmp_path, 1, 8192)
    memory, wall_s, now_s = BudgetMemory(1000, 2), NOW_S, 1000.0

    backfill = BudgetBackfill(settings, memory, folder, logging.Logger("test"), fork, wall_s=lambda: wall_s)

    def look(after_s: float) -> bool:
        """Return whether it was read."""
        nonlocal now_s, wall_s
        now_s, wall_s = now_s + after_s, wall_s + after_s
        backfill.look(settings.budgets, KeyChanges({}, list), now_s)
        if not backfill.pid:
            return False
        assert os.waitpid(backfill.pid, 0)[1] == 0
        backfill.died(now_s, ended_well=True)
        return True

    backfill.begin([], lambda: False, lambda _pid: None)
    one, other = (BudgetTable(memory, n).budget(settings.budgets[0], "", "", NOW_S) for n in range(2))
    for each, nano in ((one, 70), (other, 200)):
        hold = each.hold(nano, NOW_S)
        assert hold is not None
        each.spend(hold, nano)
        each.release(hold, nano)
    store = SqliteStore(tmp_path, days=30)
    spend(store, (entry(1), 70), (entry(1), 200))
    store.close()
    assert not look(1) and not look(10)
    if how == "step":
        wall_s += 400 * DAY_S
        assert not look(1) and look(3)
    assert one.hold(5, NOW_S + 400 * DAY_S) is not None
    if how == "step":
        wall_s -= 400 * DAY_S
    else:
        assert one.spent(NOW_S) == 200 and memory.n_came_back == 1
    assert not look(1) and look(3)
    assert (one.spent(NOW_S), one.amounts(NOW_S)) == (270, (270, 0))

    hold = other.hold(30, NOW_S)
    assert hold is not None
    other.spend(hold, 30)  # it is not in the ledger yet
    assert one.hold(5, NOW_S + 400 * DAY_S) is not None and one.spent(NOW_S) == 300
    assert not look(10), "a row that comes back later is no reason to read all again at once"
    assert not look(60) and look(3)
    assert one.spent(NOW_S) == 300, "nothing that was counted is taken back"
    folder.release()


def test_calls_of_a_wrong_hour_count_in_the_hour_in_which_they_were_made(
    store: SqliteStore, readings: Readings
) -> None:
    """The clock was an hour ahead, and is set back: an hour's budget that was used up in both is exceeded, not free."""
    readings.rules = [BudgetRule("budgets[0]", "gateway", parse_budget({"usd": 1, "window": "hour"}))]
    readings.look(0)
    table, calls = BudgetTable(readings.memory, 0), []
    for n, ahead_s in enumerate((0, 3600)):
        at_s = NOW_S + ahead_s
        budget = table.budget(readings.rules[0], "", "", at_s)
        hold = budget.hold(98, at_s)
        assert hold is not None and budget.spent(at_s) == 0
        budget.spend(hold, 98)
        budget.release(hold, 98)
        calls.append(row_of(n, made_call(n, key="", cost_nano=98, started_us=int(at_s * US))))
    store.add(Batch("0.ring", 2, calls, {}, NOON_S))
    assert budget.window(NOW_S).start_s == NOON_S, "it goes on in the hour that the clock shows"
    assert not readings.look(1) and readings.look(3)
    assert budget.spent(NOW_S) == 2 * 98


def test_what_no_process_could_read_is_read_later(tmp_path: Path) -> None:
    """Neither at the start nor later is it forgotten; there is nobody to wait for meanwhile."""
    settings = load({"VELOX_LEDGER": str(tmp_path), "VELOX_BUDGETS": "[{per: gateway, usd: 1, window: total}]"})
    folder = LedgerFolder(tmp_path, 1, 8192)
    pids = [0, 0, 0, 7]  # nor what was saved
    backfill = BudgetBackfill(
        settings, BudgetMemory(1000, 1), folder, logging.Logger("test"), lambda _work: pids.pop(0), start_s=5.0
    )
    backfill.begin([entry(1)], lambda: False, lambda _pid: None)
    assert pids == [0, 7]
    later_s = time.monotonic() + 60
    no_changes = KeyChanges({}, lambda: [entry(1)])
    backfill.look(settings.budgets, no_changes, later_s)
    assert (pids, backfill.pid) == ([7], 0)
    backfill.look(settings.budgets, no_changes, later_s)
    assert pids == [7], "not all the time"
    backfill.look(settings.budgets, no_changes, later_s + 60)
    assert (pids, backfill.pid) == ([], 7)
    folder.release()


@pytest.mark.slow
def test_budget_that_is_back_counts_once_what_it_has_counted(tmp_path: Path) -> None:
    """A key is blocked and unblocked: its budget has counted calls before, and what came in between is added."""
    alice = entry(1, budgets=(parse_budget({"usd": 1, "window": "total"}),))
    settings = load({"VELOX_LEDGER": str(tmp_path)})
    folder = LedgerFolder(tmp_path, 1, 8192)
    memory = BudgetMemory(1000, 1)

    backfill = BudgetBackfill(settings, memory, folder, logging.Logger("test"), fork)
    backfill.begin([alice], lambda: False, lambda _pid: None)
    (own,) = RuleBook().change(came(alice))
    spender = spender_of(caller_of(alice), "own")
    (subject,) = subjects(own, spender)
    kept = BudgetTable(memory, 0).budget(own, subject, f"{spender.key_id} {spender.key_name}", time.time())
    hold = kept.hold(7, time.time())
    assert hold is not None
    kept.spend(hold, 7)
    kept.release(hold, 7)
    store = SqliteStore(tmp_path, days=30)
    spend(store, (alice, 7), (alice, 2))
    store.close()
    for _ in range(2):
        backfill.look((), KeyChanges({alice.digest: None}, list), time.monotonic())
        backfill.look((), KeyChanges(came(alice), lambda: [alice]), time.monotonic())
        backfill.look((), KeyChanges({}, lambda: [alice]), time.monotonic() + 60)
        assert os.waitpid(backfill.pid, 0)[1] == 0
        backfill.died(time.monotonic(), ended_well=True)
        assert list(spent(memory).values()) == [9]
    folder.release()


def test_start_that_is_stopped_says_nothing_of_a_time_that_is_over(tmp_path: Path) -> None:
    """SIGTERM ends the wait for what was spent before."""
    settings = load({"VELOX_LEDGER": str(tmp_path), "VELOX_BUDGETS": "[{per: gateway, usd: 1, window: total}]"})
    folder, lines, reaped = LedgerFolder(tmp_path, 1, 8192), io.StringIO(), list[int]()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(lines))
    backfill = BudgetBackfill(
        settings, BudgetMemory(1000, 1), folder, logger, lambda _work: fork(lambda: signal.pause() or 0)
    )
    backfill.begin([], lambda: True, reaped.append)
    assert (len(reaped), lines.getvalue()) == (1, "")
    folder.release()


class Readings:
    """A gateway whose budgets are read in this process, by a clock of its own. problem: why the store can't be read."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        self.settings = load({"VELOX_LEDGER": str(tmp_path), **more})
        self.folder = LedgerFolder(tmp_path, 1, 8192)
        self.memory, self.wall_s, self.now_s = BudgetMemory(1000, 1), NOW_S, 1000.0
        self.problem, self.n = "", 0
        self.rules: Sequence[BudgetRule] = self.settings.budgets
        self.keys: list[KeyEntry] = []
        self.ended_well = True
        self.backfill = BudgetBackfill(
            self.settings, self.memory, self.folder, logging.Logger("test"), self._fork, wall_s=lambda: self.wall_s
        )
        monkeypatch.setattr(budget_backfill, "record_store", self._store)

    def _store(self, settings: Settings, **how: bool) -> Store:
        if self.problem:
            raise StoreError(self.problem)
        return record_store(settings, **how)

    def _fork(self, work: Callable[[], int]) -> int:
        self.n += 1
        self.ended_well = not work()
        return 7

    def look(self, after_s: float, *come: KeyEntry) -> bool:
        """Return whether it was read."""
        self.now_s, self.wall_s, n = self.now_s + after_s, self.wall_s + after_s, self.n
        self.keys += come
        self.backfill.look(self.rules, KeyChanges(came(*come), lambda: self.keys), self.now_s)
        return self.n > n

    def died(self) -> None:
        self.backfill.died(self.now_s, ended_well=self.ended_well)


@pytest.fixture
def readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Readings]:
    found = Readings(tmp_path, monkeypatch)
    yield found
    found.folder.release()


def own_rules_of(n: int) -> list[BudgetRule]:
    return RuleBook().change(came(own(n)))


def own(n: int) -> KeyEntry:
    return entry(n, budgets=(parse_budget({"usd": 1, "window": "total"}),))


def test_reading_that_failed_is_tried_until_it_is_well(store: SqliteStore, readings: Readings) -> None:
    """Also one after the start; a reading of other budgets that is well meanwhile does not say that all are read."""
    spend(store, (own(1), 7), (own(2), 20))
    readings.look(0, own(1))
    readings.problem = "it is away"
    for after_s in (2.0, 1.0, 2.0, 4.0, 8.0, 16.0):
        assert not readings.look(after_s * 0.9) and readings.look(after_s * 0.1 + 0.01)
        readings.died()
        assert readings.memory.is_unread
    assert not readings.look(1, own(2))
    readings.problem = ""
    assert readings.look(12)
    assert list(spent(readings.memory).values()) == [20] and not readings.look(1)
    readings.died()
    assert readings.memory.is_unread
    assert readings.look(30) and readings.memory.lacking() == {rule_digest(each.identity) for each in own_rules_of(1)}
    readings.died()
    assert readings.memory.lacking() == frozenset()
    assert sorted(spent(readings.memory).values()) == [7, 20] and not readings.memory.is_unread
    assert not readings.look(60)


def test_budget_that_comes_before_another_was_read_counts_calls_between_once(
    store: SqliteStore, readings: Readings
) -> None:
    """The first one has a row, which has the call already; the other one comes in the next minute."""
    readings.rules, readings.wall_s = [rule("gateway")], NOW_S + 59
    readings.look(0)
    row = BudgetTable(readings.memory, 0).budget(readings.rules[0], "", "", readings.wall_s)
    hold = row.hold(7, readings.wall_s)
    assert hold is not None
    row.spend(hold, 7)
    row.release(hold, 7)
    named = recorded_key(caller_of(own(1)).id, "key-1")
    call = made_call(1, key=named, cost_nano=7, started_us=int(readings.wall_s * US) + US // 2)
    store.add(Batch("0.ring", 1, [row_of(0, call)], {}, NOON_S))
    readings.look(1.5, own(1))
    assert readings.look(3)
    assert set(spent(readings.memory).values()) == {7}


def test_budgets_that_keep_coming_are_read_meanwhile(store: SqliteStore, readings: Readings) -> None:
    """Together, and not before they have settled."""
    n_read = 0
    for n in range(40):
        if readings.look(1.5, own(n)):
            n_read += 1
            readings.died()
    assert n_read == 6
    assert readings.look(2)


def test_limit_that_changes_before_it_was_read_is_the_new_one(store: SqliteStore, readings: Readings) -> None:
    """A second reload corrects it: what is read does not bring the first one back."""
    spend(store, (entry(1), 7))
    for usd in (10, 5):
        readings.rules = [rule("gateway", usd)]
        assert not readings.look(1)
    assert readings.look(2)
    assert [(each.limit, each.spent) for each in readings.memory.states(NOW_S)] == [(5 * 10**9, 7)]


def test_what_was_spent_is_found_on_a_full_disk(tmp_path: Path) -> None:
    """A restart grants no budget once more. What waits for the disk is read when it can be written to again."""
    settings = load({"VELOX_LEDGER": str(tmp_path), "VELOX_BUDGETS": "[{per: gateway, usd: 1, window: total}]"})
    kept = SqliteStore(tmp_path, days=30)
    spend(kept, (entry(1), 7))
    kept.close()
    folder, memory = LedgerFolder(tmp_path, 1, 8192), BudgetMemory(1000, 1)
    is_full = True

    def fork_beside(run: Callable[[], int]) -> int:
        def work() -> int:
            if is_full:
                # No file of this process may become longer: as on a full disk, SQLite can't make the index of its log.
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            return run()

        return fork(work)

    backfill = BudgetBackfill(settings, memory, folder, logging.Logger("test"), fork_beside)
    backfill.begin([entry(1)], lambda: False, lambda _pid: None)
    assert list(spent(memory).values()) == [7] and memory.is_unread
    now_s = time.monotonic()
    for is_full in (True, False):
        now_s += 60
        backfill.look(settings.budgets, KeyChanges({}, lambda: [entry(1)]), now_s)
        backfill.died(now_s, ended_well=os.waitpid(backfill.pid, 0)[1] == 0)
        assert memory.is_unread == is_full
    assert list(spent(memory).values()) == [7]
    folder.release()
