"""The soak by command: a report for people, exit code 1 when a promise was broken.

    python -m tests.soak [--minutes 5] [--rate 60] [--seed N] [--warm-up 2] [--upgrade-each 10] [--first-upgrade 5]
        [--sweeps 0]

Knows: the command line. Does not know: what is done (run.py), or what is thought of it (report.py).
"""

from __future__ import annotations

import argparse
import random
import sys

from tests.soak.report import problems, report
from tests.soak.run import Rules, soak


def main() -> int:
    """Read the command line, soak, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--warm-up", type=float, default=2.0, help="minutes after which memory is measured")
    parser.add_argument("--sweeps", type=int, default=0, help="send a request of each kind so often before")
    # Each version has to live for longer than the warm-up, or nothing is known of its memory.
    parser.add_argument("--upgrade-each", type=float, default=10.0, help="minutes")
    parser.add_argument("--first-upgrade", type=float, help="minutes; unless told a fifth of the time, at most 5")
    given = parser.parse_args()
    seconds = given.minutes * 60
    rules = Rules(
        seconds,
        given.rate,
        given.seed,
        kill_each_s=min(60.0, seconds / 3),
        reload_each_s=min(20.0, seconds / 4),
        freeze_each_s=min(45.0, seconds / 3),
        key_each_s=min(30.0, seconds / 4),
        upgrade_each_s=given.upgrade_each * 60,
        upgrade_first_s=min(300.0, seconds / 5) if given.first_upgrade is None else given.first_upgrade * 60,
        warm_s=given.warm_up * 60,
        sweeps=given.sweeps,
    )
    done = soak(rules, lambda line: print(line, flush=True))
    found = problems(done)
    print(f"\n{report(done)}\n\n{len(found)} problems")
    for problem in found[:50]:
        print(f"- {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
