"""What TLS to the upstream costs: CPU per request and per SSE chunk, plain and over TLS 1.3, Velox and nginx.

    python -m bench.tls_cost [--smoke] [--rounds N] [--seconds S] [--out DIR]

Velox over HTTP/1.1 and HTTP/2 with each engine; nginx, which has no HTTP/2 to its upstreams, over HTTP/1.1. Each ratio
is against the same subject without TLS, in the same round; the bar is that of HTTP/2.

Knows: what is compared with what. Does not know: how servers start (servers.py), how it is measured (side_by_side.py).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from bench.machine import describe, pick_cores
from bench.report import Row, row, save, table
from bench.rounds import Figures
from bench.servers import Server, Servers
from bench.side_by_side import Bench

_BAR: Final = 1.3
_STREAMS: Final = 32
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
        buffering = "off" if is_stream else "on"
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
        with bench.servers("tls") as servers:
            # One upstream for both questions: it writes each chunk on its own, with or without TLS.
            origin, http2, tls, tls_http2 = servers.tls_upstream(interval_s=0.0)
            ports = {"http1": origin.port, "http2": http2, "http1-tls": tls, "http2-tls": tls_http2}
            plain = gateways(servers, ports, is_stream=False)
            requests = bench.run("requests", {name: partial(bench.requests, each) for name, each in plain.items()})
        with bench.servers("tls-chunks") as servers:
            origin, http2, tls, tls_http2 = servers.tls_upstream(interval_s=0.0)
            ports = {"http1": origin.port, "http2": http2, "http1-tls": tls, "http2-tls": tls_http2}
            streaming = gateways(servers, ports, is_stream=True)
            measures = {name: partial(bench.chunks, each, origin, _STREAMS) for name, each in streaming.items()}
            chunks = bench.run("chunks", measures)
    rows = rows_of(requests, "CPU per JSON request") + rows_of(chunks, "CPU per SSE chunk, burst")
    rows += rows_of(chunks, "chunks a write, burst", "chunks_per_write", "")
    text = table(rows)
    print(text)
    raw: dict[str, object] = {"machine": machine, "rounds": n_rounds, "seconds": seconds, "figures": bench.figures}
    print(f"\nraw figures: {save(given.out, 'tls-cost', raw, text)}")


if __name__ == "__main__":
    main()
