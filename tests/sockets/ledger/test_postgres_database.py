"""One database of PostgreSQL, asked by blocking calls: migrations, failures, and what each of them leaves behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.postgres_server import PostgresServer, postgres_server
from velox.ledger.postgres_database import PostgresDatabase, reachable
from velox.ledger.store import StoreError

pytestmark = pytest.mark.slow

FIRST = "CREATE TABLE pair (name text PRIMARY KEY, value bigint NOT NULL)"
SECOND = "ALTER TABLE pair ADD COLUMN note text NOT NULL DEFAULT 'none'"


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """An empty database."""
    return postgres.database()


def test_migrations_run_once_each_and_in_order(url: str) -> None:
    first = PostgresDatabase(url, "pairs", [FIRST])
    with first.transaction() as transaction:
        transaction.execute("INSERT INTO pair VALUES ($1, $2)", "a", 2**63 - 1)
    second = PostgresDatabase(url, "pairs", [FIRST, SECOND])
    assert [tuple(row) for row in second.rows("SELECT * FROM pair")] == [("a", 2**63 - 1, "none")]
    assert [tuple(row) for row in second.rows("SELECT * FROM velox_schema")] == [("pairs", 2)]
    first.close()
    second.close()


def test_two_parts_share_a_database(url: str) -> None:
    one = PostgresDatabase(url, "pairs", [FIRST])
    other = PostgresDatabase(url, "others", ["CREATE TABLE other (x int)", "DROP TABLE other"])
    assert sorted(map(tuple, one.rows("SELECT * FROM velox_schema"))) == [("others", 2), ("pairs", 1)]
    one.close()
    other.close()


def test_gateways_that_start_at_once_make_the_tables_once(url: str) -> None:
    barrier = threading.Barrier(8)

    def open_it() -> None:
        barrier.wait()
        PostgresDatabase(url, "pairs", [FIRST, SECOND, "INSERT INTO pair VALUES ('made', 1)"]).close()

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(open_it) for _ in range(8)]:
            future.result()
    reader = PostgresDatabase(url, "pairs", [FIRST, SECOND, ""], is_reader=True)
    assert [tuple(row) for row in reader.rows("SELECT name FROM pair")] == [("made",)]
    reader.close()


def test_migration_that_fails_leaves_nothing(url: str) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        PostgresDatabase(url, "pairs", [FIRST, "CREATE TABLE half (x int); INSERT INTO nowhere VALUES (1)"])
    database = PostgresDatabase(url, "pairs", [FIRST])
    assert database.rows("SELECT to_regclass('half') AS found")[0][0] is None
    database.close()


def test_newer_schema_is_refused(url: str) -> None:
    PostgresDatabase(url, "pairs", [FIRST, SECOND]).close()
    with pytest.raises(StoreError, match="has schema 2 of pairs, written by a newer Velox; this one knows 1"):
        PostgresDatabase(url, "pairs", [FIRST])


def test_database_that_has_not_all_letters_is_refused_before_anything_is_made(postgres: PostgresServer) -> None:
    """Else the first name that it can't hold would stop all records behind it."""
    postgres.sql("postgres", "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    message = _failure(lambda: PostgresDatabase(postgres.url("latin"), "pairs", [FIRST]))
    assert "its encoding is LATIN1, and names need UTF8: createdb --encoding UTF8" in message
    assert reachable(postgres.url("latin")) == message
    assert postgres.sql("latin", "SELECT to_regclass('pair')")[0][0] is None
    postgres.sql("postgres", "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    database = PostgresDatabase(postgres.url("bytes"), "pairs", [FIRST])
    with database.transaction() as transaction:
        transaction.execute("INSERT INTO pair VALUES ('模型…', 1)")
    assert database.rows("SELECT name FROM pair")[0][0] == "模型…"
    database.close()


def test_reader_makes_nothing(url: str) -> None:
    with pytest.raises(StoreError, match="has schema 0 of pairs, and this Velox needs 1"):
        PostgresDatabase(url, "pairs", [FIRST], is_reader=True)
    PostgresDatabase(url, "others", []).close()
    database = PostgresDatabase(url, "others", [], is_reader=True)
    assert database.rows("SELECT to_regclass('velox_schema')")[0][0] is None
    database.close()


def test_transaction_is_whole_or_nothing(url: str) -> None:
    database = PostgresDatabase(url, "pairs", [FIRST])
    with pytest.raises(KeyError), database.transaction() as transaction:
        transaction.execute_many("INSERT INTO pair VALUES ($1, $2)", [("a", 1), ("b", 2)])
        raise KeyError
    with pytest.raises(StoreError, match="pair_pkey"), database.transaction() as transaction:
        transaction.copy("pair", ("name", "value"), [("a", 1), ("a", 2)])
    with database.transaction() as transaction:
        transaction.copy("pair", ("name", "value"), [("a", 1)])
    assert [tuple(row) for row in database.rows("SELECT * FROM pair")] == [("a", 1)]
    database.close()


def test_commit_is_on_the_disk_whatever_the_role_has_set(postgres: PostgresServer, url: str) -> None:
    postgres.sql(url, "ALTER ROLE tests SET synchronous_commit = off")
    try:
        database = PostgresDatabase(url, "pairs", [FIRST])
        assert database.rows("SHOW synchronous_commit")[0][0] == "off"
        with database.transaction() as transaction:
            assert transaction.rows("SHOW synchronous_commit")[0][0] == "on"
        postgres.sql(url, "ALTER ROLE tests SET synchronous_commit = remote_apply")
        database.close()
        database = PostgresDatabase(url, "pairs", [FIRST])
        with database.transaction() as transaction:
            assert transaction.rows("SHOW synchronous_commit")[0][0] == "remote_apply"
        database.close()
    finally:
        postgres.sql(url, "ALTER ROLE tests RESET synchronous_commit")


def test_snapshot_does_not_see_what_comes_meanwhile(url: str) -> None:
    writer, reader = PostgresDatabase(url, "pairs", [FIRST]), PostgresDatabase(url, "pairs", [FIRST], is_reader=True)
    with reader.snapshot() as snapshot:
        assert not snapshot.rows("SELECT * FROM pair")
        with writer.transaction() as transaction:
            transaction.execute("INSERT INTO pair VALUES ('a', 1)")
        assert not snapshot.rows("SELECT * FROM pair")
    with pytest.raises(StoreError, match="read-only"), reader.snapshot() as snapshot:
        snapshot.execute("INSERT INTO pair VALUES ('b', 1)")
    reader.close()
    writer.close()


def test_threads_share_it(url: str) -> None:
    database = PostgresDatabase(url, "pairs", [FIRST])

    def add(number: int) -> None:
        with database.transaction() as transaction:
            transaction.execute("INSERT INTO pair VALUES ('n', $1) ON CONFLICT (name) DO NOTHING", 0)
            transaction.execute("UPDATE pair SET value = value + $1", number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(100)))
    assert database.rows("SELECT value FROM pair")[0][0] == sum(range(100))
    database.close()


def test_connection_that_was_ended_is_made_anew(postgres: PostgresServer, url: str) -> None:
    database = PostgresDatabase(url, "pairs", [FIRST])
    _end_connections(postgres, url)
    assert _until_it_works(database) <= 1, "one call at most finds the connection broken"
    with pytest.raises(StoreError), database.transaction() as transaction:
        transaction.execute("INSERT INTO pair VALUES ('a', 1)")
        _end_connections(postgres, url)
        transaction.execute("INSERT INTO pair VALUES ('b', 1)")
    assert [tuple(row) for row in database.rows("SELECT * FROM pair")] == []
    database.close()


def test_failures_say_where_and_never_the_password() -> None:
    with postgres_server() as server:
        url = server.database()
        database = PostgresDatabase(url, "pairs", [FIRST])
        wrong = url.replace("pw-of-the-ledger", "wrong-secret")
        messages = [_failure(lambda: PostgresDatabase(wrong, "pairs", [FIRST]))]
        messages.append(_failure(lambda: PostgresDatabase(server.url("missing"), "pairs", [FIRST])))
        server.stop()
        messages.append(_failure(lambda: database.rows("SELECT 1")))
        messages.append(_failure(lambda: PostgresDatabase(url, "pairs", [FIRST])))
        server.start()
        assert database.rows("SELECT 1")[0][0] == 1, "it goes on when the server is back"
        server.kill()
        messages.append(_failure(lambda: database.rows("SELECT 1")))
        database.close()
    for message in messages:
        assert "127.0.0.1" in message, message
        assert "pw-of" not in message and "wrong-secret" not in message, message


def test_host_that_does_not_answer_keeps_nobody_from_the_next_one(url: str) -> None:
    """A machine that is gone refuses nothing: who asks it waits."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        both = _behind(url, silent.getsockname()[1])
        database = PostgresDatabase(both, "pairs", [FIRST], connect_s=0.5)
        assert database.rows("SELECT 1")[0][0] == 1
        database.close()
    PostgresDatabase(both, "pairs", [FIRST]).close()  # nobody listens there any more


def test_host_that_takes_no_writes_is_passed_over_by_who_writes(postgres: PostgresServer, url: str) -> None:
    with postgres_server() as standby:
        name = url.rpartition("/")[2]
        standby.sql("postgres", f"CREATE DATABASE {name}")
        standby.sql("postgres", f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        both = _behind(url, standby.port)
        database = PostgresDatabase(both, "pairs", [FIRST])
        with database.transaction() as transaction:
            transaction.execute("INSERT INTO pair VALUES ('a', 1)")
        assert database.rows("SHOW port")[0][0] == str(postgres.port)
        database.close()
        for reader_url, is_reader in ((both, True), (f"{both}?target_session_attrs=read-only", False)):
            reader = PostgresDatabase(reader_url, "", [], is_reader=is_reader)
            assert reader.rows("SHOW port")[0][0] == str(standby.port), reader_url
            reader.close()
        message = _failure(lambda: PostgresDatabase(_behind(standby.url(name), standby.port), "pairs", [FIRST]))
        assert "none of the hosts takes writes" in message, message


@pytest.mark.parametrize(
    "url", ["postgresql://u:hidden-word@[::1/x", "postgresql://u:hidden-word@h:port/x", "hidden-word"]
)
def test_url_that_is_none_is_not_shown(url: str) -> None:
    message = _failure(lambda: PostgresDatabase(url, "pairs", [FIRST]))
    assert "VELOX_LEDGER_DATABASE" in message and "hidden-word" not in message


def _behind(url: str, port: int) -> str:
    """Return a URL with two hosts, of which the one with this port is asked first."""
    return url.replace("127.0.0.1:", f"127.0.0.1:{port},127.0.0.1:")


def _failure(action: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as caught:
        action()
    return str(caught.value)


def _until_it_works(database: PostgresDatabase) -> int:
    for n_failed in range(10):
        try:
            database.rows("SELECT 1")
        except StoreError:
            continue
        return n_failed
    raise AssertionError("it never works again")


def _end_connections(server: PostgresServer, url: str) -> None:
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
    server.sql("postgres", sql, url.rpartition("/")[2])
