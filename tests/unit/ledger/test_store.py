"""What every store of records does, whichever database it is."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.unit.ledger.made import NAMES, NOON_S, made_call
from velox.ledger.postgres import PostgresStore
from velox.ledger.record import KEPT_NAMES, Call, Flag, NameParts, Tokens, call_body, number_bytes, read_body, row_of
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch, CallPlace, Carried, Dimension, Store, StoreError, Sums, UsageQuery

DAY_S = 86_400
MIDNIGHT_S = NOON_S - NOON_S % DAY_S
ALL = UsageQuery(MIDNIGHT_S - 10 * DAY_S, MIDNIGHT_S + 10 * DAY_S)


class Stores:
    """Opens stores on one database; closes them at the end of a test."""

    def __init__(self, opened: Callable[[bool], Store]) -> None:
        self._opened = opened
        self._all: list[Store] = []

    def __call__(self, *, is_reader: bool = False) -> Store:
        store = self._opened(is_reader)
        self._all.append(store)
        return store

    def close(self) -> None:
        for store in self._all:
            store.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    if request.param == "sqlite":
        found = Stores(lambda is_reader: SqliteStore(tmp_path, days=30, is_reader=is_reader))
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.database()
        found = Stores(lambda is_reader: PostgresStore(url, gateway="here", days=30, is_reader=is_reader))
    yield found
    found.close()


@pytest.fixture
def store(stores: Stores) -> Store:
    return stores()


def batch(calls: list[Call], first: int = 0, ring: str = "0.ring", **more: object) -> Batch:
    numbered = [row_of(first + n, call) for n, call in enumerate(calls)]
    fields = {"names": {}, "time_s": NOON_S, **more}
    return Batch(ring, first + len(calls), numbered, **fields)  # type: ignore[arg-type]


def kept(store: Store, **where: str) -> list[Call]:
    return list(store.calls(dataclasses.replace(ALL, where=tuple(where.items()))))  # type: ignore[arg-type]


def groups(store: Store, *by: Dimension, **where: str) -> dict[tuple[str, ...], int]:
    question = dataclasses.replace(ALL, by=by, where=tuple(where.items()))  # type: ignore[arg-type]
    return {each.group: each.sums.n for each in store.totals(question)}


def total(store: Store) -> Sums:
    totals = store.totals(ALL)
    return totals[0].sums if totals else Sums()


def test_calls_are_kept_as_they_were(stores: Stores) -> None:
    """Every field, at its least and its most, in the order of their start."""
    calls = [
        made_call(1),
        made_call(2, flags=Flag.STREAM | Flag.CUT, status=502, first_byte_us=None, started_s=NOON_S + 1),
        made_call(3, tokens=Tokens(), cost_nano=None, key="", tags=(), team="", user="", started_s=NOON_S + 2),
        made_call(2**40, attempt=255, tokens=Tokens(2**32 - 2, 0), duration_us=2**40, started_s=NOON_S + 3),
        made_call(4, process=2**32 - 1, cost_nano=2**62, started_s=NOON_S + 4),
        made_call(5, attempt=0, flags=Flag.MIRROR, started_s=NOON_S + DAY_S),
        made_call(6, tokens=Tokens(*range(1, 13)), started_s=NOON_S + DAY_S + 1),
        made_call(7, account="", path="", tier="", answered_model="", price="", started_s=NOON_S + DAY_S + 2),
    ]
    stores().add(batch(list(reversed(calls))))

    assert kept(stores(is_reader=True)) == calls
    assert total(stores(is_reader=True)).cost_nano == 2**62 + 6 * 1_500


@pytest.mark.parametrize(
    "text", ["x' OR 1=1 --", 'a"b', "%_", "\N{GRINNING FACE}", "\U0010fffd", "$1 ?", "{a,b}", "\\x00", "x" * 580]
)
def test_hostile_texts_are_kept_and_found(store: Store, text: str) -> None:
    names = dict.fromkeys(("key", "route", "upstream", "model", "upstream_model", "team", "user", "prices"), text)
    store.add(batch([made_call(1, **names, tags=("eu",)), made_call(2)]))

    assert kept(store)[0] == made_call(1, **names, tags=("eu",))
    for dimension in ("upstream", "model", "team", "user", "key"):
        assert [call.number for call in kept(store, **{dimension: text})] == [1], dimension
        assert sum(groups(store, **{dimension: text}).values()) == 1, dimension
    assert groups(store, "model") == {(text,): 1, (NAMES.model,): 1}


@pytest.mark.parametrize("text", ["a\0b", "\0", "half \ud83d of one"])
def test_text_that_a_database_can_not_hold_loses_no_call(stores: Stores, text: str) -> None:
    """A client makes up names of models. They come out as they are, or with a mark in them."""
    store = stores()
    text = text.encode("utf-8", "replace").decode()  # as records hold it
    store.add(batch([made_call(1, model=text), made_call(2, model=text)], names={1: text}))

    (mark,) = {call.model for call in kept(store)}
    assert mark in (text, text.replace("\0", "\ufffd"))
    assert groups(store, "model") == {(mark,): 2}
    assert [call.number for call in kept(store, model=text)] == [1, 2]
    assert stores().names("0.ring") == {1: mark}


def test_batch_that_comes_again_is_not_added_again(stores: Stores) -> None:
    """Whole, or with more behind it; also in a process that began anew."""
    calls = [made_call(n) for n in range(5)]
    first, more = batch(calls[:3], names={1: "a"}), batch(calls, names={1: "a", 2: "b"})
    for each in (first, first, more, first):
        stores().add(each)
    store = stores()

    assert (store.position("0.ring"), store.names("0.ring")) == (5, {1: "a", 2: "b"})
    assert [call.number for call in kept(store)] == list(range(5))
    assert total(store).n == 5


def test_call_that_a_killed_process_recorded_twice_counts_once(store: Store) -> None:
    """As it was recorded first: in one batch, and in two."""
    lost = Flag.ESTIMATED | Flag.LOST | Flag.RECOVERED
    calls = [made_call(1, cost_nano=10), made_call(1, cost_nano=99, flags=lost), made_call(2, cost_nano=20)]
    store.add(batch(calls))
    store.add(batch([made_call(2, cost_nano=99, flags=lost), made_call(3, cost_nano=30, flags=lost)], 3))

    assert [(call.number, call.cost_nano) for call in kept(store)] == [(1, 10), (2, 20), (3, 30)]
    assert (total(store).n, total(store).cost_nano) == (3, 60)


def test_sums_are_kept_by_minute_hour_and_day(store: Store) -> None:
    """A question is answered by the longest period that its times allow."""
    starts = (0, 59, 60, 3600, DAY_S)
    store.add(batch([made_call(n, started_s=NOON_S + s) for n, s in enumerate(starts)]))

    def counts(since_s: int, until_s: int, *by: Dimension) -> list[tuple[tuple[str, ...], int]]:
        return [(each.group, each.sums.n) for each in store.totals(UsageQuery(since_s, until_s, by))]

    day = datetime.datetime.fromtimestamp(NOON_S, datetime.UTC).strftime("%Y-%m-%d")
    assert counts(ALL.since_s, ALL.until_s, "day")[0] == ((day,), 4)
    assert counts(NOON_S, NOON_S + 7200, "hour") == [((f"{day}T12:00Z",), 3), ((f"{day}T13:00Z",), 1)]
    assert counts(NOON_S, NOON_S + 120, "minute") == [((f"{day}T12:00Z",), 2), ((f"{day}T12:01Z",), 1)]
    assert counts(NOON_S, NOON_S + 60) == [((), 2)]
    assert counts(NOON_S + 2 * DAY_S, NOON_S + 3 * DAY_S) == []


def test_calls_are_found_by_what_is_asked(store: Store) -> None:
    """By a key's id whatever its name was, else by its name; by each tag; by what is there and what is not."""
    ada, renamed, bob = "00112233445566aa ada", "00112233445566aa lovelace", "00112233445566bb ada"
    store.add(
        batch(
            [
                made_call(1, key=ada, tags=("a", "b", "a"), team="red"),
                made_call(2, key=renamed, tags=("b",), team="red", user="x"),
                made_call(3, key=bob, tags=(), team="", user=""),
                made_call(4, key="", tags=("ab",), team="blue", model="other"),
            ]
        )
    )

    def found(**where: str) -> list[int]:
        numbers = [call.number for call in kept(store, **where)]
        if "tag" not in where:
            assert sum(groups(store, **where).values()) == len(numbers)
        return numbers

    assert found(key="00112233445566aa") == found(key=ada) == [1, 2]
    assert found(key="ada") == [1, 3]
    assert found(tag="a") == [1] and found(tag="b") == [1, 2] and found(tag="c") == []
    assert found(team="red", user="x") == [2]
    assert found(model="other") == [4] and found(upstream="none") == []
    assert groups(store, "tag") == {("a",): 1, ("b",): 2, ("ab",): 1}
    assert groups(store, "team", "user", tag="b") == {("red", "ada@example.com"): 1, ("red", "x"): 1}
    assert list(groups(store, "team")) == [("",), ("blue",), ("red",)], "in their order"


