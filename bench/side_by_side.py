"""Velox beside nginx, same upstream, same load, same run: CPU per request and per SSE chunk, throughput, latency.

    python -m bench.side_by_side [--smoke] [--only json,burst,paced,latency] [--rounds N] [--seconds S] [--out DIR]

Knows: what is compared with what. Does not know: how servers start (servers.py), how load is made (load.py), how
rounds are ordered (rounds.py).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from bench.load import start_open_loop, start_wrk, wait_for
from bench.machine import Cores, describe, pick_cores
from bench.payloads import chat_body
from bench.report import Row, row, save, table
from bench.rounds import Figures, Measure, run_rounds, spread
from bench.servers import Server, Servers, get

NGINX: Final = "nginx"
HTTP1: Final = "Velox, HTTP/1.1 up"
H2C: Final = "Velox, HTTP/2 up"
TLS: Final = "Velox, HTTP/2 over TLS 1.3 up"
DIRECT: Final = "direct"

_JSON_CONNECTIONS: Final = 32
_PACED_STREAMS: Final = 150
_PACED_INTERVAL_S: Final = 0.01
# wrk needs a moment until all its connections are busy, and streams until they are spread.
_SETTLE_S: Final = 0.5


class Bench:
    """One run: its servers, its cores, how long it takes, and what came out so far."""

    def __init__(self, folder: Path, cores: Cores, *, n_rounds: int, seconds: float) -> None:
        self._folder: Final = folder
        self._cores: Final = cores
        self._n_rounds: Final = n_rounds
        self._seconds: Final = seconds
        self.figures: Final[dict[str, Figures]] = {}
        self.rows: Final[list[Row]] = []

    def json(self) -> None:
        """CPU per request, throughput: a short chat answered at once."""
        with self.servers("json") as servers:
            origin = servers.nginx_upstream()
            gateways = {
                NGINX: servers.nginx_proxy(origin.http1, buffering="on"),
                HTTP1: servers.velox(f"http://127.0.0.1:{origin.http1}", "off"),
                H2C: servers.velox(f"http://127.0.0.1:{origin.http2}", "on"),
                TLS: servers.velox(f"https://127.0.0.1:{origin.tls}", "on"),
            }
            figures = self.run("json", {name: partial(self.requests, g) for name, g in gateways.items()})
        for name, bar in ((NGINX, 0.0), (HTTP1, 2.0), (H2C, 2.0)):
            self._row(figures, "cpu_us", name, "CPU per JSON request", "µs", NGINX, bar)
        self._row(figures, "cpu_us", TLS, "CPU per JSON request", "µs", H2C, 1.3)
        for name in gateways:
            self._row(figures, "per_s", name, "throughput, 32 connections", "requests/s", NGINX)

    def sse(self, kind: str, interval_s: float, streams: int, bars: dict[str, float]) -> None:
        """CPU per chunk of streamed answers of 100 chunks."""
        with self.servers(kind) as servers:
            origin, http2 = servers.upstream(interval_s=interval_s)
            gateways = {
                NGINX: servers.nginx_proxy(origin.port, buffering="off"),
                HTTP1: servers.velox(f"http://127.0.0.1:{origin.port}", "off"),
                H2C: servers.velox(f"http://127.0.0.1:{http2}", "on"),
            }
            measures = {name: partial(self.chunks, gateway, origin, streams) for name, gateway in gateways.items()}
            figures = self.run(kind, measures)
        for name in gateways:
            self._row(figures, "cpu_us", name, f"CPU per SSE chunk, {kind}", "µs", NGINX, bars.get(name, 0.0))
        for name in gateways:
            self._row(figures, "chunks_per_write", name, f"chunks a write, {kind}", "", NGINX)

    def latency(self) -> None:
        """Latency at half of what Velox can do, beside the same without a gateway."""
        with self.servers("latency") as servers:
            origin = servers.nginx_upstream()
            proxy = servers.nginx_proxy(origin.http1, buffering="on")
            http1 = servers.velox(f"http://127.0.0.1:{origin.http1}", "off")
            h2c = servers.velox(f"http://127.0.0.1:{origin.http2}", "on")
            rate = 0.5 * self.requests(http1, min(self._seconds, 2.0))["per_s"]
            # The generator, in Python, shares its core with the upstream: above this it would measure itself.
            rate = min(rate, 4000.0)
            ports = {DIRECT: origin.http1, NGINX: proxy.port, HTTP1: http1.port, H2C: h2c.port}
            measures = {name: partial(self._open_loop, port, rate) for name, port in ports.items()}
            figures = self.run("latency", measures)
        for key in ("p50_ms", "p99_ms"):
            for name in ports:
                what = f"latency {key[:3]} at {rate:.0f} requests/s"
                self._row(figures, key, name, what, "ms", DIRECT)
            for name in (NGINX, HTTP1, H2C):
                added = [a[key] - b[key] for a, b in zip(figures[name], figures[DIRECT], strict=True)]
                self.rows.append(Row(f"added latency {key[:3]}", name, spread(added), "ms"))

    # -- one measurement --------------------------------------------------------------------------

    def requests(self, gateway: Server, seconds: float) -> dict[str, float]:
        """Measure plain requests: as many as wrk can send."""
        load = start_wrk(
            gateway.port,
            self._body(stream=False),
            seconds=seconds,
            connections=_JSON_CONNECTIONS,
            core=self._cores.rest,
        )
        before_s = gateway.cpu_s()
        done = wait_for(load, seconds=seconds)
        cpu_s = gateway.cpu_s() - before_s
        gateway.check()
        return done | {"cpu_us": cpu_s / done["requests"] * 1e6, "per_s": done["requests"] / done["seconds"]}

    def chunks(self, gateway: Server, origin: Server, streams: int, seconds: float) -> dict[str, float]:
        """Measure streamed answers; `origin` counts their chunks."""
        load = start_wrk(
            gateway.port,
            self._body(stream=True),
            seconds=seconds + 2 * _SETTLE_S,
            connections=streams,
            core=self._cores.rest,
        )
        time.sleep(_SETTLE_S)
        began_s, before_s, n_before = time.monotonic(), gateway.cpu_s(), _chunks_so_far(origin)
        n_writes_before = gateway.n_writes()
        time.sleep(seconds)
        n_writes = gateway.n_writes() - n_writes_before
        cpu_s, n_chunks = gateway.cpu_s() - before_s, _chunks_so_far(origin) - n_before
        wall_s = time.monotonic() - began_s
        wait_for(load, seconds=seconds)
        gateway.check()
        return {
            "cpu_us": cpu_s / n_chunks * 1e6,
            "chunks_per_s": n_chunks / wall_s,
            "chunks_per_write": n_chunks / n_writes,
            "cpu_us_per_write": cpu_s / n_writes * 1e6,
            "busy": cpu_s / wall_s,
        }

    def _open_loop(self, port: int, rate: float, seconds: float) -> dict[str, float]:
        load = start_open_loop(port, rate=rate, seconds=seconds, connections=_JSON_CONNECTIONS, core=self._cores.rest)
        return wait_for(load, seconds=seconds)

    # -- help -------------------------------------------------------------------------------------

    def servers(self, name: str) -> Servers:
        """Return what starts servers, with a folder of its own."""
        folder = self._folder / name
        folder.mkdir()
        return Servers(folder, self._cores)

    def _body(self, *, stream: bool) -> Path:
        path = self._folder / f"stream-{stream}.json"
        if not path.exists():
            path.write_bytes(chat_body(stream=stream))
        return path

    def run(self, name: str, measures: Mapping[str, Measure]) -> Figures:
        """Measure in rounds, and keep the figures."""
        figures = self.figures[name] = run_rounds(measures, self._n_rounds, self._seconds)
        return figures

    def _row(
        self, figures: Figures, key: str, name: str, what: str, unit: str, reference: str, bar: float = 0.0
    ) -> None:
        against = "" if name == reference else reference
        self.rows.append(row(figures, key, name, what=what, unit=unit, reference=against, bar=bar))


def _chunks_so_far(origin: Server) -> int:
    return int(json.loads(get(origin.port, "/count")[1])["chunks"])


def main() -> None:
    """Read the command line, measure, print and save."""
    parser = argparse.ArgumentParser(prog="python -m bench.side_by_side", description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one short round: does it run?")
    parser.add_argument("--only", metavar="PARTS", help="of json,burst,paced,latency")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    given = parser.parse_args()
    cores = pick_cores()
    os.sched_setaffinity(0, {cores.rest})
    machine = describe()
    n_rounds, seconds = (1, 1.0) if given.smoke else (given.rounds, given.seconds)
    chosen = given.only or ("json,burst" if given.smoke else "json,burst,paced,latency")
    with tempfile.TemporaryDirectory(prefix="velox-bench-") as folder:
        bench = Bench(Path(folder), cores, n_rounds=n_rounds, seconds=seconds)
        parts: dict[str, Callable[[], None]] = {
            "json": bench.json,
            "burst": partial(bench.sse, "burst", 0.0, _JSON_CONNECTIONS, {HTTP1: 1.1, H2C: 1.1}),
            "paced": partial(bench.sse, "paced", _PACED_INTERVAL_S, _PACED_STREAMS, {HTTP1: 1.3, H2C: 1.2}),
            "latency": bench.latency,
        }
        for name in chosen.split(","):
            parts[name]()
    text = table(bench.rows)
    print(text)
    raw: dict[str, object] = {"machine": machine, "rounds": n_rounds, "seconds": seconds}
    print(f"\nraw figures: {save(given.out, 'side-by-side', raw | {'figures': bench.figures}, text)}")


if __name__ == "__main__":
    main()
