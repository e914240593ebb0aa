"""Fuzzes for as long as it is told: `python -m tests.fuzz [--seconds N] [--target T]... [--jobs 2]`.

Knows: its arguments, the log of runs, what is left to do of a long run. Does not know: how a target is fuzzed
(engines.py).

    python -m tests.fuzz --seconds 20                       each target for 20 s
    python -m tests.fuzz --seconds 1800 --log long.jsonl    goes on where an earlier call with this log stopped
    python -m tests.fuzz --shrink                           the corpus anew: the smallest inputs that reach as much
    python -m tests.fuzz --report long.jsonl                the figures into docs/fuzzing.md

Exit code: 0, nothing was found; 1, something was: it is printed, and the inputs are in FOLDER/crashes.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.fuzz import report, shrink
from tests.fuzz.engines import ROOT, Run, fuzz, has_atheris
from tests.fuzz.targets import TARGETS, Target

__all__ = ["main"]

# A run that is stopped loses what it did since the last entry of its log.
_ENTRY_S: Final = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments say; return the exit code."""
    given = _parser().parse_args(argv)
    targets = [TARGETS[name] for name in given.target or TARGETS]
    if given.report is not None:
        report.write([json.loads(line) for line in given.report.read_text().splitlines()])
        return 0
    if given.shrink:
        for target in targets:
            print(shrink.shrink(target, given.work / "corpus" / target.name), flush=True)
        return 0
    engine = given.engine or ("atheris" if has_atheris() else "hypothesis")
    print(f"{engine}, {given.seconds:g} s for each of {len(targets)} targets", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        done = pool.map(lambda target: _fuzz(target, given, engine), targets)
    runs = [run for some in done for run in some]
    failed = [run for run in runs if run.found]
    for run in failed:
        print(
            f"\n{run.target}: an input that failed is in {given.work / 'crashes' / run.target}\n" + "\n".join(run.found)
        )
    print(f"\n{sum(run.executions for run in runs)} executions, {len(failed)} runs that found something")
    return 1 if failed else 0


def _fuzz(target: Target, given: argparse.Namespace, engine: str) -> list[Run]:
    """Fuzz one target until its time is over, in runs of a few minutes; an error ends its run, not the others."""
    runs: list[Run] = []
    left_s = given.seconds - (_seconds_so_far(given.log, target) if given.log else 0.0)
    while left_s > 0.5:
        run = fuzz(target, min(left_s, _ENTRY_S) if given.log else left_s, given.work, engine=engine)
        runs.append(run)
        left_s -= run.seconds
        print(_line(run), flush=True)
        if given.log is not None:
            _note(given.log, run)
        elif run.found:
            break
    return runs


def _line(run: Run) -> str:
    per_s = run.executions / max(run.seconds, 0.001)
    figures = f"{run.executions} executions ({per_s:.0f}/s), {run.edges} edges, corpus {run.corpus}"
    return f"{run.target:10} {run.seconds:6.0f} s: {figures}, {run.crashes} crashes, {run.hangs} hangs"


def _note(log: Path, run: Run) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(json.dumps({"ended": now, **dataclasses.asdict(run)}) + "\n")


def _seconds_so_far(log: Path, target: Target) -> float:
    if not log.exists():
        return 0.0
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return sum(float(entry["seconds"]) for entry in entries if entry["target"] == target.name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target (60)")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time (1)")
    parser.add_argument("--engine", choices=("atheris", "hypothesis"), help="atheris where it is installed")
    parser.add_argument("--work", type=Path, default=ROOT / ".fuzz", metavar="FOLDER", help="what is found (.fuzz)")
    parser.add_argument("--log", type=Path, help="append the figures here, and go on where it ends")
    parser.add_argument("--shrink", action="store_true", help="make tests/fuzz/corpus anew of it and of FOLDER/corpus")
    parser.add_argument("--report", type=Path, metavar="LOG", help="write the figures of a log into docs/fuzzing.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
