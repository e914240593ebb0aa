"""The command that plays the cases prints how each engine did, as docs/http2-floods.md shows it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.harness import REPOSITORY
from tests.h2spec.table import ALL_CASES


def run(*options: str) -> list[str]:
    """Run the command; return what it printed."""
    command = [sys.executable, "-m", "tests.h2spec", *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("options", [(), ("--gateway",)], ids=["memory", "gateway"])
def test_command_prints_its_table(options: tuple[str, ...]) -> None:
    """How many went as wanted, by engine; no case went wrong."""
    lines = run(*options)
    counts = [line for line in lines if line.startswith(("| ngh2 |", "| h2 |"))]
    assert len(counts) == 4
    assert all(line.endswith("| 0 |") for line in counts)


def test_command_prints_every_case_when_asked() -> None:
    """--all shows what went as wanted too."""
    lines = run("--all")
    assert all(any(line.startswith(f"| {case.id} |") for line in lines) for case in ALL_CASES)
