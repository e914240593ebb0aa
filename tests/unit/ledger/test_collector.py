"""From a worker's calls to rows and sums: each once, whoever is killed in between."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.ledger.made import NAMES, NOON_S, begin, label_of, made_call, write, writer_of
from velox.heads import RequestHead
from velox.ledger.collector import MOST_OF_BATCH, Collector
from velox.ledger.record import (
    Call,
    Flag,
    NamePart,
    NameParts,
    Tokens,
    call_body,
    name_bodies,
    number_bytes,
    read_body,
    read_row,
    row_of,
)
from velox.ledger.sqlite import _DAY_MIGRATIONS, SUM_MIGRATIONS, SqliteStore
from velox.ledger.sqlite_file import connect
from velox.ledger.store import Batch, CallPlace, Dimension, StoreError, Sums, UsageQuery
from velox.ledger.writer import CallWriter
from velox.policy.request_tags import RequestTags
from velox.shm.record_ring import RecordRing
from velox.types import Caller, KeyTerms

DAY_S = 86_400
ALL = UsageQuery(NOON_S - 10 * DAY_S - NOON_S % DAY_S, NOON_S + 10 * DAY_S - NOON_S % DAY_S)


def store_of(folder: Path, *, is_reader: bool = False) -> SqliteStore:
    return SqliteStore(folder, days=30, is_reader=is_reader)


def collect(folder: Path, *paths: Path) -> int:
    """Be the ledger's process once: open everything, keep what is there, leave."""
    store = store_of(folder)
    n = Collector([RecordRing(path, 1) for path in paths], store, lambda: NOON_S).collect()
    store.close()
    return n


def kept(folder: Path) -> list[Call]:
    return list(store_of(folder, is_reader=True).calls(ALL))


def total(folder: Path) -> Sums:
    totals = store_of(folder, is_reader=True).totals(ALL)
    return totals[0].sums if totals else Sums()


def test_call_is_kept_as_it_was(tmp_path: Path) -> None:
    """Every field, and names longer than a record."""
    path = tmp_path / "0.ring"
    calls = [
        made_call(1),
        made_call(2, flags=Flag.STREAM | Flag.CUT, reason="upstream_truncated", status=502, first_byte_us=None),
        made_call(3, tokens=Tokens(), cost_nano=None, model="m" * 300, key="", account="", route="ü/…"),
        made_call(2**40, attempt=3, tokens=Tokens(2**32 - 2, 0), duration_us=2**40),
    ]
    writer = writer_of(path)
    for call in calls:
        write(writer, call)

    assert collect(tmp_path, path) >= len(calls)
    assert kept(tmp_path) == calls
    assert total(tmp_path) == Sums(4, 1, 0, 1, 200 + 2**32 - 2, 40, 80, 10, 14, 4_500)
    assert calls[0].id == "vx-0000abcd-1"


def test_name_that_is_too_long_is_cut_with_a_mark(tmp_path: Path) -> None:
    """A client may make up a model of a megabyte."""
    path = tmp_path / "0.ring"
    write(writer_of(path), made_call(1, model="ä" * 1_000_000))
    collect(tmp_path, path)

    (call,) = kept(tmp_path)
    assert call.model.startswith("äää") and call.model.endswith("ä…") and len(call.model.encode()) <= 580


def test_sums_are_grouped_and_limited(tmp_path: Path) -> None:
    """By each dimension, with times as text; only of the time that is asked for."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    for n in range(4):
        more = {"key": "00 bob"} if n == 3 else {}
        write(writer, made_call(n, started_s=NOON_S + n * 3600, upstream=f"u{n % 2}", **more))
    collect(tmp_path, path)
    store = store_of(tmp_path, is_reader=True)

    def groups(question: UsageQuery) -> dict[tuple[str, ...], int]:
        return {each.group: each.sums.n for each in store.totals(question)}

    assert groups(UsageQuery(ALL.since_s, ALL.until_s, ("upstream",))) == {("u0",): 2, ("u1",): 2}
    assert groups(UsageQuery(ALL.since_s, ALL.until_s, ("day",))) == {("2026-11-23",): 4}
    by_hour = groups(UsageQuery(NOON_S, NOON_S + 7200, ("hour", "key")))
    assert by_hour == {("2026-11-23T12:00Z", NAMES.key): 1, ("2026-11-23T13:00Z", NAMES.key): 1}
    where = (("key", "00 bob"), ("upstream", "u1"))
    assert groups(UsageQuery(ALL.since_s, ALL.until_s, ("key",), where)) == {("00 bob",): 1}
    assert groups(UsageQuery(ALL.since_s, ALL.until_s, (), (("model", "x' OR 1=1 --"),))) == {}
    found = store.calls(UsageQuery(NOON_S, NOON_S + 7200, (), (("upstream", "u1"),)))
    assert [call.number for call in found] == [1]


def test_call_counts_under_each_of_its_tags(tmp_path: Path) -> None:
    """And in sums by team and user once. One without any has no part in sums by tag."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    most = tuple(f"{n}{'x' * 63}" for n in range(8))
    write(writer, made_call(1, team="red", user="ada", tags=("a", "b", "a")))
    write(writer, made_call(2, team="red", user="bob", tags=("b",), model="other"))
    write(writer, made_call(3, team="", user="", tags=()))
    write(writer, made_call(4, team="blue", user="", tags=most))
    collect(tmp_path, path)
    store = store_of(tmp_path, is_reader=True)

    def groups(*by: Dimension, **where: str) -> dict[tuple[str, ...], int]:
        asked = UsageQuery(ALL.since_s, ALL.until_s, by, tuple(where.items()))  # type: ignore[arg-type]
        return {each.group: each.sums.n for each in store.totals(asked)}

    assert groups("team") == {("",): 1, ("blue",): 1, ("red",): 2}
    assert groups("user", team="red") == {("ada",): 1, ("bob",): 1}
    assert groups("tag") == {("a",): 1, ("b",): 2, **{(tag,): 1 for tag in most}}
    assert groups("model", tag="b") == {(NAMES.model,): 1, ("other",): 1}
    assert groups("tag", "user", tag="b", user="bob") == {("b", "bob"): 1}
    for where, found in (("tag", "a"), [1]), (("tag", "b"), [1, 2]), (("team", "red"), [1, 2]), (("tag", "ab"), []):
        calls = store.calls(UsageQuery(ALL.since_s, ALL.until_s, (), (where,)))  # type: ignore[arg-type]
        assert [call.number for call in calls] == found
    assert kept(tmp_path)[3].tags == most


