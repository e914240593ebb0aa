"""Plays the rounds: each way in a process of its own, those of one case one after the other.

Knows: processes, order, pyperf's files. Does not know: what is measured (candidates.py), or the page (page.py).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyperf  # type: ignore[import-untyped]

from bench.machine import pick_cores
from bench.micro.candidates import Candidate, Case, Subject
from bench.rounds import Spread, rotated, spread

__all__ = ["Effort", "MicroError", "Result", "play"]


class MicroError(Exception):
    """A way that can't be measured: what it needs is missing, or its answers are wrong."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done. n_values: of each process; least_s: that each of them takes."""

    n_rounds: int
    n_values: int
    least_s: float


@dataclass(slots=True)
class Result:
    """What came of one way. medians: of each round, in seconds."""

    subject: str
    case: Case
    candidate: Candidate
    medians: list[float] = field(default_factory=list)
    bench: pyperf.Benchmark | None = None
    told: dict[str, int] = field(default_factory=dict)

    @property
    def time_us(self) -> Spread:
        """Return the median of the rounds, the least and the greatest, in µs."""
        return spread([each * 1e6 for each in self.medians])

    def add(self, found: pyperf.Benchmark) -> None:
        """Note one more process of it."""
        self.medians.append(median(found.get_values()))
        for name in ("taken", "lost"):
            if name in found.get_metadata():
                self.told[name] = self.told.get(name, 0) + int(found.get_metadata()[name])
        if self.bench is None:
            self.bench = found
        else:
            self.bench.add_runs(found)


def play(subjects: Sequence[Subject], effort: Effort, folder: Path, say: Callable[[str], None]) -> list[Result]:
    """Measure all of them; raises MicroError, before anything is measured, if a way needs what is not there."""
    missing = {
        name: candidate.name
        for subject in subjects
        for case in subject.cases
        for candidate in case.candidates
        for name in candidate.missing
    }
    if missing:
        raise MicroError(
            "not installed: " + ", ".join(sorted(missing)) + "; they are in the group dev (pyproject.toml)"
        )
    cases = [
        [Result(subject.name, case, candidate) for candidate in case.candidates]
        for subject in subjects
        for case in subject.cases
    ]
    for turn in range(effort.n_rounds):
        for results in cases:
            say(f"round {turn + 1} of {effort.n_rounds}: {results[0].subject}, {results[0].case.name}")
            by_name = {result.candidate.name: result for result in results}
            for name in rotated(list(by_name), turn):
                by_name[name].add(_measure(by_name[name], effort, folder))
    return [result for results in cases for result in results]


def _measure(result: Result, effort: Effort, folder: Path) -> pyperf.Benchmark:
    output = folder / "one.json"
    output.unlink(missing_ok=True)
    names = (result.subject, result.case.name, result.candidate.name)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.micro.worker", *names, "--core", str(pick_cores().gateway)),
            *("--values", str(effort.n_values), "--least-s", str(effort.least_s), "--output", str(output)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MicroError(f"{' / '.join(names)}:\n{done.stderr.strip()}")
    return pyperf.Benchmark.load(str(output))
