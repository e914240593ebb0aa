"""The command that floods a gateway prints what it cost, as docs/http2-floods.md shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.harness import REPOSITORY


def test_command_prints_its_table(tmp_path: Path) -> None:
    """A table for each engine, on the screen and between the marks of a page; the rest of the page stays."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- floods -->\nold\n<!-- /floods -->\nafter\n")
    command = [sys.executable, "-m", "tests.floods", "--write", str(page), "honest"]

    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| an honest request") == 2
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert done.stdout.strip() in text
