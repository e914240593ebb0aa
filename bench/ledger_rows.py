"""What the process `ledger` takes for rows that come all the time: CPU, disk, how long a commit and a row's wait are.

    python -m bench.ledger_rows                    # 1,000 rows a second, 10 minutes; writes docs/benchmarks/ledger.md
    python -m bench.ledger_rows --seconds 2 --dry  # does it run? writes nothing
    python -m bench.ledger_rows --burst 200000     # CPU time of both sides, all rows there at once; writes nothing

This process writes calls into the real ring by the real writer, 100 keys and 10 models, a hundred times a second as
many as are due. A process of its own runs the real loop of the ledger on the real store. In the end each call must
have its row, once.

Knows: how rows are made and what is read from the ledger's process. Does not know: how a row is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from docs.tables import fill
from velox.ledger.collector import Collector
from velox.ledger.record import Tokens
from velox.ledger.sqlite import SqliteStore
from velox.ledger.store import Batch, UsageQuery
from velox.ledger.writer import CallNames, CallWriter
from velox.observe.metrics import WorkerMetrics
from velox.observe.series import CELLS
from velox.runtime.ledger.folder import LedgerFolder
from velox.runtime.ledger.ledger_process import run_ledger
from velox.settings import Settings, load
from velox.shm.record_ring import RecordRing
from velox.shm.segment import Segment

__all__ = ["main"]

_PAGE: Final = Path(__file__).parent.parent / "docs/benchmarks/ledger.md"
_TICK_S: Final = 0.01
_KEYS: Final = 100
_MODELS: Final = 10
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_WAIT_S: Final = 60.0
_TOKENS: Final = Tokens(512, 190)
_ALL: Final = UsageQuery(0, 253_402_300_799)


class _TimedStore(SqliteStore):
    """The store, and how long each batch took until it was safe. The times are written into a file at the end."""

    def __init__(self, settings: Settings, times: Path) -> None:
        super().__init__(Path(settings.ledger or ""), days=settings.ledger_days)
        self._times_path: Final = times
        self._times: Final[list[tuple[int, float]]] = []

    def add(self, batch: Batch) -> None:
        began_s = time.perf_counter()
        super().add(batch)
        self._times.append((len(batch.calls), time.perf_counter() - began_s))

    def close(self) -> None:
        super().close()
        self._times_path.write_text(json.dumps(self._times))


@dataclass
class _Run:
    """What was seen. lags_s: the age of the oldest row that was not safe, at each tick."""

    n_rows: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    writer_cpu_s: float = 0.0
    rss_bytes: int = 0
    lags_s: list[float] = field(default_factory=list)
    commits: list[tuple[int, float]] = field(default_factory=list)
    rows_bytes: int = 0
    sums_bytes: int = 0

    def rows(self) -> list[str]:
        """Return the table's lines."""
        commits_ms = [seconds * 1e3 for n, seconds in self.commits if n]
        return [
            "| | |",
            "|---|---|",
            f"| rows, seconds | {self.n_rows:,}, {self.seconds:.0f} |",
            f"| CPU of the ledger's process | {self.cpu_s / self.seconds:.2%} of a core,"
            f" {self.cpu_s / self.n_rows * 1e6:.1f} µs a row |",
            f"| CPU of the writer, which makes the calls, too | {self.writer_cpu_s / self.n_rows * 1e6:.1f} µs a row |",
            f"| most memory of the ledger's process | {self.rss_bytes / 2**20:.0f} MiB |",
            f"| file of the day | {self.rows_bytes / 2**20:.1f} MiB, {self.rows_bytes / self.n_rows:.0f} bytes a row |",
            f"| file of sums | {self.sums_bytes / 2**20:.1f} MiB |",
            f"| commits, rows in each | {len(commits_ms):,}, {self.n_rows / len(commits_ms):.0f} |",
            f"| a commit: median, 99th percentile, slowest | {median(commits_ms):.1f},"
            f" {_quantile(commits_ms, 0.99):.1f}, {max(commits_ms):.1f} ms |",
            f"| a row is safe after: median, 99th percentile, at most | {median(self.lags_s):.2f},"
            f" {_quantile(self.lags_s, 0.99):.2f}, {max(self.lags_s):.2f} s |",
        ]


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _measure(place: Path, rate: int, seconds: float) -> _Run:
    settings = load(
        {"VELOX_LEDGER": str(place / "ledger"), "VELOX_UPSTREAM_ORIGIN": "http://127.0.0.1:9", "VELOX_API_KEYS": "k"},
        cores=1,
        memory_bytes=0,
    )
    folder = LedgerFolder.of(settings, 1)
    assert folder is not None, "the setting names it"
    pid = os.fork()
    if not pid:
        metrics = WorkerMetrics(Segment(1, CELLS).other_metrics())
        code = run_ledger(
            settings, folder, metrics, None, lambda: None, lambda given: _TimedStore(given, place / "times")
        )
        os._exit(code)
    run = _Run()
    try:
        _write(run, folder, pid, rate, seconds)
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    run.commits = [(n, took_s) for n, took_s in json.loads((place / "times").read_text())]
    run.rows_bytes = sum(each.stat().st_size for each in folder.path.glob("calls-*.db"))
    run.sums_bytes = (folder.path / "ledger.db").stat().st_size
    store = SqliteStore(folder.path, days=30, is_reader=True)
    kept = store.totals(_ALL)[0].sums.n, sum(1 for _ in store.calls(_ALL))
    store.close()
    assert kept == (run.n_rows, run.n_rows), f"{run.n_rows} rows were written; sums and rows have {kept}"
    return run


