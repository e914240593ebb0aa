"""Play all vectors and print the table: python -m tests.vectors [--write FILE] [--through NAMES] [--from NAMES].

    python -m tests.vectors                                  # a real gateway with a recording upstream
    python -m tests.vectors --through nginx,haproxy,caddy,envoy,uvicorn
    python -m tests.vectors --from nginx,haproxy,caddy,envoy # the proxies in front of Velox
    python -m tests.vectors --write docs/http1-vectors.md    # all of it, and the sums into the page

Knows: what is printed and written. Does not know: how a vector is played. The exit code is 1 if anything is not as
wanted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from docs.tables import fill
from tests.vectors.differential import BEHIND_PROXY, TO_SERVER, Report, from_proxy, to_server
from tests.vectors.play import Gateways, behind
from tests.vectors.proxies import PROXIES, SERVERS
from tests.vectors.table import VECTORS, counts, rows
from tests.vectors.vector import Vector


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.vectors")
    parser.add_argument("--only", default="", metavar="START", help="only vectors whose id begins so")
    parser.add_argument("--through", default="", metavar="NAMES", help=f"through Velox to: {', '.join(SERVERS)}")
    parser.add_argument(
        "--from", default="", dest="before", metavar="NAMES", help=f"to Velox from: {', '.join(PROXIES)}"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="run all of it, and put the sums into this page")
    chosen = parser.parse_args(arguments)
    through, before = _names(chosen.through), _names(chosen.before)
    pieces = {}
    n_bad = 0
    if chosen.write or not (through or before):
        results, n_bad = _play([vector for vector in VECTORS if vector.id.startswith(chosen.only)])
        pieces["vectors"] = list(rows(results))
        pieces["counts"] = list(counts(results))
    if chosen.write:
        through, before = tuple(SERVERS), PROXIES
    if through or before:
        table = list(_matrix(through, before, chosen.only))
        n_bad += sum("**" in line for line in table)
        pieces["servers"] = table
    print("\n".join(line for name in ("vectors", "servers", "counts") for line in pieces.get(name, ())))
    if chosen.write:
        _write(chosen.write, {name: pieces[name] for name in ("counts", "servers")})
    return 1 if n_bad else 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _play(vectors: Iterable[Vector]) -> tuple[list[tuple[Vector, str]], int]:
    """Play vectors, each alone and behind a good request; return what came of each, and how many were not right."""
    results, n_bad = [], 0
    with Gateways() as gateways:
        for vector in vectors:
            outcome = gateways.play(vector)
            problems = outcome.problems + (gateways.play(behind(vector)).problems if vector.answers else [])
            n_bad += bool(problems)
            if problems:
                print(f"{vector.id}: {problems}", file=sys.stderr)
            results.append((vector, f"**{outcome.got}**" if problems else outcome.got))
    return results, n_bad


def _matrix(through: Sequence[str], before: Sequence[str], only: str) -> Iterator[str]:
    """Yield a table with a row for each server and way."""
    yield "| way | vectors | requests at the end | not as wanted |"
    yield "|---|---|---|---|"
    ways: list[tuple[str, str, Callable[[str, Sequence[Vector]], Report], Sequence[Vector]]] = [
        *(("Velox → " + name, name, to_server, TO_SERVER) for name in through),
        *((name + " → Velox", name, from_proxy, BEHIND_PROXY) for name in before),
    ]
    for way, name, run, vectors in ways:
        report = run(name, [vector for vector in vectors if vector.id.startswith(only)])
        for what, problems in report.bad.items():
            print(f"{way}: {what}: {problems}", file=sys.stderr)
        bad = f"**{len(report.bad)}**: {', '.join(report.bad)}" if report.bad else "0"
        yield f"| {way} | {report.n_vectors} | {report.n_requests} | {bad} |"


def _write(path: Path, pieces: dict[str, list[str]]) -> None:
    """Put the tables between the marks of a page."""
    text = path.read_text()
    for name, lines in pieces.items():
        text = fill(text, name, "\n".join([*lines, ""]))
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
