"""The measured runs of limits and queue: each runs, with tiny sizes, and prints the tables that its page has."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.markdown import ROOT

ENV = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}


def heads(text: str) -> list[str]:
    """Return the first lines of the tables in a text."""
    lines = text.splitlines()
    return [line for line, below in pairwise(lines) if below.startswith("|---")]


@pytest.mark.parametrize(
    ("command", "seconds", "page"),
    [
        ("overload", "0.3", "docs/overload.md"),
        ("fairness", "0.6", "docs/queue.md"),
        ("limit_cost", "0.1", "docs/limits.md"),
    ],
)
def test_bench_runs_and_its_page_has_its_tables(command: str, seconds: str, page: str) -> None:
    """Nothing is written, and no figure is judged: a busy machine is slow."""
    before = (ROOT / page).read_bytes()

    done = subprocess.run(
        [sys.executable, "-m", f"bench.{command}", "--seconds", seconds, "--dry"],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    printed = heads(done.stdout)
    assert printed
    assert set(printed) <= set(heads((ROOT / page).read_text()))
    assert (ROOT / page).read_bytes() == before
