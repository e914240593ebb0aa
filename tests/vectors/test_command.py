"""The command that prints the table of vectors, and the page that holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors.__main__ import main
from tests.vectors.table import VECTORS, rows

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "http1-vectors.md"


def test_command_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each vector, with what was wanted and what came, and how many there are."""
    assert main(["--only", "SMUG-CL-COMMA"]) == 0

    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("| SMUG-CL-COMMA-SAME |")]
    assert row.count("400 bad_framing, close") == 2
    assert "| Http11Probe's | 3 | 3 | 0 | 0 | 0 |" in lines


def test_command_prints_what_came_of_it_between_servers(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each server and way."""
    assert main(["--only", "SMUG-CL-COMMA", "--through", "uvicorn", "--from", "nginx"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "| Velox → uvicorn | 3 | 3 | 0 |" in lines  # refused, each, and a request after it
    assert "| nginx → Velox | 3 | 3 | 0 |" in lines


def test_page_shows_every_vector_as_it_is() -> None:
    """The table was written with these vectors, and all were as wanted."""
    shown = [line.split(" | ")[:3] for line in PAGE.read_text().splitlines()]

    for row in list(rows((vector, "") for vector in VECTORS))[2:]:
        assert row.split(" | ")[:3] in shown
    assert f"{len(VECTORS)} [vectors](docs/http1-vectors.md)" in (ROOT / "README.md").read_text()
    assert f"{len(VECTORS)} [vectors](http1-vectors.md)" in (ROOT / "docs/guarantees.md").read_text()
    assert "**" not in PAGE.read_text().partition("<!-- vectors -->")[2]
