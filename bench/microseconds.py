"""Where each microsecond of a request goes, and of a chunk: system calls, the loop, parsers, each step of our Python.

    python -m bench.microseconds [--seconds S] [--dry]      # about a minute; fills docs/benchmarks/microseconds.md

1. CPU per request (chunk) of the gateway's processes, under load: nothing else runs meanwhile.
2. The same load again, and `perf record`: which part of the CPU time is the kernel's, the loop's, ours.
3. The way of a request without sockets (bench/instructions), sampled as a worker's profile is: which part of ours is
   which step's. In the worker itself a sample is only taken where Python runs, so that what the kernel took before it
   would be counted as the step's that comes next.

The parts of 2 and 3 are multiplied with 1, so that the tables add up.

Knows: what is measured in which order. Does not know: what counts as what (microsecond_shares.py).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.instructions.count import rig_command
from bench.load import start_streams, start_wrk, stop
from bench.machine import Cores, describe, pick_cores
from bench.measures import Target, saturate, stream
from bench.microsecond_shares import OURS, Place, by_place, by_step, kernel_places
from bench.servers import Server, Servers
from bench.wrk_requests import write_requests
from docs.tables import fill

__all__ = ["Cell", "tables"]

_ROOT: Final = Path(__file__).parents[1]
_PAGE: Final = _ROOT / "docs" / "benchmarks" / "microseconds.md"
_CONNECTIONS: Final = 32
_STREAMS: Final = 150
_INTERVAL_S: Final = 0.01
_SETTLE_S: Final = 1.0
_PER_SECOND: Final = 999
_PROFILED_S: Final = 4.0
_SAMPLED_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One column. cpu_us: of one request or chunk; places: perf's samples; steps: shares of what is ours."""

    title: str
    cpu_us: float
    places: Mapping[Place, int]
    steps: Mapping[str, float]

    def us(self, place: Place) -> float:
        """Return what a place takes of one."""
        return self.cpu_us * self.places.get(place, 0) / sum(self.places.values())

    @property
    def ours_us(self) -> float:
        """Return what is neither the kernel's nor the loop's."""
        return sum(self.us(place) for place in self.places if place.group == OURS)


class ProfileError(Exception):
    """There is no profile; the message says what to do."""


class Run:
    """All cells of one run, in its servers."""

    def __init__(self, servers: Servers, folder: Path, cores: Cores, seconds: float) -> None:
        self._servers: Final = servers
        self._folder: Final = folder
        self._cores: Final = cores
        self._seconds: Final = seconds
        self._sent: Final = write_requests(folder / "requests")

    def requests(self) -> list[Cell]:
        """CPU of a JSON request, as many as one core can do."""
        origin = self._servers.nginx_upstream()
        cells = []
        for name, port in (("HTTP/1.1", origin.http1), ("HTTP/2", origin.http2)):
            gateway = self._gateway(name, port)
            target = Target(gateway.port, gateway, origin.http1)
            found = saturate(
                target, self._sent, connections=_CONNECTIONS, seconds=self._seconds, cores=(self._cores.rest,)
            )
            places = self._profile(gateway, self._many_requests)
            cells.append(Cell(f"JSON, {name} up", found["cpu_us"], places, steps(f"JSON request, {name} up")))
            gateway.stop()
        return cells

    def chunks(self) -> list[Cell]:
        """CPU of a chunk, at the pace of a model."""
        origin, http2 = self._servers.upstream(interval_s=_INTERVAL_S)
        cells = []
        for name, port in (("HTTP/1.1", origin.port), ("HTTP/2", http2)):
            gateway = self._gateway(name, port)
            target = Target(gateway.port, gateway, origin.port)
            found = stream(target, streams=_STREAMS, settle_s=_SETTLE_S, seconds=self._seconds, core=self._cores.rest)
            places = self._profile(gateway, self._many_streams)
            cells.append(Cell(f"SSE chunk, {name} up", found["cpu_us"], places, steps(f"SSE chunk, {name} up")))
            gateway.stop()
        return cells

    def _gateway(self, name: str, port: int) -> Server:
        return self._servers.velox(f"http://127.0.0.1:{port}", "on" if name == "HTTP/2" else "off")

    def _many_requests(self, gateway: Server, seconds: float) -> subprocess.Popen[str]:
        return start_wrk(gateway.port, self._sent, seconds=seconds, connections=_CONNECTIONS, core=self._cores.rest)

    def _many_streams(self, gateway: Server, seconds: float) -> subprocess.Popen[str]:
        core, pids = self._cores.rest, gateway.pids
        return start_streams(gateway.port, streams=_STREAMS, settle_s=_SETTLE_S, seconds=seconds, pids=pids, core=core)

    def _profile(self, gateway: Server, start: Callable[[Server, float], subprocess.Popen[str]]) -> Counter[Place]:
        """Have perf look at a gateway under load."""
        load = start(gateway, _SETTLE_S + _PROFILED_S + 2.0)
        try:
            time.sleep(_SETTLE_S)
            return perf(gateway.pids, self._folder / "perf.data", _PROFILED_S)
        finally:
            stop(load)
            load.communicate()


