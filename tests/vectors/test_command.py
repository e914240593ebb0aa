"""The command that prints the table of vectors, and the page that holds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.vectors.__main__ import main
from tests.vectors.table import VECTORS, counts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "http1-vectors.md"
FILE = Path(__file__).with_name("vectors.jsonl")


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


def test_page_counts_the_vectors_that_there_are() -> None:
    """Its sums were written with these vectors, and all were as wanted."""
    page = PAGE.read_text()

    for row in counts([(vector, "") for vector in VECTORS]):
        assert row in page
    assert f"{len(VECTORS)} [vectors](docs/http1-vectors.md)" in (ROOT / "README.md").read_text()
    assert f"{len(VECTORS)} [vectors](http1-vectors.md)" in (ROOT / "docs/guarantees.md").read_text()


def test_page_explains_each_field_of_the_file() -> None:
    page, lines = PAGE.read_text(), FILE.read_text().splitlines()
    names = {name for line in lines for name in json.loads(line)}
    names |= {name for line in lines for answer in json.loads(line)["answers"] for name in answer}

    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
