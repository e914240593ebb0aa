"""Each part of Velox by itself, beside standard ways of doing the same.

    python -m bench.micro                       # about 5 minutes; fills docs/benchmarks/micro.md
    python -m bench.micro --only bodies,queues  # of the page, these tables
    python -m bench.micro --fast                # half a minute: does it run? fills nothing

Each way is first asked the questions that Velox answers, then measured in processes of its own, on one core, by pyperf.
Its file is written to bench/out/; `python -m pyperf stats FILE` says more than the page.

Knows: the command line. Does not know: what is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

import pyperf  # type: ignore[import-untyped]

from bench.machine import describe
from bench.micro.catalogue import SUBJECTS
from bench.micro.page import PAGE, filled, table, versions
from bench.micro.processes import Effort, MicroError, play
from bench.report import save

__all__ = ["main"]

_USUAL: Final = Effort(n_rounds=4, n_values=5, least_s=0.05)
_FAST: Final = Effort(n_rounds=1, n_values=2, least_s=0.002)


def main(argv: list[str]) -> int:
    """Measure, print the tables, write them; 1 if a way can't be measured."""
    names = [subject.name for subject in SUBJECTS]
    parser = argparse.ArgumentParser(prog="bench.micro", description="Parts of Velox beside standard ways.")
    parser.add_argument("--only", default=",".join(names), help=f"which, of {', '.join(names)}")
    parser.add_argument("--fast", action="store_true", help="once and short; fills no page")
    parser.add_argument("--dry", action="store_true", help="fill no page")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "out")
    args = parser.parse_args(argv)
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    subjects = [subject for subject in SUBJECTS if subject.name in chosen]
    effort = _FAST if args.fast else _USUAL
    machine = describe()  # before the load that we are
    try:
        with tempfile.TemporaryDirectory(prefix="bench-micro-") as folder:
            results = play(subjects, effort, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    except MicroError as error:
        print(error, file=sys.stderr)
        return 1
    about = versions(f"{effort.n_rounds} rounds of {effort.n_values} values", machine)
    text = about + "".join(
        f"\n{table(subject, [each for each in results if each.subject == subject.name])}" for subject in subjects
    )
    print(text)
    path = save(args.out, "micro", {"machine": machine}, text)
    suite = pyperf.BenchmarkSuite([result.bench for result in results])
    suite.dump(str(path.with_suffix(".pyperf.json")))
    if not args.fast and not args.dry:
        PAGE.write_text(filled(PAGE.read_text(), subjects, results, about))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