def test_older_files_are_migrated_with_what_is_in_them(tmp_path: Path) -> None:
    """By the process that writes, days that are past as well. A reader that comes before it says so."""
    path = tmp_path / "0.ring"
    plain: dict[str, object] = {"team": "", "user": "", "tags": ()}
    for file in ("ledger.db", "calls-2026-11-23.db"):
        migrations = SUM_MIGRATIONS if file == "ledger.db" else _DAY_MIGRATIONS
        connect(tmp_path / file, migrations[:1], is_reader=False).close()
    with sqlite3.connect(tmp_path / "calls-2026-11-23.db") as db:
        db.execute("INSERT INTO text (text) VALUES ('k'), ('r'), ('u'), ('m'), ('ok'), ('')")
        db.execute(f"INSERT INTO call VALUES (1,1,1,1,0,1,200,0,{NOON_S}000000,5,9,1,2,3,4,4,5,7,8,0,0,0,0,90,6)")
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute(f"INSERT INTO total VALUES ('day',{NOON_S - NOON_S % DAY_S},'k','u','m',1,0,0,0,7,8,0,0,0,90)")
    with pytest.raises(StoreError, match=r"ledger\.db has schema 1, of an earlier Velox: start this one"):
        store_of(tmp_path, is_reader=True)

    write(writer_of(path), made_call(2, started_s=NOON_S + DAY_S))
    collect(tmp_path, path)

    old, new = kept(tmp_path)
    assert (old.key, old.reason, old.cost_nano, old.tokens) == ("k", "ok", 90, Tokens(7, 8, 0, 0, 0, 0))
    assert {name: getattr(old, name) for name in plain} == plain
    assert new == made_call(2, started_s=NOON_S + DAY_S)
    by_agent = store_of(tmp_path, is_reader=True).totals(UsageQuery(ALL.since_s, ALL.until_s, ("agent", "key")))
    assert [(each.group, each.sums.n) for each in by_agent] == [(("", "k"), 1), (("claude-code", NAMES.key), 1)]
    by_team = store_of(tmp_path, is_reader=True).totals(UsageQuery(ALL.since_s, ALL.until_s, ("team", "key")))
    assert [(each.group, each.sums.n) for each in by_team] == [(("", "k"), 1), (("red", NAMES.key), 1)]


def test_file_of_the_version_before_keeps_what_is_in_it(tmp_path: Path) -> None:
    """Its calls have no more than was recorded; their key's id is the start of what the record has for the key."""
    connect(tmp_path / "ledger.db", SUM_MIGRATIONS[:2], is_reader=False).close()
    connect(tmp_path / "calls-2026-11-23.db", _DAY_MIGRATIONS[:3], is_reader=False).close()
    with sqlite3.connect(tmp_path / "calls-2026-11-23.db") as db:
        texts = ("0011223344556677 ada", "r", "u", "m", "ok", "v1", "red", "ada", "a,b", "")
        db.executemany("INSERT INTO text (text) VALUES (?)", [(each,) for each in texts])
        row = f"1,2,1,1,0,1,200,1,{NOON_S}000000,5,9,1,2,3,4,4,5,7,8,3,2,1,4,90,6,7,8,9"
        db.execute(f"INSERT INTO call VALUES ({row})")

    store_of(tmp_path).close()

    (old,) = kept(tmp_path)
    assert old == made_call(
        2, process=1, flags=Flag.STREAM, first_byte_us=5, duration_us=9, route="r", upstream="u", model="m",
        upstream_model="m", tokens=Tokens(7, 8, 3, 2, 1, 4), cost_nano=90, prices="v1", user="ada", tags=("a", "b"),
        account="", path="", tier="", answered_model="", price="", agent="",
    )  # fmt: skip
    assert old.key_id == "0011223344556677"


