"""The cells of bench.growth: which gateway is started, and what it is asked, for each point of each series.

Knows: configurations of many members, keys, routes and limits; how one point is measured. Does not know: rounds, what
is made of the figures (growth_page.py, growth_model.py).

CPU time is that of all processes of the gateway, in a part of the run in which all connections are open; requests are
counted by the upstream. The load keeps the gateway's core busy.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.cpu import memory_bytes
from bench.load import LoadError, start_wrk, wait_for
from bench.machine import Cores
from bench.payloads import API_KEY, large_body
from bench.servers import Server, Servers, get
from bench.traffic import MODELS, N_CALLERS
from bench.wrk_requests import EACH_KEY, EACH_MODEL, write_requests

__all__ = ["BALANCES", "MEMBERS_AT_REST", "SERIES", "Cells", "Series", "point_name"]

_N_CONNECTIONS: Final = 32
_SETTLE_S: Final = 0.4
_ORIGINS: Final = 64  # of one upstream, at most
_KIB: Final = 1024
_LARGE_KB: Final = 16.0  # and more: many messages with escapes, as large bodies are in life
_REST_S: Final = 6.0
_START_S: Final = 120.0
_N_IDLE: Final = 1000
_N_STREAMS: Final = 1000
_CHUNK_S: Final = 0.1
_LAG: Final = re.compile(rb'^velox_event_loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} ([0-9.e+]+)$', re.M)

_MEMBERS: Final = "members-{}"
BALANCES: Final = ("round_robin", "peak_ewma", "least_inflight")
# All that a configuration takes is 256 upstreams of 64 origins each.
MEMBERS_AT_REST: Final = (1, 256, 1024, 4096, 10_048)


@dataclass(frozen=True, slots=True)
class Series:
    """One row of points. n: what is counted along it, in units of `unit`."""

    title: str
    unit: str
    points: Sequence[float]


SERIES: Final = {
    "connections": Series("connections of clients", "connections", (1, 8, 32, 128, 512, 2000)),
    "body": Series("size of the request's body", "KB", (0.75, 3.5, 16, 64, 256, 2048)),
    **{
        f"members-{balance}": Series(f"upstreams in a route, `{balance}`", "upstreams", (1, 2, 8, 64, 256, 1024))
        for balance in BALANCES
    },
    "keys": Series("keys, each used", "keys", (1, 100, 10_000)),
    "limited-keys": Series("keys with a limit of their own, each used", "keys", (1, 100, 10_000)),
    "routes": Series("routes, each used", "routes", (1, 100, 10_000)),
    "limits": Series("limits that count a request", "limits", (1, 4, 16, 64)),
    "other-limits": Series("limits of other models beside", "limits", (1, 16, 64, 255)),
}


class Cells:
    """The gateways of one run, and the measure of each point."""

    def __init__(self, folder: Path, servers: Servers, cores: Cores) -> None:
        self._folder: Final = folder
        self._servers: Final = servers
        self._cores: Final = cores
        self._origin: Final = servers.nginx_upstream().http1
        self._n_files = 0

    def measures(self, only: Collection[str]) -> dict[str, Callable[[float], dict[str, float]]]:
        """Start the gateways of some series; return what measures each point, by what point_name() calls it."""
        found: dict[str, Callable[[float], dict[str, float]]] = {}
        plain = self._start({})
        for n in SERIES["connections"].points:
            found[point_name("connections", n)] = partial(self._plain, plain, n_connections=int(n))
        for n in SERIES["body"].points:
            found[point_name("body", n)] = partial(self._plain, plain, sent=self._requests(n))
        for name, start in self._starts().items():
            if name in only:
                found |= {point_name(name, n): start(int(n)) for n in SERIES[name].points}
        for n in (
            SERIES[_MEMBERS.format(BALANCES[0])].points if any(_MEMBERS.format(b) in only for b in BALANCES) else ()
        ):
            gateway = self._start({}, _members_file(self._origin, int(n)))
            for balance in BALANCES:
                point = partial(self._plain, gateway, sent=self._requests(0.75, balance))
                found[point_name(_MEMBERS.format(balance), n)] = point
        return {name: each for name, each in found.items() if name.split()[0] in only}

    def _starts(self) -> dict[str, Callable[[int], Callable[[float], dict[str, float]]]]:
        """Return what starts the gateway of one point, for the series in which each has its own."""
        limited = {"VELOX_KEY_RPM": "60000000", "VELOX_KEY_BURST": "1000000"}
        return {
            "keys": lambda n: partial(self._varied, self._start(self._keys(n)), n_keys=n),
            "limited-keys": lambda n: partial(self._varied, self._start(self._keys(n) | limited), n_keys=n),
            "routes": lambda n: partial(self._varied, self._start({}, _routes_file(self._origin, n)), n_models=n),
            "limits": lambda n: partial(self._plain, self._start(_limits(n))),
            "other-limits": lambda n: partial(self._plain, self._start(_limits(n, "other-{}"))),
        }

    def _keys(self, n: int) -> dict[str, str]:
        return {"VELOX_API_KEYS_FILE": self._file("".join(f"{API_KEY}-{i}\n" for i in range(n))), "VELOX_API_KEYS": ""}

    # -- one point --------------------------------------------------------------------------------

    def _plain(
        self, gateway: Server, seconds: float, *, n_connections: int = _N_CONNECTIONS, sent: Path | None = None
    ) -> dict[str, float]:
        load_s = seconds + _settle_s(n_connections) + _SETTLE_S
        requests, core = sent or self._requests(0.75), self._cores.rest
        load = start_wrk(gateway.port, requests, seconds=_whole(load_s), connections=n_connections, core=core)
        return self._counted(gateway, load, seconds, load_s, _settle_s(n_connections))

    def _varied(self, gateway: Server, seconds: float, *, n_keys: int = 0, n_models: int = 0) -> dict[str, float]:
        """By the next of the keys, or for the next of the models, with each request."""
        path = self._folder / f"requests-{n_keys}-{n_models}"
        if n_keys:
            write_requests(path, keys=[EACH_KEY] * N_CALLERS)
        else:
            write_requests(path, models=[EACH_MODEL])
        load_s = seconds + 3 * _SETTLE_S
        load = start_wrk(
            *(gateway.port, path),
            seconds=_whole(load_s),
            connections=_N_CONNECTIONS,
            core=self._cores.rest,
            n_keys=n_keys,
            n_models=n_models,
        )
        return self._counted(gateway, load, seconds, load_s, 2 * _SETTLE_S)

    def _counted(
        self, gateway: Server, load: subprocess.Popen[str], seconds: float, load_s: float, settle_s: float
    ) -> dict[str, float]:
        time.sleep(settle_s)
        n_before, before_s, began_s = self._n_requests(), gateway.cpu_s(), time.monotonic()
        time.sleep(seconds)
        cpu_s, wall_s = gateway.cpu_s() - before_s, time.monotonic() - began_s
        n = self._n_requests() - n_before - 1  # this very question
        wait_for(load, seconds=load_s + 2.0)
        gateway.check()
        if n <= 0:
            raise LoadError("no request was answered")
        return {"cpu_us": cpu_s / n * 1e6, "per_s": n / wall_s}

    def _n_requests(self) -> int:
        """Ask nginx what it has answered so far: the third number of the third line."""
        return int(get(self._origin, "/status")[1].split(b"\n")[2].split()[2])

    # -- what is measured once --------------------------------------------------------------------

    def at_rest(self, n_members: int) -> dict[str, float]:
        """Start a gateway with so many members, let it be, then ask how it was. Times of the start are of the wall."""
        file = self._file(_members_file(self._origin, n_members, n_warm=1))
        began_s = time.monotonic()
        gateway = self._servers.velox("", "off", more=_configured(file), within_s=_START_S)
        start_s = time.monotonic() - began_s
        self._wait_warm(n_members)
        _leave_alone(gateway, self._cores)
        lag = _lag(gateway)
        before_s = gateway.cpu_s()
        time.sleep(_REST_S)
        cpu_s = gateway.cpu_s() - before_s
        began_s = time.monotonic()
        holds = _longest(lag, _lag(gateway)) | {"scrape_s": time.monotonic() - began_s}
        figures = {"start_s": start_s, "memory_mb": gateway.memory_bytes() / 1e6, "cpu_part": cpu_s / _REST_S, **holds}
        gateway.stop()
        return figures

    def memory(self) -> dict[str, float]:
        """Return bytes at rest, for each idle connection and each stream, and the CPU time of a chunk."""
        origin, _ = self._servers.upstream(interval_s=_CHUNK_S, chunks=100)
        gateway = self._servers.velox(f"http://127.0.0.1:{origin.port}", "off")
        rest = gateway.memory_bytes()
        idle = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(_N_IDLE)]
        time.sleep(_SETTLE_S)
        connection = (gateway.memory_bytes() - rest) / _N_IDLE
        for each in idle:
            each.close()
        sent = write_requests(self._folder / "requests-stream", stream=True)
        seconds = 6.0
        load = start_wrk(gateway.port, sent, seconds=seconds + 4.0, connections=_N_STREAMS, core=self._cores.rest)
        time.sleep(3.0)
        n_before, before_s = _n_chunks(origin), gateway.cpu_s()
        time.sleep(seconds)
        chunk_s = (gateway.cpu_s() - before_s) / (_n_chunks(origin) - n_before)
        stream = (gateway.memory_bytes() - rest) / _N_STREAMS
        wait_for(load, seconds=seconds + 20.0)
        gateway.stop()
        return {
            "rest_bytes": rest,
            "connection_bytes": connection,
            "stream_bytes": stream,
            "chunk_us": chunk_s * 1e6,
        }

    # -- help -------------------------------------------------------------------------------------

    def _start(self, settings: Mapping[str, str], file: str = "") -> Server:
        if file:
            return self._servers.velox(
                "", "off", more=_configured(self._file(file)) | dict(settings), within_s=_START_S
            )
        return self._servers.velox(f"http://127.0.0.1:{self._origin}", "off", more=settings, within_s=_START_S)

    def _wait_warm(self, n_members: int) -> None:
        """Wait until nginx has a connection of each member, or no more come."""
        until_s, n_before = time.monotonic() + _START_S, -1
        while time.monotonic() < until_s:
            n = int(get(self._origin, "/status")[1].split()[2])
            if n >= n_members and n == n_before:
                return
            n_before = n
            time.sleep(0.5)

    def _file(self, text: str) -> str:
        self._n_files += 1
        path = self._folder / f"file-{self._n_files}.yaml"
        path.write_text(text)
        return str(path)

    def _requests(self, kb: float, model: str = "") -> Path:
        """Return a file of requests of about so many KB, for all models or for one."""
        path = self._folder / f"requests-{kb:g}-{model}"
        if not path.exists():
            body = b"" if kb < _LARGE_KB else large_body("text", int(kb * _KIB))
            write_requests(path, mean_bytes=int(kb * 1000), body=body, models=[model] if model else MODELS)
        return path


def point_name(series: str, n: float) -> str:
    """Return what a point is called where all stand side by side."""
    return f"{series} {n:g}"


def _configured(file: str) -> dict[str, str]:
    return {"VELOX_CONFIG": file, "VELOX_UPSTREAM_ORIGIN": ""}


def _members_file(port: int, n: int, n_warm: int = 2) -> str:
    """Return a configuration of n origins, that are one nginx by n paths, and a route for each way to balance."""
    lines, names = ["upstreams:"], []
    for first in range(0, n, _ORIGINS):
        origins = ", ".join(f"'http://127.0.0.1:{port}/{i}'" for i in range(first, min(n, first + _ORIGINS)))
        names.append(f"u{first}")
        lines.append(f"  - {{name: u{first}, connections: {n_warm}, origin: [{origins}]}}")
    lines.append("routes:")
    to = ", ".join(names[:_ORIGINS])
    lines += [f"  - {{name: {b}, match: {{models: [{b}]}}, to: [{to}], balance: {b}}}" for b in BALANCES]
    return "\n".join(lines) + "\n"


def _routes_file(port: int, n: int) -> str:
    """Return a configuration of n routes, each for a model."""
    lines = ["upstreams:", f"  - {{name: u, origin: 'http://127.0.0.1:{port}'}}", "routes:"]
    lines += [f"  - {{name: r{i}, match: {{models: [model-{i:06d}]}}, to: u}}" for i in range(n)]
    return "\n".join(lines) + "\n"


def _limits(n: int, model: str = "") -> dict[str, str]:
    """Return n limits of the gateway; model: of one model each, of which none is asked for."""
    rates = {"rpm": 60_000_000, "burst": 10_000_000}
    rules = [{"per": "gateway", **rates, **({"models": [model.format(i)]} if model else {})} for i in range(n)]
    return {"VELOX_RATE_LIMIT_RPM": "0", "VELOX_LIMITS": json.dumps(rules)}


def _settle_s(n_connections: int) -> float:
    return _SETTLE_S + n_connections / 2500.0


def _whole(seconds: float) -> float:
    """Return how long wrk runs for at least so long: it knows whole seconds only."""
    return float(-(-seconds // 1))


def _n_chunks(origin: Server) -> int:
    return int(json.loads(get(origin.port, "/count")[1])["chunks"])


def _leave_alone(gateway: Server, cores: Cores) -> None:
    """Have the worker, which is the largest process, alone on its core: a scrape is not to hold it up."""
    for pid in sorted(gateway.pids, key=lambda pid: memory_bytes([pid]))[:-1]:
        os.sched_setaffinity(pid, {cores.rest})


def _lag(gateway: Server) -> list[tuple[float, float]]:
    """Return how many ticks of the loop were at most so late, by seconds."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.admin}/metrics", timeout=_START_S) as reply:
        page = reply.read()
    return [(float(bound), float(n)) for bound, n in _LAG.findall(page)]


def _longest(before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the bounds, in ms, of the longest hold between two looks, and of nine tenths of them."""
    counts = [(bound, n - m) for (bound, n), (_, m) in zip(after, before, strict=True)]
    n_all = counts[-1][1]
    longest = next(bound for bound, n in counts if n >= n_all)
    usual = next(bound for bound, n in counts if n >= 0.9 * n_all)
    return {"longest_hold_ms": longest * 1e3, "usual_hold_ms": usual * 1e3}