def test_what_rings_dropped_is_in_the_sums_once(store: Store) -> None:
    """It is told as a sum over all times; damaged records are counted."""
    for n, dropped in ((1, Sums(3, input=30)), (2, Sums(3, input=30)), (3, Sums(5, input=50))):
        store.add(batch([], n, dropped=dropped, n_damaged=1))

    assert groups(store, "key", "model") == {("(not recorded)", ""): 5}
    assert total(store).input == 50


def test_sums_that_are_too_large_are_the_most_that_there_is(store: Store) -> None:
    """No record stops those behind it: in one batch, in several, in sums of several rows."""
    most = 2**63 - 1
    store.add(batch([made_call(n, cost_nano=most) for n in range(3)], dropped=Sums(1, input=2**70, cost_nano=2**70)))
    store.add(batch([made_call(3, cost_nano=most), made_call(4, cost_nano=5, model="other")], 3))
    store.carry("(other)", [Carried(NOON_S, "k", "", "", "m", Sums(1, output=2**65, cost_nano=2**65))])

    assert (total(store).n, total(store).cost_nano >= most) == (7, True)
    assert total(store).input >= most and total(store).output >= most
    assert groups(store, "upstream") == {("(other)",): 1, (NAMES.upstream,): 5, ("",): 1}
    by_model = store.totals(dataclasses.replace(ALL, by=("model",), where=(("upstream", NAMES.upstream),)))
    assert [each.sums.cost_nano >= most for each in by_model] == [True, False]
    assert [call.cost_nano for call in kept(store)] == [most] * 4 + [5]