def test_m12_file_without_units_beside_tokens_is_migrated(tmp_path: Path) -> None:
    """M12: its calls have none, and those that come now have what they are paid by."""
    connect(tmp_path / "ledger.db", SUM_MIGRATIONS[:3], is_reader=False).close()
    connect(tmp_path / "calls-2026-11-23.db", _DAY_MIGRATIONS[:4], is_reader=False).close()
    with sqlite3.connect(tmp_path / "calls-2026-11-23.db") as db:
        texts = ("0011223344556677 ada", "r", "u", "m", "ok", "v1", "red", "ada", "a,b", "")
        db.executemany("INSERT INTO text (text) VALUES (?)", [(each,) for each in texts])
        row = f"1,2,1,1,0,1,200,1,{NOON_S}000000,5,9,1,2,3,4,4,5,7,8,3,2,1,4,90,6,7,8,9"
        db.execute(f"INSERT INTO call VALUES ({row},10,10,10,10,10,11,12,13,14,15,16,17)")

    path = tmp_path / "0.ring"
    write(writer_of(path), made_call(9, started_s=NOON_S + 1, tokens=ALL_KINDS))
    collect(tmp_path, path)

    old, new = kept(tmp_path)
    assert old.tokens == Tokens(7, 8, 3, 2, 1, 4, *range(11, 18))
    assert new.tokens == ALL_KINDS and None not in new.tokens


def test_file_with_calls_keeps_their_order_and_takes_more(tmp_path: Path) -> None:
    """To write millions of calls anew would keep a start waiting. What it has counts once, as in a file by time."""
    file, path, n_old = tmp_path / "calls-2026-11-23.db", tmp_path / "0.ring", 20_000
    connect(tmp_path / "ledger.db", SUM_MIGRATIONS, is_reader=False).close()
    connect(file, _DAY_MIGRATIONS[:5], is_reader=False).close()
    with sqlite3.connect(file) as db:
        texts = ("0011223344556677 rare", "r", "u", "m", "ok", "v1", "")
        db.executemany("INSERT INTO text (text) VALUES (?)", [(each,) for each in texts])
        db.execute(
            f"WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {n_old})"
            f" INSERT INTO call SELECT 43981,x,1,1,0,1,200,0,{NOON_S}000000+x,5,9,1,2,3,4,4,5,7,8,0,0,0,0,90,6"
            f"{',7' * 8}{',NULL' * 14} FROM n"
        )
        n_pages, before = db.execute("PRAGMA page_count").fetchone(), db.execute("SELECT * FROM call").fetchall()

    store_of(tmp_path).close()
    with sqlite3.connect(file) as db:
        assert db.execute("PRAGMA page_count").fetchone() == n_pages
        assert db.execute("SELECT * FROM call").fetchall() == [(*row, 0) for row in before]  # of no agent
        assert db.execute("PRAGMA user_version").fetchone() == (7,)
    writer = writer_of(path)
    write(writer, made_call(7, started_us=NOON_S * 1_000_000 + 7))  # that was recorded before, as of a killed process
    write(writer, made_call(n_old + 1, started_s=NOON_S + 1))
    collect(tmp_path, path)

    calls = kept(tmp_path)
    assert [call.number for call in calls] == list(range(1, n_old + 2))
    assert (calls[6].key, calls[-1]) == (texts[0], made_call(n_old + 1, started_s=NOON_S + 1))
    assert total(tmp_path).n == n_old + 1  # sums were missing, and made anew


@pytest.mark.parametrize("is_old", [False, True])
def test_calls_by_time_and_by_key_are_found_by_an_index(tmp_path: Path, is_old: bool) -> None:
    """In a file by time, and in one of an earlier Velox that had calls when it was opened."""
    path, file = tmp_path / "0.ring", tmp_path / "calls-2026-11-23.db"
    if is_old:
        connect(file, _DAY_MIGRATIONS[:5], is_reader=False).close()
        with sqlite3.connect(file) as db:
            db.execute("INSERT INTO text (text) VALUES ('k')")
            db.execute(f"INSERT INTO call VALUES (1,1,1,1,0,1,200,0,{NOON_S}000000{',1' * 24}{',NULL' * 14})")
    writer = writer_of(path)
    for n in range(2, 5):
        write(writer, made_call(n, key=f"{n:016x} k"))
    collect(tmp_path, path)
    store = store_of(tmp_path, is_reader=True)
    asked: list[str] = []
    store._day("2026-11-23")._db.set_trace_callback(asked.append)

    by_time = list(store._day("2026-11-23").calls(CallPlace(0, -1, 0, 0), 2**62, (("key", f"{3:016x}"),), None))
    by_key = list(store.calls(UsageQuery(ALL.since_s, ALL.until_s, (), (("key", f"{3:016x}"),))))

    assert [[call.number for call in calls] for calls in (by_time, by_key)] == [[3], [3]]
    with sqlite3.connect(file) as db:
        plans = [
            db.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()[0][3]
            for sql in asked
            if sql.startswith("SELECT * FROM call")
        ]
    index = "INDEX call_started" if is_old else "PRIMARY KEY"
    assert [plan.partition(" (")[0] for plan in plans] == [
        f"SEARCH call USING {index}",
        "SEARCH call USING INDEX call_key",
    ]
    assert all("started_us" in plan for plan in plans)


def _body_of_names(*, prices: int) -> bytes:
    """Return the record of a call all of whose names have number 1. prices: the number of theirs."""
    return call_body(
        process=1, number=2, attempt=1, endpoint=1, status=200, flags=0, started_us=3, first_byte_us=None,
        duration_us=4, names=number_bytes(1, 1, 1, 1, 1), reason=1, tokens=Tokens(1, 2), cost_nano=5, prices=prices,
    )  # fmt: skip


def test_record_of_an_earlier_version_has_no_owners() -> None:
    """It waits in a ring when Velox is replaced by a newer one: zeros stand there."""
    names = NameParts({1: "text"})
    body = _body_of_names(prices=1)
    call = read_body(body, names)
    assert isinstance(call, Call)
    assert (call.team, call.user, call.tags, call.prices) == ("", "", (), "text")
    assert (call.key, call.account, call.path, call.tier, call.answered_model, call.price) == ("text", *("",) * 5)


