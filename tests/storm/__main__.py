"""The storm by command: tables for people, exit code 1 when a promise was broken.

    python -m tests.storm [--streams 10000] [--cancels 10000] [--kinds http1,ngh2,h2] [--seed N]

Knows: the command line. Does not know: what is counted (faults.py, cancels.py).
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import Final, cast

from tests.storm.cancels import cancels
from tests.storm.faults import storm
from tests.storm.ground import KINDS, Kind

# The promise, on a machine that has nothing else to do.
LIMIT_MS: Final = 100.0


def main() -> int:
    """Read the command line, let the storms pass, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=10_000, help="with faults; for each kind; 0: none")
    parser.add_argument("--cancels", type=int, default=10_000, help="over all phases; for each kind; 0: none")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of http1, ngh2, h2; with -tls after it: over TLS")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    problems: list[str] = []
    for kind in cast("list[Kind]", given.kinds.split(",")):
        if given.streams:
            passed = storm(kind, given.streams, given.seed)
            print(f"\n## {kind}: {given.streams} streams, seed {given.seed}\n\n{passed.table()}", flush=True)
            problems += passed.problems()
        if given.cancels:
            cancelled = cancels(kind, given.cancels)
            print(f"\n## {kind}: {given.cancels} cancels\n\n{cancelled.table()}", flush=True)
            problems += cancelled.problems() + cancelled.late(LIMIT_MS, 0.99)
    print(f"\n{len(problems)} problems")
    for problem in problems[:50]:
        print(f"- {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