def _write(run: _Run, folder: LedgerFolder, pid: int, rate: int, seconds: float) -> None:
    """Write calls at a rate; note the wait of the oldest one that is not safe, and what the process took for all."""
    ring = folder[0]
    ring.begin()
    writer, names = CallWriter(ring, os.getpid()), _names()
    waiting: deque[tuple[int, float]] = deque()  # the head after a tick, and its time
    began_s, began_cpu_s, own_s = time.monotonic(), _cpu_s(pid), 0.0
    while True:
        now_s = time.monotonic()
        while waiting and waiting[0][0] <= ring.tail:
            waiting.popleft()
        run.lags_s.append(now_s - waiting[0][1] if waiting else 0.0)
        if now_s - began_s >= seconds:
            break
        due = min(int((now_s - began_s + _TICK_S) * rate), int(seconds * rate))
        own_began_s = time.thread_time()
        while run.n_rows < due:
            _record(writer, run.n_rows, names[run.n_rows % _KEYS])
            run.n_rows += 1
        own_s += time.thread_time() - own_began_s
        waiting.append((ring.head, now_s))
        time.sleep(_TICK_S)
    patient_until_s = time.monotonic() + _WAIT_S
    while ring.tail < ring.head and time.monotonic() < patient_until_s:
        time.sleep(_TICK_S)
    run.seconds, run.cpu_s, run.writer_cpu_s = time.monotonic() - began_s, _cpu_s(pid) - began_cpu_s, own_s
    run.rss_bytes = _peak_bytes(pid)


def _record(writer: CallWriter, number: int, names: CallNames) -> None:
    call = writer.begin(number, 1, 1, False, time.time_ns() // 1000, names, (500, 200), 3_000, "bench")
    writer.end(
        call,
        status=200,
        reason="ok",
        flags=0,
        first_byte_us=90_000,
        duration_us=900_000,
        tokens=_TOKENS,
        cost_nano=2_900,
        prices="bench",
    )


def _burst(place: Path, n: int) -> str:
    """Return what a record takes to write, and what a row takes to keep, in µs of their thread's CPU time."""
    ring = RecordRing(place / "0.ring", n + _KEYS * _MODELS)
    ring.begin()
    writer, names = CallWriter(ring, os.getpid()), _names()
    store = SqliteStore(place, days=30)
    collector = Collector([ring], store, time.time)
    began_s = time.thread_time()
    for number in range(n):
        _record(writer, number, names[number % _KEYS])
    written_s = time.thread_time()
    while collector.collect():
        pass
    kept_s = time.thread_time()
    n_kept = store.totals(_ALL)[0].sums.n
    store.close()
    assert n_kept == n, f"{n} rows were written; sums have {n_kept}"
    return f"a record {(written_s - began_s) / n * 1e6:.2f} µs, a row {(kept_s - written_s) / n * 1e6:.2f} µs"


def _names() -> list[CallNames]:
    return [
        CallNames(f"{n:016x} key-{n}", "all", "openai", f"m-{n % _MODELS}", f"m-{n % _MODELS}") for n in range(_KEYS)
    ]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _peak_bytes(pid: int) -> int:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1_000, help="rows a second")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("--burst", type=int, default=0, metavar="ROWS", help="so many at once, in this process")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:  # a disk: a temporary folder may be memory
        if arguments.burst:
            print(_burst(Path(place), arguments.burst))
            return 0
        table = "\n".join(_measure(Path(place), arguments.rate, arguments.seconds).rows())
    print(table)
    if not arguments.dry:
        _PAGE.write_text(fill(_PAGE.read_text(), "rows", f"{table}\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
