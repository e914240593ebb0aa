"""Pages of the admin API in a PostgreSQL with many calls: each reads about as much as it shows, wherever it stands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

import pytest

from bench.ledger_pages import fill, pages
from tests.patience import PATIENCE_S
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow
SIZE = 100
# Rows that a page of SIZE rows may read. Groups are sorted key by key: a key has some hundred rows.
MOST_READ = 10 * SIZE
_READ = (
    "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables"
    " WHERE relname LIKE 'velox_call%' OR relname LIKE 'velox%total'"
)
_OTHERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend'"
)
ASKED = (
    ("usage", "by=key,model,day"),
    ("usage", "by=day,key,model"),
    ("calls", ""),
    ("calls", "key=key-7"),
    ("calls", "key=0000000000000007"),
    ("calls", "key=absent"),
    ("calls", "team=team-3"),
    ("calls", "model=absent"),
    ("calls", "user=rare@example.com"),
    ("calls", "user=absent"),
    ("calls", "upstream=absent"),
    ("calls", "tag=absent"),
    ("calls", "tag=batch"),
)


@pytest.fixture(scope="module", params=[30_000, pytest.param(300_000, marks=pytest.mark.more)])
def url(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[str]:
    found = postgres.database()
    fill(found, request.param)
    yield found


@pytest.mark.parametrize(("path", "query"), ASKED)
def test_page_reads_about_as_much_as_it_shows(postgres: PostgresServer, url: str, path: str, query: str) -> None:
    """The first ones of a list: nothing is read whole, or sorted whole, for the sake of a hundred rows."""
    before = _n_read(postgres, url)
    n_shown, n_pages = 0, 0
    for n_rows, _ in islice(pages(url, path, query, SIZE), 3):
        n_shown, n_pages = n_shown + n_rows, n_pages + 1
    assert ("absent" in query) == (not n_shown)
    assert _n_read(postgres, url) - before <= n_pages * MOST_READ


def _n_read(postgres: PostgresServer, url: str) -> int:
    """Return how many rows were read so far, once the server has counted all: it does when a connection ends."""
    deadline_s = time.monotonic() + PATIENCE_S
    while postgres.sql(url, _OTHERS)[0][0]:
        assert time.monotonic() < deadline_s, "connections do not end"
    return int(postgres.sql(url, _READ)[0][0])
