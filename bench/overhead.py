"""What Velox says that it adds to a request, beside what a client finds that it adds, at three loads.

    python -m bench.overhead                     # about 3 minutes; writes the table of docs/timing.md
    python -m bench.overhead --rounds 2 --dry    # does it run? writes nothing

The same requests go straight to the upstream (nginx), through a relay that looks at no byte (bench/relay.py), and
through Velox, one way after the other, at the same mean rate. What a way adds is its latency, as a client measures it,
less that of the straight way. Velox reports two figures of its own:
`velox_overhead_seconds`, of which `forward` and `relay` are counted together, and `server-timing`, of which `total`
less `first-byte` is its own, asked for by a request now and then beside the others. Neither has what the kernel and the
loop do around Velox, which is most of what the relay costs.

A client's time is the median of a run: a machine with other work to do has slow requests on every way, in numbers that
differ by more than what is measured. As root, `chrt -f 1` before the command keeps other work away.

Knows: what is compared. Does not know: how load is made (open_loop.py), or how servers are started (servers.py).
"""

from __future__ import annotations

import argparse
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from bench.load import outcome, start_open_loop
from bench.machine import pick_cores
from bench.open_loop import whole_length
from bench.servers import Server, Servers, answers, free_port, get
from bench.traffic import requests
from docs.tables import fill

__all__ = ["main", "own_ms", "table"]

_ROOT: Final = Path(__file__).parent.parent
_PAGE: Final = _ROOT / "docs/timing.md"
_RATES: Final = (50, 250, 750)
_CONNECTIONS: Final = 32
_ASK_S: Final = 0.1
_TIMING: Final = re.compile(rb"\r\nserver-timing: ([^\r]*first-byte;dur=[^\r]*)\r\n")
_ENTRY: Final = re.compile(rb"([a-z-]+);dur=([0-9.]+)")
_SAMPLE: Final = re.compile(rb'velox_overhead_seconds_(sum|count)\{phase="(forward|relay)"\} (\S+)')
_WAYS: Final = ("straight", "relay", "velox")


@dataclass
class Load:
    """What was found at one rate, a value for each round: times of the ways, and what Velox told, in ms."""

    rate: int
    times: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in _WAYS})
    metrics: list[float] = field(default_factory=list)
    timing: list[float] = field(default_factory=list)

    def added(self, way: str) -> float:
        """Return what a way adds to the straight one, in ms: the median of the rounds."""
        pairs = zip(self.times[way], self.times["straight"], strict=True)
        return statistics.median(through - straight for through, straight in pairs)

    def beside_relay(self) -> float:
        """Return what Velox adds to the relay."""
        pairs = zip(self.times["velox"], self.times["relay"], strict=True)
        return statistics.median(through - relayed for through, relayed in pairs)


def own_ms(timing: bytes) -> float:
    """Return what Velox took of a reply's time, in ms, by its server-timing."""
    spent = {name: float(value) for name, value in _ENTRY.findall(timing)}
    return spent[b"total"] - spent[b"first-byte"]


class _Asking:
    """Asks for timing now and then while a load runs, on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.found_ms: Final[list[float]] = []
        self._port: Final = port
        self._over: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._ask)

    def __enter__(self) -> _Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        sent = requests(seed=time.time_ns())
        with socket.create_connection(("127.0.0.1", self._port)) as sock:
            while not self._over.wait(_ASK_S):
                (each,) = islice(sent, 1)
                sock.sendall(each.http1().replace(b"\r\n\r\n", b"\r\nx-velox-timing: 1\r\n\r\n", 1))
                received = b""
                while (length := whole_length(received) if received else None) is None or len(received) < length:
                    received += sock.recv(65536)
                timing = _TIMING.search(received)
                assert timing is not None, received[:500]
                self.found_ms.append(own_ms(timing[1]))


def _told(admin: int) -> dict[tuple[bytes, bytes], float]:
    return {(kind, phase): float(value) for kind, phase, value in _SAMPLE.findall(get(admin, "/metrics")[1])}


def _time_ms(port: int, rate: int, seconds: float, core: int) -> float:
    load = start_open_loop(port, rate=rate, seconds=seconds, connections=_CONNECTIONS, core=core)
    return outcome(load, seconds=seconds)["p50_ms"]


def _round(load: Load, ports: dict[str, int], velox: Server, seconds: float, core: int, order: Sequence[str]) -> None:
    for way in order:
        if way != "velox":
            load.times[way].append(_time_ms(ports[way], load.rate, seconds, core))
            continue
        before = _told(velox.admin)
        load.times[way].append(_time_ms(ports[way], load.rate, seconds, core))
        spent = {key: value - before.get(key, 0.0) for key, value in _told(velox.admin).items()}
        of_phases = (spent[b"sum", phase] / spent[b"count", phase] for phase in (b"forward", b"relay"))
        load.metrics.append(1e3 * sum(of_phases))
        with _Asking(velox.port) as asking:
            _time_ms(ports[way], load.rate, seconds, core)
        load.timing.append(statistics.median(asking.found_ms))


def table(loads: Sequence[Load]) -> str:
    """Return the figures, in microseconds."""
    lines = [
        "| requests/s | added by the relay | added by Velox | difference"
        " | `velox_overhead_seconds` | `server-timing` |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for load in loads:
        cells = (load.added("relay"), load.added("velox"), load.beside_relay())
        own = (statistics.median(load.metrics), statistics.median(load.timing))
        lines.append(f"| {load.rate} | " + " | ".join(f"{1e3 * each:.0f} µs" for each in (*cells, *own)) + " |")
    return "\n".join(lines)


def main() -> int:
    """Read the command line, measure, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--tree", type=Path, help="take `velox` from there, as from .compiled; writes nothing")
    given = parser.parse_args()
    cores = pick_cores()
    loads = [Load(rate) for rate in _RATES]
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder), cores) as servers:
        upstream = servers.nginx_upstream().http1
        velox = servers.velox(f"http://127.0.0.1:{upstream}", "off", tree=given.tree)
        port = free_port()
        command = [sys.executable, "-m", "bench.relay", str(port), str(upstream)]
        relay = servers.start(command, port, {}, Path(folder, "relay.log"), lambda: answers(port, "/status"))
        ports = {"straight": upstream, "relay": relay.port, "velox": velox.port}
        for turn in range(given.rounds + 1):
            for load in loads:
                order = [_WAYS[(turn + n) % len(_WAYS)] for n in range(len(_WAYS))]
                _round(load if turn else Load(load.rate), ports, velox, given.seconds, cores.rest, order)
    found = table(loads)
    print(found)
    if not given.dry and given.tree is None:
        _PAGE.write_text(fill(_PAGE.read_text(), "overhead", found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