def test_number_that_has_another_text_by_now_is_read_as_that() -> None:
    """Readers keep the newest text of a number, also for calls whose numbers were read before."""
    names = NameParts()
    body = _body_of_names(prices=0)
    models = []
    for text in ("", "old", "old", "new"):
        if text:
            (part,) = (read_body(each, names) for each in name_bodies(1, text))
            assert isinstance(part, NamePart)
            names.add(part)
        call = read_body(body, names)
        assert isinstance(call, Call)
        models.append(call.model)
    assert models == ["?", "old", "old", "new"]


def test_new_name_makes_a_reader_forget_nothing() -> None:
    """Stores know a kind by the object that it is: made anew for each name, the old ones would stay in memory."""
    names = NameParts({1: "text"})
    body = _body_of_names(prices=0)
    kinds = []
    for number in (2, 3):
        row = read_row(0, body, names, None)
        assert isinstance(row, tuple)
        kinds.append(row[14])
        (part,) = (read_body(each, names) for each in name_bodies(number, "new"))
        assert isinstance(part, NamePart)
        names.add(part)
    assert kinds[0] is kinds[1]


ALL_KINDS = Tokens(1000, 200, 300, 50, 20, 30, 40, 15, 60, 70, 80, 3, 5, 90_000, 4096, 2, 8000, 29, 28, 7)


def test_sound_pictures_and_searches_are_kept(tmp_path: Path) -> None:
    """Few calls have them: they are in a record of their own, right before that of their call."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    calls = [made_call(1, tokens=ALL_KINDS), made_call(2), made_call(3, tokens=Tokens(5, 6, web_searches=2**40))]
    for call in calls:
        write(writer, call)
    collect(tmp_path, path)
    calls[2] = made_call(3, tokens=Tokens(5, 6, web_searches=2**32 - 2))
    assert kept(tmp_path) == calls


def test_call_is_not_parted_from_its_units_by_a_batch(tmp_path: Path) -> None:
    """A reader that begins with the second batch has them all the same."""
    path = tmp_path / "0.ring"
    ring, n = RecordRing(path, 3 * MOST_OF_BATCH), 0
    writer = CallWriter(ring, 0xABCD)
    ring.recover()
    write(writer, made_call(n))
    while ring.head < MOST_OF_BATCH - 1:
        n += 1
        write(writer, made_call(n))
    write(writer, made_call(n + 1, tokens=ALL_KINDS))
    assert ring.head == MOST_OF_BATCH + 1

    assert collect(tmp_path, path) == MOST_OF_BATCH - 1
    assert collect(tmp_path, path) == 2
    assert kept(tmp_path)[-1] == made_call(n + 1, tokens=ALL_KINDS)


def test_call_whose_units_are_damaged_says_so(tmp_path: Path) -> None:
    """What its record tells is kept; that there was more is a flag."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    write(writer, made_call(1))
    at = RecordRing(path, 1).head
    write(writer, made_call(2, tokens=ALL_KINDS))
    data = bytearray(path.read_bytes())
    data[-1000 * 128 + at * 128 + 30] ^= 1
    path.write_bytes(data)
    ring = RecordRing(path, 1)
    ring.start()
    ring.recover()
    store, now_s = store_of(tmp_path), 0.0
    collector = Collector([ring], store, lambda: now_s)
    collector.collect()
    now_s = 2.0
    collector.collect()
    store.close()
    assert kept(tmp_path) == [made_call(1), made_call(2, tokens=Tokens(*ALL_KINDS[:6]), flags=Flag.HAS_REST)]


def test_calls_of_two_days_are_in_two_files(tmp_path: Path) -> None:
    """By when they began. What is older than it is kept goes with its file; its sums stay."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    write(writer, made_call(1, started_s=NOON_S))
    write(writer, made_call(2, started_s=NOON_S + DAY_S))
    collect(tmp_path, path)
    files = sorted(each.name for each in tmp_path.glob("calls-*.db"))
    assert files == ["calls-2026-11-23.db", "calls-2026-11-24.db"]

    store = store_of(tmp_path)
    store.prune(NOON_S + 31 * DAY_S)
    store.close()

    assert sorted(each.name for each in tmp_path.glob("calls-*")) == ["calls-2026-11-24.db"]
    assert [call.number for call in kept(tmp_path)] == [2]
    assert total(tmp_path).n == 2


@pytest.mark.parametrize("how", ["open", "ended and not closed", "closed"])
def test_call_of_a_killed_worker_is_kept_once(tmp_path: Path, how: str) -> None:
    """By its estimate while it was open, as it was once it had ended, also where both are in the ring."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    write(writer, made_call(7))
    call = made_call(8)
    if how == "open":
        begin(writer, call)
    else:
        before = path.read_bytes()
        write(writer, call)
        if how == "ended and not closed":
            # The open record as it was before it was closed.
            after, page = bytearray(path.read_bytes()), slice(4096, 4096 + 4096 * 128)
            begin(writer_of(tmp_path / "other.ring"), call)
            other = writer_of(tmp_path / "other2.ring")
            write(other, made_call(7))
            begin(other, call)
            after[page] = (tmp_path / "other2.ring").read_bytes()[page]
            path.write_bytes(after)
            assert before != after
    RecordRing(path, 1).recover()
    collect(tmp_path, path)

    killed = made_call(
        8, status=0, flags=Flag.ESTIMATED | Flag.LOST | Flag.RECOVERED, first_byte_us=None, duration_us=0,
        reason="killed", tokens=Tokens(50, 10), cost_nano=900, tier="", answered_model="",
    )  # fmt: skip
    assert kept(tmp_path) == [made_call(7), killed if how == "open" else call]
    assert total(tmp_path).n == 2


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
@pytest.mark.slow
def test_case_16_crash_between_any_two_commits_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random
) -> None:
    """The files are committed one after the other: each may be behind, and the ring is asked again."""
    folder = tmp_path_factory.mktemp("ledger")
    path = folder / "0.ring"
    writer = writer_of(path, 300)
    number = 0
    for _ in range(8):
        for _ in range(chance.randrange(12)):
            number += 1
            write(
                writer, made_call(number, started_s=NOON_S + chance.choice([0, DAY_S]), key=f"k{chance.randrange(9)}")
            )
        store = store_of(folder)
        _crash_after(store, chance.randrange(4))
        try:
            Collector([RecordRing(path, 1)], store, lambda: NOON_S).collect()
        except _CrashError:
            pass
        store.close()
    collect(folder, path)

    assert sorted(call.number for call in kept(folder)) == list(range(1, number + 1))
    assert total(folder).n == number
    assert RecordRing(path, 1).tail == RecordRing(path, 1).head


