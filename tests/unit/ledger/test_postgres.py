"""What is PostgreSQL's own: gateways that share a database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.unit.ledger.made import NOON_S, made_call, write, writer_of
from tests.unit.ledger.test_store import ALL, DAY_S, batch, groups, kept, total
from velox.ledger.collector import Collector
from velox.ledger.postgres import _MIGRATIONS, PostgresStore
from velox.ledger.postgres_database import PostgresDatabase
from velox.ledger.record import Flag, Tokens
from velox.ledger.store import StoreError, Sums
from velox.shm.record_ring import RecordRing

pytestmark = pytest.mark.slow


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.database()


def test_gateways_with_rings_of_one_name_both_count(url: str) -> None:
    """Who asks gets what all recorded; a gateway can ask for its own."""
    one, other = (PostgresStore(url, gateway=name, days=30) for name in ("one", "other"))
    one.add(batch([made_call(1), made_call(2)], names={1: "a"}))
    other.add(batch([made_call(1, process=0xBBBB)], names={1: "b"}, dropped=Sums(2)))

    assert (one.position("0.ring"), other.position("0.ring")) == (2, 1)
    assert (one.names("0.ring"), other.names("0.ring")) == ({1: "a"}, {1: "b"})
    reader = PostgresStore(url, gateway="", days=30, is_reader=True)
    assert total(reader).n == 5 and len(kept(reader)) == 3
    own = PostgresStore(url, gateway="other", days=30, is_reader=True, is_own=True)
    assert total(own).n == 3 and [call.process for call in kept(own)] == [0xBBBB]
    assert own.totals(ALL)[0].sums.n_errors == 0
    for store in (one, other, reader, own):
        store.close()


def test_tables_of_the_version_before_keep_what_is_in_them(url: str) -> None:
    """Its calls have no more than was recorded. A gateway of that version that still runs goes on beside this one."""
    PostgresDatabase(url, "records", _MIGRATIONS[:1]).close()
    day = NOON_S // DAY_S
    insert = (
        "INSERT INTO velox_call (day, process, number, attempt, gateway, endpoint, status, flags, started_us,"
        " first_byte_us, duration_us, key, route, upstream, model, upstream_model, reason, input, output, cached,"
        ' cache_written, cache_written_1h, reasoning, cost_nano, prices, team, "user", tags) VALUES'
        f" ({day}, 1, {{}}, 1, 'here', 1, 200, 1, {NOON_S}000000, 5, 9, '0011223344556677 ada', 'r', 'u', 'm', 'm',"
        " 'ok', 7, 8, 3, 2, 1, 4, 90, 'v1', 'red', 'ada', '{a,b}')"
    ).replace("'{a,b}'", "'{{a,b}}'")
    database = PostgresDatabase(url, "", ())
    with database.transaction() as transaction:
        transaction.execute(
            f"CREATE TABLE velox_call_20261123 PARTITION OF velox_call FOR VALUES FROM ({day}) TO ({day + 1})"
        )
        transaction.execute(insert.format(2))

    store = PostgresStore(url, gateway="here", days=30)
    with database.transaction() as transaction:
        transaction.execute(insert.format(3))
    database.close()
    store.add(batch([made_call(9, started_s=NOON_S + 1)]))
    *old, new = kept(store)
    store.close()

    expected = made_call(
        2, process=1, flags=Flag.STREAM, first_byte_us=5, duration_us=9, route="r", upstream="u", model="m",
        upstream_model="m", tokens=Tokens(7, 8, 3, 2, 1, 4), cost_nano=90, prices="v1", user="ada", tags=("a", "b"),
        account="", path="", tier="", answered_model="", price="", agent="",
    )  # fmt: skip
    assert old == [expected, expected._replace(number=3)]
    assert new == made_call(9, started_s=NOON_S + 1)


def test_m12_tables_without_units_beside_tokens_are_migrated(url: str) -> None:
    """M12: calls that were recorded have none, and those that come now have what they are paid by."""
    PostgresDatabase(url, "records", _MIGRATIONS[:3]).close()
    tokens = Tokens(*range(1, 1 + len(Tokens._fields)))
    day = NOON_S // DAY_S
    database = PostgresDatabase(url, "", ())
    with database.transaction() as transaction:
        transaction.execute(
            f"CREATE TABLE velox_call_20261123 PARTITION OF velox_call FOR VALUES FROM ({day}) TO ({day + 1})"
        )
        transaction.execute(
            "INSERT INTO velox_call (day, process, number, attempt, gateway, endpoint, status, flags, started_us,"
            ' duration_us, key, route, upstream, model, upstream_model, reason, prices, team, "user", tags,'
            f" image_cached) VALUES ({day}, 1, 2, 1, 'here', 1, 200, 1, {NOON_S}000000, 9, 'k', 'r', 'u', 'm', 'm',"
            " 'ok', 'v1', '', '', '{}', 5)"
        )
    database.close()

    store = PostgresStore(url, gateway="here", days=30)
    store.add(batch([made_call(9, started_s=NOON_S + 1, tokens=tokens)]))
    old, new = kept(store)
    store.close()

    assert old.tokens == Tokens(image_cached=5)
    assert new.tokens == tokens


def test_gateways_that_write_at_once_wait_for_nobody_and_lose_nothing(url: str) -> None:
    """They make the partition of a new day at the same moment, add to sums of the same names, and drop old days."""
    barrier = threading.Barrier(4)

    def write(gateway: int) -> None:
        store = PostgresStore(url, gateway=str(gateway), days=30)
        for n in range(20):
            barrier.wait()
            calls = [made_call(n, process=gateway, started_s=NOON_S + n * DAY_S, key=f"k{each}") for each in range(1)]
            store.add(batch(calls, n))
            store.prune(NOON_S)
        store.close()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(write, gateway) for gateway in range(4)]:
            future.result()
    reader = PostgresStore(url, gateway="", days=30, is_reader=True)
    until = ALL.until_s + 20 * DAY_S
    assert len(list(reader.calls(ALL.__class__(ALL.since_s, until)))) == 80
    assert reader.totals(ALL.__class__(ALL.since_s, until))[0].sums.n == 80
    reader.close()


def test_sums_larger_than_64_bits_are_exact(url: str) -> None:
    store = PostgresStore(url, gateway="g", days=30)
    store.add(batch([made_call(n, cost_nano=2**62) for n in range(5)]))
    store.add(batch([made_call(9, cost_nano=2**62)], 5))

    assert total(store).cost_nano == 6 * 2**62
    store.close()


def test_case_19_days_are_partitions_and_are_dropped_whole(postgres: PostgresServer, url: str) -> None:
    store = PostgresStore(url, gateway="g", days=30)
    store.add(batch([made_call(n, started_s=NOON_S + n * DAY_S) for n in range(2)]))
    sql = "SELECT relname FROM pg_class WHERE relname ~ '^velox_call_2' AND relkind = 'r' ORDER BY 1"
    assert [row[0] for row in postgres.sql(url, sql)] == ["velox_call_20261123", "velox_call_20261124"]
    store.prune(NOON_S + 31 * DAY_S)
    assert [row[0] for row in postgres.sql(url, sql)] == ["velox_call_20261124"]
    store.close()


def test_reader_that_stays_stops_no_record(url: str) -> None:
    """Of a new day, which needs a partition, or of another gateway. An old day is dropped when it has left."""
    one, other = (PostgresStore(url, gateway=name, days=30) for name in ("one", "other"))
    one.add(batch([made_call(1)]))
    database = PostgresDatabase(url, "reader", ())
    with database.transaction() as reader:
        assert reader.rows("SELECT count(*) FROM velox_call")[0][0] == 1
        one.add(batch([made_call(2, started_s=NOON_S + DAY_S)], 1))
        with pytest.raises(StoreError, match=r"^velox_call_20261123 is in use"):
            one.prune(NOON_S + 31 * DAY_S)
        assert groups(one, "minute") == {}, "sums are dropped all the same"
        other.add(batch([made_call(3, process=0xBBBB), made_call(4, process=0xBBBB, started_s=NOON_S + 2 * DAY_S)]))
        assert reader.rows("SELECT count(*) FROM velox_call")[0][0] == 4
    assert [call.number for call in kept(one)] == [1, 3, 2, 4]
    other.prune(NOON_S + 31 * DAY_S)
    assert [call.number for call in kept(one)] == [2, 4]
    for each in (one, other, database):
        each.close()


def test_partitions_have_the_keys_and_indexes_of_their_table(postgres: PostgresServer, url: str) -> None:
    """So that a call is kept once, and found by its time and its key."""
    store = PostgresStore(url, gateway="g", days=30)
    store.add(batch([made_call(1)]))
    sql = (
        "SELECT count(*), count(*) FILTER (WHERE indisprimary) FROM pg_index JOIN pg_inherits ON inhrelid = indexrelid"
        " WHERE indrelid = 'velox_call_20261123'::regclass"
    )
    assert tuple(postgres.sql(url, sql)[0]) == (9, 1)
    store.add(batch([made_call(1)], 1))
    assert len(kept(store)) == total(store).n == 1
    store.close()


def test_state_of_before_gets_what_the_ring_still_has(postgres: PostgresServer, url: str, tmp_path: Path) -> None:
    """A database that was restored: calls that it lost are handed over once more, and none is counted twice."""
    told: list[str] = []
    writer, calls = writer_of(tmp_path / "0.ring"), [made_call(n) for n in range(30)]

    def start(database: str, n: int) -> Sums:
        for call in calls[:n]:
            write(writer, call)
        del calls[:n]
        store = PostgresStore(database, gateway="here", days=30)
        ring = RecordRing(tmp_path / "0.ring", 1)
        ring.start()
        Collector([ring], store, lambda: NOON_S, tell=told.append).collect()
        assert ring.n_lost == 0
        found = total(store)
        assert len(kept(store)) == found.n
        store.close()
        return found

    assert start(url, 10).n == 10
    postgres.sql("postgres", f"CREATE DATABASE restored TEMPLATE {url.rpartition('/')[2]}")
    restored = postgres.url("restored")
    assert start(url, 15).n == 25
    assert not told
    assert start(restored, 5).n == 30
    (text,) = told
    assert "the database has lost what it had from record" in text
