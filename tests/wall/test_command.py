"""The command that runs the wall and writes its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.harness import REPOSITORY


def test_command_runs_the_tests_of_a_fault_and_writes_their_row(tmp_path: Path) -> None:
    """What is around the marks stays; a row has each column's verdict, and the code is pytest's."""
    page = tmp_path / "faults.md"
    page.write_text("# Before\n<!-- faults -->\nfrom the last time\n<!-- /faults -->\nAfter.\n")
    command = ["-m", "tests.wall", "--write", str(page), "tests/wall/test_cutting.py", "-k", "f16"]

    run = subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr
    text = page.read_text()
    assert text.startswith("# Before\n<!-- faults -->\n") and text.endswith("<!-- /faults -->\nAfter.\n")
    assert "from the last time" not in text
    row = next(line for line in text.splitlines() if line.startswith("| F-16 |"))
    assert row.count("pass") == 3, row
