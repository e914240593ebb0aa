"""What a translation costs (bench/translation.py): every pair is crossed, and has a row."""

from __future__ import annotations

from bench.translation import tables
from bench.translation_peers import compare


def test_every_pair_has_a_row() -> None:
    """Requests, events and memory; no figure is judged."""
    rows = [line for line in tables(1).splitlines() if line.startswith("| ") and "---" not in line]

    assert len([row for row in rows if " to " in row]) >= 15
    assert sum("orjson" in row for row in rows) == 2


def test_velox_translates_what_others_are_measured_with() -> None:
    """The smoke run: Velox alone, each answer looked at; no figure is judged."""
    rows = [line for line in compare(1, 0.05, others=()).splitlines() if line.startswith("| Velox")]

    assert len(rows) == 2