class _CrashError(Exception):
    """The process was killed here."""


def _crash_after(store: SqliteStore, n_commits: int) -> None:
    """Have the store end after so many files were committed."""
    add_sums: Callable[..., None] = store._add_sums
    day: Callable[[str], object] = store._day
    left = n_commits

    def counted_day(name: str) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise _CrashError
        return day(name)

    def counted_sums(*args: object) -> None:
        if left <= 0:
            raise _CrashError
        add_sums(*args)

    store._day = counted_day  # type: ignore[method-assign,assignment]
    store._add_sums = counted_sums  # type: ignore[method-assign]


def test_batch_that_comes_again_is_not_added_again(tmp_path: Path) -> None:
    """Whole, or with more behind it."""
    store = store_of(tmp_path)
    from_first = [made_call(n) for n in range(5)]
    first = Batch("r", 3, [row_of(n, from_first[n]) for n in range(3)], {1: "a"}, NOON_S)
    more = Batch("r", 5, [row_of(n, from_first[n]) for n in range(5)], {1: "a", 2: "b"}, NOON_S)
    for batch in (first, first, more, first):
        store.add(batch)

    assert (store.position("r"), store.names("r")) == (5, {1: "a", 2: "b"})
    assert [call.number for call in store.calls(ALL)] == list(range(5))
    assert store.totals(ALL)[0].sums.n == 5


def test_names_are_known_after_a_restart(tmp_path: Path) -> None:
    """They were recorded once, at their first use."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    write(writer, made_call(1))
    collect(tmp_path, path)
    write(writer, made_call(2))
    collect(tmp_path, path)

    assert kept(tmp_path) == [made_call(1), made_call(2)]


def test_names_of_a_dead_writer_are_forgotten(tmp_path: Path) -> None:
    """Each writer has its own: of writers that die again and again memory and files would be full."""
    ring, store = RecordRing(tmp_path / "0.ring", 1000), store_of(tmp_path)
    collector = Collector([ring], store, lambda: float(NOON_S))
    calls = [made_call(n, process=n, model=f"model {n % 2}") for n in range(1, 6)]
    n_names = []
    for call in calls:
        ring.recover()
        writer = CallWriter(ring, call.process)
        begin(writer, call)  # it dies with this call open
        write(writer, call._replace(number=10))
        collector.collect()
        collector.collect()
        ((_, _, names),) = collector.names()
        n_names.append(len(names))
    ring.recover()
    collector.collect()

    assert n_names[0] > 0 and set(n_names[1:]) == {n_names[1]} and n_names[1] <= n_names[0]
    found = list(store.calls(ALL))
    assert [call for call in found if call.number == 10] == [call._replace(number=10) for call in calls]
    killed = [call for call in found if call.number != 10]
    assert [(call.key, call.model, call.reason) for call in killed] == [(NAMES.key, c.model, "killed") for c in calls]


def test_names_of_a_call_that_found_no_room_are_kept(tmp_path: Path) -> None:
    """Its writer died when the ring was full: its record comes behind those of the next one."""
    path = tmp_path / "0.ring"
    ring, store = RecordRing(path, 40), store_of(tmp_path)
    collector = Collector([RecordRing(path, 40)], store, lambda: float(NOON_S))
    ring.recover()
    writer = CallWriter(ring, 1)
    begin(writer, made_call(1, process=1, model="of the dead"))
    while not writer.is_full:
        write(writer, made_call(2, process=1))
    assert ring.recover() == 0
    collector.collect()
    ring.begin()
    write(CallWriter(ring, 2), made_call(3, process=2))
    collector.collect()
    assert ring.recover() == 1
    collector.collect()
    write(CallWriter(ring, 3), made_call(4, process=3))
    collector.collect()

    found = {call.number: call for call in store.calls(ALL)}
    assert found[1].model == "of the dead" and found[1].key == NAMES.key
    assert found[4] == made_call(4, process=3)
    ((_, _, names),) = collector.names()
    assert "of the dead" not in names.values()


@pytest.mark.slow
@pytest.mark.parametrize("n_within", [1, 4])
def test_name_that_a_batch_would_cut_is_known_after_a_restart(tmp_path: Path, n_within: int) -> None:
    """It takes several records: all of them come in the next batch."""
    path, model = tmp_path / "0.ring", "m" * 500
    ring = RecordRing(path, 6000)
    ring.recover()
    writer = CallWriter(ring, 0xABCD)
    n = 0
    while ring.head < MOST_OF_BATCH - n_within:
        write(writer, made_call(n := n + 1))
    write(writer, made_call(n + 1, model=model))

    assert collect(tmp_path, path) == MOST_OF_BATCH - n_within
    assert collect(tmp_path, path) == 6 and collect(tmp_path, path) == 0
    assert kept(tmp_path)[-1] == made_call(n + 1, model=model)


def test_name_that_is_being_written_waits_for_its_rest(tmp_path: Path) -> None:
    """For a second: whoever wrote it may have been killed. What comes behind it then is kept."""
    path, model, now_s = tmp_path / "0.ring", "m" * 500, [float(NOON_S)]
    ring = RecordRing(path, 100)
    ring.recover()
    first, *others = name_bodies(ring.next_name(), model)
    ring.put(first)
    store = store_of(tmp_path)
    assert Collector([RecordRing(path, 1)], store, lambda: now_s[0]).collect() == 0
    for body in others:
        ring.put(body)
    assert Collector([RecordRing(path, 1)], store, lambda: now_s[0]).collect() == 5
    assert list(store.names(RecordRing(path, 1).name).values()) == [model]

    collector = Collector([RecordRing(path, 1)], store, lambda: now_s[0])
    ring.put(first)
    assert collector.collect() == 0 and collector.n_waiting == 1
    now_s[0] += 1.5
    assert collector.collect() == 1 and collector.n_waiting == 0
    write(CallWriter(ring, 0xABCD), made_call(1))
    collector.collect()
    assert list(store.calls(ALL)) == [made_call(1)]


@pytest.mark.more
def test_more_names_than_a_writer_remembers(tmp_path: Path) -> None:
    """A client that makes up models pushes nobody's name out for long."""
    path = tmp_path / "0.ring"
    writer = writer_of(path, 40_000)
    for n in range(10_000):
        write(writer, made_call(n, model=f"made-up-{n}"))
    write(writer, made_call(10_001))
    while collect(tmp_path, path):
        pass

    calls = kept(tmp_path)
    assert [call.model for call in calls[:10_000]] == [f"made-up-{n}" for n in range(10_000)]
    assert calls[-1] == made_call(10_001)


