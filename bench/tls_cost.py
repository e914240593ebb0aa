"""What TLS to the upstream costs: CPU per request and per SSE chunk, plain and over TLS 1.3, Velox and nginx.

    python -m bench.tls_cost [--rounds N] [--seconds S] [--out DIR]  # fills docs/benchmarks/tls.md
    python -m bench.tls_cost --smoke                                 # does it run? fills no page

Velox over HTTP/1.1 and HTTP/2 with each engine; nginx, which has no HTTP/2 to its upstreams, over HTTP/1.1. Each ratio
is against the same subject without TLS, in the same round; the bar is that of HTTP/2.

Knows: what is compared with what. Does not know: how servers start (servers.py), how it is measured (measures.py).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Final, Literal

from bench.machine import Cores, describe, pick_cores
from bench.measures import Target, saturate, stream
from bench.report import Row, row, save, table
from bench.rounds import Figures, Measure, run_rounds
from bench.servers import Server, Servers
from bench.wrk_requests import write_requests
from docs.tables import fill

_PAGE: Final = Path(__file__).parent.parent / "docs" / "benchmarks" / "tls.md"
_BAR: Final = 1.3
_STREAMS: Final = 32
_SETTLE_S: Final = 0.5
_OVER_TLS: Final = " over TLS"
# subject -> how Velox is told to speak; nginx has no entry.
_SUBJECTS: Final = ("nginx, HTTP/1.1 up", "Velox, HTTP/1.1 up", "Velox, HTTP/2 up (ngh2)", "Velox, HTTP/2 up (h2)")


def gateways(servers: Servers, ports: dict[str, int], *, is_stream: bool) -> dict[str, Server]:
    """Start all subjects, without and with TLS. ports: of the upstream: http1, http2, and with -tls after them."""
    found: dict[str, Server] = {}
    for tls in ("", "-tls"):
        scheme, suffix = ("https", _OVER_TLS) if tls else ("http", "")
        http1, http2 = (f"{scheme}://127.0.0.1:{ports[name + tls]}" for name in ("http1", "http2"))
        nginx, velox, ngh2, h2 = (subject + suffix for subject in _SUBJECTS)
        buffering: Literal["on", "off"] = "off" if is_stream else "on"
        found[nginx] = servers.nginx_proxy(ports["http1" + tls], buffering=buffering, tls=bool(tls))
        found[velox] = servers.velox(http1, "off")
        found[ngh2] = servers.velox(http2, "on")
        found[h2] = servers.velox(http2, "on", "h2")
    return found


def rows_of(figures: Figures, what: str, key: str = "cpu_us", unit: str = "µs") -> list[Row]:
    """Make the table's lines: each subject, then the same over TLS with its ratio."""
    rows = []
    for subject in _SUBJECTS:
        rows.append(row(figures, key, subject, what=what, unit=unit))
        bar = _BAR if "HTTP/2" in subject and key == "cpu_us" else 0.0
        rows.append(row(figures, key, subject + _OVER_TLS, what=what, unit=unit, reference=subject, bar=bar))
    return rows


class Bench:
    """One run: its cores, how long it takes, and what came out so far."""

    def __init__(self, folder: Path, cores: Cores, *, n_rounds: int, seconds: float) -> None:
        self._folder: Final = folder
        self._cores: Final = cores
        self._n_rounds: Final = n_rounds
        self._seconds: Final = seconds
        self.figures: Final[dict[str, Figures]] = {}

    def run(self, name: str, *, is_stream: bool) -> Figures:
        """Measure all subjects in rounds, and keep the figures."""
        folder = self._folder / name
        folder.mkdir()
        requests = write_requests(folder / "requests")
        with Servers(folder, self._cores) as servers:
            # One upstream for both questions: it writes each chunk on its own, with or without TLS.
            origin, http2, tls, tls_http2 = servers.tls_upstream(interval_s=0.0)
            ports = {"http1": origin.port, "http2": http2, "http1-tls": tls, "http2-tls": tls_http2}
            measures: dict[str, Measure] = {}
            for subject, server in gateways(servers, ports, is_stream=is_stream).items():
                target = Target(server.port, server, origin.port)
                measures[subject] = (
                    partial(self._chunks, target) if is_stream else partial(self._requests, target, requests)
                )
            figures = self.figures[name] = run_rounds(measures, self._n_rounds, self._seconds)
        return figures

    def _requests(self, target: Target, requests: Path, seconds: float) -> dict[str, float]:
        return saturate(target, requests, connections=_STREAMS, seconds=seconds, cores=(self._cores.rest,))

    def _chunks(self, target: Target, seconds: float) -> dict[str, float]:
        return stream(target, streams=_STREAMS, settle_s=_SETTLE_S, seconds=seconds, core=self._cores.rest)


def main() -> None:
    """Read the command line, measure, print and save."""
    parser = argparse.ArgumentParser(prog="python -m bench.tls_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one short round: does it run?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    given = parser.parse_args()
    n_rounds, seconds = (1, 1.0) if given.smoke else (given.rounds, given.seconds)
    cores = pick_cores()
    os.sched_setaffinity(0, {cores.rest})
    machine = describe()
    with tempfile.TemporaryDirectory(prefix="velox-bench-") as folder:
        bench = Bench(Path(folder), cores, n_rounds=n_rounds, seconds=seconds)
        requests = bench.run("requests", is_stream=False)
        chunks = bench.run("chunks", is_stream=True)
    rows = rows_of(requests, "CPU per JSON request") + rows_of(chunks, "CPU per SSE chunk, burst")
    rows += rows_of(chunks, "chunks a write, burst", "chunks_per_write", "")
    text = table(rows)
    print(text)
    raw: dict[str, object] = {"machine": machine, "rounds": n_rounds, "seconds": seconds, "figures": bench.figures}
    print(f"\nraw figures: {save(given.out, 'tls-cost', raw, text)}")
    if not given.smoke:
        _PAGE.write_text(fill(_PAGE.read_text(), "tls-cost", f"{text}\n"))


if __name__ == "__main__":
    main()
