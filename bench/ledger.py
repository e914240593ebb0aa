"""What records of calls cost a request: CPU time without a ledger, with one, and with budgets.

    python -m bench.ledger                    # about a minute; writes a table of docs/benchmarks/ledger.md
    python -m bench.ledger --count            # instructions of one request by valgrind, its other table; minutes
    python -m bench.ledger --seconds 1 --dry  # does it run? writes nothing

Whole requests: `velox serve` with one worker and nginx behind it, CPU time of all its processes, the ledger's among
them, for each request of wrk, in rounds side by side.

Counted: the worker alone, by the rig of bench.instructions: real heads, nothing recorded, a ledger, budgets of the
gateway and of each key, and keys that are managed, one after the other under one valgrind.

Knows: which settings are compared. Does not know: how a record is kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from bench.instructions.count import count
from bench.instructions.kinds import RECORDED
from bench.load import LoadError, start_wrk, wait_for
from bench.machine import Cores, pick_cores
from bench.rounds import Figures, Spread, ratios, run_rounds, spread
from bench.servers import Server, Servers
from bench.wrk_requests import write_requests
from docs.tables import fill

__all__ = ["main"]

_PAGE: Final = Path(__file__).parent.parent / "docs/benchmarks/ledger.md"
_ROUNDS: Final = 5
_TRIES: Final = 5
_BUDGETS: Final = json.dumps([{"per": "gateway", "tokens": 10**12, "window": "month"}])
_BASE: Final = "nothing recorded"
_CASES: Final[dict[str, dict[str, str]]] = {
    _BASE: {},
    "ledger": {"VELOX_LEDGER": "1"},
    "ledger, budget": {"VELOX_LEDGER": "2", "VELOX_BUDGETS": _BUDGETS},
}


def _measure(folder: Path, cores: Cores, seconds: float) -> Figures:
    """Return the CPU time of a whole request in µs, by rounds."""
    sent = write_requests(folder / "requests")
    with Servers(folder, cores) as servers:
        origin = f"http://127.0.0.1:{servers.nginx_upstream().http1}"
        started = {what: servers.velox(origin, "off", more=_settings(more, folder)) for what, more in _CASES.items()}
        measures = {what: partial(_requests, server, sent, cores.rest) for what, server in started.items()}
        return run_rounds(measures, _ROUNDS, seconds)


def _settings(more: dict[str, str], folder: Path) -> dict[str, str]:
    given = {"VELOX_RATE_LIMIT_RPM": "0", **more}
    if "VELOX_LEDGER" in more:
        given["VELOX_LEDGER"] = str(folder / f"ledger-{more['VELOX_LEDGER']}")
    return given


def _requests(server: Server, sent: Path, core: int, seconds: float) -> dict[str, float]:
    for _ in range(_TRIES):
        load = start_wrk(server.port, sent, seconds=seconds, connections=32, core=core)
        before_s = server.cpu_s()
        done = wait_for(load, seconds=seconds)
        if done["requests"]:  # else the core was another's for all of a short run
            return {"cpu_us": (server.cpu_s() - before_s) / done["requests"] * 1e6}
    raise LoadError("no request was answered")


def _table(figures: Figures) -> str:
    lines = ["| | a whole request, µs | times nothing recorded |", "|---|---|---|"]
    for what, rounds in figures.items():
        shown = _shown(spread([each["cpu_us"] for each in rounds]), 1)
        lines.append(f"| {what} | {shown} | {_shown(ratios(figures, what, _BASE, 'cpu_us'), 2)} |")
    return "\n".join(lines)


def _shown(each: Spread, digits: int) -> str:
    return f"{each.median:.{digits}f} ({each.least:.{digits}f}-{each.greatest:.{digits}f})"


def _counted() -> str:
    """Return the table of instructions. Raises CountError."""
    counts = count(RECORDED)
    base = counts[RECORDED[0].name]
    lines = ["| | instructions of a request | more | times nothing recorded |", "|---|---:|---:|---:|"]
    for name, n in counts.items():
        lines.append(f"| {name} | {n:,.0f} | {n - base:,.0f} | {n / base:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each line in a round")
    parser.add_argument("--count", action="store_true", help="count instructions instead")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    if arguments.count:
        where, table = "instructions", _counted()
    else:
        with tempfile.TemporaryDirectory() as folder:
            where, table = "cost", _table(_measure(Path(folder), pick_cores(), arguments.seconds))
    print(table)
    if not arguments.dry:
        _PAGE.write_text(fill(_PAGE.read_text(), where, f"{table}\n"))


if __name__ == "__main__":
    main()
