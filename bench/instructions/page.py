"""The figures as tables: of one comparison, and of all that is kept.

Knows: Markdown, docs/benchmarks/instructions.md. Does not know: how a figure came to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.instructions.kept import Figures, Line
from bench.instructions.kinds import ALL_ON, CALIBRATION, OBSERVABILITY
from docs.tables import fill

__all__ = [
    "PAGE",
    "fill_observability",
    "fill_page",
    "fill_steps",
    "kept_table",
    "observability_table",
    "steps_table",
    "table",
]

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "instructions.md"


def table(lines: Sequence[Line]) -> str:
    """Return a comparison."""
    rows = ["| instructions of one | kept | now | difference | |", "|---|---:|---:|---:|---|"]
    for line in lines:
        if line.kept:
            verdict = "" if line.is_kept else "**differs**"
            rows.append(f"| {line.name} | {line.kept:,} | {line.now:,} | {line.change:+.2%} | {verdict} |")
        else:
            rows.append(f"| {line.name} | none | {line.now:,} | | **not kept** |")
    return "\n".join(rows)


def kept_table(kept: Sequence[Figures]) -> str:
    """Return all figures kept, a column for each place; and where that is."""
    names = list(dict.fromkeys(name for each in kept for name in each.instructions if name != CALIBRATION.name))
    names.append(CALIBRATION.name)
    letters = "ABCDEFGHIJ"[: len(kept)]
    rows = [f"| instructions of one | {' | '.join(letters)} |", "|---|" + "---:|" * len(kept)]
    for name in names:
        figures = (f"{each.instructions[name]:,}" if name in each.instructions else "" for each in kept)
        rows.append(f"| {name} | {' | '.join(figures)} |")
    rows.append("")
    for letter, each in zip(letters, kept, strict=True):
        parts = ", ".join(f"{name} {version}" for name, version in each.packages.items())
        rows.append(f"- {letter}: {each.interpreter}\n  {parts}")
    return "\n".join(rows) + "\n"


def steps_table(counts: Mapping[str, float]) -> str:
    """Return what each step of a real deployment costs, over the one above it and over the first."""
    names = [kind.name for kind in ALL_ON]
    base = before = counts[names[0]]
    rows = ["| what is on | instructions of a request | this step | times bare |", "|---|---:|---:|---:|"]
    for kind in ALL_ON:
        n = counts[kind.name]
        what = kind.all_on if n is base else f"+ {kind.all_on}"
        rows.append(f"| {what} | {n:,.0f} | {n - before:+,.0f} | {n / base:.2f} |")
        before = n
    return "\n".join(rows) + "\n"


def observability_table(counts: Mapping[str, float]) -> str:
    """Return what timing, the access log and traces cost, each over metrics alone.

    One in a hundred is not counted, as chance would say how many there are: it follows from none and all.
    """
    found = {str(kind.observes): counts[kind.name] for kind in OBSERVABILITY}
    base = found[str(OBSERVABILITY[0].observes)]
    rows = ["| what is on | instructions of a request | more | in percent |", "|---|---:|---:|---:|"]
    for what, n in found.items():
        rows.append(_observability_row(what, n, base))
        if what == "traces: 0 %":
            rows.append(_observability_row("traces: 1 %", 0.99 * n + 0.01 * found["traces: 100 %"], base))
    return "\n".join(rows) + "\n"


def _observability_row(what: str, n: float, base: float) -> str:
    return f"| {what} | {n:,.0f} | {n - base:+,.0f} | {(n - base) / base:+.1%} |"


def fill_observability(counts: Mapping[str, float], page: Path = PAGE) -> None:
    """Write them where the page has them."""
    page.write_text(fill(page.read_text(), "observability", observability_table(counts)))


def fill_steps(counts: Mapping[str, float], page: Path = PAGE) -> None:
    """Write them where the page has them."""
    page.write_text(fill(page.read_text(), "all-on", steps_table(counts)))


def fill_page(kept: Sequence[Figures], page: Path = PAGE) -> None:
    """Write them where the page has them."""
    page.write_text(fill(page.read_text(), "instructions", kept_table(kept)))
