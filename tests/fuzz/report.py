"""Writes the figures of a long run into docs/fuzzing.md.

Knows: the log's entries and the table's columns. Does not know: how the figures came about (engines.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from docs.tables import fill
from tests.fuzz.engines import ROOT
from tests.fuzz.targets import TARGETS

__all__ = ["table", "write"]

PAGE: Final = ROOT / "docs" / "fuzzing.md"
_MARKER: Final = "figures"


def table(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the table in Markdown: a row for each target that was run."""
    lines = [
        "| target | minutes | executions | a second | edges | corpus | crashes | hangs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    logged = list(entries)
    for name in TARGETS:
        runs = [entry for entry in logged if entry["target"] == name]
        if not runs:
            continue
        seconds, n = sum(run["seconds"] for run in runs), sum(run["executions"] for run in runs)
        edges, corpus = max(run["edges"] for run in runs), runs[-1]["corpus"]
        crashes, hangs = sum(run["crashes"] for run in runs), sum(run["hangs"] for run in runs)
        cells = (name, f"{seconds / 60:.1f}", f"{n:,}", f"{n / max(seconds, 1):,.0f}", edges, corpus, crashes, hangs)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def write(entries: Iterable[Mapping[str, Any]]) -> None:
    """Put the table into its page."""
    PAGE.write_text(fill(PAGE.read_text(), _MARKER, table(entries)))
