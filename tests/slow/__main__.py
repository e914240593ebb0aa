"""The attacks by command: python -m tests.slow [--write docs/slow-peers.md] [--connections N] [--seconds S] [NAME ...]

Knows: the command line and the table. Does not know: how an attack runs (run.py). Settings are Velox's defaults, but
for one worker and no rate limit. Attackers yield, and each attack is made a second time on another server (run.py says
why). --write puts the table between its marks in a file of Markdown. NAME: a part of an attack's name; without, all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.harness import VeloxProcess
from tests.slow.attacks import ATTACKS
from tests.slow.healthy import Answers
from tests.slow.run import Outcome, Phase, machine_alone, run, start_upstream

_BEGIN: Final = "<!-- attacks -->"
_END: Final = "<!-- /attacks -->"
_CALM_S: Final = 5.0


def main() -> int:
    """Run, print, and write if told to; exit code 1 when a healthy request failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.slow")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this file of Markdown")
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of an attack's name")
    given = parser.parse_args()
    outcomes: list[tuple[Outcome, Alone]] = []
    with start_upstream() as upstream:
        for attack in ATTACKS:
            if given.names and not any(name in attack.name for name in given.names):
                continue
            if not attack.is_here:
                print(f"{attack.name}: {attack.tool} is not installed", file=sys.stderr)
                continue
            settings = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0", **attack.env}
            with VeloxProcess(settings) as velox:
                much = {"n": given.connections, "seconds": given.seconds}
                alone = machine_alone(attack, velox, **much, calm_s=_CALM_S, yielding=True)
                outcomes.append((run(attack, velox, **much, calm_s=_CALM_S, yielding=True), alone))
            print("\n".join(rows(outcomes[-1:])), flush=True)
    text = "\n".join([*HEAD, *rows(outcomes)])
    print("\n" + text)
    if given.write is not None:
        write(given.write, text)
    return 1 if any(phase.answers.bad for o, _ in outcomes for phase in (o.before, o.during, o.after)) else 0


HEAD: Final = (
    "| attack | healthy p50, ms | healthy p99, ms | p99 while another server is attacked"
    " | times the p99 before: Velox attacked, the other"
    " | failed | worker's CPU, % | its memory, MiB | connections | came in, s | ended |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)
Alone = tuple[Answers, Answers]


def rows(outcomes: Sequence[tuple[Outcome, Alone]]) -> Iterator[str]:
    """Yield a row of the table for each attack; three figures in a cell: before, during, after; two: without after."""
    for each, alone in outcomes:
        phases = (each.before, each.during, each.after)
        pairs = ((each.before.answers, each.during.answers), alone)
        rises = [during.percentile(99) / before.percentile(99) for before, during in pairs]
        cells = [
            f"{each.attack.name}: {each.attack.what}",
            _three(phases, lambda phase: f"{phase.answers.percentile(50):.1f}"),
            _three(phases, lambda phase: f"{phase.answers.percentile(99):.1f}"),
            " / ".join(f"{answers.percentile(99):.1f}" for answers in alone),
            " / ".join(f"{rise:.1f}" for rise in rises),
            str(sum(len(phase.answers.bad) for phase in phases)),
            _three(phases, lambda phase: f"{phase.busy:.0%}".removesuffix("%")),
            _three(phases, lambda phase: str(phase.resident >> 20)),
            _three(phases, lambda phase: str(phase.connections)),
            f"{each.during.rise_s:.1f}",
            _ended(each),
        ]
        yield "| " + " | ".join(cells) + " |"


def _three(phases: Sequence[Phase], show: Callable[[Phase], str]) -> str:
    return " / ".join(show(phase) for phase in phases)


def _ended(outcome: Outcome) -> str:
    ends = {reason: n for reason, n in outcome.ends.items() if n and reason in outcome.attack.reasons}
    parts = [f"{n:,} `{reason}`" for reason, n in sorted(ends.items(), key=lambda item: -item[1])]
    if outcome.still_open > 0:
        parts.append(f"{outcome.still_open} open at the end, all gone {outcome.drained_s:.1f} s later")
    elif not parts:
        parts.append("all closed by Velox, without a word")
    return ", ".join(parts)


def write(path: Path, text: str) -> None:
    """Put the table between the marks of a file."""
    before, _, rest = path.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    path.write_text(f"{before}{_BEGIN}\n{text.rstrip()}\n{_END}{after}")


if __name__ == "__main__":
    sys.exit(main())
