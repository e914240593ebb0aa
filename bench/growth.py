"""What a request costs as things grow (connections, bodies, upstreams, keys, routes, limits), and what a fleet serves.

    python -m bench.growth                # about 7 minutes; fills docs/benchmarks/growth.md, its pictures and its data
    python -m bench.growth --dry --rounds 1 --seconds 0.5 --only connections,limits    # does it run? writes nothing
    python -m bench.growth --page         # fill the page anew from the data that it has

All points of all series are measured once in each round, in an order that rotates; the first round is dropped.

Knows: the order of a run, and where its figures are kept. Does not know: what is started (growth_cells.py), what is
made of the figures (growth_page.py, growth_model.py).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.growth_cells import MEMBERS_AT_REST, SERIES, Cells, point_name
from bench.growth_page import Document, draw, tables
from bench.machine import Cores, describe, pick_cores
from bench.pictures import DOCS
from bench.rounds import run_rounds
from bench.servers import Servers
from docs.tables import fill

__all__ = ["DATA", "PAGE", "filled", "main"]

PAGE: Final = DOCS / "benchmarks/growth.md"
DATA: Final = DOCS / "benchmarks/data/growth.json"


def measure(folder: Path, cores: Cores, *, n_rounds: int, seconds: float, only: frozenset[str]) -> Document:
    """Measure everything; return the document. From then on this process stays on the core of the load."""
    document: Document = {
        "format": 1,
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe(),  # while it may still use all cores
        "rounds": n_rounds,
        "seconds": seconds,
        "rest": {},
        "memory": {},
        "series": {},
    }
    os.sched_setaffinity(0, {cores.rest})
    if "rest" in only:
        with _servers(folder / "rest", cores) as servers:
            cells = Cells(folder / "rest", servers, cores)
            for n in MEMBERS_AT_REST:
                document["rest"][f"{n}"] = cells.at_rest(n)
                _tell(f"{n} members at rest: {document['rest'][f'{n}']}")
            document["memory"] = cells.memory()
    with _servers(folder / "load", cores) as servers:
        cells = Cells(folder / "load", servers, cores)
        found = run_rounds(_told(cells.measures(only)), n_rounds, seconds)
    for name, series in SERIES.items():
        if name in only:
            document["series"][name] = {f"{n:g}": found[point_name(name, n)] for n in series.points}
    return document


def filled(page: str, document: Document) -> str:
    """Return the page with all that is made of a document."""
    for name, table in tables(document).items():
        page = fill(page, name, f"{table}\n")
    return page


def publish(document: Document) -> None:
    """Fill the page, and draw its picture."""
    PAGE.write_text(filled(PAGE.read_text(), document))
    draw(document)


def _servers(folder: Path, cores: Cores) -> Servers:
    folder.mkdir()
    return Servers(folder, cores)


def _told(
    measures: dict[str, Callable[[float], dict[str, float]]],
) -> dict[str, Callable[[float], dict[str, float]]]:
    """Return the same measures; each tells what it found."""

    def telling(name: str, measure: Callable[[float], dict[str, float]]) -> Callable[[float], dict[str, float]]:
        def measured(seconds: float) -> dict[str, float]:
            found = measure(seconds)
            _tell(f"{name}: {found['cpu_us']:.1f} µs")
            return found

        return measured

    return {name: telling(name, each) for name, each in measures.items()}


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Read the command line, measure, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.2, help="of each point in a round")
    parser.add_argument("--only", metavar="SERIES", help=f"of rest,{','.join(SERIES)}")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("--page", action="store_true", help="measure nothing: fill the page from the data it has")
    given = parser.parse_args()
    if given.page:
        publish(json.loads(DATA.read_text()))
        return
    only = frozenset(given.only.split(",")) if given.only else frozenset({"rest", *SERIES})
    if given.only and not given.dry:
        parser.error("--only needs --dry: the page shows all series")
    cores = pick_cores()
    with tempfile.TemporaryDirectory(prefix="velox-growth-") as folder:
        document = measure(Path(folder), cores, n_rounds=given.rounds, seconds=given.seconds, only=only)
    if given.dry:
        print(json.dumps(document["series"], indent=1))
        return
    DATA.parent.mkdir(parents=True, exist_ok=True)
    DATA.write_text(json.dumps(document, indent=1) + "\n")
    publish(document)


if __name__ == "__main__":
    main()