def test_client_that_makes_up_tags_takes_no_name_from_an_open_call(tmp_path: Path) -> None:
    """All tags of a call are one name: 16 of them in groups of four, in any order, would be 43,680."""
    path = tmp_path / "0.ring"
    writer, tags, caller = writer_of(path, 8000), RequestTags(("tags",)), Caller("ci", KeyTerms(tags=("eu",)), b"1" * 8)
    store = store_of(tmp_path)
    collector = Collector([RecordRing(path, 1)], store, lambda: NOON_S)
    victim = begin(writer, made_call(1))
    orders = itertools.permutations([b"t%d" % n for n in range(16)], 4)
    for n, names in enumerate(itertools.islice(orders, 40_000)):
        head = RequestHead.of(b"POST", b"/v1/chat/completions", [(b"x-velox-tags", b",".join(names))], None)
        call = made_call(2, key="bb bob", tags=tuple(tags.of(head, None, caller, 0.0).split(",")))
        writer.forget(begin(writer, call))
        if n % 1000 == 0:
            collector.collect()
    writer.end(victim, status=200, reason="ok", flags=0, first_byte_us=1, duration_us=2,
               tokens=made_call(1).tokens, cost_nano=5,
               prices="")  # fmt: skip
    collector.collect()
    assert [call.key for call in store.calls(ALL)] == [NAMES.key]


def test_names_that_come_together_in_many_ways_keep_their_numbers(tmp_path: Path) -> None:
    """A new number for each of them, as often as a writer has seen so many sets, would push others out."""
    writer = writer_of(tmp_path / "0.ring")
    call = made_call(1)
    for n in range(10_000):
        names = call._replace(model=f"m{n % 100}", tags=(f"t{n // 100}",))
        writer.forget(begin(writer, names))
    ring = RecordRing(tmp_path / "0.ring", 1)
    found = [read_body(body, NameParts()) for body in ring.read(0, 1000) if body is not None]
    texts = [part.text for part in found if isinstance(part, NamePart)]
    assert len(texts) == ring.head and len(texts) == len(set(texts)) > 200


def test_full_ring_keeps_totals(tmp_path: Path) -> None:
    """What no record tells stands in the sums, once, under no key."""
    path = tmp_path / "0.ring"
    writer = writer_of(path, 10)
    for n in range(20):
        write(writer, made_call(n))
    assert writer.is_full
    collect(tmp_path, path)
    collect(tmp_path, path)
    n_rows = len(kept(tmp_path))
    write(writer, made_call(99))
    collect(tmp_path, path)

    assert n_rows < 10
    assert total(tmp_path).n == 21 == n_rows + 1 + (20 - n_rows)
    assert total(tmp_path).input == 2_100
    by_key = store_of(tmp_path, is_reader=True).totals(UsageQuery(ALL.since_s, ALL.until_s, ("key",)))
    assert {each.group[0]: each.sums.n for each in by_key} == {"(not recorded)": 20 - n_rows, NAMES.key: n_rows + 1}


