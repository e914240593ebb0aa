"""One process of a measurement: checks one way's answers, then lets pyperf take its time on one core.

    python -m bench.micro.worker SUBJECT CASE CANDIDATE --core N --values N --least-s S --output FILE

Knows: pyperf's runner. Does not know: which processes there are (rounds.py), or what becomes of the file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyperf  # type: ignore[import-untyped]

from bench.micro.candidates import Timed, wrong
from bench.micro.catalogue import find
from bench.micro.contested import Contest

__all__ = ["main"]


def _loops(timed: Timed, least_s: float) -> int:
    """Return how often the work must be done for a value to take at least so long."""
    n = 1
    while (took_s := timed(n)) < least_s / 2:
        n *= 2
    return max(1, round(n * least_s / took_s))


def main(argv: list[str]) -> int:
    """Measure one; 1 if its answers are wrong."""
    parser = argparse.ArgumentParser(prog="bench.micro.worker")
    parser.add_argument("names", nargs=3)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--values", type=int, required=True)
    parser.add_argument("--least-s", type=float, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    case, candidate = find(*args.names)
    problems = wrong(case, candidate)
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    runner = pyperf.Runner()
    timed = candidate.begin()
    # This process is one of pyperf's: it starts none itself.
    loops = _loops(timed, args.least_s)
    runner.parse_args(
        [
            *("--worker", "--worker-task=0", "--quiet", f"--affinity={args.core}"),
            *(f"--loops={loops}", "--warmups=1", f"--values={args.values}"),
        ]
    )
    bench = runner.bench_time_func(" / ".join(args.names), timed, inner_loops=case.n_inner)
    if isinstance(timed, Contest):
        bench.update_metadata(timed.told())
    bench.dump(str(args.output))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
