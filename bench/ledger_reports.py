"""How long reports over many records take: `velox usage`, and the admin API's pages.

    python -m bench.ledger_reports                    # 10 million rows over 30 days; writes docs/benchmarks/ledger.md
    python -m bench.ledger_reports --rows 2000 --dry  # does it run? writes nothing

The rows are kept by the real store, a day after the other: 100 keys of 10 teams, each with all of 10 models. Then each
command runs as a process of its own, and each page is asked for at a running gateway: each some times, no two of a kind
one after the other.

Knows: what is asked. Does not know: how it is answered.
"""

from __future__ import annotations

import argparse
import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.machine import pick_cores
from bench.servers import Servers
from docs.tables import fill
from velox.ledger.record import Call, Flag, Tokens, row_of
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch

__all__ = ["main"]

_PAGE: Final = Path(__file__).parent.parent / "docs/benchmarks/ledger.md"
_DAYS: Final = 30
_DAY_S: Final = 86_400
_BATCH: Final = 20_000
_KEYS: Final = 100
_TEAMS: Final = 10
_MODELS: Final = 10
_UPSTREAMS: Final = 3
_TIMES: Final = 5
_TOKEN: Final = "admin-token-of-the-bench"
_COMMANDS: Final = (
    "",
    "--by team,day",
    "--by key,model",
    "--by key,day --format csv",
    "--since 24h --by hour,model",
    "--key key-7",
    "--calls --since {hour} --until {now} --format jsonl",
)
_PAGES: Final = (
    "usage?by=day",
    "usage?by=team,day",
    "usage?by=key,model",
    "usage?by=key&since=24h",
    "calls",
    "calls?key=key-7",
    "calls?team=team-3&model=m-3&since=7d",
)


def _fill(folder: Path, n_rows: int, last_day_s: int) -> tuple[float, int]:
    """Keep so many rows; return the seconds that took, and the bytes of all files."""
    began_s, number = time.monotonic(), 0
    store = SqliteStore(folder, days=_DAYS + 2)
    for day in range(_DAYS):
        first_s, n = last_day_s - (_DAYS - 1 - day) * _DAY_S, n_rows // _DAYS
        for begin in range(0, n, _BATCH):
            calls = [
                row_of(number + at, _call(number + at, first_s * 1_000_000 + _DAY_S * 1_000_000 * (begin + at) // n))
                for at in range(min(_BATCH, n - begin))
            ]
            number += len(calls)
            store.add(Batch("0.ring", number, calls, {}, first_s + _DAY_S))
        print(f"{number:,} rows, {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    store.close()
    return time.monotonic() - began_s, sum(each.stat().st_size for each in folder.iterdir())


def _call(number: int, started_us: int) -> Call:
    mixed = number * 0x9E37_79B9_7F4A_7C15 % 2**64 >> 20  # each key comes with each model, in no order
    key, model = mixed % _KEYS, mixed // _KEYS % _MODELS
    return Call(
        process=0xBE9C,
        number=number,
        attempt=1,
        endpoint=1,
        status=200,
        flags=Flag(number % 2),
        started_us=started_us,
        first_byte_us=90_000 + number % 1000,
        duration_us=900_000 + number % 70_000,
        key=f"{key:016x} key-{key}",
        route="all",
        upstream=f"up-{model % _UPSTREAMS}",
        model=f"m-{model}",
        upstream_model=f"m-{model}-2026",
        reason="ok",
        tokens=Tokens(500 + number % 300, 200 + number % 90, number % 3 * 100),
        cost_nano=3_000 + number % 997,
        prices="bench",
        team=f"team-{key % _TEAMS}",
        user=f"user-{key}@example.com",
        tags=("batch",) if key % 5 else (),
    )


def _command(folder: Path, arguments: str) -> int:
    command = [sys.executable, "-m", "velox", "usage", *arguments.split()]
    env = {**os.environ, "VELOX_LEDGER": str(folder)}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    return done.stdout.count(b"\n")


def _page(port: int, target: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/api/v1/{target}", headers={"Authorization": f"Bearer {_TOKEN}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{target}: {answer.status} {body[:200]!r}")
    return body.count(b'"calls":') or body.count(b'"id":')


def _measure(folder: Path, n_rows: int) -> list[str]:
    last_day_s = int(time.time()) // _DAY_S * _DAY_S - _DAY_S
    ledger = folder / "ledger"
    ledger.mkdir()
    took_s, n_bytes = _fill(ledger, n_rows, last_day_s)
    times = {"hour": _written(last_day_s + _DAY_S - 3600), "now": _written(last_day_s + _DAY_S)}
    asked: dict[str, Callable[[], int]] = {}
    with Servers(folder, pick_cores()) as servers:
        more = {"VELOX_LEDGER": str(ledger), "VELOX_LEDGER_DAYS": str(_DAYS + 2), "VELOX_ADMIN_TOKEN": _TOKEN}
        admin = servers.velox(f"http://127.0.0.1:{servers.nginx_upstream().http1}", "off", more=more).admin
        for arguments in _COMMANDS:
            shown = arguments.format(hour="1h ago", now="now")
            asked[f"`velox usage {shown}`".replace(" `", "`")] = partial(_command, ledger, arguments.format(**times))
        for target in _PAGES:
            asked[f"`/api/v1/{target}`"] = partial(_page, admin, target)
        seen: dict[str, list[float]] = {name: [] for name in asked}
        lines: dict[str, int] = {}
        for _ in range(_TIMES):
            for name, ask in asked.items():
                began_s = time.monotonic()
                lines[name] = ask()
                seen[name].append(time.monotonic() - began_s)
    table = [
        f"{n_rows:,} rows, kept in {took_s:.0f} s; {n_bytes / 2**20:,.0f} MiB.\n",
        "| | lines or items | s: median | least | greatest |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, each in seen.items():
        table.append(f"| {name} | {lines[name]:,} | {median(each):.2f} | {min(each):.2f} | {max(each):.2f} |")
    return table


def _written(time_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time_s))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # a disk: a temporary folder may be memory
        table = "\n".join(_measure(Path(folder), arguments.rows))
    print(table)
    if not arguments.dry:
        _PAGE.write_text(fill(_PAGE.read_text(), "reports", f"{table}\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
