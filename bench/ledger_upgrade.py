"""How long the first start takes that brings a ledger's sums to the newest schema.

    python -m bench.ledger_upgrade                    # sums of 90 days, 1,000 pairs of key and model in each hour
    python -m bench.ledger_upgrade --hours 240        # of ten days
    python -m bench.ledger_upgrade --from 3           # from this schema on, the last but one if it is not given

Knows: what sums a gateway has whose keys and models are all busy all the time. Does not know: what a migration does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from velox.ledger.sqlite import SUM_MIGRATIONS, SUMS_FILE
from velox.ledger.sqlite_file import connect, transaction
from velox.ledger.store import PERIODS, Sums
from velox.ledger.totals import KEPT_S

__all__ = ["main"]

_NOW_S: Final = 1_796_000_000
_KEYS: Final = 100
_MODELS: Final = 10
_SUMS: Final = Sums(5, 0, 0, 0, 5000, 800, 3000, 0, 100, 123_456)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many sums there are, and how long the start takes for them."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ledger_upgrade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=int, default=90 * 24)
    parser.add_argument("--from", dest="schema", type=int, default=len(SUM_MIGRATIONS) - 1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, SUMS_FILE)
        before = connect(path, SUM_MIGRATIONS[: options.schema], is_reader=False)
        with transaction(before):
            n_columns = len(before.execute("SELECT * FROM total LIMIT 0").description)
            before.executemany(f"INSERT INTO total VALUES ({', '.join('?' * n_columns)})", _rows(options.hours))
        (n_rows,) = before.execute("SELECT count(*) FROM total").fetchone()
        before.close()
        began_s = time.monotonic()
        connect(path, SUM_MIGRATIONS, is_reader=False).close()
        took_s = time.monotonic() - began_s
    print(f"{n_rows:,} sums, from schema {options.schema} to {len(SUM_MIGRATIONS)}: {took_s:.1f} s")
    return 0


def _rows(n_hours: int) -> Iterator[tuple[Any, ...]]:
    """Yield the sums of so many hours, as long as each period is kept."""
    for period, seconds in PERIODS.items():
        n_s = min(n_hours * 3600, KEPT_S.get(period, n_hours * 3600))
        for start in range(_NOW_S // seconds * seconds, _NOW_S - n_s, -seconds):
            for n in range(_KEYS * _MODELS):
                key, model = divmod(n, _MODELS)
                names = (f"key-{key}", f"team-{key % 10}", f"user-{key}", "main", f"model-{model}")
                yield (period, start, *names, *_SUMS)


if __name__ == "__main__":
    sys.exit(main())