def test_call_that_began_with_a_full_ring_is_recorded_under_its_names(tmp_path: Path) -> None:
    """They are those of a key that is new: it had no number when the call began, and has one when it ends."""
    path = tmp_path / "0.ring"
    writer = writer_of(path, 30)
    while not writer.is_full:
        write(writer, made_call(1))
    call = made_call(2, key="bb bob", model="m" * 300, team="blue", tags=("new",))
    opened = [begin(writer, call), begin(writer, call._replace(number=3))]
    collect(tmp_path, path)
    for each in opened:
        writer.end(
            each, status=200, reason="ok", flags=0, first_byte_us=call.first_byte_us, duration_us=call.duration_us,
            tokens=call.tokens, cost_nano=call.cost_nano, prices=label_of(call), tier=call.tier,
            answered=call.answered_model,
        )  # fmt: skip
    collect(tmp_path, path)

    assert kept(tmp_path)[-2:] == [call, call._replace(number=3)]


def test_damaged_record_is_left_out_after_a_while(tmp_path: Path) -> None:
    """It may be on its way: a second later it is not. Those behind it are kept."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    for n in range(3):
        write(writer, made_call(n))
    data = bytearray(path.read_bytes())
    at = 4096 + 4096 * 128 + 15 * 128  # fourteen names before the calls: this is the second call
    data[at + 40] ^= 1
    path.write_bytes(data)
    now_s = [float(NOON_S)]
    store = store_of(tmp_path)
    collector = Collector([RecordRing(path, 1)], store, lambda: now_s[0])

    collector.collect()
    assert len(list(store.calls(ALL))) == 1
    assert collector.collect() == 0
    now_s[0] += 1.5
    assert collector.collect() == 2
    assert [call.number for call in store.calls(ALL)] == [0, 2]
    (damaged,) = sqlite3.connect(tmp_path / "ledger.db").execute("SELECT damaged FROM ring").fetchone()
    assert damaged == 1


def damage(path: Path, records: range) -> None:
    """Have pages of the ring not written."""
    with path.open("r+b") as file:
        for number in records:
            file.seek(4096 + 4096 * 128 + number * 128)
            file.write(bytes(128))


def test_damaged_records_that_were_counted_at_once_are_waited_for_once(tmp_path: Path) -> None:
    """Wherever they are. One that is counted meanwhile has a second of its own."""
    path, now_s = tmp_path / "0.ring", [float(NOON_S)]
    writer = writer_of(path)
    for n in range(100):
        write(writer, made_call(n))
    n_records = RecordRing(path, 1).head
    damage(path, range(32, 64))
    damage(path, range(96, 98))
    store = store_of(tmp_path)
    collector = Collector([RecordRing(path, 1)], store, lambda: now_s[0])
    assert collector.collect() == 32 and collector.collect() == 0
    now_s[0] += 0.5
    write(writer, made_call(100))
    write(writer, made_call(101))
    damage(path, range(n_records, n_records + 1))
    now_s[0] += 0.5

    assert collector.collect() == n_records - 32
    assert collector.n_waiting == 2 and collector.collect() == 0
    now_s[0] += 1.0
    assert collector.collect() == 2 and collector.n_waiting == 0
    (damaged,) = sqlite3.connect(tmp_path / "ledger.db").execute("SELECT damaged FROM ring").fetchone()
    assert damaged == 35 and total(tmp_path).n == 102 - 35


def test_damaged_records_of_dead_writers_are_not_waited_for(tmp_path: Path) -> None:
    """At a start: budgets are read behind them. What is counted from then on may be on its way."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    for n in range(100):
        write(writer, made_call(n))
    damage(path, range(32, 64))
    damage(path, range(96, 98))
    ring = RecordRing(path, 1)
    ring.start()
    ring.recover()
    n_left = ring.head
    write(CallWriter(ring, 0xBBBB), made_call(100, process=0xBBBB))
    damage(path, range(n_left, n_left + 1))

    store = store_of(tmp_path)
    collector = Collector([RecordRing(path, 1)], store, lambda: NOON_S)
    assert collector.collect() == n_left
    assert collector.collect() == 0 < collector.n_waiting
    assert total(tmp_path).n == 100 - 34


