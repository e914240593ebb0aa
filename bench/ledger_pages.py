"""How long pages of the admin API take over many calls in PostgreSQL.

    python -m bench.ledger_pages URL                # fills an empty database with 5 million calls, then asks
    python -m bench.ledger_pages URL --rows 300000  # fewer
    python -m bench.ledger_pages URL --rows 0       # asks one that was filled before

The calls are of 30 days: 400 keys of 20 teams, each with all of 10 models, and 5 of a user who is seen rarely. The
server makes them itself. Each page is asked for as the API asks the store, then the whole list page after page.

Knows: which rows there are, and what is asked. Does not know: how it is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import asyncpg

from velox.admin.api.call import Answer, ApiCall, Asker
from velox.admin.api.usage import UsagePages
from velox.admin.roles import Role
from velox.ledger.postgres import PostgresStore
from velox.ledger.store import Sums

__all__ = ["ASKED", "LAST_DAY", "fill", "main", "pages"]

LAST_DAY: Final = datetime.datetime(2026, 11, 27, tzinfo=datetime.UTC)
_DAYS: Final = 30
_DAY_S: Final = 86_400
_US: Final = 1_000_000
_KEYS: Final = 400
_TEAMS: Final = 20
_MODELS: Final = 10
_RARE: Final = 5
# Each with the most pages that are asked for one after the other.
ASKED: Final = (
    ("usage", "by=day"),
    ("usage", "by=key"),
    ("usage", "by=key,model"),
    ("usage", "by=key,model,day"),
    ("usage", "by=day,key,model"),
    ("usage", "by=model,key,day"),
    ("usage", "by=key,model,hour"),
    ("usage", "by=hour,key,model"),
    ("usage", "by=tag,model,day"),
    ("calls", ""),
    ("calls", "key=key-7"),
    ("calls", "key=0000000000000007"),
    ("calls", "key=absent"),
    ("calls", "model=absent"),
    ("calls", "user=rare@example.com"),
    ("calls", "user=absent"),
    ("calls", "team=team-3"),
    ("calls", "upstream=absent"),
    ("calls", "tag=absent"),
    ("calls", "tag=batch"),
    ("calls", "team=team-3&model=m-3"),
)
_CALLS: Final = f"""
INSERT INTO velox_call (day, process, number, attempt, gateway, endpoint, status, flags, started_us, first_byte_us,
    duration_us, key, route, upstream, model, upstream_model, reason, input, output, cached, cost_nano, prices, team,
    "user", tags)
SELECT $1::bigint, 48796, $2::bigint + n, 1, 'bench', 1, 200, n % 2,
    $1::bigint * 86400000000 + n * 86400000000 / $3, 90000, 900000, lpad(to_hex(k), 16, '0') || ' key-' || k, 'all',
    'up-' || m % 3, 'm-' || m, 'm-' || m || '-2026', 'ok',
    500 + n % 300, 200 + n % 90, n % 3 * 100, 3000 + n % 997, 'bench', 'team-' || k % {_TEAMS},
    CASE WHEN r THEN 'rare@example.com' ELSE 'user-' || k || '@example.com' END,
    CASE WHEN k % 5 = 0 THEN '{{}}' ELSE '{{batch}}' END::text[]
FROM (SELECT n, h % {_KEYS} AS k, h / {_KEYS} % {_MODELS} AS m, $4 AND n = $3 / 2 AS r
    FROM (SELECT n, ($2::bigint + n) * 2654435761 % 4294967296 / 64 AS h
        FROM generate_series(0, $3::bigint - 1) AS n) AS mixed) AS made
"""


def _sums(table: str, tag: str, source: str) -> Iterator[str]:
    for period, seconds, days in (("minute", 60, 2), ("hour", 3600, _DAYS), ("day", _DAY_S, _DAYS)):
        since = int(LAST_DAY.timestamp()) + _DAY_S - days * _DAY_S
        start = f"started_us / {seconds * _US} * {seconds}"
        names = 'key, team, "user", upstream, model'
        yield (
            f"INSERT INTO {table} (gateway, period, start, {names}{tag}, {', '.join(Sums._fields)})"
            f" SELECT 'bench', '{period}', {start}, {names}{tag}, count(*), 0, 0, 0, sum(input), sum(output),"
            f" sum(cached), 0, 0, sum(cost_nano) FROM {source} WHERE started_us >= {since * _US}"
            f" GROUP BY {start}, {names}{tag}"
        )


def fill(url: str, n_rows: int) -> None:
    """Make so many calls of 30 days, with their sums, in an empty database."""
    PostgresStore(url, gateway="bench", days=_DAYS).close()
    asyncio.run(_fill(url, n_rows // _DAYS))


async def _fill(url: str, a_day: int) -> None:
    first = int(LAST_DAY.timestamp()) // _DAY_S - _DAYS + 1
    database = await asyncpg.connect(url)
    for at, day in enumerate(range(first, first + _DAYS)):
        name = f"velox_call_{datetime.date(1970, 1, 1) + datetime.timedelta(day):%Y%m%d}"
        span = f"FROM ({day}) TO ({day + 1})"
        await database.execute(f"CREATE TABLE {name} PARTITION OF velox_call FOR VALUES {span}")
        await database.execute(_CALLS, day, at * a_day, a_day, at % (_DAYS // _RARE) == 0)
    tagged = "(SELECT *, unnest(tags) AS tag FROM velox_call) AS tagged"
    sums = (
        ("velox_total", "", "velox_call"),
        ("velox_tag_total", ", tag", tagged),
        ("velox_agent_total", ", agent", "velox_call"),
    )
    for sql in itertools.chain.from_iterable(itertools.starmap(_sums, sums)):
        await database.execute(sql)
    for table in ("velox_call", *(name for name, _, _ in sums)):
        await database.execute(f"ANALYZE {table}")
    await database.close()


def pages(url: str, path: str, query: str, most: int = 1000) -> Iterator[tuple[int, float]]:
    """Ask for one page after the other; yield its rows and the seconds that it took."""
    asked = UsagePages(
        lambda: PostgresStore(url, gateway="", days=_DAYS, is_reader=True),
        lambda: LAST_DAY + datetime.timedelta(days=1),
        lambda key: key,
    )
    route = next(each for each in asked.routes() if each.path == f"/api/v1/{path}")
    given = dict(each.split("=") for each in query.split("&") if each)
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        call = ApiCall(Asker(Role.ADMIN, "bench"), (), {"since": "30d", "limit": str(most), **given, **more})
        began_s = time.perf_counter()
        answer = route.handle(call)
        assert isinstance(answer, Answer), "they answer from a thread"
        found: Any = answer.body
        took_s = time.perf_counter() - began_s
        yield len(found["data"]), took_s
        cursor = found["cursor"]
        if cursor is None:
            return


def main() -> int:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--pages", type=int, default=200, help="of one list, at most")
    arguments = parser.parse_args()
    if arguments.rows:
        began_s = time.perf_counter()
        fill(arguments.url, arguments.rows)
        print(f"{arguments.rows:,} calls were made in {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
    print("| page | pages | rows | s: first | slowest | all |\n|---|---:|---:|---:|---:|---:|")
    for path, query in ASKED:
        seen = [page for _, page in zip(range(arguments.pages), pages(arguments.url, path, query), strict=False)]
        times = [took_s for _, took_s in seen]
        n = sum(rows for rows, _ in seen)
        print(
            f"| `{path}?{query}` | {len(seen)} | {n:,} | {times[0]:.2f} | {max(times):.2f} | {sum(times):.1f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