@pytest.mark.parametrize("at", [2**63 - 1, 2**64 - 1])
def test_record_of_a_time_without_a_date_is_kept(store: Store, at: int) -> None:
    """No clock goes so far: it is damaged, or written by one that was wrong. Those behind it are kept as well."""
    body = call_body(
        process=1, number=at, attempt=1, endpoint=1, status=200, flags=0, started_us=at, first_byte_us=None,
        duration_us=at, names=number_bytes(1, 1, 1, 1, 1), reason=1, tokens=Tokens(1, 2), cost_nano=5, prices=1,
    )  # fmt: skip
    call = read_body(body, NameParts({1: "text"}))
    assert isinstance(call, Call)
    store.add(batch([call, made_call(1)]))

    end_s = 253_402_300_800
    (late,) = store.calls(UsageQuery(end_s - DAY_S, end_s))
    assert late == call and late.started_us == end_s * 1_000_000 - 1
    days = [each.group[0] for each in store.totals(UsageQuery(0, end_s, ("day",)))]
    assert days == ["2026-11-23", "9999-12-31"]
    assert [each.number for each in kept(store)] == [1]


def test_what_was_dropped_is_counted_though_it_is_read_in_between(store: Store) -> None:
    """A worker adds one number after the other: here the ledger's process looks after the first."""
    store.add(batch([], 1, dropped=Sums(1)))
    store.add(batch([], 1, dropped=Sums(1, input=100, output=200, cost_nano=5_000_000)))

    assert total(store) == Sums(1, input=100, output=200, cost_nano=5_000_000)
    assert groups(store, "key") == {("(not recorded)",): 1}


def test_ring_that_knows_less_of_what_it_dropped_takes_nothing_back(store: Store) -> None:
    """Its header is older than the store, after a power failure."""
    for n, cost_nano in ((3, 30), (2, 20), (4, 40)):
        store.add(batch([], 1, dropped=Sums(n, cost_nano=cost_nano)))

    assert total(store) == Sums(5, cost_nano=50)


