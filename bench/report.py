"""A run as a Markdown table for people and as JSON for later questions.

Knows: the form. Does not know: how a figure came to be.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.rounds import Figures, Spread, ratios, spread

__all__ = ["Row", "row", "save", "table"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a figure of one subject, and how it stands to the reference. bar: the ratio to keep; 0: none."""

    what: str
    subject: str
    value: Spread
    unit: str
    ratio: Spread | None = None
    bar: float = 0.0


def row(
    figures: Figures,
    key: str,
    subject: str,
    *,
    what: str,
    unit: str,
    reference: str = "",
    bar: float = 0.0,
) -> Row:
    """Summarise one figure of one subject; `reference`: the subject that it is compared with."""
    value = spread([each[key] for each in figures[subject]])
    ratio = ratios(figures, subject, reference, key) if reference else None
    return Row(what, subject, value, unit, ratio, bar)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table: medians, least to greatest in parentheses."""
    lines = [
        "| measure | subject | median (min-max) | ratio (min-max) | bar | |",
        "|---|---|---|---|---|---|",
    ]
    for each in rows:
        ratio = "" if each.ratio is None else f"{_shown(each.ratio, 2)}x"
        bar = f"{each.bar:g}x" if each.bar else ""
        verdict = "" if each.ratio is None or not each.bar else _verdict(each.ratio.median <= each.bar)
        value = f"{_shown(each.value, 3)} {each.unit}"
        lines.append(f"| {each.what} | {each.subject} | {value} | {ratio} | {bar} | {verdict} |")
    return "\n".join(lines)


def save(folder: Path, name: str, document: dict[str, object], text: str) -> Path:
    """Write NAME-TIME.json and .md; return the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    stem.with_suffix(".md").write_text(text + "\n")
    path = stem.with_suffix(".json")
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def _verdict(kept: bool) -> str:
    return "kept" if kept else "**missed**"


def _shown(each: Spread, digits: int) -> str:
    return f"{_number(each.median, digits)} ({_number(each.least, digits)}-{_number(each.greatest, digits)})"


def _number(value: float, digits: int) -> str:
    """Round to `digits` significant digits after the first: 12.34 and 0.123, but 25120 in full."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.{digits}g}" if abs(value) < 1 else f"{value:.2f}"
