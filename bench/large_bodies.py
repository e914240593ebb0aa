"""Do large bodies stall small ones? Small requests' p99, quiet and while 10 MB bodies pass; the event loop's lag too.

    python -m bench.large_bodies [--rate 500] [--large-per-s 4] [--seconds S] [--rounds N] [--out DIR] [--dry]

It fills docs/benchmarks/large-bodies.md, unless it is to write nothing (--dry).

`direct` goes past every gateway while the large bodies pass through Velox: what it gets slower by is the machine's and
the load generator's doing, not the gateway's.

Knows: what is compared. Does not know: how servers start (servers.py), how small requests are sent (open_loop.py).
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from bench.large_senders import LargeSender
from bench.load import start_open_loop, wait_for
from bench.machine import Cores, describe, pick_cores
from bench.payloads import large_body
from bench.report import Row, row, save, table
from bench.rounds import Figures, run_rounds
from bench.servers import Server, Servers, get
from docs.tables import fill

_LARGE_BYTES: Final = 10_000_000
_LAG: Final = re.compile(rb'^velox_event_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
_PAGE: Final = Path(__file__).parent.parent / "docs" / "benchmarks" / "large-bodies.md"
_BAR: Final = 3.0


@dataclass(frozen=True, slots=True)
class Pass:
    """Who is asked. small: where small requests go. large: where the large ones go, None: nowhere (quiet)."""

    small: Server
    large: Server | None = None
    body: bytes = b""


class Bench:
    """One run. rate: small requests a second. large_per_s: large ones a second."""

    def __init__(self, cores: Cores, rate: float, large_per_s: float) -> None:
        self._cores: Final = cores
        self._rate: Final = rate
        self._large_per_s: Final = large_per_s

    def measure(self, each: Pass, seconds: float) -> dict[str, float]:
        """Send small requests for `seconds`, large ones beside them if there is where to."""
        lag_of = each.large if each.large is not None and each.large.admin else each.small
        before = _lag_buckets(lag_of)
        if each.large is None:
            figures = self._small(each.small, seconds)
        else:
            with LargeSender(each.large.port, each.body, self._large_per_s) as sender:
                figures = self._small(each.small, seconds)
            if sender.failure:
                raise RuntimeError(f"a large request failed: {sender.failure}")
            figures["large_per_s"] = sender.n_sent / seconds
        return figures | _lag(before, _lag_buckets(lag_of))

    def _small(self, server: Server, seconds: float) -> dict[str, float]:
        load = start_open_loop(server.port, rate=self._rate, seconds=seconds, connections=32, core=self._cores.rest)
        return wait_for(load, seconds=seconds)


def passes(servers: Servers) -> dict[str, Pass]:
    """Start what is compared and say who is asked in each measurement."""
    origin, http2 = servers.upstream(interval_s=0.0)
    gateways = {
        "nginx": servers.nginx_proxy(origin.port, buffering="off"),
        "Velox, HTTP/1.1 up": servers.velox(f"http://127.0.0.1:{origin.port}", "off"),
        "Velox, HTTP/2 up": servers.velox(f"http://127.0.0.1:{http2}", "on"),
    }
    # The small requests that go past the gateways have an upstream of their own, as they would elsewhere.
    beside, _ = servers.upstream(interval_s=0.0)
    kinds: tuple[Literal["image", "text"], ...] = ("image", "text")
    bodies = {kind: large_body(kind, _LARGE_BYTES) for kind in kinds}
    found = {"direct: quiet": Pass(beside)}
    for kind, body in bodies.items():
        found[f"direct: {kind}"] = Pass(beside, gateways["Velox, HTTP/1.1 up"], body)
    for name, gateway in gateways.items():
        found[f"{name}: quiet"] = Pass(gateway)
        for kind, body in bodies.items():
            found[f"{name}: {kind}"] = Pass(gateway, gateway, body)
    return found


def rows_of(figures: Figures) -> list[Row]:
    """Make the table's lines: p50 and p99 of each, against the same one quiet; then the lag."""
    rows: list[Row] = []
    for key in ("p50_ms", "p99_ms"):
        for name in figures:
            quiet = name.partition(":")[0] + ": quiet"
            bar = _BAR if key == "p99_ms" and name.startswith("Velox") and name != quiet else 0.0
            what = f"small requests' {key[:3]}"
            rows.append(row(figures, key, name, what=what, unit="ms", reference=quiet * (name != quiet), bar=bar))
    for name in figures:
        if name.startswith("Velox"):
            rows.append(row(figures, "lag_max_ms", name, what="event loop lag, worst: at most", unit="ms"))
    return rows


def _lag_buckets(server: Server) -> dict[float, float]:
    """Return upper bound in s -> count so far; empty for a server without metrics."""
    if not server.admin:
        return {}
    return {float(bound): float(count) for bound, count in _LAG.findall(get(server.admin, "/metrics")[1])}


def _lag(before: dict[float, float], after: dict[float, float]) -> dict[str, float]:
    """Return the bound of the highest bucket in which a tick of the loop fell meanwhile."""
    if not after:
        return {}
    total = max(after[bound] - before[bound] for bound in after)
    worst_s = min(bound for bound in after if after[bound] - before[bound] >= total)
    return {"lag_max_ms": min(worst_s, 3600.0) * 1e3, "n_ticks": total}


def main() -> None:
    """Read the command line, measure, print and save."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_bodies")
    parser.add_argument("--rate", type=float, default=500.0, help="small requests a second")
    parser.add_argument("--large-per-s", type=float, default=4.0, help="10 MB requests a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    parser.add_argument("--dry", action="store_true", help="fill no page")
    given = parser.parse_args()
    cores = pick_cores()
    os.sched_setaffinity(0, {cores.rest})
    # What is slowed down by the sender of large bodies must not be the generator of small requests.
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    bench = Bench(cores, given.rate, given.large_per_s)
    with (
        tempfile.TemporaryDirectory(prefix="velox-bench-") as folder,
        Servers(Path(folder), cores) as servers,
    ):
        measures = {name: partial(bench.measure, each) for name, each in passes(servers).items()}
        figures = run_rounds(measures, given.rounds, given.seconds)
    text = table(rows_of(figures))
    print(text)
    raw: dict[str, object] = {"machine": describe(), "rate": given.rate, "large_per_s": given.large_per_s}
    print(f"\nraw figures: {save(given.out, 'large-bodies', raw | {'figures': figures}, text)}")
    if not given.dry:
        _PAGE.write_text(fill(_PAGE.read_text(), "large-bodies", f"{text}\n"))


if __name__ == "__main__":
    main()