def test_ring_goes_on_under_another_name(store: Store) -> None:
    """With its names, and what it had dropped; its numbers begin again, also where a day has calls of the old name."""
    store.add(batch([made_call(n) for n in range(9)], names={1: "a", 2: "b"}, dropped=Sums(3, input=30)))
    store.renew("0.ring", "0.ring-2", 4)

    assert (store.position("0.ring"), store.position("0.ring-2")) == (9, 4)
    assert store.names("0.ring-2") == {1: "a", 2: "b"} == store.names("0.ring")
    store.add(batch([made_call(9), made_call(10)], 4, "0.ring-2", names={2: "c"}, dropped=Sums(5, input=50)))
    assert [call.number for call in kept(store)] == list(range(11))
    assert (total(store).n, store.position("0.ring-2")) == (11 + 5, 6)
    assert (store.names("0.ring-2"), store.names("0.ring")) == ({1: "a", 2: "c"}, {1: "a", 2: "b"})


def test_names_are_as_many_as_may_be_referred_to(store: Store) -> None:
    store.add(batch([], 1, names={n: f"name {n}" for n in range(1, 10)}))
    store.add(batch([], 2, names={KEPT_NAMES + 5: "new", 7: "again"}))

    assert store.names("0.ring") == {6: "name 6", 7: "again", 8: "name 8", 9: "name 9", KEPT_NAMES + 5: "new"}
    assert store.names("1.ring") == {} and store.position("1.ring") == 0


def test_case_19_what_is_old_is_dropped(stores: Stores) -> None:
    """Calls by the day, sums of minutes and hours; sums of days stay."""
    store = stores()
    assert store.newest_s() is None
    store.add(batch([made_call(n, started_s=NOON_S + n * DAY_S) for n in range(3)]))
    assert store.newest_s() == MIDNIGHT_S + 3 * DAY_S
    store.prune(NOON_S + 31 * DAY_S)
    assert [call.number for call in kept(store)] == [1, 2]
    store.prune(NOON_S + 100 * DAY_S)
    assert kept(store) == []
    assert sum(groups(store, "day").values()) == 3 and groups(store, "minute") == {} == groups(store, "hour")
    store.add(batch([made_call(9)], 3))  # late, of a ring that waited
    assert [call.number for call in kept(stores(is_reader=True))] == [9]


@pytest.mark.parametrize("since_s", [MIDNIGHT_S - 20 * DAY_S, MIDNIGHT_S - DAY_S, NOON_S - 3600, NOON_S])
@pytest.mark.parametrize("until_s", [NOON_S + 60, NOON_S + 3660, MIDNIGHT_S + DAY_S, MIDNIGHT_S + 3 * DAY_S + 120])
def test_sums_of_short_periods_are_asked_for_at_the_ends_only(store: Store, since_s: int, until_s: int) -> None:
    """Of what is long ago only sums by day are left: a question that ends within an hour counts them all the same."""
    times = [MIDNIGHT_S - 19.5 * DAY_S, MIDNIGHT_S - 1, NOON_S - 1800, NOON_S, NOON_S + 59, NOON_S + 61, NOON_S + DAY_S]
    store.add(batch([made_call(n, started_s=at) for n, at in enumerate(times)]))
    store.prune(NOON_S + 60)
    wanted = sum(since_s <= at < until_s for at in times)
    found = store.totals(UsageQuery(since_s, until_s))
    assert sum(each.sums.n for each in found) == wanted
    by_key = store.totals(UsageQuery(since_s, until_s, ("key",), (("model", NAMES.model),)))
    assert sum(each.sums.n for each in by_key) == wanted and len(by_key) <= 1
    for period in ("day", "hour"):
        assert sum(each.sums.n for each in store.totals(UsageQuery(since_s, until_s, (period,)))) == wanted


