"""The measured runs of limits, queue, upstreams and replicas: each runs, with tiny sizes, and changes no page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.redis_server import redis_server
from tests.markdown import ROOT

pytestmark = pytest.mark.slow
ENV = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}


def pages() -> dict[Path, bytes]:
    """Return the text of every page."""
    return {page: page.read_bytes() for page in sorted((ROOT / "docs").rglob("*.md"))}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("overload", "--seconds 0.3"),
        ("fairness", "--seconds 0.6"),
        ("limit_cost", "--seconds 0.1"),
        ("ledger", "--seconds 0.1"),
        ("ledger_rows", "--seconds 0.5"),
        ("ledger_reports", "--rows 2000"),
        ("balance", "--seconds 0.3 --rounds 1"),
        ("prefix", "--seconds 1 --rounds 1"),
        ("hedging", "--seconds 0.5 --rounds 1"),
        ("reloads", "--seconds 3 --reloads 3"),
        ("fleet", "--seconds 4"),
    ],
)
def test_run_prints_tables_and_writes_nothing(command: str, options: str) -> None:
    """No time is judged: a busy machine is slow."""
    before = pages()

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
    assert "|---" in done.stdout, done.stderr
    assert pages() == before


def test_replicas_hold_their_bounds() -> None:
    """Each key of three runs, killed workers and lease managers included, and each state of Redis."""
    with redis_server():  # skips where there is none
        pass
    command = [sys.executable, "-m", "bench.replicas", "--seconds", "4", "--keys", "8", "--dry"]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = [line.split(" | ")[0] for line in run.stdout.splitlines() if line.startswith("| ")]
    assert rows.count("| 1, no Redis") == 9 and rows.count("| 2") == 18
    assert rows[-7:] == [
        "| up, from a full bucket",
        "| up",
        *("| paused (SIGSTOP)", "| goes on", "| killed", "| back, and empty"),
        "| up",
    ]


def test_cold_kinds_are_timed_beside_known_ones() -> None:
    """Both tables have their rows. The figures themselves are not checked."""
    command = [sys.executable, "-m", "bench.cold_kinds", "--rounds", "2"]
    run = subprocess.run(command, cwd=ROOT, env=ENV, check=True, capture_output=True, text=True, timeout=120)

    rows = [line.split(" | ")[0] for line in run.stdout.splitlines() if line.startswith("| ")]
    assert rows == [
        "| what is new",
        *("| known", "| a new key", "| a new model", "| a new version of an SDK", "| eight fields of new names"),
        "| a new key, model and version",
        *("| requests of known callers", "| by themselves", "| between those of a hostile caller"),
    ]


def test_timing_of_keys_has_a_verdict_for_each_table() -> None:
    """B-28's command prints both tables and a verdict for each. What the verdict is, is nobody's gate."""
    command = [sys.executable, "-m", "bench.key_timing", "--tries", "50"]
    run = subprocess.run(command, cwd=ROOT, env=ENV, check=True, capture_output=True, text=True, timeout=60)

    assert run.stdout.count("first byte differs") == run.stdout.count("equal within noise") == 2