def perf(pids: list[int], file: Path, seconds: float) -> Counter[Place]:
    """Sample some processes; return in which places they were. Raises ProfileError."""
    command = ["perf", "record", "-q", "-F", str(_PER_SECOND), "-e", "cpu-clock", "-g", "-o", str(file)]
    command += ["-p", ",".join(map(str, pids)), "--", "sleep", str(seconds)]
    recorded = subprocess.run(command, capture_output=True, text=True, check=False)
    if recorded.returncode:
        raise ProfileError(
            "perf can't record here; it must be root's, or kernel.perf_event_paranoid at most 1:\n" + recorded.stderr
        )
    command = ["perf", "script", "-i", str(file), "-F", "ip,sym,dso"]
    places = by_place(subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines())
    if not places:
        raise ProfileError("perf saw nothing of the gateway: " + recorded.stderr)
    return places


def steps(kind: str) -> dict[str, float]:
    """Sample the way of a request without sockets; return the share of each step."""
    command = [*rig_command(_ROOT), "--stacks", str(_SAMPLED_S), kind]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        raise ProfileError("the way of a request without sockets failed: " + done.stderr[-2000:])
    return by_step(done.stdout.splitlines())


def tables(cells: list[Cell]) -> str:
    """Return both tables: what a microsecond is spent on, and what runs in those that are ours."""
    titles = [cell.title for cell in cells]
    total = ["**sum: as measured**", *(f"**{cell.cpu_us:.1f}**" for cell in cells)]
    all_places = Counter[Place]()
    for cell in cells:
        all_places.update(cell.places)
    outside = kernel_places(all_places)
    first = [[f"{place.group}: {place.name}", *(_us(cell.us(place)) for cell in cells)] for place in outside]
    names = list(dict.fromkeys(step for cell in cells for step in cell.steps))
    first += [[f"ours: {step}", *(_us(cell.ours_us * cell.steps.get(step, 0.0)) for cell in cells)] for step in names]
    second = [
        [place.name, *(_us(cell.us(place)) for cell in cells)]
        for place, _ in all_places.most_common()
        if place.group == OURS
    ]
    ours = ["**sum: ours**", *(f"**{cell.ours_us:.1f}**" for cell in cells)]
    return (
        "Microseconds of CPU of one, by what is done:\n\n"
        + _table(["", *titles], [*first, total])
        + "\nOf those that are ours, by what runs:\n\n"
        + _table(["", *titles], [*second, ours])
    )


def _us(us: float) -> str:
    return f"{us:.2f}" if us < 10 else f"{us:.1f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _about() -> str:
    machine = describe()
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, CPython {machine['python']}, commit"
        f" {machine['commit']}{', changed since' if machine['modified'] else ''}.\n\n"
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.microseconds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of load for each figure of CPU time")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    if shutil.which("perf") is None:
        print("perf is missing: `apt-get install linux-perf`, or tests/install-tools.sh as root", file=sys.stderr)
        return 2
    cores = pick_cores()
    try:
        with tempfile.TemporaryDirectory() as name, Servers(Path(name), cores) as servers:
            run = Run(servers, Path(name), cores, options.seconds)
            cells = [*run.requests(), *run.chunks()]
    except ProfileError as error:
        print(error, file=sys.stderr)
        return 2
    text = _about() + tables(cells)
    print(text)
    if not options.dry:
        _PAGE.write_text(fill(_PAGE.read_text(), "microseconds", text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