def test_days_and_hours_that_are_cut_count_what_is_within_the_time(store: Store) -> None:
    """With names of their own, as whole ones have; seconds of a time are left off at both ends."""
    times = [NOON_S - 3600, NOON_S - 20, NOON_S, NOON_S + 3599, NOON_S + 3600, NOON_S + DAY_S, NOON_S + DAY_S + 60]
    store.add(batch([made_call(n, started_s=at) for n, at in enumerate(times)]))

    def n_calls(since_s: int, until_s: int, *by: Dimension) -> dict[tuple[str, ...], int]:
        return {each.group: each.sums.n for each in store.totals(UsageQuery(since_s, until_s, by))}

    until_s = NOON_S + DAY_S + 60
    for seconds in (0, 59):
        since_s, end_s = NOON_S - 60 + seconds, until_s + seconds
        assert n_calls(since_s, end_s) == {(): 5}
        assert n_calls(since_s, end_s, "day") == {("2026-11-23",): 4, ("2026-11-24",): 1}
        assert n_calls(since_s, end_s, "day", "model") == {
            ("2026-11-23", NAMES.model): 4,
            ("2026-11-24", NAMES.model): 1,
        }
        assert n_calls(since_s, end_s, "hour") == {
            ("2026-11-23T11:00Z",): 1,
            ("2026-11-23T12:00Z",): 2,
            ("2026-11-23T13:00Z",): 1,
            ("2026-11-24T12:00Z",): 1,
        }
        assert len(n_calls(since_s, end_s, "minute")) == 5


def test_case_20_sums_are_whole_when_their_calls_are_gone(stores: Stores) -> None:
    """Reports by day, key or model read no call, however many there were, and leave none out."""
    store = stores()
    store.add(batch([made_call(n, model=f"m-{n % 7}", key=f"key-{n % 31}") for n in range(500)]))
    store.prune(NOON_S + 31 * DAY_S)

    assert kept(store) == []
    assert sum(groups(store, "model").values()) == sum(groups(store, "key").values()) == 500
    assert (len(groups(store, "model")), len(groups(store, "key"))) == (7, 31)


def test_carried_sums_are_replaced(store: Store) -> None:
    """Of another gateway, under an upstream of its own."""
    store.add(batch([made_call(1)]))
    for cost_nano in (5, 7):
        rows = [Carried(NOON_S, "k", "t", "u", "m", Sums(2, cost_nano=cost_nano))]
        store.carry("(other)", [*rows, *rows, Carried(NOON_S + DAY_S, "k", "", "", "m", Sums(1))])

    assert groups(store, "upstream") == {("(other)",): 5, (NAMES.upstream,): 1}
    assert total(store).cost_nano == 1_500 + 14


def test_reader_reads_while_a_writer_writes(stores: Stores) -> None:
    """Sums and calls are as of some moment, and only grow."""
    writer, reader = stores(), stores(is_reader=True)
    writer.add(batch([made_call(n) for n in range(4)]))
    ended = threading.Event()

    def write() -> None:
        try:
            for n in range(1, 30):
                writer.add(batch([made_call(4 * n + each) for each in range(4)], 4 * n))
        finally:
            ended.set()

    before = 0
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        while not ended.is_set():
            n_total, n_calls = total(reader).n, len(kept(reader))
            assert before <= n_total and n_total % 4 == 0
            before = n_total
            assert n_calls % 4 == 0
        written.result()
    assert total(reader).n == len(kept(reader)) == 120


@pytest.mark.parametrize("where", [{}, {"tag": "eu"}])
def test_reader_reads_while_a_writer_adds_texts(stores: Stores, where: dict[str, str]) -> None:
    """A call that comes with a new name is there with it, or not yet: in turn, without gaps."""
    writer, reader = stores(), stores(is_reader=True)
    n_first = 2_000  # their names take a while to read: new ones come meanwhile
    writer.add(batch([made_call(n, model=f"m-{n}", tags=("eu", f"t-{n}")) for n in range(n_first)]))
    ended = threading.Event()

    def write() -> None:
        try:
            for n in range(n_first, n_first + 300):
                writer.add(batch([made_call(n, model=f"m-{n}", tags=("eu", f"t-{n}"))], n))
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        while not ended.is_set():
            found = kept(reader, **where)
            assert [call.model for call in found] == [f"m-{n}" for n in range(len(found))]
        written.result()
    assert len(kept(reader, **where)) == n_first + 300


def test_reader_before_a_writer_says_what_to_do(stores: Stores) -> None:
    with pytest.raises(StoreError):
        stores(is_reader=True)


