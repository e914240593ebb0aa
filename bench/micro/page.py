"""The figures as tables of docs/benchmarks/micro.md.

Knows: the form. Does not know: how a figure came to be.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.micro.candidates import Subject
from bench.micro.catalogue import SUBJECTS
from bench.micro.processes import Result
from bench.rounds import Spread, spread
from docs.tables import fill

__all__ = ["PAGE", "filled", "mark", "table", "versions"]

PAGE: Final = Path(__file__).parents[2] / "docs/benchmarks/micro.md"
# What the measured ways of Velox itself are made of.
_OURS: Final = ("pysimdjson", "httptools", "ngh2", "h2", "uvloop", "atomicshm")


def mark(subject: str) -> str:
    """Return the name of a table's marks."""
    return f"micro-{subject}"


def table(subject: Subject, results: Sequence[Result]) -> str:
    """Return the table of one subject: medians of the rounds with the least and the greatest, ratios within a round."""
    lines = [
        f"| what | way | µs for {subject.unit} | Velox ÷ it | answers otherwise |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        ours = next(each for each in results if each.case is result.case)
        ratio = ""
        if result is not ours:
            pairs = zip(ours.medians, result.medians, strict=True)
            ratio = f"{_shown(spread([mine / other for mine, other in pairs]))}x"
        lines.append(
            f"| {result.case.name} | {result.candidate.name} | {_shown(result.time_us)} | {ratio} "
            f"| {_otherwise(result)} |"
        )
    return "\n".join(lines) + "\n"


def versions(effort: str, machine: Mapping[str, object]) -> str:
    """Return what the figures were taken with. machine: from bench.machine.describe()."""
    needed = {name for each in SUBJECTS for case in each.cases for one in case.candidates for name in one.needs}
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(needed | {*_OURS, "pyperf"}))
    load = "{:.1f}, {:.1f}, {:.1f}".format(*os.getloadavg())
    return (
        (
            f"{machine['cpu']}, {len(os.sched_getaffinity(0))} cores, Linux {machine['kernel']}, "
            f"CPython {platform.python_version()}; {effort}; load average {load}.\n\n"
        )
        + textwrap.fill(f"{found}.", 150, break_on_hyphens=False)
        + "\n"
    )


def filled(text: str, subjects: Sequence[Subject], results: Sequence[Result], about: str) -> str:
    """Return the page with the tables of these subjects, and with what they were taken with."""
    for subject in subjects:
        own = [result for result in results if result.subject == subject.name]
        text = fill(text, mark(subject.name), table(subject, own))
    return fill(text, mark("versions"), about)


def _otherwise(result: Result) -> str:
    parts = sorted(result.candidate.unable)
    if result.told.get("taken"):
        lost = result.told["lost"] / result.told["taken"]
        parts.append(f"{lost * 100:.0f} % of {result.told['taken']:,} lost" if lost else "none lost")
    return "; ".join(parts)


def _shown(each: Spread) -> str:
    return f"{_number(each.median)} ({_number(each.least)}-{_number(each.greatest)})"


def _number(value: float) -> str:
    """Round to three digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