def test_ring_made_again_begins_anew(tmp_path: Path) -> None:
    """Its numbers are below those that the store has seen of the one before."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    for n in range(5):
        write(writer, made_call(n))
    collect(tmp_path, path)
    path.unlink()
    write(writer_of(path), made_call(5))
    collect(tmp_path, path)

    assert [call.number for call in kept(tmp_path)] == list(range(6))


class LostPower:
    """A ring whose calls 0 to 29 are safe, after a power failure: its header is of the time when it had ten of them.

    has_records: the kernel had written their pages. start() and write() are a worker that comes then, with its own key.
    """

    def __init__(self, folder: Path, *, has_records: bool) -> None:
        self.folder, self.path = folder, folder / "0.ring"
        writer = writer_of(self.path)
        for n in range(10):
            write(writer, made_call(n))
        collect(folder, self.path)
        before = self.path.read_bytes()
        for n in range(10, 30):
            write(writer, made_call(n, key=f"{n:016x} old", model=f"old-{n}"))
        collect(folder, self.path)
        if has_records:
            with self.path.open("r+b") as file:
                file.write(before[:4096])
        else:
            self.path.write_bytes(before)
        self.n_calls = 30

    def start(self) -> None:
        """Be the supervisor, then a worker that begins."""
        self.ring = RecordRing(self.path, 1)
        self.ring.start()
        self.ring.recover()
        self._writer = CallWriter(self.ring, 0xBBBB)

    def write(self, n: int) -> None:
        for number in range(self.n_calls, self.n_calls + n):
            write(self._writer, made_call(number, process=0xBBBB, key="8899aabbccddeeff new", team="new", model="new"))
        self.n_calls += n

    def check(self) -> None:
        """All calls are kept once, each under its own key."""
        while collect(self.folder, self.path):
            pass
        calls = kept(self.folder)
        assert sorted(call.number for call in calls) == list(range(self.n_calls))
        for call in calls:
            wanted = "0011223344556677 ada" if call.number < 10 else f"{call.number:016x} old"
            assert call.key == ("8899aabbccddeeff new" if call.process == 0xBBBB else wanted)
        assert total(self.folder).n == self.n_calls
        assert self.ring.head == self.ring.tail


@pytest.mark.parametrize("has_records", [False, True])
def test_header_older_than_the_store_loses_no_call(tmp_path: Path, has_records: bool) -> None:
    """The store has synced what it has, nobody has synced the ring. What comes now is another call, and key."""
    lost = LostPower(tmp_path, has_records=has_records)
    lost.start()
    lost.write(5)
    collect(tmp_path, lost.path)
    lost.write(200)
    lost.check()


def test_header_older_than_the_store_is_known_when_the_store_comes_late(tmp_path: Path) -> None:
    """It was away: meanwhile the ring has had more records than the store knew, and another start."""
    lost = LostPower(tmp_path, has_records=False)
    lost.start()
    lost.write(100)
    lost.start()
    lost.write(100)
    lost.check()


def test_reader_killed_while_it_renames_a_ring_does_it_again(tmp_path: Path) -> None:
    """The store knew the other name already, the ring did not."""
    lost = LostPower(tmp_path, has_records=False)
    lost.start()
    lost.write(3)
    assert lost.ring.left is not None
    store = store_of(tmp_path)
    store.renew(lost.ring.name, lost.ring.name_with(7), lost.ring.left)
    store.close()
    lost.check()


def test_second_power_failure_finds_the_new_name(tmp_path: Path) -> None:
    """The new name is on the disk before anything is kept under it: what is read back is never older than that."""
    lost = LostPower(tmp_path, has_records=False)
    lost.start()
    Collector([RecordRing(lost.path, 1)], store_of(tmp_path), lambda: NOON_S)
    before = lost.path.read_bytes()
    lost.write(100)
    collect(tmp_path, lost.path)
    lost.path.write_bytes(before)
    lost.start()
    lost.write(20)
    lost.check()


def test_ring_that_is_as_the_store_knows_it_keeps_its_name(tmp_path: Path) -> None:
    """After any other start. What is safe, and was not let go of yet, is let go of."""
    path = tmp_path / "0.ring"
    write(writer_of(path), made_call(1))
    before = path.read_bytes()
    collect(tmp_path, path)
    path.write_bytes(before)  # killed before the ring knew
    ring = RecordRing(path, 1)
    name = ring.name
    ring.start()
    assert ring.tail == 0
    assert collect(tmp_path, path) == 0
    assert (ring.name, ring.left, ring.tail) == (name, None, ring.head)
    assert total(tmp_path).n == 1


def test_store_that_is_new_takes_what_the_ring_still_has(tmp_path: Path) -> None:
    """The files were moved away: the ring goes on where it is."""
    path = tmp_path / "0.ring"
    writer = writer_of(path)
    write(writer, made_call(1))
    collect(tmp_path, path)
    for each in tmp_path.glob("*.db*"):
        each.unlink()
    write(writer, made_call(2, key="new", route="new", upstream="new", model="new", upstream_model="new"))
    collect(tmp_path, path)

    assert [call.key for call in kept(tmp_path)] == ["new"]


def test_file_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """And of a file that is none, or can't be written, it is said which."""
    store_of(tmp_path).close()
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match=r"ledger\.db has schema 99, written by a newer Velox"):
        store_of(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "ledger.db").write_bytes(b"this is no database, and was never one" * 100)
    with pytest.raises(StoreError, match=r"ledger\.db: file is not a database"):
        store_of(other)
    with pytest.raises(StoreError, match=r"nowhere/ledger\.db: unable to open"):
        store_of(tmp_path / "nowhere")


def test_day_that_can_not_be_written_leaves_the_ring_as_it_is(tmp_path: Path) -> None:
    """The next attempt finds all of it."""
    path = tmp_path / "0.ring"
    write(writer_of(path), made_call(1))
    (tmp_path / "calls-2026-11-23.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="calls-2026-11-23"):
        collect(tmp_path, path)
    assert RecordRing(path, 1).tail == 0
    (tmp_path / "calls-2026-11-23.db").unlink()
    collect(tmp_path, path)

    assert kept(tmp_path) == [made_call(1)]


def test_sums_by_agent_that_an_earlier_velox_did_not_add_to_are_made_anew(tmp_path: Path) -> None:
    """It goes on beside a newer one in an upgrade, and knows no such sums: the rows tell."""
    path = tmp_path / "0.ring"
    write(writer_of(path), made_call(1))
    collect(tmp_path, path)
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute("DELETE FROM agent_total")

    store = store_of(tmp_path)
    (told,) = store.check()
    assert "had less than its rows: made anew from 1 calls" in told
    found = store.totals(UsageQuery(ALL.since_s, ALL.until_s, ("agent",)))
    assert [(each.group, each.sums.n) for each in found] == [(("claude-code",), 1)]
    assert total(tmp_path).n == 1 and store.check() == []