@pytest.mark.slow
def test_case_20_more_calls_than_a_page(store: Store) -> None:
    """Many of them in one microsecond."""
    store.add(batch([made_call(n, started_s=NOON_S + n // 4000) for n in range(12_000)]))

    assert [call.number for call in kept(store)] == list(range(12_000))
    assert len(list(store.calls(UsageQuery(NOON_S, NOON_S + 2)))) == 8_000


@pytest.mark.slow
def test_many_calls_and_few_are_found_in_order(store: Store) -> None:
    """However a day is read: calls of a busy key among others, those of a rare one by the index of keys."""
    busy, rare = "00112233445566aa busy", "00112233445566bb rare"
    calls = [
        made_call(n, started_s=NOON_S + n % 7, key=rare if n % 100 == 3 else busy, team="x" if n % 100 == 3 else "y")
        for n in range(21_000)
    ]
    store.add(batch([*calls, made_call(21_000, started_s=NOON_S + DAY_S, key=busy, team="x")]))
    ordered = [call.number for call in sorted(calls, key=lambda call: (call.started_us, call.number))]

    numbers = lambda **where: [call.number for call in kept(store, **where)]  # noqa: E731
    assert numbers(key=busy) == [n for n in ordered if n % 100 != 3] + [21_000]
    assert numbers(key="rare") == [n for n in ordered if n % 100 == 3]
    assert numbers(team="x") == [n for n in ordered if n % 100 == 3] + [21_000]
    assert numbers(team="x", key=busy) == [21_000] and numbers(team="y", key=rare) == []


def test_call_of_a_time_without_a_date_is_in_the_last_file(tmp_path: Path) -> None:
    """However it came there; whoever asks or drops that far gets what there is."""
    store = SqliteStore(tmp_path, days=30)
    store.add(batch([made_call(1, started_s=300_000_000_000)]))
    found = list(store.calls(UsageQuery(0, 400_000_000_000)))
    assert [call.number for call in found] == [1]
    assert [each.group for each in store.totals(UsageQuery(0, 400_000_000_000, ("day",)))] == [("9999-12-31",)]
    store.prune(400_000_000_000)
    assert list(tmp_path.glob("calls-*")) != []
    store.close()


def test_sums_that_an_earlier_velox_made_too_large_are_read(tmp_path: Path) -> None:
    """They became numbers with a fraction, which no sum is."""
    store = SqliteStore(tmp_path, days=30)
    store.add(batch([made_call(1)]))
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute("UPDATE total SET cost_nano = 12e18")
    most = 2**63 - 1
    assert total(store).cost_nano == most
    store.add(batch([made_call(2)], 1))
    assert sqlite3.connect(tmp_path / "ledger.db").execute("SELECT DISTINCT cost_nano FROM total").fetchall() == [
        (most,)
    ]
    store.close()


def test_number_that_sqlite_can_not_hold_is_an_error_of_the_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, days=30)
    with pytest.raises(StoreError, match=r"calls-2026-11-23\.db: Python int too large"):
        store.add(batch([made_call(2**64)]))
    assert store.position("0.ring") == 0
    store.close()


def test_file_of_a_day_without_such_calls_is_not_read(tmp_path: Path) -> None:
    """It is known from the sums: this one could not be read."""
    store = SqliteStore(tmp_path, days=30)
    store.add(batch([made_call(1), made_call(2, started_s=NOON_S + DAY_S, team="blue")]))
    store.close()
    (tmp_path / "calls-2026-11-23.db").write_bytes(b"no database" * 100)
    reader = SqliteStore(tmp_path, days=30, is_reader=True)

    assert [call.number for call in kept(reader, team="blue")] == [2]
    with pytest.raises(StoreError, match="calls-2026-11-23"):
        kept(reader, team="red")
    reader.close()


def varied(n: int) -> list[Call]:
    """Return calls of two days, keys, models and tags, up to seven of which begin in one microsecond."""
    return [
        made_call(
            at, started_s=NOON_S + at // 7 * 3600, key=f"{at % 3:016x} k{at % 3}", model=f"m{at % 4}",
            tags=(f"t{at % 2}", "all"), process=at % 5,
        )
        for at in range(n)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "by", [("key", "model", "day"), ("day", "key"), ("hour", "model"), ("model", "minute"), ("tag", "key"), ("user",)]
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_sums_in_pages_are_those_at_once(store: Store, by: tuple[Dimension, ...], size: int) -> None:
    """Each page begins behind the last group of the one before, whatever it is grouped by."""
    store.add(batch(varied(200)))
    asked = dataclasses.replace(ALL, by=by)
    whole, found = store.totals(asked), store.totals(asked, most=size)
    while len(found) < len(whole):
        page = store.totals(asked, found[-1].group, size)
        assert 0 < len(page) <= size
        found += page
    assert found == whole
    assert not store.totals(asked, whole[-1].group, size)


@pytest.mark.parametrize("where", [{}, {"key": "k1"}, {"model": "m3"}, {"tag": "t1"}, {"team": "red", "model": "m0"}])
def test_calls_behind_a_place_are_the_others(store: Store, where: dict[str, str]) -> None:
    """None is left out and none comes twice, also where several begin at one time."""
    store.add(batch(varied(200)))
    asked = dataclasses.replace(ALL, where=tuple(where.items()))  # type: ignore[arg-type]
    whole = list(store.calls(asked))
    assert whole
    for at in range(0, len(whole), 13):
        last = whole[at]
        place = CallPlace(last.started_us, last.process, last.number, last.attempt)
        assert list(store.calls(asked, place)) == whole[at + 1 :]
        assert list(itertools.islice(store.calls(asked, place, 3), 3)) == whole[at + 1 : at + 4]


def test_group_that_can_not_be_is_refused(store: Store) -> None:
    """A time that no group has."""
    store.add(batch([made_call(1)]))
    for label in ("", "2026-13-01", "yesterday"):
        with pytest.raises(ValueError, match=r".+"):
            store.totals(dataclasses.replace(ALL, by=("day", "key")), (label, "k"), 1)


def test_calls_are_summed_by_the_program_of_their_client(store: Store) -> None:
    """Each call is in one sum by agent, also what no record tells of, and what another gateway has recorded."""
    calls = [
        made_call(1),
        made_call(2, agent="codex", model="o3"),
        made_call(3, agent="codex", team="blue", tags=()),
        made_call(4, agent=""),
    ]
    store.add(batch(calls, dropped=Sums(5, cost_nano=7)))
    store.carry("(other)", [Carried(NOON_S, "k", "", "", "m", Sums(2, cost_nano=9))])
    store.carry("(other)", [Carried(NOON_S, "k", "", "", "m", Sums(3, cost_nano=9))])

    assert groups(store, "agent") == {("",): 1 + 5 + 3, ("claude-code",): 1, ("codex",): 2}
    assert groups(store, "agent", "model", team="red") == {
        ("", NAMES.model): 1,
        ("claude-code", NAMES.model): 1,
        ("codex", "o3"): 1,
    }
    assert groups(store, "day", agent="codex") == {("2026-11-23",): 2}
    by_agent = store.totals(dataclasses.replace(ALL, by=("agent",)))
    assert Sums(*map(sum, zip(*(each.sums for each in by_agent), strict=True))) == total(store)
    assert [call.number for call in kept(store, agent="codex")] == [2, 3]
    assert [call.number for call in kept(store, agent="codex", tag="eu")] == [2]
    for where in ({"tag": "eu"}, {}):
        with pytest.raises(ValueError, match="by tag and agent"):
            groups(store, "agent", "tag", **where)
    with pytest.raises(ValueError, match="by tag and agent"):
        groups(store, "agent", tag="eu")


def test_agent_of_a_later_version_is_one_of_the_others(store: Store) -> None:
    """And a record of an earlier one has none."""
    found = []
    for number, agent in ((1, 0), (2, 250)):
        body = call_body(
            process=1, number=number, attempt=1, endpoint=1, status=200, flags=0, started_us=NOON_S * 1_000_000,
            first_byte_us=None, duration_us=1, names=number_bytes(1, 1, 1, 1, 1), reason=1, tokens=Tokens(1, 2),
            cost_nano=5, prices=1, agent=agent,
        )  # fmt: skip
        call = read_body(body, NameParts({1: "text"}))
        assert isinstance(call, Call)
        found.append(call)
    store.add(batch(found))
    assert [call.agent for call in kept(store)] == ["", "other"]
