"""The measured runs of many upstreams: each runs, with tiny sizes, and prints the tables that its page has."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.test_bench_limits import ENV, heads
from tests.markdown import ROOT


@pytest.mark.parametrize(
    ("command", "options", "page"),
    [
        ("balance", "--seconds 0.3 --rounds 1", "docs/balancing.md"),
        ("prefix", "--seconds 1 --rounds 1", "docs/balancing.md"),
        ("hedging", "--seconds 0.5 --rounds 1", "docs/hedging.md"),
        ("reloads", "--seconds 3 --reloads 3", "docs/reload.md"),
        ("fleet", "--seconds 4", "docs/fleet.md"),
    ],
)
def test_bench_runs_and_its_page_has_its_tables(command: str, options: str, page: str) -> None:
    """Nothing is written, and no time is judged: a busy machine is slow."""
    before = (ROOT / page).read_bytes()

    done = subprocess.run(
        [sys.executable, "-m", f"bench.{command}", *options.split(), "--dry"],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    # A fleet's faults are a second apart here: a request may meet two of them, before either is known.
    assert done.returncode in ((0, 1) if command == "fleet" else (0,)), done.stderr
    printed = heads(done.stdout)
    assert printed, done.stderr
    assert set(printed) <= set(heads((ROOT / page).read_text()))
    assert (ROOT / page).read_bytes() == before
