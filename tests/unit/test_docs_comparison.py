"""The page that compares: nothing stands there without the place where it was read."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/comparison.md").read_text()
_MARK = re.compile(r"\[([A-Z][0-9]+)\]")


def _cells() -> list[list[str]]:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_each_cell_has_a_source_or_says_that_none_was_found() -> None:
    head, *rows = _cells()
    assert len(rows) >= 10
    for row in rows:
        assert len(row) == len(head), row[0]
        unsourced = [cell for cell in row[1:] if not _MARK.search(cell) and cell != "?" and "not read" not in cell]
        assert not unsourced, f"{row[0]}: {unsourced}"


def test_sources_are_those_that_cells_name_each_with_its_place_and_the_day() -> None:
    table, _, sources = PAGE.partition("## Sources")
    listed = re.findall(r"\*\*([A-Z][0-9]+)\*\* (?:<https://[^>]+>|\[)", sources)
    assert sorted(listed) == sorted(set(_MARK.findall(table)))
    assert re.search(r"All read on 20[0-9]{2}-[0-9]{2}-[0-9]{2}\.", sources)
    assert all("blob/main" not in line for line in sources.splitlines()), "a branch says something else tomorrow"
