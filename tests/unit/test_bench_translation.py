"""What a translation costs (bench/translation.py): every pair is crossed, and has a row."""

from __future__ import annotations

from bench.translation import tables


def test_every_pair_has_a_row() -> None:
    """Requests, events and memory; no figure is judged."""
    rows = [line for line in tables(1).splitlines() if line.startswith("| ") and "---" not in line]

    assert len([row for row in rows if " to " in row]) >= 15
    assert sum("orjson" in row for row in rows) == 2
